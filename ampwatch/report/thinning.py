"""Fewer points for charts: a line keeps its extremes, no event and no stretch is lost."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

MAX_POINTS = 2000
MIN_POINTS = 8  # of each stretch of a broken line
HOLE_SHARE = 0.01  # of the axis: steps missing for longer break a line
MISSED_SHARE = 2.5  # of the usual interval between logged steps
RUG_CELLS = 4096  # finer than any screen's columns: no column that holds an event stays empty

Floats = NDArray[np.float32]
Steps = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Line:
    """Points to draw in this order; a value that is nan breaks the line."""

    x: NDArray[np.float64]
    y: Floats


@dataclass(frozen=True, slots=True)
class Rug:
    """Events merged by cell of the axis: the first and the last of each, and how many it holds."""

    first: Steps
    last: Steps
    count: Steps


NO_LINE = Line(np.zeros(0), np.zeros(0, np.float32))


def hole_of(first: int, last: int) -> float:
    """How many missing steps in a row are visible on an axis from first to last."""
    return max(2.0, (last - first) * HOLE_SHARE)


def broken_line(
    step: Steps, values: Floats, hole: float = 0.0, *, inf_breaks: bool = False
) -> Line:
    """At most `MAX_POINTS` of the known values, broken where values are missing for long.

    No line is drawn across steps that were not logged or whose values are not finite. In sampled
    values, `hole` missing steps in a row are usual; with `inf_breaks` nan is no sample of a value,
    and a single inf, which is one, breaks the line.
    """
    parts = _parts(step, values, hole, inf_breaks=inf_breaks)
    count = sum(len(x) for x, _ in parts)
    if count <= MAX_POINTS:
        return _joined(parts)
    room = max(0, MAX_POINTS - MIN_POINTS * len(parts))
    return _joined([thinned(x, y, MIN_POINTS - 1 + room * len(x) // count) for x, y in parts])


def stepped_line(step: Steps, values: Floats, logged: Steps | None = None) -> Line:
    """The points where a stepped curve changes, and both ends of each part; thinned if many.

    With the log's steps, in order, it also breaks where any of them lacks a value.
    """
    pieces = []
    for x, y in _parts(step, values) if logged is None else _told_parts(step, values, logged):
        keep = np.concatenate(([True], np.diff(y) != 0))
        keep[-1] = True
        some_x, some_y = thinned(x[keep], y[keep], MAX_POINTS - 2)
        # The last step is kept, whatever thinning chose.
        pieces.append((np.append(some_x, x[-1]), np.append(some_y, y[-1])))
    return _joined(pieces)


def held_line(step: Steps, values: Floats, logged: Steps) -> Line:
    """Stairs across the holes of a stepped curve in which steps were logged, but not its value."""
    pieces: list[tuple[Steps, Floats]] = []
    if not len(logged):
        return NO_LINE
    hole = max(hole_of(int(logged[0]), int(logged[-1])), usual_hole(logged))
    parts = _told_parts(step, values, logged)
    after = [(x[0], y[0]) for x, y in parts[1:]]
    if parts:
        after.append((logged[-1], parts[-1][1][-1]))
    for (x, y), (end, value) in zip(parts, after, strict=True):
        inside = logged[np.searchsorted(logged, x[-1]) : np.searchsorted(logged, end) + 1]
        if end > x[-1] and len(inside) > 1 and np.diff(inside).max() <= hole:
            pieces.append((np.array([x[-1], end]), np.array([y[-1], value], np.float32)))
    return _joined(pieces)


def _told_parts(step: Steps, values: Floats, logged: Steps) -> list[tuple[Steps, Floats]]:
    """The parts of a curve in which each logged step has a value."""
    finite = np.isfinite(values)
    step, values = step[finite], values[finite]
    if not len(step):
        return []
    after = np.searchsorted(logged, step[:-1], side="right")
    between = np.searchsorted(logged, step[1:]) > after
    cuts = np.flatnonzero(between | (np.diff(step) < 0)) + 1
    return list(zip(np.split(step, cuts), np.split(values, cuts), strict=True))


def thinned(step: Steps, values: Floats, most: int = MAX_POINTS) -> tuple[Steps, Floats]:
    """At most `most` points, extremes included."""
    if len(step) <= most:
        return step, values
    from tsdownsample import MinMaxLTTBDownsampler

    keep = MinMaxLTTBDownsampler().downsample(np.ascontiguousarray(values), n_out=most)
    return step[keep], values[keep]


def coarser(line: Line, most: int) -> Line:
    """The same line with about that many points, for charts with many lines."""
    if len(line.x) <= most:
        return line
    breaks = np.flatnonzero(np.isnan(line.y))
    pieces = []
    for part in np.split(np.arange(len(line.x)), breaks):
        kept = part[~np.isnan(line.y[part])]
        if len(kept):
            share = max(MIN_POINTS, most * len(kept) // len(line.x))
            x: Steps = line.x[kept].astype(np.int64)
            pieces.append(thinned(x, line.y[kept], share))
    return _joined(pieces)


def merged(events: Steps, first: int, last: int) -> Rug:
    """The events thinned for a chart: merged to ticks that its axis from first to last can show.

    A cell is finer than a column of pixels, so it lies in one or two of them: drawn at its first
    and its last event, no column that holds an event stays empty.
    """
    return merged_ticks(Rug(events, events, np.ones(len(events), np.int64)), first, last)


def merged_ticks(ticks: Rug, first: int, last: int) -> Rug:
    """Ticks of events merged again for an axis, in cells no wider than those of the axis."""
    within = np.flatnonzero((ticks.last >= first) & (ticks.first <= last))
    order = within[np.argsort(ticks.first[within], kind="stable")]
    if not len(order):
        return Rug(ticks.first[:0], ticks.last[:0], ticks.count[:0])
    width = max(1.0, (last - first + 1) / RUG_CELLS)
    cell = ((ticks.first[order] - first) / width).astype(np.int64)
    starts = np.flatnonzero(np.concatenate(([True], cell[1:] != cell[:-1])))
    return Rug(
        ticks.first[order][starts],
        np.maximum.reduceat(ticks.last[order], starts),
        np.add.reduceat(ticks.count[order], starts),
    )


def _parts(
    step: Steps, values: Floats, usual: float = 0.0, *, inf_breaks: bool = False
) -> list[tuple[Steps, Floats]]:
    """The parts between holes, which are visible numbers of missing steps, or steps back."""
    finite = np.isfinite(values)
    broken = np.cumsum(np.isinf(values) & inf_breaks)[finite]
    if not finite.all():
        step, values = step[finite], values[finite]
    if not len(step):
        return []
    ahead = np.diff(step)
    hole = max(usual, hole_of(int(step.min()), int(step.max())), usual_hole(step))
    cuts = np.flatnonzero((ahead > hole) | (ahead < 0) | (np.diff(broken) > 0)) + 1
    return list(zip(np.split(step, cuts), np.split(values, cuts), strict=True))


def usual_hole(step: Steps) -> float:
    """The usual number of missing steps in this log: 2.5 of its usual intervals."""
    ahead = np.diff(step)
    usual = float(np.median(ahead[ahead > 0])) if (ahead > 0).any() else 0.0
    return MISSED_SHARE * usual if usual > 1 else 0.0


def _joined(pieces: list[tuple[Steps, Floats]]) -> Line:
    """The parts of a line, joined with a break between each two."""
    if not pieces:
        return NO_LINE
    xs = [np.append(x, x[-1]) for x, _ in pieces]
    ys = [np.append(y, np.float32(np.nan)) for _, y in pieces]
    return Line(np.concatenate(xs)[:-1].astype(np.float64), np.concatenate(ys)[:-1])


def close_parts(first: Steps, last: Steps, most: int) -> list[slice]:
    """Which entries to join so that so many are left: those with the narrowest gaps between."""
    if not len(first):
        return []
    gaps = first[1:] - np.maximum.accumulate(last)[:-1]
    apart = np.flatnonzero(gaps > 1)
    if len(apart) >= most:
        apart = _widest(gaps, apart, most - 1)
    edges = [0, *(apart + 1).tolist(), len(first)]
    return [slice(a, b) for a, b in pairwise(edges)]


def _widest(gaps: Steps, among: Steps, count: int) -> Steps:
    """Where the widest gaps are; of gaps that are as wide as one another some, evenly spread."""
    least = np.sort(gaps[among])[len(among) - count]
    wider, as_wide = among[gaps[among] > least], among[gaps[among] == least]
    rest = count - len(wider)
    spread = (2 * np.arange(rest) + 1) * len(as_wide) // (2 * rest)
    return np.sort(np.concatenate([wider, as_wide[spread]]))


# --- stretches of steps at which a value is not finite --------------------------------------------

FINITE, NAN, INF, MINUS_INF = -1, 0, 1, 2  # kinds of values
_MOST_STRETCHES = 4096  # stretches of one column; of more, those closest to one another become one
_STRETCH_CELLS = 1024  # in a span: closer ones could not be told apart


@dataclass(frozen=True, slots=True)
class Stretches:
    """The first and the last step of each, and what was logged, in the order they were logged."""

    first: Steps
    last: Steps
    kind: NDArray[np.int8]  # NAN, INF or MINUS_INF; NAN of those that were joined

    def __len__(self) -> int:
        return len(self.first)

    def within(self, first: int, last: int) -> Stretches:
        """Those that overlap a span, at the resolution that it can show."""
        inside = (self.last >= first) & (self.first <= last)
        some = Stretches(self.first[inside], self.last[inside], self.kind[inside])
        return some.closed((last - first + 1) / _STRETCH_CELLS)

    def closed(self, gap: float) -> Stretches:
        """The ranges, joined if fewer than `gap` steps are between them."""
        if len(self) < 2:
            return self
        order = np.argsort(self.first, kind="stable")
        first, reached = self.first[order], np.maximum.accumulate(self.last[order])
        begins = np.flatnonzero(np.concatenate(([True], first[1:] - reached[:-1] > max(gap, 0))))
        kind = self.kind[order]
        lowest, highest = np.minimum.reduceat(kind, begins), np.maximum.reduceat(kind, begins)
        kinds = np.where(lowest == highest, lowest, NAN).astype(np.int8)
        return Stretches(first[begins], np.maximum.reduceat(self.last[order], begins), kinds)


EMPTY = Stretches(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int8))


class NotFinite:
    """One column's ranges, updated with new rows."""

    def __init__(self) -> None:
        self._first: list[int] = []
        self._last: list[int] = []
        self._kind: list[int] = []
        self._newest_kind = FINITE  # of the newest value
        self._newest = -1  # the step of it

    def __bool__(self) -> bool:
        return bool(self._first)

    def add(self, step: Steps, values: NDArray[np.floating]) -> None:
        """Add the next rows that have a value."""
        if not len(step):
            return
        goes_back = np.diff(step, prepend=max(self._newest, int(step[0]))) < 0
        goes_back[0] = int(step[0]) < self._newest
        kind = _kinds(values)
        is_other = np.diff(kind, prepend=self._newest_kind) != 0
        starts = (kind != FINITE) & (is_other | goes_back)
        stops = (kind != FINITE) & np.concatenate((is_other[1:] | goes_back[1:], [True]))
        begins, ends = step[starts].tolist(), step[stops].tolist()
        if len(ends) > len(begins):  # the first of them goes on from before
            self._last[-1] = ends.pop(0)
        self._first += begins
        self._last += ends
        self._kind += kind[starts].tolist()
        self._newest_kind, self._newest = int(kind[-1]), int(step[-1])
        if len(self._first) > _MOST_STRETCHES:
            self._merge()

    @property
    def stretches(self) -> Stretches:
        """The ranges so far."""
        if not self._first:
            return EMPTY
        first, last = np.array(self._first, np.int64), np.array(self._last, np.int64)
        return Stretches(first, last, np.array(self._kind, np.int8))

    def _merge(self) -> None:
        stretches = self.stretches
        gaps = np.sort(stretches.first[1:] - stretches.last[:-1])
        fewer = stretches.closed(float(gaps[len(gaps) // 2]))
        self._first, self._last = fewer.first.tolist(), fewer.last.tolist()
        self._kind = fewer.kind.tolist()
        self._newest_kind = FINITE  # they are in the order of steps now


def not_finite(step: Steps, values: NDArray[np.floating]) -> Stretches:
    """The stretches of one column that are not finite; `values` are all logged ones."""
    summary = NotFinite()
    summary.add(step, values)
    return summary.stretches


def _kinds(values: NDArray[np.floating]) -> NDArray[np.int8]:
    is_kind = [np.isnan(values), values == np.inf, values == -np.inf]
    return np.select(is_kind, [NAN, INF, MINUS_INF], FINITE).astype(np.int8)
