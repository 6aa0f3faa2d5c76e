"""AMP415 and AMP506: errors that ended the run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.event import Event, positive_number
from ampwatch.diagnosis.findings import Evidence, Severity
from ampwatch.diagnosis.rule import Seen, rule
from ampwatch.diagnosis.value_text import bytes_text

# Cached memory in pieces too small for any allocation: a tenth of the card is more than any one
# layer needs.
FRAGMENTED_SHARE = 0.1


@rule("AMP415", "dtype-mismatch", Severity.ERROR)
def dtype_mismatch(case: Case) -> Iterator[Seen]:
    """A fatal error about mixed data types."""
    for event in case.events.fatal:
        if is_about_dtypes(_message(event)):
            yield _ended_by(event, "Training ended by a mixed-dtype error")


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
def out_of_memory(case: Case) -> Iterator[Seen]:
    """A fatal error because the device ran out of memory."""
    for event in case.events.fatal:
        told = f"{event.exception} {_message(event)}"
        if event.detail.get("out_of_memory") or "out of memory" in told or "OutOfMem" in told:
            seen = _ended_by(event, "Training ran out of memory")
            yield replace(seen, cause=" ".join((seen.cause, *_memory_then(event))))


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


def _ended_by(event: Event, what: str) -> Seen:
    where = f" in {event.layer}" if event.layer else ""
    text = " ".join(_message(event).split())
    return Seen(
        first_step=event.step,
        last_step=event.step,
        layer=event.layer,
        summary=f"{what}{where}.",
        cause=f"{event.exception}: {text[:200]}",
        ranks=(event.rank,),
        evidence=(Evidence("exception", event.step, event.exception),),
    )
