"""Batches as they stand in a table's file, each verified against its index record before use."""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Protocol

import numpy as np

from ampwatch.errors import RunError
from ampwatch.rows import TABLES, Table
from ampwatch.store.layout import table_file
from ampwatch.store.regular import open_regular


class Readable(Protocol):
    """A file that gives bytes at a place."""

    def read(self, offset: int, length: int) -> bytes:
        """The bytes there; fewer where the file ends."""
        ...


def read_payload(file: Readable, record: np.void) -> bytes:
    """A batch's bytes; RunError if they are not those that were written."""
    payload = file.read(int(record["offset"]), int(record["length"]))
    if zlib.crc32(payload) != int(record["crc"]):
        raise RunError(f"Batch {int(record['sequence'])} is damaged on disk.")
    return payload


def read_region(path: Path, start: int, end: int | None = None) -> bytes:
    """A file's bytes from `start` to `end` or its own end; none where there is no file.

    Read, not mapped: a writer that cuts a torn tail would kill whoever maps it. RunError where
    there is something that cannot be read.
    """
    try:
        with open_regular(path) as file:
            # Room is made for as much as is asked for, and an index may ask for terabytes.
            size = os.fstat(file.fileno()).st_size
            file.seek(start)
            return file.read(max(0, min(size, size if end is None else end) - start))
    except FileNotFoundError:
        return b""
    except OSError as problem:
        raise unreadable(path, problem) from problem


def unreadable(path: Path, problem: OSError) -> RunError:
    """What to say of a file that is there and cannot be read."""
    reason = problem.strerror or str(problem)
    return RunError(f"{path} cannot be read ({reason}): the run is read once it can be.", path=path)


def good_payloads(folder: Path, table: Table, records: np.ndarray) -> tuple[list[bytes], int]:
    """The payloads of one table's records, joined where they follow each other, and how many.

    It ends before the first batch whose bytes are not those its record vouches for.
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
    """The records in parts that stand without a gap; a gap is what a failed write may leave."""
    offsets = records["offset"].astype(np.int64)
    ends = offsets + records["length"]
    breaks = np.flatnonzero(offsets[1:] != ends[:-1]) + 1
    return np.split(records, breaks) if len(records) else []


def _intact(data: bytes, lengths: list[int], crcs: list[int]) -> tuple[int, int]:
    """How many payloads, from the first on, are as they were written, and where they end."""
    view = memoryview(data)
    end = 0
    for number, (length, crc) in enumerate(zip(lengths, crcs, strict=True)):
        if end + length > len(data) or zlib.crc32(view[end : end + length]) != crc:
            return number, end
        end += length
    return len(lengths), end


def good_count(folder: Path, records: np.ndarray) -> int:
    """How many records, from the first on, have the bytes they vouch for in every table."""
    good = len(records)
    for table in TABLES:
        places = np.flatnonzero(records["table"] == table.number)
        if not len(places):
            continue
        _, intact = good_payloads(folder, table, records[places])
        if intact < len(places):
            good = min(good, int(places[intact]))
    return good
