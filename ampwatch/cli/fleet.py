"""`ampwatch fleet PLACE`: judge the runs of a place, and say what broke in them."""

from __future__ import annotations

import enum
import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ampwatch.cli.terminal import answer, asides, say
from ampwatch.errors import AmpwatchError
from ampwatch.files import draft_of

if TYPE_CHECKING:
    from ampwatch.fleet.chosen_runs import Choice
    from ampwatch.fleet.verdicts import FleetVerdicts
    from ampwatch.fleet.workers import Workers
    from ampwatch.store import Run

NAME = "fleet"
HELP = """Judge the runs in a place: what broke, and what it cost.

Only what is new is judged, or was judged by other rules; verdicts and findings are stored in the
place, as tables. Stopped by Ctrl-C, the command keeps what it has judged, and goes on when it is
called again.

EXPR is what the search of runs takes: words of the name, fields (verdict:failing, finding:AMP103,
model:vit, tag:sweep, person:ada, steps>1000, rate>=0.01, lost_hours>2, age<2d) and the runs'
settings by their path (optimizer.name:adamw, lr>0.01). All must hold; "-" before one: it must not.

\b
Examples:
  ampwatch fleet s3://team/runs
  ampwatch fleet s3://team/runs --since 7d --where "verdict:failing -tag:test"
  ampwatch fleet s3://team/runs --like ampwatch-runs/train-1204
  ampwatch fleet s3://team/runs --engine ray --address ray://head:10001
  ampwatch fleet s3://team/runs --json | jq .summary
"""

_SAID = 10  # runs that cannot be judged, each with its reason


class Engine(str, enum.Enum):
    """Who judges the runs: the values of `ampwatch fleet --engine`."""

    LOCAL = "local"
    RAY = "ray"


def command(
    place: str = typer.Argument(metavar="PLACE", show_default=False, help="Where runs are."),
    engine: Engine = typer.Option(
        Engine.LOCAL, "--engine", help="Processes of this machine, or a Ray cluster."
    ),
    address: str = typer.Option(
        None, "--address", metavar="URL", help="Of the Ray cluster, as ray://HEAD:10001."
    ),
    workers: int = typer.Option(
        None, "--workers", metavar="N", min=1, help="How many judge at a time."
    ),
    since: str = typer.Option(
        None, "--since", metavar="AGE", help="Only runs that started within: 12h, 7d, 4w."
    ),
    where: str = typer.Option("", "--where", metavar="EXPR", help="Only runs that are so."),
    like: str = typer.Option(
        None, "--like", metavar="RUN", help="Only runs that are made of what this one is."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON instead of the tables."),
    parquet: Path = typer.Option(
        None, "--parquet", metavar="OUT", help="Write verdicts and findings to a folder instead."
    ),
) -> None:
    """Judge the runs of a place and print what is known of them."""
    from ampwatch.fleet.chosen_runs import choice_of
    from ampwatch.fleet.judging import workers_of

    if as_json and parquet:
        raise AmpwatchError("--json cannot be combined with --parquet.")
    if parquet and parquet.exists() and not parquet.is_dir():
        raise AmpwatchError(f"{parquet} is a file: pass a folder.")
    alike = _opened(like)
    choice = choice_of(since, where, alike)
    judges = workers_of(engine.value, address, workers)
    found = _judged(place, choice, judges, findings=as_json or bool(parquet))
    if parquet:
        _write(found, parquet)
    elif as_json:
        from ampwatch.fleet.summary import to_json

        typer.echo(json.dumps(to_json(found), indent=2, allow_nan=False, ensure_ascii=False))
    else:
        from ampwatch.cli.fleet_text import print_fleet

        print_fleet(found, alike)
    _complain(found)


def _opened(like: str | None) -> Run | None:
    from ampwatch.cli.run_argument import open_named

    return open_named(like) if like else None


def _judged(place: str, choice: Choice, workers: Workers, *, findings: bool) -> FleetVerdicts:
    """Judge what is new in the place, with a progress bar; return all verdicts."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    from ampwatch.fleet.judging import judge_place

    columns = (TextColumn("judging"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    seen = (0, 0)
    with Progress(*columns, console=asides(), transient=True) as bar:
        task = bar.add_task("judging", visible=False)

        def show(done: int, total: int) -> None:
            nonlocal seen
            seen = done, total
            bar.update(task, completed=done, total=total, visible=True)

        try:
            return judge_place(place, choice, workers, findings=findings, progress=show)
        except KeyboardInterrupt:
            bar.stop()
            if seen[0]:
                say(
                    f"Stopped when {seen[0]:,} of {seen[1]:,} runs were judged; the same command "
                    "goes on."
                )
            raise


def _write(found: FleetVerdicts, folder: Path) -> None:
    from pyarrow import parquet

    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in (("verdicts", found.verdicts), ("findings", found.findings)):
        path = folder / f"{name}.parquet"
        with draft_of(path) as draft:
            parquet.write_table(rows, draft, compression="zstd")
        answer(f"{path}: {rows.num_rows:,} rows")


def _complain(found: FleetVerdicts) -> None:
    """Say which runs were not judged; AmpwatchError if any could not be."""
    if found.changed:
        say(
            f"{found.changed:,} runs were published again or deleted meanwhile; the same command "
            "judges what is there now."
        )
    for one in found.failed[:_SAID]:
        say(f"Not judged: {one.name}: {one.reason}")
    if len(found.failed) > _SAID:
        say(f"And {len(found.failed) - _SAID:,} more.")
    if found.failed:
        raise AmpwatchError(f"{len(found.failed):,} runs were not judged; the reasons stand above.")
