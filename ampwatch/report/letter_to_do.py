"""What to do about a run, step by step: the letter's instructions, with the command to give.

Where to restart is said here and nowhere else, so letter, page and plan agree.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ampwatch.diagnosis import (
    Action,
    Advice,
    Diagnosis,
    Finding,
    Severity,
    Verdict,
    thresholds,
)
from ampwatch.diagnosis.causes import codes
from ampwatch.diagnosis.findings import CUT_OFF, LIVE
from ampwatch.report.happenings import Course
from ampwatch.report.letter_facts import (
    SIGNALS,
    Fact,
    FactReader,
    Holds,
    Name,
    Reading,
    Remedy,
    Sentence,
    estimate,
    estimated_step,
    present_rate,
    tested_rate,
)
from ampwatch.report.restart_place import RestartPlace
from ampwatch.rows import Table

if TYPE_CHECKING:
    from ampwatch.diagnosis import Record

_MOST_STEPS = 4
_LOSS_ROSE, _NO_PROGRESS = "AMP307", "AMP309"
_FIRST_STEPS = 1  # a log whose trouble begins there has no earlier checkpoint
# What these leave behind is in weights or scale: the run is to be restarted from before them.
_LEAVES_HARM = codes(
    "AMP103 AMP104 AMP105 AMP202 AMP203 AMP204 AMP207 AMP209 AMP210 AMP211 AMP301 AMP302 AMP304 "
    "AMP306 AMP307 AMP601 AMP604"
)


def is_lowered(diagnosis: Diagnosis) -> bool:
    """Whether the diagnosis advises a lower learning rate that it knows."""
    advice = diagnosis.learning_rate
    return advice.action is Action.LOWER and None not in (advice.recommended, advice.current)


def what_to_do(
    name: str, run: Record, course: Course, diagnosis: Diagnosis, head: Finding | None,
    place: RestartPlace,
) -> Iterator[Sentence]:  # fmt: skip
    """What to do, in the order in which to do it."""
    if diagnosis.run.state == LIVE and not (head and head.action.startswith("Stop")):
        yield from _stop(course)
    advice = diagnosis.learning_rate
    if is_lowered(diagnosis) and head is not None:
        yield from _lower(name, run, course, diagnosis, place)
        return
    if head is None:
        if advice.action is Action.RAISE and None not in (advice.recommended, advice.current):
            yield Sentence.of("Optional: try a ", *_peak(advice), ".")
        elif diagnosis.verdict is Verdict.CUT_OFF:
            yield from _resume(place)
        return
    restarts = head.severity is Severity.ERROR and head.code in _LEAVES_HARM
    if restarts and advice.action is Action.LOWER:
        yield from _lower_without_value(place, course)
        return
    told = [text for text in sentences_of(head.action) if not _is_recorded(text, course.reader)]
    steps = [Sentence.of(*_with_steps(text, head)) for text in told]
    is_known = None not in (advice.recommended, advice.current)
    if head.code == _NO_PROGRESS and advice.action is Action.RAISE and is_known:
        steps.insert(0, Sentence.of("Try a ", *_peak(advice), "."))
    del steps[_MOST_STEPS:]
    if diagnosis.run.state == CUT_OFF and not restarts:
        steps = [*_resume(place), *steps]
    if restarts:  # what follows on a new start is told after it
        at = 1 if head.code == _LOSS_ROSE else len(steps)
        steps.insert(at, restart_sentence(place, course))
    yield from steps


def _stop(course: Course) -> Iterator[Sentence]:
    """That a live run is to be stopped: for longer than a scaler searches it has learnt nothing."""
    least, lost = thresholds.LONGEST_SEARCH, course.loss_lost
    skips, steps, since = course.skips, course.skips_of, course.skips_from
    if skips and steps and since and skips.value == steps.value >= least:
        yield Sentence.of("Stop this run: every step since step ", since, " was skipped.")
    elif lost and len(course.reader.series("loss").within(int(lost.value), None)) >= least:
        yield Sentence.of("Stop this run: no loss since step ", lost, " is finite.")


def _resume(place: RestartPlace) -> Iterator[Sentence]:
    if place.checkpoint is not None:
        yield Sentence.of("Resume from the checkpoint of step ", *_saved(place), ".")
    elif not place.saves:
        yield Sentence.of("Resume from your last checkpoint; the record shows none.")
    yield Sentence.of(
        "Look in the system's log: the process was killed or crashed, or its machine lost."
    )


def _peak(advice: Advice) -> tuple[str | Fact, ...]:
    """The advised peak and that of the run, which it may not have reached yet."""
    assert advice.current is not None
    now = present_rate(advice.current)
    return "peak learning rate of ", _advised_rate(advice), " instead of ", now


def _advised_rate(advice: Advice) -> Fact:
    """The advised learning rate; one that reruns have tested with the digits that they ran with."""
    assert advice.recommended is not None
    if advice.proved_steps is None:
        return estimate("recommended", advice.recommended)
    return tested_rate("recommended", advice.recommended)


def _lower(
    name: str, run: Record, course: Course, diagnosis: Diagnosis, place: RestartPlace
) -> Iterator[Sentence]:
    """Where to restart, with which learning rate, by which command or call."""
    advice = diagnosis.learning_rate
    assert advice.current is not None
    rate = _advised_rate(advice)
    plain = rate.text.replace(",", "")
    if advice.leapt_at_step is not None:
        leap = estimated_step("leapt_at_step", advice.leapt_at_step)
        yield Sentence.of(
            "Find out what raised the learning rate at step ", leap,
            ": the schedule, a resume, or a change by hand.",
        )  # fmt: skip
        yield Sentence.of(
            "Set it back from ", present_rate(advice.current), " to ", rate,
            ". The run had trained with that before.",
        )  # fmt: skip
        if place.checkpoint is None and not place.sees_saves:
            risen = course.begin
            begin = leap if risen is None or leap.value <= risen.value else risen
            yield Sentence.of("Then restart from your last checkpoint before step ", begin, ".")
        else:
            yield restart_sentence(place, course)
        return
    with_rate: list[str | Fact | Name] = [" with a ", *_peak(advice)]
    if advice.besides is not None:
        with_rate += [" and ", Name(advice.besides)]
    if place.checkpoint is None:
        before = _before_the_trouble(course)
        yield Sentence.of(
            "Start from scratch", *with_rate, ".", *_no_clean_checkpoint(place, before)
        )
    else:
        yield Sentence.of("Restart from the checkpoint of step ", *_saved(place), *with_rate, ".")
    command = command_with_rate(run, advice.current, plain)
    if command is not None:
        yield Sentence.of("The command: ", Name(command))
    if place.checkpoint is not None or not place.sees_saves:
        call = f"ampwatch.set_learning_rate(optimizer, {plain}, scheduler)"
        yield Sentence.of("If you resume from a checkpoint, call after loading it: ", Name(call))
    if advice.proved_steps is None:
        yield Sentence.of(
            "Optional: test it by short reruns: ",
            Name(f"ampwatch prove {quoted(name)}{_own_command(run)}"),
        )


def _lower_without_value(place: RestartPlace, course: Course) -> Iterator[Sentence]:
    """What to do where the learning rate is too high, and the log does not show it."""
    yield Sentence.of("Lower the learning rate. This log does not show it, so no value is advised.")
    yield Sentence.of(
        "Look whether inputs and targets are normalised: large ones have the same effect."
    )
    yield restart_sentence(place, course)


def _own_command(run: Record) -> str:
    """What a rerun needs besides the run's name: the command, where the run has not recorded it."""
    origin = getattr(run.info, "origin", {})
    has_one = bool(getattr(run.info, "command", ())) and "script" in origin
    return "" if has_one and getattr(run.info, "world_size", 1) == 1 else " -- COMMAND"


