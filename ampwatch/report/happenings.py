"""What happened in a run and when, read from its rows alone: the letter's short list of steps.

Whatever the diagnosis concludes, these are plain readings: where the loss left its level, where
gradients grew, which steps were skipped, from where on numbers are not finite. The diagnosis only
says near which step to look, and which layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ampwatch.diagnosis import Diagnosis
from ampwatch.diagnosis.column_arrays import Integers
from ampwatch.diagnosis.findings import Finding, State
from ampwatch.report.facts import telling_step
from ampwatch.report.letter_facts import Fact, FactReader, Holds, Name, Reading, Sentence, Series
from ampwatch.rows import LR_LEAP, EventKind, Table

_LEVEL_ENTRIES = 10  # whose median is the level before
_BLOCKS, _PATIENCE = 30, 6  # of the entries before the trouble; as many may be no lower
_STAYS = " and does not come back"  # of a loss that stays above its level
_LEAST_ENTRIES = 3
_MUCH = 4.0  # times: growth of a norm or of an activation that is worth a line
_LOSS_RISE = 1.5  # times the level before
_CALM_STEPS = 20  # accepted steps between two stretches of skips
_BURST = 5  # skips in one stretch
_DENSE = 0.5  # of the steps from there on are skipped
_NEAR_END = 2  # entries: skips that reach so far go on at the end of the run
_SCALE_FALL = 16.0  # times
_ZERO_TO_THE_END = "the log shows a loss of zero to the end"
_NAN_AS_ZERO = "the loss is NaN to the end; this log shows zero for it"
_SHORTLY, _BEGINNING = 30, 10  # steps before the trouble; entries of a warm-up
_ROSE = frozenset((State.WORSE, State.NOT_BACK, State.ANOTHER_LEVEL))
_OF_LOSS = frozenset(("AMP206", "AMP303"))
_PROGRESS = 0.9  # a loss above this part of its first level did not come down


@dataclass(frozen=True, slots=True)
class Happening:
    """A step and what stands in its rows; without a step: of the whole run."""

    step: Fact | None
    words: Sentence

    @property
    def facts(self) -> tuple[Fact, ...]:
        """The facts of the line."""
        own = () if self.step is None else (self.step,)
        return (*own, *self.words.facts)


@dataclass(frozen=True, slots=True)
class Course:
    """What the rows show of a run's course; None where it did not happen or is not recorded."""

    reader: FactReader
    loss_level: Fact | None  # the median of the entries before the trouble
    loss_left: Fact | None  # the step from which on the loss stays above that level
    loss_peak: Fact | None
    loss_lost: Fact | None  # the step from which on the loss is not finite
    skips_from: Fact | None  # the first step of the stretch of skips that reaches the end
    skips: Fact | None
    skips_of: Fact | None  # the steps of that stretch
    norm_lost: Fact | None  # the step from which on unskipped gradient norms are not finite

    @property
    def begin(self) -> Fact | None:
        """The step at which the trouble first shows in loss, skips or gradient norms."""
        several = (self.loss_left, self.loss_lost, self.skips_from, self.norm_lost)
        lines = [one for one in several if one]
        return min(lines, key=lambda fact: fact.value, default=None)


def course_of(reader: FactReader, diagnosis: Diagnosis) -> Course:
    """The course of a run's loss and skips around its trouble."""
    level, left, peak = _loss_course(reader, telling_step(diagnosis))
    return Course(
        reader, level, left, peak, _lost(reader, "loss"), *_skip_course(reader), _norm_lost(reader)
    )


def _norm_lost(reader: FactReader) -> Fact | None:
    """The step from which on gradient norms are not finite, where nothing skips such steps."""
    lost = reader.holding("grad_norm", Holds.NOT_FINITE)
    if not len(np.setdiff1d(lost, reader.holding("skipped", Holds.TRUE))):
        return None
    return _lost(reader, "grad_norm")


def _lost(reader: FactReader, column: str) -> Fact | None:
    """The step from which on a column is not finite; None if half of such values are before it."""
    lost = reader.since(column, Holds.NOT_FINITE)
    if lost is None:
        return None
    steps = reader.holding(column, Holds.NOT_FINITE)
    before = int((steps < lost.value).sum())
    return None if 2 * before >= len(steps) else lost


