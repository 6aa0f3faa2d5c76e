"""Which run is meant: a folder, or a name in the usual place."""

from __future__ import annotations

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


def open_named(text: str) -> Run:
    """Open the run that is meant."""
    from ampwatch.store import open_run

    return open_run(find_run(text))
