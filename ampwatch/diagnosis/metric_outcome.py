"""What other logged metrics say of the outcome: of the data kept apart, of a goal, of an adversary.

They are judged beside the loss. A validation loss that rises while the training loss falls, a
reward or an accuracy that is lost again, a discriminator that has won: no loss alone shows them.
And they explain a loss that rises: longer sequences, a loss per token that falls, a reward that
grows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.column_arrays import Floats, Integers, median, median_of_known
from ampwatch.diagnosis.findings import Outcome, Sign, State
from ampwatch.diagnosis.learning_rate.judgement import Cause
from ampwatch.diagnosis.learning_rate.noise import robust_deviation, trailing_medians
from ampwatch.diagnosis.loss_outcome import LossCourse, LossEnd, loss_course
from ampwatch.diagnosis.metric_history import MetricCourse
from ampwatch.diagnosis.value_text import Evidence, two_digits
from ampwatch.metric_names import (
    Metric,
    is_error_share,
    is_of_validation,
    is_roc_area,
    is_score,
    known_metric,
)

# A score that is zero, or stands still: of its level, in so many evaluations, below what is good;
# and how far the training loss must have come down.
_ZERO, _STILL, _FEW_SCORES, _STILL_SCORES, _HIGH, _LEARNT = 5e-3, 0.1, 5, 8, 0.6, 0.7
_ALL_WRONG = 0.95  # of what is counted: such a share of errors is no better than guessing
_LEAPT, _LASTED = 5.0, 5  # times the usual, in most of so many values: it has left its level
# Nats: verl calls a larger divergence a significant gap (docs/algo/rollout_corr.md).
_DIVERGENCE, _APART = "KL divergence of rollout and training", 0.1
_FEW_LOST, _NEXT_TO_NONE = 3, 0.1  # values at either level; of the best, what is left
# Times its lowest: so much matters of a validation loss, once a quarter of its fall is left.
_RISEN, _CAME_DOWN = 1.1, 1 / 4
_LEAST, _PART = 12, 10  # values of a goal that show a course; a tenth of them is its end
# Of what was won, so much is lost; and what was won is so many times the noise of its parts.
LOST, _WON = 0.7, 6.0
_WORSE = 1 / 4  # of its first values: a reward that has lost so much is not only explored away
_STEPS = 3.0  # times the largest step of a goal before: so far none goes in one by chance
_SUNK = 10.0  # times the noise of 20 parts: what only wanders ends so far down 1 time in 100
_STOOD = 0.15  # of the record, near its best
_LONG_LOST = 1 / 4  # of the record: it does not come back
_LOSES = 0.2  # of its first losses: a discriminator that has so much left has not won
_NOTHING_LEFT, _ENDS = 0.01, 5  # of a discriminator's first losses; a fifth of them at either end
# A guess costs ln 2, 2 ln 2, 1/4, 1/2 or, of a hinge, 2; one that trains leaves it by more than so
# much of it, in most of its values.
_GUESSES, _GUESS, _MOST_OF = 2.0, 0.01, (5, 95)
_GREW = 1.2  # times: a length, a number of frames
_NEAR = 3  # entries from a change of a size to the rise that it explains


def metric_outcome(case: Case, course: LossCourse) -> Outcome | None:
    """The outcome that other metrics show, beside a loss that went like this; None if none does."""
    return next(_shown(case, course), None)


def _shown(case: Case, course: LossCourse) -> Iterator[Outcome]:
    for metric in case.metrics.of(Metric.ADVERSARY):
        yield from _adversary_won(case, metric, course)
        yield from _adversary_guesses(case, metric)
    if course.end is LossEnd.FLAT:
        for metric in case.metrics.of(Metric.VALIDATION):
            where = _errors_stand(metric.name, metric.value)
            if where and len(metric.value) >= _STILL_SCORES:
                yield _stood(metric, State.STANDS_STILL, f"{where}, and the loss does not fall.")
    if course.end is LossEnd.LEARNING:
        for metric in case.metrics.of(Metric.VALIDATION):
            yield from _overfits(metric)
            yield from _stands_still(metric, course, _errors_stand)
        for metric in case.metrics.of(Metric.GOAL):
            yield from _stands_still(metric, course, _score_stands)
    goals = list(case.metrics.of(Metric.GOAL))
    # What is trained for has risen, and what is meant by it is measured apart.
    trained = (goal for goal in goals if not is_of_validation(goal.name))
    proxy = next((goal.name for goal in trained if is_reached(goal)), "")
    for goal in goals:
        yield from _goal_lost(goal, proxy if is_of_validation(goal.name) else "")


def _overfits(metric: MetricCourse) -> Iterator[Outcome]:
    """A validation loss that left its lowest value while the training loss is at its own."""
    values, low = metric.value, float(metric.value.min())
    # How it first came down is no noise: it is looked at from near its lowest value as well.
    near = int(np.argmax(values <= low + _CAME_DOWN * (values[0] - low)))
    for begin in (0, near):
        course = loss_course(values[begin:])
        left = course.end in {LossEnd.HIGHER, LossEnd.NOT_BACK, LossEnd.WORSE}
        if not left or not course.last >= _RISEN * course.best > 0:
            continue
        step = int(metric.step[begin + max(0, course.since - 1)])
        best, last = two_digits(course.best), two_digits(course.last)
        yield Outcome(
            State.OVERFITS, step, ("loss", metric.name),
            f"{metric.name} rose from {best} to {last}, from step {step:,} on, while the training "
            "loss went on falling.",
            evidence=(Evidence("metric", step, course.last, course.best, f"lowest {metric.name}"),),
        )  # fmt: skip


def _stands_still(
    metric: MetricCourse, course: LossCourse, stands: Callable[[str, Floats], str]
) -> Iterator[Outcome]:
    """A score that is 0 or has not moved, or errors alone, while the training loss fell."""
    learnt = course.first > 0 and course.last <= _LEARNT * course.first
    if learnt and len(metric.value) >= _FEW_SCORES and (where := stands(metric.name, metric.value)):
        yield _stood(metric, State.GOAL_STILL, f"{where} while the training loss falls.")


def _stood(metric: MetricCourse, state: State, words: str) -> Outcome:
    now, first = float(metric.value[-1]), float(metric.value[0])
    return Outcome(
        state, int(metric.step[0]), ("loss", metric.name), f"{metric.name} stays {words}",
        evidence=(Evidence("metric", int(metric.step[-1]), now, first, f"first {metric.name}"),),
    )  # fmt: skip


def _score_stands(name: str, values: Floats) -> str:
    """Where a score that should rise stands, in words; empty if it moves or can hardly rise."""
    level = float(median(np.abs(values)))
    if not is_score(name):
        return ""
    if np.abs(values).max() <= _ZERO:
        return "at 0"
    if len(values) < _STILL_SCORES or np.ptp(values) > _STILL * level or _is_high(level):
        return ""
    return f"between {two_digits(float(values.min()))} and {two_digits(float(values.max()))}"


def _errors_stand(name: str, values: Floats) -> str:
    """Where a share of errors stands that is about 1 in every evaluation; else empty."""
    are_all = _ALL_WRONG <= values.min() <= values.max() <= 2 - _ALL_WRONG
    return f"at {two_digits(float(values[-1]))}" if are_all and is_error_share(name) else ""


def _is_high(level: float) -> bool:
    """Whether a score, as a share or in percent, may be as good as it can be."""
    return level > _HIGH if level <= 1 else level > 100 * _HIGH


def _goal_lost(metric: MetricCourse, proxy: str) -> Iterator[Outcome]:
    """A figure that should rise, and has lost most of what it had won.

    Beside a proxy that rises to the end the fall itself is no noise: two series say the same.
    """
    values, count = metric.value, len(metric.value)
    if (since := _fell_at_once(metric)) is not None:
        highest = float(values[: count // 2].max())
        yield _fell(metric, State.GOAL_LOST, since, highest, float(values[-1]))
        return
    if count < _LEAST:
        yield from _goal_collapsed(metric)
        return
    if (since := _below_untrained(metric)) is not None:
        began = float(median(values[:since]))
        yield _fell(metric, State.GOAL_LOST, since, began, float(values[-1]))
        return
    size = max(3, count // _PART)
    smooth = trailing_medians(values, size)[size - 1 :]
    top = int(smooth.argmax())
    first, best, last = (float(smooth[at]) for at in (0, top, -1))
    noise = _noise(values, size, wanders=not proxy)
    at_best, at_end = values[top : top + size], values[-size:]
    apart = np.percentile(at_end, 90) < np.percentile(at_best, 10)
    won = best - first
    has_won = won > _WON * noise and won > 0 and best - last >= LOST * won
    # A reward that hardly grew may lose what it began with; a recall does so in learning.
    has_sunk = first - last > max(_SUNK * noise, first / 2) > 0 < first and not is_score(
        metric.name
    )
    if not ((has_won or has_sunk) and apart):
        return
    stood = np.flatnonzero(smooth >= best - LOST / 2 * (best - last if has_sunk else won))
    if len(stood) < _STOOD * count:  # what wanders comes as high now and then
        return
    left = min(int(stood[-1]) + size - size // 2, count - 1)
    # What is measured apart wanders: of that, a fall is final if it is large as well.
    is_large = not is_of_validation(metric.name) or last <= LOST * best
    is_final = count - left >= _LONG_LOST * count and is_large
    fell = _fell(metric, State.GOAL_LOST if is_final else State.GOAL_FALLS, left, best, last)
    if proxy:
        words = f"{fell.words[:-1]}, while {proxy} rose: it is a proxy of what is meant."
        fell = replace(fell, rests_on=(metric.name, proxy), words=words)
    yield fell


def _fell_at_once(metric: MetricCourse) -> int | None:
    """Since when a reward stands below all that it was, at once and by more than it had ever moved.

    None if it does not: nothing that wanders does so.
    """
    values, count = metric.value, len(metric.value)
    early, late = values[: count // 2], values[-max(_FEW_LOST, count // _FEW_LOST) :]
    if len(early) < _FEW_SCORES or is_score(metric.name) or median(late) >= early.min():
        return None
    since, drop, end = int(np.diff(values).argmin()) + 1, -np.diff(values).min(), median(late)
    is_far = end < early.min() - np.ptp(early) or (
        values[since - 1] <= early.max() and drop >= _STEPS * np.abs(np.diff(early)).max()
    )
    is_sudden = since <= count - len(late) and 2 * drop >= early.max() - end
    return since if is_far and is_sudden else None


def _below_untrained(metric: MetricCourse) -> int | None:
    """Since when a reward stands still below all of its first values; None if it does not.

    A policy that collapsed at once earns so: less than before it was trained, and always the same.
    """
    values, count = metric.value, len(metric.value)
    first, rest = values[:_FEW_LOST], values[max(_FEW_LOST, count // _PART) :]
    lost = float(median(first) - median(rest[-len(rest) // 2 :]))
    if is_score(metric.name) or rest.max() >= first.min() or lost < _WORSE * abs(median(first)):
        return None
    if np.ptp(np.percentile(rest, _MOST_OF)) > _WORSE * lost:  # a task grows harder slowly
        return None
    return int(np.flatnonzero(values >= first.min())[-1]) + 1


def _fell(metric: MetricCourse, state: State, since: int, best: float, last: float) -> Outcome:
    step = int(metric.step[since])
    return Outcome(
        state, step, (metric.name,),
        f"{metric.name} fell from {two_digits(best)} to {two_digits(last)}, from step {step:,} "
        "on, and is not back.",
        evidence=(Evidence("metric", step, last, best, f"highest {metric.name}"),),
    )  # fmt: skip


def _goal_collapsed(metric: MetricCourse) -> Iterator[Outcome]:
    """A figure of few values that stood three of them near its best, and ends at next to none."""
    values, best = metric.value, float(metric.value.max(initial=0.0))
    stood, ended = np.flatnonzero(values >= best / 2), values[-_FEW_LOST:]
    if len(values) < 2 * _FEW_LOST or best <= 0 or len(stood) < _FEW_LOST:
        return
    at_once = stood[-1] - stood[0] + 1 == len(stood)  # what only spikes stands nowhere
    if at_once and np.abs(ended).max() <= _NEXT_TO_NONE * best and values[0] < best / 2:
        since = min(int(stood[-1]) + 1, len(values) - 1)
        yield _fell(metric, State.GOAL_LOST, since, best, float(values[-1]))


def _noise(values: Floats, size: int, *, wanders: bool = True) -> float:
    """The noise of medians of so many values, also of values that wander."""
    parts = [median(part) for part in np.array_split(values, max(3, 2 * len(values) // size))]
    alone = robust_deviation(np.diff(values)) / np.sqrt(size)
    return max(float(alone), robust_deviation(np.diff(parts)) if wanders else 0.0)


def _adversary_won(case: Case, metric: MetricCourse, course: LossCourse) -> Iterator[Outcome]:
    """A discriminator whose loss is nothing to the end, while a generator's has risen."""
    values = metric.value
    if len(values) < _ENDS:
        return
    # It may have won within the first fifth; no loss says that it guesses by more than this.
    first, last = _first_and_last(values)
    first = min(max(first, median(values[:_FEW_LOST])), _GUESSES)
    if not 0 <= last <= _NOTHING_LEFT * first:
        return
    others = ((f"its {m.name}", loss_course(m.value)) for m in case.metrics.of(Metric.LOSS))
    for whose, risen in (("the generator's loss", course), *others):
        if not risen.last > max(risen.first, risen.best):
            continue
        # A single batch that is told apart less well is no return.
        alive = np.flatnonzero(trailing_medians(values, _FEW_LOST) > _NOTHING_LEFT * first)
        since = int(alive[-1]) + 1 - _FEW_LOST // 2 if len(alive) else 0
        step = int(metric.step[min(max(since, 0), len(values) - 1)])
        yield Outcome(
            State.ADVERSARY_WON, step, ("loss", metric.name),
            f"The discriminator has won: {metric.name} is {two_digits(last)}, and {whose} rose "
            f"from {two_digits(risen.best)} to {two_digits(risen.last)}.",
            evidence=(Evidence("metric", step, last, first, f"first {metric.name}"),),
        )  # fmt: skip


