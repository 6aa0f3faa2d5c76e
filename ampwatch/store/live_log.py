"""The live part of a rank's log: the batches, and RUN/rank-N/index, which vouches for each.

The index is a header (magic, format, generation, first sequence) and records (sequence, offset,
length, rows, table, CRC32 of the payload, CRC32 of the record itself). In a trainer's own log a
record's position gives its sequence; a recorder may file batches of a copy as they arrive, so the
number is in the record too. A payload is verified against its record before it is used.

The generation is that of the compacted part which the index continues: an older index, left by a
compaction that was killed, holds nothing that the compacted part does not.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from ampwatch.codec import (
    MAX_PAYLOAD_BYTES,
    MAX_ROWS,
    Batch,
    decode_stream,
    refuse_missing_keys,
    stream_head,
)
from ampwatch.errors import CodecError, FutureRunError, RunError, reason_of
from ampwatch.files import open_regular
from ampwatch.rows import FORMAT, SCHEMAS, TABLES, Table
from ampwatch.store import locks
from ampwatch.store.layout import BASE_FILE, INDEX_FILE, table_file

MAGIC = b"ampwIDX\n"
_HEADER = struct.Struct("<8sIIQI")  # magic, format, generation, first sequence, CRC
_RECORD = struct.Struct("<QQIIIII")
HEADER_BYTES = _HEADER.size
RECORD_BYTES = _RECORD.size

RECORD = np.dtype([
    ("sequence", "<u8"), ("offset", "<u8"), ("length", "<u4"), ("rows", "<u4"), ("table", "<u4"),
    ("crc", "<u4"), ("own_crc", "<u4"),
])  # fmt: skip
assert RECORD.itemsize == RECORD_BYTES

# No log of ours comes near these, and every sum of such numbers fits an int64. They are needed
# because a checksum says that a number is as it was written, not that an honest writer wrote it.
MAX_SEQUENCE = 1 << 40
MAX_OFFSET = 1 << 50


@dataclass(frozen=True, slots=True)
class Header:
    """What the index continues: which compacted part, from which sequence on."""

    generation: int
    first_sequence: int


def pack_header(header: Header) -> bytes:
    """The index's first bytes."""
    bare = _HEADER.pack(MAGIC, FORMAT, header.generation, header.first_sequence, 0)[:-4]
    return bare + struct.pack("<I", zlib.crc32(bare))


def read_header(data: bytes, path: Path) -> Header | None:
    """The header; None if the bytes are not a whole header of ours."""
    if len(data) < HEADER_BYTES:
        return None
    magic, number, generation, first_sequence, crc = _HEADER.unpack_from(data)
    if magic != MAGIC or crc != zlib.crc32(data[: HEADER_BYTES - 4]):
        return None
    if first_sequence > MAX_SEQUENCE:
        return None
    refuse_future(number, path)
    return Header(generation, first_sequence)


def refuse_future(number: int, path: Path) -> None:
    """Raise FutureRunError for an index, or another file, of a newer format than we read."""
    if number > FORMAT:
        raise FutureRunError(
            f"{path} has format {number} and this ampwatch reads up to {FORMAT}: update ampwatch.",
            path=path,
        )


def pack_record(sequence: int, offset: int, batch: Batch) -> bytes:
    """The index record of a batch whose payload is at `offset` of its table's file."""
    crc = zlib.crc32(batch.payload)
    length = len(batch.payload)
    packed = _RECORD.pack(sequence, offset, length, batch.row_count, batch.table.number, crc, 0)
    return packed[:-4] + struct.pack("<I", zlib.crc32(packed[:-4]))


def read_records(data: bytes) -> np.ndarray:
    """The whole and undamaged index records that `data` begins with."""
    whole = len(data) // RECORD_BYTES
    records = np.frombuffer(data, RECORD, count=whole)
    good = whole
    view = memoryview(data)
    own_crcs = records["own_crc"].tolist()
    for position, own_crc in enumerate(own_crcs):
        start = position * RECORD_BYTES
        if zlib.crc32(view[start : start + RECORD_BYTES - 4]) != own_crc:
            good = position
            break
    return plausible(records[:good])


