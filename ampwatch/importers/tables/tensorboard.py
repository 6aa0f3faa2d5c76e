"""TensorBoard event files, of any writer, without TensorFlow: length, data, checksums."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

from ampwatch.importers.tables.protobuf import Value, fields, float32, text, whole

_MAX_RECORD_BYTES = 64 << 20
_HEAD, _TAIL = 12, 4
# The first record is the version: 24 bytes long, and so are all that are known.
_VERSION = b"brain.Event:"
_DTYPES = {1: ("<f", 4), 2: ("<d", 8), 3: ("<i", 4), 9: ("<q", 8)}


def looks_like_events(head: bytes) -> bool:
    """Whether a file begins as an event file does."""
    return _VERSION in head[:64]


def scalars(read: Callable[[int], bytes]) -> Iterator[tuple[int, str, float]]:
    """Every scalar as step, tag and value; a file cut off ends at its last whole record."""
    while len(head := read(_HEAD)) == _HEAD:
        (length,) = struct.unpack("<Q", head[:8])
        if length > _MAX_RECORD_BYTES:
            return
        data = read(length + _TAIL)
        if len(data) < length + _TAIL:
            return
        yield from _event(data[:length])


def _event(data: bytes) -> Iterator[tuple[int, str, float]]:
    step, summaries = 0, []
    for number, value in fields(data):
        if number == 2:
            step = whole(value)
        elif number == 5 and isinstance(value, bytes):
            summaries.append(value)
    for summary in summaries:
        for number, value in fields(summary):
            if number == 1 and isinstance(value, bytes):
                yield from _scalar(step, value)


def _scalar(step: int, data: bytes) -> Iterator[tuple[int, str, float]]:
    tag, scalar = "", None
    for number, value in fields(data):
        if number == 1:
            tag = text(value)
        elif number == 2:
            scalar = float32(value)
        elif number == 8 and isinstance(value, bytes):
            scalar = _tensor(value)
    if tag and scalar is not None:
        yield step, tag, scalar


def _tensor(data: bytes) -> float | None:
    """A tensor's one number, as TensorFlow 2 writes scalars."""
    found: dict[int, Value] = dict(fields(data))
    kind = found.get(1)
    content = found.get(4)
    if isinstance(content, bytes) and isinstance(kind, int) and kind in _DTYPES:
        form, width = _DTYPES[kind]
        return float(struct.unpack(form, content)[0]) if len(content) == width else None
    packed = found.get(5)  # float_val, packed or single
    if isinstance(packed, bytes) and len(packed) == 4:
        return float32(packed)
    return None
