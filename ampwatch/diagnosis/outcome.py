"""The outcome: did it train? Judged for every record from what anyone can see in its rows.

No rule has a say here and no cause is named. The verdict follows from the outcome and from what
the rules found: silence of the rules is no evidence of health. Each signal has tests that need a
certain length: if a record is too short for all of them, nothing was tested that could have shown
trouble. A line of another program's log represents a stretch of the run, so a few lines can be
enough; the first sentence says how few.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ampwatch.diagnosis import thresholds
from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.column_arrays import Floats, median_of_known
from ampwatch.diagnosis.findings import Evidence, Outcome, Severity, Sign, State
from ampwatch.diagnosis.learning_rate import constants
from ampwatch.diagnosis.learning_rate.advice import Action, Advice
from ampwatch.diagnosis.learning_rate.noise import robust_deviation
from ampwatch.diagnosis.loss_outcome import LEAST, NOTHING, LossCourse, LossEnd, loss_course
from ampwatch.diagnosis.loss_progress import (
    LossSeries,
    no_progress,
    rate_leapt,
    series_of,
    series_of_case,
    without_bound,
)
from ampwatch.diagnosis.metric_outcome import (
    GOAL_REACHED,
    IN_BALANCE,
    LOST,
    explains_rise,
    is_nearly_learnt,
    metric_outcome,
    metric_showing,
    sign_of_lost_goal,
)
from ampwatch.diagnosis.value_text import count_text, two_digits

# The last rows, and how many of them show how the numbers ended.
_LAST, _MOST, _LINES = 20, 0.5, 2
# Skips in a row at the end: more than any search takes.
_NO_STEPS = 40
_RAISED, _GREW = 1.5, 1.5  # times: a learning rate, micro-batches; gradients
_LONG = 100  # losses: a climb that takes them is slow
_FAR = 4.0  # times its best: no other data make a loss so much higher
_FEW_SKIPS = 2  # of the last rows, of a training whose steps are taken
_ANNOUNCED, _RISING, _LEAP = 12, 1.2, 2.0  # entries before the loss rose; times: a rate
_LEFT, _MORE = 0.1, 0.9  # of the first losses: what is left where all is learnt
_RUNAWAY = 1000.0  # times the first loss, and finite: it grows from step to step
_MOMENTS, _TIMES_LEARNT = 0.1, 4  # of the record; times as long as half of all took to learn
_WORTH, _CALM = 0.15, 0.15  # of the first loss: a gain; of the gain: the noise where all is lost
_EXACT_ZEROS = 100  # rows of a table: no rounding hides a norm for so long

# How too high a learning rate shows itself, beside what rose before: counted in strangers'
# cases, or in no more than a few (the least at which a cause is named).
_ROSE_BEFORE = Sign("gradients or the learning rate had been rising before it", 0.9)
_RAN_AWAY = Sign("the loss grew from entry to entry", 0.6)
_FORGOTTEN = Sign("the loss went back to where it had begun, and learns nothing any more", 0.6)


def outcome_of(case: Case) -> Outcome:
    """The outcome of a finished case, computed once: the worst state that its rows show."""
    if case.outcome is None:
        found = next(_bad_states(case), None) or _of_loss(case)
        calm = found.severity is Severity.INFO
        case.outcome = (_ended_by_exception(case) or found) if calm else found
    return case.outcome


def _bad_states(case: Case) -> Iterator[Outcome]:
    """The states that no loss can outweigh, the surest first."""
    yield from _not_finite(case)
    yield from _no_steps(case)
    yield from _nothing_learns(case)


# --- numbers, steps, gradients --------------------------------------------------------------------


def _not_finite(case: Case) -> Iterator[Outcome]:
    """A loss that ended inf or NaN."""
    tail = case.rate.tail
    loss, bad = tail.of("loss"), tail.of("loss_bad") > 0
    told = np.flatnonzero(bad | np.isfinite(loss))
    lost = bad[told[-_LAST:]]
    streak = int(np.argmin(lost[::-1])) if not lost.all() else len(lost)
    # Of a log's few lines two are no chance; of single steps a batch or two may be bad.
    least = _LINES if len(told) < _LAST or not case.observed.every_step else _LAST // 4
    if streak and (
        case.loop_stopped
        or case.events.is_over_by(case.scale.last_step or 0)
        or lost.all()
        or streak >= least
        or (len(lost) == _LAST and lost.mean() >= _MOST)
    ):
        good = np.flatnonzero(~bad[told])
        since = told[good[-1] + 1] if len(good) else told[0]
        step = int(tail.of("step")[since])
        sign, at_once = _before(case, step)
        words = f"The loss is inf or NaN from step {step:,} on."
        evidence = Evidence("loss", step, "nan")
        yield Outcome(State.NOT_FINITE, step, ("loss",), words, sign, (evidence,), at_once)


def _no_steps(case: Case) -> Iterator[Outcome]:
    """A record whose last steps were all skipped, longer than a scaler searches."""
    skipped = case.rate.tail.of("skipped") > 0
    streak = len(skipped) - (int(np.flatnonzero(~skipped)[-1]) + 1 if not skipped.all() else 0)
    scale = case.final_scale
    is_dead = scale is not None and scale < thresholds.FLOOR_SCALE
    if streak >= (_NO_STEPS if not is_dead else 1):
        step = int(case.rate.tail.of("step")[-streak])
        words = f"Every step is skipped from step {step:,} on."
        evidence = Evidence("skipped", case.scale.last_step, float(streak))
        sign, at_once = _before(case, step)
        yield Outcome(State.NO_STEPS, step, ("skipped",), words, sign, (evidence,), at_once)


def _nothing_learns(case: Case) -> Iterator[Outcome]:
    """Gradients that are exactly zero to the end although the loss is not."""
    zeros, count = case.zeros, case.zeros.run.times.count
    # A text may round a small norm to zero; a loss that does not change either is no rounding.
    least = thresholds.NO_ACCIDENT_STEPS if case.observed.loop else _EXACT_ZEROS
    is_exact = case.observed.loop or case.observed.table or zeros.is_constant
    if is_exact and count >= least and not (zeros.is_lossless or _is_learnt(case)):
        step = zeros.run.times.first_step
        yield Outcome(
            State.NOTHING_LEARNS, step, ("grad_norm",),
            f"Every gradient is exactly zero from step {step:,} on.",
            evidence=(Evidence("grad_norm", zeros.run.times.last_step, 0.0),),
        )  # fmt: skip


def _is_learnt(case: Case) -> bool:
    """Whether training left nothing to learn; a table, whose layers are unknown, must show it."""
    zeros = case.zeros
    left = _MORE if case.observed.loop else _LEFT
    least = left * max(zeros.first_losses, default=0.0)
    return zeros.is_learnt and zeros.run.highest_loss <= least


def _ended_by_exception(case: Case) -> Outcome | None:
    """A program that an exception ended, however well it trained until then."""
    last = case.scale.last_step or 0
    if not case.events.fatal or not case.events.is_over_by(last):
        return None
    event = case.events.fatal[-1]
    words = f"The program ended by {event.exception} at step {event.step:,}."
    return Outcome(State.EXCEPTION, event.step, ("events",), words)


# --- the loss -------------------------------------------------------------------------------------


def _of_loss(case: Case) -> Outcome:
    """What the loss says of a record whose numbers are finite and whose steps are taken."""
    series = series_of_case(case)
    course = loss_course(series.loss)
    if not case.rate.is_whole and course.end in {LossEnd.LEARNING, LossEnd.FLAT}:
        series, course = _latest(case, series, course)
    if course.end is LossEnd.TOO_FEW:
        return Outcome(State.TOO_LITTLE)
    by_loss = _by_loss(case, series, course)
    shown = metric_outcome(case, course)
    if shown is None or shown.state is State.ADVERSARY_WON:
        return shown or by_loss
    if by_loss.state is State.RATE_LEAPT:
        return by_loss  # it says why
    if shown.severity.weight <= by_loss.severity.weight:
        return by_loss
    if shown.state is State.GOAL_LOST and len(shown.rests_on) == 1:  # no proxy was reached
        told = sign_of_lost_goal(case, shown.since_step or 0)
        if told is not None:
            name, sign = told
            return replace(shown, sign=sign, rests_on=(*shown.rests_on, name))
    return replace(shown, sign=by_loss.sign)  # what the loss did as well


def _by_loss(case: Case, series: LossSeries, course: LossCourse) -> Outcome:
    if len(case.rises.series) > 1:
        return Outcome(State.FLAT, None, ("loss",))  # each has a loss of its own
    takes_steps = (case.rate.tail.of("skipped")[-_LAST:] > 0).sum() <= _FEW_SKIPS
    not_best = course.end is not LossEnd.LEARNING
    has_goal = metric_showing(case, GOAL_REACHED) is not None
    is_even = metric_showing(case, IN_BALANCE) is not None
    balanced = is_even and course.last < _FAR * max(course.first, course.best)
    if takes_steps and (balanced or (not_best and has_goal)):
        return Outcome(State.LEARNING, None, ("loss", "metrics"), is_explained=True)
    if takes_steps and (leapt := rate_leapt(case, series)) is not None:
        return leapt
    if takes_steps and not has_goal and (lost := without_bound(series)) is not None:
        return lost
    ended_calm = course.end in {LossEnd.LEARNING, LossEnd.FLAT}
    shows_none = ended_calm and not (has_goal or is_nearly_learnt(case))
    if shows_none and (still := no_progress(case, series, course)) is not None:
        return still
    if course.end is not LossEnd.WORSE and _is_lost(series, course):
        return _worse(case, series, replace(course, end=LossEnd.WORSE))
    if course.end is LossEnd.LEARNING and takes_steps and not _is_doubted(case, series, course):
        return Outcome(State.LEARNING, None, ("loss",))
    if course.end in {LossEnd.LEARNING, LossEnd.FLAT}:
        return Outcome(State.FLAT, None, ("loss",))
    return _worse(case, series, course)


def _latest(case: Case, series: LossSeries, course: LossCourse) -> tuple[LossSeries, LossCourse]:
    """The last rows by themselves, if the loss left there all that it was for half of the run.

    The points of a long run do not show what began a moment ago.
    """
    rows = series_of(case.rate.tail)
    recent = loss_course(rows.loss)
    if recent.end not in {LossEnd.HIGHER, LossEnd.NOT_BACK, LossEnd.WORSE}:
        return series, course
    before = series.loss[series.step < rows.step[recent.since]]
    if recent.last <= before[len(before) // 2 :].max(initial=0.0):
        return series, course
    return rows, replace(recent, first=course.first)


def _is_doubted(case: Case, series: LossSeries, course: LossCourse) -> bool:
    """Whether a loss that fell little stands against a learning rate that looks too high.

    A loss that such a rate threw up at once comes down for long, to where it had begun.
    """
    first = min(course.first, float(series.loss[0]))
    return case.judgement.onset is not None and 0 < course.last > (1 - _WORTH) * first


def _before(case: Case, step: int) -> tuple[Sign | None, bool]:
    """What announced a trouble at this step, and whether the loss was at its best until then."""
    series = series_of_case(case)
    since = int(np.searchsorted(series.step, step))
    course = loss_course(series.loss[:since])
    calm = course.end is LossEnd.LEARNING and not _is_doubted(case, series, course)
    sign = _ROSE_BEFORE if _is_announced(series, since) else None
    if not sign and _ran_away(series.loss[:since]):
        sign = _RAN_AWAY
    return sign, calm and not sign


def _ran_away(loss: Floats) -> bool:
    """Whether the last losses grew from each to the next, far beyond all before them."""
    falls = np.flatnonzero(np.diff(loss) <= 0)
    top = int(falls[-1]) + 1 if len(falls) else 0
    usual = np.abs(loss[: top + 1]).max(initial=NOTHING)
    return len(loss) - 1 - top >= LEAST and bool(loss[-1] >= _FAR * usual)


def _is_announced(series: LossSeries, since: int) -> bool:
    """Whether gradients or the learning rate rose for long before the loss did.

    Too high a learning rate announces itself so; other data come at once.
    """
    begin = max(0, since - max(_ANNOUNCED, len(series.step) // 4))
    norm, lr = series.norm[begin:since], series.lr[begin : since + 1]
    third = len(norm) // 3
    for column, times in ((norm, _GREW), (lr[:-1], _RISING)) if third >= LEAST else ():
        early, late = median_of_known(column[:third]), median_of_known(column[-third:])
        if late >= times * early > 0:
            return True
    known = lr[np.isfinite(lr)][-2 * LEAST :]
    # A leap within one entry is a change by hand, and has a finding of its own.
    rises = len(known) > LEAST and bool((np.diff(known) >= 0).all())
    leapt = rises and known[-1] >= _LEAP * known[-2]
    return bool(rises and not leapt and known[-1] >= _RISING * known[0] > 0)


def _worse(case: Case, series: LossSeries, course: LossCourse) -> Outcome:
    """A loss that ended above its best, unless something that is recorded explains it."""
    since = course.since
    times = _norm_times(series, since)
    grew = times is not None and times >= _GREW
    if explains_rise(case, series.step, series.loss, since):
        return Outcome(State.LEARNING, None, ("loss", "metrics"), is_explained=True)
    lost = _is_lost(series, course)
    explained = _is_explained(case, series, course) and not lost
    if explained or (course.wanders and not grew):
        return Outcome(State.LEARNING, None, ("loss", "lr"))
    stayed, rose = times is not None and not grew, course.last / max(course.best, 1e-12)
    slow = not course.is_abrupt and not grew and rose < _FAR and not lost
    # Best in its first moments only, and far below its first loss: values that are learnt from
    # themselves grow so.
    early = since <= _MOMENTS * len(series.loss) and course.last <= _MOST * series.loss[0]
    if (slow and (stayed or len(series.loss) >= _LONG)) or early:
        return Outcome(State.FLAT, None, ("loss", "grad_norm"))  # as an adversary's or a reward's
    step = int(series.step[since])
    # Gradients that grow as the loss does follow it; without any, only a leap far up is sure.
    alone = course.is_abrupt and course.last > course.first
    alone |= rose >= _FAR and course.best > 0
    sign = _ROSE_BEFORE if _is_announced(series, since) else None
    sure = bool(sign) or lost or (alone if times is None else grew and times > rose)
    runaway = course.last >= _RUNAWAY * course.first > NOTHING
    if not sign and (runaway or _is_forgotten(series, course)):
        sign = _RAN_AWAY if runaway else _FORGOTTEN
    state = State.WORSE if course.end is LossEnd.WORSE and (sure or runaway) else State.NOT_BACK
    if course.end is not LossEnd.NOT_BACK and state is not State.WORSE:
        state = State.ANOTHER_LEVEL
    low, high = two_digits(course.best), two_digits(course.last)
    ending = {
        State.WORSE: "and has not come back",
        State.NOT_BACK: "and is not back yet",
        State.ANOTHER_LEVEL: "while the gradients stayed as they were" if stayed
        else "and has stayed there",
    }[state]  # fmt: skip
    words = f"The loss rose from {low} to {high}, from step {step:,} on, {ending}."
    evidence = Evidence("loss_peak", step, course.peak, course.best, "before")
    # Other data, or other labels, lift the loss within a few steps, and leave the gradients.
    at_once = course.is_abrupt and stayed and not sign
    return Outcome(state, step, ("loss",), words, sign, (evidence,), at_once)


def _is_lost(series: LossSeries, course: LossCourse) -> bool:
    """Whether the loss went back to where it began, or far up, and has stood there ever since."""
    count, gained, height = len(series.loss), course.first - course.best, course.last - course.best
    late = series.loss[-max(LEAST, count // 3) :]
    was_won = gained >= _WORTH * course.first > 0 and course.best > 0
    is_up = height >= LOST * gained or course.last >= _FAR * course.best
    stands = course.since <= 2 * count // 3 and robust_deviation(late) <= _CALM * height
    times = _norm_times(series, course.since)
    as_before = times is not None and 1 / _GREW <= times <= _GREW  # the task may be another one
    is_lost = count >= _LONG and was_won and is_up and stands and not as_before
    return is_lost or _is_forgotten(series, course)


def _is_forgotten(series: LossSeries, course: LossCourse) -> bool:
    """Whether the loss leapt to where it had begun, and stands there for longer than it learnt.

    Other data lift it elsewhere, or it falls again. Gradients, where there are any, tell more.
    """
    loss, height = series.loss, course.last - course.best
    first, late = float(loss[0]), loss[course.since + LEAST :]
    if not 0 < course.best <= _MOST * first or np.isfinite(series.norm).any():
        return False
    learnt = int(np.argmax(loss <= (first + course.best) / 2))
    is_back = _MOST * first <= course.last <= first / _MOST
    stands = max(course.peak - course.last, robust_deviation(late)) <= _CALM * height
    return is_back and stands and len(late) >= max(_ANNOUNCED, _TIMES_LEARNT * learnt)


def _norm_times(series: LossSeries, since: int) -> float | None:
    """How many times higher the gradient norm is since the loss rose; None where it is unknown."""
    before = median_of_known(series.norm[:since][-len(series.norm) // 4 :])
    after = median_of_known(series.norm[since:])
    return after / before if before > 0 and np.isfinite(after) else None


def _is_explained(case: Case, series: LossSeries, course: LossCourse) -> bool:
    """Whether a restart of the schedule or larger batches explain a rise that is not worse."""
    since = course.since
    before, after = (median_of_known(part) for part in (series.lr[:since][-5:], series.lr[since:]))
    earlier = series.lr[:since][np.isfinite(series.lr[:since])]
    # A restart goes back to where it has been; a warm-up explains nothing.
    is_raised = earlier.max(initial=0.0) >= after / _RAISED and after > _RAISED * before > 0
    first, most = case.scale.micro_batches
    is_summed = most > _RAISED * first
    now = max(course.last, median_of_known(case.rate.tail.of("loss")[-_LAST:]))
    return (is_raised or is_summed) and now <= course.first


# With fewer kinds of signals than this the first sentence names them: a reader of "healthy" should
# know that only the loss was recorded.
_SIGNALS_ENOUGH = 3
FEWEST_LINES = 5  # of a log: fewer losses show neither health nor trouble


def _signals(case: Case) -> tuple[str, ...]:
    """The signals that the record holds, in words, on which a verdict is based."""
    told, updates = case.numbers.told, case.rate.head.of("update_norm")
    seen = {
        "the loss": "loss" in told,
        "the loss scale": case.scale.has_scaler,
        "the gradient norm": "grad_norm" in told,
        "the updates": bool(np.isfinite(updates).any()),
        "the layers": case.numbers.sees_forward,
        "the layers' casts": bool(case.casts.operands or case.casts.staleness),
    }
    return tuple(words for words, there in seen.items() if there)


def is_long_enough(case: Case) -> bool:
    """Whether at least one signal has enough steps for the shortest test of it."""
    rows = case.rate.head
    losses, norms = (int(np.isfinite(rows.of(name)).sum()) for name in ("loss", "grad_norm"))
    scales = case.rate.accepted if case.scale.has_scaler else 0
    return (
        losses >= constants.NO_LEARNING_STEPS
        or scales >= thresholds.STORM_WINDOW_STEPS
        or norms >= thresholds.DRIFT_ROWS
    )


def is_too_short(case: Case, outcome: Outcome) -> bool:
    """Whether a record ended before it had enough steps or lines to judge anything."""
    if case.observed.loop:
        return not is_long_enough(case)
    has_loss, few = "loss" in case.numbers.told, case.scale.entries < FEWEST_LINES
    little = outcome.state is State.TOO_LITTLE or (few and outcome.severity is Severity.INFO)
    return has_loss and little and not case.scale.has_scaler


def little_seen(case: Case) -> str | None:
    """The sentence that says how little the record holds to judge by; None if it is enough."""
    if case.is_searching or case.is_one_line:
        return None
    signals = _signals(case)
    by = " and ".join(signals) or "skipped steps"
    little = len(signals) < _SIGNALS_ENOUGH
    if not is_long_enough(case):
        length = count_text(case.scale.entries, "step" if case.observed.loop else "line")
        only = f"; {by} only" if little else ""
        return f"No problems found in {length}, too few to judge the learning rate{only}."
    return f"No problems found, judged by {by} only." if little else None


def unsure_advice(advice: Advice, case: Case) -> Advice:
    """The advice for a run with too few steps to judge its rate: no evidence is no proof."""
    if advice.action not in {Action.KEEP, Action.NOT_THE_CAUSE}:
        return advice
    steps = count_text(case.scale.entries, "step")
    because = f"{steps} are too few to judge the rate; they show nothing against it."
    return Advice(Action.UNKNOWN, because, current=advice.current)
