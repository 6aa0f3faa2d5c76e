"""Just enough of Thrift's compact protocol to read what a Parquet file declares about itself.

pyarrow tells it too, but of a file made to harm it ends the process by an exception of C++.
"""

from __future__ import annotations

import struct
from typing import Any

from ampwatch.errors import CodecError

Struct = dict[int, Any]  # a field's number -> its value

_MOST_DEPTH = 12
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)


def read_struct(data: bytes | memoryview, at: int = 0) -> tuple[Struct, int]:
    """A struct's fields, and where it ends; CodecError where the bytes are none."""
    try:
        return _struct(memoryview(data), at, _MOST_DEPTH)
    except (IndexError, struct.error) as problem:
        raise CodecError("A description of the file breaks off.") from problem


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
    raise CodecError("A description of the file holds a value of no known kind.")


def _list(data: memoryview, at: int, depth: int) -> tuple[list[Any], int]:
    if not depth:
        raise CodecError("A description of the file is nested too deeply.")
    head = data[at]
    kind, count, at = head & 15, head >> 4, at + 1
    if count == 15:
        count, at = _varint(data, at)
    if count > len(data) - at:  # each takes a byte at least
        raise CodecError("A description of the file points outside itself.")
    found = []
    for _ in range(count):
        value, at = _value(data, at, kind, depth)
        found.append(value)
    return found, at


def _varint(data: memoryview, at: int) -> tuple[int, int]:
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
