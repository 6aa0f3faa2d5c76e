"""Where commands write: answers on stdout, everything else on stderr."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

from ampwatch.text import printable

if TYPE_CHECKING:
    from rich.console import Console

FAILED = 2


def prepare_streams() -> None:
    """Let a terminal that lacks a character show a question mark instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def complain(message: str) -> int:
    """One line on stderr; the exit code that goes with it."""
    print(f"ampwatch: {printable(' '.join(message.split()))}", file=sys.stderr)
    return FAILED


def answers() -> Console:
    """The console for what was asked for."""
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False)


def asides() -> Console:
    """The console for progress and remarks, on stderr."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, markup=False, emoji=False)


def say(text: str) -> None:
    """A remark on stderr, on one line."""
    asides().print(printable(text), soft_wrap=True)


def answer(text: str) -> None:
    """Plain lines on stdout, as wide as they are."""
    lines = [printable(line) for line in text.split("\n")]
    answers().print("\n".join(lines), soft_wrap=True)
