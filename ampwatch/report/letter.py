"""The letter: what a run's report says on one screen, for somebody who has no time.

What happened in a sentence; what to do, numbered; what happened when; how sure; what follows from
the main finding, and what is separate; the next commands. Every number in it is a fact.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ampwatch.diagnosis import Action, Advice, Diagnosis, Finding, Verdict
from ampwatch.diagnosis.causes import RATE, codes
from ampwatch.diagnosis.findings import CALM, CUT_OFF, State
from ampwatch.diagnosis.rule import title_of
from ampwatch.diagnosis.value_text import label_of, short_dtype
from ampwatch.report.facts import NEXT_SAMPLE, ruled_out
from ampwatch.report.happenings import (
    Course,
    Happening,
    course_of,
    did_not_come_down,
    happenings,
    in_order,
    loss_ends,
    noticed_line,
)
from ampwatch.report.letter_facts import (
    SIGNALS,
    Fact,
    FactReader,
    Holds,
    Name,
    Reading,
    Remedy,
    Sentence,
    as_json,
    estimate,
    estimated_step,
    joined,
    optimizer_of,
    present_rate,
    tested_rate,
)
from ampwatch.report.letter_to_do import (
    first_sentence_without_number,
    is_lowered,
    quoted,
    what_to_do,
)
from ampwatch.report.restart_place import restart_place
from ampwatch.rows import LR_LEAP, Table

if TYPE_CHECKING:
    from ampwatch.diagnosis import Record

_MOST_HAPPENINGS = 6
_MOST_NAMED = 6
_NO_HAD_FALLEN_PRECISION = "AMP405"  # its title says that no layer runs in the format of autocast
# The search for a scale and its growth: of no use to a reader whose run fails.
_AS_IT_SHOULD_BE = frozenset(("AMP101", "AMP102"))
_NOTES, _CUT_OFF, _WARM_UP = "AMP901", "AMP902", "AMP302"
_CERTAIN_ENOUGH = 0.8  # of a cause: a title that states it below this says "probably"
CAUSE_UNKNOWN = "Cause: not known; the above is what the log shows."
_SAME_RATE = 0.01  # of the peak: a schedule that has not begun to lower it
_LEVEL_ENTRIES = 10  # whose median is what is usual
_HAD_FALLEN = 0.75  # of the first loss: one that was below it had come down


@dataclass(frozen=True, slots=True)
class Listed:
    """A finding beside the main one."""

    finding: Finding

    @property
    def sentence(self) -> str:
        """Its title and its code; of a muted one the reason."""
        told = f"{title_of(self.finding)} ({self.finding.code})"
        return told if self.finding.muted is None else f"Muted: {told}: {self.finding.muted}"

    @property
    def text(self) -> str:
        """Its name in words, its layer and its code: `forward overflow in blocks.0.up AMP203`."""
        layer = f" in layer {self.finding.layer}" if self.finding.layer else ""
        return f"{self.finding.name.replace('-', ' ')}{layer} {self.finding.code}"


@dataclass(frozen=True, slots=True)
class Letter:
    """The letter's parts, in the order in which they are read; an empty part is left out."""

    verdict: str
    name: str
    about: Sentence  # steps, precision, ranks
    title: str
    codes: tuple[str, ...]
    opening: tuple[Sentence, ...]
    to_do: tuple[Sentence, ...]
    happened: tuple[Happening, ...]
    how_sure: tuple[Sentence, ...]
    follows: tuple[Listed, ...]  # from the main finding
    separate: tuple[Listed, ...]
    unseen: tuple[Sentence, ...]  # what the record cannot show
    next: tuple[tuple[str, str], ...]  # commands, and what each shows
    begin: int | None = None  # the step at which the opening says that training broke down
    blames_rate: bool = False  # the title names the learning rate, the opening what it did

    @property
    def sentences(self) -> Iterator[Sentence]:
        """Every sentence of the letter."""
        yield self.about
        yield from self.opening
        yield from self.to_do
        for one in self.happened:
            yield Sentence.of(*(() if one.step is None else (one.step,)), one.words)
        yield from self.how_sure
        yield from self.unseen

    def to_json(self) -> dict[str, Any]:
        """The letter as `report --json --all` prints it, every number with its rows."""
        parts = ("opening", "to_do", "how_sure", "unseen")
        return {
            "title": self.title,
            "about": self.about.to_json(),
            **{name: [one.to_json() for one in getattr(self, name)] for name in parts},
            "happened": [
                {"step": None if one.step is None else as_json(one.step), **one.words.to_json()}
                for one in self.happened
            ],
            "next": [{"command": command, "shows": shows} for command, shows in self.next],
        }


