"""AMP415, AMP506, AMP901 to AMP903: errors that ended the run, and what its record lacks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ampwatch.diagnosis import thresholds
from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.findings import Severity
from ampwatch.diagnosis.record import Event, positive_number
from ampwatch.diagnosis.rule import RuleHit, counted, rule
from ampwatch.diagnosis.value_text import Evidence, bytes_text, count_text, list_text
from ampwatch.rows import EventKind


@rule("AMP901", "incomplete-data", Severity.INFO)
def incomplete_data(case: Case) -> Iterator[RuleHit]:
    """What could not be judged because the record lacks it."""
    missing = [*case.record.notes, *_blind_spots(case), *_foreign_spots(case)]
    if missing:
        yield RuleHit(
            summary="Some things could not be judged.",
            cause=" ".join(missing),
            action="Keep this in mind when you read the findings.",
        )


def _blind_spots(case: Case) -> Iterator[str]:
    if not case.numbers.steps:
        yield "The log holds no steps."
        return
    if _lacks_layers(case) and case.observed.loop:
        yield "No layer's activations were recorded, so no layer can be named."
    bounded = _bounded_layers(case)
    if bounded:
        yield (
            f"{list_text(bounded)} is only a bound: the overflow began there or in a neighbouring "
            "layer."
        )


def _lacks_layers(case: Case) -> bool:
    """Whether a layer should be named, and the record has none."""
    unexplained = case.scale.unexplained_skips > thresholds.STORM_FREE_SKIPS
    return not case.numbers.sees_forward and (case.numbers.any_bad_loss or unexplained)


def _bounded_layers(case: Case) -> list[str]:
    """Layers that a finding names although the record only bounds where the overflow began."""
    named = case.scale.culprits.layers.values()
    often = [
        overflows for overflows in named if overflows.times.count >= thresholds.BACKWARD_OVERFLOWS
    ]
    return sorted(
        {
            overflows.layer
            for overflows in (*often, *case.events.forward.values())
            if overflows.is_bound
        }
    )


_NAMES = {"loss": "loss", "lr": "learning rate", "grad_norm": "gradient norm"}
_READINGS = {
    ("time_ns", "assumed"): "Its times have no time zone and are read as UTC.",
    ("step", "placed"): "Some lines have no step number: their step is their place in the log.",
    ("skipped", "implied"): "Some skipped steps are known only from a counter or a lower scale.",
    ("scale", "implied"): "The scale rose between overflows without a line that says so.",
    ("scale", "rounded"): "Small scales are printed as 0 and are treated as absent.",
    ("scale_after", "rounded"): "The scale is printed rounded: a 0 is treated as absent.",
    ("loss", "implied"): "A loss that is missing in the log is read as nan.",
    ("loss", "averaged"): "The loss is an average over the steps since the line before.",
    ("grad_norm", "averaged"): "The gradient norm is an average.",
    ("grad_norm", "stale"): "Gradient norms that only repeat an older one are left out.",
    ("scale_after", "averaged"): "The scale is an average.",
}


def _foreign_spots(case: Case) -> Iterator[str]:
    """What another program's log lacks, and how its columns are to be read."""
    if case.observed.loop or not case.numbers.steps:
        return
    lacking = [name for column, name in _NAMES.items() if column not in case.numbers.told]
    if lacking:
        yield f"The log has no {_or(lacking)}: causes that only show there cannot be found."
    absent = {*_NAMES} - case.numbers.told
    if not case.scale.has_scaler:
        yield "It has no loss scale."
        absent |= {"scale", "scale_after"}
    yield _not_in_such_a_log(case)
    for column, marks in sorted(case.record.marks.items()):
        for mark in marks:
            if (column, mark) in _READINGS and column not in absent:
                yield _READINGS[column, mark]


def _not_in_such_a_log(case: Case) -> str:
    """The sentence on what is missing from the record of any other program's log."""
    if case.casts.operands or case.casts.staleness:
        return "Of layers this log shows only their casts; it shows no updates and no memory."
    unnamed = " Attach ampwatch to see which layer fails." * _lacks_layers(case)
    return f"This log shows no layers, no updates and no memory.{unnamed}"


