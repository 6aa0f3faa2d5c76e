"""The argument RUN of a command: finds the run, or makes one of another trainer's log.

A run is named by its folder, by its name in the default folder, or by its place. Standard input is
a log: in a terminal it is said at once what is waited for, and it ends with the first Ctrl-D. A
pipe that does not end gets a remark, if a person sees it.
"""

from __future__ import annotations

import io
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import typer

from ampwatch.cli.terminal import asides, say
from ampwatch.errors import AmpwatchError, LogError, NotARunError

if TYPE_CHECKING:
    from ampwatch.importers import ImportOptions
    from ampwatch.importers.import_options import OnProgress
    from ampwatch.store import Run

RUN_ARGUMENT = typer.Argument(
    metavar="RUN", show_default=False, help="A run's folder, or its name in ./ampwatch-runs."
)

# For smaller files a progress bar would only flicker.
BAR_FROM_BYTES = 32 << 20

MAP_OPTION = typer.Option(
    [], "--map", metavar="COLUMN=NAME", show_default=False,
    help="The log's name of a value: loss=train/loss.",
)  # fmt: skip


def find_newest(say: Callable[[str], None], doing: str) -> Path:
    """The newest run, for a command without RUN, preferring one that goes on.

    `say` is told what is done with which run: `doing` is "Watching", "Reporting on".
    """
    from ampwatch.diagnosis.value_text import list_text
    from ampwatch.store import HOW_TO_BEGIN, default_log_dir, is_written, list_runs, shown_folder

    folder = default_log_dir()
    runs = [run for run in list_runs(folder) if run.problem is None]
    if not runs:
        words = f"There is no run in {shown_folder(folder)} yet. {HOW_TO_BEGIN}"
        raise NotARunError(words, path=folder)
    live = [run for run in runs if not run.ended and is_written(run.path)]
    chosen = (live or runs)[0]
    others = [run.path.name for run in live if run is not chosen]
    more = f" Also live: {list_text(others)}." if others else ""
    say(f"{doing} {chosen.path.name}, the newest {'live ' if live else ''}run.{more}")
    return chosen.path


@contextmanager
def opened_run_or_log(
    text: str, source: str | None = None, mapped: Sequence[str] = ()
) -> Iterator[Run]:
    """The opened run that RUN names; a log of another trainer becomes a temporary run."""
    if is_log(text, source, mapped):
        with TemporaryDirectory(prefix="ampwatch-") as folder:
            imported = make_run(text, source, mapped, Path(folder))
            from ampwatch.store import open_run

            yield open_run(imported)
    else:
        from ampwatch.store import open_run

        yield open_run(text)


def is_log(text: str, source: str | None = None, mapped: Sequence[str] = ()) -> bool:
    """Whether RUN is another trainer's log: standard input, a file, or a folder of ranks' logs.

    `--format` and `--map` are of a log.
    """
    if text == MARK or source is not None or mapped:
        return True
    path = Path(text)  # a shell's <(...) is a pipe, which works as well
    if path.is_dir():
        from ampwatch.importers import rank_logs

        return bool(rank_logs(path))
    return path.exists() and path.name != "run.json"


def _options(source: str | None, mapped: Sequence[str]) -> ImportOptions:
    """The import options that `--format` and `--map` give."""
    from ampwatch.importers import ImportOptions

    pairs = {}
    for text in mapped:
        column, is_there, name = text.partition("=")
        if not is_there or not column or not name:
            raise AmpwatchError(f"--map {text}: write COLUMN=NAME, such as --map loss=train/loss.")
        pairs[column] = name
    return ImportOptions(source=source, columns=pairs)


def make_run(file: str, source: str | None, mapped: Sequence[str], out: Path | None = None) -> Path:
    """Import the log that RUN names, with a progress bar if large; return the run's folder.

    A terminal first says what it waits for: loading the importers takes a second.
    """
    with reading_standard_input() if file == MARK else nullcontext(), _bar(file) as progress:
        from ampwatch.importers import import_log
        from ampwatch.store import default_log_dir

        return import_log(file, out or default_log_dir(), _options(source, mapped), progress)


@contextmanager
def _bar(file: str) -> Iterator[OnProgress | None]:
    console = asides()
    path = Path(file)
    size = path.stat().st_size if path.is_file() else 0
    if size < BAR_FROM_BYTES or not console.is_terminal:
        yield None
        return
    from rich.progress import Progress

    with Progress(console=console, transient=True) as progress:
        task = progress.add_task(f"Reading {path.name}", total=size)
        yield lambda read, _: progress.update(task, completed=read)


# --- standard input -------------------------------------------------------------------------------

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
    """The example of a command's --help about a log in the clipboard."""
    return f"""xclip -o -sel c | ampwatch {command} -       the clipboard; on macOS pbpaste,
                                            in PowerShell Get-Clipboard"""


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
