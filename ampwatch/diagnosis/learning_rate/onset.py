"""The onset: when a trouble began that still lasts at the end of the record.

In a run from random weights the tests compare with the first loss. Later, and in a resumed run,
they can only compare with the recent past. Nothing that the run recovered from is an onset.

In a long run the loss leaves its band and never comes back. If it jumps, the band is that of its
recent past. If it creeps, the recent past follows it, so the band is that of its best.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ampwatch.diagnosis.column_arrays import Floats, Integers, Mask, known_of, median
from ampwatch.diagnosis.learning_rate import constants
from ampwatch.diagnosis.learning_rate.noise import (
    calmest_noise,
    loss_noise,
    nonzero_deviation,
    trailing_medians,
)
from ampwatch.diagnosis.learning_rate.rate_history import RatePoints, RateRows, RateState

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


SKIPS_IN_A_ROW = 3
COLLAPSED_SHARE = 1 / 3  # of the last 30 steps: what is left of a run that fell
CLIMB = 1.5  # times the first loss
DOUBLED = 2.0  # times the first loss, in a record too short to tell a climb from noise
# Share of the progress that is lost; the progress is at least a tenth of the first loss.
RELAPSE_SHARE, RELAPSE_PROGRESS = 0.5, 0.1
MEDIAN_NOISE = 0.4  # a median of ten is as noisy as 1.25 / sqrt(10) of one
# This share of the first loss is left after a hundred steps. This is no trouble by itself: stable
# runs with updates over the limit and weights four times as large had come down to 0.51 or less.
LITTLE_LEARNT, LITTLE_STEPS = 0.6, 100
# Share of the first loss; less than this was gained since the first quarter.
STALLED, STALLED_PROGRESS = 0.7, 0.1
BEYOND_WEIGHTS = 1.0


class OnsetSign(str, enum.Enum):
    """The sign by which an onset of trouble was found."""

    NOT_FINITE = "the loss was not finite"
    SKIPS = "three steps in a row were skipped"
    CLIMB = "the loss was 1.5 times its first value"
    DOUBLED = "the loss is twice its first value"
    RELAPSE = "the loss gave back more than half of its progress"
    IDLE = "the loss hardly fell"
    SHIFT = "the loss left the band of its recent past"
    BEYOND = "an update was larger than the weights that it changed"


@dataclass(frozen=True, slots=True)
class Onset:
    """Where a trouble began that lasts to the end of the record."""

    sign: OnsetSign
    row: int  # position in the run
    step: int
    early: bool  # the rate had not yet been shown to work
    collapsed: bool  # the end of the record is skips
    descending: bool = False  # the loss is on its way down again at the end

    @property
    def hard(self) -> bool:
        """Whether the onset shows numbers that left their format, which healthy runs never do."""
        return self.collapsed or self.sign is OnsetSign.NOT_FINITE

    @property
    def is_slow(self) -> bool:
        """Whether the onset is only slow learning, not a climb of the loss."""
        return self.sign is OnsetSign.IDLE and self.descending


def find_onset(state: RateState) -> Onset | None:
    """Find the onset of a trouble that lasts to the end of the record; None if there is none."""
    collapsed, rows = _is_collapsed(state), state.head
    is_new = state.is_whole or state.accepted < constants.EARLY_STEPS
    signs = list(_hard_signs(rows)) if is_new and collapsed else []
    loss = known_of(rows.of("loss"))
    start = _start(rows)
    if start is not None:
        signs += _soft_signs(state, start, collapsed=collapsed) if is_new else _climbs(state, start)
    elif is_new and not len(loss):
        signs += _beyond_weights(rows)
    at, sign = min(signs, default=(0, OnsetSign.IDLE))
    if sign is OnsetSign.IDLE:  # and no later trouble is hidden by it
        late = _late(state, collapsed=collapsed)
        if late is not None or not signs:
            return late
    if is_new:
        descending = _comes_down(loss, known_of(rows.part(at).of("loss")))
        descending |= sign is OnsetSign.IDLE and _still_learns(loss)
    else:
        since = state.points.rows.of("loss")[state.points.start >= at]
        descending = loss_falls_back(known_of(since), float(loss[0]))
    return Onset(
        sign, at, _step(rows, at), early=True, collapsed=collapsed,
        descending=descending and not collapsed,
    )  # fmt: skip


def _is_collapsed(state: RateState) -> bool:
    """Whether an onset is collapsed: the record ends in skips or in non-finite losses.

    Before any step is accepted the scale may still be searching, unless no scale can help.
    """
    if state.setup.stopped:
        return True
    end = state.tail.part(-constants.FINAL_STEPS)
    if not state.accepted:
        scale = end.of("scale")[-1:]
        lost = bool((end.of("loss_bad") + end.of("forward_bad") > 0).sum() >= constants.EVENT_SKIPS)
        return lost or bool((scale < constants.STATIC_SCALE).any())
    if state.is_whole:  # leave out the search before the first accepted step
        end = state.head.part(int(np.argmax(state.head.accepted))).part(-constants.FINAL_STEPS)
    bad = (end.of("skipped") > 0) | (end.of("loss_bad") > 0)
    streak = int(np.argmin(bad[::-1])) if not bad.all() else len(bad)
    often = _share_of_steps(end.of("step"), bad) > COLLAPSED_SHARE
    often &= len(bad) >= constants.MEDIAN_STEPS
    return bool(often or streak >= constants.EVENT_SKIPS)


def _share_of_steps(step: Floats, bad: Mask) -> float:
    """For an onset, the share of bad steps where a log's rows stand for many or few steps.

    A log that prints every n-th step also prints each overflow between them: the share of its rows
    is not the share of the steps.
    """
    if bad.any() and len(good := step[~bad]) > 2:
        apart, since = median(np.diff(good)), median(np.diff(step, prepend=step[0])[bad])
        if apart > 2 * max(1.0, float(since)):
            return float(bad.sum() / (step[-1] - step[0] + 1))
    return float(bad.mean())


def _hard_signs(rows: RateRows) -> Iterator[tuple[int, OnsetSign]]:
    begin = int(np.argmax(rows.accepted))  # what came before was a search
    bad = np.flatnonzero(rows.of("loss_bad")[begin:] > 0)
    if len(bad):
        yield begin + int(bad[0]), OnsetSign.NOT_FINITE
    streak = _first_streak(rows.of("skipped")[begin:] > 0, SKIPS_IN_A_ROW)
    if streak is not None:
        yield begin + streak, OnsetSign.SKIPS


def _beyond_weights(rows: RateRows) -> Iterator[tuple[int, OnsetSign]]:
    """An onset without any loss: a first update that replaces most of the network."""
    first = np.flatnonzero(rows.accepted & np.isfinite(rows.ratio))[: constants.PROOF_STEPS]
    large = first[rows.ratio[first] > BEYOND_WEIGHTS]
    if len(large):  # trouble begins after the update, which the rate itself made
        yield min(int(large[0]) + 1, len(rows) - 1), OnsetSign.BEYOND


@dataclass(frozen=True, slots=True)
class _Start:
    """The first losses, none negative, with which an onset compares later ones."""

    at: Integers  # rows
    smooth: Floats
    everything: Floats  # of the first rows that are kept
    wide: float  # what noise may add to a median

    @property
    def first(self) -> float:
        return float(self.everything[0])

    @property
    def line(self) -> float:
        """The loss above which an onset is a climb."""
        return max(CLIMB * self.first, self.first + self.wide)

    @property
    def final(self) -> float:
        return median(self.everything[-constants.FINAL_STEPS :])


def has_a_first(loss: Floats) -> bool:
    """Whether an onset may be told by the first loss: multiples of it mean something.

    They mean nothing of losses that may be negative. A loss of exactly zero is a positive one: that
    of a batch of which the network is so sure that nothing is left in its format.
    """
    return bool(len(loss) and loss[0] > 0 and loss.min() >= 0)


@lru_cache(maxsize=4)  # from look to look the first rows are the same
def _start(rows: RateRows) -> _Start | None:
    everything = known_of(rows.of("loss"))
    at = np.flatnonzero(np.isfinite(rows.part(0, constants.SCRATCH_STEPS).of("loss")))
    if len(at) < constants.POINT_STEPS // 2 or not has_a_first(everything):
        return None
    wide = constants.ROBUST_DEVIATIONS * MEDIAN_NOISE * calmest_noise(everything)
    return _Start(at, trailing_medians(everything[: len(at)]), everything, wide)


def _climbs(state: RateState, start: _Start) -> Iterator[tuple[int, OnsetSign]]:
    """An onset in the first steps of a long run that no later loss has undercut."""
    climbed = np.flatnonzero(start.smooth > start.line)
    if len(climbed):
        begin = int(start.at[climbed[0]])
        since = known_of(state.points.rows.of("loss")[state.points.start >= begin])
        if len(since) and float(since.min()) > start.line:
            yield begin, OnsetSign.CLIMB


def _soft_signs(
    state: RateState, start: _Start, *, collapsed: bool
) -> Iterator[tuple[int, OnsetSign]]:
    """Onsets that show against the first loss, if the loss is no better at the end.

    A run that continues from a checkpoint may stay level; it may not climb from where it began.
    """
    first, final, smooth, loss = start.first, start.final, start.smooth, start.everything
    found = []
    climbed = np.flatnonzero(smooth > start.line)
    if len(climbed) and final > first + start.wide:
        found.append((climbed[0], OnsetSign.CLIMB))
    best = np.minimum.accumulate(smooth)
    progress, back = first - best, smooth - best
    gone = back > np.maximum(RELAPSE_SHARE * progress, start.wide)
    relapsed = np.flatnonzero(gone & (progress > RELAPSE_PROGRESS * first))[:1]
    lost = np.maximum(constants.RECOVERED_SHARE * progress[relapsed], start.wide)
    found += [(at, OnsetSign.RELAPSE) for at in relapsed[final > best[relapsed] + lost]]
    if not (found or collapsed or state.setup.resumed):
        steps, ends = len(loss), median(loss[-constants.MEDIAN_STEPS :])
        left = (LITTLE_LEARNT if steps >= LITTLE_STEPS else constants.NO_LEARNING) * first
        octaves = math.log2(max(ends / first, 1.0))  # the higher the jump, the fewer steps it takes
        enough = steps * octaves >= constants.SUSTAINED_STEPS and steps >= constants.MEDIAN_STEPS
        if enough and steps < LITTLE_STEPS and ends >= DOUBLED * first:
            found.append((int(np.argmax(smooth > CLIMB * first)), OnsetSign.DOUBLED))
        elif steps >= constants.NO_LEARNING_STEPS and final >= left:
            found.append((1, OnsetSign.IDLE))
    for at, sign in found:
        yield int(start.at[at]), sign


def _still_learns(loss: Floats) -> bool:
    """Whether an onset is only slow: the loss hardly fell, but did not stop early."""
    first, final = float(loss[0]), median(loss[-constants.FINAL_STEPS :])
    quarter = median(loss[len(loss) // 4 :][: constants.FINAL_STEPS])
    gains = quarter - final >= STALLED_PROGRESS * first or final < STALLED * first
    return gains and final <= constants.NO_LEARNING * first


def _comes_down(loss: Floats, after: Floats) -> bool:
    """Whether the loss after the onset is falling again, and lies below where it began."""
    third = len(after) // 3
    if third < constants.POINT_STEPS:
        return False
    before_last, last = median(after[third : 2 * third]), median(after[-third:])
    falls_on = before_last - last > 3 * loss_noise(after) / np.sqrt(third)
    return bool(falls_on and last < constants.NO_LEARNING * loss[0])


def _late(state: RateState, *, collapsed: bool) -> Onset | None:
    course, shift = state.points, find_shift(state.points)
    if shift is not None:
        at, descending = shift
        row, step, sign = int(course.start[at]), _step(course.rows, at), OnsetSign.SHIFT
    elif collapsed:
        tail, descending = state.tail, False
        at, sign = min(
            _hard_signs(tail), default=(max(0, len(tail) - constants.FINAL_STEPS), OnsetSign.SKIPS)
        )
        row, step = state.rows - len(tail) + at, _step(tail, at)
    else:
        return None
    return Onset(sign, row, step, _is_early(state, row), collapsed, descending and not collapsed)


def _is_early(state: RateState, row: int) -> bool:
    """Whether an onset comes before the rate had been shown to work."""
    return row < constants.EARLY_STEPS and not state.setup.resumed


def _first_streak(mask: Mask, length: int) -> int | None:
    if len(mask) < length:
        return None
    windows = np.lib.stride_tricks.sliding_window_view(mask, length).all(axis=1)
    return int(np.argmax(windows)) if windows.any() else None


def _step(rows: RateRows, at: int) -> int:
    value = rows.of("step")[at] if at < len(rows) else np.nan
    return int(value) if np.isfinite(value) else at
