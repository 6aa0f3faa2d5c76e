"""Which finding explains which, the verdict, and the advice on the learning rate."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ampwatch.diagnosis import learning_rate, policy
from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.enough_to_judge import is_too_short, unsure
from ampwatch.diagnosis.findings import Action, Advice, Finding, Severity, Verdict
from ampwatch.diagnosis.learning_rate import Judgement
from ampwatch.diagnosis.registry import RATE
from ampwatch.diagnosis.rules import RULES

_TIES = {rule.code: rule.ties for rule in RULES}


def link(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Drop findings without a basis, link each consequence to its cause, put the headline first."""
    sound = [f for f in findings if _first_of(_TIES[f.code].groundless_beside, f, findings) is None]
    linked = [
        dataclasses.replace(f, because_of=_first_of(_TIES[f.code].explained_by, f, sound))
        for f in sound
    ]
    return tuple(sorted(linked, key=_rank))


def _first_of(codes: Sequence[str], effect: Finding, findings: Sequence[Finding]) -> str | None:
    """The first of these codes whose finding can have caused the effect."""
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


def _rank(finding: Finding) -> tuple[bool, bool, int, float, str]:
    began = float("inf") if finding.first_step is None else finding.first_step
    explained = finding.because_of is not None
    is_aside = finding.severity is Severity.INFO  # below all that counts, explained or not
    return (is_aside, explained, -finding.severity.weight, began, finding.code)


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
    """What to do with the rate; a finding that names another cause overrides the numbers."""
    if verdict is Verdict.INCOMPLETE and (case.is_searching or case.is_one_line):
        judged = "any step was accepted" if case.is_searching else "the rate can be judged"
        return Advice(Action.UNKNOWN, f"The record ends before {judged}.")
    seen = case.judgement
    advice = case.rate_advice
    causes = [f for f in findings if f.because_of is None and f.severity is not Severity.INFO]
    named = next((f for f in causes if _TIES[f.code].excludes_rate(case, f)), None)
    if named is not None and not any(f.code in RATE for f in causes):
        return _explained_by(named, current=seen.base)
    if verdict is Verdict.INCOMPLETE:
        return unsure(advice, case)
    calm = verdict is Verdict.HEALTHY and seen.onset is not None
    if calm and advice.action is Action.NOT_THE_CAUSE:
        # Rows of a sparse log look close together although its steps are not: no trouble, no cause.
        return Advice(Action.KEEP, "No finding points to the rate.", current=seen.base)
    doubted = advice.action is Action.KEEP and any(f.code in _OFTEN_THE_RATE for f in causes)
    if verdict is Verdict.HEALTHY or (seen.onset is not None and not doubted):
        return advice
    shown = seen.onset is not None and not any(f.code in _STANDS_AFTERWARDS for f in causes)
    if doubted and shown:
        return _doubtful(advice)
    return _calm_beside_trouble(case, seen, causes)


def _doubtful(advice: Advice) -> Advice:
    """The same, with where to restart, and without the word on the rate."""
    return Advice(
        Action.UNKNOWN,
        f"{advice.because} The rate may still be the cause.",
        current=advice.current,
        restart_from_step=advice.restart_from_step,
        restart_checkpoint_step=advice.restart_checkpoint_step,
    )


# Too high a rate may be behind each of these: none stands beside a rate that is kept.
_STANDS_AFTERWARDS = frozenset(("AMP307", "AMP410"))
_OFTEN_THE_RATE = _STANDS_AFTERWARDS | {"AMP103", "AMP104", "AMP203", "AMP204", "AMP207", "AMP211"}


def _calm_beside_trouble(case: Case, seen: Judgement, causes: Sequence[Finding]) -> Advice:
    """The advice if a finding stands and loss and updates show nothing."""
    codes, action = {finding.code for finding in causes}, Action.UNKNOWN
    if causes and "AMP307" not in codes and causes[0].code in {"AMP206", "AMP306"}:
        return _explained_by(causes[0], current=seen.base)
    what = f"{causes[0].code} {causes[0].name}" if causes else "A finding"
    rows = case.rate.head  # an update that is a large share of all weights may have done harm
    large = rows.of("step")[rows.accepted & (rows.ratio >= learning_rate.constants.PROOF_RATIO)]
    if "AMP307" in codes:
        because = (
            "The loss has not returned to its usual range, and the record does not show whether "
            "the rate is the cause: restart before that at the same rate, without those batches."
        )
    elif codes == {"AMP303"}:
        action = Action.KEEP
        because = "The loss spiked and recovered by itself each time, at this same rate."
    elif not seen.sees_mechanism:
        because = f"{what} was found; without updates or gradients the rate cannot be judged."
    elif len(large):
        because = (
            f"{what} was found, and the update of step {int(large[0])} was large compared with the "
            "weights: a new run at a quarter of the rate would show whether the rate is the cause."
        )
    else:
        action = Action.NOT_THE_CAUSE
        because = f"{what} was found, but loss and updates stayed within their usual range."
    return Advice(action, because, current=seen.base)


def _explained_by(finding: Finding, current: float | None) -> Advice:
    because = f"{finding.code} {finding.name} explains what happened: {finding.summary}"
    return Advice(Action.NOT_THE_CAUSE, because, current=current, explained_by=finding.code)
