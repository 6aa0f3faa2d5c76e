"""The trouble of a run: when it began that still lasts at the end, and the rows around it.

In a run from random weights the tests for the onset compare with the first loss. Later, and in a
resumed run, they can only compare with the recent past. Nothing that the run recovered from is an
onset.

In a long run the loss leaves its band and never comes back. If it jumps, the band is that of its
recent past. If it creeps, the recent past follows it, so the band is that of its best.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from ampwatch.diagnosis import thresholds
from ampwatch.diagnosis.column_arrays import Floats, Integers, Mask, known_of, median
from ampwatch.diagnosis.learning_rate import constants
from ampwatch.diagnosis.learning_rate.estimate import Estimate, EstimateBounds, estimate
from ampwatch.diagnosis.learning_rate.noise import (
    calmest_noise,
    loss_noise,
    robust_deviation,
    trailing_medians,
    upper_edge,
)
from ampwatch.diagnosis.learning_rate.rate_history import RatePoints, RateRows, RateState
from ampwatch.rows import LR_LEAP

# --- the onset ------------------------------------------------------------------------------------


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
    entries = np.flatnonzero(np.isfinite(loss))
    if len(entries) < 6:
        return None
    value, start = loss[entries], course.start[entries]
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
    starts = np.flatnonzero(left)
    if len(starts):
        first, was = int(at[starts[0]]), float(level[starts[0]])
    elif (crept := _crept(value, begin[may], level, band)) is not None:
        first, was = crept
    else:
        return None
    return int(entries[first]), loss_falls_back(value[first:], was)


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
    medians = trailing_medians(values, part)[part - 1 :]
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
    windows = [value[first:last] for first, last in zip(begin, end, strict=True)]
    levels = [median(window) for window in windows]
    return np.asarray(levels), np.asarray([robust_deviation(window) for window in windows])


def loss_falls_back(after: Floats, level: float) -> bool:
    """Whether a shifted loss is coming back to this level, by more than noise and most of the way.

    A single high point is no top, and a plateau that sinks a little is no descent: half of the
    climb has to be given back, or all of it within as long again at this pace.
    """
    if len(after) < 2 * MEDIAN_POINTS:
        top, last = float(after.max()), median(after[-2:])
        return top - last > DESCENT_SHARE * (top - level)
    part = max(MEDIAN_POINTS, len(after) // DESCENT_PARTS)
    medians = trailing_medians(after, part)[part - 1 :]
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
    RELAPSE = "the loss rose again by more than half of its fall"
    IDLE = "the loss hardly fell"
    SHIFT = "the loss left its recent range"
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
    signs = []
    climbed = np.flatnonzero(smooth > start.line)
    if len(climbed) and final > first + start.wide:
        signs.append((climbed[0], OnsetSign.CLIMB))
    best = np.minimum.accumulate(smooth)
    progress, back = first - best, smooth - best
    gone = back > np.maximum(RELAPSE_SHARE * progress, start.wide)
    relapsed = np.flatnonzero(gone & (progress > RELAPSE_PROGRESS * first))[:1]
    lost = np.maximum(constants.RECOVERED_SHARE * progress[relapsed], start.wide)
    signs += [(at, OnsetSign.RELAPSE) for at in relapsed[final > best[relapsed] + lost]]
    if not (signs or collapsed or state.setup.resumed):
        steps, ends = len(loss), median(loss[-constants.MEDIAN_STEPS :])
        left = (LITTLE_LEARNT if steps >= LITTLE_STEPS else constants.NO_LEARNING) * first
        octaves = math.log2(max(ends / first, 1.0))  # the higher the jump, the fewer steps it takes
        enough = steps * octaves >= constants.SUSTAINED_STEPS and steps >= constants.MEDIAN_STEPS
        if enough and steps < LITTLE_STEPS and ends >= DOUBLED * first:
            signs.append((int(np.argmax(smooth > CLIMB * first)), OnsetSign.DOUBLED))
        elif steps >= constants.NO_LEARNING_STEPS and final >= left:
            signs.append((1, OnsetSign.IDLE))
    for at, sign in signs:
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


# --- the rows around it, from which signs, estimate and advice are computed -----------------------


RISING_STEPS = 3
PEAK_SHARE = 0.98  # of the base rate: as good as reached
BINDING_SHARE = 0.9  # of accepted steps whose gradient was made smaller
WORKED_SHARE = 0.2  # of the steps before the trouble, at a rate or above it: it had worked


@dataclass(frozen=True, slots=True)
class Warmup:
    """A warm-up during which the trouble began."""

    rate: float  # in force at the onset
    steps: int  # from the first step to the peak, at the slope seen


@dataclass(frozen=True, slots=True)
class LeapBefore:
    """A leap of the rate just before the trouble, in the leading group."""

    trained: float  # before it
    rate: float  # from it on
    step: int | None


@dataclass(frozen=True)  # no slots: cached_property keeps its values in __dict__
class Trouble:
    """One trouble of a run: its onset, the rows around it, and what follows from them."""

    state: RateState
    onset: Onset

    @cached_property
    def _around(self) -> tuple[RateRows, RateRows]:
        return rows_around(self.state, self.onset)

    @property
    def before(self) -> RateRows:
        """The rows before the trouble, in the finest form that is kept."""
        return self._around[0]

    @property
    def after(self) -> RateRows:
        """The rows from the trouble's onset on."""
        return self._around[1]

    @cached_property
    def accepted(self) -> RateRows:
        """The accepted steps before the trouble."""
        return self.before.where(self.before.accepted)

    @cached_property
    def learnt(self) -> RateRows:
        """The accepted steps before the trouble, at least up to the first that a rate moved."""
        if self.accepted.moved.any():
            return self.accepted
        accepted = self.state.head.where(self.state.head.accepted)  # a schedule may begin at zero
        return accepted.part(0, int(np.argmax(accepted.moved)) + 1 if len(accepted) else 0)

    @cached_property
    def around(self) -> RateRows:
        """The first accepted steps of the trouble; all of a slow one, which shows by its end."""
        slow = self.onset.sign in (OnsetSign.SHIFT, OnsetSign.IDLE)
        rows = self.after.where(self.after.accepted)
        return rows if slow else rows.part(0, constants.SUSTAINED_STEPS)

    @cached_property
    def first_loss(self) -> float | None:
        """The first loss of the run; None if it is unknown or losses may be negative."""
        losses = known_of(self.state.head.of("loss"))
        return float(losses[0]) if has_a_first(losses) else None

    @cached_property
    def estimate(self) -> Estimate | None:
        """How far the first updates place the rate above its limit; None without a rate."""
        base = self.state.base_rate
        if base is None:
            return None
        recorded = base / self.state.lead_share  # rows hold the rate of the first group
        estimated = estimate(self.learnt, recorded, self.state.setup, broke=self.onset.hard)
        return estimated.of_one_that_learns if self.onset.is_slow else estimated

    @cached_property
    def bounds(self) -> EstimateBounds | None:
        """The rates of this trouble that are known to have failed and to have worked."""
        base, failed, state = self.state.base_rate, self.failed_rate, self.state
        if base is None or failed is None:
            return None
        rates = self.accepted.of("lr") * state.lead_share
        known = known_of(rates[rates > 0])
        if self.onset.sign is OnsetSign.IDLE or not len(known):
            return EstimateBounds(failed)
        # After a decay it failed at less than it had begun with: what it failed at has not worked.
        most = min(failed, known[-1]) * 2.0**-constants.LEAST_OCTAVES
        # Nor has any at which the loss was on its way up already, however late the numbers broke.
        good = rates[: _best_end(self.accepted.of("loss")) + 1]
        below = np.sort(good[(good > 0) & (good <= most)])
        enough = max(constants.WINDOW_STEPS, math.ceil(WORKED_SHARE * len(known)))
        in_rows = self.onset.row < len(state.head) or self.onset.row >= state.rows - len(state.tail)
        worked = float(below[-enough]) if in_rows and len(below) >= enough else None
        return EstimateBounds(failed, worked)

    @cached_property
    def failed_rate(self) -> float | None:
        """The highest rate of the leading group before the trouble: with it, the run failed.

        A warm-up never reached its base rate; a decay began at it. If the loss never fell, every
        rate tried has failed. It is never above the base rate at the end.
        """
        base, state = self.state.base_rate, self.state
        idle = self.onset.sign is OnsetSign.IDLE
        parts = (state.head, state.points.rows, state.tail) if idle else (self.accepted,)
        highest = max(known_of(rows.of("lr")).max(initial=0.0) for rows in parts)
        return min(base, float(highest) * state.lead_share) if base and highest else base

    @cached_property
    def warmup(self) -> Warmup | None:
        """The warm-up in which the trouble began; None if the leading rate was not rising."""
        base, rate, share = self.state.base_rate, self.before.of("lr"), self.state.lead_share
        entries = np.flatnonzero(np.isfinite(rate) & (rate > 0))
        if base is None or not is_rising(rate[entries]):
            return None
        now = float(rate[entries[-1]])
        slope = (now - float(rate[entries[0]])) / max(1, entries[-1] - entries[0])
        if now * share >= PEAK_SHARE * base or slope <= 0:
            return None
        return Warmup(now * share, math.ceil(entries[-1] + 1 + (base / share - now) / slope))

    @cached_property
    def leap(self) -> LeapBefore | None:
        """The leap of the rate that the trouble followed, after training at a lower rate.

        That lower rate is the highest at which a good part of the steps before had trained: it is
        proven, not estimated.
        """
        rates = np.concatenate([self.before.of("lr"), self.after.of("lr")[:1]])
        entries = np.flatnonzero(np.isfinite(rates) & (rates > 0))
        values = rates[entries]
        leaps = 1 + np.flatnonzero(values[1:] >= LR_LEAP * values[:-1])
        if not len(leaps) or len(rates) - entries[leaps[-1]] > thresholds.JUMP_STEPS:
            return None
        past = np.sort(values[: leaps[-1]])
        enough = max(thresholds.JUMP_STEPS, math.ceil(WORKED_SHARE * len(past)))
        # A schedule that starts over now and then only returns to a rate that it had before.
        if len(past) < enough or values[leaps[-1] :].min() < LR_LEAP * past[-enough]:
            return None
        steps = np.concatenate([self.before.of("step"), self.after.of("step")[:1]])
        share, at = self.state.lead_share, entries[leaps[-1]]
        step = int(steps[at]) if np.isfinite(steps[at]) else None
        return LeapBefore(float(past[-enough]) * share, float(rates[at]) * share, step)

    @cached_property
    def binding_clip(self) -> float | None:
        """The norm to which clipping cut nearly every gradient before the trouble; else None."""
        before, after = self.learnt.of("grad_norm"), self.learnt.of("applied_norm")
        is_known = np.isfinite(before) & np.isfinite(after) & (before > 0)
        if is_known.sum() < constants.FEW_STEPS:
            return None
        clipped = after[is_known] < 0.99 * before[is_known]
        return median(after[is_known]) if clipped.mean() >= BINDING_SHARE else None

    @cached_property
    def restart_step(self) -> int | None:
        """The last accepted step before signals left their band: where to restart."""
        good = self.accepted.where(np.isfinite(self.accepted.of("step")))
        if not len(good):
            first = self.state.head.of("step")[:1]
            return int(first[0]) if np.isfinite(first).any() else None
        harmful = np.flatnonzero(good.ratio >= constants.PROOF_RATIO)  # left little of the weights
        ends = [
            _calm_end(values) for values in (good.ratio, good.of("grad_norm"), good.of("act_amax"))
        ]
        at = min(_best_end(good.of("loss")), *harmful[:1].tolist(), *ends)
        return int(good.of("step")[max(0, at)])

    @property
    def restart_checkpoint_step(self) -> int | None:
        """The last checkpoint that is not after the step to restart from."""
        ideal = self.restart_step
        saved = [
            step for step in self.state.setup.saved_steps if ideal is not None and step <= ideal
        ]
        return max(saved, default=None)


