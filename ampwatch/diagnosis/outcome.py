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
from ampwatch.diagnosis.column_arrays import Floats, median, median_of_known
from ampwatch.diagnosis.findings import Outcome, Severity, Sign, State
from ampwatch.diagnosis.learning_rate.constants import NOTHING
from ampwatch.diagnosis.learning_rate.noise import (
    robust_deviation,
    rounding_unit,
    trailing_medians,
)
from ampwatch.diagnosis.learning_rate.trouble import OnsetSign
from ampwatch.diagnosis.loss_outcome import LEAST, LossCourse, LossEnd, loss_course
from ampwatch.diagnosis.loss_series import (
    FIFTHS,
    LONG,
    RUNAWAY,
    LossSeries,
    series_of,
    series_of_case,
    settled_at_once,
    without_bound,
)
from ampwatch.diagnosis.metric_outcome import (
    LOST,
    beats_a_guess,
    explains_rise,
    first_metric,
    is_in_balance,
    is_nearly_learnt,
    is_reached,
    metric_outcome,
    sign_of_lost_goal,
)
from ampwatch.diagnosis.value_text import Evidence, count_text, rate_text, two_digits
from ampwatch.metric_names import Metric

# The last rows, and how many of them show how the numbers ended.
_LAST, _MOST, _LINES = 20, 0.5, 2
_RAISED, _GREW = 1.5, 1.5  # times: a learning rate, micro-batches; gradients
_FAR = 4.0  # times its best: no other data make a loss so much higher
_FEW_SKIPS = 2  # of the last rows, of a training whose steps are taken
_ANNOUNCED, _RISING, _LEAP = 12, 1.2, 2.0  # entries before the loss rose; times: a rate
_LEFT, _MORE = 0.1, 0.9  # of the first losses: what is left where all is learnt
_BEYOND = 1e6  # times the first loss: no return of rewards grows so far
_MOMENTS, _TIMES_LEARNT = 0.1, 4  # of the record; times as long as half of all took to learn
_WORTH, _CALM = 0.15, 0.15  # of the first loss: a gain; of the gain: the noise where all is lost
_TURNED_PARTS = 4  # since its top the loss fell from each to the next: of noise 1 in 24 does
_EXACT_ZEROS = 100  # rows of a table: no rounding hides a norm for so long

# How too high a learning rate shows itself, beside what rose before: counted in strangers'
# cases, or in no more than a few (the least at which a cause is named).
_ROSE_BEFORE = Sign("gradients or the learning rate had been rising before it", 0.9)
_RAN_AWAY = Sign("the loss grew from entry to entry", 0.6)
_FORGOTTEN = Sign("the loss went back to where it had begun, and learns nothing any more", 0.6)


def outcome_of(case: Case) -> Outcome:
    """The outcome of a finished case, computed once: the worst state that its rows show."""
    if case.outcome is None:
        outcome = next(_bad_states(case), None) or _of_loss(case)
        calm = outcome.severity is Severity.INFO
        case.outcome = (_ended_by_exception(case) or outcome) if calm else outcome
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
    entries = np.flatnonzero(bad | np.isfinite(loss))
    lost = bad[entries[-_LAST:]]
    streak = int(np.argmin(lost[::-1])) if not lost.all() else len(lost)
    # Of a log's few lines two are no chance; of single steps a batch or two may be bad.
    least = _LINES if len(entries) < _LAST or not case.observed.every_step else _LAST // 4
    if streak and (
        case.loop_stopped
        or case.events.is_over_by(case.scale.last_step or 0)
        or lost.all()
        or streak >= least
        or (len(lost) == _LAST and lost.mean() >= _MOST)
    ):
        good = np.flatnonzero(~bad[entries])
        since = entries[good[-1] + 1] if len(good) else entries[0]
        step = int(tail.of("step")[since])
        sign, at_once = announced(case, step)
        words = f"The loss is inf or NaN from step {step:,} on."
        evidence = Evidence("loss", step, "nan")
        yield Outcome(State.NOT_FINITE, step, ("loss",), words, sign, (evidence,), at_once)


