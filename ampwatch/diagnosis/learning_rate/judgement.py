"""The judgement of a run's learning rate: onset, cause, alignment. Rules and advice both use it.

To attribute a trouble to its cause, every recorded sign is weighed in one table. The points of a
sign are its strength times its weight; of a group of signs only the strongest counts. Only facts
are decided by branches: trouble before the first update, and a record that shows no mechanism.

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

import numpy as np

from ampwatch.diagnosis.column_arrays import Floats, known_of, median
from ampwatch.diagnosis.learning_rate import constants
from ampwatch.diagnosis.learning_rate.onset import Onset, OnsetSign
from ampwatch.diagnosis.learning_rate.rate_history import Group, RateRows, RateState
from ampwatch.diagnosis.learning_rate.signs import (
    BIAS,
    COURSE,
    FEWEST,
    TABLE,
    SignReading,
    SignRow,
    sign_readings,
)
from ampwatch.diagnosis.learning_rate.trouble import PEAK_SHARE, Trouble, Warmup, lasting_trouble


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
        if self.cause not in WEIGHED:
            return ()
        told = [(row.speaks_for(self.cause), row) for row in self._rows if row.reading.strength > 0]
        return tuple(row for says, row in sorted(told, key=lambda one: -one[0]) if says > 0)

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


def weigh_signs(found: dict[SignRow, SignReading]) -> tuple[AttributionRow, ...]:
    """Weigh the readings of signs: one row for each group, its strongest sign."""
    strongest: dict[str, AttributionRow] = {}
    for row in (AttributionRow(entry, reading) for entry, reading in found.items()):
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
        step, told = state.tail.of("step")[-1], f"{np.nanmin(scale):.3g}"
        return Attribution(Cause.STATIC, fact=f"scale of {told} at step {step:.0f}")
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
    known = known_of(values[warm])[-constants.RAISE_STEPS :]
    return median(known) if len(known) == constants.RAISE_STEPS else None


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
    known, part = known_of(rows.of("loss")), constants.FINAL_STEPS
    if len(known) < constants.NO_LEARNING_STEPS:
        return False
    begin, end = median(known[:part]), median(known[-part:])
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
    found = None if trouble is None else attribute(trouble)
    is_idle = trouble is not None and trouble.onset.sign is OnsetSign.IDLE
    if is_idle and found is not None and found.cause is not Cause.RATE:
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
        attribution=found,
    )
