"""Prints the summary of `ampwatch fleet` as the dashboard's page has it, top to bottom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ampwatch.cli.terminal import answer, answers
from ampwatch.printable_text import printable

if TYPE_CHECKING:
    from rich.table import Table

    from ampwatch.fleet.summary import Tally
    from ampwatch.fleet.verdicts import FleetVerdicts, RunVerdict
    from ampwatch.store import Run

_MOST_ROWS = 12  # of a table of counts
_MOST_RUNS = 10
_COUNTS = ("runs", "failing", "warning", "incomplete", "healthy", "steps lost", "time lost")
_KEY_LETTERS = 30


def print_fleet(fleet: FleetVerdicts, alike: Run | None = None) -> None:
    """Print the summary of a place's runs, and what they teach a run that they are all like."""
    from ampwatch.fleet import summary
    from ampwatch.fleet.alike_runs import lesson_in

    runs = fleet.runs
    if not runs:
        answer(f"{fleet.place}: no run is judged of those that were asked for.")
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
            _print_counts(group, [(t.key or f"no {group} told", t) for t in tallies])
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
    told = [name for name in _COUNTS if any(row[name] for row in cells)]
    table = _table(what, *told)
    for (name, _), row in zip(rows, cells, strict=False):
        table.add_row(_short(name, _KEY_LETTERS), *(row[name] for name in told))
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
    answer(f"More of one: ampwatch report '{place}#{printable(runs[0].name)}'")


def _table(*names: str) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
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