def _no_steps(case: Case) -> Iterator[Outcome]:
    """A record whose last steps were all skipped, longer than a scaler searches."""
    skipped = case.rate.tail.of("skipped") > 0
    streak = len(skipped) - (int(np.flatnonzero(~skipped)[-1]) + 1 if not skipped.all() else 0)
    scale = case.final_scale
    is_dead = scale is not None and scale < thresholds.FLOOR_SCALE
    if streak >= (thresholds.LONGEST_SEARCH if not is_dead else 1):
        step = int(case.rate.tail.of("step")[-streak])
        words = f"Every step is skipped from step {step:,} on."
        evidence = Evidence("skipped", case.scale.last_step, float(streak))
        sign, at_once = announced(case, step)
        yield Outcome(State.NO_STEPS, step, ("skipped",), words, sign, (evidence,), at_once)


def _nothing_learns(case: Case) -> Iterator[Outcome]:
    """Gradients that are exactly zero to the end although the loss is not."""
    zeros, count = case.zeros, case.zeros.run.times.count
    # A text may round a small norm to zero; a loss that does not change either is no rounding.
    sure = case.observed.loop or zeros.is_constant
    least = thresholds.NO_ACCIDENT_STEPS if sure else _EXACT_ZEROS
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
    by_metrics = metric_outcome(case, course)
    if by_metrics is None or by_metrics.state is State.ADVERSARY_WON:
        return by_metrics or by_loss
    if by_loss.rate_went_up:
        return by_loss  # it says why
    if by_metrics.severity.weight <= by_loss.severity.weight:
        return by_loss
    if (
        by_metrics.state is State.GOAL_LOST and len(by_metrics.rests_on) == 1
    ):  # no proxy was reached
        explanation = sign_of_lost_goal(case, by_metrics.since_step or 0)
        if explanation is not None:
            name, sign = explanation
            return replace(by_metrics, sign=sign, rests_on=(*by_metrics.rests_on, name))
    return replace(by_metrics, sign=by_loss.sign)  # what the loss did as well


def _by_loss(case: Case, series: LossSeries, course: LossCourse) -> Outcome:
    if len(case.rises.series) > 1:  # each has a loss of its own, which may grow with a return
        beyond = course.last >= _BEYOND * course.first > NOTHING
        flat = Outcome(State.FLAT, None, ("loss",))
        return replace(_worse(case, series, course), sign=None) if beyond else flat
    takes_steps = (case.rate.tail.of("skipped")[-_LAST:] > 0).sum() <= _FEW_SKIPS
    not_best = course.end is not LossEnd.LEARNING or _is_doubted(case, series, course)
    has_goal = first_metric(case, Metric.GOAL, is_reached) is not None
    is_even = first_metric(case, Metric.ADVERSARY, is_in_balance) is not None
    balanced = is_even and course.last < _FAR * max(course.first, course.best)
    if takes_steps and not balanced and (leapt := rate_leapt(case, series, course)) is not None:
        return leapt
    if takes_steps and (balanced or (not_best and has_goal)):
        return Outcome(State.LEARNING, None, ("loss", "metrics"), is_explained=True)
    if takes_steps and not has_goal and (lost := without_bound(series)) is not None:
        return lost
    ended_calm = course.end in {LossEnd.LEARNING, LossEnd.FLAT}
    if ended_calm and not has_goal and (settled := settled_at_once(series)) is not None:
        return settled
    shows_none = ended_calm and not (has_goal or is_nearly_learnt(case) or beats_a_guess(case))
    if shows_none and (still := no_progress(case, series, course)) is not None:
        return still
    if course.end is not LossEnd.WORSE and _is_lost(series, course):
        return _worse(case, series, replace(course, end=LossEnd.WORSE))
    if not not_best and takes_steps:
        return Outcome(State.LEARNING, None, ("loss",))
    if course.end in {LossEnd.LEARNING, LossEnd.FLAT}:
        return _above_its_start(case, series, course) or Outcome(State.FLAT, None, ("loss",))
    return _worse(case, series, course)


