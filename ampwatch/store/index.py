"""RUN/rank-N/index: one fixed-size record a batch, so a batch is found by its sequence number.

A header (magic, format, generation, first sequence) and records (sequence, offset, length, rows,
table, CRC32 of the payload, CRC32 of the record itself). In a trainer's own log a record's position
gives its sequence; a recorder's copy may file batches as they arrive, so the number stands in the
record too.
The generation is that of the compacted base which the index continues: an older index, left by a
compaction that was killed, holds nothing that the base does not.
"""

from __future__ import annotations

import bisect
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ampwatch.codec import MAX_PAYLOAD_BYTES, MAX_ROWS, Batch
from ampwatch.errors import FutureRunError
from ampwatch.rows import FORMAT, TABLES

INDEX_FILE = "index"
MAGIC = b"ampwIDX\n"
_HEADER = struct.Struct("<8sIIQI")  # magic, format, generation, first sequence, CRC
_RECORD = struct.Struct("<QQIIIII")
HEADER_BYTES = _HEADER.size
RECORD_BYTES = _RECORD.size

RECORD = np.dtype(
    [
        ("sequence", "<u8"),
        ("offset", "<u8"),
        ("length", "<u4"),
        ("rows", "<u4"),
        ("table", "<u4"),
        ("crc", "<u4"),
        ("own_crc", "<u4"),
    ]
)
assert RECORD.itemsize == RECORD_BYTES


# What no log of ours comes near, and every sum of which fits an int64: a checksum says that a
# number stands as it was written, not that an honest writer wrote it.
MAX_SEQUENCE = 1 << 40
MAX_OFFSET = 1 << 50


@dataclass(frozen=True, slots=True)
class Header:
    """What the index continues: which base, from which sequence on."""

    generation: int
    first_sequence: int


def pack_header(header: Header) -> bytes:
    """The index's first bytes."""
    bare = _HEADER.pack(MAGIC, FORMAT, header.generation, header.first_sequence, 0)[:-4]
    return bare + struct.pack("<I", zlib.crc32(bare))


def read_header(data: bytes, path: Path) -> Header | None:
    """The header, or None if the bytes are no whole header of ours."""
    if len(data) < HEADER_BYTES:
        return None
    magic, number, generation, first_sequence, crc = _HEADER.unpack_from(data)
    if magic != MAGIC or crc != zlib.crc32(data[: HEADER_BYTES - 4]):
        return None
    if first_sequence > MAX_SEQUENCE:
        return None
    if number > FORMAT:
        raise FutureRunError(
            f"{path} has format {number} and this ampwatch reads up to {FORMAT}: update ampwatch.",
            path=path,
        )
    return Header(generation, first_sequence)


def pack_record(sequence: int, offset: int, batch: Batch) -> bytes:
    """The record of a batch whose payload stands at `offset` of its table's file."""
    crc = zlib.crc32(batch.payload)
    length = len(batch.payload)
    packed = _RECORD.pack(sequence, offset, length, batch.row_count, batch.table.number, crc, 0)
    return packed[:-4] + struct.pack("<I", zlib.crc32(packed[:-4]))


def read_records(data: bytes) -> np.ndarray:
    """The whole and undamaged records that `data` begins with."""
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
    """The records that come before the first one that no writer of ours would write."""
    strange = (records["table"] >= len(TABLES)) | (records["rows"] > MAX_ROWS)
    strange |= (records["offset"] > MAX_OFFSET) | (records["sequence"] > MAX_SEQUENCE)
    strange |= records["length"] > MAX_PAYLOAD_BYTES
    first = np.flatnonzero(strange)
    return records[: first[0]] if len(first) else records


def without_overlap(records: np.ndarray, end: int) -> int:
    """How many of one table's records, from the first on, stand behind `end` and one another.

    One payload under a thousand records would be read, and held, a thousand times.
    """
    offsets = records["offset"].astype(np.int64)
    ends = np.concatenate([[end], offsets + records["length"]])[:-1]
    overlapping = np.flatnonzero(offsets < ends)
    return int(overlapping[0]) if len(overlapping) else len(records)


_NONE = np.empty(0, np.int64)


class Held:
    """Which sequence numbers a log holds, as ranges: few, however long the log.

    Somebody hostile may leave out every other number, so all that is asked for each batch takes a
    search, not a walk.
    """

    __slots__ = ("_ends", "_starts")

    def __init__(self, sequences: np.ndarray = _NONE) -> None:
        ordered = np.sort(sequences.astype(np.int64))
        breaks = np.flatnonzero(np.diff(ordered) > 1)
        self._starts: list[int] = np.concatenate([ordered[:1], ordered[breaks + 1]]).tolist()
        self._ends: list[int] = (np.concatenate([ordered[breaks], ordered[-1:]]) + 1).tolist()

    @property
    def start(self) -> int:
        """The lowest number that is held."""
        return self._starts[0] if self._starts else 0

    @property
    def end(self) -> int:
        """One past the highest number that is held."""
        return self._ends[-1] if self._ends else 0

    @property
    def gaps(self) -> tuple[tuple[int, int], ...]:
        """What is missing below the highest held, as (first, one past the last)."""
        ends = [0, *self._ends]
        return tuple((a, b) for a, b in zip(ends, self._starts, strict=False) if a < b)

    @property
    def stretches(self) -> int:
        """How many ranges there are: one, where nothing is missing."""
        return len(self._starts)

    def next_missing(self, number: int) -> int:
        """The lowest number from this one on that is not held."""
        place = bisect.bisect(self._starts, number) - 1
        return max(number, self._ends[place]) if place >= 0 else number

    def __contains__(self, sequence: int) -> bool:
        return self.next_missing(sequence) != sequence

    def add(self, sequence: int) -> None:
        """Note that a number is held; one that was held already changes nothing."""
        place = bisect.bisect(self._starts, sequence)  # the range before which it may be new
        if place and sequence < self._ends[place - 1]:
            return
        touches_left = place > 0 and self._ends[place - 1] == sequence
        touches_right = place < len(self._starts) and self._starts[place] == sequence + 1
        if touches_left and touches_right:
            del self._ends[place - 1], self._starts[place]
        elif touches_left:
            self._ends[place - 1] += 1
        elif touches_right:
            self._starts[place] -= 1
        else:
            self._starts.insert(place, sequence)
            self._ends.insert(place, sequence + 1)
