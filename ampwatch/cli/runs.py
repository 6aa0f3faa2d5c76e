"""`ampwatch runs [DIR]`: a list of runs, newest first."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from ampwatch.cli.find import usual_folder
from ampwatch.cli.terminal import answer, answers, asides
from ampwatch.cli.verdicts import KeptVerdicts, Standing, standing_of
from ampwatch.errors import AmpwatchError, NotARunError
from ampwatch.printable_text import printable

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from ampwatch.store import RunSummary

NAME = "runs"
HELP = """List the runs in a folder with their verdicts, newest first.

\b
Examples:
  ampwatch runs                the runs in ./ampwatch-runs (or $AMPWATCH_DIR)
  ampwatch runs /data/runs
  ampwatch runs --all          also all runs that were attached elsewhere
"""

# How many runs of other folders are listed without --all.
ELSEWHERE = 20

COLUMNS = ("run", "verdict", "steps", "skips", "final scale", "age", "source")


def command(
    folder: str = typer.Argument(None, metavar="DIR", help="Where to look.", show_default=False),
    every: bool = typer.Option(
        False, "--all", help=f"List all runs of other folders, not only the newest {ELSEWHERE}."
    ),
) -> None:
    """Print the table."""
    from ampwatch.store import list_runs

    if folder and not Path(folder).is_dir():
        raise NotARunError(f"{folder} is not a folder.", path=folder)
    found = list_runs(folder)
    if not found:
        answer(f"No runs in {folder or usual_folder()}. `ampwatch demo` creates one.")
        return
    here = Path(folder or usual_folder())
    shown = found if every else _nearest(found, here)
    answers().print(_table(shown, here))
    if len(shown) < len(found):
        answer(f"{len(found) - len(shown):,} older runs in other folders: ampwatch runs --all.")


def _nearest(found: Sequence[RunSummary], here: Path) -> list[RunSummary]:
    """The runs in this folder, and the newest of those elsewhere."""
    elsewhere = [summary.path for summary in found if not _inside(summary, here)]
    older = set(elsewhere[ELSEWHERE:])
    return [summary for summary in found if summary.path not in older]


def _inside(summary: RunSummary, folder: Path) -> bool:
    return summary.path.parent.absolute() == folder.absolute()


def _table(found: Sequence[RunSummary], here: Path) -> Table:
    """One row for each run; judging long runs for the first time shows a progress bar."""
    from rich.progress import track

    from ampwatch.environment import state_folder

    table, kept = _empty_table(found), KeptVerdicts(state_folder())
    for summary in track(found, "Reading runs", console=asides(), transient=True, update_period=1):
        table.add_row(*_row(summary, here, kept)[: len(table.columns)])
    kept.save()
    return table


def _empty_table(found: Sequence[RunSummary]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    foreign = any(summary.source != "ampwatch" for summary in found)
    for name in COLUMNS if foreign else COLUMNS[:-1]:
        numeric = name in {"steps", "skips", "final scale", "age"}
        # The name is typed next: it is wrapped, never cut.
        wide = {"run": 16 if foreign else 24, "source": 10}.get(name)
        justify: Literal["left", "right"] = "right" if numeric else "left"
        table.add_column(name, justify=justify, overflow="fold", min_width=wide)
    return table


def _row(summary: RunSummary, folder: Path, kept: KeptVerdicts) -> tuple[str | Text, ...]:
    """One run's cells; an unreadable run has the reason in place of its figures."""
    from rich.text import Text

    name = printable(summary.path.name if _inside(summary, folder) else str(summary.path))
    try:
        standing = _standing(summary, kept)
    except (AmpwatchError, OSError) as problem:  # its files may be deleted meanwhile
        return (name, Text(f"unreadable: {printable(str(problem))}", "red"))
    from ampwatch.diagnosis.words import scale_text
    from ampwatch.report import STYLES

    return (
        name,
        _verdict(standing, STYLES.get(standing.verdict.partition(",")[0], "")),
        f"{standing.steps:,}",
        f"{standing.skipped:,}",
        "" if standing.final_scale is None else scale_text(standing.final_scale),
        _age(summary),
        printable(standing.source),
    )


def _verdict(standing: Standing, style: str) -> Text:
    """The verdict, and below it what is damaged: the verdict is based on the rest."""
    from rich.text import Text

    verdict = Text(printable(standing.verdict), style)
    return verdict.append(f"\n{printable(standing.damage)}", "red") if standing.damage else verdict


def _standing(summary: RunSummary, kept: KeptVerdicts) -> Standing:
    """A run's verdict, kept or new; AmpwatchError if the run is unreadable."""
    from ampwatch.follow import diagnose
    from ampwatch.store import open_run

    if summary.problem:
        raise NotARunError(summary.problem, path=summary.path)
    standing = kept.of(summary.path) if summary.ended else None
    if standing is None:
        run = open_run(summary.path)
        standing = standing_of(diagnose(run), run.notes if summary.source == "ampwatch" else ())
        if summary.ended:
            kept.add(summary.path, standing)
    return standing


def _age(summary: RunSummary) -> str:
    """How long ago it grew; a log without times does not tell."""
    if not summary.last_time_ns:
        return ""
    return age_text((time.time_ns() - summary.last_time_ns) / 1e9)


def age_text(seconds: float) -> str:
    """How long ago, in its largest unit."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
