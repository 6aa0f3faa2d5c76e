"""The losses of a record in their order, and forms of them that neither best nor last one shows.

A loss without a lower bound is best at its end, and so is one that was settled at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ampwatch.diagnosis import thresholds
from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.column_arrays import Floats, Integers, median, median_of_known
from ampwatch.diagnosis.findings import Outcome, State
from ampwatch.diagnosis.learning_rate.constants import NOTHING
from ampwatch.diagnosis.learning_rate.noise import robust_deviation
from ampwatch.diagnosis.learning_rate.rate_history import RateRows
from ampwatch.diagnosis.loss_outcome import LEAST
from ampwatch.diagnosis.value_text import Evidence, two_digits

LONG = 100  # losses: a climb that takes them is slow
RUNAWAY = 1000.0  # times the first loss, and finite: it grows from step to step
FIFTHS = 5
# A loss that falls without end: times what it was at first, faster from quarter to quarter, while
# gradients, and weights or activations, grow by so much. Of a likelihood that gets better the fall
# slows down and the weights hardly grow, though its gradients may grow tenfold.
_BEYOND_FIRST, _GRADIENTS, _WEIGHTS, _ACTIVATIONS = 10.0, 2.0, 2.0, 4.0
# One that swings about zero: the last fifth is so many times as wide as the first three, and its
# gradients have grown by as much as a drift of theirs.
_WIDER = 4.0
# A loss that was settled at once: of the record, by then; of the way, what may be left; times that
# gradients have become smaller; and of the way, what no loss is that has fallen to nothing.
_AT_ONCE, _LEFT_OVER, _VANISHED, _NOT_NOTHING = 1 / 20, 0.02, 30.0, 0.01


@dataclass(frozen=True, slots=True)
class LossSeries:
    """The losses of a record in their order, each with its step: all of them, or points."""

    step: Integers
    loss: Floats
    norm: Floats
    lr: Floats
    weights: Floats  # their norm
    activation: Floats  # the largest


def series_of_case(case: Case) -> LossSeries:
    """A short record's losses as they are; a long one's as medians of stretches."""
    return series_of(case.rate.head if case.rate.is_whole else case.rate.points.rows)


def series_of(rows: RateRows) -> LossSeries:
    """The losses of these rows that are finite."""
    is_known = np.isfinite(rows.of("loss"))
    names = ("loss", "grad_norm", "lr", "param_norm", "act_amax")
    columns = (rows.of(name)[is_known] for name in names)
    return LossSeries(rows.of("step")[is_known].astype(np.int64), *columns)


def without_bound(series: LossSeries) -> Outcome | None:
    """A loss that runs away below zero, or swings about it ever wider; its gradients grow along."""
    if len(series.loss) < LONG or series.loss.min() >= 0:
        return None
    return _without_end(series) or _wider(series)


def _without_end(series: LossSeries) -> Outcome | None:
    first = max(NOTHING, float(np.abs(series.loss[: len(series.loss) // 10]).max()))
    quarters = [median(part) for part in np.array_split(series.loss, 4)]
    falls = -np.diff(quarters)
    faster = falls[0] > 0 and bool((np.diff(falls) > 0).all())
    gradients, weights = _growth(series.norm), _growth(series.weights)
    grew = weights >= _WEIGHTS or _growth(series.activation) >= _ACTIVATIONS
    grew |= quarters[-1] <= -RUNAWAY * first  # which no loss with an end does
    if not (faster and quarters[-1] <= -_BEYOND_FIRST * first and gradients >= _GRADIENTS and grew):
        return None
    low, high = two_digits(quarters[-1]), two_digits(quarters[0])
    words = (
        f"The loss falls without end, faster and faster: {high} in the first quarter, {low} in the "
        f"last, while the gradients grew {two_digits(gradients)} times."
    )
    step, last = int(series.step[np.argmax(series.loss < -first)]), int(series.step[-1])
    evidence = Evidence("loss", last, quarters[-1], quarters[0], "first quarter")
    return Outcome(State.WITHOUT_END, step, ("loss", "grad_norm"), words, evidence=(evidence,))


def _wider(series: LossSeries) -> Outcome | None:
    parts = np.array_split(series.loss, FIFTHS)
    wide = [robust_deviation(part) for part in parts]
    early = max(wide[:3])
    about_zero = all(abs(median(part)) <= width for part, width in zip(parts, wide, strict=True))
    if not (about_zero and wide[-1] >= max(_WIDER * early, wide[-2]) and wide[-2] >= early):
        return None
    first, last = _ends(series.norm)
    if not last >= thresholds.DRIFT_FACTOR * first > 0:
        return None
    words = (
        f"The loss swings about zero, ever wider: by {two_digits(wide[0])} in the first fifth, by "
        f"{two_digits(wide[-1])} in the last, while the gradients grew {two_digits(last / first)} "
        "times."
    )
    step = int(series.step[len(series.step) * 3 // FIFTHS])
    evidence = Evidence("grad_norm", int(series.step[-1]), last, first, "first tenth")
    return Outcome(State.WIDER, step, ("loss", "grad_norm"), words, evidence=(evidence,))


def _growth(values: Floats) -> float:
    """How many times larger a column is in its last tenth than in its first; 0 if unknown."""
    early, late = _ends(values)
    return late / early if early > 0 and np.isfinite(late) else 0.0


def _ends(values: Floats) -> tuple[float, float]:
    """The medians of a column in its first tenth and in its last; nan where it is unknown."""
    tenth = max(LEAST, len(values) // 10)
    return median_of_known(values[:tenth]), median_of_known(values[-tenth:])


def settled_at_once(series: LossSeries) -> Outcome | None:
    """A loss that came to its end at once, and whose gradients vanished with it.

    So do outputs that have become all alike. What is learnt takes longer, or leaves nothing.
    """
    loss, count = series.loss, len(series.loss)
    if count < LONG:
        return None
    early, late = max(LEAST, int(_AT_ONCE * count)), loss[-(count // 10) :]
    first, end = median(loss[:LEAST]), median(late)
    way, left = first - end, median(loss[early : 2 * early]) - end
    norms = median_of_known(series.norm[: 2 * LEAST]), _ends(series.norm)[1]
    is_vanished = 0 < _VANISHED * norms[1] <= norms[0]
    if not (is_vanished and way > 0 and left <= _LEFT_OVER * way and abs(end) > _NOT_NOTHING * way):
        return None
    step = int(series.step[early])
    words = (
        f"The loss was at its end, {two_digits(end)}, by step {step:,}; since then hardly anything "
        f"is learnt, and the gradients are {two_digits(norms[0] / norms[1])} times as small as at "
        "first."
    )
    evidence = Evidence("loss", int(series.step[-1]), float(loss[-1]), first, "at first")
    return Outcome(State.SETTLED, step, ("loss", "grad_norm"), words, evidence=(evidence,))
