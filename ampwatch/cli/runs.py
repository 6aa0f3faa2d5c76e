"""Commands on runs as they lie in a folder: `ampwatch list`, `ampwatch tag`, `ampwatch compact`."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from ampwatch.cli.run_argument import RUN_ARGUMENT
from ampwatch.cli.terminal import age_text, answer, answers, asides, empty_table
from ampwatch.errors import AmpwatchError, NotARunError
from ampwatch.printable_text import printable

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from ampwatch.follow import KeptEntries, ListEntry
    from ampwatch.store import RunSummary

HELP = """List the runs in a folder, with their verdicts.

  ampwatch list                  the runs in ./ampwatch-runs (or $AMPWATCH_DIR)
  ampwatch list /data/runs
  ampwatch list --all            also all runs that were attached elsewhere
  ampwatch list s3://team/runs   published runs
  ampwatch list --json           as JSON, for a script

A run that cannot be read is listed with the reason.
"""

# How many runs of other folders are listed without --all.
ELSEWHERE = 20

# Lines of a place's table; more than that nobody reads.
MOST_IN_PLACE = 50

SCHEMA = 1  # of the JSON
COLUMNS = ("run", "verdict", "steps", "skips", "final scale", "age", "tags", "source")
# Of a run's entry; the schema `schemas/list.json` says what each is.
_AS_JSON = (
    "verdict", "finding", "steps", "skipped", "final_scale", "highest_rate", "loss", "damage",
)  # fmt: skip
PLACE_COLUMNS = ("run", "state", "steps", "ranks", "started", "id")


def list_runs_in(
    folder: str = typer.Argument(
        None,
        metavar="DIR|PLACE",
        help="A folder with runs, or a place to which runs were published.",
        show_default=False,
    ),
    every: bool = typer.Option(
        False,
        "--all",
        help=f"Also list the runs of other folders beyond the newest {ELSEWHERE}; all of a place.",
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON instead of the table."),
) -> None:
    """List the runs of a folder or a place."""
    from ampwatch.fleet import is_place
    from ampwatch.store import default_log_dir, list_runs

    if folder and is_place(folder):
        if as_json:
            raise AmpwatchError(
                f"--json lists a folder. For a place: `ampwatch fleet {folder} --json`."
            )
        _print_place(folder, every=every)
        return
    if folder and not Path(folder).is_dir():
        raise NotARunError(f"{folder} is not a folder.", path=folder)
    here, runs = Path(folder or default_log_dir()), list_runs(folder)
    if as_json:
        _print_json(runs if every else _nearest(runs, here))
        return
    if not runs:
        answer(f"No runs in {folder or here}. `ampwatch demo` creates one.")
        return
    listed = runs if every else _nearest(runs, here)
    answers().print(_table(listed, here))
    if len(listed) < len(runs):
        answer(f"{len(runs) - len(listed):,} older runs in other folders: ampwatch list --all.")


def _print_json(listed: Sequence[RunSummary]) -> None:
    from ampwatch.follow import KeptEntries

    kept = KeptEntries()
    told = {"schema": SCHEMA, "runs": [run_as_json(summary, kept) for summary in listed]}
    kept.save()
    sys.stdout.write(json.dumps(told, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def _nearest(runs: Sequence[RunSummary], here: Path) -> list[RunSummary]:
    """The runs to list: all of this folder, and the newest of those elsewhere."""
    elsewhere = [summary.path for summary in runs if not _inside(summary, here)]
    older = set(elsewhere[ELSEWHERE:])
    return [summary for summary in runs if summary.path not in older]


def _inside(summary: RunSummary, folder: Path) -> bool:
    return summary.path.parent.absolute() == folder.absolute()


def _table(found: Sequence[RunSummary], here: Path) -> Table:
    """The list of runs as a table; judging long runs for the first time shows a progress bar."""
    from rich.progress import track

    from ampwatch.follow import KeptEntries

    names = _columns(found)
    table, kept = _table_with(names), KeptEntries()
    for summary in track(found, "Reading runs", console=asides(), transient=True, update_period=1):
        cells = _row(summary, here, kept)
        table.add_row(*(cells[name] for name in names if name in cells))
    kept.save()
    return table


def _columns(found: Sequence[RunSummary]) -> list[str]:
    """The columns that tell something about the listed runs."""
    empty = set()
    if all(summary.source == "ampwatch" for summary in found):
        empty.add("source")
    if not any(summary.tags or summary.note for summary in found):
        empty.add("tags")
    return [name for name in COLUMNS if name not in empty]


def _table_with(names: Sequence[str]) -> Table:
    table = empty_table()
    for name in names:
        numeric = name in {"steps", "skips", "final scale", "age"}
        # The name is typed next: it is wrapped, never cut.
        room = 24 if len(names) == len(COLUMNS) - 2 else 16
        wide = {"run": room, "source": 10, "tags": 12}.get(name)
        justify: Literal["left", "right"] = "right" if numeric else "left"
        table.add_column(name, justify=justify, overflow="fold", min_width=wide)
    return table


def _row(summary: RunSummary, folder: Path, kept: KeptEntries) -> dict[str, str | Text]:
    """The cells of a listed run; an unreadable run has the reason in place of its figures."""
    from rich.text import Text

    name = printable(summary.path.name if _inside(summary, folder) else str(summary.path))
    try:
        entry = _entry(summary, kept)
    except (AmpwatchError, OSError) as problem:  # its files may be deleted meanwhile
        return {"run": name, "verdict": Text(f"unreadable: {printable(str(problem))}", "red")}
    from ampwatch.diagnosis.value_text import scale_text
    from ampwatch.report import STYLES

    return {
        "run": name,
        "verdict": _verdict(entry, STYLES.get(entry.verdict, "")),
        "steps": f"{entry.steps:,}",
        "skips": f"{entry.skipped:,}",
        "final scale": "" if entry.final_scale is None else scale_text(entry.final_scale),
        "age": _age(summary),
        "tags": _tags(summary),
        "source": printable(summary.source),
    }


def _tags(summary: RunSummary) -> Text:
    """The listed run's tags, and below them its note."""
    from rich.text import Text

    lines = [" ".join(summary.tags), *summary.note.splitlines()]
    return Text("\n".join(printable(line) for line in lines if line))


