"""`ampwatch fleet PLACE`: judge the runs of a place, and print what broke in them."""

from __future__ import annotations

import enum
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ampwatch.cli.terminal import answer, answers, asides, complain, empty_table, say, say_reasons
from ampwatch.errors import AmpwatchError
from ampwatch.exit_codes import ExitCode
from ampwatch.files import draft_of
from ampwatch.printable_text import printable

if TYPE_CHECKING:
    from rich.table import Table

    from ampwatch.fleet.chosen_runs import Choice
    from ampwatch.fleet.summary import Tally
    from ampwatch.fleet.verdicts import FleetVerdicts, RunVerdict
    from ampwatch.fleet.workers import Workers
    from ampwatch.store import Run

HELP = """Judge the runs in a place: what broke, and what it cost.

  ampwatch fleet s3://team/runs
  ampwatch fleet s3://team/runs --since 7d --where "verdict:failing -tag:test"
  ampwatch fleet s3://team/runs --similar-to ampwatch-runs/train-1204
  ampwatch fleet s3://team/runs --engine ray --address ray://head:10001
  ampwatch fleet s3://team/runs --json | jq .summary

Only new runs are judged; verdicts are stored in the place, as tables. After
Ctrl-C the same command continues.

EXPR: words of the name; verdict:failing, finding:AMP103, model:vit, tag:sweep,
person:ada, steps>1000, lr>=0.01, lost_hours>2, age<2d; settings by their path
(optimizer.name:adamw). Terms are combined with AND; - before one excludes it.
"""

_MOST_ROWS = 12  # of a table of counts
_MOST_RUNS = 10
_COUNTS = ("runs", "failing", "warning", "incomplete", "healthy", "steps lost", "time lost")
_KEY_LETTERS = 30


class Engine(str, enum.Enum):
    """Who judges the runs: the values of `ampwatch fleet --engine`."""

    LOCAL = "local"
    RAY = "ray"


