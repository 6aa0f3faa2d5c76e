"""Parquet files with the rows of many runs: a row group each, found without the file's footer.

Any Parquet reader opens the whole file. Whoever opens one run asks for that run's row group alone:
its position and a footer that describes only this group are in the run's detail, so it
takes one request where the file's own footer, which grows with the runs in it, would take two more.
"""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from ampwatch.errors import PlaceError
from ampwatch.store.compaction import parquet_options
from ampwatch.store.parquet_file import structs_in

_MAGIC = b"PAR1"
_GROUPS = 4  # the field of a footer; the heads are those of Thrift's compact protocol
_ROWS_HEAD, _ONE_GROUP_HEAD = b"\x16", b"\x19\x1c"
# Up to so many bytes a row group is fetched whole; at 40 MB/s another request takes as long.
WHOLE_BYTES = 1 << 20

Fetch = Callable[[int, int], bytes]  # from an offset, so many bytes


@dataclass(frozen=True, slots=True)
class Part:
    """Where in a Parquet file a row group of a rank is."""

    table: str
    rank: int
    path: str
    rows: int
    offset: int
    length: int
    crc: int
    footer: bytes
    edition: str = ""  # the publication that wrote them


class RowFile:
    """A Parquet file of one table, written in memory one row group at a time."""

    def __init__(self, path: str, schema: pa.Schema, key: str = "run_id") -> None:
        self.path = path
        self._sink = io.BytesIO()
        self._schema = schema
        self._key = key
        self._writer = parquet.ParquetWriter(
            self._sink,
            schema,
            **parquet_options(schema) | {"write_statistics": [key], "store_schema": False},
        )
        self._owners: list[tuple[str, int, int, str]] = []  # a group: table, rank, rows, edition
        self._keys: list[str] = []

    @property
    def size(self) -> int:
        """Bytes of the file written so far."""
        return self._sink.tell()

    def add(self, table: str, rank: int, rows: pa.Table, edition: str = "") -> None:
        """Write rows of one run and rank to the file as a row group."""
        self._writer.write_table(rows, row_group_size=max(1, rows.num_rows))
        self._owners.append((table, rank, rows.num_rows, edition))
        self._keys += rows.column(self._key).slice(0, 1).to_pylist()

    def finish(self) -> tuple[bytes, list[Part]]:
        """The file's bytes, and where each row group is, in the order they were added."""
        self._writer.close()
        data = self._sink.getvalue()
        about = parquet.read_metadata(pa.BufferReader(data))
        length = int.from_bytes(data[-8:-4], "little")
        footers = _footers(data[-8 - length : -8], [rows for _, _, rows, _ in self._owners])
        parts = []
        for number, (table, rank, rows, edition) in enumerate(self._owners):
            start, end = _extent(about.row_group(number))
            crc = zlib.crc32(memoryview(data)[start:end])
            place = (self.path, rows, start, end - start, crc, footers[number])
            parts.append(Part(table, rank, *place, edition))
        return data, parts

    @property
    def stats(self) -> str:
        """The file's statistics for a Delta table, by which readers skip files."""
        rows = sum(rows for _, _, rows, _ in self._owners)
        low, high = min(self._keys), max(self._keys)
        return json.dumps(
            {
                "numRecords": rows,
                "minValues": {self._key: low},
                "maxValues": {self._key: high},
                "nullCount": {self._key: 0},
            }
        )


def read_part(part: Part, names: Sequence[str], fetch: Fetch, whole: dict[Part, bytes]) -> pa.Table:
    """The columns `names` of a row group, as far as it has them; small ones are kept in `whole`."""
    if part.length <= WHOLE_BYTES and part not in whole:
        data = fetch(part.offset, part.length)
        if zlib.crc32(data) != part.crc:
            raise _changed(part)
        whole[part] = data
    try:
        file = parquet.ParquetFile(
            pa.PythonFile(_Window(part, fetch, whole.get(part)), mode="r"),
            metadata=parquet.read_metadata(pa.BufferReader(_closed(part.footer))),
            pre_buffer=True,
        )
        there = [name for name in names if name in file.schema_arrow.names]
        found = file.read(columns=there or file.schema_arrow.names[:1])
        found.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, TypeError) as problem:
        raise _changed(part) from problem
    if found.num_rows != part.rows:
        raise _changed(part)
    return found


class _Window(io.RawIOBase):
    """A Parquet file of which only one row group can be read."""

    def __init__(self, part: Part, fetch: Fetch, data: bytes | None) -> None:
        self._part, self._fetch, self._data = part, fetch, data
        self._at = 0

    def read(self, size: int = -1) -> bytes:
        start, self._at = self._at, self._at + max(size, 0)
        end = min(self._at, self._part.offset + self._part.length)
        if start < self._part.offset or end < start:
            raise OSError("what is asked for lies outside the part")
        if self._data is None:
            return self._fetch(start, end - start)
        return self._data[start - self._part.offset : end - self._part.offset]

    def seek(self, offset: int, whence: int = 0) -> int:
        base = {0: 0, 1: self._at, 2: self.size()}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def size(self) -> int:
        return self._part.offset + self._part.length + len(self._part.footer)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True


def _changed(part: Part) -> PlaceError:
    return PlaceError(
        f"{part.path} is not as it was published: damaged, or rewritten by another tool. Publish "
        "the run again from its folder."
    )


def _extent(group: Any) -> tuple[int, int]:
    """Where a row group's column chunks begin and end; they follow each other."""
    columns = [group.column(number) for number in range(group.num_columns)]
    starts = [
        min(o for o in (c.dictionary_page_offset, c.data_page_offset) if o is not None)
        for c in columns
    ]
    ends = [s + c.total_compressed_size for s, c in zip(starts, columns, strict=True)]
    return min(starts), max(ends)


def _footers(footer: bytes, rows: Sequence[int]) -> list[bytes]:
    """For each row group of a Parquet file, the footer of a file that has only this row group.

    In a footer the number of rows comes right before the row groups.
    """
    before, groups = structs_in(footer, _GROUPS)
    head, tail = footer[:before], footer[groups[-1][1] :]
    return [
        head + _ROWS_HEAD + _zigzag(count) + _ONE_GROUP_HEAD + footer[start:end] + tail
        for (start, end), count in zip(groups, rows, strict=True)
    ]


def _closed(footer: bytes) -> bytes:
    """A Parquet footer with its length and the closing bytes of the file."""
    return _MAGIC + footer + len(footer).to_bytes(4, "little") + _MAGIC


def _zigzag(number: int) -> bytes:
    value = number << 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
