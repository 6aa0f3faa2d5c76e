"""One table's Parquet file in a compacted log: what it declares, what of it is intact, its rows.

Parquet packs a column of one value into a few bytes, however many rows it has: a file of 1.6 kB
took 3 GB to open. Ours have at most 262,144 rows a group, and inflate in proportion to the file, as
on the wire. So what a file declares is checked against its size before a row is read. Compaction
applies the same limits to what it wrote, and keeps the log if they fail.

The declarations are read here, by just enough of Thrift's compact protocol: pyarrow reads them too,
but a file made to harm it ends the process by an exception of C++.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ampwatch.codec import MAX_INFLATED_BYTES, MAX_ROWS, numpy_type
from ampwatch.codec.columns import raw, valid
from ampwatch.errors import CodecError
from ampwatch.ranges import Range
from ampwatch.rows import Table, schema_of

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


# --- what a file declares -------------------------------------------------------------------------

Struct = dict[int, Any]  # a field's number -> its value

# Real runs inflate to ten times their file, one whose columns hardly change to a hundred times.
MOST_A_BYTE = 1000
# Those that we write, by Parquet's numbers: plain, dictionary (2, 3, 8), delta, split by bytes.
_ENCODINGS = {0, 2, 3, 5, 8, 9}
_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = 0, 2, 3
_HEADS = {_DATA_PAGE: 5, _DICTIONARY_PAGE: 7, _DATA_PAGE_V2: 8}  # the field that describes each

_MOST_DEPTH = 12
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)


def most_bytes(size: int) -> int:
    """How many bytes a Parquet file of this size may inflate to."""
    return MAX_INFLATED_BYTES + MOST_A_BYTE * size


@dataclass(frozen=True, slots=True)
class Declared:
    """What the footer of a table's file declares of each chunk, within the limits."""

    groups: tuple[dict[str, Struct], ...]  # column name -> its metadata

    @classmethod
    def of(cls, table: Table, entry: TableFile, footer: bytes) -> Declared:
        """From a file's footer; CodecError if it is not as we write it, or beyond the limits."""
        about, _ = read_struct(footer)
        try:
            groups = about[4]
            if tuple(group[3] for group in groups) != entry.row_group_rows:
                raise CodecError("Its row groups are not those that base.json names.")
            names = schema_of(table, entry.format).names
            found = cls(tuple(_columns(table, group, names) for group in groups))
            found._refuse_others(entry)
            found._refuse_large(table, entry)
        except (LookupError, TypeError, ValueError, AttributeError) as problem:
            raise CodecError("Its footer does not describe a table of ours.") from problem
        return found

    def refuse_pages(
        self, data: memoryview, chunks: Sequence[Mapping[str, Chunk]], names: Sequence[str]
    ) -> None:
        """Raise CodecError if a column's pages declare other sizes than the footer does."""
        for group, places in zip(self.groups, chunks, strict=False):
            for name in names:
                offset, length, _ = places[name]
                told = group[name]
                if _pages(data[offset : offset + length]) != (told[5], told[6]):
                    raise CodecError(f"The pages of {name} are not those that its footer declares.")

    def _refuse_others(self, entry: TableFile) -> None:
        """Refuse chunks that are not those the checksums were made of."""
        for group, places in zip(self.groups, entry.chunks, strict=True):
            for name, told in group.items():
                start = min(told[9], told.get(11, told[9]))
                if (start, told[7]) != places[name][:2]:
                    raise CodecError(f"{name} is not where base.json says.")

    def _refuse_large(self, table: Table, entry: TableFile) -> None:
        rows = max(entry.row_group_rows, default=0)
        if rows > MAX_ROWS:
            raise CodecError(f"A row group declares {rows} rows; at most {MAX_ROWS} are allowed.")
        widths = {field.name: _width(field.type) for field in schema_of(table, entry.format)}
        total = sum(
            max(told[6], int(told[5] * widths[name]))
            for group in self.groups
            for name, told in group.items()
        )
        if total > most_bytes(entry.size):
            raise CodecError(
                f"It declares {total} bytes of rows; a file of {entry.size} bytes may declare "
                f"{most_bytes(entry.size)}."
            )


def _columns(table: Table, group: Struct, names: Sequence[str]) -> dict[str, Struct]:
    """A Parquet row group's chunks by column: those of the table, in order, in this file."""
    chunks = group[1]
    if [chunk[3][3][0].decode() for chunk in chunks] != names or any(1 in c for c in chunks):
        raise CodecError(f"Its columns are not those of {table.value}.")
    if any(chunk[3][number] < 0 for chunk in chunks for number in (5, 6, 7, 9)):
        raise CodecError("A chunk declares a negative number.")
    return {name: chunk[3] for name, chunk in zip(names, chunks, strict=True)}


