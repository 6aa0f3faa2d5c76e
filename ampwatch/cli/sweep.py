"""`ampwatch sweep PLACE`: deletes what no run in a place needs any more."""

from __future__ import annotations

import datetime as dt
import re

import typer

from ampwatch.cli.terminal import answer

NAME = "sweep"
HELP = """Delete what no run in a place needs any more.

Files remain when a run is published again or deleted, and when `publish` is killed. Those that no
run needs are first removed from their tables, and deleted after the safe age has passed, so that
readers are not disturbed. No run is changed.

\b
Examples:
  ampwatch sweep s3://team/runs --dry-run      show what it would delete
  ampwatch sweep s3://team/runs
  ampwatch sweep s3://team/runs --older-than 30d
"""

_UNITS = {"h": "hours", "d": "days"}


def command(
    place: str = typer.Argument(
        metavar="PLACE", show_default=False, help="The bucket or folder with the runs."
    ),
    older_than: str = typer.Option(
        "7d", "--older-than", metavar="AGE", help="The safe age, in hours or days: 12h, 7d."
    ),
    dry_run: bool = typer.Option(False, "--dry-run", help="Only show what would be deleted."),
) -> None:
    """Sweep a place and print what was deleted."""
    from ampwatch.diagnosis.value_text import bytes_text
    from ampwatch.fleet.sweeping import sweep

    match = re.fullmatch(r"(\d{1,5})([hd])", older_than)
    if match is None:
        raise typer.BadParameter(f"--older-than {older_than!r}: give hours or days, such as 7d.")
    found = sweep(
        place, older_than=dt.timedelta(**{_UNITS[match[2]]: int(match[1])}), dry_run=dry_run
    )
    would = "would be " if dry_run else ""
    answer(
        f"{place}: {found.deleted:,} files {would}deleted, {bytes_text(found.deleted_bytes)}; "
        f"{found.retired:,} more, {bytes_text(found.retired_bytes)}, {would or 'were '}removed "
        f"from their tables, to be deleted after {older_than}."
    )
