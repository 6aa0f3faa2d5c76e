"""Just enough of protocol buffers to read a message's fields."""

from __future__ import annotations

from collections.abc import Iterator

Value = int | bytes


def fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """Each protobuf field's number and value; a message that breaks off ends there."""
    return ((number, value) for number, value, _, _ in spans(data, 0, len(data)))


def spans(data: bytes, at: int, end: int) -> Iterator[tuple[int, Value, int, int]]:
    """Each protobuf field's number and value, and where in `data` the value begins and ends."""
    while at < end:
        key, at = _varint(data, at)
        kind, begin = key & 7, at
        value: Value
        if kind == 0:
            value, at = _varint(data, at)
        elif kind == 2:
            length, begin = _varint(data, at)
            at = begin + length
            value = data[begin:at]
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
            value = data[begin:at]
        else:
            return
        if at > end:
            return
        yield key >> 3, value, begin, at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while at < len(data) and shift < 70:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    return value, len(data) + 1


def text(value: Value) -> str:
    """A protobuf field's value as a string."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def whole(value: Value) -> int:
    """A protobuf field's value as a signed integer."""
    if not isinstance(value, int):
        return 0
    return value - (1 << 64) if value >= 1 << 63 else value
