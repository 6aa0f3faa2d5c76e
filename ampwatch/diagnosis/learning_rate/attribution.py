"""What brought a trouble about: every recorded sign weighed in one table.

A sign's points are its strength times its weight; of a group of signs only the strongest counts.
Branches are left for facts: trouble before the first update, and a record that shows no mechanism.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from ampwatch.diagnosis.learning_rate import constants
from ampwatch.diagnosis.learning_rate.course import RateState, Rows
from ampwatch.diagnosis.learning_rate.formula import Estimate
from ampwatch.diagnosis.learning_rate.onset import Onset
from ampwatch.diagnosis.learning_rate.signs import COURSE, Reading, Scene, readings
from ampwatch.diagnosis.learning_rate.weights import BIAS, WEIGHTS
from ampwatch.diagnosis.signals import Floats


class Cause(str, enum.Enum):
    """What brought an onset about."""

    RATE = "the learning rate"
    STATIC = "something that was there before the first update"
    DATA = "the data"
    OPERATION = "an operation that overflows"
    OBJECTIVE = "a change of the data or of the objective"
    UNDECIDED = "not recorded"


WEIGHED = (Cause.RATE, Cause.DATA, Cause.OPERATION, Cause.OBJECTIVE)  # the table's columns

SAYS_NOTHING = 0.05  # points
# Points that a loss adds for the rate at 1.5 times its first value: with less it had not risen.
RISEN = 0.4
_LEAST_SURE = 0.01  # of a table fitted on a thousand runs, no chance is surer
# The groups by which a rate acts.
MECHANISM = frozenset(("updates", "drift", "gradients", "weights", "activations"))


@dataclass(frozen=True, slots=True)
class Row:
    """One sign of this run, and what it adds for each cause."""

    group: str
    reading: Reading
    points: tuple[float, ...]  # as `WEIGHED`

    def speaks_for(self, cause: Cause) -> float:
        """Its points for this cause, over the mean of the others."""
        at = WEIGHED.index(cause)
        return (
            (self.points[at] - sum(self.points) / len(self.points))
            * len(self.points)
            / (len(self.points) - 1)
        )

    def __str__(self) -> str:
        return f"{self.reading}: {self.speaks_for(Cause.RATE):+.1f}"


@dataclass(frozen=True, slots=True)
class Attribution:
    """The cause of an onset, how sure the rate is it, and the rows that tell."""

    cause: Cause
    chance: float | None = None  # that it is the rate
    table: tuple[Row, ...] = ()
    facts: tuple[Reading, ...] = ()  # that need no weighing
    recorded: tuple[str, ...] = ()  # of the mechanism

    @property
    def proofs(self) -> tuple[Reading, ...]:
        """What speaks for the cause, the strongest first."""
        if self.cause not in WEIGHED:
            return self.facts
        told = [(row.speaks_for(self.cause), row) for row in self.table if row.group != COURSE]
        told.sort(key=lambda pair: -pair[0])
        return tuple(row.reading for points, row in told if points > 0 and row.reading.strength > 0)

    @property
    def told(self) -> str:
        """How sure the signs that were weighed make it that the rate is the cause."""
        sure = 100 * min(max(self.chance or 0.0, _LEAST_SURE), 1.0 - _LEAST_SURE)
        return f"{len(self.table)} signs weighed: {sure:.0f} % sure that it is the rate."


def attribute(state: RateState, onset: Onset, found: Estimate | None) -> Attribution:
    """What brought this onset about."""
    before, after = rows_around(state, onset)
    accepted = before.where(before.accepted)
    if onset.hard and not len(accepted):
        return _static(state, after)
    table = weigh(readings(Scene(state, onset, before, accepted, after, found)))
    recorded = recorded_mechanism(before, after)
    chances = chances_of(table)
    cause = decide(chances)
    # A loss alone never says "lower", but where it had risen and numbers then left their format.
    lines = dict.fromkeys(MECHANISM, 0.0) | ({"loss": RISEN} if onset.collapsed else {})
    driven = any(row.speaks_for(Cause.RATE) > lines.get(row.group, math.inf) for row in table)
    if cause is Cause.RATE and not driven:
        cause = likeliest_other(chances)
    if not recorded and cause is not Cause.RATE:
        cause = Cause.UNDECIDED
    return Attribution(cause, chances[0], table, recorded=recorded)


def weigh(signs: Iterable[tuple[str, Reading]]) -> tuple[Row, ...]:
    """The table: of each group the sign that says most, the one that says most first."""
    strongest: dict[str, tuple[float, Row]] = {}
    for group, reading in signs:
        weights = WEIGHTS.get(reading.name)
        if weights is None:
            continue
        points = tuple(reading.strength * weight for weight in weights)
        says = max(points) - min(points)
        if says < SAYS_NOTHING:
            continue
        if group not in strongest or says > strongest[group][0]:
            strongest[group] = (says, Row(group, reading, points))
    return tuple(row for _, row in sorted(strongest.values(), key=lambda pair: -pair[0]))


def chances_of(table: Iterable[Row]) -> tuple[float, ...]:
    """How likely each cause of `WEIGHED` is."""
    rows = list(table)
    total = [bias + sum(row.points[at] for row in rows) for at, bias in enumerate(BIAS)]
    powers = [math.exp(points - max(total)) for points in total]
    return tuple(power / sum(powers) for power in powers)


def weights_text() -> str:
    """The general table, for a page: what an octave of each sign adds for the rate."""
    told = []
    for name, points in WEIGHTS.items():
        row = Row("", Reading(name, 1.0, 1.0, 0.0, 0, ""), points)
        told.append(f"{name} {row.speaks_for(Cause.RATE):+.1f}")
    return "; ".join(told)


def decide(chances: tuple[float, ...]) -> Cause:
    """The rate where its chance is worth the costs, else the likeliest of the others."""
    return Cause.RATE if chances[0] > constants.LOWER_LINE else likeliest_other(chances)


def likeliest_other(chances: tuple[float, ...]) -> Cause:
    """Of the causes that are not the rate."""
    return WEIGHED[1 + int(np.argmax(chances[1:]))]


def rows_around(state: RateState, onset: Onset) -> tuple[Rows, Rows]:
    """The rows before an onset and from it on, as finely as they are kept."""
    if onset.row < len(state.head):
        return state.head.part(0, onset.row), state.head.part(onset.row)
    begin = state.rows - len(state.tail)
    if onset.row - begin > constants.FINAL_STEPS:
        at = onset.row - begin
        return state.tail.part(0, at), state.tail.part(at)
    course = state.points
    at = int(np.searchsorted(course.start, onset.row))
    return course.rows.part(0, at), course.rows.part(at)


def _static(state: RateState, after: Rows) -> Attribution:
    """Nothing was learnt before it: no rate has had a part in it yet."""
    bad = np.flatnonzero(after.of("forward_bad") > 0)
    if len(bad):
        step = _at(after.of("step"), int(bad[0]))
        return _fact(Reading("non-finite forward", 1.0, 1.0, 0.0, step, ""))
    first = state.head.of("scale")
    if len(first) and first[0] < constants.STATIC_SCALE:  # the record begins long after the run
        return Attribution(Cause.UNDECIDED)
    scales = state.tail.of("scale")
    known = scales[np.isfinite(scales)]
    if len(known) and known.min() < constants.STATIC_SCALE:
        step = _at(state.tail.of("step"), len(state.tail) - 1)
        against = constants.STATIC_SCALE
        return _fact(Reading("scale", 1.0, float(known.min()), against, step, "{} is little"))
    return Attribution(Cause.UNDECIDED)


def _fact(reading: Reading) -> Attribution:
    return Attribution(Cause.STATIC, facts=(reading,))


_FEWEST_NORMS = 5
_MECHANISM: dict[str, Callable[[Rows], tuple[Floats, ...]]] = {
    "updates": lambda rows: (rows.ratio, rows.of("max_ratio")),
    "gradients": lambda rows: (rows.of("grad_norm"),),
    "activations": lambda rows: (rows.of("act_amax"),),
}


def recorded_mechanism(before: Rows, after: Rows) -> tuple[str, ...]:
    """Which parts of the mechanism were recorded at all.

    An update is told by the weights it changes: by itself it may be long or short.
    """
    return tuple(
        word
        for word, columns in _MECHANISM.items()
        if any(np.isfinite(column).any() for rows in (before, after) for column in columns(rows))
        # A band is what some values before the onset lay in.
        and (word != "gradients" or np.isfinite(before.of("grad_norm")).sum() >= _FEWEST_NORMS)
    )


def _at(values: Floats, at: int) -> int:
    value = values[at] if len(values) > at else np.nan
    return int(value) if np.isfinite(value) else -1