def letter_of(name: str, run: Record, diagnosis: Diagnosis) -> Letter:
    """The letter on a run."""
    head = main_finding(diagnosis)
    reader = FactReader(run, None if head is None else optimizer_of(run, head))
    course = course_of(reader, diagnosis)
    place = restart_place(run, diagnosis)
    happened = tuple(_happened(course, diagnosis, head))
    return Letter(
        verdict=diagnosis.verdict.value,
        name=name,
        about=_about(reader, diagnosis),
        title=_title(diagnosis, head),
        codes=() if head is None else (head.code,),
        opening=tuple(_opening(course, diagnosis, head)),
        to_do=tuple(what_to_do(name, run, course, diagnosis, head, place)),
        happened=happened,
        how_sure=tuple(how_sure(run, diagnosis, head)),
        follows=tuple(_listed(diagnosis, head, follows=True)),
        separate=tuple(_listed(diagnosis, head, follows=False)),
        unseen=tuple(_unseen(reader, diagnosis, names_steps=any(one.step for one in happened))),
        next=tuple(_next(name, diagnosis, head)),
        begin=int(course.begin.value) if is_lowered(diagnosis) and course.begin else None,
        blames_rate=head is not None and is_lowered(diagnosis),
    )


def begun_as_told(diagnosis: Diagnosis, letter: Letter | None) -> Diagnosis:
    """The diagnosis whose headline begins where the letter says, or with what follows from it.

    Layers are looked at every so many steps: what an overflow leads to may be seen before it is.
    Nothing that follows from the headline begins before it.
    """
    if letter is None or diagnosis.headline is None:
        return diagnosis
    begin = _first_seen(diagnosis, diagnosis.headline) if letter.begin is None else letter.begin
    if begin is None:
        return diagnosis
    findings = tuple(_begun(one, begin, diagnosis) for one in diagnosis.findings)
    return dataclasses.replace(diagnosis, findings=findings)


def _begun(finding: Finding, begin: int, diagnosis: Diagnosis) -> Finding:
    """A finding as it begins where the headline does so at this step."""
    first, last = finding.first_step, finding.last_step
    if finding is diagnosis.headline:
        return dataclasses.replace(finding, first_step=begin)
    is_before = first is not None and first < begin and (last is None or begin <= last)
    if finding.code not in diagnosis.effects or not is_before:
        return finding
    return dataclasses.replace(finding, first_step=begin)


def _first_seen(diagnosis: Diagnosis, head: Finding) -> int | None:
    """The first step of a finding, or of a consequence seen at most a sample before it."""
    first = head.first_step
    if first is None or head.steps:
        return first
    follows = (f.first_step for f in diagnosis.findings if f.code in diagnosis.effects)
    return min(
        (s for s in follows if s is not None and 0 < first - s <= NEXT_SAMPLE), default=first
    )


def _title(diagnosis: Diagnosis, head: Finding | None) -> str:
    if head is not None and diagnosis.learning_rate.leapt_at_step is not None:
        is_over = diagnosis.verdict is Verdict.FAILING
        what = "training broke down" if is_over else "the loss rose"
        return f"The learning rate jumped, and {what}"
    title = "" if head is None else title_of(head, diagnosis.run.ranks)
    doubt = _doubt(diagnosis, head)
    return f"{doubt} {title[:1].lower()}{title[1:]}" if doubt else title


