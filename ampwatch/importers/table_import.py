"""A structured log in, a run's folder out."""

from __future__ import annotations

import dataclasses
import itertools
import shutil
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ampwatch.errors import LogError
from ampwatch.importers.asking import Seen, Wanted, fresh_info
from ampwatch.importers.rowbook import RowBook, StoreSink
from ampwatch.importers.sayings import Stats
from ampwatch.importers.source import Source
from ampwatch.importers.tables import delimited, objects, tensorboard, wandb_file
from ampwatch.importers.tables.names import Names, recognised, tells_training
from ampwatch.importers.timeline import Timeline
from ampwatch.store import create_run, describe_run

Row = Mapping[str, Any]
# Names are gathered from so many rows where no header gives them.
_FIRST_ROWS = 1000
SOURCES = ("csv", "jsonl", "lightning", "wandb", "tensorboard", "keras")


@dataclass(frozen=True, slots=True)
class Table:
    """An opened table: who wrote it, its names, its rows, its settings."""

    source: str
    names: Names
    rows: Iterable[Row]
    config: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def open_table(source: Source, wanted: Wanted) -> Table | None:
    """The structured log that this is; None where it is text."""
    head = source.head
    if tensorboard.looks_like_events(head):
        return _events(source, wanted)
    if wandb_file.looks_like_wandb(head):
        return _wandb(source, wanted)
    text = head.decode("utf-8", "replace").lstrip("\ufeff")
    first = next((line for line in text.splitlines() if line.strip()), "")
    if text.lstrip().startswith("{"):
        return _objects(source, wanted, text, first)
    header = delimited.split(first)
    mapped = wanted.columns and set(wanted.columns.values()) <= set(header)
    if mapped or wanted.source in ("csv", "lightning") or delimited.looks_delimited(first):
        return _delimited(source, wanted, first)
    return None


def import_table(
    source: Source, table: Table, out: Path, wanted: Wanted, seen: Seen | None = None
) -> Path:
    """A structured log as a run in the folder `out`; raises LogError without a training in it."""
    if not tells_training(table.names):
        raise LogError(
            f"{source.path} has no column of a loss, a gradient norm or a loss scale: name them "
            "with --map, for example --map loss=my_loss.",
            path=source.path,
        )
    info = fresh_info(source.path, wanted)
    folder = create_run(out, info)
    sink = StoreSink(folder)
    timeline = Timeline(RowBook(sink))
    try:
        _take_rows(timeline, table, lambda: seen and seen(source.read_bytes, source.size_bytes))
        notes = table.notes if source.damage is None else (*table.notes, source.damage)
        marks = {name: sorted(mark.value for mark in m) for name, m in timeline.marks.items()}
        told = dataclasses.replace(
            info, source=table.source, config=table.config, notes=notes, marks=marks
        )
        describe_run(folder, told)
    except BaseException:
        sink.close()
        shutil.rmtree(folder, ignore_errors=True)
        raise
    sink.close()
    if not timeline.attempts:
        shutil.rmtree(folder, ignore_errors=True)
        raise LogError(f"{source.path} has the columns of a training and no row.", path=source.path)
    return folder


def _take_rows(timeline: Timeline, table: Table, tell: Callable[[], object]) -> None:
    told = (table.names.stats(row) for row in table.rows)
    for number, stats in enumerate(_with_scale_after(one for one in told if one is not None)):
        timeline.take(stats)
        if not number % 10_000:
            tell()
    timeline.finish()


def _with_scale_after(told: Iterator[Stats]) -> Iterator[Stats]:
    """Each row with the scale that the next step began with, where only scales before are told.

    A scale that fell between two steps tells of a skip of the first, not of the second.
    """
    for stats, following in itertools.pairwise(itertools.chain(told, (None,))):
        if stats is None:
            return
        if following is not None and _tells_end_of(stats, following):
            values = {**stats.values, "scale_after": following.values["scale"]}
            yield dataclasses.replace(stats, values=values)
        else:
            yield stats


def _tells_end_of(stats: Stats, following: Stats) -> bool:
    """Whether `following` is the very next step, and both tell the scale before theirs only."""
    consecutive = following.step == (None if stats.step is None else stats.step + 1)
    both = "scale" in stats.values and "scale" in following.values
    return consecutive and both and "scale_after" not in stats.values


# --- text tables ---------------------------------------------------------------------------------


def _delimited(source: Source, wanted: Wanted, first: str) -> Table:
    header, mark = delimited.split(first), delimited.mark_of(first)
    names, notes = _of_one_run(header, wanted, source.path)
    lines = itertools.dropwhile(lambda line: not line.strip(), source.lines())
    rows = delimited.rows(itertools.islice(lines, 1, None), header, mark)
    made = wanted.source or delimited.source_of(header, names, source.path)
    return Table(made, names, rows, notes=notes)


