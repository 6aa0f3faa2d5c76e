"""Reads the scalars in records of a TensorBoard event file: those of one layout at once.

A writer's records of one tag differ only in the time, the step and the value. So the first record
of a length shows where those are, and all records that are equal to it elsewhere are read at once.
Any other record is read field by field.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from ampwatch.importers.tables.protobuf import Value, fields, float32, spans, text, whole

_DTYPES = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8"}
_MOST_LAYOUTS = 64  # of one length; a file has a few tags
_NUMBERS = {1: ("<f", 4), 2: ("<d", 8), 3: ("<i", 4), 9: ("<q", 8)}
_STEP, _SUMMARY = 2, 5
_TAG, _SIMPLE, _TENSOR = 1, 2, 8
_KIND, _CONTENT, _FLOATS = 1, 4, 5

Bytes = npt.NDArray[np.uint8]
Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class RecordLayout:
    """A TensorBoard record, and which of its bytes are the step and the value."""

    record: Bytes
    is_same: npt.NDArray[np.bool_]  # the bytes that all records of this layout share
    step: Place  # empty: 0, which is not written
    scalars: tuple[tuple[str, str, Place], ...]  # each one's tag, type and place

    def fits(self, rows: Bytes) -> npt.NDArray[np.bool_]:
        """Which of these records, a row each, have this layout."""
        same = (rows[:, self.is_same] == self.record[self.is_same]).all(axis=1)
        begin, end = self.step
        more = rows[:, begin:end] & 0x80  # whether a byte of the step is its last
        fitting: npt.NDArray[np.bool_] = same & (more == self.record[begin:end] & 0x80).all(axis=1)
        return fitting

    def steps(self, rows: Bytes) -> npt.NDArray[np.int64]:
        """The steps in records of this layout."""
        step = np.zeros(len(rows), np.uint64)
        begin, end = self.step
        for at in range(begin, end):
            bits = (rows[:, at] & 0x7F).astype(np.uint64)
            step |= bits << np.uint64(7 * (at - begin))
        return step.view(np.int64)

    def values(self, rows: Bytes) -> list[tuple[str, npt.NDArray[np.float64]]]:
        """The values in records of this layout, by tag."""
        return [
            (tag, np.ascontiguousarray(rows[:, slice(*place)]).view(kind)[:, 0].astype(np.float64))
            for tag, kind, place in self.scalars
        ]


def layout_of(record: bytes) -> RecordLayout | None:
    """Where a TensorBoard record's step and value are; None if it is no plain scalar."""
    step, summaries, same = (0, 0), [], np.ones(len(record), np.bool_)
    for number, value, begin, end in spans(record, 0, len(record)):
        if number == _STEP and isinstance(value, int):
            step = (begin, end)
        elif number == _SUMMARY and isinstance(value, bytes):
            summaries.append((begin, end))
        elif number == 1:
            same[begin:end] = False  # the time
        else:
            return None
    if len(summaries) != 1 or step[1] - step[0] > 9:
        return None
    same[slice(*step)] = False
    scalars = []
    for number, value, begin, end in spans(record, *summaries[0]):
        found = (
            _place_of_scalar(record, begin, end)
            if number == 1 and isinstance(value, bytes)
            else None
        )
        if found is None:
            return None
        scalars.append(found)
        same[slice(*found[2])] = False
    return RecordLayout(np.frombuffer(record, np.uint8), same, step, tuple(scalars))


def _place_of_scalar(record: bytes, begin: int, end: int) -> tuple[str, str, Place] | None:
    """The tag in a TensorBoard record, and the type and place of its one number."""
    tag, found = "", []
    for number, value, start, stop in spans(record, begin, end):
        if number == _TAG:
            tag = text(value)
        elif number == _SIMPLE and stop - start == 4:
            found.append(("<f4", (start, stop)))
        elif number == _TENSOR and isinstance(value, bytes):
            found += _place_in_tensor(record, start, stop)
    return (tag, *found[0]) if tag and len(found) == 1 else None


