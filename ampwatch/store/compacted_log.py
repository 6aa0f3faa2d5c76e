"""The compacted part of a rank's log: one Parquet file a table, and base.json, which vouches.

rank-N/base.json names the files and holds a CRC32 of every column chunk and footer, so a column is
verified by reading that column alone. Rows are in the log's order and the records of the original
batches are kept, so a compacted log can be replayed batch by batch. The files never change: a newer
generation replaces base.json.

base.json is sealed with its own CRC32. That says that it is as it was written, not by whom, so
every value is checked here before it is used.
"""

from __future__ import annotations

import json
import mmap
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ampwatch.codec import Batch, encode_batch, refuse_missing_keys
from ampwatch.errors import CodecError, RunError
from ampwatch.files import BAD_VALUES, open_regular, read_at_most
from ampwatch.rows import SCHEMAS, TABLES, EventKind, Table, schema_of
from ampwatch.store.layout import BASE_FILE
from ampwatch.store.live_log import MAX_OFFSET, MAX_SEQUENCE, RECORD, plausible, refuse_future
from ampwatch.store.parquet_file import (
    Chunk,
    Declared,
    TableFile,
    footer_of,
    groups_for,
    intact_groups,
    read_groups,
)

_MAX_BYTES = 32 << 20  # 1.5 billion rows
_MAX_INDEX_BYTES = 2 << 30  # the batches of two months
_MARKS = {EventKind.STARTED.value, EventKind.ENDED.value}
_CRC_END = 1 << 32


@dataclass(slots=True)
class CompactedLog:
    """What base.json says. Columns are read and verified when they are asked for."""

    folder: Path
    generation: int
    records: np.ndarray  # of the original batches; `offset` is a batch's first row in its table
    tables: Mapping[Table, TableFile]
    marks: tuple[tuple[int, str], ...]  # (sequence, kind) of the events that start and end attempts
    _verified: set[tuple[Table, str]] = field(default_factory=set)
    _good_groups: dict[Table, int] = field(default_factory=dict)  # where damage was found
    _declared: dict[Table, Declared] = field(default_factory=dict)
    _paged: set[tuple[Table, str]] = field(default_factory=set)  # columns whose pages were checked

    @classmethod
    def load(cls, folder: Path) -> CompactedLog | None:
        """A rank's compacted part; None if there is none, RunError if base.json is damaged."""
        path = folder / BASE_FILE
        try:
            facts = _unsealed(read_at_most(path, _MAX_BYTES), path)
            number = facts["format"]
            tables = {
                Table(name): _table_file(Table(name), entry, number)
                for name, entry in facts["tables"].items()
            }
            records = _records(folder, facts["index"], tables)
            marks = tuple(_mark(number, kind) for number, kind in facts["marks"])
            return cls(folder, _whole(facts["generation"], _CRC_END), records, tables, marks)
        except FileNotFoundError as problem:
            if problem.filename is not None and Path(problem.filename) == path:
                return None
            raise damaged(path) from problem
        except (*BAD_VALUES, OSError) as problem:
            raise damaged(path) from problem

    @property
    def next_header(self) -> tuple[int, int]:
        """The generation and first sequence of the index that continues this part."""
        last = int(self.records["sequence"].max()) + 1 if len(self.records) else 0
        return self.generation, last

    @property
    def sequences(self) -> np.ndarray:
        """The sequence numbers of its batches."""
        numbers: np.ndarray = self.records["sequence"].astype(np.int64)
        return numbers

    def rows(self, table: Table) -> int:
        """How many rows can be read: fewer than were written if a chunk is damaged."""
        entry = self.tables.get(table)
        if entry is None:
            return 0
        return sum(entry.row_group_rows[: self._good_groups.get(table)])

    def damaged(self, table: Table) -> bool:
        """Whether damage was found in the columns read so far."""
        return table in self._good_groups

    def verify(self, table: Table, names: Sequence[str]) -> None:
        """Check the bytes of these columns, once; damage shortens the table."""
        if table not in self.tables:
            return
        entry = self.tables[table]
        there = schema_of(table, entry.format).names
        unchecked = [n for n in names if n in there and (table, n) not in self._verified]
        if not unchecked:
            return
        good = self._good_groups.get(table, len(entry.chunks))
        intact = intact_groups(self._map(entry), entry, unchecked)
        if min(good, intact) < len(entry.chunks):
            self._good_groups[table] = min(good, intact)
        self._verified.update((table, name) for name in unchecked)

    def read(self, table: Table, names: Sequence[str], start: int, stop: int) -> pa.Table:
        """Rows `start` to `stop` of these columns, in the log's order; verified first."""
        self.verify(table, names)
        stop = min(stop, self.rows(table))
        schema = pa.schema([SCHEMAS[table].field(name) for name in names])
        if start >= stop:
            return pa.Table.from_batches([], schema)
        entry = self.tables[table]
        path = self.folder / entry.file
        groups, skipped = groups_for(entry, start, stop)
        try:
            rows = self._read_groups(table, entry, groups, names)
            columns = [
                rows.column(name)
                if name in rows.column_names
                else pa.chunked_array([pa.nulls(rows.num_rows, schema.field(name).type)])
                for name in names
            ]
            rows = pa.Table.from_arrays(columns, schema=schema)
            refuse_missing_keys(table, rows)
        except CodecError as problem:
            words = f"{path} is not as ampwatch writes it: {problem}"
            raise RunError(words, path=path) from problem
        except (pa.ArrowException, OSError, TypeError, KeyError, ValueError) as problem:
            raise damaged(path) from problem
        return rows.slice(start - skipped, stop - start)

    def _read_groups(
        self, table: Table, entry: TableFile, groups: list[int], names: Sequence[str]
    ) -> pa.Table:
        data = self._map(entry)
        declared = self._declared.get(table)
        if declared is None:
            declared = Declared.of(table, entry, footer_of(data)[:-8])
            self._declared[table] = declared
        there = schema_of(table, entry.format).names
        # A column that this file lacks has as many rows as any other.
        names = [name for name in names if name in there] or there[:1]
        unseen = [name for name in names if (table, name) not in self._paged]
        good_chunks = entry.chunks[: self._good_groups.get(table)]
        declared.refuse_pages(memoryview(data), good_chunks, unseen)
        self._paged.update((table, name) for name in unseen)
        return read_groups(table, entry, pa.py_buffer(data), groups, names)

    def batches_from(self, sequence: int, max_bytes: int) -> list[tuple[int, Batch]]:
        """The original batches from `sequence` on, encoded anew: at least one if there is one."""
        found: list[tuple[int, Batch]] = []
        taken = 0
        records = self.records[self.records["sequence"] >= sequence]
        for record in records:
            batch = self._batch(record)
            if found and taken + len(batch.payload) > max_bytes:
                break
            found.append((int(record["sequence"]), batch))
            taken += len(batch.payload)
        return found

    def _batch(self, record: np.void) -> Batch:
        table = TABLES[int(record["table"])]
        start, rows = int(record["offset"]), int(record["rows"])
        found = self.read(table, SCHEMAS[table].names, start, start + rows)
        if found.num_rows != rows:
            raise damaged(self.folder / self.tables[table].file)
        batch = found.replace_schema_metadata(SCHEMAS[table].metadata).combine_chunks()
        none = [pa.nulls(0, field.type) for field in SCHEMAS[table]]
        rows_alike = batch.to_batches() or [pa.record_batch(none, schema=SCHEMAS[table])]
        return encode_batch(table, rows_alike[0])

    def _map(self, entry: TableFile) -> mmap.mmap | bytes:
        """A compacted file's bytes, mapped: it never shrinks while base.json names it."""
        try:
            with open_regular(self.folder / entry.file) as file:
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError):
            return b""