def _of_one_run(header: Sequence[str], wanted: Wanted, path: str) -> tuple[Names, tuple[str, ...]]:
    """What the names mean; of several exported runs the first one's, or that of the mapping."""
    runs = delimited.runs_of(header)
    if len(runs) < 2:
        return recognised(header, wanted.columns, path), ()
    mapped = set(wanted.columns.values())
    chosen = next((run for run, names in runs.items() if mapped & set(names)), next(iter(runs)))
    others = {name for run, names in runs.items() if run != chosen for name in names}
    kept = [name for name in header if name not in others]
    other = next(run for run in runs if run != chosen)
    note = (
        f"The file holds {len(runs)} runs, and this is {chosen!r} alone; for another name its "
        f"column: --map 'loss={runs[other][0]}'."
    )
    return recognised(kept, wanted.columns, path), (note,)


def _objects(source: Source, wanted: Wanted, text: str, first: str) -> Table | None:
    if '"log_history"' in text:
        history = objects.history_of("\n".join(source.lines()))
        if history is None:
            raise LogError(f"{source.path} is a damaged trainer_state.json.", path=source.path)
        names = recognised([*history[0]] if history else [], wanted.columns, source.path)
        return Table("hf-trainer", names, history)
    if objects.object_of(first) is None:
        return None
    rows = objects.objects(source.lines())
    early = list(itertools.islice(rows, _FIRST_ROWS))
    keys = dict.fromkeys(key for row in early for key in row)
    names = recognised(keys, wanted.columns, source.path)
    written_by = "wandb" if "_step" in keys or "_runtime" in keys else "jsonl"
    return Table(wanted.source or written_by, names, itertools.chain(early, rows))


# --- W&B -----------------------------------------------------------------------------------------


def _wandb(source: Source, wanted: Wanted) -> Table:
    keys: dict[str, None] = {}
    config: dict[str, Any] = {}
    notes: list[str] = []
    with Source(source.path) as first:
        for number, value in _parts(first, notes.append):
            if number == wandb_file.HISTORY:
                keys.update(dict.fromkeys(wandb_file.history_row(value)))
            elif number == wandb_file.CONFIG:
                config.update(wandb_file.settings(value))
            elif number == wandb_file.RUN:
                config.update(wandb_file.settings_of_run(value))
    names = recognised(keys, wanted.columns, source.path)
    rows = (
        wandb_file.history_row(value)
        for number, value in _parts(source, lambda _: None)
        if number == wandb_file.HISTORY
    )
    return Table("wandb", names, rows, config, tuple(notes))


def _parts(source: Source, say: Callable[[str], None]) -> Iterator[tuple[int, bytes]]:
    for record in wandb_file.records(source.read, say):
        for number, value in wandb_file.parts_of(record):
            if isinstance(value, bytes):
                yield number, value


# --- TensorBoard ---------------------------------------------------------------------------------


def _events(source: Source, wanted: Wanted) -> Table:
    steps: dict[str, array[int]] = {}
    values: dict[str, array[float]] = {}
    notes: list[str] = []
    for step, tag, value in tensorboard.scalars(source.read, notes.append):
        steps.setdefault(tag, array("q")).append(step)
        values.setdefault(tag, array("d")).append(value)
    tags = [tag for tag in steps if not _is_of_epochs(tag, steps)]
    names = recognised(tags, wanted.columns, source.path)
    kept = {name: name for column, name in names.of.items() if column != "step" and name in steps}
    columns = {n: (np.array(steps[n], np.int64), np.array(values[n])) for n in kept}
    is_keras = any(tag.startswith(("epoch_", "batch_")) for tag in steps)
    of = {column: name for column, name in names.of.items() if name in kept}
    rows = _joined(columns)
    made = wanted.source or ("keras" if is_keras else "tensorboard")
    return Table(made, Names({**of, "step": _STEP}), rows, notes=tuple(notes))


_STEP = "(step)"


def _is_of_epochs(tag: str, tags: Iterable[str]) -> bool:
    """Whether its steps are epochs where those of others are batches."""
    return tag.startswith("epoch_") and any(other.startswith("batch_") for other in tags)


def _joined(columns: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> Iterator[Row]:
    """A row a step of all scalars; where steps begin anew, so do the rows."""
    parts = [
        (np.cumsum(np.diff(steps, prepend=steps[0]) < 0), steps, values, name)
        for name, (steps, values) in columns.items()
        if len(steps)
    ]
    if not parts:
        return
    attempt, step, value = (np.concatenate([part[at] for part in parts]) for at in range(3))
    name = np.concatenate([np.full(len(part[1]), at) for at, part in enumerate(parts)])
    row: dict[str, Any] = {}
    last = None
    for at in np.lexsort((step, attempt)).tolist():
        place = (int(attempt[at]), int(step[at]))
        if place != last and row:
            yield row
            row = {}
        last = place
        row[_STEP] = place[1]
        row[parts[name[at]][3]] = float(value[at])
    if row:
        yield row