def _doubt(diagnosis: Diagnosis, head: Finding | None) -> str:
    """How a title begins that names the learning rate as the cause; empty where it is likely."""
    advice = diagnosis.learning_rate
    blamed = head is not None and head.code in RATE and is_lowered(diagnosis)
    sure = advice.confidence if advice.probability is None else advice.probability
    if not blamed or advice.proved_steps is not None or sure is None or sure >= _CERTAIN_ENOUGH:
        return ""
    # As sure as the sentence below it.
    is_possible = advice.probability is not None and _sureness(sure) == _POSSIBLE
    return "Possibly" if is_possible else "Probably"


def main_finding(diagnosis: Diagnosis) -> Finding | None:
    """The finding that the letter is about; None where nothing needs attention."""
    head = diagnosis.headline
    calm = diagnosis.verdict in CALM
    return None if head is None or (calm and not head.severity.weight) else head


# --- the first lines ------------------------------------------------------------------------------


def _about(reader: FactReader, diagnosis: Diagnosis) -> Sentence:
    steps = reader.count_steps()
    parts: list[str | Fact | Name | Sentence] = [Sentence.of(steps, _word_for(reader, steps))]
    head = diagnosis.headline
    if reader.formats and (head is None or head.code != _NO_HAD_FALLEN_PRECISION):
        parts.append(Name("/".join(short_dtype(name) for name in reader.formats[:2])))
    if len(diagnosis.run.ranks) > 1:
        parts.append(Name(f"{len(diagnosis.run.ranks)} ranks"))
    if diagnosis.run.source != "ampwatch":
        parts.append(Name(f"log of {diagnosis.run.source}"))
    if diagnosis.run.state == CUT_OFF != diagnosis.verdict.value:
        parts.append("cut off")
    return joined(parts)


def _opening(course: Course, diagnosis: Diagnosis, head: Finding | None) -> Iterator[Sentence]:
    """What happened, in a sentence or two; that the run is dead comes first."""
    if head is not None and head.code != _CUT_OFF and diagnosis.run.state == CUT_OFF:
        yield _stopped(course.reader)
    if head is None:
        yield from _calm(course.reader, diagnosis)
    elif is_lowered(diagnosis):
        yield _breakdown(course, diagnosis)
    else:
        why = first_sentence_without_number(head.cause)
        if not why and head.code == _CUT_OFF:
            why = head.summary
        if why:
            yield Sentence.of(Remedy(why))


def _breakdown(course: Course, diagnosis: Diagnosis) -> Sentence:
    """At which step a training with too high a learning rate broke down, and what it was there."""
    reader, begin = course.reader, course.begin
    what = "Training broke down" if diagnosis.verdict is Verdict.FAILING else "The loss rose"
    if begin is None:
        ends, first = loss_ends(reader), reader.fact(Reading.FIRST, "loss")
        best = reader.fact(Reading.LOWEST, "loss", None, None)
        had_fallen = (
            best is not None and first is not None and best.value < _HAD_FALLEN * first.value
        )
        if ends is not None and did_not_come_down(reader) and not had_fallen:
            return Sentence.of("The loss did not come down: the ", ends, ".")
        if best is None or ends is None:
            return Sentence.of("The training did not learn.")
        return Sentence.of("The ", ends, "; its lowest value is ", best, ".")
    if (leap := diagnosis.learning_rate.leapt_at_step) is not None:
        before, after = (reader.value("lr", step) for step in (leap - 1, leap))
        if before is not None and after is not None and after.value >= LR_LEAP * before.value:
            return Sentence.of(
                f"{what} after the learning rate had gone from ", before, " to ",
                after, " at step ", estimated_step("leapt_at_step", leap), ".",
            )  # fmt: skip
    words: list[str | Fact | Name] = [f"{what} at step ", begin]
    rate = reader.value("lr", int(begin.value))
    base = reader.value("lr_base", int(begin.value))
    if rate is None:
        return Sentence.of(*words, ".")
    if base is None or base.value <= 1.01 * rate.value:
        steady = base is not None and base.value >= 0.99 * rate.value
        return Sentence.of(*words, ", at lr = ", base if steady and base else rate, ".")
    if any(finding.code == _WARM_UP for finding in diagnosis.findings):
        return Sentence.of(*words, ", when the warm-up to ", base, " had reached lr = ", rate, ".")
    return Sentence.of(*words, ", at lr = ", rate, " (peak: ", base, ").")