def damaged(path: Path) -> RunError:
    """The error for a compacted file that is not as it was written."""
    return RunError(
        f"{path} is damaged or missing: restore the run from a copy. To read only the rows that "
        f"came after the compaction, move the damaged file away.",
        path=path,
    )


# --- base.json ------------------------------------------------------------------------------------


def seal(facts: dict[str, Any]) -> bytes:
    """base.json's text: the facts, and on the second line their CRC32."""
    text = json.dumps(facts, separators=(",", ":")).encode()
    return text + b"\n%08x\n" % zlib.crc32(text)


def _unsealed(data: bytes, path: Path) -> dict[str, Any]:
    text, _, crc = data.strip(b"\n").rpartition(b"\n")
    if b"%08x" % zlib.crc32(text) != crc:
        raise damaged(path)
    facts: dict[str, Any] = json.loads(text)
    refuse_future(_whole(facts["format"], _CRC_END), path)
    return facts


def _records(
    folder: Path, index: Mapping[str, Any], tables: Mapping[Table, TableFile]
) -> np.ndarray:
    """The records of the compacted batches, which together make up exactly the tables' rows."""
    path = folder / _file_name(index["file"])
    data = read_at_most(path, _MAX_INDEX_BYTES)
    if zlib.crc32(data) != index["crc"]:
        raise damaged(path)
    records = np.frombuffer(data, RECORD)
    if len(plausible(records)) < len(records):
        raise damaged(path)
    for table in Table:
        mine = records[records["table"] == table.number]
        ends = np.cumsum(mine["rows"].astype(np.int64))
        rows = tables[table].rows if table in tables else 0
        starts = mine["offset"].astype(np.int64)
        if (int(ends[-1]) if len(ends) else 0) != rows or (starts != ends - mine["rows"]).any():
            raise damaged(path)
    return records


def _table_file(table: Table, entry: Mapping[str, Any], number: int) -> TableFile:
    found = TableFile(
        file=_file_name(entry["file"]),
        size=_whole(entry["size"]),
        rows=_whole(entry["rows"]),
        footer_crc=_whole(entry["footer_crc"], _CRC_END),
        row_group_rows=tuple(_whole(rows) for rows in entry["row_group_rows"]),
        chunks=tuple(_chunks(table, group, entry["size"], number) for group in entry["chunks"]),
        format=number,
    )
    if sum(found.row_group_rows) != found.rows or len(found.row_group_rows) != len(found.chunks):
        raise ValueError("the row groups do not add up to the table's rows")
    return found


def _chunks(table: Table, group: Mapping[str, Any], size: int, number: int) -> dict[str, Chunk]:
    """A row group's chunks as base.json has them: the table's columns, each within the file."""
    chunks = {}
    for name in schema_of(table, number).names:
        offset, length, crc = group[name]
        chunks[name] = (_whole(offset), _whole(length), _whole(crc, _CRC_END))
        if offset + length > size:
            raise ValueError("a chunk lies outside its file")
    return chunks


def _mark(number: object, kind: object) -> tuple[int, str]:
    if kind not in _MARKS:
        raise ValueError("the event neither starts nor ends an attempt")
    return _whole(number, MAX_SEQUENCE + 1), str(kind)


def _file_name(text: object) -> str:
    """The name of a compacted file within its folder; a path is refused."""
    if not isinstance(text, str) or "\0" in text or Path(text).name != text:
        raise ValueError("not the name of a file")
    return text


def _whole(value: object, end: int = MAX_OFFSET) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < end:
        raise ValueError("not a whole number in range")
    return value
