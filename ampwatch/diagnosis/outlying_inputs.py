"""Batches whose input is far off the inputs before them, and inputs that stay so, folded."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from ampwatch.diagnosis import thresholds
from ampwatch.diagnosis.blocks import Times
from ampwatch.diagnosis.column_arrays import Floats, Mask, median_of_known
from ampwatch.diagnosis.learning_rate import RateRows

# A batch stands out when its input is 5 times its recent median (measured on bad batches among 18
# small trainings), and half as far off the window's largest, the update before it being ordinary:
# at most 3 times its own median. Recent: 64 steps, and 20 at least.
INPUT_TIMES, _UPDATE_TIMES = 5.0, 3.0
_WINDOW, _LEAST = 64, 20
# Four times its last value is no noise of a loss.
_LEAP = 4.0
# Isolated: most of the next 8 steps are within twice the median again.
_AFTER, _CALM = 8, 2.0
# Several within 20 steps are a storm or an overflowing layer (AMP105, AMP203), not batches apart.
APART_STEPS = thresholds.NEAR_STEPS
# No more candidates are looked at in one block: where steps are skipped all the time none is apart.
_CANDIDATES = 64
_KEPT = 16  # steps that a page lists


@dataclass(frozen=True, slots=True)
class OutlyingInput:
    """A batch whose input lies far off its recent median."""

    step: int
    value: float
    median: float

    @property
    def times(self) -> float:
        """How many times the input's recent median this batch's input was."""
        return self.value / self.median


@dataclass(frozen=True, slots=True)
class OutlyingInputs:
    """The batches with an outlying input so far; `fold` makes a new one."""

    times: Times = field(default_factory=Times)
    first: OutlyingInput | None = None
    crowded: int = 0  # of them, how many came close upon two others
    left_out: int = 0  # of them, how many a guard left out
    last_two: tuple[int, ...] = ()  # positions
    last_steps: tuple[int, ...] = ()
    change: OutlyingInput | None = None  # the first of the inputs that have stayed so, the latest
    unjudged: tuple[bool, ...] = ()  # of the rows that are judged next: whether a guard left it out

    @property
    def are_crowded(self) -> bool:
        """Whether outlying inputs come in swarms: then they are no single batches."""
        return 2 * self.crowded >= self.times.count > 0

    @property
    def are_left_out(self) -> bool:
        """Whether a guard left out every one of them."""
        return self.left_out == self.times.count

    def fold(self, before: RateRows, rows: RateRows, start: int, guarded: Mask) -> OutlyingInputs:
        """The history with one more block; `before` are the rows before the block.

        A batch is judged when the rows after it have shown whether it was isolated, so the last
        few rows of a block are judged with the next one. `guarded` marks the rows that a guard left
        out.
        """
        recent, history = before.part(-_WINDOW - _AFTER), self
        both = RateRows(np.concatenate([recent.values, rows.values]))
        marks = (*self.unjudged, *guarded.tolist())
        for at, outlier, stays in _outliers(both, max(0, len(recent) - _AFTER)):
            is_left_out = marks[at - len(both)]
            if stays:
                history = history._with_change(outlier)
            else:
                history = history._with(outlier, start + at - len(recent), left_out=is_left_out)
        return replace(history, unjudged=marks[-_AFTER:])

    def _with(self, outlier: OutlyingInput, position: int, *, left_out: bool) -> OutlyingInputs:
        third = len(self.last_two) == 2 and position - self.last_two[0] < APART_STEPS
        return replace(
            self,
            times=self.times.and_at(outlier.step, position),
            first=self.first or outlier,
            crowded=self.crowded + third,
            left_out=self.left_out + left_out,
            last_two=(*self.last_two, position)[-2:],
            last_steps=(*self.last_steps, outlier.step)[-_KEPT:],
        )

    def _with_change(self, change: OutlyingInput) -> OutlyingInputs:
        known = self.change  # until the window has passed it, all that follow are as far off
        is_same = known is not None and change.step - known.step <= _WINDOW
        return self if is_same else replace(self, change=change)


def _outliers(rows: RateRows, begin: int) -> Iterator[tuple[int, OutlyingInput, bool]]:
    """Skips and leaps of the loss that come with an outlying input; whether the inputs stay so."""
    skipped, loss, scale = rows.of("skipped") > 0, rows.of("loss"), rows.of("scale")
    troubled = skipped | (rows.of("loss_bad") > 0)
    troubled[1:] &= ~skipped[:-1] & ~(scale[1:] > scale[:-1])  # that skip is growth's own
    troubled[1:] |= (loss[1:] > _LEAP * loss[:-1]) & ~skipped[1:]
    places = np.flatnonzero(troubled & np.isfinite(rows.of("input_amax")))
    places = places[(places >= max(begin, 1)) & (places < len(rows) - _AFTER)]
    for at in places[:_CANDIDATES].tolist():
        past = rows.part(max(0, at - _WINDOW), at)
        accepted, after = past.where(past.accepted), rows.part(at + 1).part(0, _AFTER)
        outlier = _outlier(accepted, rows, at)
        if outlier is None:
            continue
        stays = _stays(after, outlier)
        if stays or _is_calm(after, past, outlier):
            yield at, outlier, stays


def _outlier(past: RateRows, rows: RateRows, at: int) -> OutlyingInput | None:
    moves, inputs = past.of("update_norm"), past.of("input_amax")
    value, usual = float(rows.of("input_amax")[at]), _median(inputs)
    ordinary = len(moves) > 0 and moves[-1] <= _UPDATE_TIMES * _median(moves)
    far = usual > 0 and value > INPUT_TIMES * max(usual, float(np.nanmax(inputs)) / 2)
    return OutlyingInput(int(rows.of("step")[at]), value, usual) if ordinary and far else None


def _is_calm(after: RateRows, past: RateRows, outlier: OutlyingInput) -> bool:
    """Whether the steps after an outlying input are like those before it."""
    usual = _median(past.of("loss"))
    calm = np.isnan(usual) or bool((after.of("loss") < _CALM * usual).mean() > 0.5)
    back = bool((after.of("input_amax") < _CALM * outlier.median).mean() > 0.5)
    return back and calm and not bool((after.of("skipped") > 0).mean() > 0.5)


def _stays(after: RateRows, outlier: OutlyingInput) -> bool:
    """Whether most of the inputs after an outlying one are nearer to it than to those before."""
    middle = math.sqrt(outlier.value * outlier.median)
    return bool((after.of("input_amax") > middle).mean() > 0.5)


def _median(values: Floats) -> float:
    """The median of inputs, updates or losses before an outlying input; nan if few are known."""
    return median_of_known(values, _LEAST)
