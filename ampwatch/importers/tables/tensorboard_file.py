"""Reads the scalars of TensorBoard event files of any writer, without TensorFlow.

A file is a row of records: a length, an event of that length, and a checksum after each of them. A
writer's events of one tag differ only in the time, the step and the value. So one event shows where
those are in all others that are equal to it elsewhere, and these are read at once.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from ampwatch.importers.tables.protobuf import spans, text, whole

_MAX_RECORD_BYTES = 64 << 20
_HEAD, _TAIL = struct.Struct("<QI"), 4
_PART_BYTES = 4 << 20
# The first record is the version: always 24 bytes long.
_VERSION = b"brain.Event:"
_MOST_LAYOUTS = 64  # of one length; a file has a few tags
_TIME, _STEP, _SUMMARY = 1, 2, 5
_TAG, _SIMPLE, _TENSOR = 1, 2, 8
_KIND, _CONTENT, _FLOATS = 1, 4, 5
_NUMBERS = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8"}

Integers = npt.NDArray[np.int64]
Registers = npt.NDArray[np.uint32]
Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Scalars:
    """Some scalars of one TensorBoard tag, in the file's order."""

    tag: str
    step: Integers
    value: npt.NDArray[np.float64]


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
    rest, bad_records = b"", 0
    while part := read(_PART_BYTES):
        data = rest + part
        places, end, is_damaged = _whole_records(data)
        starts, lengths = places[:, 0], places[:, 1]
        sound = masked_checksums(data, starts, lengths) == _told_checksums(data, starts + lengths)
        yield from _scalars_in(data, starts[sound], lengths[sound])
        bad_records += int((~sound).sum())
        if is_damaged:
            say("The length of a record is damaged; the rest of the file is not read.")
            break
        rest = data[end:]
    if bad_records:
        say(f"{bad_records} damaged records of the file are left out.")


def _told_checksums(data: bytes, places: Integers) -> Registers:
    """The checksums that the event file holds at these places."""
    windows = sliding_window_view(np.frombuffer(data.ljust(_TAIL, b"\0"), np.uint8), _TAIL)
    sums: Registers = windows[places].view("<u4")[:, 0]
    return sums


def _whole_records(data: bytes) -> tuple[Integers, int, bool]:
    """Each whole record's start and length, where they end, and whether a damaged length follows.

    A length is checked by its checksum.
    """
    places: list[Place] = []
    checksums_of = dict[int, int]()  # of a length; many are the same
    start, is_damaged = _HEAD.size, False
    while start <= len(data):
        length, checksum = _HEAD.unpack_from(data, start - _HEAD.size)
        if length not in checksums_of:
            checksums_of[length] = _checksum_of_length(length)
        is_damaged = checksum != checksums_of[length] or length > _MAX_RECORD_BYTES
        end = start + length + _TAIL
        if is_damaged or end > len(data):
            break
        places.append((start, length))
        start = end + _HEAD.size
    return np.array(places, np.int64).reshape(-1, 2), start - _HEAD.size, is_damaged


# --- what an event says ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where an event's step and values are, and which bits all events of its kind share."""

    shared: npt.NDArray[np.uint8]
    step: Place  # empty: 0, which is not written
    scalars: Sequence[tuple[str, str, Place]]  # each one's tag, type and place

    def steps(self, rows: npt.NDArray[np.uint8]) -> Integers:
        """The steps in events of this layout."""
        step = np.zeros(len(rows), np.uint64)
        for digit, at in enumerate(range(*self.step)):
            step |= (rows[:, at] & 0x7F).astype(np.uint64) << np.uint64(7 * digit)
        return step.view(np.int64)


def _scalars_in(data: bytes, starts: Integers, lengths: Integers) -> Iterator[Scalars]:
    """The scalars of events: those of one layout at once."""
    series: dict[str, list[tuple[npt.NDArray[Any], ...]]] = {}  # tag: (record, step, value)
    content = np.frombuffer(data, np.uint8)
    for length in np.unique(lengths[lengths > 0]).tolist():
        windows = sliding_window_view(content, length)
        rest, layouts = np.flatnonzero(lengths == length), 0
        while len(rest):
            first = windows[starts[rest[0]]]
            layout = _layout_of(first.tobytes())
            layouts += 1
            alike = rest if layout.scalars and layouts <= _MOST_LAYOUTS else rest[:1]
            rows = windows[starts[alike]]
            fits = ~((rows ^ first) & layout.shared).any(axis=1)
            rows = rows[fits]
            for tag, kind, place in layout.scalars:
                values = np.ascontiguousarray(rows[:, slice(*place)]).view(kind)[:, 0]
                piece = alike[fits], layout.steps(rows), values.astype(np.float64)
                series.setdefault(tag, []).append(piece)
            rest = np.concatenate((alike[~fits], rest[len(alike) :]))
    for tag, pieces in series.items():
        records, steps, values = (np.concatenate(column) for column in zip(*pieces, strict=True))
        order = np.argsort(records, kind="stable")
        yield Scalars(tag, steps[order], values[order])


