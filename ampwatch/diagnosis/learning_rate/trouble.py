"""A trouble and the rows around it, from which signs, estimate and advice are computed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ampwatch.diagnosis import thresholds
from ampwatch.diagnosis.column_arrays import Floats, known_of, median
from ampwatch.diagnosis.learning_rate import constants
from ampwatch.diagnosis.learning_rate.estimate import Estimate, EstimateBounds, estimate
from ampwatch.diagnosis.learning_rate.noise import loss_noise, trailing_medians, upper_edge
from ampwatch.diagnosis.learning_rate.onset import Onset, OnsetSign, find_onset, has_a_first
from ampwatch.diagnosis.learning_rate.rate_history import RateRows, RateState
from ampwatch.rows import LR_LEAP

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
        known = known_of(self.state.head.of("loss"))
        return float(known[0]) if has_a_first(known) else None

    @cached_property
    def estimate(self) -> Estimate | None:
        """How far the first updates place the rate above its limit; None without a rate."""
        base = self.state.base_rate
        if base is None:
            return None
        recorded = base / self.state.lead_share  # rows hold the rate of the first group
        found = estimate(self.learnt, recorded, self.state.setup, broke=self.onset.hard)
        return found.of_one_that_learns if self.onset.is_slow else found

    @cached_property
    def bounds(self) -> EstimateBounds | None:
        """The rates of this trouble that are known to have failed and to have worked."""
        base, failed, state = self.state.base_rate, self.failed_rate, self.state
        if base is None or failed is None:
            return None
        known = known_of(self.accepted.of("lr") * state.lead_share)
        known = known[known > 0]
        if self.onset.sign is OnsetSign.IDLE or not len(known):
            return EstimateBounds(failed)
        # After a decay it failed at less than it had begun with: what it failed at has not worked.
        below = np.sort(known[known <= min(failed, known[-1]) * 2.0**-constants.LEAST_OCTAVES])
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
        known = np.flatnonzero(np.isfinite(rate) & (rate > 0))
        if base is None or not is_rising(rate[known]):
            return None
        now = float(rate[known[-1]])
        slope = (now - float(rate[known[0]])) / max(1, known[-1] - known[0])
        if now * share >= PEAK_SHARE * base or slope <= 0:
            return None
        return Warmup(now * share, math.ceil(known[-1] + 1 + (base / share - now) / slope))

    @cached_property
    def leap(self) -> LeapBefore | None:
        """The leap of the rate that the trouble followed, after training at a lower rate.

        That lower rate is the highest at which a good part of the steps before had trained: it is
        proven, not estimated.
        """
        rates = np.concatenate([self.before.of("lr"), self.after.of("lr")[:1]])
        known = np.flatnonzero(np.isfinite(rates) & (rates > 0))
        values = rates[known]
        leaps = 1 + np.flatnonzero(values[1:] >= LR_LEAP * values[:-1])
        if not len(leaps) or len(rates) - known[leaps[-1]] > thresholds.JUMP_STEPS:
            return None
        past = np.sort(values[: leaps[-1]])
        enough = max(thresholds.JUMP_STEPS, math.ceil(WORKED_SHARE * len(past)))
        # A schedule that starts over now and then only returns to a rate that it had before.
        if len(past) < enough or values[leaps[-1] :].min() < LR_LEAP * past[-enough]:
            return None
        steps = np.concatenate([self.before.of("step"), self.after.of("step")[:1]])
        share, at = self.state.lead_share, known[leaps[-1]]
        step = int(steps[at]) if np.isfinite(steps[at]) else None
        return LeapBefore(float(past[-enough]) * share, float(rates[at]) * share, step)

    @cached_property
    def binding_clip(self) -> float | None:
        """The norm to which clipping cut nearly every gradient before the trouble; else None."""
        before, after = self.learnt.of("grad_norm"), self.learnt.of("applied_norm")
        known = np.isfinite(before) & np.isfinite(after) & (before > 0)
        if known.sum() < constants.FEW_STEPS:
            return None
        clipped = after[known] < 0.99 * before[known]
        return median(after[known]) if clipped.mean() >= BINDING_SHARE else None

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
    known = np.flatnonzero(np.isfinite(loss))
    if len(known) < constants.POINT_STEPS:
        return len(loss) - 1
    smooth = trailing_medians(loss[known])
    best = float(smooth.min())
    near = best + max(constants.NEAR_BEST * (float(smooth[0]) - best), loss_noise(loss[known]))
    last = int(np.flatnonzero(smooth <= near)[-1])
    if last == len(known) - 1:
        return len(loss) - 1
    return int(known[max(0, last - constants.MEDIAN_STEPS // 2)])  # a median of the past lags


def _calm_end(values: Floats) -> int:
    """The last position before the trouble at which values lay within their earlier band."""
    known = np.flatnonzero(np.isfinite(values))
    if len(known) < constants.POINT_STEPS:
        return len(values) - 1
    past = values[known[: max(5, len(known) - 2 * constants.POINT_STEPS)]]
    inside = np.flatnonzero(values[known] <= upper_edge(past[-constants.WINDOW_STEPS :]))
    is_left = len(inside) and inside[-1] < len(known) - 1
    return int(known[inside[-1]]) if is_left else len(values) - 1


def lasting_trouble(state: RateState) -> Trouble | None:
    """The trouble that lasts to the end of the record; None if there is none."""
    # Their losses are no single series, and one's outputs are another's inputs.
    if state.setup.several_optimizers:
        state = state.without("loss", "input_amax")
    onset = find_onset(state)
    return None if onset is None else Trouble(state, onset)
