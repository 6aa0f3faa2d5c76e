"""The argument RUN of a command: finds the run, or makes one of another trainer's log.

A run is named by its folder, by its name in the default folder, or by its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import typer

from ampwatch.cli.standard_input import MARK, reading_standard_input
from ampwatch.cli.terminal import asides
from ampwatch.errors import AmpwatchError, NotARunError

if TYPE_CHECKING:
    from ampwatch.importers import ImportOptions
    from ampwatch.importers.import_options import OnProgress
    from ampwatch.store import Run

RUN_ARGUMENT = typer.Argument(
    metavar="RUN", show_default=False, help="A run's folder, or its name in ./ampwatch-runs."
)

# For smaller files a progress bar would only flicker.
BAR_FROM_BYTES = 32 << 20

AS_OPTION = typer.Option(
    None, "--as", metavar="FORMAT", show_default=False, help="The format, if it is not recognised."
)

MAP_OPTION = typer.Option(
    [], "--map", metavar="COLUMN=NAME", show_default=False,
    help="The table's name for one of our columns, such as loss=train/loss.",
)  # fmt: skip


def usual_folder() -> Path:
    """The default folder for runs."""
    from ampwatch.store import default_log_dir

    return default_log_dir()


def find_run(text: str) -> Path:
    """The folder of the run that RUN names."""
    from ampwatch.store import find_run

    return find_run(text)


def find_newest(say: Callable[[str], None], doing: str) -> Path:
    """The newest run, for a command without RUN, preferring one that goes on.

    `say` is told what is done with which run: `doing` is "Watching", "Reporting on".
    """
    from ampwatch.diagnosis.value_text import list_text
    from ampwatch.store import HOW_TO_BEGIN, is_written, list_runs, shown_folder

    found = [run for run in list_runs(usual_folder()) if run.problem is None]
    if not found:
        raise NotARunError(
            f"There is no run in {shown_folder(usual_folder())} yet. {HOW_TO_BEGIN}",
            path=usual_folder(),
        )
    live = [run for run in found if not run.ended and is_written(run.path)]
    chosen = (live or found)[0]
    others = [run.path.name for run in live if run is not chosen]
    more = f" Also live: {list_text(others)}." if others else ""
    say(f"{doing} {chosen.path.name}, the newest {'live ' if live else ''}run.{more}")
    return chosen.path


@contextmanager
def opened_run_or_log(
    text: str, source: str | None = None, mapped: Sequence[str] = ()
) -> Iterator[Run]:
    """The opened run that RUN names; a log of another trainer becomes a temporary run."""
    if not is_log(text, source, mapped):
        yield open_named(text)
        return
    with TemporaryDirectory(prefix="ampwatch-") as folder:
        made = make_run(text, source, mapped, Path(folder))
        from ampwatch.store import open_run

        yield open_run(made)


def is_log(text: str, source: str | None = None, mapped: Sequence[str] = ()) -> bool:
    """Whether RUN is another trainer's log: standard input, a file, or a folder of ranks' logs.

    `--as` and `--map` are of a log.
    """
    if text == MARK or source is not None or mapped:
        return True
    path = Path(text)  # a shell's <(...) is a pipe, which works as well
    if path.is_dir():
        from ampwatch.importers import rank_logs

        return bool(rank_logs(path))
    return path.exists() and path.name != "run.json"


def open_named(text: str) -> Run:
    """Open the run that RUN names, in a folder or in a place."""
    from ampwatch.store import open_run

    return open_run(text)


def _options(source: str | None, mapped: Sequence[str]) -> ImportOptions:
    """The import options that `--as` and `--map` give."""
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
    with reading_standard_input() if file == MARK else nullcontext(), _bar(file) as seen:
        from ampwatch.importers import import_log

        return import_log(file, out or usual_folder(), _options(source, mapped), seen)


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