def _calm(reader: FactReader, diagnosis: Diagnosis) -> Iterator[Sentence]:
    """The first sentence where nothing needs attention."""
    steps = reader.count_steps()
    word, last = _word_for(reader, steps), reader.last_step
    if not steps.value:
        yield Sentence.of("The log ends before anything could be judged.")
        yield Sentence.of("It has no steps.")
    elif diagnosis.verdict is Verdict.INCOMPLETE and diagnosis.little_seen is None:
        yield Sentence.of(
            "The log ends before anything could be judged. It has ",
            steps,
            word,
            _skips_of_all(reader),
        )
    elif diagnosis.verdict is Verdict.CUT_OFF and last is not None:
        yield Sentence.of(_stopped(reader), " No problems found until then.")
    elif diagnosis.verdict is Verdict.INCOMPLETE:
        yield Sentence.of(
            "No problems found in ", steps, f"{word}, too few to judge the learning rate."
        )
    else:
        yield Sentence.of(f"{diagnosis.none_found} ", steps, f"{word}.")
        skipped, why = reader.count("skipped", Holds.TRUE), diagnosis.skips_text
        if skipped.value and why:
            were = " step was" if skipped.value == 1 else " steps were"
            yield Sentence.of(skipped, were, " skipped", why[why.index(":") :])
        if diagnosis.noticed_text:
            yield Sentence.of(diagnosis.noticed_text)
        if diagnosis.little_seen is None or len(reader.series("loss")):
            yield Sentence.of("Nothing needs to be done.")
        else:
            yield Sentence.of("This log has no loss, so hardly anything could be judged.")


def _stopped(reader: FactReader) -> Sentence:
    """Where a run was cut off."""
    if reader.last_step is None:
        return Sentence.of("Stopped before its first step without closing the run.")
    at = reader.step_fact(Reading.LAST_STEP, reader.last_step, "step", Holds.PRESENT)
    return Sentence.of("Stopped at step ", at, " without closing the run.")


def _word_for(reader: FactReader, steps: Fact) -> str:
    """What a row of the record is: a step, or an entry of a log that has not every step."""
    what = "step" if reader.has_every_step and not reader.counts_entries else "entr"
    if steps.value == 1:
        return " step" if what == "step" else " entry"
    return " steps" if what == "step" else " entries"


def _skips_of_all(reader: FactReader) -> Sentence:
    skipped = reader.count("skipped", Holds.TRUE)
    if not skipped.value:
        return Sentence.of(".")
    if skipped.value == len(reader.steps):
        return Sentence.of(
            ", all of them skipped." if skipped.value > 1 else ", which was skipped."
        )
    return Sentence.of(", ", skipped, " of them skipped.")


# --- what happened --------------------------------------------------------------------------------


def _happened(course: Course, diagnosis: Diagnosis, head: Finding | None) -> Iterator[Happening]:
    found = happenings(course, diagnosis)
    if head is None:
        noticed = (line for one in diagnosis.noticed for line in noticed_line(course.reader, one))
        yield from in_order([*(one for one in found if one.step is not None), *noticed])
        ends = loss_ends(course.reader)
        if ends is not None:
            stood = "."
            if did_not_come_down(course.reader, _SAME):
                explained = diagnosis.outcome.is_explained
                stood = _EXPLAINED if explained else ", which by itself is no fault."
            yield Happening(None, Sentence.of("The ", ends, stood))
        return
    shown = found[:_MOST_HAPPENINGS]
    told = {fact.text for one in shown for fact in one.facts}
    yield from in_order([*shown, *_evidence(course.reader, head, told)])


