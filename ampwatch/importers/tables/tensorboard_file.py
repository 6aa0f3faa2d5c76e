"""Reads TensorBoard event files of any writer, without TensorFlow: finds and checks the records."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from ampwatch.importers.tables.crc32c import masked_checksums
from ampwatch.importers.tables.tensorboard_records import Scalars, scalars_of_records

_MAX_RECORD_BYTES = 64 << 20
_HEAD, _TAIL = 12, 4
_LENGTH = struct.Struct("<Q")
_PART_BYTES = 4 << 20
_A_FEW = 64  # records that show whether the lengths repeat
# The first record is the version: always 24 bytes long.
_VERSION = b"brain.Event:"


def looks_like_events(head: bytes) -> bool:
    """Whether a file begins as a TensorBoard event file does."""
    return _VERSION in head[:64]


def scalars(
    read: Callable[[int], bytes], say: Callable[[str], None] = lambda _: None
) -> Iterator[Scalars]:
    """Every scalar of an event file, by tag; a truncated file ends at its last complete record.

    A damaged record is left out. After a damaged length, which shows where the next record is,
    nothing is read; `say` is called once.
    """
    for data, starts, lengths in _records(read, say):
        yield from scalars_of_records(data, starts, lengths)


def _records(
    read: Callable[[int], bytes], say: Callable[[str], None]
) -> Iterator[tuple[bytes, npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """The undamaged records of each part of an event file: its bytes, their starts and lengths."""
    rest, bad_records = b"", 0
    while part := read(_PART_BYTES):
        data = rest + part
        places, end = _whole_records(data)
        starts, lengths = places[:, 0], places[:, 1]
        heads = _heads_vouched(data, starts, lengths)
        trusted = len(starts) if heads.all() else int(np.argmin(heads))
        sound = _vouched(data, starts[:trusted], lengths[:trusted])
        yield data, starts[:trusted][sound], lengths[:trusted][sound]
        bad_records += trusted - int(sound.sum())
        if trusted < len(starts) or not _may_go_on(data, end):
            say("The length of a record is damaged; the rest of the file is not read.")
            break
        rest = data[end:]
    if bad_records:
        say(f"{bad_records} damaged records of the file are left out.")


def _whole_records(data: bytes) -> tuple[np.ndarray, int]:
    """Where each whole record of an event file starts, its length, and where the next one begins.

    A loop writes the same tags again and again, so the lengths repeat: if some records show such a
    cycle, all records that continue it are found at once.
    """
    places: list[np.ndarray] = [np.zeros((0, 2), np.int64)]
    at = 0
    while True:
        some = _some_records(data, at)
        if not len(some):
            return np.concatenate(places), at
        places.append(some)
        at = int(some[-1].sum()) + _TAIL
        more = _in_cycle(data, at, some[:, 1])
        if len(more):
            places.append(more)
            at = int(more[-1].sum()) + _TAIL


def _some_records(data: bytes, at: int) -> np.ndarray:
    """The starts and lengths of the event file's next few records, one by one."""
    places: list[tuple[int, int]] = []
    while len(places) < _A_FEW and at + _HEAD <= len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        if length > _MAX_RECORD_BYTES or at + _HEAD + length + _TAIL > len(data):
            break
        places.append((at + _HEAD, length))
        at += _HEAD + length + _TAIL
    return np.array(places, np.int64).reshape(-1, 2)


def _in_cycle(data: bytes, at: int, lengths: np.ndarray) -> np.ndarray:
    """The records that continue the cycle of lengths, as far as the event file has the same."""
    around = range(1, len(lengths) // 2 + 1)
    period = next((n for n in around if (lengths[n:] == lengths[:-n]).all()), 0)
    if not period:
        return np.zeros((0, 2), np.int64)
    cycle = lengths[-period:]
    ends = np.cumsum(cycle + _HEAD + _TAIL)
    count = (len(data) - at) // int(ends[-1])
    heads = at + int(ends[-1]) * np.arange(count)[:, None] + (ends - cycle - _HEAD - _TAIL)
    heads, expected = heads.ravel(), np.tile(cycle, count)
    same = _at(data, heads, "<u8") == expected
    going_on = len(same) if same.all() else int(np.argmin(same))
    return np.stack([heads + _HEAD, expected], axis=1)[:going_on]


def _at(data: bytes, places: np.ndarray, kind: str) -> np.ndarray:
    """The numbers of a type at these positions of the event file."""
    if not len(places):
        return np.zeros(0, kind)
    width = np.dtype(kind).itemsize
    windows = sliding_window_view(np.frombuffer(data, np.uint8), width)
    found: np.ndarray = windows[places].view(kind)[:, 0]
    return found


def _may_go_on(data: bytes, at: int) -> bool:
    """Whether the record at this position can be a whole one once more of the file is read."""
    if at + _HEAD > len(data):
        return True
    (length,) = _LENGTH.unpack_from(data, at)
    vouched = _heads_vouched(data, np.array([at + _HEAD]), np.array([length], np.uint64))
    return length <= _MAX_RECORD_BYTES and bool(vouched[0])


def _heads_vouched(data: bytes, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Whether each record's length in the event file matches the checksum after it.

    Many lengths are the same, so each is checked once.
    """
    told, which = np.unique(lengths, return_inverse=True)
    sums = masked_checksums(told.astype("<u8").tobytes(), 8 * np.arange(len(told)), 0 * told + 8)
    same: np.ndarray = sums[which] == _at(data, starts - _TAIL, "<u4")
    return same


def _vouched(data: bytes, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Whether each record's data in the event file matches the checksum after it."""
    same: np.ndarray = masked_checksums(data, starts, lengths) == _at(data, starts + lengths, "<u4")
    return same
