"""The compacted part of a rank's log: one Parquet file a table, and the records of its batches.

rank-N/base.json names the files and holds a CRC32 of every column chunk and footer, so a column is
verified by reading that column alone. Rows stand in the log's order and the records of the original
batches are kept, so a compacted log can be replayed batch by batch. The files of a base are never
changed: a newer generation replaces base.json.
"""

from __future__ import annotations

import json
import mmap
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ampwatch.codec import Batch, encode_batch
from ampwatch.errors import FutureRunError, RunError
from ampwatch.rows import FORMAT, SCHEMAS, TABLES, Table
from ampwatch.store.index import RECORD

BASE_FILE = "base.json"


@dataclass(frozen=True, slots=True)
class TableFile:
    """One table's Parquet file: its name, size, rows, and what vouches for its bytes."""

    file: str
    size: int
    rows: int
    footer_crc: int
    row_group_rows: tuple[int, ...]
    # by row group: column name -> (offset, length, CRC32)
    chunks: tuple[dict[str, tuple[int, int, int]], ...]


@dataclass(slots=True)
class Base:
    """A loaded base; columns are read and verified when they are asked for."""

    folder: Path
    generation: int
    records: np.ndarray  # `offset` is a batch's first row in its table
    tables: dict[Table, TableFile]
    marks: tuple[tuple[int, str], ...]  # (sequence, kind) of the events that start and end attempts
    _verified: set[tuple[Table, str]] = field(default_factory=set)
    _good_groups: dict[Table, int] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path) -> Base | None:
        """The rank's base, None if it was never compacted; RunError if it is damaged."""
        try:
            text = (folder / BASE_FILE).read_bytes()
        except FileNotFoundError:
            return None
        facts = unseal(text, folder / BASE_FILE)
        try:
            records = np.frombuffer(_records_bytes(folder, facts), RECORD)
            tables = {Table(name): _table_file(entry) for name, entry in facts["tables"].items()}
            marks = tuple((int(number), str(kind)) for number, kind in facts["marks"])
            return cls(folder, int(facts["generation"]), records, tables, marks)
        except (KeyError, TypeError, ValueError, OSError) as problem:
            raise _damaged(folder / BASE_FILE) from problem

    @property
    def next_header(self) -> tuple[int, int]:
        """The generation and first sequence of the index that continues this base."""
        last = int(self.records["sequence"].max()) + 1 if len(self.records) else 0
        return self.generation, last

    @property
    def sequences(self) -> np.ndarray:
        """The sequence numbers of the batches it holds."""
        numbers: np.ndarray = self.records["sequence"].astype(np.int64)
        return numbers

    def rows(self, table: Table) -> int:
        """How many rows can be read: fewer than were written where a chunk is damaged."""
        entry = self.tables.get(table)
        if entry is None:
            return 0
        return sum(entry.row_group_rows[: self._good_groups.get(table)])

    def damaged(self, table: Table) -> bool:
        """Whether damage was found in the columns read so far."""
        return table in self._good_groups

    def verify(self, table: Table, names: Sequence[str]) -> None:
        """Check the bytes of these columns, once; damage shortens the table."""
        unchecked = [name for name in names if (table, name) not in self._verified]
        if table not in self.tables or not unchecked:
            return
        entry = self.tables[table]
        good = self._good_groups.get(table, len(entry.chunks))
        intact = _intact_groups(self._map(entry), entry, unchecked)
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
        from pyarrow import parquet  # a finished run's reader only: training never gets here

        entry = self.tables[table]
        groups, skipped = _groups_for(entry, start, stop)
        try:
            file = parquet.ParquetFile(pa.py_buffer(self._map(entry)))
            found = file.read_row_groups(groups, columns=list(names)).select(names)
            rows = pa.Table.from_arrays(found.columns, schema=schema)
            rows.validate(full=True)
        except (pa.ArrowException, OSError, TypeError) as problem:
            raise _damaged(self.folder / entry.file) from problem
        return rows.slice(start - skipped, stop - start)

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
            raise _damaged(self.folder / self.tables[table].file)
        batch = found.replace_schema_metadata(SCHEMAS[table].metadata).combine_chunks()
        return encode_batch(table, batch.to_batches()[0])

    def _map(self, entry: TableFile) -> mmap.mmap | bytes:
        """The file's bytes; a base's files never shrink while they stand."""
        try:
            with (self.folder / entry.file).open("rb") as file:
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError):
            return b""


def seal(facts: dict[str, Any]) -> bytes:
    """base.json's text: the facts, and on the second line their CRC32."""
    text = json.dumps(facts, separators=(",", ":")).encode()
    return text + b"\n%08x\n" % zlib.crc32(text)


def unseal(data: bytes, path: Path) -> dict[str, Any]:
    """The facts of a sealed text; RunError if its CRC32 does not hold."""
    text, _, crc = data.strip(b"\n").rpartition(b"\n")
    if b"%08x" % zlib.crc32(text) != crc:
        raise _damaged(path)
    facts: dict[str, Any] = json.loads(text)
    if facts["format"] > FORMAT:
        raise FutureRunError(
            f"{path} has format {facts['format']} and this ampwatch reads up to {FORMAT}: "
            f"update ampwatch.",
            path=path,
        )
    return facts


def footer_of(data: mmap.mmap | bytes) -> bytes:
    """A Parquet file's footer with its length and magic; empty if it is none."""
    if len(data) < 12:
        return b""
    length = int.from_bytes(data[-8:-4], "little")
    return bytes(data[-8 - length :]) if length + 12 <= len(data) else b""


def _records_bytes(folder: Path, facts: dict[str, Any]) -> bytes:
    path = folder / Path(facts["index"]["file"]).name
    data = path.read_bytes()
    if zlib.crc32(data) != facts["index"]["crc"]:
        raise _damaged(path)
    return data


def _table_file(entry: dict[str, Any]) -> TableFile:
    chunks = tuple(
        {name: (int(a), int(b), int(c)) for name, (a, b, c) in group.items()}
        for group in entry["chunks"]
    )
    return TableFile(
        file=Path(entry["file"]).name,
        size=entry["size"],
        rows=entry["rows"],
        footer_crc=entry["footer_crc"],
        row_group_rows=tuple(entry["row_group_rows"]),
        chunks=chunks,
    )


def _intact_groups(data: mmap.mmap | bytes, entry: TableFile, names: Sequence[str]) -> int:
    """How many row groups, from the first on, are undamaged in these columns."""
    if len(data) != entry.size or zlib.crc32(footer_of(data)) != entry.footer_crc:
        return 0
    view = memoryview(data)
    for number, group in enumerate(entry.chunks):
        for offset, length, crc in (group[name] for name in names):
            if zlib.crc32(view[offset : offset + length]) != crc:
                return number
    return len(entry.chunks)


def _groups_for(entry: TableFile, start: int, stop: int) -> tuple[list[int], int]:
    """The row groups that hold rows `start` to `stop`, and how many rows stand before them."""
    groups: list[int] = []
    first_row = skipped = 0
    for number, rows in enumerate(entry.row_group_rows):
        if first_row + rows > start and first_row < stop:
            skipped = first_row if not groups else skipped
            groups.append(number)
        first_row += rows
    return groups, skipped


def _damaged(path: Path) -> RunError:
    return RunError(
        f"{path} is damaged or missing: restore the run from a copy; what follows it in the log "
        f"can be read once the damaged file is moved away.",
        path=path,
    )