def _no_clean_checkpoint(place: RestartPlace, before: Sequence[str | Fact]) -> Sequence[str | Fact]:
    if not place.sees_saves:
        return (" Or resume from a checkpoint saved before ", *before, ".") if before else ()
    return (" No recorded checkpoint is from before the trouble.",) if place.saves else ()


def _saved(place: RestartPlace) -> Sequence[str | Fact | Name]:
    saved = place.checkpoint
    assert saved is not None
    step = Fact(
        Reading.VALUE, saved.step, f"{saved.step:,}", Table.EVENTS, "state-saved", saved.step,
        saved.step, Holds.PRESENT, rank=place.rank,
    )  # fmt: skip
    return (step,) if saved.path is None else (step, " (", Name(saved.path), ")")


def restart_sentence(place: RestartPlace, course: Course) -> Sentence:
    """Where to restart, in words."""
    start, restart = "Then start", "Then restart"
    if place.checkpoint is not None:
        return Sentence.of(f"{restart} from the checkpoint of step ", *_saved(place), ".")
    if place.sees_saves:
        return Sentence.of(f"{start} from scratch.", *_no_clean_checkpoint(place, ()))
    before = _before_the_trouble(course)
    if not before:
        return Sentence.of(f"{start} from scratch.")
    if len(before) == 1:
        return Sentence.of(
            f"{start} from scratch, or from a checkpoint saved before ", *before, "."
        )
    return Sentence.of(f"{restart} from your last checkpoint before ", *before, ".")


