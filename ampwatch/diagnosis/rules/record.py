"""AMP901 to AMP903: what the record itself lacks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ampwatch.diagnosis import policy
from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.findings import Evidence, Severity
from ampwatch.diagnosis.registry import Page, Seen, rule
from ampwatch.diagnosis.words import count_text
from ampwatch.rows import EventKind


@rule(
    "AMP901",
    "incomplete-data",
    Severity.INFO,
    Page(
        meaning="Something could not be judged, because the record does not hold it.",
        looks="A log cut off, no layers, a culprit that is only bounded. The text says which.",
        not_to_confuse="A healthy run: absent is not fine, it is unknown.",
        do="Pass the model to ampwatch.attach; keep the trainer's own log.",
        example="steps 1 to 812 readable, 3 kB after them cut off.",
    ),
)
def incomplete_data(case: Case) -> Iterator[Seen]:
    """What could not be judged, and why."""
    missing = [*case.signals.notes, *_blind_spots(case)]
    if missing:
        yield Seen(
            severity=Severity.INFO,
            summary="Some things could not be judged.",
            cause=" ".join(missing),
            action="Read the findings with that in mind.",
        )


def _blind_spots(case: Case) -> Iterator[str]:
    signals = case.signals
    if not len(signals):
        yield "The record holds no steps."
        return
    bad_loss = bool((signals.loss_known & ~np.isfinite(signals.loss)).any())
    unexplained = int(signals.skipped.sum()) - len(case.explained_steps)
    if not case.sees_forward and (bad_loss or unexplained > policy.STORM_FREE_SKIPS):
        yield "No layer's activations were recorded, so no layer can be named."
    told = [e for e in signals.of_kind(EventKind.OVERFLOW) if e.step not in case.explained_steps]
    bounds = sum(event.detail.get("exact") is False for event in told)
    if bounds:
        yield f"The layer of {count_text(bounds, 'overflow')} is a bound, not a certainty."


@rule(
    "AMP902",
    "run-ended-uncleanly",
    Severity.INFO,
    Page(
        meaning="The record ends without an end mark, or by an exception: the process was killed, "
        "crashed, or left by an error.",
        looks="No `ended` event from some rank, or an exception as the last event.",
        not_to_confuse="A run that is still going: its record has no end mark yet either.",
        do="See the exception, or the system's log for who killed the process.",
        example="killed at step 412: every row up to there is readable.",
    ),
)
def run_ended_uncleanly(case: Case) -> Iterator[Seen]:
    """The record ends by an exception or without an end mark."""
    last = int(case.signals.step[-1]) if len(case.signals) else None
    if case.fatal_exceptions:
        event = case.fatal_exceptions[-1]
        text = " ".join(str(event.detail.get("message", "")).split())[:200]
        yield Seen(
            severity=Severity.INFO,
            first_step=event.step,
            last_step=event.step,
            ranks=(event.rank,),
            layer=str(event.detail["layer"]) if event.detail.get("layer") else None,
            summary=f"The run ended by {event.exception}.",
            cause=text or "The exception had no message.",
            action="Put the error right; the record up to there is complete.",
        )
    elif not case.signals.clean_end:
        yield Seen(
            severity=Severity.INFO,
            first_step=last,
            last_step=last,
            summary="The record has no end mark.",
            cause="The process is still running, or it was killed before it could say that it "
            "ended.",
            action="Every row up to here is readable; the last quarter of a second may be missing.",
        )


@rule(
    "AMP903",
    "telemetry-gap",
    Severity.INFO,
    Page(
        meaning="Rows were lost on the way: they are counted, and the diagnosis knows of the gap.",
        looks="A `gap` event, with how many rows or batches are missing and why.",
        not_to_confuse="Skipped steps: those have rows.",
        do="Read the trainer's own log, which is complete unless its disk was full.",
        example="the disk was full from step 900 to 950: 51 steps are missing.",
    ),
)
def telemetry_gap(case: Case) -> Iterator[Seen]:
    """Rows that were lost, as the record tells."""
    gaps = case.signals.of_kind(EventKind.GAP)
    if not gaps:
        return
    reasons = {str(g.detail["reason"]) for g in gaps if g.detail.get("reason")}
    yield Seen(
        severity=Severity.INFO,
        first_step=gaps[0].step,
        last_step=gaps[-1].step,
        ranks=tuple(sorted({gap.rank for gap in gaps})),
        summary=f"{count_text(len(gaps), 'gap')} in the record.",
        cause=" ".join(sorted(reasons)) or "Rows were lost between the probe and the log.",
        action="Read the trainer's own log if this is a copy.",
        evidence=(Evidence("gaps", gaps[-1].step, float(len(gaps))),),
    )
