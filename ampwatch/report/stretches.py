"""Ranges of steps at which a value was not finite: charts break the line there and mark it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ampwatch.report.thinning import Steps

_MOST = 4096  # stretches of one column; of more, those closest to one another become one
_CELLS = 1024  # in a span: closer ones could not be told apart


@dataclass(frozen=True, slots=True)
class Stretches:
    """The first and the last step of each, in the order they were logged."""

    first: Steps
    last: Steps

    def __len__(self) -> int:
        return len(self.first)

    def within(self, first: int, last: int) -> Stretches:
        """Those that overlap a span, at the resolution that it can show."""
        inside = (self.last >= first) & (self.first <= last)
        some = Stretches(self.first[inside], self.last[inside])
        return some.closed((last - first + 1) / _CELLS)

    def closed(self, gap: float) -> Stretches:
        """The ranges, joined if fewer than `gap` steps are between them."""
        if len(self) < 2:
            return self
        order = np.argsort(self.first, kind="stable")
        first, reached = self.first[order], np.maximum.accumulate(self.last[order])
        begins = np.flatnonzero(np.concatenate(([True], first[1:] - reached[:-1] > max(gap, 0))))
        return Stretches(first[begins], np.maximum.reduceat(self.last[order], begins))


EMPTY = Stretches(np.zeros(0, np.int64), np.zeros(0, np.int64))


class NotFinite:
    """One column's ranges, updated with new rows."""

    def __init__(self) -> None:
        self._first: list[int] = []
        self._last: list[int] = []
        self._is_open = False  # whether the newest value was not finite
        self._newest = -1  # the step of it

    def __bool__(self) -> bool:
        return bool(self._first)

    def add(self, step: Steps, is_finite: NDArray[np.bool_]) -> None:
        """Add the next rows that have a value."""
        if not len(step):
            return
        goes_back = np.diff(step, prepend=max(self._newest, int(step[0]))) < 0
        goes_back[0] = int(step[0]) < self._newest
        before = np.concatenate(([not self._is_open], is_finite[:-1])) | goes_back
        after = np.concatenate((is_finite[1:] | goes_back[1:], [True]))
        begins, ends = step[~is_finite & before].tolist(), step[~is_finite & after].tolist()
        if len(ends) > len(begins):  # the first of them goes on from before
            self._last[-1] = ends.pop(0)
        self._first += begins
        self._last += ends
        self._is_open, self._newest = not is_finite[-1], int(step[-1])
        if len(self._first) > _MOST:
            self._merge()

    @property
    def stretches(self) -> Stretches:
        """The ranges so far."""
        if not self._first:
            return EMPTY
        return Stretches(np.array(self._first, np.int64), np.array(self._last, np.int64))

    def _merge(self) -> None:
        found = self.stretches
        gaps = np.sort(found.first[1:] - found.last[:-1])
        fewer = found.closed(float(gaps[len(gaps) // 2]))
        self._first, self._last = fewer.first.tolist(), fewer.last.tolist()
        self._is_open = False  # they are in the order of steps now


def not_finite(step: Steps, values: NDArray[np.floating]) -> Stretches:
    """The ranges of one column; `values` are all logged ones."""
    found = NotFinite()
    found.add(step, np.isfinite(values))
    return found.stretches