def _before_the_trouble(course: Course) -> Sequence[str | Fact]:
    """Before what a checkpoint has to be saved; empty if the trouble was there from the start."""
    begin, reader = course.begin, course.reader
    if begin is not None and begin.value <= _FIRST_STEPS:
        return ()
    if begin is None or begin.value <= reader.steps[0]:
        return ("the trouble",)
    return ("entry " if reader.counts_entries else "step ", begin)


_ENDS = re.compile(r"(?<=[.!?])\s+(?=[A-Z`(])")


def sentences_of(text: str) -> list[str]:
    """A finding's text, sentence by sentence."""
    return [part for part in _ENDS.split(" ".join(text.split())) if part]


_FORMATS = re.compile(r"\b(?:fp|bf|float|bfloat|int|uint)\d+\w*|\bE\dM\d\w*")
_DIGIT = re.compile(r"\d")


def first_sentence_without_number(text: str) -> str:
    """The first sentence of a finding's text if it names no number; else facts tell of it."""
    first = next(iter(sentences_of(text)), "")
    return "" if _DIGIT.search(_FORMATS.sub("", first)) else first


_TO_RECORD = re.compile(rf"^Record the ({'|'.join(SIGNALS)})\b")


def _is_recorded(text: str, reader: FactReader) -> bool:
    """Whether a sentence asks to record what the run records."""
    asked = _TO_RECORD.match(text)
    return asked is not None and reader.records(asked[1])


def _with_steps(text: str, finding: Finding) -> Iterator[Remedy | Fact]:
    """A remedy, with the step of its finding as a fact where the text names it."""
    step = finding.first_step
    parts = [text] if step is None else re.split(rf"(?<=step ){step}\b", text)
    for at, part in enumerate(parts):
        if at and step is not None:
            yield Fact(
                Reading.STEP, step, f"{step:,}", column="step", first=step, last=step,
                holds=Holds.PRESENT,
            )  # fmt: skip
        yield Remedy(part)


def quoted(name: str) -> str:
    """A run's name as a shell takes it."""
    return f'"{name}"' if re.search(r"[^\w@%+=:,./-]", name) else name


# --- the run's command with another learning rate in it -------------------------------------------

_RATE_NAME = re.compile(r"^(?:.*[._-])?(?:lr|learning[_-]?rate|max[_-]lr|peak[_-]lr|base[_-]lr)$")
_MASK = "***"
_LONGEST = 160
_SAME = 1e-6


def command_with_rate(run: Record, current: float, advised: str) -> str | None:
    """The run's command with the advised learning rate in place of `current`, or the setting alone.

    None if neither the command nor the configuration shows the value. No secret is printed: where
    one was masked, only the option itself is.
    """
    argv = tuple(str(word) for word in getattr(run.info, "command", ()))
    changed, option = _changed(argv, current, advised)
    if option is not None:
        whole = f"{_program(argv)} {shlex.join(changed[1:])}"
        several = getattr(run.info, "world_size", 1) != 1
        if several or _MASK in whole or len(whole) > _LONGEST:
            return option
        return whole
    return next(_settings(run.info.config, current, advised), None)


def _program(argv: Sequence[str]) -> str:
    script = shlex.quote(argv[0])
    return f"python {script}" if script.endswith(".py") else script


def _changed(argv: Sequence[str], current: float, advised: str) -> tuple[list[str], str | None]:
    """The words of the command with the new value, and the option with it; None if it has none."""
    words, option = list(argv), None
    for at, word in enumerate(words[1:], start=1):
        flag, equals, value = word.partition("=")
        name = flag.lstrip("-+")
        if not _RATE_NAME.match(name):
            continue
        if equals and _is(value, current):
            words[at] = option = f"{flag}={advised}"
        elif not equals and at + 1 < len(words) and _is(words[at + 1], current):
            words[at + 1] = advised
            option = f"{flag} {advised}"
    return words, option


def _is(text: str, current: float) -> bool:
    try:
        return abs(float(text) - current) <= _SAME * abs(current)
    except ValueError:
        return False


def _settings(config: Mapping[str, Any], current: float, advised: str) -> Iterator[str]:
    """The setting of a configuration that holds the learning rate, with the new value."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from (f"{name}.{inner}" for inner in _settings(value, current, advised))
        elif _RATE_NAME.match(str(name).lower()) and _is(str(value), current):
            yield f"{name}={advised} (in the run's configuration)"
