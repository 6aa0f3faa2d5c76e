"""Which finding explains which: each consequence is linked to its cause."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ampwatch.diagnosis import thresholds
from ampwatch.diagnosis.findings import Finding, Severity
from ampwatch.diagnosis.rules import RULES

TIES = {rule.code: rule.ties for rule in RULES}


def link_causes(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Drop baseless findings, link each consequence to its cause, and put the headline first."""
    sound = [f for f in findings if _first_of(TIES[f.code].groundless_beside, f, findings) is None]
    linked = [
        dataclasses.replace(f, because_of=_first_of(TIES[f.code].explained_by, f, sound))
        for f in sound
    ]
    return tuple(sorted(linked, key=_rank))


def _first_of(codes: Sequence[str], effect: Finding, findings: Sequence[Finding]) -> str | None:
    """The first of these codes whose finding can have caused the effect; None if none can."""
    found = {f.code for f in findings if f.code in codes and _explains(f, effect)}
    return next((code for code in codes if code in found), None)


def _explains(cause: Finding, effect: Finding) -> bool:
    if effect.severity is not Severity.INFO and cause.severity is Severity.INFO:
        return False
    if cause.first_step is None or effect.first_step is None:
        return True
    acts, shows = TIES[cause.code], TIES[effect.code]
    if shows.ends_the_run and cause.last_step is not None:
        return cause.last_step + thresholds.DELAY_STEPS >= effect.first_step
    if (acts.in_strict_order or shows.in_strict_order) and not shows.spares_weights:
        return cause.first_step <= effect.first_step
    late = acts.shown_late or effect.code in acts.late_to
    delay = thresholds.SAMPLING_DELAY_STEPS if late else thresholds.DELAY_STEPS
    return cause.first_step <= effect.first_step + delay


def _rank(finding: Finding) -> tuple[bool, bool, int, float, str]:
    began = float("inf") if finding.first_step is None else finding.first_step
    explained = finding.because_of is not None
    is_aside = finding.severity is Severity.INFO  # below all that counts, explained or not
    return (is_aside, explained, -finding.severity.weight, began, finding.code)
