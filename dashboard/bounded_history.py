"""A bounded history of a run's rows: the last rows, and few points of all.

Nothing that the eye would see is lost: an extreme stays at its step, both ends of a gap stay where
they are, and a skipped step is part of a tick. The rows themselves are in the log.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ampwatch.report.thinning import Floats, Rug, Steps

HELD_ROWS = 1 << 13  # the last ones; as many again before the first of them go
MOST_POINTS = 1 << 15  # of a column: 15 for each point that is drawn
MOST_TICKS = 1 << 16
EXACT_WIDTH = 4  # of so narrow a stretch every point is kept
_WIDEST = 1 << 60


class GrowingArray:
    """An array with room at its end; a view taken of it never changes."""

    def __init__(self, kind: type[np.generic] | np.dtype[Any]) -> None:
        self._room = np.zeros(1024, kind)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def values(self) -> NDArray[Any]:
        """The values that the growing array holds by now."""
        return self._room[: self._length]

    def extend(self, values: NDArray[Any]) -> None:
        """Add values at the end of the growing array."""
        length = self._length + len(values)
        if length > len(self._room):
            self._move(self.values, max(length, self._length + self._length // 2))
        self._room[self._length : length] = values
        self._length = length

    def keep_last(self, count: int) -> None:
        """Keep only the last values of the growing array."""
        self._move(self.values[-count:] if count else self.values[:0], count)

    def _move(self, values: NDArray[Any], room: int) -> None:
        moved = np.zeros(max(1024, room), self._room.dtype)
        moved[: len(values)] = values
        self._room, self._length = moved, len(values)


@dataclass(frozen=True, slots=True)
class Points:
    """Some points of a column's history, in the order of its rows."""

    parts: tuple[tuple[Steps, Floats], ...]
    width: int  # of a stretch: of each there are up to four points

    @property
    def step(self) -> Steps:
        """The steps of the kept points."""
        return np.concatenate([step for step, _ in self.parts])

    @property
    def values(self) -> Floats:
        """The values of the kept points."""
        return np.concatenate([values for _, values in self.parts])


class Extremes:
    """A column's points: of each stretch of steps the first, the lowest, the highest and the last.

    These are all points while they are few. When they are too many, stretches become twice as long.
    """

    def __init__(self, most: int = MOST_POINTS) -> None:
        self._most, self._width = most, 1
        self._step, self._values = GrowingArray(np.int64), GrowingArray(np.float32)  # whole ones
        self._open: tuple[Steps, Floats] = np.zeros(0, np.int64), np.zeros(0, np.float32)

    def __len__(self) -> int:
        return len(self._step) + len(self._open[0])

    def add(self, step: Steps, values: Floats) -> None:
        """Add a column's next rows to its kept points; nan is no value, and is left out."""
        known = ~np.isnan(values)
        if not known.any():
            return
        self._take(
            np.concatenate([self._open[0], step[known]]),
            np.concatenate([self._open[1], values[known]]),
        )
        while len(self) > self._most and self._width < _WIDEST:
            points, self._width = self.points, 2 * self._width
            self._step, self._values = GrowingArray(np.int64), GrowingArray(np.float32)
            self._take(points.step, points.values)

    @property
    def points(self) -> Points:
        """The points kept of a column by now; rows that are added later do not change them."""
        return Points(((self._step.values, self._values.values), self._open), self._width)

    def _take(self, step: Steps, values: Floats) -> None:
        keep, last = _extreme_points(step, values, self._width)
        closed, rest = keep[keep < last], keep[keep >= last]
        self._step.extend(step[closed])
        self._values.extend(values[closed])
        self._open = step[rest], values[rest]


