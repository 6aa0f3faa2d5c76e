"""One table's Parquet file in a compacted log: what base.json says of it, what of it is intact."""

from __future__ import annotations

import mmap
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
    """How many row groups, from the first on, are undamaged in these columns."""
    if len(data) != entry.size or zlib.crc32(footer_of(data)) != entry.footer_crc:
        return 0
    view = memoryview(data)
    for number, group in enumerate(entry.chunks):
        for offset, length, crc in (group[name] for name in names):
            if zlib.crc32(view[offset : offset + length]) != crc:
                return number
    return len(entry.chunks)


def groups_for(entry: TableFile, start: int, stop: int) -> tuple[list[int], int]:
    """The row groups that hold rows `start` to `stop`, and how many rows come before them."""
    groups: list[int] = []
    first_row = skipped = 0
    for number, rows in enumerate(entry.row_group_rows):
        if first_row + rows > start and first_row < stop:
            skipped = first_row if not groups else skipped
            groups.append(number)
        first_row += rows
    return groups, skipped
