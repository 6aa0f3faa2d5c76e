"""The row tables of a place: their columns, their files, and a published run read from them.

A row table has the columns of `rows.py` and before them `run_id`, `edition`, `rank` and `attempt`;
where rows.py stores a layer or a data type by number, these tables have its name, and for a layer
also its number. An *edition* is one publication of a rank's rows: after a run was published again,
rows of the old edition remain, but no row of `runs` names them.

The files are Parquet with the rows of many runs, a row group each. Any Parquet reader opens the
whole file. Whoever opens one run asks for that run's row group alone: its position and a footer
that describes only this group are in the run's detail, so it takes one request where the file's own
footer, which grows with the runs in it, would take two more.
"""

from __future__ import annotations

import datetime as dt
import io
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from ampwatch.codec import column
from ampwatch.diagnosis.column_arrays import integers
from ampwatch.errors import PlaceError
from ampwatch.fleet.place import Place, statistics_text
from ampwatch.fleet.runs_delta_table import (
    Detail,
    Part,
    PublishedRun,
    RankNote,
    find_published,
    read_detail,
)
from ampwatch.rows import DTYPES, SCHEMAS, EventKind, Table
from ampwatch.store.compaction import parquet_options
from ampwatch.store.parquet_file import structs_in
from ampwatch.store.public_rows import ATTEMPT, RANK, LayerFacts, with_dtype_names
from ampwatch.store.rank_log import RankRows
from ampwatch.store.run import Run
from ampwatch.store.run_info import RunInfo

DAY = "day"  # of the run's start; a partition, so it stands in a file's path, not in the file
LAYER_NUMBER = "layer_number"
_NUMBER_OF = {"layer": LAYER_NUMBER, "max_update_layer": "max_update_layer_number"}
_DTYPES = pa.array(DTYPES, pa.string())

_HEAD = [
    pa.field("run_id", pa.string()),
    pa.field("edition", pa.string()),
    pa.field(RANK, pa.int32()),
    pa.field(ATTEMPT, pa.int32()),
]


def _fields(table: Table) -> Iterator[pa.Field]:
    yield from _HEAD
    for stored in SCHEMAS[table]:
        if stored.name.endswith("_dtype"):
            yield pa.field(stored.name, pa.string())
        elif stored.name in _NUMBER_OF:
            if table is not Table.LAYER_INFO:  # there the name has a column of its own
                yield pa.field(stored.name, pa.string())
            yield pa.field(_NUMBER_OF[stored.name], stored.type)
        else:
            yield stored


FILE_SCHEMAS = {table: pa.schema(list(_fields(table))) for table in Table}
TABLE_SCHEMAS = {table: FILE_SCHEMAS[table].append(pa.field(DAY, pa.date32())) for table in Table}


def published_rows(
    table: Table, rows: pa.Table, run_id: str, edition: str, facts: LayerFacts
) -> pa.Table:
    """Stored rows, with columns for rank and attempt, as rows of the place's row table."""
    count = rows.num_rows
    named = with_dtype_names(rows)
    columns = []
    for field in FILE_SCHEMAS[table]:
        if field.name == "run_id":
            columns.append(pa.repeat(run_id, count))
        elif field.name == "edition":
            columns.append(pa.repeat(edition, count))
        elif field.name in _STORED_AS:
            columns.append(rows.column(_STORED_AS[field.name]))
        elif field.name in _NUMBER_OF and table is not Table.LAYER_INFO:
            columns.append(facts.names(rows, field.name).cast(pa.string()))
        elif pa.types.is_dictionary(named.column(field.name).type):
            columns.append(named.column(field.name).cast(pa.string()))
        else:
            columns.append(named.column(field.name))
    return pa.Table.from_arrays(columns, schema=FILE_SCHEMAS[table])


_STORED_AS = {number: name for name, number in _NUMBER_OF.items()}


def published_names(names: Sequence[str]) -> list[str]:
    """The columns of the place's row table that these stored columns are made from."""
    return [_NUMBER_OF.get(name, name) for name in names]