def _extreme_points(step: Steps, values: Floats, width: int) -> tuple[NDArray[np.intp], int]:
    """Which points to keep of each stretch of steps, and where the last stretch begins."""
    cell = step // width
    anew = (cell[1:] != cell[:-1]) | (step[1:] < step[:-1])
    starts = np.concatenate(([0], np.flatnonzero(anew) + 1))
    ends = np.append(starts[1:], len(step))
    lengths = ends - starts
    keep = np.zeros(len(step), np.bool_)
    keep[starts] = keep[ends - 1] = True
    if lengths.max() > 2:
        for extreme in (np.minimum, np.maximum):
            level = np.repeat(extreme.reduceat(values, starts), lengths)
            there = np.flatnonzero(values == level)
            keep[there[np.searchsorted(there, starts)]] = True
    return np.flatnonzero(keep), int(starts[-1])


class SkipTicks:
    """The skipped steps as ticks, merged by stretches of steps once there are many."""

    def __init__(self, most: int = MOST_TICKS) -> None:
        self._most, self.width, self.count = most, 1, 0
        self._ticks = [GrowingArray(np.int64) for _ in range(3)]  # first, last, how many

    @property
    def ticks(self) -> Rug:
        """The ticks of skipped steps by now, in order; later ones do not change them."""
        return Rug(*(part.values for part in self._ticks))

    def add(self, steps: Steps) -> None:
        """Add the next skipped steps to the ticks."""
        self.count += len(steps)
        self._extend(steps, steps, np.ones(len(steps), np.int64))
        while len(self._ticks[0]) > self._most and self.width < _WIDEST:
            ticks, self.width = self.ticks, 2 * self.width
            self._ticks = [GrowingArray(np.int64) for _ in range(3)]
            self._extend(ticks.first, ticks.last, ticks.count)

    def _extend(self, first: Steps, last: Steps, count: Steps) -> None:
        if self.width > 1 and len(first):
            cell = first // self.width
            starts = np.concatenate(([0], np.flatnonzero(cell[1:] != cell[:-1]) + 1))
            ends = np.append(starts[1:], len(first))
            first, last, count = first[starts], last[ends - 1], np.add.reduceat(count, starts)
        for part, values in zip(self._ticks, (first, last, count), strict=True):
            part.extend(values)


