"""Imports a table (CSV, JSON, Parquet, TensorBoard, W&B) as a run."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from ampwatch.errors import LogError
from ampwatch.importers.formats.frameworks_by_code import is_torchtitan_event
from ampwatch.importers.import_options import ImportOptions, OnProgress, new_run
from ampwatch.importers.log_file import STANDARD_INPUT, LogFile
from ampwatch.importers.row_writer import RowWriter
from ampwatch.importers.run_builder import RunBuilder
from ampwatch.importers.run_state import MOST_STEPS
from ampwatch.importers.table_rows import Say, counted_rows, merged_by_step, sorted_by_step
from ampwatch.importers.tables import csv_file, json_objects, tensorboard_file, wandb_file
from ampwatch.importers.tables.cells import Block, Cells
from ampwatch.importers.tables.column_names import EPOCHS, recognised, tells_training
from ampwatch.rows import Mark
from ampwatch.store import RankWriter, describe_run

SOURCES = ("csv", "json", "jsonl", "lightning", "wandb", "tensorboard", "keras", "parquet")


@dataclass(slots=True)
class Table:
    """An opened table to import: its format, names, rows and settings; all may grow while read."""

    source: str
    names: Mapping[str, str]  # of our columns: the table's names
    blocks: Iterator[Block]
    config: Mapping[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    seen: dict[str, None] = field(default_factory=dict)  # names, if there is no header


def open_table(log: LogFile, options: ImportOptions) -> Table | None:
    """Open a log as a table by its first bytes (CSV, JSON, Parquet, ...); None if it is text."""
    head = log.head
    if tensorboard_file.looks_like_events(head):
        return _tensorboard_table(log, options)
    if wandb_file.looks_like_wandb(head):
        return _wandb_table(log, options)
    if looks_like_parquet(head):
        return _parquet_table(log, options)
    text = log.head_text
    filled = [line for line in text.splitlines() if line.strip()]
    has_mark = bool(filled) and csv_file.names_mark(filled[0])
    first = next(iter(filled[has_mark:]), "")
    if is_torchtitan_event(first):
        return None
    if text.lstrip().startswith("{") or json_objects.looks_listed(text):
        return _json_table(log, options, text, first)
    header = csv_file.split(first)
    mapped = options.columns and set(options.columns.values()) <= set(header)
    if mapped or options.source in ("csv", "lightning") or csv_file.looks_delimited(first):
        return _csv_table(log, options, text, first, 1 + has_mark)
    return None


def import_table(
    log: LogFile,
    table: Table,
    out: Path,
    options: ImportOptions,
    on_progress: OnProgress | None = None,
) -> Path:
    """Import an opened table into the folder `out`; raises LogError if it holds no training."""
    if not tells_training(table.names):
        raise LogError(
            f"{log.path} has no column of a loss, a gradient norm or a loss scale: name them "
            "with --map, for example --map loss=my_loss.",
            path=log.path,
        )
    with new_run(log.path, out, options) as (folder, info):
        with closing(RankWriter(folder, 0)) as rank:
            builder = RunBuilder(RowWriter(rank))
            _take_rows(
                builder, table, lambda: on_progress and on_progress(log.read_bytes, log.size_bytes)
            )
        if table.names.get("step", "").lower() in EPOCHS:
            builder.state.mark("step", Mark.EPOCHS)
        notes = tuple(table.notes if log.damage is None else [*table.notes, log.damage])
        marks = {name: sorted(mark.value for mark in m) for name, m in builder.state.marks.items()}
        full_info = dataclasses.replace(
            info, source=table.source, config=table.config, notes=notes, marks=marks
        )
        describe_run(folder, full_info)
        if not builder.state.attempts:
            problem = f"{log.path} has the columns of a training but no rows."
            raise LogError(problem, path=log.path)
    return folder


def _take_rows(builder: RunBuilder, table: Table, tell: Callable[[], object]) -> None:
    say = table.notes.append
    for part in merged_by_step(
        sorted_by_step(counted_rows(table.blocks, lambda: table.names, say), say)
    ):
        builder.take_table(part)
        tell()
    builder.finish()


# --- text tables ---------------------------------------------------------------------------------


def _csv_table(log: LogFile, options: ImportOptions, head: str, first: str, above: int) -> Table:
    header, mark = csv_file.split(first), csv_file.mark_of(first)
    notes: list[str] = []
    names = _of_one_run(header, options, log.path, notes.append)
    comma = csv_file.decimal_comma(head[head.index(first) :], mark)
    reader = csv_file.CsvReader(header, mark, names.values(), notes.append, comma)
    source = options.source or csv_file.source_of(header, names, log.path)
    return Table(source, names, reader.blocks(log.chunks(), above), notes=notes)


def _of_one_run(
    header: Sequence[str], options: ImportOptions, path: str, say: Say
) -> Mapping[str, str]:
    """The columns of one run in a CSV file; of several exported runs, the mapped or first one."""
    runs = csv_file.runs_of(header)
    if len(runs) < 2:
        return recognised(header, options.columns, path)
    mapped = set(options.columns.values())
    chosen = next((run for run, names in runs.items() if mapped & set(names)), next(iter(runs)))
    others = {name for run, names in runs.items() if run != chosen for name in names}
    columns = [name for name in header if name not in others]
    other = next(run for run in runs if run != chosen)
    say(
        f"The file holds {len(runs)} runs; only {chosen!r} was imported. For another one map its "
        f"column: --map 'loss={runs[other][0]}'."
    )
    return recognised(columns, options.columns, path)


def _json_table(log: LogFile, options: ImportOptions, text: str, first: str) -> Table | None:
    history = "log_history" if '"log_history"' in text else ""
    if history or json_objects.looks_listed(text):
        rows = json_objects.listed(log.text(), history)
        if rows is None:
            what = "trainer_state.json" if history else "list of JSON objects"
            raise LogError(f"{log.path} is a damaged {what}.", path=log.path)
        if history:
            rows = [row for row in rows if "loss" in row]
        source = "hf-trainer" if history else options.source or "json"
        return _table_without_header(source, iter([json_objects.block_of(rows)]), options, log)
    if json_objects.object_of(first) is None:
        return None
    table = _table_without_header(
        options.source or "jsonl", json_objects.blocks(log.chunks()), options, log
    )
    if options.source is None and {"_step", "_runtime"} & table.seen.keys():
        table.source = "wandb"
    return table


def _table_without_header(
    made: str, blocks: Iterator[Block], options: ImportOptions, log: LogFile
) -> Table:
    """A table without a header: the first rows give the names, later rows may add some."""
    first = next(blocks, Block(0, {}))
    table = Table(made, recognised(first.columns, options.columns, log.path), iter(()))
    table.seen = dict.fromkeys(first.columns)

    def rest() -> Iterator[Block]:
        yield first
        for block in blocks:
            if block.columns.keys() - table.seen.keys():
                table.seen.update(dict.fromkeys(block.columns))
                more = recognised(table.seen, options.columns, log.path)
                table.names = {**more, **table.names}
            yield block

    table.blocks = rest()
    return table


# --- binary tables -------------------------------------------------------------------------------


def _wandb_table(log: LogFile, options: ImportOptions) -> Table:
    config: dict[str, Any] = {}
    notes: list[str] = []

    def take(number: int, value: bytes) -> None:
        if number == wandb_file.CONFIG:
            config.update(wandb_file.settings(value))
        elif number == wandb_file.RUN:
            config.update(wandb_file.settings_of_run(value))

    records = wandb_file.records(log.read, notes.append)
    table = _table_without_header("wandb", wandb_file.history_blocks(records, take), options, log)
    table.config, table.notes = config, notes
    return table


def _parquet_table(log: LogFile, options: ImportOptions) -> Table:
    is_packed = log.is_compressed or log.path == STANDARD_INPUT
    file = io.BytesIO(b"".join(iter(lambda: log.read(1 << 20), b""))) if is_packed else None
    parquet = ParquetTable(file or log.path, log.path)
    names = recognised(parquet.names, options.columns, log.path)
    notes: list[str] = []
    columns = list(dict.fromkeys(names.values()))
    source = options.source or ("wandb" if "_step" in parquet.names else "parquet")
    return Table(source, names, parquet.blocks(columns, notes.append), notes=notes)


def _tensorboard_table(log: LogFile, options: ImportOptions) -> Table:
    notes: list[str] = []
    pieces: dict[str, list[tensorboard_file.Scalars]] = {}
    for piece in tensorboard_file.scalars(log.read, notes.append):
        pieces.setdefault(piece.tag, []).append(piece)
    tags = [tag for tag in pieces if not _is_of_epochs(tag, pieces)]
    names = recognised(tags, options.columns, log.path)
    of = {column: name for column, name in names.items() if column != "step" and name in pieces}
    is_keras = any(tag.startswith(("epoch_", "batch_")) for tag in pieces)
    source = options.source or ("keras" if is_keras else "tensorboard")
    columns = {name: pieces[name] for name in of.values()}
    return Table(source, {**of, "step": _STEP}, _rows_of_tags(columns), notes=notes)


_STEP = "(step)"


def _is_of_epochs(tag: str, tags: Iterable[str]) -> bool:
    """Whether a TensorBoard tag counts epochs while other tags of the file count batches."""
    return tag.startswith("epoch_") and any(other.startswith("batch_") for other in tags)


def _rows_of_tags(tags: Mapping[str, Sequence[tensorboard_file.Scalars]]) -> Iterator[Block]:
    """The rows of a TensorBoard file: one a step with the scalars of all tags.

    If the steps restart, so do the rows.
    """
    parts = []
    for pieces in tags.values():
        step = np.concatenate([piece.step for piece in pieces])
        value = np.concatenate([piece.value for piece in pieces])
        parts.append((np.cumsum(np.diff(step, prepend=step[0]) < 0), step, value))
    if not parts:
        return
    steps = parts[0][1]
    if (np.diff(steps) > 0).all() and all(np.array_equal(steps, part[1]) for part in parts):
        present = np.ones(len(steps), np.bool_)
        yield _by_step(
            steps, {name: Cells(p[2], present) for name, p in zip(tags, parts, strict=True)}
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
        cells.values[row[mine]], cells.present[row[mine]] = value[order][mine], True
        columns[name] = cells
    yield _by_step(step[begins], columns)


def _by_step(step: np.ndarray, columns: Mapping[str, Cells]) -> Block:
    of_step = np.abs(step) < MOST_STEPS  # exact as a float
    cells = Cells(np.where(of_step, step, np.nan).astype(float), of_step)
    return Block(len(step), {_STEP: cells, **columns})


# --- Parquet: only the wanted columns are read --------------------------------------------------

_PARQUET_MAGIC = b"PAR1"
_PARQUET_BLOCK_ROWS = 1 << 16
_MOST_TEXT_BYTES = 16 << 20  # of the footer
_MOST_GROUP_BYTES = 4 << 30  # that a row group may inflate to


def looks_like_parquet(head: bytes) -> bool:
    """Whether a file begins as Parquet does."""
    return head.startswith(_PARQUET_MAGIC)


class ParquetTable:
    """An opened Parquet file; raises LogError, with a sentence, where it is damaged."""

    def __init__(self, file: BinaryIO | str, path: str) -> None:
        from pyarrow import parquet

        self._path = path
        try:
            self._file = parquet.ParquetFile(
                file, thrift_string_size_limit=_MOST_TEXT_BYTES,
                thrift_container_size_limit=1_000_000, page_checksum_verification=True,
            )  # fmt: skip
            about = self._file.metadata
            groups = [about.row_group(n).total_byte_size for n in range(about.num_row_groups)]
        except (pa.ArrowException, OSError) as problem:
            raise self._damaged(problem) from None
        if max(groups, default=0) > _MOST_GROUP_BYTES:
            raise LogError(f"{path} declares a row group of more than 4 GB.", path=path)
        self.names: list[str] = [about.schema.column(n).path for n in range(about.num_columns)]

    def blocks(self, wanted: list[str], say: Callable[[str], None]) -> Iterator[Block]:
        """The Parquet file's rows, some ten thousand at a time, up to where it is damaged."""
        try:
            for batch in self._file.iter_batches(
                _PARQUET_BLOCK_ROWS, columns=wanted, use_threads=False
            ):
                yield Block(batch.num_rows, dict(_leaves(batch)))
        except (pa.ArrowException, OSError) as problem:
            say(str(self._damaged(problem)))

    def _damaged(self, problem: Any) -> LogError:
        reason = str(problem).partition("\n")[0][:200].rstrip(".")
        return LogError(f"{self._path} is a damaged Parquet file: {reason}.", path=self._path)


def _leaves(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.Array]]:
    table = pa.Table.from_batches([batch])
    while any(pa.types.is_struct(field.type) for field in table.schema):
        table = table.flatten()
    for name in dict.fromkeys(table.column_names):
        yield name, table.column(table.column_names.index(name)).combine_chunks()