def _verdict(entry: ListEntry, style: str) -> Text:
    """The listed run's verdict, and below it what is damaged: the verdict is based on the rest."""
    from rich.text import Text

    verdict = Text(printable(entry.words), style)
    return verdict.append(f"\n{printable(entry.damage)}", "red") if entry.damage else verdict


def _entry(summary: RunSummary, kept: KeptEntries) -> ListEntry:
    """The entry of a listed run, kept or new; AmpwatchError if the run is unreadable."""
    from ampwatch.follow import diagnose, entry_of
    from ampwatch.store import open_run

    if summary.problem:
        raise NotARunError(summary.problem, path=summary.path)
    entry = kept.of(summary) if summary.ended else None
    if entry is None:
        run = open_run(summary.path)
        entry = entry_of(run, diagnose(run))
        if summary.ended:
            kept.add(summary, entry)
    return entry


def run_as_json(summary: RunSummary, kept: KeptEntries) -> dict[str, Any]:
    """A listed run as `list --json` prints it; an unreadable one has its problem."""
    from ampwatch.diagnosis.findings import json_value
    from ampwatch.store import is_written

    told: dict[str, Any] = {
        "name": summary.path.name, "path": str(summary.path), "id": summary.id,
        "source": summary.source, "started_ns": summary.started_ns,
        "last_time_ns": summary.last_time_ns,
        "live": not summary.ended and is_written(summary.path),
        "tags": list(summary.tags), "note": summary.note, "problem": summary.problem,
    }  # fmt: skip
    entry: ListEntry | None = None
    try:
        entry = _entry(summary, kept)
    except (AmpwatchError, OSError) as problem:  # its files may be deleted meanwhile
        told["problem"] = str(problem)
    return told | {name: json_value(getattr(entry, name, None)) for name in _AS_JSON}


def _age(summary: RunSummary) -> str:
    """How long ago the listed run grew; empty for a log without times."""
    if not summary.last_time_ns:
        return ""
    return age_text((time.time_ns() - summary.last_time_ns) / 1e9)


# --- a place --------------------------------------------------------------------------------------