def _evidence(reader: FactReader, head: Finding, told: set[str]) -> Iterator[Happening]:
    """The finding's own evidence, where the rows show the very number at the very step."""
    for piece in head.evidence:
        if piece.step is None or not isinstance(piece.value, float):
            continue
        fact = reader.evidence(piece.signal, piece.step, piece.value, head.layer)
        if fact is None or fact.text in told:
            continue
        layer: tuple[str | Name, ...] = (" of layer ", Name(fact.layer)) if fact.layer else ()
        step = reader.at_step(piece.step)
        what = label_of(piece.signal)
        if _is_always_zero(reader, fact):
            what, every = what[0].upper() + what[1:], reader.count(fact.column, Holds.PRESENT)
            yield Happening(None, Sentence.of(what, ": ", fact, " in all ", every, " steps."))
            continue
        words = (what, *layer, ": ", fact, *_context(reader, fact, head.first_step))
        yield Happening(step, Sentence.of(*words))


def _is_always_zero(reader: FactReader, fact: Fact) -> bool:
    if fact.value or fact.table is not Table.STEPS:
        return False
    zero, every = (reader.count(fact.column, holds) for holds in (Holds.ZERO, Holds.PRESENT))
    return 1 < zero.value == every.value


def _context(reader: FactReader, fact: Fact, began: int | None) -> tuple[str | Fact, ...]:
    """What a number of the steps usually is before, or in how many steps it is zero."""
    if fact.table is not Table.STEPS or fact.first is None:
        return ()
    series = reader.series(fact.column)
    if not fact.value:
        zero, every = (reader.count(fact.column, holds) for holds in (Holds.ZERO, Holds.PRESENT))
        return " (zero in ", zero, " of ", every, " steps)"
    # What is usual was so before the trouble, which the finding dates.
    until = fact.first if began is None else min(began, fact.first)
    before = series.finite.within(None, until - 1).step[-_LEVEL_ENTRIES:]
    if len(before) < _LEVEL_ENTRIES:
        return ()
    usual = reader.fact(Reading.MEDIAN, fact.column, int(before[0]), int(before[-1]))
    return () if usual is None else (" (usually ", usual, " before)")


# --- the rest -------------------------------------------------------------------------------------


def _listed(diagnosis: Diagnosis, head: Finding | None, *, follows: bool) -> Iterator[Listed]:
    """The other findings: those that follow from the main one, or those that do not."""
    effects = set() if head is None else {head.code, *diagnosis.effects}
    for finding in diagnosis.findings:
        is_muted = finding.muted is not None
        said_above = is_lowered(diagnosis) and finding.code in RATE and not is_muted
        if finding is head or said_above or finding.code in {_NOTES, _CUT_OFF}:
            continue
        if finding.code in _AS_IT_SHOULD_BE and diagnosis.verdict is Verdict.FAILING:
            continue
        if (finding.code in effects and not is_muted) == follows:
            yield Listed(finding)


_EXPLAINED = ", which other numbers of this log explain."
_SAME = 0.98  # of the first loss: as high, in two digits
_GUESS = re.compile(r"Read as (\w+).+?(?=\. If another)")  # of a log of no known format