def _pages(chunk: memoryview) -> tuple[int, int]:
    """How many values a Parquet chunk's pages declare, and how many bytes with headers."""
    values = declared = at = 0
    while at < len(chunk):
        head, end = read_struct(chunk, at)
        inflated, packed = _sizes(head)
        values += _values(head)
        declared += inflated + end - at
        at = end + packed
    return values, declared


def _sizes(head: Struct) -> tuple[int, int]:
    inflated, packed = head.get(2), head.get(3)
    if not isinstance(inflated, int) or not isinstance(packed, int) or min(inflated, packed) < 0:
        raise CodecError("A page declares no size.")
    return inflated, packed


def _values(head: Struct) -> int:
    """How many rows a Parquet page holds: none if a dictionary. Only our encodings are allowed."""
    kind: Any = head.get(1)
    about: Any = head.get(_HEADS.get(kind, 0))
    if not isinstance(about, dict):
        raise CodecError("A page is of no known kind.")
    count, encoding = about.get(1), about.get(4 if kind == _DATA_PAGE_V2 else 2)
    if not isinstance(count, int) or count < 0 or encoding not in _ENCODINGS:
        raise CodecError("A page has an encoding that ampwatch does not write.")
    return 0 if kind == _DICTIONARY_PAGE else count


def _width(kind: pa.DataType) -> float:
    """Bytes a Parquet value takes in memory; a text's are counted once its dictionary is known."""
    if pa.types.is_string(kind):
        return 4.0
    if pa.types.is_boolean(kind):
        return 0.125
    return float(numpy_type(kind.value_type if pa.types.is_list(kind) else kind).itemsize)


# --- texts ---------------------------------------------------------------------------------------


def read_groups(
    table: Table, entry: TableFile, data: pa.Buffer, groups: Sequence[int], names: Sequence[str]
) -> pa.Table:
    """The columns of these Parquet row groups; texts are read as dictionaries, then spelled out.

    A text of a megabyte that stands in a thousand rows is one megabyte in the file. CodecError if
    the texts are beyond the limits, or the file's schema is not the table's in its format.
    """
    from pyarrow import parquet

    schema = schema_of(table, entry.format)
    texts = [field.name for field in schema if pa.types.is_string(field.type)]
    file = parquet.ParquetFile(data, read_dictionary=texts)
    if not _same(file.schema_arrow, schema):
        raise CodecError(f"Its columns are not those of {table.value}.")
    found = file.read_row_groups(list(groups), columns=list(names)).select(list(names))
    found.validate(full=True)
    total, most = sum(map(_text_bytes, _dictionaries(found))), most_bytes(entry.size)
    if total > most:
        raise CodecError(f"Its texts inflate to {total} bytes; {most} are allowed.")
    return pa.Table.from_arrays([_plain(column) for column in found.columns], names=list(names))


def _same(found: pa.Schema, schema: pa.Schema) -> bool:
    text = pa.dictionary(pa.int32(), pa.string())
    kinds = [text if pa.types.is_string(field.type) else field.type for field in schema]
    return bool(found.names == schema.names and found.types == kinds)


def _dictionaries(found: pa.Table) -> Iterator[pa.DictionaryArray]:
    for column in found.columns:
        if pa.types.is_dictionary(column.type):
            yield from column.chunks


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if not pa.types.is_dictionary(column.type):
        return column
    return pa.chunked_array([chunk.dictionary_decode() for chunk in column.chunks], pa.string())


def _text_bytes(chunk: pa.DictionaryArray) -> int:
    """How many bytes a Parquet chunk's texts take when each row has its own."""
    words = chunk.dictionary
    if not len(words):
        return 0
    ends = np.frombuffer(words.buffers()[1], np.int32)[words.offset : words.offset + len(words) + 1]
    indices = raw(chunk.indices)[valid(chunk.indices)]
    return int(np.diff(ends.astype(np.int64))[indices].sum())


# --- Thrift's compact protocol --------------------------------------------------------------------


def read_struct(data: bytes | memoryview, at: int = 0) -> tuple[Struct, int]:
    """A struct of a Parquet footer or page: its fields and end; CodecError if it is none."""
    try:
        return _struct(memoryview(data), at, _MOST_DEPTH)
    except (IndexError, struct.error) as problem:
        raise CodecError("A description of the file is cut off.") from problem