def command(
    place: str = typer.Argument(
        metavar="PLACE",
        show_default=False,
        help="A bucket or folder to which runs were published.",
    ),
    engine: Engine = typer.Option(
        Engine.LOCAL, "--engine", metavar="local|ray", help="This machine, or a Ray cluster."
    ),
    address: str = typer.Option(
        None, "--address", metavar="URL", help="The Ray cluster's address, as ray://HEAD:10001."
    ),
    workers: int = typer.Option(
        None, "--workers", metavar="N", min=1, help="How many processes judge."
    ),
    since: str = typer.Option(
        None, "--since", metavar="AGE", help="Only runs that started within this time: 12h, 7d, 4w."
    ),
    where: str = typer.Option("", "--where", metavar="EXPR", help="Only runs that match EXPR."),
    similar_to: str = typer.Option(
        None, "--similar-to", metavar="RUN",
        help="Only runs with the same model, optimizer and precision as RUN.",
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON instead of the tables."),
    output: Path = typer.Option(
        None, "-o", "--output", metavar="DIR",
        help="Write verdicts and findings as Parquet files.",
    ),
) -> None:  # fmt: skip
    """Judge the runs of a place and print what is known of them."""
    from ampwatch.fleet.chosen_runs import choice_of
    from ampwatch.fleet.judging import workers_of
    from ampwatch.fleet.summary import to_json
    from ampwatch.store import open_run

    if as_json and output:
        raise AmpwatchError("--json cannot be combined with -o, which writes Parquet files.")
    if output and output.exists() and not output.is_dir():
        raise AmpwatchError(f"{output} is a file: pass a folder.")
    alike = open_run(similar_to) if similar_to else None
    choice = choice_of(since, where, alike)
    judges = workers_of(engine.value, address, workers)
    verdicts = _judged(place, choice, judges, findings=as_json or bool(output))
    if output:
        _write(verdicts, output)
    elif as_json:
        typer.echo(json.dumps(to_json(verdicts), indent=2, allow_nan=False, ensure_ascii=False))
    else:
        _print_summary(verdicts, alike)
    _complain(verdicts)


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
    done = total = 0
    with Progress(*columns, console=asides(), transient=True) as bar:
        task = bar.add_task("judging", visible=False)

        def show(judged: int, of_all: int) -> None:
            nonlocal done, total
            done, total = judged, of_all
            bar.update(task, completed=done, total=total, visible=True)

        try:
            return judge_place(place, choice, workers, findings=findings, progress=show)
        except KeyboardInterrupt:
            bar.stop()
            if done:
                judged = f"{done:,} of {total:,} runs were judged"
                say(f"Stopped when {judged}; the same command goes on.")
            raise


def _write(verdicts: FleetVerdicts, folder: Path) -> None:
    from pyarrow import parquet

    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in (("verdicts", verdicts.verdicts), ("findings", verdicts.findings)):
        path = folder / f"{name}.parquet"
        with draft_of(path) as draft:
            parquet.write_table(rows, draft, compression="zstd")
        answer(f"{path}: {rows.num_rows:,} rows")


def _complain(verdicts: FleetVerdicts) -> None:
    """Say which runs were not judged; exit with NOT_JUDGED if any could not be."""
    if verdicts.changed:
        say(
            f"{verdicts.changed:,} runs were published again or deleted meanwhile; the same "
            "command judges what is there now."
        )
    from ampwatch.diagnosis.value_text import count_text

    failed = verdicts.failed
    say_reasons("Not judged", [(run.name, run.reason) for run in failed])
    if failed:
        complain(f"Not judged: {count_text(len(failed), 'run')}; see the reasons above.")
        raise typer.Exit(ExitCode.NOT_JUDGED)


# --- the summary, as the dashboard's page has it, top to bottom -----------------------------------


def _print_summary(fleet: FleetVerdicts, alike: Run | None = None) -> None:
    """Print the summary of a place's runs, and what they teach a run that they are all like."""
    from ampwatch.fleet import summary
    from ampwatch.fleet.alike_runs import lesson_in

    runs = fleet.runs
    if not runs:
        answer(f"{fleet.place}: none of the runs that match has been judged.")
        return
    answer(_sums(fleet))
    if alike is not None and (lesson := lesson_in(runs, alike)) is not None:
        answer(lesson.text)
    _print_counts("finding", [(_code_text(t.key), t) for t in summary.by_code(runs)])
    weeks = [(_week_text(tally.key), tally) for tally in summary.by_week(runs)]
    _print_counts("week", weeks[::-1])
    for group in (summary.MODEL, summary.PERSON, summary.TAG):
        tallies = summary.by_setting(runs, group)
        if any(tally.key for tally in tallies):
            _print_counts(group, [(t.key or f"no {group} known", t) for t in tallies])
    _print_worst(summary.worst(runs, _MOST_RUNS), fleet.place)


def _sums(fleet: FleetVerdicts) -> str:
    from ampwatch.diagnosis.value_text import count_text, percent_text
    from ampwatch.fleet.summary import total

    sums = total(fleet.runs)
    parts = [(sums.failing, "failing"), (sums.warning, "with a warning"),
             (sums.incomplete, "incomplete"), (sums.healthy, "healthy")]  # fmt: skip
    counts = ", ".join(f"{count:,} {word}" for count, word in parts if count)
    share = f" ({percent_text(sums.lost_steps / sums.steps)})" if sums.steps else ""
    lost = f"{sums.lost_steps:,} of {sums.steps:,} steps lost{share}"
    time = f", {_time(sums.lost_hours) or '0 s'} of {_time(sums.hours)}" if sums.hours else ""
    fresh = f", {fleet.judged:,} of them judged now" if fleet.judged else ""
    return f"{fleet.place}: {count_text(sums.runs, 'run')}{fresh}: {counts}.\n{lost}{time}."


def _print_counts(what: str, rows: Sequence[tuple[str, Tally]]) -> None:
    """Print a table of counts, one row a group; columns that say nothing are left out."""
    if not rows:
        answer("No warning and no error in these runs.")
        return
    cells = [_cells(tally) for _, tally in rows[:_MOST_ROWS]]
    columns = [name for name in _COUNTS if any(row[name] for row in cells)]
    table = _table(what, *columns)
    for (name, _), row in zip(rows, cells, strict=False):
        table.add_row(_short(name, _KEY_LETTERS), *(row[name] for name in columns))
    answers().print(table)
    if len(rows) > _MOST_ROWS:
        answer(f"{len(rows) - _MOST_ROWS:,} more.")


def _cells(tally: Tally) -> dict[str, str]:
    counts = (tally.runs, tally.failing, tally.warning, tally.incomplete, tally.healthy)
    numbers = [f"{count:,}" if count else "" for count in (*counts, tally.lost_steps)]
    return dict(zip(_COUNTS, (*numbers, _time(tally.lost_hours)), strict=True))


def _print_worst(runs: Sequence[RunVerdict], place: str) -> None:
    if not runs:
        return
    table = _table("worst runs", "verdict", "steps lost", "time lost", "what broke")
    for one in runs:
        numbers = (f"{one.lost_steps:,}", _time(one.lost_hours or 0.0))
        name, head = _short(one.name, _KEY_LETTERS), printable(one.headline)
        table.add_row(name, one.verdict, *numbers, head)
    answers().print(table)
    answer(f"More about a run: ampwatch report '{place}#{printable(runs[0].name)}'")


def _table(*names: str) -> Table:
    table = empty_table()
    for name in names:
        is_text = name == names[0] or name in {"verdict", "what broke"}
        is_whole = name != "what broke"  # that is cut where the terminal ends
        table.add_column(
            name,
            justify="left" if is_text else "right",
            no_wrap=True,
            overflow="fold" if is_whole else "ellipsis",
            min_width=len(name) if is_whole else None,
        )
    return table


def _code_text(code: str) -> str:
    from ampwatch.diagnosis import RULES

    return f"{code} {next((rule.name for rule in RULES if rule.code == code), '')}"


def _week_text(monday: str) -> str:
    return f"from {monday}" if monday else "time unknown"


def _short(text: str, letters: int) -> str:
    text = printable(text)
    return text if len(text) <= letters else text[: letters - 1] + "…"


def _time(hours: float) -> str:
    from ampwatch.diagnosis.value_text import duration_text

    return duration_text(hours * 3.6e6) if hours else ""
