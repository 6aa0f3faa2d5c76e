"""How sure a letter is: of the cause, of the learning rate's part in it, and of the remedy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ampwatch.diagnosis import Action, Advice, Diagnosis, Finding
from ampwatch.diagnosis.causes import codes
from ampwatch.report.facts import ruled_out
from ampwatch.report.letter_facts import (
    Fact,
    Reading,
    Sentence,
    estimate,
    estimated_step,
    present_rate,
    tested_rate,
)
from ampwatch.report.letter_to_do import is_lowered

if TYPE_CHECKING:
    from ampwatch.diagnosis import Record

_VERY_LIKELY, _LIKELY = 0.95, 0.75
# What the probe itself saw done, or the values of a forward pass: nothing was inferred.
_SEEN = codes(
    "AMP206 AMP209 AMP401 AMP402 AMP403 AMP404 AMP405 AMP406 AMP407 AMP408 AMP409 AMP412 "
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
        yield from _cause_words(diagnosis, head)
    if head is not None:
        yield from _remedy_words(diagnosis)
    cleared = ruled_out(run, diagnosis) if head is not None else []
    if cleared:
        yield Sentence.of("Ruled out: ", "; ".join(cleared), ".")


def _remedy_words(diagnosis: Diagnosis) -> Iterator[Sentence]:
    """Whether what is to be done was tested, and where the limit of the learning rate is."""
    advice = diagnosis.learning_rate
    if not is_lowered(diagnosis):
        yield Sentence.of("Remedy: not tested.")
    elif advice.proved_steps is not None:
        steps = estimated_step("proved_steps", advice.proved_steps)
        yield Sentence.of(
            "Remedy: tested. The learning rate held in a rerun of ", steps, " steps.",
            *_tested_range(advice),
        )  # fmt: skip
    elif advice.low is not None and advice.high is not None:
        yield Sentence.of("Remedy: not tested", *_beside_limit(advice, advice.low, advice.high))
    else:
        yield Sentence.of("Remedy: not tested.")


def _beside_limit(advice: Advice, low: float, high: float) -> Sequence[str | Fact]:
    """That the remedy is estimated; where the limit is, if it does not lie below that."""
    if advice.recommended is None or advice.recommended >= low:
        limits = estimate("low", low), estimate("high", high)
        return (". Estimated limit of the learning rate: ", limits[0], " to ", limits[1], ".")
    below = estimate("recommended", advice.recommended)
    return (". The learning rate of ", below, " is estimated.")


def _tested_range(advice: Advice) -> Sequence[str | Fact]:
    """Between which learning rates the limit lies, as reruns have shown."""
    if advice.low is None or advice.high is None:
        return ()
    low, high = tested_rate("low", advice.low), tested_rate("high", advice.high)
    return (" The highest that holds lies between ", low, " and ", high, ".")


def _cause_words(diagnosis: Diagnosis, head: Finding | None) -> Iterator[Sentence]:
    """How sure the cause is, and that the learning rate is it, or is not."""
    advice = diagnosis.learning_rate
    if head is None:
        yield _rate_of_calm_run(advice)
        return
    if advice.action is Action.LOWER:
        yield _rate_as_cause(advice)
        return
    if head.code in _PLACES:
        yield Sentence.of("Where: certain, it was seen directly. Why there: not known.")
    elif head.code in _SEEN or (head.code == _UNMOVED and head.layer):
        yield Sentence.of("Cause: certain. It was seen directly, not inferred.")
    elif diagnosis.outcome.grew_apart:
        yield Sentence.of("Cause: likely a difference between rollout and training.")
    elif head.code in _SYMPTOMS:
        yield Sentence.of("Cause: not known; the above is what the record shows.")
    else:
        yield Sentence.of("Cause: inferred from the record, not seen directly.")
    yield Sentence.of(f"Learning rate: {_PART.get(advice.action, _NO_PART)}")


_NO_PART = "nothing recorded points to it."
_PART = {
    Action.UNKNOWN: "it may be the cause; this record cannot tell.",
    Action.RAISE: "it is likely too low.",
}


def _rate_as_cause(advice: Advice) -> Sentence:
    if advice.probability is None or advice.signals is None or advice.proved_steps is not None:
        return Sentence.of("Cause: the learning rate.")
    sure = _sureness(advice.probability)
    signs = Fact(Reading.ESTIMATE, advice.signals, f"{advice.signals}", column="signals")
    return Sentence.of(f"Cause: the learning rate, {sure} (", signs, " signals were weighed).")


def _rate_of_calm_run(advice: Advice) -> Sentence:
    if advice.action is Action.UNKNOWN:
        return Sentence.of("Learning rate: cannot be judged from this record.")
    if advice.action is Action.KEEP and advice.recommended is not None:
        now = present_rate(advice.recommended)
        return Sentence.of("Learning rate: no change suggested (now ", now, ").")
    return Sentence.of("Learning rate: no change suggested; its value is not recorded.")


def _sureness(probability: float) -> str:
    if probability >= _VERY_LIKELY:
        return "very likely"
    return "likely" if probability >= _LIKELY else "possible"
