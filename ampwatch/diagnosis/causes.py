"""Which finding explains which, the verdict they add up to, and what that says of the rate."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from ampwatch.diagnosis import learning_rate, policy
from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.findings import Action, Advice, Finding, Severity, Verdict
from ampwatch.diagnosis.learning_rate import Judgement
from ampwatch.diagnosis.looked_at import is_too_short, unsure
from ampwatch.diagnosis.registry import RATE
from ampwatch.diagnosis.rules import RULES

_TIES = {rule.code: rule.ties for rule in RULES}


def link(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Drop what has no ground, give each consequence its cause, and put the headline first."""
    sound = [f for f in findings if _first_of(_TIES[f.code].groundless_beside, f, findings) is None]
    linked = [
        dataclasses.replace(f, because_of=_first_of(_TIES[f.code].explained_by, f, sound))
        for f in sound
    ]
    return tuple(sorted(linked, key=_rank))


def _first_of(codes: Sequence[str], effect: Finding, findings: Sequence[Finding]) -> str | None:
    """The first of these codes whose finding can be behind the effect."""
    found = {f.code for f in findings if f.code in codes and _explains(f, effect)}
    return next((code for code in codes if code in found), None)


def _explains(cause: Finding, effect: Finding) -> bool:
    if effect.severity is not Severity.INFO and cause.severity is Severity.INFO:
        return False
    if cause.first_step is None or effect.first_step is None:
        return True
    acts, shows = _TIES[cause.code], _TIES[effect.code]
    if shows.ends_the_run and cause.last_step is not None:
        return cause.last_step + policy.DELAY_STEPS >= effect.first_step
    if (acts.in_strict_order or shows.in_strict_order) and not shows.spares_weights:
        return cause.first_step <= effect.first_step
    late = acts.shown_late or effect.code in acts.late_to
    delay = policy.SAMPLING_DELAY_STEPS if late else policy.DELAY_STEPS
    return cause.first_step <= effect.first_step + delay


def _rank(finding: Finding) -> tuple[bool, int, float, str]:
    began = float("inf") if finding.first_step is None else finding.first_step
    explained = finding.because_of is not None
    return (explained, -finding.severity.weight, began, finding.code)


def judge(case: Case, findings: Sequence[Finding]) -> Verdict:
    """The run in one word."""
    severities = {finding.severity for finding in findings}
    if Severity.ERROR in severities:
        return Verdict.FAILING
    if case.is_searching or case.is_one_line:
        return Verdict.INCOMPLETE
    if Severity.WARNING in severities:
        return Verdict.WARNING
    return Verdict.INCOMPLETE if is_too_short(case) else Verdict.HEALTHY


def advise(case: Case, verdict: Verdict, findings: Sequence[Finding]) -> Advice:
    """What to do with the rate; a finding that names another cause comes before the numbers."""
    if verdict is Verdict.INCOMPLETE and (case.is_searching or case.is_one_line):
        told = "any step was accepted" if case.is_searching else "it shows any course"
        return Advice(Action.UNKNOWN, f"The record ends before {told}.")
    seen = case.judgement
    advice = learning_rate.advise(case.rate, seen)
    causes = [f for f in findings if f.because_of is None and f.severity is not Severity.INFO]
    named = next((f for f in causes if _TIES[f.code].excludes_rate(case, f)), None)
    # What jumped may have been the rate: that it is too high now holds all the same.
    blamed = any(f.code in RATE and f.because_of in {None, "AMP306"} for f in findings)
    if named is not None and not blamed:
        because = f"{named.code} {named.name} explains what happened: {named.summary}"
        return Advice(Action.NOT_THE_CAUSE, because, current=seen.base)
    if verdict is Verdict.INCOMPLETE:
        return unsure(advice, case)
    calm = verdict is Verdict.HEALTHY and seen.onset is not None
    if calm and advice.action is Action.NOT_THE_CAUSE:
        # The rows of a sparse log stand close where its steps do not: no trouble, no cause.
        return Advice(Action.KEEP, "Nothing that stands speaks against it.", current=seen.base)
    doubted = any(f.code in {"AMP307", "AMP410"} for f in causes) and advice.action is Action.KEEP
    if verdict is Verdict.HEALTHY or (seen.onset is not None and not doubted):
        return advice
    return _calm_beside_trouble(case, seen, causes)


def _calm_beside_trouble(case: Case, seen: Judgement, causes: Sequence[Finding]) -> Advice:
    """A finding stands, and the course of loss and updates shows nothing."""
    codes = {finding.code for finding in causes}
    if "AMP307" in codes:
        because = (
            "The loss has not come back into its band, and what was recorded does not show whether "
            "the rate drove it out: restart before that at the same rate, without those batches."
        )
        return Advice(Action.UNKNOWN, because, current=seen.base)
    if causes and causes[0].code in {"AMP206", "AMP306"}:
        because = f"{causes[0].code} {causes[0].name} explains what happened: {causes[0].summary}"
        return Advice(Action.NOT_THE_CAUSE, because, current=seen.base)
    if codes == {"AMP303"}:
        because = "The loss spiked and came back by itself each time, at this very rate."
        return Advice(Action.KEEP, because, current=seen.base)
    what = f"{causes[0].code} {causes[0].name}" if causes else "A finding"
    if not seen.sees_mechanism:
        because = f"{what} stands; neither updates nor gradients are recorded to judge the rate by."
        return Advice(Action.UNKNOWN, because, current=seen.base)
    harmful = _harmful_step(case)
    if harmful is not None:
        because = (
            f"{what} stands, and the update of step {harmful} was large beside the weights: "
            "whether the rate brought it about shows in a run begun anew at a quarter of it."
        )
        return Advice(Action.UNKNOWN, because, current=seen.base)
    because = f"{what} stands, and neither the loss nor the updates left their bands."
    return Advice(Action.NOT_THE_CAUSE, because, current=seen.base)


def _harmful_step(case: Case) -> int | None:
    """The first step of the beginning whose update was a large share of all weights."""
    rows = case.rate.head
    large = rows.accepted & (rows.ratio >= learning_rate.constants.PROOF_RATIO)
    return int(rows.of("step")[int(np.argmax(large))]) if large.any() else None