def _above_its_start(case: Case, series: LossSeries, course: LossCourse) -> Outcome | None:
    """A loss that left its first values, slowly or within a few steps, and never came back to them.

    The points of a long record may all lie above them.
    """
    began, step = median_of_known(case.rate.head.of("loss")[:LEAST]), case.scale.first_step or 0
    onset = case.judgement.onset
    stays = series.loss[1:].min(initial=course.last) >= began > NOTHING
    if not stays or onset is None or onset.sign is not OnsetSign.CLIMB:
        return None
    early, late = (rows.of("grad_norm") for rows in (case.rate.head.part(0, LEAST), case.rate.tail))
    if _falls_since(series.loss, began) and median_of_known(late) <= median_of_known(early):
        return None  # such as a task that grows harder at first: no learning rate throws it up
    low, high = two_digits(began), two_digits(course.last)
    words = f"The loss rose from {low} to {high}, from its first steps on, and has stayed there."
    evidence = Evidence("loss_peak", step, course.last, began, "at first")
    return Outcome(State.ANOTHER_LEVEL, step, ("loss",), words, evidence=(evidence,))


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


def announced(case: Case, step: int) -> tuple[Sign | None, bool]:
    """What announced a trouble at this step, and whether the loss was at its best until then."""
    series = series_of_case(case)
    since = int(np.searchsorted(series.step, step))
    course = loss_course(series.loss[:since])
    calm = course.end is LossEnd.LEARNING and not _is_doubted(case, series, course)
    sign = _ROSE_BEFORE if _is_announced(series, since) else None
    sign = sign or (_RAN_AWAY if _ran_away(series.loss[:since]) else None)
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
    rates = lr[np.isfinite(lr)][-2 * LEAST :]
    # A leap within one entry is a change by hand, and has a finding of its own.
    rises = len(rates) > LEAST and bool((np.diff(rates) >= 0).all()) and not _falls(norm)
    leapt = rises and rates[-1] >= _LEAP * rates[-2]
    return bool(rises and not leapt and rates[-1] >= _RISING * rates[0] > 0)


def _falls(norm: Floats) -> bool:
    """Whether gradients became smaller to the last, which no learning rate too high does."""
    told = norm[np.isfinite(norm)]
    return len(told) > LEAST and told[-1] <= min(told[0], median(told))


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
    if not lost and _is_hump(series, course):
        return Outcome(State.FLAT, None, ("loss",))  # as of values that are learnt from themselves
    # Best in its first moments only, and far below its first loss: values that are learnt from
    # themselves grow so.
    fell = course.last <= _MOST * series.loss[0] or (
        stayed and _falls_since(series.loss, course.best)
    )
    early = fell and since <= _MOMENTS * len(series.loss)
    if early or (slow and (stayed or len(series.loss) >= LONG)):
        flat = Outcome(State.FLAT, None, ("loss", "grad_norm"))  # as an adversary's or a reward's
        return _above_its_start(case, series, course) or flat
    step = int(series.step[since])
    # Gradients that grow as the loss does follow it; without any, only a leap far up is sure.
    alone = course.is_abrupt and course.last > course.first
    alone |= rose >= _FAR and course.best > 0
    sign = _ROSE_BEFORE if _is_announced(series, since) else None
    sure = bool(sign) or lost or (alone if times is None else grew and times > rose)
    runaway = course.last >= RUNAWAY * course.first > NOTHING
    if not sign and (runaway or _is_forgotten(series, course)):
        sign = _RAN_AWAY if runaway else _FORGOTTEN
    # A critic's part grows with what it values: alone it is no sure sign.
    sure &= not any(case.metrics.of(Metric.VALUE_LOSS))
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


def _falls_since(loss: Floats, best: float) -> bool:
    """Whether a loss has fallen ever since its first moments, in which it did not rise far."""
    parts = [median(part) for part in np.array_split(loss, FIFTHS)[1:]]
    return len(loss) >= LONG and loss.max() < _FAR * best and bool((np.diff(parts) < 0).all())


