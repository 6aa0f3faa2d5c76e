"""Batches as they stand in a table's file, each verified against its index record before use."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Protocol

import numpy as np

from ampwatch.errors import RunError
from ampwatch.rows import TABLES, Table
from ampwatch.store.layout import table_file


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

    Read, not mapped: a writer that cuts a torn tail would kill whoever maps it.
    """
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read() if end is None else file.read(max(0, end - start))
    except FileNotFoundError:
        return b""


def good_payloads(folder: Path, table: Table, records: np.ndarray) -> tuple[list[bytes], int]:
    """The payloads of one table's records, joined where they follow each other, and how many.

    It ends before the first batch whose bytes are not those its record vouches for.
    """
    if not len(records):
        return [], 0
    offsets = records["offset"].astype(np.int64)
    ends = offsets + records["length"]
    start = int(offsets.min())
    data = memoryview(read_region(table_file(folder, table), start, int(ends.max())))
    begins, stops = (offsets - start).tolist(), (ends - start).tolist()
    good = 0
    for begin, stop, crc in zip(begins, stops, records["crc"].tolist(), strict=True):
        if stop > len(data) or zlib.crc32(data[begin:stop]) != crc:
            break
        good += 1
    return _joined(data, begins[:good], stops[:good]), good


def _joined(data: memoryview, begins: list[int], stops: list[int]) -> list[bytes]:
    """The stretches without a gap; a gap is what a failed write may leave."""
    pieces: list[bytes] = []
    start = 0
    for position in range(1, len(begins) + 1):
        if position == len(begins) or begins[position] != stops[position - 1]:
            pieces.append(bytes(data[begins[start] : stops[position - 1]]))
            start = position
    return pieces


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