def _place_in_tensor(record: bytes, begin: int, end: int) -> list[tuple[str, Place]]:
    found = list(spans(record, begin, end))
    of = {number: (value, (start, stop)) for number, value, start, stop in found}
    if len(of) < len(found):
        return []
    kind = _DTYPES.get(whole(of[_KIND][0])) if _KIND in of else None
    if _CONTENT in of:
        place = of[_CONTENT][1]
        fits = kind is not None and place[1] - place[0] == np.dtype(kind).itemsize
        return [(kind, place)] if kind and fits else []
    if _FLOATS in of and isinstance(of[_FLOATS][0], bytes):
        place = of[_FLOATS][1]
        return [("<f4", place)] if place[1] - place[0] == 4 else []
    return []


@dataclass(frozen=True, slots=True)
class Scalars:
    """Some scalars of one TensorBoard tag, in the file's order."""

    tag: str
    step: npt.NDArray[np.int64]
    value: npt.NDArray[np.float64]


def scalars_of_records(
    data: bytes, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> Iterator[Scalars]:
    """The scalars of TensorBoard records: those of one layout at once, the others one by one."""
    found: dict[str, list[tuple[npt.NDArray[Any], ...]]] = {}  # tag: (record, step, value)
    content = np.frombuffer(data, np.uint8)
    for length in np.unique(lengths).tolist():
        rest = np.flatnonzero(lengths == length)
        for _ in range(_MOST_LAYOUTS):
            if not len(rest):
                break
            first = int(starts[rest[0]])
            layout = layout_of(data[first : first + length])
            if layout is None:
                break
            rows = sliding_window_view(content, length)[starts[rest]]
            fits = layout.fits(rows)
            steps = layout.steps(rows[fits])
            for tag, values in layout.values(rows[fits]):
                found.setdefault(tag, []).append((rest[fits], steps, values))
            rest = rest[~fits]
        for record in rest.tolist():
            start = int(starts[record])
            for step, tag, value in scalars_of_record(data[start : start + length]):
                one = (np.array([record]), np.array([step]), np.array([value]))
                found.setdefault(tag, []).append(one)
    for tag, pieces in found.items():
        records, steps, values = (np.concatenate(column) for column in zip(*pieces, strict=True))
        order = np.argsort(records, kind="stable")
        yield Scalars(tag, steps[order], values[order])


def scalars_of_record(data: bytes) -> Iterator[tuple[int, str, float]]:
    """The scalars of one TensorBoard record: step, tag and value."""
    step, summaries = 0, []
    for number, value in fields(data):
        if number == 2:
            step = whole(value)
        elif number == 5 and isinstance(value, bytes):
            summaries.append(value)
    for summary in summaries:
        for number, value in fields(summary):
            if number == 1 and isinstance(value, bytes):
                yield from _scalar_of(step, value)


def _scalar_of(step: int, data: bytes) -> Iterator[tuple[int, str, float]]:
    tag, scalar = "", None
    for number, value in fields(data):
        if number == 1:
            tag = text(value)
        elif number == 2:
            scalar = float32(value)
        elif number == 8 and isinstance(value, bytes):
            scalar = _number_of_tensor(value)
    if tag and scalar is not None:
        yield step, tag, scalar


def _number_of_tensor(data: bytes) -> float | None:
    """The one number in a record's tensor: TensorFlow 2 writes scalars so."""
    found: dict[int, Value] = dict(fields(data))
    kind = found.get(1)
    content = found.get(4)
    if isinstance(content, bytes) and isinstance(kind, int) and kind in _NUMBERS:
        form, width = _NUMBERS[kind]
        return float(struct.unpack(form, content)[0]) if len(content) == width else None
    packed = found.get(5)  # float_val, packed or single
    if isinstance(packed, bytes) and len(packed) == 4:
        return float32(packed)
    return None