def structs_in(data: bytes, field: int) -> tuple[int, list[Range]]:
    """Of a Parquet footer's list of structs: where the field before it begins, and each of them.

    For bytes that this process has just written: it goes as deep as they do.
    """
    view = memoryview(data)
    try:
        before, at = _find_field(view, field)
        count = view[at] >> 4
        at += 1
        if count == 15:
            count, at = _varint(view, at)
        places = []
        for _ in range(count):
            end = _after_struct(data, at)
            places.append((at, end))
            at = end
    except (IndexError, struct.error) as problem:
        raise CodecError("A description of the file is cut off.") from problem
    return before, places


def _after_struct(data: bytes, at: int) -> int:
    """Where a struct of a Parquet footer ends; values are passed over, thrice as quick."""
    while head := data[at]:
        at += 1
        kind = head & 15
        if head < 16:
            _, at = _varint(data, at)
        if kind in (_I16, _I32, _I64):  # most values are
            while data[at] > 0x7F:
                at += 1
            at += 1
        elif kind not in (_TRUE, _FALSE):
            at = _after_value(data, at, kind)
    return at + 1


def _after_value(data: bytes, at: int, kind: int) -> int:
    if kind in (_I16, _I32, _I64):
        while data[at] > 0x7F:
            at += 1
        return at + 1
    if kind == _STRUCT:
        return _after_struct(data, at)
    if kind == _BINARY:
        length, at = _varint(data, at)
        return at + length
    if kind in (_LIST, _SET):
        count, of = data[at] >> 4, data[at] & 15
        at += 1
        if count == 15:
            count, at = _varint(data, at)
        for _ in range(count):
            at = _after_value(data, at, of)
        return at
    return at + (8 if kind == _DOUBLE else 1)


def _find_field(data: memoryview, wanted: int) -> tuple[int, int]:
    """Where, in a Parquet footer, the field before the wanted one begins, and that one's value."""
    at = number = before = 0
    while head := data[at]:
        last, began, at = before, at, at + 1
        kind, step = head & 15, head >> 4
        number, at = (number + step, at) if step else _zigzag(data, at)
        if number == wanted:
            return last, at
        before = began
        if kind not in (_TRUE, _FALSE):
            _, at = _value(data, at, kind, _MOST_DEPTH)
    raise CodecError("A description of the file lacks a field.")


def _struct(data: memoryview, at: int, depth: int) -> tuple[Struct, int]:
    if not depth:
        raise CodecError("A description of the file is nested too deeply.")
    found: Struct = {}
    number = 0
    while head := data[at]:
        at += 1
        kind, step = head & 15, head >> 4
        if step:
            number += step
        else:
            number, at = _zigzag(data, at)
        if kind in (_TRUE, _FALSE):
            found[number] = kind == _TRUE
        else:
            found[number], at = _value(data, at, kind, depth)
    return found, at + 1


def _value(data: memoryview, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in (_I16, _I32, _I64):
        return _zigzag(data, at)
    if kind == _BINARY:
        length, at = _varint(data, at)
        if at + length > len(data):
            raise CodecError("A description of the file points outside itself.")
        return bytes(data[at : at + length]), at + length
    if kind == _STRUCT:
        return _struct(data, at, depth - 1)
    if kind in (_LIST, _SET):
        return _list(data, at, depth - 1)
    if kind == _DOUBLE:
        return struct.unpack_from("<d", data, at)[0], at + 8
    if kind in (_BYTE, _TRUE, _FALSE):  # within a list a flag is a byte
        return data[at], at + 1
    raise CodecError("A description of the file holds a value of an unknown kind.")


def _list(data: memoryview, at: int, depth: int) -> tuple[list[Any], int]:
    if not depth:
        raise CodecError("A description of the file is nested too deeply.")
    head = data[at]
    kind, count, at = head & 15, head >> 4, at + 1
    if count == 15:
        count, at = _varint(data, at)
    if count > len(data) - at:  # each takes at least one byte
        raise CodecError("A description of the file points outside itself.")
    found = []
    for _ in range(count):
        value, at = _value(data, at, kind, depth)
        found.append(value)
    return found, at


def _varint(data: memoryview | bytes, at: int) -> tuple[int, int]:
    value = data[at]
    at += 1
    if value < 0x80:
        return value, at
    value &= 0x7F
    for shift in range(7, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise CodecError("A description of the file holds a number that never ends.")


def _zigzag(data: memoryview, at: int) -> tuple[int, int]:
    value, at = _varint(data, at)
    return value >> 1 ^ -(value & 1), at
