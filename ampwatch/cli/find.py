"""Which run is meant: a folder, or a name in the usual place."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import typer

from ampwatch.errors import NotARunError

if TYPE_CHECKING:
    from ampwatch.store import Run

RUN_ARGUMENT = typer.Argument(
    metavar="RUN", show_default=False, help="A run's folder, or its name in ./ampwatch-runs."
)


def usual_folder() -> Path:
    """Where runs are written when nobody says otherwise."""
    from ampwatch.store import default_log_dir

    return default_log_dir()


def find_run(text: str) -> Path:
    """The folder of the run that is meant."""
    for folder in (Path(text), usual_folder() / text):
        if os.path.lexists(folder / "run.json"):  # what is wrong with one, its reader says
            return folder
    if Path(text).is_file():
        raise NotARunError(
            f"{text} is a file; a run is a folder that holds run.json. `ampwatch import {text}` "
            "makes one of another trainer's log.",
            path=text,
        )
    raise NotARunError(
        f"{text} is no run: neither that folder nor {usual_folder() / text} holds a run.json. "
        "`ampwatch runs` lists those there are.",
        path=text,
    )


def find_newest(say: Callable[[str], None]) -> Path:
    """The newest run in the usual place, and `say` which it is; one still going on first."""
    from ampwatch.diagnosis.words import list_text
    from ampwatch.store import is_written, list_runs

    found = [run for run in list_runs(usual_folder()) if run.problem is None]
    if not found:
        raise NotARunError(
            f"There is no run in {usual_folder()} yet: start a training with one line in it, "
            "`ampwatch.attach(scaler, model)`, or try `ampwatch demo`.",
            path=usual_folder(),
        )
    live = [run for run in found if not run.ended and is_written(run.path)]
    chosen = (live or found)[0]
    others = [run.path.name for run in live if run is not chosen]
    more = f" Going on as well: {list_text(others)}." if others else ""
    say(f"Watching {chosen.path.name}, the newest run{' that goes on' if live else ''}.{more}")
    return chosen.path


@contextmanager
def opened_run_or_log(
    text: str, source: str | None = None, mapped: Sequence[str] = ()
) -> Iterator[Run]:
    """The run that is meant; a foreign log is made one, for as long as it is looked at."""
    if source is None and not mapped and (text != "-" and not _is_log(text)):
        yield open_named(text)
        return
    from ampwatch.cli.import_ import make_run, wanted_of
    from ampwatch.store import open_run

    with TemporaryDirectory(prefix="ampwatch-") as folder:
        yield open_run(make_run(text, Path(folder), wanted_of(source, mapped)))


def _is_log(text: str) -> bool:
    """Whether this names a file, and no run of that name is in the usual place."""
    path = Path(text)  # a shell's <(...) is a pipe, which is as good
    return path.exists() and not path.is_dir() and path.name != "run.json"


def open_named(text: str) -> Run:
    """Open the run that is meant."""
    from ampwatch.store import open_run

    return open_run(find_run(text))