def rows_around(state: RateState, onset: Onset) -> tuple[RateRows, RateRows]:
    """The rows before a trouble and those from it on, in the finest form that is kept."""
    rows, at = state.head, onset.row
    if at >= len(rows):
        rows, at = state.tail, onset.row - (state.rows - len(state.tail))
        if at <= constants.FINAL_STEPS:
            rows, at = state.points.rows, int(np.searchsorted(state.points.start, onset.row))
    return rows.part(0, at), rows.part(at)


def is_rising(rates: Floats) -> bool:
    """Whether the rate was rising just before the trouble: each of the last few is higher."""
    recent = rates[-RISING_STEPS:]
    return len(recent) == RISING_STEPS and bool((np.diff(recent) > 0).all())


def _best_end(loss: Floats) -> int:
    """The last position before the trouble at which the loss was about as good as ever."""
    entries = np.flatnonzero(np.isfinite(loss))
    if len(entries) < constants.POINT_STEPS:
        return len(loss) - 1
    smooth = trailing_medians(loss[entries])
    best = float(smooth.min())
    near = best + max(constants.NEAR_BEST * (float(smooth[0]) - best), loss_noise(loss[entries]))
    last = int(np.flatnonzero(smooth <= near)[-1])
    if last == len(entries) - 1:
        return len(loss) - 1
    return int(entries[max(0, last - constants.MEDIAN_STEPS // 2)])  # a median of the past lags


def _calm_end(values: Floats) -> int:
    """The last position before the trouble at which values lay within their earlier band."""
    entries = np.flatnonzero(np.isfinite(values))
    if len(entries) < constants.POINT_STEPS:
        return len(values) - 1
    past = values[entries[: max(5, len(entries) - 2 * constants.POINT_STEPS)]]
    inside = np.flatnonzero(values[entries] <= upper_edge(past[-constants.WINDOW_STEPS :]))
    is_left = len(inside) and inside[-1] < len(entries) - 1
    return int(entries[inside[-1]]) if is_left else len(values) - 1


def lasting_trouble(state: RateState) -> Trouble | None:
    """The trouble that lasts to the end of the record; None if there is none."""
    first = known_of(state.head.of("loss"))[: constants.MEDIAN_STEPS]
    if len(first) and 0 <= median(first) < constants.NOTHING:
        state = state.without("loss")  # as of a reward that is not met yet: it can only rise
    # Their losses are no single series, and one's outputs are another's inputs.
    if state.setup.several_optimizers:
        state = state.without("loss", "input_amax")
    onset = find_onset(state)
    return None if onset is None else Trouble(state, onset)