def plausible(records: np.ndarray) -> np.ndarray:
    """The index records before the first one that no writer of ours would write."""
    strange = (records["table"] >= len(TABLES)) | (records["rows"] > MAX_ROWS)
    strange |= (records["offset"] > MAX_OFFSET) | (records["sequence"] > MAX_SEQUENCE)
    strange |= records["length"] > MAX_PAYLOAD_BYTES
    first = np.flatnonzero(strange)
    return records[: first[0]] if len(first) else records


def without_overlap(records: np.ndarray, end: int) -> int:
    """How many of a table's index records begin after `end` and after each other's end.

    A payload that a thousand records share would be read, and held, a thousand times.
    """
    offsets = records["offset"].astype(np.int64)
    ends = np.concatenate([[end], offsets + records["length"]])[:-1]
    overlapping = np.flatnonzero(offsets < ends)
    return int(overlapping[0]) if len(overlapping) else len(records)


# --- the batches ----------------------------------------------------------------------------------


def read_region(path: Path, start: int, end: int | None = None) -> bytes:
    """A file's bytes from `start` to `end` or its own end; none if there is no file.

    Read, not mapped: a writer that cuts a torn tail would kill whoever maps it. RunError if the
    file exists and cannot be read.
    """
    try:
        with open_regular(path) as file:
            # read() allocates as much as it is asked for, and an index may ask for terabytes.
            size = os.fstat(file.fileno()).st_size
            file.seek(start)
            return file.read(max(0, min(size, size if end is None else end) - start))
    except FileNotFoundError:
        return b""
    except OSError as problem:
        words = f"{path} cannot be read ({reason_of(problem)}): make it readable."
        raise RunError(words, path=path) from problem


def good_payloads(folder: Path, table: Table, records: np.ndarray) -> tuple[list[bytes], int]:
    """The payloads that a table's index records vouch for, joined where adjacent, and how many.

    It ends before the first batch whose bytes do not match its record's checksum.
    """
    pieces: list[bytes] = []
    good = 0
    for stretch in stretches(records):
        start, lengths = int(stretch["offset"][0]), stretch["length"].tolist()
        data = read_region(table_file(folder, table), start, start + sum(lengths))
        intact, end = _intact(data, lengths, stretch["crc"].tolist())
        if intact:
            pieces.append(data[:end])
        good += intact
        if intact < len(stretch):
            break
    return pieces, good


def stretches(records: np.ndarray) -> list[np.ndarray]:
    """The index records, split at gaps between their bytes: a failed write may leave one."""
    offsets = records["offset"].astype(np.int64)
    ends = offsets + records["length"]
    breaks = np.flatnonzero(offsets[1:] != ends[:-1]) + 1
    if not len(breaks):
        return [records] if len(records) else []
    return np.split(records, breaks)


def _intact(data: bytes, lengths: list[int], crcs: list[int]) -> tuple[int, int]:
    """How many payloads, from the first on, match their index records, and where they end."""
    view = memoryview(data)
    end = 0
    for number, (length, crc) in enumerate(zip(lengths, crcs, strict=True)):
        if end + length > len(data) or zlib.crc32(view[end : end + length]) != crc:
            return number, end
        end += length
    return len(lengths), end


def good_count(folder: Path, records: np.ndarray) -> int:
    """How many index records, from the first on, match their bytes, in every table."""
    good = len(records)
    for table in TABLES:
        places = np.flatnonzero(records["table"] == table.number)
        if not len(places):
            continue
        _, intact = good_payloads(folder, table, records[places])
        if intact < len(places):
            good = min(good, int(places[intact]))
    return good


# --- reading them ---------------------------------------------------------------------------------

