"""Which run is meant: a folder, or a name in the usual place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
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
        if (folder / "run.json").is_file():
            return folder
    if Path(text).is_file():
        raise NotARunError(f"{text} is a file; a run is a folder that holds run.json.", path=text)
    raise NotARunError(
        f"{text} is no run: neither that folder nor {usual_folder() / text} holds a run.json. "
        "`ampwatch runs` lists those there are.",
        path=text,
    )


def open_newest(say: Callable[[str], None]) -> Run:
    """Open the newest run in the usual place, and `say` which it is; one still going on first."""
    from ampwatch.diagnosis.words import list_text
    from ampwatch.store import is_written, list_runs, open_run

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
    return open_run(chosen.path)


def open_named(text: str) -> Run:
    """Open the run that is meant."""
    from ampwatch.store import open_run

    return open_run(find_run(text))
