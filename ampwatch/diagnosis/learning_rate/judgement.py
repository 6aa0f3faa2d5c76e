"""The judgement of a run's learning rate: onset, cause, alignment. Rules and advice both use it.

To attribute a trouble to its cause, every recorded sign is weighed in one table, the table of
evidence. A sign's *strength* is the number of octaves by which its value exceeds what is usual; a
negative strength counts the other way. What is not recorded is no sign. The points of a sign are
its strength times its weight; signs of one group show the same thing: only the strongest of them
counts. Weights are points per octave for the rate, the data, an operation and the objective. Only
facts are decided by branches: trouble before the first update, and a record that shows no
mechanism.

Alignment says whether the gradient after an update still points along it: then the steps are short.
It is the next gradient's product with the update, divided by the update's product with its own
gradient: -1 if the gradient has not changed, 0 if the step has used it up. The record holds the
cosine of each update to the one before; with the norms, the rate and the momentum that is enough:
the update divided by its rate is a sum that fades with the momentum, so its new part is the
gradient. This is exact for SGD with and without momentum. For Adam the gradient is in Adam's own
units; over 5 configurations at 8 rates each the median was within 0.07 of the truth.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ampwatch.diagnosis.column_arrays import Floats, known_of, median
from ampwatch.diagnosis.learning_rate import constants
from ampwatch.diagnosis.learning_rate.estimate import SLOPE
from ampwatch.diagnosis.learning_rate.noise import (
    calmest_noise,
    loss_noise,
    trailing_medians,
    upper_edge,
)
from ampwatch.diagnosis.learning_rate.rate_history import Group, RateRows, RateState
from ampwatch.diagnosis.learning_rate.trouble import (
    LITTLE_LEARNT,
    MEDIAN_NOISE,
    PEAK_SHARE,
    Onset,
    OnsetSign,
    Trouble,
    Warmup,
    is_rising,
    lasting_trouble,
)

# --- signs ----------------------------------------------------------------------------------------


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

    def compared(self, reading: SignReading) -> tuple[float | str, float | None, str]:
        """What the sign's evidence shows: the value, what it is compared with, and what that is."""
        if not self.held:
            return "yes", None, ""
        relation = {TOO_MUCH: "too much above", LITTLE: "small below"}.get(self.held)
        return reading.value, reading.against, relation or self.held.replace("{} ", "")

    def told(self, reading: SignReading) -> str:
        """The sign's reading in words."""
        if not self.held:
            return f"{self.name} at step {reading.step}"
        held = self.held.format(f"{reading.against:.3g}")
        return f"{self.name} of about {reading.value:.3g} near step {reading.step} ({held})"


def _octaves(value: float, line: float, least: float = LEAST, most: float = MOST) -> float:
    """The strength of a sign: how many octaves a value lies beyond a line, within limits."""
    if not value > 0 or not line > 0:
        return least
    return min(max(math.log2(value) - math.log2(line), least), most)


def _value_near(level: float, values: Floats, steps: Floats) -> tuple[float, int]:
    """The recorded value that is nearest to a level of these rows, and the step where it stands."""
    entries = np.flatnonzero(np.isfinite(values))
    at = entries[int(np.argmin(np.abs(values[entries] - level)))]
    return float(values[at]), int(steps[at]) if np.isfinite(steps[at]) else -1


def _if(tells: Callable[[Trouble], bool | None]) -> Measure:
    """A sign that is present (1), absent (-1) or unknown (None)."""

    def measure(trouble: Trouble) -> SignReading | None:
        there = tells(trouble)
        reading = SignReading(1.0 if there else -1.0, 1.0, 0.0, trouble.onset.step)
        return None if there is None else reading

    return measure


def _broke(trouble: Trouble) -> bool | None:
    return trouble.onset.hard or None


def _stood(trouble: Trouble) -> bool | None:
    return (trouble.onset.sign is OnsetSign.IDLE and not trouble.onset.hard) or None