def _or(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


@rule("AMP902", "run-ended-uncleanly", Severity.INFO)
def run_ended_uncleanly(case: Case) -> Iterator[RuleHit]:
    """A record that ends with an exception or has no end mark."""
    last = case.scale.last_step
    if case.events.fatal:
        yield _ended_by(case.events.fatal[-1], after_steps=case.numbers.steps > 0)
    elif not case.record.clean_end and case.observed.loop:  # others write no end mark
        yield RuleHit(
            first_step=last,
            last_step=last,
            summary="The log has no end mark.",
            cause="The process is still running, or it was killed before it could record its end.",
            action="Every row up to here is readable; the last quarter of a second may be missing.",
        )


def _ended_by(event: Event, *, after_steps: bool) -> RuleHit:
    """The exception with which the record ends: its type, layer and line of the user's code."""
    text = " ".join(str(event.detail.get("message", "")).split())[:200]
    place = str(event.detail.get("user_frame") or "").rpartition("/")[2]
    summary = f"The run ended by {event.exception}"
    summary += f" in layer {event.layer}" if event.layer else ""
    summary += f" at {place}." if place else "."
    return RuleHit(
        first_step=event.step,
        last_step=event.step,
        ranks=(event.rank,),
        layer=event.layer,
        summary=summary,
        cause=text if any(map(str.isalpha, text)) else f"{event.exception}, without a message.",
        action="Fix the error; the log up to there is complete."
        if after_steps
        else "Fix the error. The program ended before its first recorded step.",
    )


@rule("AMP903", "telemetry-gap", Severity.INFO)
def telemetry_gap(case: Case) -> Iterator[RuleHit]:
    """Rows missing from the record, as its `gap` events say."""
    gaps, events = case.events.of(EventKind.GAP), case.events
    reasons = " ".join(sorted(events.gap_reasons))
    if gaps.count:
        yield RuleHit(
            at=gaps,
            ranks=tuple(sorted(events.gap_ranks)),
            summary=f"{count_text(gaps.count, 'gap')} in the log.",
            cause=reasons or "Rows were lost between the probe and the log.",
            evidence=counted("gaps", gaps),
        )


# Cached memory in pieces too small for any allocation: a tenth of the card is more than any one
# layer needs.
FRAGMENTED_SHARE = 0.1


@rule("AMP415", "dtype-mismatch", Severity.ERROR)
def dtype_mismatch(case: Case) -> Iterator[RuleHit]:
    """A fatal error about mixed data types."""
    for event in case.events.fatal:
        if is_about_dtypes(_message(event)):
            yield _ended_by_error(event, "Training ended by a mixed-dtype error")


# How torch words it: matrix products, element-wise operations, convolutions, losses, autocast.
_DTYPE_MARKS = (
    "must have the same dtype",
    "expected scalar type",
    "expected m1 and m2 to have the same dtype",
    "Found dtype",
    "Input type (",
    "unsafe to autocast",
    "must match the dtype",
    "same dtype",
    "dtype to be equal",
)
# ... or, as for scatters and norms, the message names two formats of which one is half precision.
_FORMATS = re.compile(
    r"\b(bfloat16|float16|half|float32|float64|float|double)(?:tensor)?\b", re.IGNORECASE
)
_TYPES = re.compile(r"\bd?types?\b", re.IGNORECASE)
_HALF = frozenset({"half", "float16", "bfloat16"})


def is_about_dtypes(message: str) -> bool:
    """Whether the message of a fatal error is about data types."""
    if any(mark in message for mark in _DTYPE_MARKS):
        return True
    named = {name.lower() for name in _FORMATS.findall(message)}
    return len(named) > 1 and bool(named & _HALF) and _TYPES.search(message) is not None


@rule("AMP506", "out-of-memory", Severity.ERROR)
def out_of_memory(case: Case) -> Iterator[RuleHit]:
    """A fatal error because the device ran out of memory."""
    for event in case.events.fatal:
        message = f"{event.exception} {_message(event)}"
        if event.detail.get("out_of_memory") or "out of memory" in message or "OutOfMem" in message:
            error = _ended_by_error(event, "Training ran out of memory")
            yield replace(error, cause=" ".join((error.cause, *_memory_then(event))))


def _memory_then(event: Event) -> Iterator[str]:
    """How much memory each device held at the out-of-memory error, and how much was fragmented."""
    rows = event.detail.get("memory")
    for row in rows if isinstance(rows, list) else ():
        held, total, split = (
            positive_number(row.get(name)) if isinstance(row, dict) else None
            for name in ("allocated_bytes", "total_bytes", "inactive_split_bytes")
        )
        if held is None or total is None:
            continue
        yield f"{row.get('device')} held {bytes_text(held)} of {bytes_text(total)}."
        if split is not None and split >= FRAGMENTED_SHARE * total:
            yield (
                f"{bytes_text(split)} more is cached in pieces too small to use: "
                "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True may be enough."
            )


def _message(event: Event) -> str:
    return str(event.detail.get("message", ""))


def _ended_by_error(event: Event, what: str) -> RuleHit:
    where = f" in {event.layer}" if event.layer else ""
    text = " ".join(_message(event).split())
    return RuleHit(
        first_step=event.step,
        last_step=event.step,
        layer=event.layer,
        summary=f"{what}{where}.",
        cause=f"{event.exception}: {text[:200]}",
        ranks=(event.rank,),
        evidence=Evidence("exception", event.step, event.exception),
    )
