"""The compacted part of a rank's log: one Parquet file a table, and base.json, which vouches.

rank-N/base.json names the files and holds a CRC32 of every column chunk and footer, so a column is
verified by reading that column alone. Rows are in the log's order and the records of the original
batches are kept, so a compacted log can be replayed batch by batch. The files never change: a newer
generation replaces base.json.

Parquet's own page checksums would not do: they leave its footer out, and of 2,655 bits flipped
there five gave other values that nothing noticed. base.json is sealed with its own CRC32. What it
and a file declare is measured against each other, and against limits, before a row is read.
"""

from __future__ import annotations

import json
import mmap
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ampwatch.codec import (
    MAX_INFLATED_BYTES,
    MAX_ROWS,
    Batch,
    encode_batch,
    numpy_type,
    refuse_missing_keys,
)
from ampwatch.errors import CodecError, RunError
from ampwatch.files import BAD_VALUES, open_regular, read_at_most
from ampwatch.rows import SCHEMAS, TABLES, EventKind, Table, schema_of
from ampwatch.store.layout import BASE_FILE
from ampwatch.store.live_log import MAX_OFFSET, MAX_SEQUENCE, RECORD, plausible, refuse_future

if TYPE_CHECKING:
    from pyarrow import parquet

_MAX_BYTES = 32 << 20  # 1.5 billion rows
_MAX_INDEX_BYTES = 2 << 30  # the batches of two months
_MARKS = {EventKind.STARTED.value, EventKind.ENDED.value}
_CRC_END = 1 << 32


Chunk = tuple[int, int, int]  # a column chunk's offset, length and CRC32


@dataclass(frozen=True, slots=True)
class TableFile:
    """One table's Parquet file: its name, size, rows and checksums."""

    file: str
    size: int
    rows: int
    footer_crc: int
    row_group_rows: tuple[int, ...]
    chunks: tuple[Mapping[str, Chunk], ...]  # by row group, then by column
    format: int  # an earlier one lacks the columns that were added since


def footer_of(data: mmap.mmap | bytes) -> bytes:
    """A Parquet file's footer with its length and magic; empty if it has none."""
    if len(data) < 12:
        return b""
    length = int.from_bytes(data[-8:-4], "little")
    return bytes(data[-8 - length :]) if length + 12 <= len(data) else b""


def intact_groups(data: mmap.mmap | bytes, entry: TableFile, names: Sequence[str]) -> int:
    """How many row groups of the file, from the first on, are undamaged in these columns."""
    if len(data) != entry.size or zlib.crc32(footer_of(data)) != entry.footer_crc:
        return 0
    view = memoryview(data)
    for number, group in enumerate(entry.chunks):
        for offset, length, crc in (group[name] for name in names):
            if zlib.crc32(view[offset : offset + length]) != crc:
                return number
    return len(entry.chunks)


