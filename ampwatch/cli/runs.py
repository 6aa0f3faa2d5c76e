"""`ampwatch runs [DIR]`: the runs there are, newest first."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ampwatch.cli.find import usual_folder
from ampwatch.cli.terminal import answer, answers
from ampwatch.errors import AmpwatchError, NotARunError
from ampwatch.text import printable

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from ampwatch.diagnosis import Diagnosis
    from ampwatch.store import RunSummary

NAME = "runs"
HELP = """The runs in a folder, newest first, and how each stands.

\b
Examples:
  ampwatch runs                the runs in ./ampwatch-runs (or $AMPWATCH_DIR)
  ampwatch runs /data/runs
"""

COLUMNS = ("run", "verdict", "steps", "skips", "final scale", "age", "source")


def command(
    folder: str = typer.Argument(None, metavar="DIR", help="Where to look.", show_default=False),
) -> None:
    """Print the table."""
    from ampwatch.store import list_runs

    if folder and not Path(folder).is_dir():
        raise NotARunError(f"{folder} is no folder.", path=folder)
    found = list_runs(folder)
    if not found:
        answer(f"No runs in {folder or usual_folder()}. `ampwatch demo` makes one.")
        return
    table = _empty_table()
    for summary in found:
        table.add_row(*_row(summary, Path(folder or usual_folder())))
    answers().print(table)


def _empty_table() -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in COLUMNS:
        numeric = name in {"steps", "skips", "final scale", "age"}
        # A name is what one types next: it is folded over lines, never cut.
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    return table


def _row(summary: RunSummary, folder: Path) -> tuple[str | Text, ...]:
    """One run's cells; one that cannot be read says why in place of its figures."""
    from rich.text import Text

    inside = summary.path.parent.absolute() == folder.absolute()
    name = printable(summary.path.name if inside else str(summary.path))
    diagnosis, problem = _diagnosed(summary)
    if diagnosis is None:
        return (name, Text(f"unreadable: {printable(problem)}", "red"))
    from ampwatch.diagnosis.words import scale_text
    from ampwatch.report import STYLES

    verdict, facts = diagnosis.verdict.value, diagnosis.run
    return (
        name,
        Text(verdict, STYLES[verdict]),
        f"{facts.steps:,}",
        f"{facts.skipped:,}",
        "" if facts.final_scale is None else scale_text(facts.final_scale),
        age_text((time.time_ns() - summary.last_time_ns) / 1e9),
        printable(facts.source),
    )


def _diagnosed(summary: RunSummary) -> tuple[Diagnosis | None, str]:
    """The run's diagnosis, or why there is none."""
    from ampwatch.diagnosis import diagnose
    from ampwatch.store import open_run

    if summary.problem:
        return None, summary.problem
    try:
        return diagnose(open_run(summary.path)), ""
    except AmpwatchError as problem:
        return None, str(problem)


def age_text(seconds: float) -> str:
    """How long ago, in its largest unit."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
