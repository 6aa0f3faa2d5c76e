"""Where the row groups stand in a Parquet footer, by just enough of Thrift's compact protocol."""

from __future__ import annotations

from ampwatch.errors import CodecError
from ampwatch.ranges import Range

_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)


def structs_in(footer: bytes, field: int) -> tuple[int, list[Range]]:
    """Of a footer's list of structs: where the field before it begins, and each of them.

    For bytes that this process has just written: it goes as deep as they do.
    """
    try:
        at = number = before = 0
        while (number := number + (footer[at] >> 4)) < field:
            before, at = at, _after_value(footer, at + 1, footer[at] & 15)
        _, count, at = _list_head(footer, at + 1)
        places = []
        for _ in range(count):
            end = _after_struct(footer, at)
            places.append((at, end))
            at = end
    except IndexError as problem:
        raise CodecError("A Parquet file's footer is cut off.") from problem
    return before, places


def _after_struct(footer: bytes, at: int) -> int:
    while head := footer[at]:
        at += 1
        if head < 16:  # the field's number follows
            _, at = _varint(footer, at)
        kind = head & 15
        if kind not in (_TRUE, _FALSE):  # in a struct a flag has no value
            at = _after_value(footer, at, kind)
    return at + 1


def _after_value(footer: bytes, at: int, kind: int) -> int:
    if kind in (_I16, _I32, _I64):  # most values are
        while footer[at] > 0x7F:
            at += 1
        return at + 1
    if kind == _STRUCT:
        return _after_struct(footer, at)
    if kind == _BINARY:
        length, at = _varint(footer, at)
        return at + length
    if kind in (_LIST, _SET):
        of, count, at = _list_head(footer, at)
        for _ in range(count):
            at = _after_value(footer, at, of)
        return at
    return at + (8 if kind == _DOUBLE else 1)


def _list_head(footer: bytes, at: int) -> tuple[int, int, int]:
    """The kind of a list's values, how many there are, and where they begin."""
    head, at = footer[at], at + 1
    count, at = _varint(footer, at) if head >> 4 == 15 else (head >> 4, at)
    return head & 15, count, at


def _varint(footer: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while (byte := footer[at]) > 0x7F:
        value |= (byte & 0x7F) << shift
        shift += 7
        at += 1
    return value | byte << shift, at + 1
