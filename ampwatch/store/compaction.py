"""Rewrite a finished run's logs as Parquet: small, quick to open, and safe if killed at any point.

The files of the next generation are written beside the log without any lock. Only the swap takes
each rank's lock: base.json is renamed into place (from then on it counts), the index is started
again, and what it replaces is deleted. A run that is being written is refused.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from ampwatch.errors import CodecError, RunError, RunInUseError, reason_of
from ampwatch.files import open_file, replace_file, sync, write_file
from ampwatch.rows import FORMAT, SCHEMAS, TABLES, Table
from ampwatch.store import locks
from ampwatch.store.compacted_log import (
    CompactedLog,
    TableFile,
    footer_of,
    most_bytes,
    refuse_large,
    seal,
)
from ampwatch.store.layout import (
    BASE_FILE,
    INDEX_FILE,
    rank_folder,
    ranks_in,
    size_of_run,
    table_file,
)
from ampwatch.store.live_log import RECORD, Header, pack_header
from ampwatch.store.rank_log import RankLog
from ampwatch.store.run_info import read_info

# Large enough that 10 million steps are 77 groups, small enough that one group of the widest table
# takes 25 MB while it is written.
ROW_GROUP_ROWS = 1 << 17

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class CompactResult:
    """What a compaction did."""

    path: Path
    ranks: tuple[int, ...]  # those rewritten; one that holds nothing new is left alone
    rows: int
    bytes_before: int
    bytes_after: int


def compact(run_folder: str | Path, progress: Progress | None = None) -> CompactResult:
    """Compact every rank of a run that nobody writes.

    `progress` is called with the rows done and the rows in all. Raises RunInUseError if a rank is
    being written or compacted, RunError if a log is damaged: compacting would hide what is lost.
    """
    run_folder = Path(run_folder)
    read_info(run_folder)
    try:
        with locks.held(run_folder, required=True):
            return _compact_ranks(run_folder, progress or (lambda *_: None))
    except OSError as problem:
        raise RunError(
            f"{run_folder} cannot be compacted ({reason_of(problem)}); the run is as it was.",
            path=run_folder,
        ) from problem


def _compact_ranks(run_folder: Path, progress: Progress) -> CompactResult:
    before = size_of_run(run_folder)
    folders = {rank: rank_folder(run_folder, rank) for rank in ranks_in(run_folder)}
    for folder in folders.values():
        with locks.held(folder, required=True):
            _remove_leftovers(folder)
    logs = [RankLog(folder, rank) for rank, folder in folders.items()]
    for log in logs:
        _refuse_damaged(log)
    logs = [log for log in logs if len(log.records)]
    total, done = sum(log.rows(table) for log in logs for table in TABLES), 0

    def count(rows: int) -> None:
        nonlocal done
        done += rows
        progress(done, total)

    for log in logs:
        _compact_rank(folders[log.rank], log, count)
    ranks = tuple(log.rank for log in logs)
    return CompactResult(run_folder, ranks, total, before, size_of_run(run_folder))


def _refuse_damaged(log: RankLog) -> None:
    if len(log.records):  # else its base stays as it is
        log.verify()
    if damage := damage_of(log):
        raise RunError(f"Not compacted: that would hide that rows were lost. {damage[0]}")


def damage_of(log: RankLog) -> list[str]:
    """What is known to be lost, so that a log is not compacted. A torn last batch is no damage."""
    return [note for note in log.notes if "damaged" in note or "missing" in note]


def _compact_rank(folder: Path, log: RankLog, count: Callable[[int], None]) -> None:
    generation = log.generation + 1
    tables = {
        table.value: asdict(_write_table(folder, log, table, generation, count))
        for table in TABLES
        if log.rows(table)
    }
    records = _merged_records(folder, log)
    index_name = f"base-{generation}.index"
    write_file(folder / index_name, records.tobytes(), durable=True)
    facts = {
        "format": FORMAT,
        "generation": generation,
        "index": {"file": index_name, "crc": zlib.crc32(records.tobytes())},
        "tables": tables,
        "marks": log.marks,
    }
    header = Header(generation, int(records["sequence"].max()) + 1)
    with locks.held(folder, required=True):
        _refuse_grown(folder, log)
        _swap(folder, seal(facts), header)


def _write_table(
    folder: Path, log: RankLog, table: Table, generation: int, count: Callable[[int], None]
) -> TableFile:
    from pyarrow import parquet

    schema = SCHEMAS[table]
    path = folder / f"{table.value}-{generation}.parquet"
    text_bytes = 0
    with (
        os.fdopen(open_file(path, os.O_WRONLY | os.O_TRUNC), "wb") as file,
        parquet.ParquetWriter(file, schema, **parquet_options(schema)) as writer,
    ):
        for start in range(0, log.rows(table), ROW_GROUP_ROWS):
            rows = log.read(table, schema.names, start, start + ROW_GROUP_ROWS)
            writer.write_table(rows.cast(schema), row_group_size=ROW_GROUP_ROWS)
            count(rows.num_rows)
            text_bytes += sum(c.nbytes for c in rows.columns if pa.types.is_string(c.type))
    sync(path)
    entry = _vouch(path)
    _refuse_unreadable(path, table, entry, text_bytes)
    return entry


def _refuse_unreadable(path: Path, table: Table, entry: TableFile, text_bytes: int) -> None:
    """Refuse to write a file that readers would refuse as made to fill their memory."""
    from pyarrow import parquet

    try:
        refuse_large(table, entry, parquet.read_metadata(path))
        too_dense = text_bytes > most_bytes(entry.size)
    except CodecError:
        too_dense = True
    if too_dense:
        raise RunError(
            f"Not compacted, because {table.value} would be packed more densely than readers "
            "accept; the run is as it was.", path=path,
        )  # fmt: skip


def parquet_options(schema: pa.Schema) -> dict[str, object]:
    """How compaction encodes each type: files a third smaller, read 1.5 times faster."""
    texts = [field.name for field in schema if pa.types.is_string(field.type)]
    encodings = {}
    for field in schema:
        is_list = pa.types.is_list(field.type)
        path = f"{field.name}.list.element" if is_list else field.name
        kind = field.type.value_type if is_list else field.type
        if pa.types.is_floating(kind):
            encodings[path] = "BYTE_STREAM_SPLIT"
        elif pa.types.is_integer(kind):
            encodings[path] = "DELTA_BINARY_PACKED"
    return {
        "compression": "zstd",
        "use_dictionary": texts,
        "column_encoding": encodings,
        "write_statistics": False,  # nor page checksums: base.json has one of every chunk
    }


def _vouch(path: Path) -> TableFile:
    """Read a compacted file back to compute the checksums of its footer and chunks."""
    from pyarrow import parquet

    data = path.read_bytes()
    footer = parquet.read_metadata(pa.BufferReader(data))
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    chunks = []
    for group in groups:
        columns = [group.column(number) for number in range(group.num_columns)]
        chunks.append({c.path_in_schema.split(".")[0]: _chunk(data, c) for c in columns})
    return TableFile(
        file=path.name,
        size=len(data),
        rows=footer.num_rows,
        footer_crc=zlib.crc32(footer_of(data)),
        row_group_rows=tuple(group.num_rows for group in groups),
        chunks=tuple(chunks),
        format=FORMAT,
    )


def _chunk(data: bytes, column: object) -> tuple[int, int, int]:
    start = column.data_page_offset  # type: ignore[attr-defined]
    if column.dictionary_page_offset is not None:  # type: ignore[attr-defined]
        start = min(start, column.dictionary_page_offset)  # type: ignore[attr-defined]
    length = column.total_compressed_size  # type: ignore[attr-defined]
    return start, length, zlib.crc32(memoryview(data)[start : start + length])


def _merged_records(folder: Path, log: RankLog) -> np.ndarray:
    """The compacted batches' records; `offset` becomes a batch's first row in its table."""
    base = CompactedLog.load(folder)
    old = base.records if base else np.empty(0, RECORD)
    records: np.ndarray = np.concatenate([old, log.records])
    for table in TABLES:
        mine = records["table"] == table.number
        rows = records["rows"][mine].astype(np.uint64)
        records["offset"][mine] = np.cumsum(rows) - rows
    return records


def _refuse_grown(folder: Path, log: RankLog) -> None:
    """Refuse if rows were appended during the compaction, which our files lack."""
    batches_before = len(log.records)
    log.refresh()
    base = CompactedLog.load(folder)
    if len(log.records) != batches_before or log.generation != (base.generation if base else 0):
        raise RunInUseError(
            f"{folder} was written while it was being compacted; it was left as it is.", path=folder
        )


def _swap(folder: Path, sealed: bytes, header: Header) -> None:
    """Swap the compacted files in: the first rename makes them count, the rest tidies up."""
    replace_file(folder / BASE_FILE, sealed, durable=True)
    replace_file(folder / INDEX_FILE, pack_header(header), durable=True)
    _remove_leftovers(folder)


def _remove_leftovers(folder: Path) -> None:
    """Delete what base.json does not name and, if it holds all their rows, the streams."""
    base = CompactedLog.load(folder)
    generation = base.generation if base else 0
    named = {f"base-{generation}.index"}
    named |= {entry.file for entry in base.tables.values()} if base else set()
    for path in folder.iterdir():
        is_ours = path.suffix in {".parquet", ".new"} or path.match("base-*.index")
        if is_ours and path.name not in named:
            _remove(path)
    log = RankLog(folder, 0)
    if base is not None and not len(log.records) and not damage_of(log):
        for table in TABLES:
            _remove(table_file(folder, table))


def _remove(path: Path) -> None:
    # Windows does not delete a file that a reader has open; the next compaction will.
    try:
        path.unlink(missing_ok=True)
    except PermissionError:
        return
