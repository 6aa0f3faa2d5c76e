"""The table of evidence: signs of what caused a trouble, and how much each counts.

A sign's *strength* is the number of octaves by which its value exceeds what is usual; a negative
strength counts the other way. What is not recorded is no sign. Signs of one group show the same
thing: only the strongest of them counts. Weights are points per octave for the rate, the data, an
operation and the objective.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ampwatch.diagnosis.column_arrays import known_of, median
from ampwatch.diagnosis.learning_rate import constants
from ampwatch.diagnosis.learning_rate.estimate import SLOPE
from ampwatch.diagnosis.learning_rate.noise import loss_noise, trailing_medians, upper_edge
from ampwatch.diagnosis.learning_rate.onset import LITTLE_LEARNT, OnsetSign
from ampwatch.diagnosis.learning_rate.rate_history import RateRows
from ampwatch.diagnosis.learning_rate.trouble import Trouble, is_rising

# A sign's octaves count up to the first and down to the second.
MOST, LEAST = 4.0, -1.0
# Update over weight norm of the whole network; trainings that work stay near 2^-10 to 2^-6.
LARGE_UPDATE, UPDATE_PERCENTILE = 0.03, 90.0
# A rate this many octaves below the limit is cleared: what is below all that works is not too high.
CLEARED = 6.0
BORN_ZERO = 10.0  # largest layer over whole network, at the first steps of a LoRA
FEWEST = 5  # values that make a band
SUDDEN_STEPS = 3  # within which numbers leave their format


class SignReading(NamedTuple):
    """The reading of one sign in this run: its strength and the value behind it."""

    strength: float
    value: float
    against: float  # what the value is compared with
    step: int


Measure = Callable[[Trouble], SignReading | None]


TOO_MUCH, LITTLE = "above {} is too much", "below {} is small"


class SignRow(NamedTuple):
    """One sign in the table of evidence: its name, how it is measured, how much it counts."""

    name: str
    group: str
    measure: Measure
    weights: tuple[float, float, float, float]
    held: str = TOO_MUCH  # empty if the value is no number
    when: str = "at"  # or after, where the value is the highest since

    @property
    def signal(self) -> str:
        """The sign's name as a signal of evidence."""
        return "loss_peak" if self.when == "after" else self.name

    def compared(self, reading: SignReading) -> tuple[float | str, float | None, str]:
        """What the sign's evidence shows: the value, what it is compared with, and what that is."""
        if not self.held:
            return "yes", None, ""
        told = {TOO_MUCH: "too much above", LITTLE: "small below"}.get(self.held)
        return reading.value, reading.against, told or self.held.replace("{} ", "")

    def told(self, reading: SignReading) -> str:
        """The sign's reading in words."""
        if not self.held:
            return f"{self.name} at step {reading.step}"
        held = self.held.format(f"{reading.against:.3g}")
        if self.held == USUAL:  # the upper quartile of some steps
            return f"{self.name} of about {reading.value:.3g} near step {reading.step} ({held})"
        typical = " (median of a few steps)" if self.when == "after" else ""
        when = f"{self.when} step {reading.step} ({held})"
        return f"{self.name}{typical} of {reading.value:.3g} {when}"


def _octaves(value: float, line: float, least: float = LEAST, most: float = MOST) -> float:
    """The strength of a sign: how many octaves a value lies beyond a line, within limits."""
    if not value > 0 or not line > 0:
        return least
    return min(max(math.log2(value) - math.log2(line), least), most)


def _if(tells: Callable[[Trouble], bool | None]) -> Measure:
    """A sign that is present (1), absent (-1) or unknown (None)."""

    def measure(trouble: Trouble) -> SignReading | None:
        there = tells(trouble)
        return (
            None
            if there is None
            else SignReading(1.0 if there else -1.0, 1.0, 0.0, trouble.onset.step)
        )

    return measure


def _broke(trouble: Trouble) -> bool | None:
    return trouble.onset.hard or None


def _stood(trouble: Trouble) -> bool | None:
    return (trouble.onset.sign is OnsetSign.IDLE and not trouble.onset.hard) or None


def _turned(trouble: Trouble) -> bool | None:
    return (
        not (trouble.onset.hard or trouble.onset.sign in (OnsetSign.IDLE, OnsetSign.BEYOND)) or None
    )


def _updates(trouble: Trouble) -> SignReading | None:
    values = [trouble.accepted.ratio[-constants.WINDOW_STEPS :], trouble.around.ratio]
    known = known_of(np.concatenate(values))
    if not len(known) or _learnt_to_the_end(trouble):
        return None
    now = float(np.percentile(known, UPDATE_PERCENTILE))
    return SignReading(_octaves(now, LARGE_UPDATE), now, LARGE_UPDATE, trouble.onset.step)