def _is_hump(series: LossSeries, course: LossCourse) -> bool:
    """Whether the loss rose slowly, turned, and has come most of the way back by itself.

    Not where the learning rate came down since: then the schedule may have brought it back.
    """
    if course.end is LossEnd.WORSE or len(series.loss) < LONG:
        return False
    size = max(LEAST, len(series.loss) // _LEAP_PARTS)
    smooth = trailing_medians(series.loss, size)[course.since :]
    top, climb = int(smooth.argmax()), float(smooth.max()) - course.best
    half = course.best + _MOST * climb
    steep = int((smooth[: top + 1] < half).sum())
    lr = series.lr[course.since :]
    decayed = median_of_known(lr[-size:]) < _MORE * median_of_known(lr[: top + 1][-size:])
    parts = [median(part) for part in np.array_split(smooth[top:], _TURNED_PARTS) if len(part)]
    falls = len(parts) == _TURNED_PARTS and bool((np.diff(parts) < 0).all())
    is_slow = steep >= len(series.loss) // _LEAP_PARTS
    return is_slow and falls and bool(smooth[-1] <= half) and not decayed


def _is_lost(series: LossSeries, course: LossCourse) -> bool:
    """Whether the loss went back to where it began, or far up, and has stood there ever since."""
    count, gained, height = len(series.loss), course.first - course.best, course.last - course.best
    late = series.loss[-max(LEAST, count // 3) :]
    was_won = gained >= _WORTH * course.first > 0 and course.best > 0
    is_up = height >= LOST * gained or course.last >= _FAR * course.best
    stands = course.since <= 2 * count // 3 and robust_deviation(late) <= _CALM * height
    times = _norm_times(series, course.since)
    as_before = times is not None and 1 / _GREW <= times <= _GREW  # the task may be another one
    is_lost = count >= LONG and was_won and is_up and stands and not as_before
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


# --- progress: a loss that hardly falls, a schedule that was lost, a loss without bound -----------


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
_LEAP_WORSE, _DEVIATIONS = 1.05, 3.0


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
    error = noise / np.sqrt(count / 10) / level
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
    norms = series.norm[np.isfinite(series.norm)]
    if len(norms) > _MOST * len(series.norm):
        return median(norms) > 0
    return median_of_known(case.rate.tail.of("update_norm")) > 0


def _is_beginning(case: Case, series: LossSeries) -> bool:
    """Whether the record begins where the training began, with random weights."""
    apart = float(np.median(np.diff(series.step))) if len(series.step) > 1 else 1.0
    begins = bool(series.step[0] <= 3 * apart + 1)
    return begins and not (case.observed.loop and case.rate.setup.resumed)


def rate_leapt(case: Case, series: LossSeries, course: LossCourse) -> Outcome | None:
    """A loss that has stood higher since the learning rate, once decayed, went back up.

    Restarts that are meant come again, or come down again: one that does neither is a schedule that
    was lost, as by a resume, or whose period is shorter than the run.
    """
    is_known = np.isfinite(series.lr) & (series.lr > 0)
    lr, loss, step = series.lr[is_known], series.loss[is_known], series.step[is_known]
    if len(lr) < LONG or loss.min() <= 0 or (low_at := _lowest_decayed(lr)) is None:
        return None
    wide = max(1, len(lr) // _LEAP_PARTS)
    # A warm-up that began anew went down at once: what was before that counts.
    earlier = max(0, low_at - wide)
    at = earlier if lr[earlier] >= _LEAPT * lr[low_at] else low_at
    least = lr[at] if lr[low_at:].max() >= _LEAPT * lr[at] else lr[low_at]
    up = low_at + np.flatnonzero(lr[low_at:] >= _LEAPT * least)
    if not len(up) or len(lr) - up[0] < _LEAP_SHARE * len(lr) or lr[-1] < _STILL_UP * lr[up].max():
        return None
    since, few = int(up[0]), max(LEAST, len(lr) // _LEAP_PARTS)
    if explains_rise(case, step, loss, since):
        return None
    before, late = loss[max(0, at - few) : at + 1], loss[-few:]
    low, high = median(before), median(late)
    noise = _DEVIATIONS * robust_deviation(loss[at - at // 2 : at + 1]) / np.sqrt(few)
    if high < _LEAP_WORSE * low or high - low <= noise:
        return None
    rates = f"from {rate_text(least)} to {rate_text(lr[up].max())}"
    is_leap = lr[min(since + wide, len(lr) - 1)] >= _STILL_UP * lr[up].max()
    how = f"when the learning rate leapt {rates}, about step {int(step[since]):,}, and is not back"
    if not is_leap:
        how = f"while the learning rate climbed again {rates}, from step {int(step[low_at]):,} on"
    words = f"The loss rose from {two_digits(low)} to {two_digits(high)} {how}."
    first = int(step[since if is_leap else low_at])
    evidence = Evidence("lr", first, float(lr[up].max()), float(least), "before")
    state = State.RATE_CLIMBS
    if is_leap:
        state = State.LOST_BY_LEAP if course.end is LossEnd.WORSE else State.RATE_LEAPT
    return Outcome(state, first, ("loss", "lr"), words, evidence=(evidence,))


def _lowest_decayed(lr: Floats) -> int | None:
    """Where a learning rate was lowest after it had decayed; None if it went up and down before."""
    decayed = np.flatnonzero(np.maximum.accumulate(lr) >= _DECAYED * lr)
    if not len(decayed):
        return None
    begin = int(decayed[0])
    lowest = len(lr) - 1 - int(np.argmin(lr[begin:][::-1]))
    until = lr[begin : lowest + 1]
    return None if (until >= _LEAPT * np.minimum.accumulate(until)).any() else lowest


# --- what to do -----------------------------------------------------------------------------------


# Where rollout and training grew apart: why, and what to do about it.
APART = (
    "Rollout and training had grown apart: what samples was no longer what is trained.",
    (
        "Go back to the checkpoint of the best value. Give rollout and training the same weights, "
        "number format and kernels, or weigh each token by the ratio of its two probabilities."
    ),
)
# What to do about a loss that rose from its first step on.
FROM_ITS_START = (
    "Check what the loss is made of: a wrong sign, a penalty whose weight grows, a sum or a queue "
    "that grows with each step. If it is as it should be, try a lower learning rate."
)
# What to do about an outcome where no rule has found why; of the others it is the page's.
_BEFORE_THE_LEAP = (
    "Set the learning rate back to what it was before that step. If it came with a resume, load "
    "the scheduler's state, and the optimizer's, from the checkpoint as well."
)
REMEDIES = {
    State.WORSE: "Lower the learning rate. If that does not help, look at the batches around the "
    "step at which the loss rose. Record the gradient norm: it tells bad batches from a learning "
    "rate that is too high.",
    State.NOT_BACK: "Check what changed at that step: the data, the weights of the loss's terms, "
    "the schedule. If nothing did, lower the learning rate.",
    State.ANOTHER_LEVEL: "Check whether the data or the task changed at that step.",
    State.WITHOUT_END: "Bound what is made large: normalise it, or put a log-sigmoid, a margin or "
    "a penalty on it. A lower learning rate only puts it off.",
    State.SETTLED: "Look whether the model's outputs differ from input to input: they may have "
    "become all alike. Learning without labels needs something against that: a stop-gradient, "
    "negative pairs, a term for their spread. If the task is so easy, nothing is wrong.",
    State.WIDER: "Lower the learning rate, of the critic or adversary first, or damp it: weight "
    "decay, a gradient penalty, clipping.",
    State.NOT_FINITE: "Attach ampwatch to the training: it names the first layer whose numbers are "
    "inf or NaN. Until then, try bf16 or a lower learning rate.",
    State.NO_STEPS: "Stop: nothing is learnt. Attach ampwatch to the training: it names the layer "
    "whose gradients overflow.",
    State.HARDLY_FALLS: "Check the labels, and that inputs and labels belong together. Then try a "
    "learning rate ten times higher, and ten times lower. If this continues a trained model, it "
    "may be all there is to learn.",
    State.RATE_LEAPT: _BEFORE_THE_LEAP,
    State.LOST_BY_LEAP: _BEFORE_THE_LEAP,
    State.RATE_CLIMBS: "Go back to the checkpoint from where the learning rate was lowest. Make "
    "the schedule's period as long as the run; after a resume, load the scheduler's state. If the "
    "schedule is meant to go up and down, wait until it has come down.",
    State.GOAL_FALLS: "Keep the checkpoint of the best value. If it does not come back, go on from "
    "there with a lower learning rate.",
    State.NOTHING_LEARNS: "Check that the loss depends on the parameters that the optimizer has.",
}
