"""`ampwatch runs [DIR]`: the runs there are, newest first."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ampwatch.cli.find import usual_folder
from ampwatch.cli.terminal import answer, answers
from ampwatch.cli.verdicts import KeptVerdicts, Standing, standing_of
from ampwatch.errors import AmpwatchError, NotARunError
from ampwatch.text import printable

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

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
    from ampwatch.store import list_runs, state_folder

    if folder and not Path(folder).is_dir():
        raise NotARunError(f"{folder} is no folder.", path=folder)
    found = list_runs(folder)
    if not found:
        answer(f"No runs in {folder or usual_folder()}. `ampwatch demo` makes one.")
        return
    table, kept = _empty_table(), KeptVerdicts(state_folder())
    for summary in found:
        table.add_row(*_row(summary, Path(folder or usual_folder()), kept))
    kept.save()
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


def _row(summary: RunSummary, folder: Path, kept: KeptVerdicts) -> tuple[str | Text, ...]:
    """One run's cells; one that cannot be read says why in place of its figures."""
    from rich.text import Text

    inside = summary.path.parent.absolute() == folder.absolute()
    name = printable(summary.path.name if inside else str(summary.path))
    try:
        standing = _standing(summary, kept)
    except AmpwatchError as problem:
        return (name, Text(f"unreadable: {printable(str(problem))}", "red"))
    from ampwatch.diagnosis.words import scale_text
    from ampwatch.report import STYLES

    return (
        name,
        Text(printable(standing.verdict), STYLES.get(standing.verdict, "")),
        f"{standing.steps:,}",
        f"{standing.skipped:,}",
        "" if standing.final_scale is None else scale_text(standing.final_scale),
        age_text((time.time_ns() - summary.last_time_ns) / 1e9),
        printable(standing.source),
    )


def _standing(summary: RunSummary, kept: KeptVerdicts) -> Standing:
    """How a run stands, by what was kept or by a diagnosis; AmpwatchError if it is unreadable."""
    from ampwatch.diagnosis import diagnose
    from ampwatch.store import open_run

    if summary.problem:
        raise NotARunError(summary.problem, path=summary.path)
    standing = kept.of(summary.path) if summary.ended else None
    if standing is None:
        standing = standing_of(diagnose(open_run(summary.path)))
        if summary.ended:
            kept.add(summary.path, standing)
    return standing


def age_text(seconds: float) -> str:
    """How long ago, in its largest unit."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
