"""`ampwatch publish` and `ampwatch prune`: copy runs to a place, and delete what none needs."""

from __future__ import annotations

import datetime as dt
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ampwatch.cli.terminal import answer, asides, complain, say, say_reasons
from ampwatch.exit_codes import ExitCode

if TYPE_CHECKING:
    from ampwatch.fleet import Outcome

HELP = """Copy runs to a bucket or a shared folder, as Delta tables.

  ampwatch publish ampwatch-runs s3://team/runs      every run in the folder
  ampwatch publish train-1204 s3://team/runs
  ampwatch list s3://team/runs
  ampwatch report s3://team/runs#train-1204

PLACE is s3://BUCKET/PREFIX, gs://..., az://... or a folder. Credentials come
from the environment. Runs that are there already are skipped, so the same
command adds new runs and continues after an interruption. Readers see a run
only when all of it is published.
"""

_UNITS = {"h": "hours", "d": "days"}


def publish(
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

    from ampwatch.diagnosis.value_text import count_text
    from ampwatch.fleet import publishing
    from ampwatch.store import find_run

    folder = Path(run) if Path(run).is_dir() else find_run(run)  # one of runs, or a run's
    with Progress(console=asides(), transient=True) as bar:
        task = bar.add_task("publishing", visible=False)

        def show(done: int, total: int) -> None:
            is_long = (bar.tasks[0].elapsed or 0.0) > 1.0
            bar.update(task, completed=done, total=total, visible=is_long)

        outcome = publishing.publish(
            folder, place, live=live, workers=os.cpu_count() or 1, progress=show
        )
    _say_outcome(outcome, place)
    if outcome.skipped:
        what = count_text(len(outcome.skipped), "run")
        complain(f"Not published: {what}; see the reasons above.")
        raise typer.Exit(ExitCode.PARTLY_DONE)


def _say_outcome(outcome: Outcome, place: str) -> None:
    from ampwatch.diagnosis.value_text import bytes_text, count_text

    say_reasons("Not published", list(outcome.skipped.items()))
    if outcome.live:
        say(
            f"Not published because they are live: {len(outcome.live):,} runs; --live publishes "
            "the rows they have now."
        )
    size = f", {bytes_text(outcome.bytes_written)}" if outcome.published else ""
    answer(
        f"{place}: {count_text(len(outcome.published), 'run')} published{size}, "
        f"{len(outcome.unchanged):,} already there."
    )


# --- prune ----------------------------------------------------------------------------------------

PRUNE_HELP = """Delete files in a place that no run needs.

  ampwatch prune s3://team/runs --dry-run      show what it would delete
  ampwatch prune s3://team/runs
  ampwatch prune s3://team/runs --older-than 30d

Such files remain when a run is published again or deleted, and when `publish`
is killed. They are first removed from their tables, and deleted after the safe
age, so that readers are not disturbed. No run is changed.
"""


def prune(
    place: str = typer.Argument(
        metavar="PLACE", show_default=False, help="The bucket or folder with the runs."
    ),
    older_than: str = typer.Option(
        "7d", "--older-than", metavar="AGE", help="The safe age, in hours or days: 12h, 7d."
    ),
    dry_run: bool = typer.Option(False, "--dry-run", help="Only show what would be deleted."),
) -> None:
    """Prune a place and print what was deleted."""
    from ampwatch.diagnosis.value_text import bytes_text
    from ampwatch.fleet import sweeping

    match = re.fullmatch(r"(\d{1,5})([hd])", older_than)
    if match is None:
        raise typer.BadParameter(f"--older-than {older_than!r}: give hours or days, such as 7d.")
    age = dt.timedelta(**{_UNITS[match[2]]: int(match[1])})
    swept = sweeping.sweep(place, older_than=age, dry_run=dry_run)
    would = "would be " if dry_run else ""
    answer(
        f"{place}: {swept.deleted:,} files {would}deleted, {bytes_text(swept.deleted_bytes)}; "
        f"{swept.retired:,} more, {bytes_text(swept.retired_bytes)}, {would or 'were '}removed "
        f"from their tables, to be deleted after {older_than}."
    )