def _loss_course(
    reader: FactReader, hint: int | None
) -> tuple[Fact | None, Fact | None, Fact | None]:
    losses = reader.series("loss").finite
    least = min(_LEAST_ENTRIES, len(losses) // 2)
    if hint is None or not least:
        return None, None, None
    before = losses.within(None, hint - 1)
    if len(before) < least:
        return None, None, None
    span = _span_before_rise(before)
    level = reader.fact(Reading.MEDIAN, "loss", int(span[0]), int(span[-1]))
    peak = reader.fact(Reading.HIGHEST, "loss", int(span[-1]) + 1, None)
    if level is None or peak is None or not 0 < _LOSS_RISE * level.value <= peak.value:
        return level, None, None
    lines = _LOSS_RISE * level.value, level.value
    left = next(filter(None, (reader.since("loss", Holds.ABOVE, line) for line in lines)), None)
    at = reader.fact(Reading.STEP_OF_HIGHEST, "loss", peak.first, peak.last)
    if left is not None and left.value > peak_step(at):
        left = None  # the loss had risen and come back before: its last steps are no beginning
    return level, left, peak


def _span_before_rise(before: Series) -> Integers:
    """The steps whose median is the loss before it rose.

    Back from the trouble as far as the loss was lower before: it may have risen for long before
    anything else showed.
    """
    size = max(min(len(before) // _BLOCKS, _LEVEL_ENTRIES), len(before) // 100)
    size = max(size, _LEAST_ENTRIES if len(before) > _LEVEL_ENTRIES else 1)
    blocks = len(before) // size
    if not blocks:
        return before.step
    begin = len(before) - blocks * size
    levels = np.median(before.value[begin:].reshape(blocks, size), axis=1)
    lowest = blocks - 1
    for at in range(blocks - 2, -1, -1):
        if levels[at] < levels[lowest]:
            lowest = at
        elif lowest - at > _PATIENCE:
            break
    return before.step[begin + lowest * size : begin + (lowest + 1) * size]


def _skip_course(reader: FactReader) -> tuple[Fact | None, Fact | None, Fact | None]:
    skipped, last = reader.holding("skipped", Holds.TRUE), reader.last_step
    if len(skipped) < _LEAST_ENTRIES or last is None:
        return None, None, None
    if (reader.steps > skipped[-1]).sum() > _NEAR_END:
        return None, None, None
    gaps = np.flatnonzero(np.diff(skipped) > _CALM_STEPS)
    begin = int(gaps[-1]) + 1 if len(gaps) else 0
    if len(skipped) - begin < _LEAST_ENTRIES:
        return None, None, None
    first = int(skipped[begin])
    if len(skipped) - begin < _DENSE * (last - first + 1):
        return None, None, None
    step = reader.step_fact(Reading.STEP, first, "skipped", Holds.TRUE, first, first)
    count = reader.count("skipped", Holds.TRUE, first, None)
    return step, count, reader.count_steps(first, None)


# --- lines ----------------------------------------------------------------------------------------


def happenings(course: Course, diagnosis: Diagnosis) -> list[Happening]:
    """What happened, in the order of steps, then what is true of the whole run."""
    of_rank = list(_one_rank_lines(course, diagnosis))
    lines = [*_growths(course), *_loss_lines(course, diagnosis), *(of_rank or _skip_lines(course))]
    lines += [*_norm_lines(course), *_overflow_lines(course, diagnosis)]
    lines += [*_misuse_lines(course, diagnosis), *_exception_lines(course)]
    lines += _metric_lines(course.reader, diagnosis)
    lines += _leap_lines(course, diagnosis)
    whole = [one for one in lines if not one.step]
    if not any(fact.column == "loss" for one in lines for fact in one.facts):
        ends = loss_ends(course.reader)
        whole += [] if ends is None else [Happening(None, Sentence.of("The ", ends, "."))]
    return in_order([*lines, *whole, *_scale_lines(course)])


def in_order(lines: Iterable[Happening]) -> list[Happening]:
    """Lines by their steps; then those of the whole run."""
    every = list(dict.fromkeys(lines))
    with_step = [(one.step.value, at, one) for at, one in enumerate(every) if one.step]
    return [
        *(one for _, _, one in sorted(with_step, key=lambda row: row[:2])),
        *(one for one in every if not one.step),
    ]


def _growths(course: Course) -> Iterator[Happening]:
    """Activations and gradients that had grown before the trouble shows elsewhere."""
    until = None if course.begin is None else int(course.begin.value)
    if until is None:
        return
    for column, what in (("act_amax", "largest activation"), ("grad_norm", "gradient norm")):
        reader = course.reader
        series = reader.activations if column == "act_amax" else reader.series(column).finite
        at = _grown(series.within(None, until))
        if at is None:
            continue
        step, span = at
        value, level = reader.value(column, step), reader.fact(Reading.MEDIAN, column, *span)
        if value is not None and level is not None:
            words = Sentence.of(f"{what} ", value, " (usually ", level, " before)")
            yield Happening(reader.at_step(step), words)


def _grown(series: Series) -> tuple[int, tuple[int, int]] | None:
    """The first value that is many times the median of the entries before it, and their span."""
    for at in range(max(_LEAST_ENTRIES, len(series) - 50), len(series)):
        low = max(0, at - _LEVEL_ENTRIES)
        level = float(np.median(series.value[low:at]))
        if level > 0 and series.value[at] >= _MUCH * level:
            return int(series.step[at]), (int(series.step[low]), int(series.step[at - 1]))
    return None


def _is_nan_logged_as_zero(reader: FactReader, zeros: Fact) -> bool:
    """Whether the log shows a loss of zero to the end where it was NaN: so were the gradients."""
    norms = reader.series("grad_norm").within(int(zeros.value), None).value
    return bool(len(norms)) and bool(np.isnan(norms).all())


def _loss_lines(course: Course, diagnosis: Diagnosis) -> Iterator[Happening]:
    reader, level, peak = course.reader, course.loss_level, course.loss_peak
    if level is not None and peak is not None:
        at = reader.fact(Reading.STEP_OF_HIGHEST, "loss", peak.first, peak.last)
        highest: tuple[str | Fact, ...] = (peak, " at step ", at) if at else (peak,)
        if course.loss_left is None:
            yield Happening(at, Sentence.of("the loss reaches ", peak, *_around(reader, level, at)))
        else:
            at_once = course.loss_left.value >= peak_step(at)
            top = (peak,) if at_once else highest
            words = ("the loss rises from ", level, " to ", *top, *_stands_at(reader, peak, at))
            yield Happening(course.loss_left, Sentence.of(*words))
    elif (rise := _slight_rise(reader, diagnosis)) is not None:
        yield rise
    if course.loss_lost is not None:
        yield Happening(course.loss_lost, _lost_words(course, course.loss_lost))
        return
    zeros = reader.since("loss", Holds.ZERO)
    if zeros is not None and zeros.value < (reader.last_step or 0):
        is_nan = _is_nan_logged_as_zero(reader, zeros)
        told = _NAN_AS_ZERO if is_nan else _ZERO_TO_THE_END
        yield Happening(zeros, Sentence.of(told))
    lost = reader.holding("loss", Holds.NOT_FINITE)
    if len(lost):
        yield _not_finite_in_steps(reader, "loss", "the loss", lost)


def _stands_at(reader: FactReader, peak: Fact, at: Fact | None) -> tuple[str | Fact, ...]:
    """Where the loss stands since its peak, as the end of a sentence."""
    later = reader.series("loss").finite.within(int(peak_step(at)) + 1, None).step
    end = _median(reader, later[-_LEVEL_ENTRIES:]) if len(later) else None
    is_lost = len(reader.series("loss")) and reader.since("loss", Holds.NOT_FINITE) is not None
    if end is None or is_lost:
        return ()
    return (_STAYS,) if end.text == peak.text else ("; at the end it is ", end)


def _slight_rise(reader: FactReader, diagnosis: Diagnosis) -> Happening | None:
    """Since when the loss stands above its best, where it rose by little or after few entries."""
    since = diagnosis.outcome.since_step
    if diagnosis.outcome.state not in _ROSE or since is None:
        return None
    best = reader.fact(Reading.LOWEST, "loss", None, since - 1)
    losses = reader.series("loss").finite.within(since, None)
    last = reader.value("loss", int(losses.step[-1])) if len(losses) else None
    if best is None or last is None or last.value <= best.value:
        return None
    at_end = ("the loss rises from ", best, " (its lowest before) to ", last, " at the end")
    return Happening(reader.at_step(since), Sentence.of(*at_end))


def _not_finite_in_steps(reader: FactReader, column: str, what: str, lost: Integers) -> Happening:
    """In how many steps a column was not finite, and at which first and last."""
    ends = int(lost[0]), int(lost[-1])
    first = reader.step_fact(Reading.FIRST_STEP, ends[0], column, Holds.NOT_FINITE)
    count = reader.count(column, Holds.NOT_FINITE)
    if count.value == 1:
        return Happening(first, Sentence.of(f"{what} is NaN or inf, in ", count, " step in all"))
    last = reader.step_fact(Reading.LAST_STEP, ends[1], column, Holds.NOT_FINITE)
    words = (f"{what} is NaN or inf, in ", count, " steps in all; the last is step ", last)
    return Happening(first, Sentence.of(*words))


def peak_step(at: Fact | None) -> float:
    """The step of a peak; 0 if unknown."""
    return 0.0 if at is None else at.value


def _lost_words(course: Course, lost: Fact) -> Sentence:
    value = course.reader.value("loss", int(lost.value))
    what = "NaN" if value is not None and np.isnan(value.value) else "inf"
    stays = "and never finite again" if lost.value != course.reader.last_step else "at the end"
    if lost.value == course.reader.series("loss").step[0]:
        stays = "in every entry"
    return Sentence.of(f"the loss is {what} {stays}")


def _around(reader: FactReader, level: Fact, at: Fact | None) -> tuple[str | Fact, ...]:
    """The loss just before a peak that it came back from, and just after it, in brackets."""
    if at is None:
        return " (", level, " before)"
    losses, step = reader.series("loss").finite, int(at.value)
    before = losses.within(None, step - 1).step[-_LEVEL_ENTRIES:]
    after = losses.within(step + 1, None).step[:_LEVEL_ENTRIES]
    shortly = _median(reader, before)
    usual = level if shortly is None or level.value < shortly.value else shortly
    words: list[str | Fact] = [" (", usual, " before"]
    if len(after) and (later := _median(reader, after)) is not None and later.value:
        words += [", ", later, " after"]
    return (*words, ")")


def _median(reader: FactReader, steps: Integers) -> Fact | None:
    return reader.fact(Reading.MEDIAN, "loss", int(steps[0]), int(steps[-1]))


def _norm_lines(course: Course) -> Iterator[Happening]:
    """Gradient norms that are not finite in steps that nothing skipped."""
    reader = course.reader
    if course.norm_lost is not None:
        words = Sentence.of("the gradient norm is NaN or inf to the end")
        yield Happening(course.norm_lost, words)
        return
    lost = reader.holding("grad_norm", Holds.NOT_FINITE)
    if len(np.setdiff1d(lost, reader.holding("skipped", Holds.TRUE))):
        yield _not_finite_in_steps(reader, "grad_norm", "the gradient norm", lost)


def _skip_lines(course: Course) -> Iterator[Happening]:
    reader = course.reader
    if course.skips is not None and course.skips_of is not None:
        skips, steps = course.skips, course.skips_of
        share = ("all ", skips) if skips.value == steps.value else (skips, " of ", steps)
        words = Sentence.of("from here to the end, ", *share, " steps are skipped")
        yield Happening(course.skips_from, words)
        return
    skipped = reader.holding("skipped", Holds.TRUE)
    if not len(skipped):
        return
    stretches = np.split(skipped, np.flatnonzero(np.diff(skipped) > _CALM_STEPS) + 1)
    longest = max(stretches, key=len)
    if len(longest) >= _BURST and 2 * len(longest) > len(skipped) > len(longest):
        yield _skips_between(reader, longest)
        return
    first = reader.step_fact(Reading.FIRST_STEP, int(skipped[0]), "skipped", Holds.TRUE)
    last = reader.step_fact(Reading.LAST_STEP, int(skipped[-1]), "skipped", Holds.TRUE)
    count = reader.count("skipped", Holds.TRUE)
    if len(skipped) == 1:
        yield Happening(first, Sentence.of("this step is skipped, and no other"))
    elif len(stretches) == 1 and len(skipped) >= _BURST:
        yield _skips_between(reader, longest)
    else:
        yield Happening(
            first, Sentence.of("first of ", count, " skipped steps; the last is step ", last)
        )


def _skips_between(reader: FactReader, stretch: Integers) -> Happening:
    """A stretch of skips that was over before the end, and how many others there were."""
    begin, end = int(stretch[0]), int(stretch[-1])
    first = reader.step_fact(Reading.FIRST_STEP, begin, "skipped", Holds.TRUE, begin, end)
    last = reader.step_fact(Reading.LAST_STEP, end, "skipped", Holds.TRUE, begin, end)
    count, steps = reader.count("skipped", Holds.TRUE, begin, end), reader.count_steps(begin, end)
    every = reader.count("skipped", Holds.TRUE)
    share = ("all ", count) if count.value == steps.value else (count, " of ", steps)
    others = () if every.value == count.value else (" (in the whole log ", every, ")")
    return Happening(
        first, Sentence.of("from here to step ", last, ", ", *share, " steps are skipped", *others)
    )


def _overflow_lines(course: Course, diagnosis: Diagnosis) -> Iterator[Happening]:
    """The overflows that were traced to the layer that the report names."""
    suspect = diagnosis.suspect
    layer = None if suspect is None else suspect.layer
    if layer is None:
        return
    words = {
        "forward": ("layer ", " is seen to give inf or NaN"),
        "backward": ("gradients overflow first in layer ", ""),
    }
    for direction, (before, after) in words.items():
        rows = course.reader.overflows(layer, direction)
        if rows is not None:
            first, count = rows
            steps = " step in all)" if count.value == 1 else " steps in all)"
            text = Sentence.of(before, Name(layer), f"{after} (", count, steps)
            yield Happening(first, text)


def _misuse_lines(course: Course, diagnosis: Diagnosis) -> Iterator[Happening]:
    """Where the mistake in the loop that the main finding names was seen."""
    head = diagnosis.headline
    misuse = None if head is None else course.reader.first_misuse(head.code)
    if misuse is not None:
        yield Happening(misuse, Sentence.of("the mistake is seen for the first time"))


def _leap_lines(course: Course, diagnosis: Diagnosis) -> Iterator[Happening]:
    """A learning rate that leapt shortly before the trouble."""
    hint, rates = telling_step(diagnosis), course.reader.series("lr").finite
    if hint is None:
        return
    near = rates.within(hint - _SHORTLY, hint)
    late = rates.step[:_BEGINNING][-1] if len(rates) else 0  # a warm-up doubles at first
    for before, after in pairwise(range(len(near))):
        is_leap = near.value[after] >= LR_LEAP * near.value[before] > 0
        if is_leap and near.step[after] > late:
            at, now = int(near.step[before]), int(near.step[after])
            old, new = course.reader.value("lr", at), course.reader.value("lr", now)
            if old is not None and new is not None:
                words = Sentence.of("the learning rate jumps from ", old, " to ", new)
                yield Happening(course.reader.at_step(now), words)
                return


def _one_rank_lines(course: Course, diagnosis: Diagnosis) -> Iterator[Happening]:
    """The overflows of the one rank that the main finding names."""
    head = diagnosis.headline
    if head is None or not len(head.ranks) == 1 < len(diagnosis.run.ranks):
        return
    rows = course.reader.overflows_of_rank(head.ranks[0], head.first_step)
    if rows is not None:
        first, last, count = rows
        words = Sentence.of(
            "first of ", count, " overflows on rank ", Name(str(head.ranks[0])),
            "; the last is at step ", last,
        )  # fmt: skip
        yield Happening(first, words)


def noticed_line(reader: FactReader, finding: Finding) -> Iterator[Happening]:
    """When something that is no trouble was seen, and how high the loss was then."""
    begin, end = finding.first_step, finding.last_step
    if begin is None or begin not in reader.steps:
        return
    words: list[str | Fact] = [f"{finding.name.replace('-', ' ')} ({finding.code})"]
    highest = reader.fact(Reading.HIGHEST, "loss", begin, end)
    if highest is not None and finding.code in _OF_LOSS:
        words += [": the loss reaches ", highest]
    yield Happening(reader.at_step(begin), Sentence.of(*words))


def _metric_lines(reader: FactReader, diagnosis: Diagnosis) -> Iterator[Happening]:
    """The metric that the main finding is about: where it was best, and where it ended."""
    for piece in () if diagnosis.headline is None else diagnosis.headline.evidence:
        best, _, name = piece.against_is.partition(" ")
        if piece.signal != "metric" or not name:
            continue
        reading = {"lowest": Reading.LOWEST, "highest": Reading.HIGHEST}.get(best, Reading.FIRST)
        was, now = reader.fact(reading, name), reader.fact(Reading.LAST, name)
        if was is None or now is None:
            continue
        words: list[str | Fact | Name] = [Name(name), " was ", was, f" at {_BEST[reading]}"]
        at = reader.fact(_STEP_OF[reading], name) if reading in _STEP_OF else None
        if at is not None:
            words += [", at step ", at, ","]
        yield Happening(None, Sentence.of(*words, " and ", now, " at the end."))


_BEST = {Reading.LOWEST: "its lowest", Reading.HIGHEST: "its highest", Reading.FIRST: "first"}
_STEP_OF = {Reading.LOWEST: Reading.STEP_OF_LOWEST, Reading.HIGHEST: Reading.STEP_OF_HIGHEST}


def _exception_lines(course: Course) -> Iterator[Happening]:
    """The exception that ended the program."""
    fatal = [
        row for row in course.reader.events
        if row["kind"] == EventKind.EXCEPTION.value and row.get("fatal", True)
    ]  # fmt: skip
    for row in fatal[-1:]:
        name = str(row.get("exception") or row.get("type") or "an exception")
        step = Fact(
            Reading.LAST_STEP, row["step"], f"{row['step']:,}", Table.EVENTS,
            EventKind.EXCEPTION.value, holds=Holds.PRESENT, rank=course.reader.rank,
        )  # fmt: skip
        yield Happening(step, Sentence.of("the program ends by ", Name(name)))


def _scale_lines(course: Course) -> Iterator[Happening]:
    """The fall of the loss scale, from its highest value to its last."""
    reader = course.reader
    before, after = (name if len(reader.series(name)) else "" for name in ("scale", "scale_after"))
    if not before and not after:
        return
    highest = reader.fact(Reading.HIGHEST, before or after)
    last = reader.fact(Reading.LAST, after or before)
    if highest is None or last is None or highest.value <= last.value:
        return
    if highest.value < _SCALE_FALL * last.value:
        return
    where = " in this log" if not before else ""
    words = ("The loss scale fell from ", highest, f" (its highest{where}) to ", last, ".")
    yield Happening(None, Sentence.of(*words))


def loss_ends(reader: FactReader) -> Sentence | None:
    """The first loss that a log shows, and the median of its last ten, or fewer."""
    losses = reader.series("loss").finite
    if len(losses) < 2:
        return None
    few = min(_LEVEL_ENTRIES, (len(losses) + 3) // 4)
    first = reader.fact(Reading.FIRST, "loss")
    last = reader.fact(Reading.MEDIAN, "loss", int(losses.step[-few]), int(losses.step[-1]))
    if first is None or last is None:
        return None
    how = " (median of its last values)" if few > 1 else ""
    return Sentence.of("loss was ", first, " at first and ", last, f" at the end{how}")


def did_not_come_down(reader: FactReader, share: float = _PROGRESS) -> bool:
    """Whether the loss at the end is about as high as at first: above this share of it."""
    losses = reader.series("loss").finite
    if len(losses) < 2 * _LEAST_ENTRIES:
        return False
    few = min(_LEVEL_ENTRIES, len(losses) // 2)
    first, last = np.median(losses.value[:few]), np.median(losses.value[-few:])
    return bool(first > 0 and last > share * first)
