"""`ampwatch publish RUN|DIR PLACE`: copies runs to object storage, as tables."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ampwatch.cli.run_argument import find_run
from ampwatch.cli.terminal import answer, asides, say
from ampwatch.errors import AmpwatchError

if TYPE_CHECKING:
    from ampwatch.fleet import Outcome

NAME = "publish"
HELP = """Copy runs to a bucket or a shared folder, as Delta tables.

PLACE is s3://BUCKET/PREFIX, gs://..., az://... or a folder. Runs that are already published are
skipped, so the same command adds new runs, and continues after an interruption. Credentials come
from the environment. A run becomes visible only when all of it is published.

\b
Examples:
  ampwatch publish ampwatch-runs s3://team/runs      every run in the folder
  ampwatch publish train-1204 s3://team/runs
  ampwatch runs s3://team/runs
  ampwatch report s3://team/runs#train-1204
"""

_SAID = 10  # runs that cannot be published, each with its reason


def command(
    run: str = typer.Argument(
        metavar="RUN|DIR", show_default=False, help="A run, or a folder of runs."
    ),
    place: str = typer.Argument(
        metavar="PLACE", show_default=False, help="The bucket or folder to publish to."
    ),
    live: bool = typer.Option(
        False, "--live", help="Also publish live runs, with the rows they have now."
    ),
) -> None:
    """Publish a run, or all runs of a folder, with a progress bar."""
    from rich.progress import Progress

    from ampwatch.fleet import publish

    folder = _folder(run)
    with Progress(console=asides(), transient=True) as bar:
        task = bar.add_task("publishing", visible=False)

        def show(done: int, total: int) -> None:
            is_long = (bar.tasks[0].elapsed or 0.0) > 1.0
            bar.update(task, completed=done, total=total, visible=is_long)

        outcome = publish(folder, place, live=live, workers=os.cpu_count() or 1, progress=show)
    _tell(outcome, place)
    if outcome.skipped:
        raise AmpwatchError(
            f"{len(outcome.skipped):,} runs were not published; see the reasons above."
        )


def _folder(text: str) -> Path:
    """The folder to publish: one of runs, or that of the run that was named."""
    path = Path(text)
    return path if path.is_dir() else find_run(text)


def _tell(outcome: Outcome, place: str) -> None:
    from ampwatch.diagnosis.value_text import bytes_text

    for name, reason in list(outcome.skipped.items())[:_SAID]:
        say(f"Not published: {name}: {reason}")
    if len(outcome.skipped) > _SAID:
        say(f"And {len(outcome.skipped) - _SAID:,} more.")
    if outcome.live:
        say(
            f"Not published because they are live: {len(outcome.live):,} runs; --live publishes "
            "the rows they have now."
        )
    size = f", {bytes_text(outcome.bytes_written)}" if outcome.published else ""
    answer(
        f"{place}: {len(outcome.published):,} runs published{size}, "
        f"{len(outcome.unchanged):,} were already there."
    )
