"""How commands print to the terminal: answers on stdout, everything else on stderr."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ampwatch.printable_text import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

FAILED = 2
_MOST_REASONS = 10


def prepare_streams() -> None:
    """Print a question mark for characters that the terminal lacks, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def complain(message: str) -> int:
    """Print an error as one line on the terminal's stderr; return the exit code for errors."""
    print(f"ampwatch: {printable(' '.join(message.split()))}", file=sys.stderr)
    return FAILED


def answers() -> Console:
    """The terminal's console for answers, on stdout."""
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False)


def asides() -> Console:
    """The terminal's console for progress and remarks, on stderr."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, markup=False, emoji=False)


def say(text: str) -> None:
    """Print a remark on the terminal's stderr, on one line."""
    asides().print(printable(text), soft_wrap=True)


def answer(text: str) -> None:
    """Print an answer as plain lines on stdout, without wrapping."""
    lines = [printable(line) for line in text.split("\n")]
    answers().print("\n".join(lines), soft_wrap=True)


def say_reasons(what: str, reasons: Sequence[tuple[str, str]]) -> None:
    """Say of each run, by its name, why something was not done with it; of many, the first ten."""
    for name, reason in reasons[:_MOST_REASONS]:
        say(f"{what}: {name}: {reason}")
    if len(reasons) > _MOST_REASONS:
        say(f"And {len(reasons) - _MOST_REASONS:,} more.")


def empty_table() -> Table:
    """A table for the terminal, as all commands print them."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    return Table(box=SIMPLE_HEAD, pad_edge=False)


def age_text(seconds: float) -> str:
    """An age for the terminal, in its largest unit: `3 d`, `5 min`."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