def _adversary_guesses(case: Case, metric: MetricCourse) -> Iterator[Outcome]:
    """A discriminator whose loss stands from the first value on: it has learnt nothing."""
    values, level = metric.value, float(median(metric.value))
    if len(values) < _STILL_SCORES or is_nearly_learnt(case):
        return
    far = [*np.percentile(values, _MOST_OF), median(values[:_FEW_LOST])] - np.asarray(level)
    if level > 0 and np.abs(far).max() <= _GUESS * level:
        words = "the discriminator guesses, and teaches the generator nothing."
        yield _stood(metric, State.HARDLY_FALLS, f"at {two_digits(level)}: {words}")


def _first_and_last(values: Floats) -> tuple[float, float]:
    """The levels of a metric at its beginning and at its end."""
    part = max(1, len(values) // _ENDS)
    return median(values[:part]), median(values[-part:])


# --- what explains a rise -------------------------------------------------------------------------


def first_metric(case: Case, kind: Metric, holds: Callable[[MetricCourse], bool]) -> str | None:
    """The name of the first metric of a kind of which this holds; None if there is none."""
    return next((metric.name for metric in case.metrics.of(kind) if holds(metric)), None)


def _leap(metric: MetricCourse, since: int) -> str:
    """When a size stood far above its usual level, before a step or soon after it; empty if not.

    A single large value says little: of a noisy size one in a hundred is as large by chance.
    """
    size = np.abs(metric.value)
    count = int((metric.step <= since).sum())
    if count <= _FEW_LOST:
        return ""
    usual = median(size[: max(_FEW_LOST, count // 2)])
    soon = since + (since - int(metric.step[0])) // _FEW_LOST
    levels = trailing_medians(size[metric.step <= soon], _LASTED)[_LASTED - 1 :]
    known = known_metric(metric.name)
    is_divergence = known is not None and known.title == _DIVERGENCE
    limit = min(_LEAPT * usual, _APART) if is_divergence else _LEAPT * usual
    beyond = np.flatnonzero((levels >= limit) & (usual > 0))
    if not len(beyond):
        return ""
    step = int(metric.step[beyond[0] + _LASTED // 2])
    return f"{metric.name} was {two_digits(float(levels[beyond[0]]))} at step {step:,}"


def is_in_balance(metric: MetricCourse) -> bool:
    """Whether a network that is trained against this one has not won."""
    first, last = _first_and_last(metric.value)
    return last > _LOSES * first


# What a metric of a lost reward showed before: what samples is no longer what trains, or too large
# a step of a policy. Counted in benchmarks/results/policy_trainings.md: a policy that is taught
# another goal moves as far, now and then.
_SIGNS_OF_METRICS = (
    (
        Metric.ROLLOUT_GAP, "rollout and training had grown apart ({}) before it",
        "a difference between rollout and training",
    ),
    (
        Metric.POLICY_STEP, "the updates moved the policy ever farther ({}) before it",
        Cause.RATE.value,
    ),
)  # fmt: skip
_OF_METRICS = 0.8
_ABOVE_A_GUESS = 0.6  # of an area under a ROC curve, which is 0.5 for a guess


def sign_of_lost_goal(case: Case, since: int) -> tuple[str, Sign] | None:
    """The metric that showed before this step why a reward was lost, and what it is a sign of.

    Where rollout and training have grown apart, the policy's steps follow from that.
    """
    for kind, words, cause in _SIGNS_OF_METRICS:
        for metric in case.metrics.of(kind):
            if leap := _leap(metric, since):
                return metric.name, Sign(words.format(leap), _OF_METRICS, cause)
    return None


def is_reached(metric: MetricCourse) -> bool:
    """Whether a figure that should rise has risen, by more than chance, and stands there."""
    values, count = metric.value, len(metric.value)
    doubled = count > _FEW_SCORES and values[-1] >= 2 * values[0] > 0
    if doubled and (np.diff(values) <= 0).sum() <= max(1, count // 6):
        return True  # nearly each one is higher than the last
    if count < _LEAST:
        return False
    size = max(3, len(values) // _PART)
    smooth = trailing_medians(values, size)[size - 1 :]
    # Since it was lowest: the first values of a mean over the last episodes are of one or two.
    won = float(smooth.max() - smooth[: int(np.argmax(smooth)) + 1].min())
    noise = _noise(values, size)
    return won > _WON * noise and won > 0 and smooth[-1] >= smooth.max() - (1 - LOST) * won


def is_nearly_learnt(case: Case) -> bool:
    """Whether a score, or a loss on other data, got ever better, and by less and less.

    At too low a learning rate it gets better by as much as before, or by more.
    """
    goals = (metric.value for metric in case.metrics.of(Metric.GOAL))
    errors = (-metric.value for metric in case.metrics.of(Metric.VALIDATION))
    for values in (*goals, *errors):
        worse, half = int((np.diff(values) <= 0).sum()), values[len(values) // 2]
        ever_better = len(values) >= _STILL_SCORES and worse <= len(values) // _STILL_SCORES
        if ever_better and half - values[0] >= 2 * (values[-1] - half) > 0:
            return True
    return False


def beats_a_guess(case: Case) -> bool:
    """Whether a score that is the same for every guess, whatever the task, stands above that."""
    return any(
        median(metric.value) >= _ABOVE_A_GUESS * (1 if metric.value.max() <= 1 else 100)
        for metric in case.metrics.of(Metric.GOAL)
        if is_roc_area(metric.name) and len(metric.value)
    )


def explains_rise(case: Case, step: Integers, loss: Floats, since: int) -> bool:
    """Whether what else is logged explains a rise.

    Lengths that grew do, and a loss per token, or on other data, that goes on falling.
    """
    rose = median_of_known(loss[since:]) / max(median_of_known(loss[:since][-_LEAST:]), 1e-12)
    for metric in case.metrics.of(Metric.SIZE):
        size = metric.at(step)
        before, after = size[max(0, since - _LEAST) : since], size[since:]
        grew = median_of_known(after) / max(median_of_known(before), 1e-12)
        changed = size[max(0, since - _NEAR) : since + _NEAR + 1]
        if grew >= _GREW and rose <= 2 * grew and np.ptp(changed[np.isfinite(changed)]) > 0:
            return True
    if any(_fell_since(metric, int(step[since])) for metric in case.metrics.of(Metric.VALIDATION)):
        return True
    return any(
        loss_course(metric.value).end in {LossEnd.LEARNING, LossEnd.HIGHER}
        for metric in case.metrics.of(Metric.PER_UNIT)
    )


def _fell_since(metric: MetricCourse, step: int) -> bool:
    """Whether a loss ends at its best, and below all that it was before this step."""
    is_later = metric.step > step
    before, since = metric.value[~is_later], metric.value[is_later]
    if min(len(before), len(since)) < _FEW_LOST:
        return False
    fell = median(since[-_FEW_LOST:]) < before.min()
    return bool(fell) and loss_course(metric.value).end is LossEnd.LEARNING