def _layout_of(event: bytes) -> _Layout:
    """Where an event's step and its values are."""
    step, summaries, shared = (0, 0), [], np.full(len(event), 0xFF, np.uint8)
    for number, value, begin, end in spans(event, 0, len(event)):
        if number == _TIME and end - begin == 8:
            shared[begin:end] = 0
        elif number == _STEP and isinstance(value, int):
            step = (begin, end)
        elif number == _SUMMARY and isinstance(value, bytes):
            summaries.append((begin, end))
    shared[slice(*step)] = 0x80  # whether a byte of the step is its last
    values = [
        scalar
        for summary in summaries
        for number, value, begin, end in spans(event, *summary)
        if number == 1 and isinstance(value, bytes)
        if (scalar := _place_of_scalar(event, begin, end)) is not None
    ]
    for _, _, place in values:
        shared[slice(*place)] = 0
    return _Layout(shared, step, values)


def _place_of_scalar(event: bytes, begin: int, end: int) -> tuple[str, str, Place] | None:
    """A value's tag, and the type and place of its one number; None for an image or the like."""
    tag, place = "", None
    for number, value, start, stop in spans(event, begin, end):
        if number == _TAG:
            tag = text(value)
        elif number == _SIMPLE and isinstance(value, bytes) and stop - start == 4:
            place = "<f4", (start, stop)
        elif number == _TENSOR and isinstance(value, bytes):
            place = _place_in_tensor(event, start, stop)
    return (tag, *place) if tag and place is not None else None


def _place_in_tensor(event: bytes, begin: int, end: int) -> tuple[str, Place] | None:
    """The type and place of the one number in a tensor: TensorFlow 2 writes scalars so."""
    of = {number: (value, (start, stop)) for number, value, start, stop in spans(event, begin, end)}
    kind = _NUMBERS.get(whole(of[_KIND][0])) if _KIND in of else None
    number = _CONTENT if _CONTENT in of and kind else _FLOATS  # packed or single
    value, place = of.get(number, (0, (0, 0)))
    form = kind if number == _CONTENT and kind else "<f4"
    fits = isinstance(value, bytes) and len(value) == np.dtype(form).itemsize
    return (form, place) if fits else None


# --- checksums ------------------------------------------------------------------------------------

# CRC-32C, which neither zlib nor Arrow has. Records of one length pass through the table side by
# side; a long one is cut into lanes that do. A register that starts with ones is the same as a
# message whose first four bytes are inverted, and zeros before it then change nothing.
_POLYNOMIAL, _MASK_DELTA = 0x82F63B78, 0xA282EAD8
_ONES, _LANE = np.uint32(0xFFFFFFFF), 1024


def masked_checksums(data: bytes, starts: Integers, lengths: Integers) -> Registers:
    """The CRC-32C of each slice of `data`, masked as TensorFlow stores it."""
    crcs = checksums(data, starts, lengths)
    rotated = (crcs >> np.uint32(15)) | (crcs << np.uint32(17))
    masked: Registers = rotated + np.uint32(_MASK_DELTA)
    return masked


def checksums(data: bytes, starts: Integers, lengths: Integers) -> Registers:
    """The CRC-32C of each slice of `data`."""
    content = np.frombuffer(data, np.uint8)
    registers = np.full(len(starts), _ONES)
    for length in np.unique(lengths[lengths > 0]).tolist():
        alike = np.flatnonzero(lengths == length)
        if length > _LANE:
            registers[alike] = [_long(content[at : at + length]) for at in starts[alike].tolist()]
        else:
            rows = sliding_window_view(content, length)[starts[alike]]
            registers[alike] = _after(registers[alike], rows)
    crcs: Registers = registers ^ _ONES
    return crcs


def _after(registers: Registers, rows: npt.NDArray[np.uint8]) -> Registers:
    """The CRC registers after a row of bytes each."""
    table = _table()
    for column in np.ascontiguousarray(rows.T):
        registers = table[(registers ^ column) & np.uint32(0xFF)] ^ (registers >> np.uint32(8))
    return registers


def _long(message: npt.NDArray[np.uint8]) -> int:
    """The CRC register after one long message, cut into lanes."""
    lanes = np.zeros((-(-len(message) // _LANE), _LANE), np.uint8)
    lanes.ravel()[-len(message) :] = message
    lanes.ravel()[-len(message) :][:4] ^= 0xFF
    register, (first, second, third, fourth) = 0, _after_lane()
    for lane in _after(np.zeros(len(lanes), np.uint32), lanes).tolist():
        register = (
            first[register & 0xFF] ^ second[register >> 8 & 0xFF] ^ third[register >> 16 & 0xFF]
            ^ fourth[register >> 24] ^ lane
        )  # fmt: skip
    return register


@functools.cache
def _table() -> Registers:
    """What a byte does to the CRC register."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(_POLYNOMIAL), table >> 1)
    return table


@functools.cache
def _after_lane() -> list[list[int]]:
    """What each byte of a CRC register becomes after a lane of zeros."""
    places = np.array([[0], [8], [16], [24]], np.uint32)
    states = (np.arange(256, dtype=np.uint32) << places).ravel()
    after: list[list[int]]
    after = _after(states, np.zeros((len(states), _LANE), np.uint8)).reshape(4, 256).tolist()
    return after


def _checksum_of_length(length: int) -> int:
    return int(masked_checksums(struct.pack("<Q", length), np.array([0]), np.array([8]))[0])
