"""The layout of an event record: where its step and its scalars are.

A writer's records of one tag differ only in the time, the step and the value. So the first record
of a length shows where those are, and all records that are equal to it elsewhere are read at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ampwatch.importers.tables.protobuf import spans, text, whole

_DTYPES = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8"}
_STEP, _SUMMARY = 2, 5
_TAG, _SIMPLE, _TENSOR = 1, 2, 8
_KIND, _CONTENT, _FLOATS = 1, 4, 5

Bytes = npt.NDArray[np.uint8]
Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Layout:
    """A record, and which of its bytes are the step and the value."""

    record: Bytes
    is_same: npt.NDArray[np.bool_]  # the bytes that all records of this layout share
    step: Place  # empty: 0, which is not written
    scalars: tuple[tuple[str, str, Place], ...]  # each one's tag, type and place

    def fits(self, rows: Bytes) -> npt.NDArray[np.bool_]:
        """Which of these records, a row each, are of this layout."""
        same = (rows[:, self.is_same] == self.record[self.is_same]).all(axis=1)
        begin, end = self.step
        more = rows[:, begin:end] & 0x80  # whether a byte of the step is its last
        fitting: npt.NDArray[np.bool_] = same & (more == self.record[begin:end] & 0x80).all(axis=1)
        return fitting

    def steps(self, rows: Bytes) -> npt.NDArray[np.int64]:
        """The steps of such records."""
        step = np.zeros(len(rows), np.uint64)
        begin, end = self.step
        for at in range(begin, end):
            bits = (rows[:, at] & 0x7F).astype(np.uint64)
            step |= bits << np.uint64(7 * (at - begin))
        return step.view(np.int64)

    def values(self, rows: Bytes) -> list[tuple[str, npt.NDArray[np.float64]]]:
        """The values of such records, by tag."""
        return [
            (tag, np.ascontiguousarray(rows[:, slice(*place)]).view(kind)[:, 0].astype(np.float64))
            for tag, kind, place in self.scalars
        ]


def layout_of(record: bytes) -> Layout | None:
    """Where a record's step and value are; None where it is no plain scalar."""
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
        found = _scalar(record, begin, end) if number == 1 and isinstance(value, bytes) else None
        if found is None:
            return None
        scalars.append(found)
        same[slice(*found[2])] = False
    return Layout(np.frombuffer(record, np.uint8), same, step, tuple(scalars))


def _scalar(record: bytes, begin: int, end: int) -> tuple[str, str, Place] | None:
    """The tag, and the type and place of the one number."""
    tag, found = "", []
    for number, value, start, stop in spans(record, begin, end):
        if number == _TAG:
            tag = text(value)
        elif number == _SIMPLE and stop - start == 4:
            found.append(("<f4", (start, stop)))
        elif number == _TENSOR and isinstance(value, bytes):
            found += _tensor(record, start, stop)
    return (tag, *found[0]) if tag and len(found) == 1 else None


def _tensor(record: bytes, begin: int, end: int) -> list[tuple[str, Place]]:
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