def _unseen(reader: FactReader, diagnosis: Diagnosis, *, names_steps: bool) -> Iterator[Sentence]:
    """What the record lacks, whose numbers are shown, how a foreign log's steps are numbered."""
    if reader.optimizer is not None:
        yield Sentence.of(
            "The numbers here are those of optimizer ", Name(str(reader.optimizer)),
            ", whose losses are not finite.",
        )  # fmt: skip
    if diagnosis.run.source == "ampwatch":
        if diagnosis.little_seen is not None or not len(reader.series("loss")):
            lacks = _not_recorded(reader)
            if lacks:
                yield Sentence.of(f"Not recorded: {', '.join(lacks)}.", _loss_hint(lacks))
        return
    lacks = _not_recorded(reader)
    lacks += [] if reader.has_layers else ["layers"]
    if lacks:
        yield Sentence.of(f"Not in this log: {', '.join(lacks)}.")
    if reader.counts_entries and names_steps:
        yield Sentence.of(
            "This log has no step numbers: a step's number here is the place of its entry."
        )
    for finding in diagnosis.findings:
        guess = _GUESS.search(finding.cause) if finding.code == _NOTES else None
        if guess is not None:
            column = "loss" if "loss = " in guess[0] else guess[1]
            yield Sentence.of(f"{guess[0]}; --map {column}=NAME names another number.")


def _not_recorded(reader: FactReader) -> list[str]:
    return [word for word in SIGNALS if not reader.records(word)]


def _loss_hint(lacks: Sequence[str]) -> str:
    return " Call watch.log(loss=loss) in the loop to record it." if "loss" in lacks else ""


def _next(name: str, diagnosis: Diagnosis, head: Finding | None) -> Iterator[tuple[str, str]]:
    run = quoted(name)
    if head is not None:
        yield f"ampwatch explain {head.code} {run}", "meaning and evidence"
    yield f"ampwatch report {run} --all", "every number"
    if diagnosis.run.source == "ampwatch":
        yield "ampwatch dashboard", "charts"


# --- how sure: of the cause, of the learning rate's part in it, of the remedy ---------------------

_VERY_LIKELY, _LIKELY, _POSSIBLE = 0.95, 0.75, "possible"
# What the probe itself saw done, or the values of a forward pass: nothing was inferred.
_SEEN = codes(
    "AMP206 AMP209 AMP314 AMP401 AMP402 AMP403 AMP404 AMP405 AMP406 AMP407 AMP408 AMP409 AMP412 "
    "AMP414 AMP415 AMP416 AMP506 AMP704 AMP705 AMP902"
)
# What was seen there, and not why.
_PLACES = codes("AMP203")
_UNMOVED = "AMP417"  # with a layer: no optimizer has its weights
# What went wrong, and not why.
_SYMPTOMS = codes(
    "AMP103 AMP104 AMP105 AMP106 AMP202 AMP204 AMP207 AMP211 AMP304 AMP307 AMP309 AMP311 "
    "AMP410 AMP417 AMP503 AMP602 AMP603"
)


def how_sure(run: Record, diagnosis: Diagnosis, head: Finding | None) -> Iterator[Sentence]:
    """How sure the cause is, and whether the remedy was tested; what is ruled out."""
    if diagnosis.run.steps:
        yield from _cause_words(run, diagnosis, head)
    if head is not None:
        yield from _remedy_words(diagnosis)
    cleared = ruled_out(run, diagnosis) if head is not None else []
    if cleared:
        yield Sentence.of("Ruled out: ", "; ".join(cleared), ".")


def _remedy_words(diagnosis: Diagnosis) -> Iterator[Sentence]:
    """Whether what is to be done was tested, and where the limit of the learning rate is."""
    advice = diagnosis.learning_rate
    if not is_lowered(diagnosis):
        yield from _remedy_beside_rate(advice)
    elif advice.proved_steps is not None:
        steps = estimated_step("proved_steps", advice.proved_steps)
        yield Sentence.of(
            "Remedy: tested. The learning rate held in a rerun of ", steps, " steps.",
            *_tested_range(advice),
        )  # fmt: skip
    elif advice.recommended is None or advice.leapt_at_step is not None:
        yield Sentence.of("Remedy: not tested.")
    else:
        rate = estimate("recommended", advice.recommended)
        yield Sentence.of("Remedy: not tested. The learning rate of ", rate, " is estimated.")