def _turned(trouble: Trouble) -> bool | None:
    others = trouble.onset.sign in (OnsetSign.IDLE, OnsetSign.BEYOND)
    return not (trouble.onset.hard or others) or None


def _updates(trouble: Trouble) -> SignReading | None:
    rows = _joined(trouble.accepted.part(-constants.WINDOW_STEPS), trouble.around)
    ratios = known_of(rows.ratio)
    if not len(ratios) or _learnt_to_the_end(trouble):
        return None
    now = float(np.percentile(ratios, UPDATE_PERCENTILE))
    value, step = _value_near(now, rows.ratio, rows.of("step"))
    return SignReading(_octaves(now, LARGE_UPDATE), value, LARGE_UPDATE, step)


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
    estimate = trouble.estimate
    if estimate is None or estimate.update is None or not trouble.onset.early:
        return None
    octaves = min(max(estimate.fitted + CLEARED, -MOST), 0.0)
    line = estimate.update * 2.0 ** (-octaves / SLOPE)
    moved = np.isfinite(trouble.learnt.ratio)
    return SignReading(octaves, estimate.update, line, _step(trouble.learnt, int(moved.argmax())))


def _drift(signal: str) -> Measure:
    """The sign of a signal that has left the band of the steps before the onset."""

    def measure(trouble: Trouble) -> SignReading | None:
        rows = _joined(trouble.accepted, trouble.around)
        values = rows.ratio if signal == "ratio" else rows.of(signal)
        past = values[: len(trouble.accepted)]
        entries = np.flatnonzero(np.isfinite(past))
        # The last steps before the onset belong to it; half of a short record is its past.
        cut = max(len(entries) // 2, len(entries) - constants.PROOF_STEPS)
        if cut < FEWEST:
            return None
        usual = past[entries[:cut]][-constants.WINDOW_STEPS :]
        late = slice(int(entries[cut]) if cut < len(entries) else len(past), None)
        now = float(np.nanpercentile(values[late], 75))
        level, edge = median(usual), upper_edge(usual)
        value, step = _value_near(now, values[late], rows.of("step")[late])
        octaves = _octaves(now, edge / 2, 1.0) if now > edge else -1.0
        return SignReading(octaves, value, level, step)

    return measure


def _growth_of(trouble: Trouble) -> SignReading | None:
    """The sign of weights that have grown by the onset of the trouble."""
    rows = trouble.accepted
    if trouble.onset.sign is OnsetSign.IDLE:
        head = trouble.state.head
        rows = head.where(head.accepted).part(0, constants.SCRATCH_STEPS)
    first = known_of(trouble.state.head.of("param_norm"))
    first, late = first[first > 0][:1], _known_rows(rows, "param_norm").part(-FEWEST)
    if not len(first) or not len(late) or _learnt_to_the_end(trouble):
        return None
    last, begin = late.of("param_norm"), float(first[0])
    now = median(last)
    value, step = _value_near(now, last, late.of("step"))
    return SignReading(_octaves(now, constants.BAND_FACTOR * begin), value, begin, step)


def _idle(trouble: Trouble) -> SignReading | None:
    return _growth_of(trouble) if trouble.onset.sign is OnsetSign.IDLE else None


def _growth(trouble: Trouble) -> SignReading | None:
    return None if trouble.onset.sign is OnsetSign.IDLE else _growth_of(trouble)


def _loss_rise(trouble: Trouble) -> SignReading | None:
    """The sign of a loss that stood above its first value when the trouble began."""
    first = trouble.first_loss
    parts = (trouble.accepted.part(-2 * constants.PROOF_STEPS), trouble.after)
    before, after = (_known_rows(part, "loss") for part in parts)
    rows = _joined(before, after)
    losses = rows.of("loss")
    if first is None or not len(losses) or trouble.onset.sign is OnsetSign.IDLE:
        return None
    # One batch is noise; numbers that leave their format do so within few.
    steps = SUDDEN_STEPS if trouble.onset.hard else constants.MEDIAN_STEPS
    begin = len(before) if len(after) else len(before) - 1  # what had healed by then is no sign
    at = begin + int(np.argmax(trailing_medians(losses, steps)[begin:]))
    worst = float(trailing_medians(losses, steps)[at])
    high = slice(max(0, at + 1 - steps), at + 1)
    value, step = _value_near(worst, losses[high], rows.of("step")[high])
    rose = worst - constants.ROBUST_DEVIATIONS * MEDIAN_NOISE * calmest_noise(before.of("loss"))
    return SignReading(_octaves(rose, first), value, first, step)


def _left(trouble: Trouble) -> SignReading | None:
    """The sign of how much of the first loss is left, if it did not rise."""
    first, tail = trouble.first_loss, _known_rows(trouble.state.tail, "loss")
    is_idle = trouble.onset.sign is OnsetSign.IDLE
    if first is None or not is_idle or len(tail) < constants.POINT_STEPS:
        return None
    end = tail.part(-constants.FINAL_STEPS)
    now = median(end.of("loss"))
    value, step = _value_near(now, end.of("loss"), end.of("step"))
    return SignReading(_octaves(now, LITTLE_LEARNT * first, most=1.0), value, first, step)


def _at_best(trouble: Trouble) -> SignReading | None:
    """The sign of a loss that stood at its best when numbers left their format."""
    rows = _known_rows(trouble.accepted, "loss")
    losses = rows.of("loss")
    if not trouble.onset.hard or len(losses) < constants.POINT_STEPS:
        return None
    smooth = trailing_medians(losses)
    best, now = float(smooth.min()), median(losses[-3:])
    near = max(constants.NEAR_BEST * (float(smooth[0]) - best), loss_noise(losses))
    value, step = _value_near(now, losses[-3:], rows.of("step")[-3:])
    return SignReading(1.0 if now <= best + near else -1.0, value, best, step)


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
    rows = _joined(trouble.before, trouble.after)
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


def _joined(first: RateRows, second: RateRows) -> RateRows:
    return RateRows(np.concatenate([first.values, second.values]))


def _known_rows(rows: RateRows, name: str) -> RateRows:
    return rows.where(np.isfinite(rows.of(name)))


def _step(rows: RateRows, at: int) -> int:
    value = rows.of("step")[at] if len(rows) > at else np.nan
    return int(value) if np.isfinite(value) else -1


COURSE = "course"  # the group of signs that only show how the trouble looks
USUAL, BEGAN = "{} before", "{} at first"

# Weights: a regression with a ridge of 1 on 554 runs of 44 families in which something seemed to be
# wrong. Written by a program that was removed since (git has it); do not edit.
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
    SignRow("loss since then", "loss", _loss_rise, (0.56, 0.66, -1.16, -0.06), BEGAN),
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
    readings = {entry: entry.measure(trouble) for entry in TABLE}
    return {entry: reading for entry, reading in readings.items() if reading is not None}


# --- the judgement --------------------------------------------------------------------------------


class Cause(str, enum.Enum):
    """What caused an onset of trouble."""

    RATE = "the learning rate"
    STATIC = "something that was there before the first update"
    DATA = "the data"
    OPERATION = "an operation that overflows"
    OBJECTIVE = "a change of the data or of the objective"
    UNDECIDED = "not decided by what is recorded"


WEIGHED = (Cause.RATE, Cause.DATA, Cause.OPERATION, Cause.OBJECTIVE)  # the table's columns

# The costs of wrongly advising "lower" and of wrongly advising "keep". Nearly alike: of healthy
# runs only one in ten is weighed at all.
WRONG_LOWER, WRONG_KEEP = 1.2, 1.0
LOWER_LINE = WRONG_LOWER / (WRONG_LOWER + WRONG_KEEP)
# Below this line the rate is cleared: of the runs left out of the fit, 3 in 100 were too high
# nevertheless. Between the two lines the record does not decide.
CLEAR_LINE = 0.2

_SAYS_NOTHING = 0.05  # points
# Points that a loss adds for the rate at 1.5 times its first value: with fewer it had not risen.
_RISEN = 0.4
_LEAST_SURE = 0.01  # of a table fitted on a thousand runs, no chance is surer
# The groups by which a rate acts.
_MECHANISM = frozenset(("updates", "drift", "gradients", "weights"))


@dataclass(frozen=True, slots=True)
class AttributionRow:
    """One sign of this run in the weighed table, with the points it adds for each cause."""

    entry: SignRow
    reading: SignReading

    @property
    def group(self) -> str:
        """The group of signs that this row belongs to."""
        return self.entry.group

    @property
    def points(self) -> tuple[float, ...]:
        """The points that the sign adds for each cause of `WEIGHED`."""
        return tuple(self.reading.strength * weight for weight in self.entry.weights)

    @property
    def says(self) -> float:
        """How far the sign's points for the causes lie apart."""
        return max(self.points) - min(self.points)

    def speaks_for(self, cause: Cause) -> float:
        """The sign's points for this cause, less the mean of its points for the others."""
        own = self.points[WEIGHED.index(cause)]
        return own - (sum(self.points) - own) / (len(self.points) - 1)

    @property
    def told(self) -> str:
        """The sign in words."""
        return self.entry.told(self.reading)

    def __str__(self) -> str:
        return f"{self.told}: {self.speaks_for(Cause.RATE):+.1f}"


@dataclass(frozen=True, slots=True)
class Attribution:
    """The cause of an onset, the probability that it is the rate, and the rows that show it."""

    cause: Cause
    chance: float = 0.0  # that it is the rate
    table: tuple[AttributionRow, ...] = ()
    recorded: tuple[str, ...] = ()  # of the mechanism
    fact: str = ""  # that needs no weighing

    @property
    def proofs(self) -> tuple[AttributionRow, ...]:
        """The signs that speak for the attributed cause, the strongest first."""
        ranked = [
            (row.speaks_for(self.cause), row) for row in self._rows if row.reading.strength > 0
        ]
        return tuple(row for says, row in sorted(ranked, key=lambda pair: -pair[0]) if says > 0)

    @property
    def calm(self) -> tuple[AttributionRow, ...]:
        """The signs that speak against the learning rate as the cause."""
        return tuple(row for row in self._rows if row.speaks_for(Cause.RATE) < 0)

    @property
    def _rows(self) -> tuple[AttributionRow, ...]:
        return tuple(row for row in self.table if row.group != COURSE)

    @property
    def probability(self) -> float:
        """How likely it is that the rate is the cause, never surer than the table can be."""
        return min(max(self.chance, _LEAST_SURE), 1.0 - _LEAST_SURE)

    @property
    def told(self) -> str:
        """The sentence that says how likely the rate is the cause."""
        sure, bound = 100 * self.probability, ""
        if self.chance <= _LEAST_SURE:
            bound = "at most "
        elif self.chance >= 1.0 - _LEAST_SURE:
            bound = "at least "
        return (
            f"{len(self.table)} signals were weighed: the learning rate as the cause is {bound}"
            f"{sure:.0f} % likely, by a model fitted on other trainings."
        )


def attribute(trouble: Trouble) -> Attribution:
    """Attribute a trouble to its cause, by weighing all signs."""
    onset = trouble.onset
    if onset.hard and not len(trouble.accepted) and not trouble.state.setup.inner_updates:
        return _static(trouble.state, trouble.after)
    table = weigh_signs(sign_readings(trouble))
    recorded = recorded_mechanism(trouble.before, trouble.after)
    chances = chances_of(table)
    # A loss alone never leads to "lower", unless it had risen and numbers then left their format.
    lines = dict.fromkeys(_MECHANISM, 0.0) | ({"loss": _RISEN} if onset.collapsed else {})
    driven = any(row.speaks_for(Cause.RATE) > lines.get(row.group, math.inf) for row in table)
    cause = WEIGHED[1 + int(np.argmax(chances[1:]))]
    if driven and chances[0] > LOWER_LINE:
        cause = Cause.RATE
    elif not recorded or onset.sign is OnsetSign.DOUBLED or trouble.state.setup.inner_updates:
        # too little of it for another cause
        cause = Cause.UNDECIDED
    elif cause is Cause.OBJECTIVE and ("updates" not in recorded or chances[0] > CLEAR_LINE):
        # To keep the rate of a loss that has diverged, both must have been recorded.
        cause = Cause.UNDECIDED
    return Attribution(cause, chances[0], table, recorded)


def weigh_signs(readings: dict[SignRow, SignReading]) -> tuple[AttributionRow, ...]:
    """Weigh the readings of signs: one row for each group, its strongest sign."""
    strongest: dict[str, AttributionRow] = {}
    for row in (AttributionRow(entry, reading) for entry, reading in readings.items()):
        most = strongest.get(row.group)
        if row.says >= _SAYS_NOTHING and (most is None or row.says > most.says):
            strongest[row.group] = row
    return tuple(sorted(strongest.values(), key=lambda row: -row.says))


def chances_of(table: Iterable[AttributionRow]) -> tuple[float, ...]:
    """The probability with which each cause of `WEIGHED` is attributed, from the weighed rows."""
    total = [sum(points) for points in zip(BIAS, *(row.points for row in table), strict=True)]
    powers = [math.exp(points - max(total)) for points in total]
    return tuple(power / sum(powers) for power in powers)


def weights_text() -> str:
    """The points that attribution gives the rate for an octave of each sign, as text for a page."""
    rows = (AttributionRow(entry, SignReading(1.0, 1.0, 0.0, 0)) for entry in TABLE)
    return "; ".join(f"{row.entry.name} {row.speaks_for(Cause.RATE):+.1f}" for row in rows)


def _static(state: RateState, after: RateRows) -> Attribution:
    """Attribute a trouble before any step was accepted: the rate had no effect yet."""
    bad = after.of("forward_bad") > 0
    if bad.any():
        step = after.of("step")[int(np.argmax(bad))]
        return Attribution(Cause.STATIC, fact=f"non-finite forward at step {step:.0f}")
    first, scale = state.head.of("scale"), state.tail.of("scale")
    low = np.isfinite(scale).any() and np.nanmin(scale) < constants.STATIC_SCALE
    if low and not first[0] < constants.STATIC_SCALE:  # else it begins long after the run
        step, lowest = state.tail.of("step")[-1], f"{np.nanmin(scale):.3g}"
        return Attribution(Cause.STATIC, fact=f"scale of {lowest} at step {step:.0f}")
    return Attribution(Cause.UNDECIDED)


_RECORDED: dict[str, Callable[[RateRows], tuple[Floats, ...]]] = {
    "updates": lambda rows: (rows.ratio, rows.of("max_ratio")),
    "gradients": lambda rows: (rows.of("grad_norm"),),
    "activations": lambda rows: (rows.of("act_amax"),),
}


def recorded_mechanism(before: RateRows, after: RateRows) -> tuple[str, ...]:
    """Which recorded signals allow attribution to the rate: updates, gradients, activations.

    The size of an update is judged by the weights it changes, not by itself.
    """
    return tuple(
        word
        for word, columns in _RECORDED.items()
        if any(np.isfinite(column).any() for rows in (before, after) for column in columns(rows))
        # A band is what some values before the onset lay in.
        and (word != "gradients" or np.isfinite(before.of("grad_norm")).sum() >= FEWEST)
    )


# Share of an update; above it, weight decay makes updates alike whatever the gradients are.
DECAY_SHARE = 0.1


def alignment_at_the_end(state: RateState) -> float | None:
    """How gradients align with updates in the last steps at the full rate, as a median.

    None if it means nothing: with several optimizers, or if the run learns well as it is.
    """
    setup, rows = state.setup, state.tail
    if setup.several_optimizers or setup.lead_group >= len(setup.groups) or _learns(rows):
        return None
    values = alignment_after(rows, setup.groups[setup.lead_group])
    warm = rows.accepted & ~(rows.of("lr") < PEAK_SHARE * rows.of("lr_base"))
    recent = known_of(values[warm])[-constants.RAISE_STEPS :]
    return median(recent) if len(recent) == constants.RAISE_STEPS else None


def alignment_after(rows: RateRows, group: Group) -> Floats:
    """How the gradient after each update aligns with it; nan if unknown or mostly decay."""
    result = np.full(len(rows), np.nan)
    fade = group.fade
    if fade is None or len(rows) < 3:
        return result
    with np.errstate(all="ignore"):
        size, cosine = rows.of("update_norm") / rows.of("lr"), rows.of("alignment")
        new = cosine[2:] * size[2:] - fade * size[1:-1]
        own = size[1:-1] - fade * cosine[1:-1] * size[:-2]
        result[2:] = -new / np.abs(own)
        # The decay's part of the update over its rate always points the same way.
        decay = group.weight_decay * rows.of("param_norm")
        decay /= 1.0 if group.decoupled else 1.0 - fade
        result[decay > DECAY_SHARE * size] = np.nan
    result[~np.isfinite(result)] = np.nan
    return result


def _learns(rows: RateRows) -> bool:
    """Whether the loss still falls, so that the alignment of updates means nothing."""
    losses, part = known_of(rows.of("loss")), constants.FINAL_STEPS
    if len(losses) < constants.NO_LEARNING_STEPS:
        return False
    begin, end = median(losses[:part]), median(losses[-part:])
    return begin - end > (1 - constants.NO_LEARNING) * abs(begin)


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is known about the learning rate at the end of the record."""

    base: float | None
    accepted: int
    last_step: int | None
    alignment: float | None
    sees_course: bool  # losses or skips that could have shown trouble
    sees_mechanism: bool  # updates or gradients that could have shown its cause
    trouble: Trouble | None = None  # of the trouble that lasts
    attribution: Attribution | None = None  # also for a loss that hardly fell, which is no trouble

    @property
    def onset(self) -> Onset | None:
        """Where the judged trouble began; None without trouble."""
        return None if self.trouble is None else self.trouble.onset

    @property
    def warmup(self) -> Warmup | None:
        """The warm-up in which the judged trouble began; None if the rate was not rising."""
        return None if self.trouble is None else self.trouble.warmup

    @property
    def is_judged(self) -> bool:
        """Whether the table of evidence has named a cause."""
        return self.attribution is not None and self.attribution.cause is not Cause.UNDECIDED

    @property
    def is_the_rate(self) -> bool:
        """Whether the judgement finds lasting trouble whose cause is the rate."""
        return self.attribution is not None and self.attribution.cause is Cause.RATE


def judge_rate(state: RateState) -> Judgement:
    """Judge the learning rate of a run: its trouble, the cause, the alignment of updates."""
    trouble = lasting_trouble(state)
    if trouble is not None and trouble.onset.sign is OnsetSign.IDLE and state.setup.inner_updates:
        trouble = None  # its first row comes after many updates
    attribution = None if trouble is None else attribute(trouble)
    is_idle = trouble is not None and trouble.onset.sign is OnsetSign.IDLE
    if is_idle and attribution is not None and attribution.cause is not Cause.RATE:
        trouble = None  # a flat loss alone is no trouble
    steps = known_of(state.tail.of("step"))[-1:]
    head = state.head
    sees = np.isfinite(head.of("loss")).any() or np.isfinite(head.of("scale")).any()
    in_head = trouble is not None and trouble.onset.row < len(head)
    return Judgement(
        base=state.base_rate,
        accepted=len(trouble.accepted) if trouble is not None and in_head else state.accepted,
        last_step=int(steps[0]) if len(steps) else None,
        alignment=alignment_at_the_end(state),
        sees_course=bool(sees),
        sees_mechanism=bool(recorded_mechanism(head, state.tail)),
        trouble=trouble,
        attribution=attribution,
    )
