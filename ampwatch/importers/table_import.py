"""A structured log in, a run's folder out."""

from __future__ import annotations

import dataclasses
import io
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ampwatch.errors import LogError
from ampwatch.importers.asking import Seen, Wanted, fresh_info
from ampwatch.importers.counters import rows_of
from ampwatch.importers.course import MOST_STEPS
from ampwatch.importers.rowbook import RowBook, StoreSink
from ampwatch.importers.source import STANDARD_INPUT, Source
from ampwatch.importers.table_rows import Say, complete, in_order
from ampwatch.importers.tables import (
    delimited,
    history,
    objects,
    parquet,
    tensorboard,
    wandb_file,
)
from ampwatch.importers.tables.cells import Block, Cells
from ampwatch.importers.tables.names import Names, recognised, tells_training
from ampwatch.importers.timeline import Timeline
from ampwatch.store import create_run, describe_run

SOURCES = ("csv", "json", "jsonl", "lightning", "wandb", "tensorboard", "keras", "parquet")


@dataclass(slots=True)
class Table:
    """An opened table: who wrote it, its names, its rows, its settings; all may grow with them."""

    source: str
    names: Names
    blocks: Iterator[Block]
    config: Mapping[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    seen: dict[str, None] = field(default_factory=dict)  # names, where no header gives them


def open_table(source: Source, wanted: Wanted) -> Table | None:
    """The structured log that this is; None where it is text."""
    head = source.head
    if tensorboard.looks_like_events(head):
        return _events(source, wanted)
    if wandb_file.looks_like_wandb(head):
        return _wandb(source, wanted)
    if parquet.looks_like_parquet(head):
        return _parquet(source, wanted)
    text = source.head_text
    filled = [line for line in text.splitlines() if line.strip()]
    has_mark = bool(filled) and delimited.names_mark(filled[0])
    first = next(iter(filled[has_mark:]), "")
    if text.lstrip().startswith("{") or objects.looks_listed(text):
        return _objects(source, wanted, text, first)
    header = delimited.split(first)
    mapped = wanted.columns and set(wanted.columns.values()) <= set(header)
    if mapped or wanted.source in ("csv", "lightning") or delimited.looks_delimited(first):
        return _delimited(source, wanted, text, first, 1 + has_mark)
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
        notes = tuple(table.notes if source.damage is None else [*table.notes, source.damage])
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
    say = table.notes.append
    for part in complete(in_order(rows_of(table.blocks, lambda: table.names, say), say)):
        timeline.take_table(part)
        tell()
    timeline.finish()


# --- text tables ---------------------------------------------------------------------------------


def _delimited(source: Source, wanted: Wanted, head: str, first: str, above: int) -> Table:
    header, mark = delimited.split(first), delimited.mark_of(first)
    notes: list[str] = []
    names = _of_one_run(header, wanted, source.path, notes.append)
    comma = delimited.decimal_comma(head[head.index(first) :], mark)
    reader = delimited.Reader(header, mark, names.of.values(), notes.append, comma)
    made = wanted.source or delimited.source_of(header, names, source.path)
    return Table(made, names, reader.blocks(source.chunks(), above), notes=notes)


def _of_one_run(header: Sequence[str], wanted: Wanted, path: str, say: Say) -> Names:
    """What the names mean; of several exported runs the first one's, or that of the mapping."""
    runs = delimited.runs_of(header)
    if len(runs) < 2:
        return recognised(header, wanted.columns, path)
    mapped = set(wanted.columns.values())
    chosen = next((run for run, names in runs.items() if mapped & set(names)), next(iter(runs)))
    others = {name for run, names in runs.items() if run != chosen for name in names}
    kept = [name for name in header if name not in others]
    other = next(run for run in runs if run != chosen)
    say(
        f"The file holds {len(runs)} runs, and this is {chosen!r} alone; for another name its "
        f"column: --map 'loss={runs[other][0]}'."
    )
    return recognised(kept, wanted.columns, path)


def _objects(source: Source, wanted: Wanted, text: str, first: str) -> Table | None:
    if '"log_history"' in text:
        history = objects.history_of("\n".join(source.lines()))
        if history is None:
            raise LogError(f"{source.path} is a damaged trainer_state.json.", path=source.path)
        return _growing("hf-trainer", iter([objects.block_of(history)]), wanted, source)
    if objects.looks_listed(text):
        listed = objects.listed("\n".join(source.lines()))
        if listed is None:
            raise LogError(f"{source.path} is a damaged list of JSON objects.", path=source.path)
        return _growing(wanted.source or "json", iter([listed]), wanted, source)
    if objects.object_of(first) is None:
        return None
    table = _growing(wanted.source or "jsonl", objects.blocks(source.chunks()), wanted, source)
    if wanted.source is None and {"_step", "_runtime"} & table.seen.keys():
        table.source = "wandb"
    return table


def _growing(made: str, blocks: Iterator[Block], wanted: Wanted, source: Source) -> Table:
    """A table without a header: the first rows give the names, later ones may add to them."""
    first = next(blocks, Block(0, {}))
    table = Table(made, recognised(first.columns, wanted.columns, source.path), iter(()))
    table.seen = dict.fromkeys(first.columns)

    def rest() -> Iterator[Block]:
        yield first
        for block in blocks:
            if block.columns.keys() - table.seen.keys():
                table.seen.update(dict.fromkeys(block.columns))
                more = recognised(table.seen, wanted.columns, source.path)
                table.names = Names({**more.of, **table.names.of})
            yield block

    table.blocks = rest()
    return table


# --- binary tables -------------------------------------------------------------------------------


def _wandb(source: Source, wanted: Wanted) -> Table:
    config: dict[str, Any] = {}
    notes: list[str] = []

    def take(number: int, value: bytes) -> None:
        if number == wandb_file.CONFIG:
            config.update(wandb_file.settings(value))
        elif number == wandb_file.RUN:
            config.update(wandb_file.settings_of_run(value))

    records = wandb_file.parts(source.read, notes.append)
    table = _growing("wandb", history.blocks(records, take), wanted, source)
    table.config, table.notes = config, notes
    return table


def _parquet(source: Source, wanted: Wanted) -> Table:
    is_packed = source.is_compressed or source.path == STANDARD_INPUT
    file = io.BytesIO(b"".join(iter(lambda: source.read(1 << 20), b""))) if is_packed else None
    found = parquet.ParquetTable(file or source.path, source.path)
    names = recognised(found.names, wanted.columns, source.path)
    notes: list[str] = []
    kept = list(dict.fromkeys(names.of.values()))
    made = "wandb" if "_step" in found.names else "parquet"
    return Table(wanted.source or made, names, found.blocks(kept, notes.append), notes=notes)


def _events(source: Source, wanted: Wanted) -> Table:
    notes: list[str] = []
    pieces: dict[str, list[tensorboard.Scalars]] = {}
    for piece in tensorboard.scalars(source.read, notes.append):
        pieces.setdefault(piece.tag, []).append(piece)
    tags = [tag for tag in pieces if not _is_of_epochs(tag, pieces)]
    names = recognised(tags, wanted.columns, source.path)
    of = {column: name for column, name in names.of.items() if column != "step" and name in pieces}
    is_keras = any(tag.startswith(("epoch_", "batch_")) for tag in pieces)
    made = wanted.source or ("keras" if is_keras else "tensorboard")
    kept = {name: pieces[name] for name in of.values()}
    return Table(made, Names({**of, "step": _STEP}), _joined(kept), notes=notes)


_STEP = "(step)"


def _is_of_epochs(tag: str, tags: Iterable[str]) -> bool:
    """Whether its steps are epochs where those of others are batches."""
    return tag.startswith("epoch_") and any(other.startswith("batch_") for other in tags)


def _joined(tags: Mapping[str, Sequence[tensorboard.Scalars]]) -> Iterator[Block]:
    """A row a step of all scalars; where steps begin anew, so do the rows."""
    parts = []
    for pieces in tags.values():
        step = np.concatenate([piece.step for piece in pieces])
        value = np.concatenate([piece.value for piece in pieces])
        parts.append((np.cumsum(np.diff(step, prepend=step[0]) < 0), step, value))
    if not parts:
        return
    steps = parts[0][1]
    if (np.diff(steps) > 0).all() and all(np.array_equal(steps, part[1]) for part in parts):
        told = np.ones(len(steps), np.bool_)
        yield _by_step(
            steps, {name: Cells(p[2], told) for name, p in zip(tags, parts, strict=True)}
        )
        return
    attempt, step, value = (np.concatenate([part[at] for part in parts]) for at in range(3))
    tag = np.concatenate([np.full(len(part[1]), at) for at, part in enumerate(parts)])
    order = np.lexsort((step, attempt))
    attempt, step = attempt[order], step[order]
    begins = np.concatenate(([True], (np.diff(attempt) != 0) | (np.diff(step) != 0)))
    row = np.cumsum(begins) - 1
    columns = {}
    for at, name in enumerate(tags):
        mine = tag[order] == at
        cells = Cells.absent(int(row[-1]) + 1)
        cells.values[row[mine]], cells.told[row[mine]] = value[order][mine], True
        columns[name] = cells
    yield _by_step(step[begins], columns)


def _by_step(step: np.ndarray, columns: Mapping[str, Cells]) -> Block:
    of_step = np.abs(step) < MOST_STEPS  # as a float it is exact
    cells = Cells(np.where(of_step, step, np.nan).astype(float), of_step)
    return Block(len(step), {_STEP: cells, **columns})