def _print_place(place: str, *, every: bool) -> None:
    """List the newest runs in a place, or all."""
    from ampwatch.fleet import list_published

    runs = list_published(place)
    listed = runs if every else runs[:MOST_IN_PLACE]
    names = Counter(run.name for run in runs)
    table = empty_table()
    for name in PLACE_COLUMNS:
        numeric = name in {"steps", "ranks", "started"}
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for run in listed:
        age_s = time.time() - run.started.timestamp() if run.started else 0.0
        started = f"{age_text(age_s)} ago" if run.started and run.started.timestamp() else ""
        # Of several with one name, each is opened by its id.
        id_ = run.id[:8] if names[run.name] > 1 else ""
        cells = (run.name, run.state_words, f"{run.steps:,}", f"{run.ranks:,}", started, id_)
        table.add_row(*map(printable, cells))
    answers().print(table)
    if len(listed) < len(runs):
        answer(f"{len(runs) - len(listed):,} older runs: ampwatch list {place} --all.")


# --- tags -----------------------------------------------------------------------------------------

TAG_HELP = """Put tags and a note on a run, or print them.

  ampwatch tag train-1204 good sweep-3
  ampwatch tag train-1204 --remove good --note "diverged after the restart"
  ampwatch tag train-1204 --mute "AMP201=the head is frozen"
  ampwatch tag train-1204                       print its tags and its note

Tags, note and muted findings are kept in the run's folder, and shown by
`ampwatch list`, reports and the dashboard. A muted finding is listed with its
reason and no longer counts. Two people who tag a run at the same time lose
nothing.
"""


def tag(
    run: str = RUN_ARGUMENT,
    tags: list[str] = typer.Argument(None, metavar="TAG", show_default=False, help="Tags to add."),
    remove: list[str] = typer.Option(
        [], "--remove", metavar="TAG", show_default=False, help="A tag to remove; may be repeated."
    ),
    note: str = typer.Option(
        None, "--note", metavar="TEXT", show_default=False, help="A line to add to the note."
    ),
    clear_note: bool = typer.Option(False, "--clear-note", help="Remove the note so far."),
    mute: list[str] = typer.Option(
        [],
        "--mute",
        metavar="CODE=REASON",
        show_default=False,
        help="A finding that is no problem, and why; may be repeated.",
    ),
    unmute: list[str] = typer.Option(
        [], "--unmute", metavar="CODE", show_default=False, help="Let a muted finding count again."
    ),
) -> None:
    """Change a run's tags and print what they are now."""
    from ampwatch.store import edit_tags, find_run, read_tags

    path = find_run(run)
    now = read_tags(path)
    added = [tag.removeprefix("+") for tag in tags or ()]
    muted = _muted(mute, unmute)
    if added or remove or note is not None or clear_note or muted:
        seen = now.note
        text = None
        if note is not None or clear_note:
            text = "\n".join(part for part in ("" if clear_note else seen, note or "") if part)
        now = edit_tags(path, add=added, remove=remove, note=text, note_seen=seen, mute=muted)
    tagged = " ".join(now.tags) or "no tags"
    lines = [f"{path.name}: {tagged}", *now.note.splitlines()]
    lines += [f"muted: {code} ({why})" for code, why in now.muted]
    answer("\n".join(printable(line) for line in lines))


def _muted(mute: Sequence[str], unmute: Sequence[str]) -> dict[str, str | None]:
    """The findings to mute, each with its reason, and those to let count again."""
    from ampwatch.diagnosis import RULES

    changes: dict[str, str | None] = {}
    for text in mute:
        code, _, why = text.partition("=")
        if not why.strip():
            raise AmpwatchError(f'Say why {code} is no problem: --mute "{code}=the reason".')
        changes[code.strip().upper()] = why
    changes |= dict.fromkeys(map(str.upper, unmute))
    for code in changes.keys() - {rule.code for rule in RULES}:
        raise AmpwatchError(f"No finding has the code {code}: `ampwatch explain` lists them.")
    return changes


# --- compaction -----------------------------------------------------------------------------------

COMPACT_HELP = """Rewrite a finished run so that it opens fast.

  ampwatch compact ampwatch-runs/train-1204

It is never necessary, and nothing is lost: many small batches become a few
large compressed files. A run that is still being written is refused.
"""


def compact(run: str = RUN_ARGUMENT) -> None:
    """Compact a finished run."""
    from rich.progress import Progress

    from ampwatch import store
    from ampwatch.diagnosis.value_text import bytes_text

    folder = store.find_run(run)
    with Progress(console=asides(), transient=True) as bar:
        task = bar.add_task("compacting")

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        result = store.compact(folder, progress=show)
    before, after = bytes_text(result.bytes_before), bytes_text(result.bytes_after)
    answer(f"{folder}: {result.rows:,} rows, {before} before, {after} after")
