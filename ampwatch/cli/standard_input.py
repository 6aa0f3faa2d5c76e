"""Standard input as a log: what is said while it is awaited, and how errors call it.

In a terminal it says at once what it waits for, and ends with the first Ctrl-D. A pipe that does
not end gets a remark, if a person sees it.
"""

from __future__ import annotations

import io
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ampwatch.cli.terminal import asides, say
from ampwatch.errors import LogError

MARK = "-"  # what the command line calls standard input
PATIENCE_S = 5.0  # most logs are through a pipe by then

_END = "Ctrl-Z and Enter" if sys.platform == "win32" else "Ctrl-D"
_PASTE = f"Paste the log here, then press Enter and {_END}; Ctrl-C leaves."
_GOES_ON = (
    "Reading standard input to its end; Ctrl-C leaves. For a log that goes on: "
    "`ampwatch watch --text -`."
)
_MARK_IN_SENTENCE = re.compile(r"(?<!\S)-(?=[\s:])")


def clipboard_help(command: str) -> str:
    """The lines of a command's --help about a log in the clipboard."""
    return f"""\b
The log in the clipboard:
  xclip -o -sel c | ampwatch {command} -{"":{10 - len(command)}}Linux; with Wayland wl-paste
  pbpaste | ampwatch {command} -{"":{18 - len(command)}}macOS
  Get-Clipboard | ampwatch {command} -{"":{12 - len(command)}}Windows, in PowerShell
"""


class _TypedText(io.RawIOBase):
    """What is typed into a terminal up to its end, after which a terminal could be read on."""

    def __init__(self, terminal: Any) -> None:
        self._terminal, self._is_over = terminal, False

    def readable(self) -> bool:
        """Whether it can be read: always."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes into the buffer; 0 from the end on."""
        size: int | None = 0 if self._is_over else self._terminal.readinto(buffer)
        self._is_over = not size
        return size or 0


@contextmanager
def reading_standard_input() -> Iterator[None]:
    """Within this, standard input is read as a log; errors call it so."""
    given: Any = sys.stdin
    if given is None:
        raise LogError("Standard input is closed: pipe a log into the command, or name its file.")
    if given.isatty():
        say(_PASTE)
        sys.stdin = io.TextIOWrapper(io.BufferedReader(_TypedText(given.buffer.raw)))
    remark = threading.Timer(PATIENCE_S, _say_that_it_goes_on)
    remark.daemon = True
    remark.start()
    try:
        yield
    except LogError as error:
        sentence = _MARK_IN_SENTENCE.sub("standard input", str(error), count=1)
        raise LogError(sentence, path=error.path) from None
    finally:
        remark.cancel()
        sys.stdin = given


def _say_that_it_goes_on() -> None:
    if asides().is_terminal:
        say(_GOES_ON)
