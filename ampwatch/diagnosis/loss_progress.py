"""Whether a loss makes progress: one that hardly falls from the start, one that a schedule lost.

Both need the learning rate or the very first losses beside the loss; nothing here looks at skips.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ampwatch.diagnosis import thresholds
from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.column_arrays import Floats, Integers, median, median_of_known
from ampwatch.diagnosis.findings import Evidence, Outcome, State
from ampwatch.diagnosis.learning_rate.noise import robust_deviation, rounding_unit
from ampwatch.diagnosis.learning_rate.rate_history import RateRows
from ampwatch.diagnosis.loss_outcome import LEAST, NOTHING, LossCourse
from ampwatch.diagnosis.metric_outcome import explains_rise
from ampwatch.diagnosis.value_text import count_text, rate_text, two_digits

# A loss that is the same, but for this share, in so many lines or single steps, from the start.
SAME, SAME_LINES, SAME_STEPS, _GAIN, _BEGAN = 0.003, 8, 200, 0.04, 1.5
# A loss that fell by so little; or by so much at first, and no more than this in the other nine
# tenths; with so small an error of its levels. Chosen on the strangers' cases of rounds 1 to 5.
HARDLY, AT_FIRST, _SINCE, _ERROR = 0.04, 0.2, 0.02, 0.025
HARDLY_STEPS, _LINES_ENOUGH = 300, 15
_COARSE = 0.05  # of the level: a loss that is rounded so may fall without a sign
_ZEROS = 5  # losses of exactly 0
# A schedule that was lost: times, over so many parts of the record, for so much of it at least.
_LEAPT, _LEAP_PARTS, _LEAP_SHARE, _STILL_UP, _DECAYED = 2.0, 40, 0.1, 0.6, 2.0
_LEAP_WORSE, _DEVIATIONS, _LONG = 1.05, 3.0, 100
_MOST = 0.5  # of the rows have a norm
# A loss that falls without end: times what it was at first, faster from quarter to quarter, while
# gradients, and weights or activations, grow by so much. Of a likelihood that gets better the fall
# slows down and the weights hardly grow, though its gradients may grow tenfold.
_BEYOND_FIRST, _GRADIENTS, _WEIGHTS, _ACTIVATIONS = 10.0, 2.0, 2.0, 4.0
# One that swings about zero: the last fifth is so many times as wide as the first three, and its
# gradients have grown by as much as a drift of theirs.
_WIDER, _FIFTHS = 4.0, 5


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
    known = np.isfinite(rows.of("loss"))
    names = ("loss", "grad_norm", "lr", "param_norm", "act_amax")
    columns = (rows.of(name)[known] for name in names)
    return LossSeries(rows.of("step")[known].astype(np.int64), *columns)


def no_progress(case: Case, series: LossSeries, course: LossCourse) -> Outcome | None:
    """A loss that ended about where it began, if the beginning is recorded; None if it fell."""
    loss, count = series.loss, len(series.loss)
    entries = count_text(count if case.rate.is_whole else case.scale.entries, "entry", "entries")
    if count >= _ZEROS and not loss.any() and not case.observed.loop:
        evidence = Evidence("loss", int(series.step[-1]), 0.0)
        words = f"The loss is exactly 0 in all {entries}: nothing is measured, or nothing is asked."
        begin = int(series.step[0])
        return Outcome(State.STANDS_STILL, begin, ("loss",), words, evidence=(evidence,))
    if not _may_stand_still(case, series):
        return None
    half, early = loss[count // 2 :], loss[count // 8 + 1 : count // 2]
    level, noise = median(half), robust_deviation(half)
    near = SAME * abs(level)
    is_same = noise <= near and abs(median(early) - level) <= near
    stood_elsewhere = course.best < (1 - _GAIN) * level or course.first > _BEGAN * level
    evidence = Evidence("loss", int(series.step[-1]), float(half[-1]), course.first, "at first")
    if is_same and not stood_elsewhere:
        words = f"The loss does not fall: it is {two_digits(level)} in {entries}."
        begin = int(series.step[0])
        return Outcome(State.STANDS_STILL, begin, ("loss",), words, evidence=(evidence,))
    after, late = median(loss[count // 10 : 3 * count // 10]), median(loss[-count // 5 :])
    began = median_of_known(case.rate.head.of("loss")[:LEAST])
    averaged = "averaged" in case.record.marks.get("loss", ())
    if averaged:  # the first mean of many steps has left the beginning behind
        began = max(began, float(loss[0]))
    least = HARDLY if averaged else AT_FIRST
    error = noise / np.sqrt(count / 10)
    if not _is_long(case) or not _hardly_falls(began, after, late, error, least):
        return None
    words = (
        f"The loss hardly falls: {two_digits(began)} at first, {two_digits(after)} after a tenth "
        f"of {entries}, {two_digits(late)} at the end."
    )
    since = int(series.step[count // 10])
    return Outcome(State.HARDLY_FALLS, since, ("loss",), words, evidence=(evidence,))


def _may_stand_still(case: Case, series: LossSeries) -> bool:
    """Whether a loss that stands still would be a trouble, and one without a finding of its own."""
    is_loop = case.observed.loop
    is_long = len(series.loss) >= (SAME_STEPS if is_loop else SAME_LINES)
    level = median(series.loss)
    if not is_long or series.loss.min() <= 0 or level <= NOTHING:
        return False
    if rounding_unit(series.loss) > _COARSE * level:  # as it is printed, a fall would not show
        return False
    if is_loop and (case.has_converged or not _has_gradients(case, series)):
        return False
    return _is_beginning(case, series) and not case.has_adversary


def _hardly_falls(began: float, early: float, late: float, error: float, most: float) -> bool:
    """Whether a loss that noise does not hide fell little at first, and no further after that."""
    moved, fell = abs(early - late) / late, 1 - late / began
    near = fell <= HARDLY and moved <= HARDLY
    return error <= _ERROR and (near or (fell <= most and moved <= _SINCE))


def _is_long(case: Case) -> bool:
    """Whether a record is so long that a loss should have moved; a line may be an epoch."""
    is_unnumbered = "placed" in case.record.marks.get("step", ())
    enough_lines = is_unnumbered and case.scale.entries >= _LINES_ENOUGH
    return case.scale.steps >= HARDLY_STEPS or enough_lines


def _has_gradients(case: Case, series: LossSeries) -> bool:
    """Whether gradients, or updates, are recorded, and are not zero."""
    known = series.norm[np.isfinite(series.norm)]
    if len(known) > _MOST * len(series.norm):
        return median(known) > 0
    return median_of_known(case.rate.tail.of("update_norm")) > 0


def _is_beginning(case: Case, series: LossSeries) -> bool:
    """Whether the record begins where the training began, with random weights."""
    apart = float(np.median(np.diff(series.step))) if len(series.step) > 1 else 1.0
    begins = bool(series.step[0] <= 3 * apart + 1)
    return begins and not (case.observed.loop and case.rate.setup.resumed)


def rate_leapt(case: Case, series: LossSeries) -> Outcome | None:
    """A loss that has stood higher since the learning rate, once decayed, leapt back up.

    Restarts that are meant come again, or come down again: one that does neither is a schedule that
    was lost, as by a resume.
    """
    known = np.isfinite(series.lr) & (series.lr > 0)
    lr, loss, step = series.lr[known], series.loss[known], series.step[known]
    wide = max(1, len(lr) // _LEAP_PARTS)
    if len(lr) < _LONG or loss.min() <= 0:
        return None
    rose = np.flatnonzero(lr[wide:] >= _LEAPT * lr[:-wide])
    decayed = np.maximum.accumulate(lr)[rose] >= _DECAYED * lr[rose]
    rose = rose[decayed]
    if not len(rose) or rose[-1] - rose[0] > 2 * wide:
        return None
    at = int(rose[0])
    since = at + wide
    after, few = len(lr) - since, max(LEAST, len(lr) // _LEAP_PARTS)
    if after < _LEAP_SHARE * len(lr) or lr[-1] < _STILL_UP * lr[since:].max():
        return None
    if explains_rise(case, step, loss, since):
        return None
    before, late = loss[max(0, at - few) : at + 1], loss[-few:]
    low, high = median(before), median(late)
    noise = _DEVIATIONS * robust_deviation(loss[at - at // 2 : at + 1]) / np.sqrt(few)
    if high < _LEAP_WORSE * low or high - low <= noise:
        return None
    first = int(step[since])
    words = (
        f"The loss rose from {two_digits(low)} to {two_digits(high)} when the learning rate leapt "
        f"from {rate_text(lr[at])} to {rate_text(lr[since:].max())}, about step {first:,}, and is "
        "not back."
    )
    evidence = Evidence("lr", first, float(lr[since]), float(lr[at]), "before")
    return Outcome(State.RATE_LEAPT, first, ("loss", "lr"), words, evidence=(evidence,))


def without_bound(series: LossSeries) -> Outcome | None:
    """A loss that runs away below zero, or swings about it ever wider; its gradients grow along."""
    if len(series.loss) < _LONG or series.loss.min() >= 0:
        return None
    return _without_end(series) or _wider(series)


def _without_end(series: LossSeries) -> Outcome | None:
    first = float(np.abs(series.loss[: len(series.loss) // 10]).max())
    quarters = [median(part) for part in np.array_split(series.loss, 4)]
    falls = -np.diff(quarters)
    faster = falls[0] > 0 and bool((np.diff(falls) > 0).all())
    gradients, weights = _growth(series.norm), _growth(series.weights)
    grew = weights >= _WEIGHTS or _growth(series.activation) >= _ACTIVATIONS
    if not (faster and quarters[-1] <= -_BEYOND_FIRST * first and gradients >= _GRADIENTS and grew):
        return None
    low, high = two_digits(quarters[-1]), two_digits(quarters[0])
    words = (
        f"The loss falls without end, faster and faster: {high} in the first quarter, {low} in the "
        f"last, while the gradients grew {two_digits(gradients)} times."
    )
    step = int(series.step[np.argmax(series.loss < -first)])
    evidence = Evidence("loss", int(series.step[-1]), quarters[-1], quarters[0], "first quarter")
    columns = ("loss", "grad_norm", "param_norm")
    return Outcome(State.WITHOUT_END, step, columns, words, evidence=(evidence,))


def _wider(series: LossSeries) -> Outcome | None:
    parts = np.array_split(series.loss, _FIFTHS)
    wide = [robust_deviation(part) for part in parts]
    early = max(wide[:3])
    about_zero = all(abs(median(part)) <= one for part, one in zip(parts, wide, strict=True))
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
    step = int(series.step[len(series.step) * 3 // _FIFTHS])
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
