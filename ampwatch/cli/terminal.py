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

_MOST_REASONS = 10
_volume = ""  # "quiet" or "verbose", as -q and -v say


def prepare_streams() -> None:
    """Print a question mark for characters that the terminal lacks, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def set_volume(volume: str) -> None:
    """Print less from now on ("quiet"), or more ("verbose"), or as usual ("")."""
    global _volume  # noqa: PLW0603  a program has one volume, in every thread
    _volume = volume


def is_quiet() -> bool:
    """Whether only answers and errors are printed."""
    return _volume == "quiet"


def is_verbose() -> bool:
    """Whether a report has every number, and an error says where it arose."""
    return _volume == "verbose"


def complain(message: str) -> None:
    """Print an error as one line on the terminal's stderr."""
    print(f"ampwatch: {printable(' '.join(message.split()))}", file=sys.stderr)


def answers() -> Console:
    """The terminal's console for answers, on stdout."""
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False, force_jupyter=False)


def asides() -> Console:
    """The terminal's console for progress and remarks, on stderr."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, markup=False, emoji=False, force_jupyter=False)


def say(text: str) -> None:
    """Print a remark on the terminal's stderr, on one line; nothing if it is to be quiet."""
    if not is_quiet():
        asides().print(printable(text), soft_wrap=True)


def answer(text: str) -> None:
    """Print an answer as plain lines on stdout, without wrapping."""
    lines = [printable(line) for line in text.split("\n")]
    answers().print("\n".join(lines), soft_wrap=True)


def say_reasons(what: str, reasons: Sequence[tuple[str, str]]) -> None:
    """Say of each run, by its name, why something was not done with it; of many, the first ten."""
    for name, reason in reasons[:_MOST_REASONS]:
        complain(f"{what}: {name}: {reason}")
    if len(reasons) > _MOST_REASONS:
        complain(f"And {len(reasons) - _MOST_REASONS:,} more.")


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
