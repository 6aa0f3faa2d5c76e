"""Finds the run that a command was given: a folder, or a name in the default folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import typer

from ampwatch.cli.log_import import make_run, wanted_of
from ampwatch.errors import NotARunError

if TYPE_CHECKING:
    from ampwatch.store import Run

RUN_ARGUMENT = typer.Argument(
    metavar="RUN", show_default=False, help="A run's folder, or its name in ./ampwatch-runs."
)


def usual_folder() -> Path:
    """The default folder for runs."""
    from ampwatch.store import default_log_dir

    return default_log_dir()


def find_run(text: str) -> Path:
    """The folder of the run that was named."""
    for folder in (Path(text), usual_folder() / text):
        if os.path.lexists(folder / "run.json"):  # if it is damaged, its reader says how
            return folder
    if Path(text).is_file():
        raise NotARunError(
            f"{text} is a file; a run is a folder with a run.json. If it is the log of another "
            f"trainer, `ampwatch import {text}` makes a run of it.",
            path=text,
        )
    raise NotARunError(
        f"{text} is not a run: neither that folder nor {usual_folder() / text} contains a "
        "run.json. `ampwatch runs` lists all runs.",
        path=text,
    )


def find_newest(say: Callable[[str], None]) -> Path:
    """The newest run in the default folder, preferring one that goes on; `say` names it."""
    from ampwatch.diagnosis.words import list_text
    from ampwatch.store import is_written, list_runs

    found = [run for run in list_runs(usual_folder()) if run.problem is None]
    if not found:
        raise NotARunError(
            f"There is no run in {usual_folder()} yet. Add `ampwatch.attach(scaler, model)` to "
            "a training, or try `ampwatch demo`.",
            path=usual_folder(),
        )
    live = [run for run in found if not run.ended and is_written(run.path)]
    chosen = (live or found)[0]
    others = [run.path.name for run in live if run is not chosen]
    more = f" Also live: {list_text(others)}." if others else ""
    say(f"Watching {chosen.path.name}, the newest {'live ' if live else ''}run.{more}")
    return chosen.path


@contextmanager
def opened_run_or_log(
    text: str, source: str | None = None, mapped: Sequence[str] = ()
) -> Iterator[Run]:
    """The run that was named; a log of another trainer becomes a temporary run."""
    if source is None and not mapped and (text != "-" and not _is_log(text)):
        yield open_named(text)
        return
    from ampwatch.store import open_run

    with TemporaryDirectory(prefix="ampwatch-") as folder:
        yield open_run(make_run(text, Path(folder), wanted_of(source, mapped)))


def _is_log(text: str) -> bool:
    """Whether this is a file, or a folder of ranks' logs, and not a run in the default folder."""
    path = Path(text)  # a shell's <(...) is a pipe, which works as well
    if path.is_dir():
        from ampwatch.importers import rank_logs

        return bool(rank_logs(path))
    return path.exists() and path.name != "run.json"


def open_named(text: str) -> Run:
    """Open the run that was named, in a folder or in a place."""
    from ampwatch.store import is_published, open_run

    is_elsewhere = is_published(text) and not os.path.lexists(usual_folder() / text / "run.json")
    return open_run(text if is_elsewhere else find_run(text))