def groups_for(entry: TableFile, start: int, stop: int) -> tuple[list[int], int]:
    """The file's row groups that hold rows `start` to `stop`, and how many come before them."""
    groups: list[int] = []
    first_row = skipped = 0
    for number, rows in enumerate(entry.row_group_rows):
        if first_row + rows > start and first_row < stop:
            skipped = first_row if not groups else skipped
            groups.append(number)
        first_row += rows
    return groups, skipped


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
    _measured: set[Table] = field(default_factory=set)  # whose file declares what is allowed

    @classmethod
    def load(cls, folder: Path) -> CompactedLog | None:
        """A rank's compacted part; None if there is none, RunError if base.json is damaged."""
        path = folder / BASE_FILE
        try:
            facts = _unsealed(read_at_most(path, _MAX_BYTES), path)
            number = facts["format"]
            tables = {
                Table(name): _table_file(entry, number) for name, entry in facts["tables"].items()
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
        try:
            intact = intact_groups(self._map(entry), entry, unchecked)
        except BAD_VALUES:  # base.json has no such chunk
            intact = 0
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
            rows = self._read_groups(table, groups, names)
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

    def _read_groups(self, table: Table, groups: list[int], names: Sequence[str]) -> pa.Table:
        """These row groups' rows, with the columns that the file has: an earlier one has fewer."""
        from pyarrow import parquet

        entry = self.tables[table]
        schema = schema_of(table, entry.format)
        texts = [field.name for field in schema if pa.types.is_string(field.type)]
        file = parquet.ParquetFile(pa.py_buffer(self._map(entry)), read_dictionary=texts)
        if table not in self._measured:
            _refuse_other_columns(table, entry, file.schema_arrow)
            refuse_large(table, entry, file.metadata)
            self._measured.add(table)
        # A column that this file lacks has as many rows as any other.
        there = [name for name in names if name in schema.names] or schema.names[:1]
        rows = file.read_row_groups(groups, columns=there)
        rows.validate(full=True)
        return _spelled_out(rows, entry)

    def batches_from(self, sequence: int, max_bytes: int) -> list[tuple[int, Batch]]:
        """The original batches from `sequence` on, encoded anew: at least one if there is one."""
        batches: list[tuple[int, Batch]] = []
        taken = 0
        records = self.records[self.records["sequence"] >= sequence]
        for record in records:
            batch = self._batch(record)
            if batches and taken + len(batch.payload) > max_bytes:
                break
            batches.append((int(record["sequence"]), batch))
            taken += len(batch.payload)
        return batches

    def _batch(self, record: np.void) -> Batch:
        table = TABLES[int(record["table"])]
        start, rows = int(record["offset"]), int(record["rows"])
        stored = self.read(table, SCHEMAS[table].names, start, start + rows)
        if stored.num_rows != rows:
            raise damaged(self.folder / self.tables[table].file)
        batch = stored.replace_schema_metadata(SCHEMAS[table].metadata).combine_chunks()
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


# --- a table's Parquet file -----------------------------------------------------------------------

# Real runs inflate to ten times their file, one whose columns hardly change to a hundred times.
_MOST_A_BYTE = 1000


def most_bytes(size: int) -> int:
    """How many bytes a Parquet file of this size may inflate to."""
    return MAX_INFLATED_BYTES + _MOST_A_BYTE * size


def refuse_large(table: Table, entry: TableFile, footer: parquet.FileMetaData) -> None:
    """Raise CodecError if a table's file declares other rows than base.json, or too many bytes.

    Parquet packs a column of one value into a few bytes, however many rows it has: a file of 1.6 kB
    took 3 GB to open.
    """
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    if tuple(group.num_rows for group in groups) != entry.row_group_rows:
        raise CodecError("Its row groups are not those that base.json names.")
    rows = max(entry.row_group_rows, default=0)
    if rows > MAX_ROWS:
        raise CodecError(f"A row group declares {rows} rows; at most {MAX_ROWS} are allowed.")
    widths = [_width(field.type) for field in schema_of(table, entry.format)]
    chunks = [
        (group.column(place), width) for group in groups for place, width in enumerate(widths)
    ]
    total = sum(max(c.total_uncompressed_size, int(c.num_values * width)) for c, width in chunks)
    if total > most_bytes(entry.size):
        raise CodecError(
            f"It declares {total} bytes of rows; a file of {entry.size} bytes may declare "
            f"{most_bytes(entry.size)}."
        )


def _width(kind: pa.DataType) -> float:
    """Bytes a value takes in memory; a text's are counted once its dictionary is known."""
    if pa.types.is_string(kind):
        return 4.0
    if pa.types.is_boolean(kind):
        return 0.125
    return float(numpy_type(kind.value_type if pa.types.is_list(kind) else kind).itemsize)


def _refuse_other_columns(table: Table, entry: TableFile, found: pa.Schema) -> None:
    text = pa.dictionary(pa.int32(), pa.string())
    schema = schema_of(table, entry.format)
    kinds = [text if pa.types.is_string(field.type) else field.type for field in schema]
    if found.names != schema.names or found.types != kinds:
        raise CodecError(f"Its columns are not those of {table.value}.")


def _spelled_out(rows: pa.Table, entry: TableFile) -> pa.Table:
    """Rows with texts in place of dictionaries: one of a megabyte may stand in a thousand rows."""
    import pyarrow.compute as pc

    texts = [column for column in rows.columns if pa.types.is_dictionary(column.type)]
    sizes = (
        pc.sum(pc.binary_length(chunk.dictionary).take(chunk.indices)).as_py() or 0
        for column in texts
        for chunk in column.chunks
    )
    if (total := sum(sizes)) > most_bytes(entry.size):
        raise CodecError(
            f"Its texts inflate to {total} bytes; {most_bytes(entry.size)} are allowed."
        )
    columns = [
        column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column
        for column in rows.columns
    ]
    return pa.Table.from_arrays(columns, names=rows.column_names)


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


def _table_file(entry: Mapping[str, Any], number: int) -> TableFile:
    names = ("size", "rows", "footer_crc", "chunks")
    facts = {name: entry[name] for name in names}
    rows = tuple(_whole(rows) for rows in entry["row_group_rows"])
    if sum(rows) != facts["rows"] or len(rows) != len(facts["chunks"]):
        raise ValueError("the row groups do not add up to the table's rows")
    return TableFile(_file_name(entry["file"]), row_group_rows=rows, format=number, **facts)


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
