"""RUN/rank-N/index, one fixed-size record a batch, and the batches that it vouches for.

A header (magic, format, generation, first sequence) and records (sequence, offset, length, rows,
table, CRC32 of the payload, CRC32 of the record itself). In a trainer's own log a record's position
gives its sequence; a recorder may file batches of a copy as they arrive, so the number is in the
record too. A payload is verified against its record before it is used.

The generation is that of the compacted part which the index continues: an older index, left by a
compaction that was killed, holds nothing that the compacted part does not.
"""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ampwatch.codec import MAX_PAYLOAD_BYTES, MAX_ROWS, Batch
from ampwatch.errors import FutureRunError, RunError, reason_of
from ampwatch.files import open_regular
from ampwatch.rows import FORMAT, TABLES, Table
from ampwatch.store.layout import table_file

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
        raise unreadable(path, problem) from problem


def unreadable(path: Path, problem: OSError) -> RunError:
    """The error for a file that exists and cannot be read."""
    return RunError(f"{path} cannot be read ({reason_of(problem)}): make it readable.", path=path)


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