def stored_rows(table: Table, rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """Rows of the place's row table as stored ones; null where an older version published none."""
    columns = []
    for name, there in zip(names, published_names(names), strict=True):
        kind = SCHEMAS[table].field(name).type
        if there not in rows.column_names:
            columns.append(pa.nulls(rows.num_rows, kind))
        elif name.endswith("_dtype"):
            numbers = pc.index_in(rows.column(there), value_set=_DTYPES)
            columns.append(numbers.cast(kind))
        else:
            columns.append(rows.column(there))
    schema = pa.schema([SCHEMAS[table].field(name) for name in names])
    return pa.Table.from_arrays([c.cast(f.type) for c, f in zip(columns, schema, strict=True)],
                                schema=schema)  # fmt: skip


def layer_facts(log: RankRows) -> LayerFacts:
    """The names and facts of a rank's layers, by which row tables name them."""
    return LayerFacts.of(with_places(log, Table.LAYER_INFO, 0, log.rows(Table.LAYER_INFO)))


def with_places(log: RankRows, table: Table, start: int, stop: int) -> pa.Table:
    """A rank's stored rows with two columns more: the rank, and the attempt of each row."""
    rows = log.read(table, SCHEMAS[table].names, start, stop)
    ranks = column(np.full(rows.num_rows, log.rank), pa.int32())
    attempts = column(log.attempts(table, start, start + rows.num_rows), pa.int32())
    return rows.append_column(RANK, ranks).append_column(ATTEMPT, attempts)


def time_of(time_ns: int) -> dt.datetime:
    """A time in nanoseconds as the place's tables hold it."""
    # 9999 is the last year that tables know.
    seconds = min(time_ns // 1000 / 1e6, 253_402_300_799.0)
    return dt.datetime.fromtimestamp(seconds, dt.timezone.utc)


# --- files ----------------------------------------------------------------------------------------

_MAGIC = b"PAR1"
_GROUPS = 4  # the field of a footer; the heads are those of Thrift's compact protocol
_ROWS_HEAD, _ONE_GROUP_HEAD = b"\x16", b"\x19\x1c"
# Up to so many bytes a row group is fetched whole; at 40 MB/s another request takes as long.
WHOLE_BYTES = 1 << 20


class RowFile:
    """A Parquet file of one table, written in memory one row group at a time."""

    def __init__(self, path: str, schema: pa.Schema) -> None:
        self.path = path
        self.run_ids: list[str] = []  # of each row group
        self._sink = io.BytesIO()
        self._writer = parquet.ParquetWriter(
            self._sink,
            schema,
            **parquet_options(schema) | {"write_statistics": ["run_id"], "store_schema": False},
        )
        self._groups: list[tuple[str, int, int, str]] = []  # each: table, rank, rows, edition

    @property
    def size(self) -> int:
        """Bytes of the file written so far."""
        return self._sink.tell()

    def add(self, table: str, rank: int, rows: pa.Table, run_id: str, edition: str) -> None:
        """Write rows of one run and rank to the file as a row group."""
        self._writer.write_table(rows, row_group_size=max(1, rows.num_rows))
        self._groups.append((table, rank, rows.num_rows, edition))
        self.run_ids.append(run_id)

    def finish(self) -> tuple[bytes, list[Part]]:
        """The file's bytes, and where each row group is, in the order they were added."""
        self._writer.close()
        data = self._sink.getvalue()
        about = parquet.read_metadata(pa.BufferReader(data))
        length = int.from_bytes(data[-8:-4], "little")
        footers = _footers(data[-8 - length : -8], [rows for _, _, rows, _ in self._groups])
        parts = []
        for number, (table, rank, rows, edition) in enumerate(self._groups):
            start, end = _bounds(about.row_group(number))
            crc = zlib.crc32(memoryview(data)[start:end])
            where = (self.path, rows, start, end - start, crc, footers[number])
            parts.append(Part(table, rank, *where, edition))
        return data, parts

    @property
    def stats(self) -> str:
        """The file's statistics for a Delta table, by which readers skip files."""
        rows = sum(rows for _, _, rows, _ in self._groups)
        return statistics_text(rows, {"run_id": (min(self.run_ids), max(self.run_ids))})


def read_part(part: Part, names: Sequence[str], place: Place, whole: dict[Part, bytes]) -> pa.Table:
    """The columns `names` of a row group, as far as it has them; small ones are kept in `whole`."""
    if part.length <= WHOLE_BYTES and part not in whole:
        data = place.get(*part.extent)
        if zlib.crc32(data) != part.crc:
            raise _changed(part)
        whole[part] = data
    try:
        file = parquet.ParquetFile(
            pa.PythonFile(_Window(part, place, whole.get(part)), mode="r"),
            metadata=parquet.read_metadata(pa.BufferReader(_closed(part.footer))),
            pre_buffer=True,
        )
        there = [name for name in names if name in file.schema_arrow.names]
        rows = file.read(columns=there or file.schema_arrow.names[:1])
        rows.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, TypeError) as problem:
        raise _changed(part) from problem
    if rows.num_rows != part.rows:
        raise _changed(part)
    return rows


class _Window(io.RawIOBase):
    """A Parquet file of which only one row group can be read."""

    def __init__(self, part: Part, place: Place, data: bytes | None) -> None:
        self._part, self._place, self._data = part, place, data
        self._at = 0

    def read(self, size: int = -1) -> bytes:
        start, self._at = self._at, self._at + max(size, 0)
        end = min(self._at, self._part.offset + self._part.length)
        if start < self._part.offset or end < start:
            raise OSError("what is asked for lies outside the part")
        if self._data is None:
            return self._place.get(self._part.path, start, end - start)
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


def _bounds(group: Any) -> tuple[int, int]:
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


# --- a published run, read like one on disk -------------------------------------------------------


def open_published(address: str) -> Run:
    """Open the published run `PLACE#NAME`; the name may be the beginning of the run's id."""
    place_text, _, name = address.rpartition("#")
    place = Place(place_text)
    return open_row(place, find_published(place, name))


def open_row(place: Place, row: PublishedRun, detail: Detail | None = None) -> Run:
    """Open the published run of a row of `runs`; its detail is read unless given."""
    files = PublishedFiles(place, detail or read_detail(place, row))
    return Run(Path(f"{place.address}#{row.name}"), files)


class PublishedFiles:
    """The files of a published run, for its reader; see `store.RunFiles`."""

    def __init__(self, place: Place, detail: Detail) -> None:
        self._place = place
        self._detail = detail
        self._notes = {note.rank: note for note in detail.ranks}

    def info(self) -> RunInfo:
        """The published run's run.json."""
        return RunInfo.from_json(self._detail.info)

    def ranks(self) -> tuple[int, ...]:
        """The ranks of the run that were published."""
        return tuple(sorted(self._notes))

    def log(self, rank: int) -> PublishedLog:
        """The published rows of a rank."""
        parts = [part for part in self._detail.parts if part.rank == rank]
        return PublishedLog(self._place, self._notes[rank], parts)

    def muted(self) -> tuple[tuple[str, str], ...]:
        """What was muted when the run was published."""
        return self._detail.muted

    def lacks(self, rank: int) -> tuple[str, ...]:
        """What the rank's log lacked when it was published."""
        return self._notes[rank].lacks

    def is_there(self) -> bool:
        """Always true: that a published run was deleted shows when it is read."""
        return True

    def grows(self) -> bool:
        """Always false: a later publication is another state of the run, to be opened anew."""
        return False

    def is_written(self) -> bool:
        """Always false: no trainer writes to a published run."""
        return False

    def is_abandoned(self, host: str) -> bool:  # noqa: ARG002
        """Whether the run was known to be lost when it was published."""
        return self._detail.state == "lost"


class PublishedLog:
    """The published rows of one rank, in the order of its log; see `store.RankRows`."""

    cuts = 0

    def __init__(self, place: Place, note: RankNote, parts: Sequence[Part]) -> None:
        self.rank = note.rank
        self.ended = note.ended
        self.marks = note.marks
        self.notes = note.notes
        self.last_time_ns = note.last_time_ns
        self._place = place
        self._row_ends = note.row_ends
        self._parts: Mapping[Table, list[Part]] = {
            table: [part for part in parts if part.table == table.value] for table in Table
        }
        self._whole: dict[Part, bytes] = {}

    def refresh(self) -> bool:
        """Do nothing: to see what was published since, open the run anew."""
        return False

    def rows(self, table: Table) -> int:
        """How many published rows of a table there are."""
        return sum(part.rows for part in self._parts[table])

    def read(
        self, table: Table, names: Sequence[str], start: int = 0, stop: int | None = None
    ) -> pa.Table:
        """The columns `names` of the published rows from `start` on, or up to `stop`."""
        schema = pa.schema([SCHEMAS[table].field(name) for name in names])
        pieces = [pa.Table.from_batches([], schema)]
        for rows, first, last in self._stretches(table, published_names(names), start, stop):
            pieces.append(stored_rows(table, rows.slice(first, last - first), names))
        return pa.concat_tables(pieces)

    def row_ends(self, table: Table | None = None) -> np.ndarray:
        """The published row counts, of one table or all, at some positions in the log."""
        if table is not None:
            return np.array(self._row_ends[table.value], np.int64)
        ends: np.ndarray = sum((self.row_ends(one) for one in Table), np.zeros(1, np.int64))
        return ends

    def attempts(self, table: Table, start: int, stop: int) -> np.ndarray:
        """The attempt, from 0, that each published row from `start` to `stop` belongs to."""
        begun = sum(kind == EventKind.STARTED.value for _, kind in self.marks)
        if begun < 2:
            return np.zeros(stop - start, dtype=np.int64)
        attempts = [
            integers(rows.slice(first, last - first), ATTEMPT)
            for rows, first, last in self._stretches(table, [ATTEMPT], start, stop)
        ]
        return np.concatenate([np.zeros(0, np.int64), *attempts])

    def verify(self) -> None:
        """Do nothing: every published part is checked when it is fetched."""

    def _stretches(
        self, table: Table, names: Sequence[str], start: int, stop: int | None
    ) -> list[tuple[pa.Table, int, int]]:
        """The published parts that hold these rows, and which rows of each are requested."""
        stop = self.rows(table) if stop is None else stop
        stretches, before = [], 0
        for part in self._parts[table]:
            first, last = max(0, start - before), min(part.rows, stop - before)
            if first < last:
                rows = read_part(part, list(dict.fromkeys(names)), self._place, self._whole)
                stretches.append((rows, first, last))
            before += part.rows
        return stretches
