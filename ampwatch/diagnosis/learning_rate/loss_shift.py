"""Where the loss left its band in a long run and never came back.

If it jumps, the band is that of its recent past. If it creeps, the recent past follows it, so the
band is that of its best.
"""

from __future__ import annotations

import numpy as np

from ampwatch.diagnosis.column_arrays import Floats, Integers
from ampwatch.diagnosis.learning_rate import constants
from ampwatch.diagnosis.learning_rate.noise import nonzero_deviation
from ampwatch.diagnosis.learning_rate.rate_history import RatePoints
from ampwatch.diagnosis.medians import median

WINDOW_SHARE = 0.02  # of the run, or a hundred steps: the recent past
CREPT_SHARE = 0.5  # share of all progress that a creeping loss has to give back
DESCENT_SHARE = 0.2  # of a climb, given back by the end: it may be on its way down
DESCENT_PARTS = 8  # parts of a trouble, whose medians are its top and its end
WANDER_PARTS = 32  # ... and fine enough to show ups and downs
HALF_BACK = 0.5  # if less of a climb is left, the way back is nearly done, whatever its pace
MEDIAN_POINTS = 3  # whose median is no single high or low point


def find_shift(course: RatePoints) -> tuple[int, bool] | None:
    """The first point from which the loss stays above its band, and whether it is falling."""
    loss = course.rows.of("loss")
    known = np.flatnonzero(np.isfinite(loss))
    if len(known) < 6:
        return None
    value, start = loss[known], course.start[known]
    lowest_ahead = np.minimum.accumulate(value[::-1])[::-1]
    highest_ahead = np.maximum.accumulate(value[::-1])[::-1]
    at, begin = _trailing_windows(start)
    # In a healthy run nearly every point is undercut later: windows that cannot matter are not
    # sorted.
    past_lowest = np.minimum.reduceat(value, np.stack([begin, at], axis=1).ravel())[::2]
    may = lowest_ahead[at] > past_lowest
    at = at[may]
    level, spread = _levels(value, begin[may], at)
    band = constants.ROBUST_DEVIATIONS * spread
    left = np.minimum(value[at], value[at + 1]) > level + band
    left &= lowest_ahead[at] > level + band / 2
    final = median(value[-3:])
    left &= final - level > constants.RECOVERED_SHARE * (highest_ahead[at] - level)
    found = np.flatnonzero(left)
    if len(found):
        first, was = int(at[found[0]]), float(level[found[0]])
    elif (crept := _crept(value, begin[may], level, band)) is not None:
        first, was = crept
    else:
        return None
    return int(known[first]), loss_falls_back(value[first:], was)


def _crept(value: Floats, begin: Integers, level: Floats, band: Floats) -> tuple[int, float] | None:
    """A slow shift: the point from which the loss stayed above its best band, and that level.

    The band of the recent past follows a slow climb, but the best band does not. The climb has to
    give back most of what the run had gained or, without any gain, more than noise can.
    """
    if not len(level):
        return None
    best = int(np.argmin(level))
    was, wide = float(level[best]), float(band[best])
    gained = median(value[:MEDIAN_POINTS]) - was
    line = was + max(wide, CREPT_SHARE * gained)
    under = np.flatnonzero(value <= line)
    first = int(under[-1]) + 1 if len(under) else 0
    after = value[first:]
    if first <= begin[best] or len(after) < MEDIAN_POINTS:
        return None
    final = median(after[-MEDIAN_POINTS:])
    is_left = final - was > constants.RECOVERED_SHARE * (float(after.max()) - was)
    return (first, was) if is_left and not loss_wanders(value[:first], after) else None


def loss_wanders(before: Floats, after: Floats) -> bool:
    """Whether the loss went up and down as far before its shift: a reward, or one of a pair."""
    climb = float(after.max() - before.min())
    return max(_highest_rise(before), _highest_rise(-after)) > HALF_BACK * climb


def _highest_rise(values: Floats) -> float:
    """How far a loss that may have shifted rose above any earlier value, without single points."""
    part = max(MEDIAN_POINTS, len(values) // WANDER_PARTS)
    if len(values) < part:
        return 0.0
    medians = np.median(np.lib.stride_tricks.sliding_window_view(values, part), axis=1)
    return float((medians - np.minimum.accumulate(medians)).max())


def _trailing_windows(start: Integers) -> tuple[Integers, Integers]:
    """For a shift at each point of the loss, the start of the window just before the point.

    Points without a window of five points before them or without a successor are left out.
    """
    total = int(start[-1]) + constants.POINT_STEPS
    window = max(constants.WINDOW_STEPS, int(WINDOW_SHARE * total))
    at = np.arange(5, len(start) - 1)
    return at, np.minimum(np.searchsorted(start, start[at] - window), at - 5)


def _levels(value: Floats, begin: Integers, end: Integers) -> tuple[Floats, Floats]:
    """The band of the loss in each window, for a shift out of it: its median and deviation."""
    size = end - begin
    columns = np.arange(size.max(initial=1))
    at = np.minimum(begin[:, None] + columns, len(value) - 1)
    windows = np.where(columns < size[:, None], value[at], np.inf)
    level = _medians_of(windows, size)
    return level, nonzero_deviation(
        1.4826 * _medians_of(np.abs(windows - level[:, None]), size), level
    )


def _medians_of(windows: Floats, size: Integers) -> Floats:
    """For a shift of the loss, the median of each window's first `size` values."""
    ordered, row = np.sort(windows, axis=1), np.arange(len(size))
    return np.asarray((ordered[row, (size - 1) // 2] + ordered[row, size // 2]) / 2)


def loss_falls_back(after: Floats, level: float) -> bool:
    """Whether a shifted loss is coming back to this level, by more than noise and most of the way.

    A single high point is no top, and a plateau that sinks a little is no descent: half of the
    climb has to be given back, or all of it within as long again at this pace.
    """
    if len(after) < 2 * MEDIAN_POINTS:
        top, last = float(after.max()), median(after[-2:])
        return top - last > DESCENT_SHARE * (top - level)
    part = max(MEDIAN_POINTS, len(after) // DESCENT_PARTS)
    medians = np.median(np.lib.stride_tricks.sliding_window_view(after, part), axis=1)
    top, last = float(medians.max()) - level, float(medians[-1]) - level
    if not top - last > DESCENT_SHARE * top:
        return False
    third = len(after) // 3
    pace = median(after[third : 2 * third]) - median(after[-third:])
    return last < HALF_BACK * top or last < 3 * pace