def _layer(trouble: Trouble) -> SignReading | None:
    late = trouble.accepted.part(-constants.PROOF_STEPS)
    ratios, line = late.of("max_ratio"), constants.PROOF_RATIO
    if not np.isfinite(ratios).any() or is_born_zero(trouble.state.head):
        return None
    at = int(np.nanargmax(ratios))
    now = float(ratios[at])
    return SignReading(_octaves(now, line), now, line, _step(late, at))


def _first(trouble: Trouble) -> SignReading | None:
    """The sign of first updates so small that the rate is far below its limit."""
    found = trouble.estimate
    if found is None or found.update is None or not trouble.onset.early:
        return None
    octaves = min(max(found.fitted + CLEARED, -MOST), 0.0)
    line = found.update * 2.0 ** (-octaves / SLOPE)
    return SignReading(octaves, found.update, line, trouble.onset.step)


def _drift(signal: str) -> Measure:
    """The sign of a signal that has left the band of the steps before the onset."""

    def measure(trouble: Trouble) -> SignReading | None:
        past, since = (
            rows.ratio if signal == "ratio" else rows.of(signal)
            for rows in (trouble.accepted, trouble.around)
        )
        known = np.flatnonzero(np.isfinite(past))
        # The last steps before the onset belong to it; half of a short record is its past.
        cut = max(len(known) // 2, len(known) - constants.PROOF_STEPS)
        if cut < FEWEST:
            return None
        usual = past[known[:cut]][-constants.WINDOW_STEPS :]
        now = float(np.nanpercentile(np.concatenate([past[known[cut:]], since]), 75))
        level, edge = median(usual), upper_edge(usual)
        step = _step(trouble.accepted, int(known[min(cut, len(known) - 1)]))
        octaves = _octaves(now, edge / 2, 1.0) if now > edge else -1.0
        return SignReading(octaves, now, level, step)

    return measure


def _growth_of(trouble: Trouble) -> SignReading | None:
    """The sign of weights that have grown by the onset of the trouble."""
    rows = trouble.accepted
    if trouble.onset.sign is OnsetSign.IDLE:
        head = trouble.state.head
        rows = head.where(head.accepted).part(0, constants.SCRATCH_STEPS)
    first = known_of(trouble.state.head.of("param_norm"))
    first, last = first[first > 0][:1], known_of(rows.of("param_norm"))[-FEWEST:]
    if not len(first) or not len(last) or _learnt_to_the_end(trouble):
        return None
    now, begin = median(last), float(first[0])
    octaves = _octaves(now, constants.BAND_FACTOR * begin)
    return SignReading(octaves, now, begin, trouble.onset.step)


def _idle(trouble: Trouble) -> SignReading | None:
    return _growth_of(trouble) if trouble.onset.sign is OnsetSign.IDLE else None


def _growth(trouble: Trouble) -> SignReading | None:
    return None if trouble.onset.sign is OnsetSign.IDLE else _growth_of(trouble)


def _loss_rise(trouble: Trouble) -> SignReading | None:
    """The sign of a loss that stood above its first value when the trouble began."""
    first, after = trouble.first_loss, trouble.after.of("loss")
    before = trouble.accepted.of("loss")[-2 * constants.PROOF_STEPS :]
    losses = known_of(np.concatenate([before, after]))
    if first is None or not len(losses) or trouble.onset.sign is OnsetSign.IDLE:
        return None
    # One batch is noise; numbers that leave their format do so within few.
    steps = SUDDEN_STEPS if trouble.onset.hard else constants.MEDIAN_STEPS
    worst = float(trailing_medians(losses, steps)[-len(after) or None :].max())
    return SignReading(_octaves(worst, first), worst, first, trouble.onset.step)


def _left(trouble: Trouble) -> SignReading | None:
    """The sign of how much of the first loss is left, if it did not rise."""
    first, tail = trouble.first_loss, known_of(trouble.state.tail.of("loss"))
    if (
        first is None
        or trouble.onset.sign is not OnsetSign.IDLE
        or len(tail) < constants.POINT_STEPS
    ):
        return None
    now = median(tail[-constants.FINAL_STEPS :])
    return SignReading(
        _octaves(now, LITTLE_LEARNT * first, most=1.0), now, first, trouble.onset.step
    )


def _at_best(trouble: Trouble) -> SignReading | None:
    """The sign of a loss that stood at its best when numbers left their format."""
    known = known_of(trouble.accepted.of("loss"))
    if not trouble.onset.hard or len(known) < constants.POINT_STEPS:
        return None
    smooth = trailing_medians(known)
    best, now = float(smooth.min()), median(known[-3:])
    near = max(constants.NEAR_BEST * (float(smooth[0]) - best), loss_noise(known))
    return SignReading(1.0 if now <= best + near else -1.0, now, best, trouble.onset.step)


def _learnt_to_the_end(trouble: Trouble) -> bool:
    """Whether, by this sign, the loss fell until numbers left their format."""
    until = _at_best(trouble)
    return until is not None and until.strength > 0


def _bad_forward(trouble: Trouble) -> bool | None:
    """The sign of a forward pass that was not finite right at the onset; None if not sampled."""
    near = trouble.after.part(0, constants.EVENT_SKIPS).of("forward_bad")
    return (trouble.onset.hard and bool((near > 0).any())) or None


def _rising(trouble: Trouble) -> bool | None:
    """The sign of a rate that was still rising."""
    rates = known_of(trouble.before.of("lr"))
    return is_rising(rates[rates > 0]) or None


def _larger_batch(trouble: Trouble) -> bool | None:
    """The sign of a larger batch just before, since which the summed loss has come down."""
    steps = trouble.state.setup.larger_batches
    near = [step for step in steps if 0 <= trouble.onset.step - step <= constants.FINAL_STEPS]
    if not near or trouble.onset.hard:
        return None
    rows = RateRows(np.concatenate([trouble.before.values, trouble.after.values]))
    since, few = known_of(rows.of("loss")[rows.of("step") >= near[-1]]), constants.EVENT_SKIPS
    fell = len(since) >= 4 * few and bool(median(since[-few:]) < median(since[:few]))
    return fell or None


def _descent(trouble: Trouble) -> bool | None:
    """The sign of a loss that turned and is coming down again as the record ends."""
    return trouble.onset.descending if _turned(trouble) else None


def is_born_zero(rows: RateRows) -> bool:
    """Whether matrices began at zero (LoRA): their first update ratios are no sign of harm."""
    first = rows.where(rows.accepted).part(0, 3)
    largest, whole = known_of(first.of("max_ratio")), known_of(first.ratio)
    if not len(largest) or not len(whole):
        return False
    return median(largest) > max(1.0, BORN_ZERO * median(whole))


def _step(rows: RateRows, at: int) -> int:
    value = rows.of("step")[at] if len(rows) > at else np.nan
    return int(value) if np.isfinite(value) else -1


COURSE = "course"  # the group of signs that only show how the trouble looks
USUAL, BEGAN = "{} before", "{} at first"

# Weights: a regression with a ridge of 1 on 554 runs of 44 families in which something seemed to be
# wrong. Printed by `benchmarks/learning_rate_fit.py --evidence`; do not edit.
BIAS = (0.93, -0.42, -1.11, 0.61)
# fmt: off
TABLE = (
    SignRow("numbers that left their format", COURSE, _if(_broke), (0.91, -0.45, 2.07, -2.53), ""),
    SignRow("a loss that did not fall", COURSE, _if(_stood), (-0.71, 0.61, -0.42, 0.52), ""),
    SignRow("a loss that turned", COURSE, _if(_turned), (-0.18, -0.17, -1.68, 2.03), ""),
    SignRow("update / weights", "updates", _updates, (0.58, -0.07, -0.23, -0.28)),
    SignRow("largest layer's update / weights", "updates", _layer, (0.91, -0.21, -0.37, -0.34)),
    SignRow("first updates / weights", "beginning", _first, (0.50, 0.44, 0.26, -1.20), LITTLE),
    SignRow("updates", "drift", _drift("ratio"), (0.76, -0.46, -0.14, -0.16), USUAL),
    SignRow("gradient norm", "gradients", _drift("grad_norm"), (0.18, 0.62, -0.77, -0.02), USUAL),
    SignRow("largest activation", "drift", _drift("act_amax"), (0.75, 0.36, -1.32, 0.21), USUAL),
    SignRow("weight norm", "weights", _growth, (0.46, -0.50, 0.08, -0.03), USUAL),
    SignRow("weight norm, nothing learnt", "weights", _idle, (1.70, -0.14, -0.83, -0.74), USUAL),
    SignRow("input maximum", "input", _drift("input_amax"), (-0.84, 0.56, 0.86, -0.59), USUAL),
    SignRow("loss", "loss", _loss_rise, (0.56, 0.66, -1.16, -0.06), BEGAN, "after"),
    SignRow("loss at the end", "loss", _left, (1.88, -1.23, -0.23, -0.41), BEGAN),
    SignRow("loss until then", "break", _at_best, (-1.27, 2.00, -0.08, -0.65), "{} at best"),
    SignRow("non-finite forward", "forward", _if(_bad_forward), (0.21, 1.66, -1.39, -0.48), ""),
    SignRow("lr still rising", "schedule", _if(_rising), (0.85, -0.56, 0.00, -0.29), ""),
    SignRow("a larger batch", "batch", _if(_larger_batch), (-2.84, -1.38, 0.00, 4.22), ""),
    SignRow("a loss coming down again", "descent", _if(_descent), (-1.36, -0.12, 0.56, 0.92), ""),
)
# fmt: on


def sign_readings(trouble: Trouble) -> dict[SignRow, SignReading]:
    """The reading of every sign that the record of this trouble can show."""
    found = {entry: entry.measure(trouble) for entry in TABLE}
    return {entry: reading for entry, reading in found.items() if reading is not None}