_NO_RECORDS = np.empty(0, RECORD)
_VERIFIED_AT_ONCE = 1 << 24  # bytes
_JOINED_ROWS = 1 << 17
_INDEX_PART = RECORD_BYTES << 16  # an index is as long as its good records, not as its file


class LiveLog:
    """One rank's live batches, in the order of its index.

    A table is read up to its first damaged batch, and what is left out is said. `extend` reads only
    the index records that are new.
    """

    def __init__(self, folder: Path, generation: int) -> None:
        self.records: np.ndarray = _NO_RECORDS
        self.notes: dict[str, str] = {}  # by what they are about, so that each is said once
        self.cuts = 0  # tables found damaged: positions of rows read before no longer hold
        self._folder = folder
        self._generation = generation  # of the base that comes before; 0 for none
        self._tables = dict.fromkeys(TABLES, _NO_RECORDS)
        self._verified = dict.fromkeys(TABLES, 0)
        self._header = self._read_header()

    # --- what there is ---------------------------------------------------------------------------

    def extend(self) -> np.ndarray:
        """Take in the index records that are new, and return them."""
        if self._header is None:
            self._header = self._read_header()
        if self._header is None:
            return _NO_RECORDS
        fresh = self._fresh_records()
        self.records = np.concatenate([self.records, fresh])
        for table in TABLES:
            mine = fresh[fresh["table"] == table.number]
            if len(mine) and _damage_of(table) not in self.notes:
                self._add_records(table, mine)
        return fresh

    def batches(self, table: Table) -> np.ndarray:
        """The records of a table's batches."""
        return self._tables[table]

    def rows(self, table: Table) -> int:
        """How many rows of a table are known."""
        return int(self._tables[table]["rows"].sum())

    def read(self, table: Table, names: Sequence[str], start: int, stop: int) -> pa.Table:
        """Rows `start` to `stop`, verified and validated."""
        records = self._tables[table]
        ends = np.cumsum(records["rows"].astype(np.int64))
        first = int(np.searchsorted(ends, start, side="right"))
        last = min(len(records), int(np.searchsorted(ends, stop)) + 1)
        pieces, good = good_payloads(self._folder, table, records[first:last])
        if first + good < last:
            self._cut(table, first + good)
        rows = self._decode(table, names, pieces)
        if rows.num_rows != int(records["rows"][first : first + good].sum()):
            raise self._not_ours(table)
        if first <= self._verified[table]:
            self._verified[table] = max(self._verified[table], first + good)
        skipped = start - (int(ends[first - 1]) if first else 0)
        return rows.slice(skipped, max(0, stop - start))

    def verify(self, table: Table) -> None:
        """Check a table's bytes that were not checked yet."""
        records = self._tables[table]
        while (start := self._verified[table]) < len(records):
            sizes = np.cumsum(records["length"][start:].astype(np.int64))
            part = records[start : start + 1 + int(np.searchsorted(sizes, _VERIFIED_AT_ONCE))]
            _, good = good_payloads(self._folder, table, part)
            self._verified[table] = start + good
            if good < len(part):
                self._cut(table, start + good)
                return

    def leftovers(self) -> list[str]:
        """What stands after the last good record: normal while a writer is at work."""
        if self._header is None:
            return []
        start = HEADER_BYTES + len(self.records) * RECORD_BYTES
        after = read_region(self._folder / INDEX_FILE, start, start + RECORD_BYTES)
        if len(after) == RECORD_BYTES and not len(read_records(after)):
            count = len(self.records)
            return [f"its index is damaged after {count} batches; what follows is left out"]
        torn = 0 < len(after) < RECORD_BYTES or any(self._unvouched(table) for table in TABLES)
        if torn and not locks.is_held(self._folder):
            return ["its last batch was cut off in mid-write and is left out"]
        return []

    # --- within ----------------------------------------------------------------------------------

    def _fresh_records(self) -> np.ndarray:
        """The good records that follow those that are known."""
        parts = [_NO_RECORDS]
        start = HEADER_BYTES + len(self.records) * RECORD_BYTES
        while True:
            data = read_region(self._folder / INDEX_FILE, start, start + _INDEX_PART)
            parts.append(read_records(data))
            if len(parts[-1]) * RECORD_BYTES < _INDEX_PART:
                return np.concatenate(parts)
            start += _INDEX_PART

    def _add_records(self, table: Table, fresh: np.ndarray) -> None:
        """Add a table's records; those that claim bytes which others have are damage."""
        records = self._tables[table]
        end = int(records["offset"][-1]) + int(records["length"][-1]) if len(records) else 0
        self._tables[table] = np.concatenate([records, fresh])
        apart = without_overlap(fresh, end)
        if apart < len(fresh):
            self._cut(table, len(records) + apart)

    def _read_header(self) -> Header | None:
        path = self._folder / INDEX_FILE
        data = read_region(path, 0, HEADER_BYTES)
        header = read_header(data, path)
        if header is not None and header.generation < self._generation:
            return None  # a killed compaction left it; the base holds all of it
        if header is not None and header.generation > self._generation:
            self.notes["base"] = f"its compacted part ({BASE_FILE}) is missing or an old one"
        streams = (table_file(self._folder, table) for table in TABLES)
        if header is None and (data or any(map(os.path.lexists, streams))):
            what = "is damaged or not ours" if data else "is missing"
            which = "its batches since its compaction" if self._generation else "its batches"
            self.notes["index"] = f"its index {what}, so none of {which} can be trusted"
        return header

    def _unvouched(self, table: Table) -> bool:
        """Whether a table's file goes on after the last batch that the index knows."""
        mine = self.records[self.records["table"] == table.number]
        if self._generation and not len(mine):
            return False  # a killed compaction may have left the stream it compacted
        end = int((mine["offset"] + mine["length"]).max()) if len(mine) else 0
        beyond = read_region(table_file(self._folder, table), end, end + (1 << 16))
        return len(beyond) > (0 if end else len(stream_head(table)))

    def _decode(self, table: Table, names: Sequence[str], pieces: list[bytes]) -> pa.Table:
        """The batches' rows; a sound checksum says that bytes are as written, not by whom."""
        schema = pa.schema([SCHEMAS[table].field(name) for name in names])
        try:
            rows = _rows_in(table, pieces, names, schema)
            rows.validate(full=True)
            refuse_missing_keys(table, rows)
        except (pa.ArrowException, CodecError) as problem:
            raise self._not_ours(table) from problem
        # A column of hundreds of pieces is slow to handle.
        return rows.combine_chunks() if rows.num_rows <= _JOINED_ROWS else rows

    def _not_ours(self, table: Table) -> RunError:
        path = table_file(self._folder, table)
        return RunError(f"{path} holds rows that ampwatch did not write so.", path=path)

    def _cut(self, table: Table, good: int) -> None:
        """Stop reading a table at its first damaged batch."""
        lost = self._tables[table][good:]
        self._tables[table] = self._tables[table][:good]
        self.cuts += _damage_of(table) not in self.notes
        rows = int(lost["rows"].sum())
        self.notes[_damage_of(table)] = (
            f"{table.value} is damaged at batch {int(lost['sequence'][0])}; {rows} rows from there "
            "on are left out"
        )


def _rows_in(
    table: Table, pieces: Sequence[bytes], names: Sequence[str], schema: pa.Schema
) -> pa.Table:
    """The rows of the live batches in some stretches of a table's stream."""
    if schema.names == SCHEMAS[table].names:  # all, in order: choosing takes as long as decoding
        batches = [batch for piece in pieces for batch in decode_stream(table, piece)]
    else:
        decoded = [batch for piece in pieces for batch in decode_stream(table, piece, names)]
        batches = [batch.select(names) for batch in decoded]
    return pa.Table.from_batches(batches, schema)


def _damage_of(table: Table) -> str:
    return f"live {table.value}"
