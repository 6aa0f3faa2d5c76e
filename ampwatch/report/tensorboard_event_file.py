"""TensorBoard's event files, written without TensorFlow: length, checksum, event, checksum.

All events of one tag have the same length, so their bytes are the rows of a matrix, and all
checksums are computed at once, column by column. `importers/tables` reads such files.
"""

from __future__ import annotations

import functools
import struct
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from ampwatch.files import draft_of

Bytes = NDArray[np.uint8]

_VERSION = b"brain.Event:2"
_ROWS_AT_ONCE = 1 << 16
_CASTAGNOLI = 0x82F63B78  # CRC-32C, bits reversed
_MASK = 0xA282EAD8  # a checksum of bytes that hold checksums would be weak: they are masked
_DT_STRING = 7


class EventStream:
    """Events written to a file one after the other; TensorBoard reads it while it grows."""

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = path.open("wb")
        self._write(_field(3, _VERSION), time_s=0.0)

    def flush(self) -> None:
        """Let readers see what was written."""
        self._file.flush()

    def close(self) -> None:
        """End the event file."""
        self._file.close()

    def scalars(
        self,
        tag: str,
        steps: NDArray[np.int64],
        times_s: NDArray[np.float64],
        values: NDArray[np.float64],
    ) -> None:
        """Values of a tag, an event each; steps are not negative."""
        for start in range(0, len(steps), _ROWS_AT_ONCE):
            part = slice(start, start + _ROWS_AT_ONCE)
            events = _scalar_events(_named(tag), steps[part], times_s[part], values[part])
            self._file.write(_framed(events).tobytes())

    def text(self, tag: str, step: int, time_s: float, text: str) -> None:
        """A text in Markdown, shown by TensorBoard's page of texts."""
        shape = _field(2, _field(2, _varint_field(1, 1)))
        tensor = _varint_field(1, _DT_STRING) + shape + _field(8, _named(text))
        plugin = _field(9, _field(1, _field(1, b"text")))
        value = _field(1, _named(tag)) + _field(8, tensor) + plugin
        self._write(_varint_field(2, step) + _field(5, _field(1, value)), time_s)

    def _write(self, event: bytes, time_s: float) -> None:
        whole = b"\x09" + struct.pack("<d", time_s) + event
        self._file.write(_framed(np.frombuffer(whole, np.uint8)[None, :]).tobytes())


class EventFile(EventStream):
    """One event file; it appears whole under its name when it is closed without an error."""

    def __init__(self, path: Path) -> None:
        self._replacing = draft_of(path)
        super().__init__(self._replacing.__enter__())

    def __enter__(self) -> EventFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
        self._replacing.__exit__(kind, error, trace)


def _named(text: str) -> bytes:
    return text.encode("utf-8", "replace")


# --- events --------------------------------------------------------------------------------------


def _scalar_events(
    tag: bytes,
    steps: NDArray[np.int64],
    times_s: NDArray[np.float64],
    values: NDArray[np.float64],
) -> Bytes:
    """Each event as a row: time, step, and a summary of one value, which ends the row."""
    value = _field(1, tag) + b"\x15" + bytes(4)
    summary = _field(5, _field(1, value))
    with np.errstate(over="ignore"):
        numbers = values.astype("<f4").view(np.uint8).reshape(-1, 4)
    count = len(steps)
    head = np.frombuffer(summary[:-4], np.uint8)
    parts = (
        _repeated(b"\x09", count),
        times_s.astype("<f8").view(np.uint8).reshape(-1, 8),
        _repeated(b"\x10", count),
        _varints(steps),
        np.broadcast_to(head, (count, len(head))),
        numbers,
    )
    return np.ascontiguousarray(np.concatenate(parts, axis=1))


def _repeated(data: bytes, count: int) -> Bytes:
    return np.broadcast_to(np.frombuffer(data, np.uint8), (count, len(data)))


def _varints(numbers: NDArray[np.int64]) -> Bytes:
    """Numbers of seven bits a byte, all as long as the longest: leading zeros are allowed."""
    width = max(1, -(-int(numbers.max()).bit_length() // 7))
    shifts = 7 * np.arange(width)
    found = (numbers[:, None] >> shifts) & 0x7F
    found[:, :-1] |= 0x80
    return found.astype(np.uint8)


def _varint(number: int) -> bytes:
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint_field(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


# --- records -------------------------------------------------------------------------------------


def _framed(events: Bytes) -> Bytes:
    """Each row with its length before it and both checksums."""
    count, length = events.shape
    size = np.frombuffer(struct.pack("<Q", length), np.uint8)[None, :]
    head = np.broadcast_to(np.concatenate([size, _checksums(size)], axis=1), (count, 12))
    return np.concatenate([head, events, _checksums(events)], axis=1)


def _checksums(rows: Bytes) -> Bytes:
    """Each row's masked CRC-32C, as four bytes."""
    table, crc = _table(), np.full(len(rows), 0xFFFFFFFF, np.uint32)
    for column in rows.T:
        crc = table[(crc ^ column) & 0xFF] ^ (crc >> 8)
    crc = ~crc
    masked = ((crc >> 15) | (crc << 17)) + np.uint32(_MASK)
    return np.asarray(masked.astype("<u4")[:, None].view(np.uint8))


@functools.cache
def _table() -> NDArray[np.uint32]:
    values = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        values = np.where(values & 1, (values >> 1) ^ np.uint32(_CASTAGNOLI), values >> 1)
    return values.astype(np.uint32)