def with_neighbours(inside: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """These rows of a curve and one more at each side of them."""
    wide = inside.copy()
    wide[1:] |= inside[:-1]
    wide[:-1] |= inside[1:]
    return wide


_STRETCH = 4096  # rows
_MOST_STRETCHES = 4096


class RowPlaces:
    """Where in the log the rows of a span of steps stand: the ends of each stretch of rows."""

    def __init__(self) -> None:
        self._length, self.rows = _STRETCH, 0
        self._low: list[int] = []
        self._high: list[int] = []

    def add(self, step: Steps) -> None:
        """Note the steps of the next rows of the log."""
        at = self.rows
        self.rows += len(step)
        while len(step):
            room = self._length - at % self._length
            part, step = step[:room], step[room:]
            low, high = int(part.min()), int(part.max())
            if at % self._length:
                self._low[-1], self._high[-1] = min(self._low[-1], low), max(self._high[-1], high)
            else:
                self._low.append(low)
                self._high.append(high)
            at += len(part)
            if len(self._low) > _MOST_STRETCHES:
                self._join_stretches()

    def ranges_of(self, first: int, last: int) -> list[tuple[int, int]]:
        """The ranges of rows in the log that hold a span of steps, and some rows at each side."""
        inside = (np.array(self._low) <= last) & (np.array(self._high) >= first)
        edges = np.flatnonzero(np.diff(with_neighbours(inside), prepend=False, append=False))
        ranges = (edges * self._length).reshape(-1, 2)
        return [(int(start), min(self.rows, int(stop))) for start, stop in ranges]

    def _join_stretches(self) -> None:
        self._low = [min(self._low[at : at + 2]) for at in range(0, len(self._low), 2)]
        self._high = [max(self._high[at : at + 2]) for at in range(0, len(self._high), 2)]
        self._length *= 2


@dataclass(frozen=True, slots=True)
class KeptPast:
    """What a bounded history knows of all rows, while it holds only the last ones."""

    rows: int  # how many are no longer held
    ends: tuple[int, int]  # the lowest and the highest step
    points: Mapping[str, Points]
    ticks: Rug  # of the skips
    tick_width: int
    skip_count: int


class BoundedHistory:
    """Rows by step as they come: holds the last of them, and few points of all."""

    def __init__(self, names: Iterable[str]) -> None:
        self.step, self.skips = GrowingArray(np.int64), GrowingArray(np.int64)
        self.columns = {name: GrowingArray(np.float32) for name in names}
        self.first_row = 0  # of those held
        self.starts: tuple[int, ...] = ()
        self.repeats = 0  # rows of steps that an earlier attempt had reached
        self.present: frozenset[str] = frozenset()
        # Of each column its last number, the row and the step of it.
        self.latest: dict[str, tuple[float, int, int]] = {}
        self._points = {name: Extremes() for name in self.columns}
        self._ticks = SkipTicks()
        self._ends: tuple[int, int] | None = None

    def __len__(self) -> int:
        return self.first_row + len(self.step)

    def add(self, step: Steps, columns: Mapping[str, Floats], skips: Steps) -> None:
        """Add the next rows to the history: each column's values and the skipped steps."""
        self._add_skips(skips)
        if not len(step):
            return
        at = len(self)
        held = self.step.values
        ahead = np.diff(step, prepend=held[-1] if len(held) else step[0])
        self.starts += tuple(int(back) + at for back in np.flatnonzero(ahead < 0))
        low, high = int(step.min()), int(step.max())
        before = self._ends or (low, high)
        reached = self._ends[1] if self._ends else int(step[0]) - 1
        highest = np.maximum.accumulate(np.concatenate(([reached], step[:-1])))
        self.repeats += int(np.count_nonzero(step <= highest))
        self._ends = min(low, before[0]), max(high, before[1])
        self.step.extend(step)
        for name, values in columns.items():
            self._add_values(name, at, step, values)
        if len(self.step) > 2 * HELD_ROWS:
            self._drop_old_rows()

    def fork(self, name: str, like: str) -> None:
        """Add a column to the history whose rows were the same as another's until now."""
        self.columns[name] = copy.deepcopy(self.columns[like])
        self._points[name] = copy.deepcopy(self._points[like])
        if like in self.latest:
            self.latest[name] = self.latest[like]

    @property
    def past(self) -> KeptPast | None:
        """What is kept of all rows; later rows do not change it."""
        if self._ends is None:
            return None
        return KeptPast(
            rows=self.first_row,
            ends=self._ends,
            points={name: points.points for name, points in self._points.items()},
            ticks=self._ticks.ticks,
            tick_width=self._ticks.width,
            skip_count=self._ticks.count,
        )

    # --- within ----------------------------------------------------------------------------------

    def _add_skips(self, skips: Steps) -> None:
        before = self.skips.values
        if len(before) and len(skips) and skips[0] == before[-1]:
            skips = skips[1:]  # another optimizer's, of a step that is counted already
        self.skips.extend(skips)
        self._ticks.add(skips)

    def _add_values(self, name: str, at: int, step: Steps, values: Floats) -> None:
        self.columns[name].extend(values)
        known = np.flatnonzero(np.isfinite(values))
        if len(known):
            self.present |= {name}
            last = int(known[-1])
            self.latest[name] = float(values[last]), at + last, int(step[last])
        self._points[name].add(step, values)

    def _drop_old_rows(self) -> None:
        """Drop all rows from the history but the last ones."""
        self.first_row = len(self) - HELD_ROWS
        for column in (self.step, *self.columns.values()):
            column.keep_last(HELD_ROWS)
        later = self.skips.values >= self.step.values.min()
        self.skips.keep_last(len(later) - int(np.argmax(later)) if later.any() else 0)