def _remedy_beside_rate(advice: Advice) -> Iterator[Sentence]:
    """Whether what is to be done was tested, where that is no lower learning rate."""
    if advice.proved_steps is None:
        yield Sentence.of("Remedy: not tested.")
        return
    steps = estimated_step("proved_steps", advice.proved_steps)
    yield Sentence.of("Remedy: tested. The trouble was gone in a rerun of ", steps, " steps.")


def _tested_range(advice: Advice) -> Sequence[str | Fact]:
    """Between which learning rates the limit lies, as reruns have shown."""
    if advice.low is None or advice.high is None:
        return ()
    low, high = tested_rate("low", advice.low), tested_rate("high", advice.high)
    return (" The highest that holds lies between ", low, " and ", high, ".")


def _cause_words(run: Record, diagnosis: Diagnosis, head: Finding | None) -> Iterator[Sentence]:
    """How sure the cause is, and that the learning rate is it, or is not."""
    advice = diagnosis.learning_rate
    if head is None:
        yield _rate_of_calm_run(run, advice)
        return
    if advice.action is Action.LOWER:
        yield _rate_as_cause(advice)
        return
    if diagnosis.outcome.state is State.RATE_CLIMBS:
        yield Sentence.of("Cause: likely the schedule of the learning rate.")
        return
    if head.code in _PLACES:
        yield Sentence.of("Where: certain, it was seen directly. Why there: not known.")
    elif head.code in _SEEN or (head.code == _UNMOVED and head.layer):
        yield Sentence.of("Cause: certain. It was seen directly, not inferred.")
    elif diagnosis.outcome.grew_apart:
        yield Sentence.of("Cause: likely a difference between rollout and training.")
    elif head.code in _SYMPTOMS:
        yield Sentence.of(CAUSE_UNKNOWN)
    else:
        yield Sentence.of("Cause: inferred from the log, not seen directly.")
    part = _PART.get(advice.action, _NO_PART)
    is_cleared = advice.action is Action.NOT_THE_CAUSE and advice.proved_steps is not None
    # Nobody is told to lower what nothing points to.
    if is_cleared or part is not _NO_PART or not _LOWERS.search(head.action):
        yield Sentence.of(f"Learning rate: {_CLEARED if is_cleared else part}")


_LOWERS = re.compile(r"lower (?:the )?learning rate")
_NO_PART = "nothing recorded points to it."
_CLEARED = "it is not the cause: with the remedy it held."
_PART = {
    Action.UNKNOWN: "it may be the cause; this log cannot tell.",
    Action.RAISE: "it is likely too low.",
}


def _rate_as_cause(advice: Advice) -> Sentence:
    if advice.proved_steps is not None or advice.leapt_at_step is not None:
        return Sentence.of("Cause: the learning rate.")
    if advice.probability is None or advice.signals is None:
        return Sentence.of("Cause: likely the learning rate.")
    sure = _sureness(advice.probability)
    signs = Fact(Reading.ESTIMATE, advice.signals, f"{advice.signals}", column="signals")
    return Sentence.of(f"Cause: the learning rate, {sure} (", signs, " signals were weighed).")


def _rate_of_calm_run(run: Record, advice: Advice) -> Sentence:
    if advice.action is Action.UNKNOWN:
        return Sentence.of("Learning rate: cannot be judged from this log.")
    now = advice.current if advice.recommended is None else advice.recommended
    if advice.action is Action.KEEP and now is not None:
        fact = present_rate(now)
        rates = run.read(Table.STEPS, columns=("lr",)).column("lr").drop_null()
        is_present = not len(rates) or math.isclose(rates[-1].as_py(), now, rel_tol=_SAME_RATE)
        word = "now " if is_present else "its peak: "
        return Sentence.of("Learning rate: no change suggested (", word, fact, ").")
    return Sentence.of("Learning rate: no change suggested; its value is not recorded.")


def _sureness(probability: float) -> str:
    told = round(probability, 2)  # as findings tell it, in per cent
    if told >= _VERY_LIKELY:
        return "very likely"
    return "likely" if told >= _LIKELY else _POSSIBLE
