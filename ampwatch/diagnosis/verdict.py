"""The verdict on a run, the advice beside its findings, and the diagnosis of them all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from datetime import datetime, timezone

import numpy as np

from ampwatch.diagnosis import thresholds
from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.causes import CHANGED, RATE, causes_of, excludes_rate, link_causes
from ampwatch.diagnosis.findings import (
    CUT_OFF,
    Diagnosis,
    Finding,
    FindingStatus,
    Outcome,
    RunFacts,
    Severity,
    State,
    Verdict,
)
from ampwatch.diagnosis.learning_rate import Judgement, constants
from ampwatch.diagnosis.learning_rate.advice import UNCERTAIN, Action, Advice
from ampwatch.diagnosis.loss_series import series_of_case
from ampwatch.diagnosis.outcome import announced, outcome_of
from ampwatch.diagnosis.rules import RULES
from ampwatch.diagnosis.rules.loss import UNKNOWN, outcome_hit
from ampwatch.diagnosis.rules.rate import how_to_change_rate
from ampwatch.diagnosis.value_text import count_text, rate_text


def verdict_of(case: Case, findings: Sequence[Finding], outcome: Outcome) -> Verdict:
    """The verdict on a case: the first line that fits."""
    severities = {finding.severity for finding in findings}
    lines = (
        (Verdict.FAILING, Severity.ERROR in severities),
        (Verdict.INCOMPLETE, case.is_searching or case.is_one_line),
        (Verdict.WARNING, Severity.WARNING in severities),
        (Verdict.INCOMPLETE, is_too_short(case, outcome)),
    )
    return next((verdict for verdict, fits in lines if fits), Verdict.HEALTHY)


# The findings that tell of an outcome: the first is the one that it is told as if none is there.
# Outcomes of no progress and of metrics are found by rules of their own.
_TELL_OF = {
    State.WORSE: ("AMP307", "AMP301", "AMP302"),
    State.NOT_BACK: ("AMP307", "AMP301", "AMP302", "AMP303", "AMP206"),
    State.RATE_LEAPT: ("AMP306",),
    State.LOST_BY_LEAP: ("AMP306",),
    State.RATE_CLIMBS: ("AMP306",),
    State.ANOTHER_LEVEL: ("AMP307", "AMP301", "AMP302", "AMP303", "AMP206"),
    State.WITHOUT_END: ("AMP304",),
    State.WIDER: ("AMP304",),
    State.NOT_FINITE: ("AMP204", "AMP203", "AMP207", "AMP209", "AMP211"),
    State.NO_STEPS: ("AMP105", "AMP103", "AMP104", "AMP202", "AMP203", "AMP208", "AMP211"),
    State.NOTHING_LEARNS: ("AMP410",),
    State.EXCEPTION: ("AMP902",),
}  # fmt: skip
# What a rule sees in skips, scale and loss is an error only while the training suffers from it.
_SYMPTOMS = frozenset(
    ("AMP103", "AMP105", "AMP202", "AMP203", "AMP206", "AMP208", "AMP209", "AMP306", "AMP307")
)
_RISE = "AMP307"
_OF_THE_LOSS = frozenset(("AMP206", "AMP303", "AMP304", "AMP307"))  # what stands out in it alone
# So are losses and gradients that are not finite now and then.
_NUMBERS, _RARE = frozenset(("AMP204", "AMP211")), 0.1


def _are_rare(case: Case) -> bool:
    """Whether few losses and gradients are not finite, and none of them has harmed the weights."""
    lost = case.unskipped
    bad = case.numbers.bad_loss.count + lost.bad.count + lost.unmoved.count + lost.left_out.count
    few = bad <= max(1, _RARE * case.scale.entries) and lost.unsettled.count <= 1
    # What the last line says goes on; of gradients inf may be a skip, and nan is none.
    ended = bool(case.rate.tail.of("loss_bad")[-1:].any())
    ended |= lost.nans.count > 0 and lost.nans.last_position >= case.scale.entries - 1
    # Without a scaler gradients that are not finite are in the weights, where it was seen.
    unsafe = case.observed.loop and not case.scale.has_scaler and lost.bad.count > 0
    return few and not ended and not unsafe


def weighed_by_outcome(case: Case, findings: Sequence[Finding], outcome: Outcome) -> list[Finding]:
    """The findings as grave as the outcome is: one that nothing tells of is told, in its words."""
    if outcome.state is State.NOT_FINITE:
        findings = [_to_the_end(finding, outcome.since_step or 0) for finding in findings]
    if outcome.is_explained:
        findings = _at_most(Severity.INFO, _OF_THE_LOSS, findings)
    if outcome.is_good:
        mild = _SYMPTOMS | (_NUMBERS if _are_rare(case) else frozenset())
        if case.evaluation_is_spoilt:
            mild -= {"AMP209"}
        # Nothing is too high for a loss at its best, and no loss where a score is.
        is_told = any(f.code == _RISE and f.severity.weight for f in findings)
        refuted = RATE if is_told else {*RATE, _RISE}
        findings = [finding for finding in findings if finding.code not in refuted]
        return _at_most(Severity.WARNING, mild, findings)
    if outcome.state in {State.FLAT, State.TOO_LITTLE} and _are_rare(case):
        findings = _at_most(Severity.WARNING, _NUMBERS, findings)  # and it is finite again
    by_rate = any(f.code in RATE and f.severity is Severity.ERROR for f in findings)
    if outcome.severity is not Severity.ERROR and not by_rate:  # it may come back, or be the task
        findings = _at_most(Severity.WARNING, {_RISE}, findings)
    if outcome.came_at_once:
        findings = [finding for finding in findings if finding.code not in RATE]
    graver = outcome.severity.weight > max((f.severity.weight for f in findings), default=0)
    if outcome.state not in _TELL_OF or not graver:
        return list(findings)
    codes = _TELL_OF[outcome.state]
    least = Severity.INFO if outcome.state is State.EXCEPTION else Severity.WARNING
    tells = [f for f in findings if f.code in codes and f.severity.weight >= least.weight]
    if tells:
        return [replace(f, severity=outcome.severity) if f in tells else f for f in findings]
    finding = next(rule for rule in RULES if rule.code == codes[0]).finding(outcome_hit(case), case)
    return [*(f for f in findings if f.code != finding.code), finding]


_OF_LOST_NUMBERS = frozenset(("AMP203", "AMP204", "AMP211", "AMP413"))
_JUST_BEFORE = 20  # steps before the loss was lost


def _to_the_end(finding: Finding, since: int) -> Finding:
    """A finding of numbers that are not finite, which goes on where the loss is lost for good.

    Once the weights are not finite either, nothing shows it any more.
    """
    if finding.code not in _OF_LOST_NUMBERS or (finding.last_step or 0) < since - _JUST_BEFORE:
        return finding
    summary = finding.summary.replace(finding.standing.ending, "")
    return replace(finding, standing=FindingStatus.STANDS, comes_and_goes=False, summary=summary)


def _at_most(most: Severity, codes: Set[str], findings: Sequence[Finding]) -> list[Finding]:
    """The findings, those with one of these codes no graver than this."""
    return [
        replace(f, severity=most) if f.code in codes and f.severity.weight > most.weight else f
        for f in findings
    ]


def advice_beside_findings(case: Case, verdict: Verdict, findings: Sequence[Finding]) -> Advice:
    """Beside the verdict, the advice on the rate; another cause overrides the rate's numbers."""
    if verdict is Verdict.INCOMPLETE and (case.is_searching or case.is_one_line):
        judged = "any step was accepted" if case.is_searching else "the learning rate can be judged"
        return Advice(Action.UNKNOWN, f"The log ends before {judged}.")
    judgement = case.judgement
    advice = case.rate_advice
    causes = [f for f in findings if f.because_of is None and f.severity is not Severity.INFO]
    low = next((f for f in causes if f.code == _TOO_LOW and not case.has_adversary), None)
    if low is not None and (raised := _raised_again(low)) is not None:
        return raised
    named = next((f for f in causes if excludes_rate(case, f)), None)
    if named is not None and not any(f.code in RATE for f in causes):
        return _explained_by(named, current=judgement.base)
    if verdict is Verdict.INCOMPLETE:
        return unsure_advice(advice, case)
    calm = verdict is Verdict.HEALTHY and judgement.onset is not None
    if calm and (advice.action is Action.NOT_THE_CAUSE or outcome_of(case).is_good):
        # Rows of a sparse log look close together although its steps are not: no trouble, no cause.
        return Advice(
            Action.KEEP, "No finding points to the learning rate.", current=judgement.base
        )
    doubted = advice.action is Action.KEEP and any(f.code in _OFTEN_THE_RATE for f in causes)
    if verdict is Verdict.HEALTHY or (judgement.onset is not None and not doubted):
        return advice
    has_onset = judgement.onset is not None and not any(
        f.code in _STANDS_AFTERWARDS for f in causes
    )
    if doubted and has_onset:
        return _doubtful(advice)
    return _calm_beside_trouble(case, judgement, causes)


def _doubtful(advice: Advice) -> Advice:
    """The advice beside a verdict that casts doubt on the rate: only where to restart remains."""
    return Advice(
        Action.UNKNOWN,
        f"{advice.because} The learning rate may still be the cause.",
        current=advice.current,
        restart_from_step=advice.restart_from_step,
        restart_checkpoint_step=advice.restart_checkpoint_step,
    )


# Too high a rate may be behind each of these: none stands beside a rate that is kept.
_STANDS_AFTERWARDS = frozenset(("AMP307", "AMP410"))
_OFTEN_THE_RATE = _STANDS_AFTERWARDS | {"AMP103", "AMP104", "AMP203", "AMP204", "AMP207", "AMP211"}


def _calm_beside_trouble(case: Case, judgement: Judgement, causes: Sequence[Finding]) -> Advice:
    """The advice beside the verdict if a finding stands although loss and updates look normal."""
    codes = {finding.code for finding in causes}
    if causes and "AMP307" not in codes and causes[0].code in {"AMP206", "AMP306"}:
        return _explained_by(causes[0], current=judgement.base)
    if codes == {"AMP902"} and case.rate_advice.action is Action.KEEP:
        return case.rate_advice
    what = f"{causes[0].code} {causes[0].name}" if causes else "A finding"
    rows = case.rate.head  # an update that is a large share of all weights may have done harm
    large = rows.of("step")[rows.accepted & (rows.ratio >= constants.PROOF_RATIO)]
    step = int(large[0]) if len(large) else None
    lines = (
        ("AMP307" in codes, Action.UNKNOWN,
         ("The loss has not returned to its usual range, and the log does not show whether the "
          "learning rate is the cause: restart before that at the same learning rate, without "
          "those batches.")),
        (codes == {"AMP303"}, Action.KEEP,
         "The loss spiked and recovered by itself each time, at this same learning rate."),
        ("AMP304" in codes, Action.UNKNOWN,
         f"{what} was found: too high a learning rate may show so before its loss does."),
        (not judgement.sees_mechanism, Action.UNKNOWN,
         f"{what} was found; without updates or gradients the learning rate cannot be judged."),
        (step is not None, Action.UNKNOWN,
         (f"{what} was found, and the update of step {step} was large compared with the weights: "
          "a new run at a quarter of the learning rate would show whether the learning rate is "
          "the cause.")),
        (True, Action.NOT_THE_CAUSE,
         f"{what} was found, and nothing that is recorded points to the learning rate."),
    )  # fmt: skip
    action, because = next((action, because) for fits, action, because in lines if fits)
    return Advice(action, because, current=judgement.base)


def _explained_by(finding: Finding, current: float | None) -> Advice:
    because = f"{finding.code} {finding.name} explains what happened: {finding.summary}"
    return Advice(Action.NOT_THE_CAUSE, because, current=current, explained_by=finding.code)


# --- how little a record holds --------------------------------------------------------------------

# With fewer kinds of signals than this the first sentence names them: a reader of "healthy" should
# know that only the loss was recorded.
_SIGNALS_ENOUGH = 3
FEWEST_LINES = 5  # of a log: fewer losses show neither health nor trouble
FEWEST_STEPS = 10  # one after another: their batches differ by more than they have learnt


def _signals(case: Case) -> tuple[str, ...]:
    """The signals that the record holds, in words, on which a verdict is based."""
    columns, updates = case.numbers.told, case.rate.head.of("update_norm")
    signals = {
        "the loss": "loss" in columns,
        "the loss scale": case.scale.has_scaler,
        "the gradient norm": "grad_norm" in columns,
        "the updates": bool(np.isfinite(updates).any()),
        "the layers": case.numbers.sees_forward,
        "the layers' casts": bool(case.casts.operands or case.casts.staleness),
    }
    return tuple(words for words, there in signals.items() if there)


def is_long_enough(case: Case) -> bool:
    """Whether at least one signal has enough steps for the shortest test of it."""
    rows = case.rate.head
    losses, norms = (int(np.isfinite(rows.of(name)).sum()) for name in ("loss", "grad_norm"))
    scales = case.rate.accepted if case.scale.has_scaler else 0
    return (
        losses >= constants.NO_LEARNING_STEPS
        or scales >= thresholds.STORM_WINDOW_STEPS
        or norms >= thresholds.DRIFT_ROWS
    )


def is_too_short(case: Case, outcome: Outcome) -> bool:
    """Whether a record ended before it had enough steps or lines to judge anything."""
    if case.observed.loop:
        return not is_long_enough(case)
    fewest = FEWEST_STEPS if case.observed.single_steps else FEWEST_LINES
    has_loss, few = "loss" in case.numbers.told, case.scale.entries < fewest
    little = outcome.state is State.TOO_LITTLE and not case.scale.has_scaler
    return has_loss and (little or (few and outcome.severity is Severity.INFO))


def little_seen(case: Case) -> str | None:
    """The sentence that says how little the record holds to judge by; None if it is enough."""
    if case.is_searching or case.is_one_line:
        return None
    signals = _signals(case)
    by = " and ".join(signals) or "skipped steps"
    little = len(signals) < _SIGNALS_ENOUGH
    if not is_long_enough(case):
        length = count_text(case.scale.entries, "step" if case.observed.loop else "line")
        only = f"; {by} only" if little else ""
        return f"No problems found in {length}, too few to judge the learning rate{only}."
    return f"No problems found, judged by {by} only." if little else None


def unsure_advice(advice: Advice, case: Case) -> Advice:
    """The advice for a run with too few steps to judge its rate: no evidence is no proof."""
    if advice.action not in {Action.KEEP, Action.NOT_THE_CAUSE}:
        return advice
    steps = count_text(case.scale.entries, "step")
    because = f"{steps} are too few to judge the learning rate; they show nothing against it."
    return Advice(Action.UNKNOWN, because, current=advice.current)


def conclude(case: Case) -> Diagnosis:
    """The diagnosis of a case: its findings, linked; the verdict; the advice."""
    outcome = outcome_of(case)
    by_rules = [finding for rule in RULES for finding in rule.findings(case)]
    if _overflowed_at_once(case, outcome, by_rules):
        outcome = replace(outcome, came_at_once=True)
    findings = link_causes(weighed_by_outcome(case, by_rules, outcome))
    verdict = verdict_of(case, findings, outcome)
    advice = advice_beside_findings(case, verdict, findings)
    is_certain = any(f.code == advice.explained_by and excludes_rate(case, f) for f in findings)
    if not is_certain or outcome.rate_went_up or outcome.state in _NO_PROGRESS:
        advice = _beside_outcome(case, advice, outcome)
    findings = tuple(_named_by_cause(findings, advice, outcome))
    causes = causes_of(case, findings, outcome, advice)
    return Diagnosis(
        _facts(case), verdict, findings, advice, outcome, causes, little_seen(case),
        fails_by_rules=any(f.severity is Severity.ERROR for f in link_causes(by_rules)),
        rate_by_rules=case.rate_advice,
    )  # fmt: skip


_STEPS_APART = 2  # of the trouble and the overflow that began it


def _overflowed_at_once(case: Case, outcome: Outcome, findings: Sequence[Finding]) -> bool:
    """Whether a layer was seen to overflow where the trouble began, and nothing announced it."""
    onset, trouble = case.judgement.onset, case.judgement.trouble
    if onset is None or trouble is None or not onset.hard or outcome.sign or trouble.leap:
        return False
    near = onset.step + _STEPS_APART
    seen = any(f.code == "AMP203" and f.layer and (f.first_step or 0) <= near for f in findings)
    return seen and announced(case, onset.step)[1]


def _named_by_cause(
    findings: Sequence[Finding], advice: Advice, outcome: Outcome
) -> Iterator[Finding]:
    """The findings; where the learning rate is to be lowered, what went wrong is called by it.

    A loss that rose gets its name. Numbers that left their format are told as what followed.
    """
    if not findings or advice.action is not Action.LOWER or outcome.rate_went_up:
        yield from findings
        return
    sign = f": {outcome.sign.words}" if outcome.sign is not None else ""
    head, *rest = findings
    if head.cause == UNKNOWN:
        head = replace(head, cause=f"{_LIKELY_RATE}{sign}.")
    is_announced = head.code in _BY_NUMBERS and outcome.sign is not None
    if not (head.code == _RISE or is_announced) or head.severity is not Severity.ERROR:
        yield from (head, *rest)
        return
    too_high = next(rule for rule in RULES if rule.code == RATE[0])
    # A milder finding that the table of evidence has of the same cause comes and goes beside it.
    same = [f for f in rest if f.code == too_high.code]
    evidence = (*head.evidence, *(piece for f in same for piece in f.evidence))
    named = replace(head, code=too_high.code, name=too_high.name, evidence=evidence)
    if is_announced:
        cause, action = f"{_LIKELY_RATE}{sign}.", _lower_text(advice)
        named = replace(named, summary=f"{_LIKELY_RATE}.", cause=cause, action=action)
        rest = [head, *rest]
    yield named
    for finding in rest:
        follows = finding.because_of == head.code or finding.code in RATE or finding is head
        if finding not in same:
            yield replace(finding, because_of=too_high.code) if follows else finding


def _lower_text(advice: Advice) -> str:
    return "Lower the learning rate." if advice.factor is None else how_to_change_rate(advice)


_LIKELY_RATE = "The learning rate is likely too high"
# Findings that tell that numbers left their format, and not why.
_BY_NUMBERS = frozenset(("AMP204", "AMP207", "AMP211"))
_TRY = 0.25  # of a learning rate that is likely too high, where nothing allows an estimate


def _beside_outcome(case: Case, advice: Advice, outcome: Outcome) -> Advice:
    """The advice, held against the outcome: a rate is not kept beside one that is bad."""
    if outcome.is_explained and advice.action is Action.UNKNOWN:
        because = "What else is logged explains how the loss went; nothing shows it is too high."
        return Advice(Action.KEEP, because, current=advice.current)
    if outcome.rate_went_up:
        return _back_to_before(outcome)
    if outcome.is_good and advice.action is Action.LOWER:
        because = "The loss is at or near its best, so nothing shows that it is too high."
        return Advice(Action.KEEP, because, current=advice.current)
    if outcome.came_at_once and advice.action is Action.LOWER:
        until = "The loss was at its best until then, and nothing announced it."
        because = f"{outcome.words} {until}".strip()
        return Advice(Action.UNKNOWN, because, current=advice.current)
    if (announced := _as_announced(case, advice, outcome)) is not None:
        return announced
    if outcome.state in _NO_PROGRESS and advice.explained_by in {None, "AMP309"}:
        return _if_nothing_moves(case, outcome, advice)
    left = {Action.KEEP, Action.RAISE}
    if outcome.state in {State.GOAL_LOST, State.GOAL_FALLS} and advice.explained_by is None:
        left.add(Action.NOT_THE_CAUSE)
    if outcome.severity is Severity.INFO or advice.action not in left:
        return advice
    if outcome.state in {State.OVERFITS, State.GOAL_STILL, State.EXCEPTION}:
        return advice
    return _untold(outcome, advice)


def _as_announced(case: Case, advice: Advice, outcome: Outcome) -> Advice | None:
    """The advice beside a bad outcome that something announced; None if nothing did."""
    if outcome.severity is not Severity.ERROR or not _is_undecided(case, advice):
        return None
    if outcome.sign is None:
        return None
    if outcome.grew_apart:
        return _untold(outcome, advice)
    base, at_trouble = case.rate.base_rate, _rate_at(case, outcome.since_step)
    # A warm-up that breaks down on its way has not failed at its peak, but at what it had reached.
    failed = base if base is None or at_trouble is None else min(base, at_trouble)
    return Advice(
        Action.LOWER,
        f"{outcome.words} {outcome.sign.sentence}: too high a learning rate shows itself so.",
        current=base,
        recommended=None if failed is None else _TRY * failed,
        factor=_TRY if base is None or failed is None else _TRY * failed / base,
        confidence=UNCERTAIN,
        restart_from_step=outcome.since_step,
    )


def _rate_at(case: Case, step: int | None) -> float | None:
    """The learning rate of a step, or the last that is known before it; None if none is."""
    series = series_of_case(case)
    is_known = np.isfinite(series.lr) & (series.lr > 0)
    rates = series.lr[is_known & (series.step <= (0 if step is None else step))]
    return float(rates[-1]) if len(rates) else None


def _untold(outcome: Outcome, advice: Advice) -> Advice:
    """The advice beside a bad outcome of which nothing says whether the learning rate caused it."""
    because = "The log does not show whether the learning rate is the cause."
    if outcome.sign is not None and outcome.grew_apart:
        because = f"{outcome.sign.sentence}: make the two agree before you judge the learning rate."
    return Advice(Action.UNKNOWN, f"{outcome.words} {because}", current=advice.current)


def _is_undecided(case: Case, advice: Advice) -> bool:
    """Whether neither rules nor the table of evidence say if the learning rate is the cause."""
    untold = advice.action is Action.NOT_THE_CAUSE and not case.judgement.is_judged
    return advice.action is Action.UNKNOWN or untold or advice.explained_by in _BY_NUMBERS


def _back_to_before(outcome: Outcome) -> Advice:
    """The advice if the loss rose as the learning rate went up: what it was before a leap."""
    now, before = outcome.evidence[0].value, outcome.evidence[0].against
    assert isinstance(now, float)
    assert isinstance(before, float)
    if outcome.state is State.RATE_CLIMBS:
        because = f"{outcome.words} The run had trained at this learning rate before it decayed."
        return Advice(Action.NOT_THE_CAUSE, because, current=now, explained_by=CHANGED)
    return Advice(
        Action.LOWER, outcome.words, current=now, recommended=before, factor=before / now,
        leapt_at_step=outcome.since_step,
    )  # fmt: skip


_NO_PROGRESS = frozenset((State.STANDS_STILL, State.HARDLY_FALLS))
_HIGHER, _STILL_RISING = 10.0, 1.5  # times: to try, and from the middle of a warm-up to its end


def _if_nothing_moves(case: Case, outcome: Outcome, advice: Advice) -> Advice:
    """The advice if the loss stands where it began: a warm-up that is still on may be too slow."""
    if advice.action in {Action.LOWER, Action.RAISE}:  # the rate has been judged
        return advice
    if outcome.state is State.HARDLY_FALLS and case.rate_advice.action is Action.RAISE:
        return case.rate_advice
    rows = case.rate.head if case.rate.is_whole else case.rate.points.rows
    lr = rows.of("lr")[np.isfinite(rows.of("lr"))]
    rises = len(lr) > 1 and bool((np.diff(lr) >= 0).all())
    if rises and lr[-1] >= _STILL_RISING * lr[len(lr) // 2] > 0:
        now = float(lr[-1])
        because = f"{outcome.words} The warm-up goes on: the learning rate is {rate_text(now)} yet."
        return Advice(
            Action.RAISE, because, current=now, recommended=_HIGHER * now, factor=_HIGHER,
            confidence=UNCERTAIN,
        )  # fmt: skip
    return _untold(outcome, advice)


def _raised_again(finding: Finding) -> Advice | None:
    """The advice beside a learning rate that fell to nothing or never rose: what was meant."""
    meant = next((piece.against for piece in finding.evidence if piece.against_is in _MEANT), None)
    now = next((piece.value for piece in finding.evidence), None)
    if not isinstance(meant, float) or not isinstance(now, float):
        return None
    return Advice(
        Action.RAISE, finding.summary, current=now, recommended=meant,
        factor=meant / now if now > 0 else None, confidence=UNCERTAIN,
    )  # fmt: skip


_TOO_LOW, _MEANT = "AMP308", frozenset(("highest", "base learning rate"))


def _facts(case: Case) -> RunFacts:
    record, scale, numbers, events = case.record, case.scale, case.numbers, case.events
    raised = bool(events.fatal) and events.is_over_by(scale.last_step or 0)
    return RunFacts(
        id=record.id,
        source=record.source,
        ranks=record.ranks,
        steps=numbers.new_steps if case.observed.loop else scale.steps + scale.steps_before,
        started=_as_iso_utc(record.started_ns),
        ended=_as_iso_utc(record.last_time_ns),
        clean_end=record.clean_end,
        first_scale=None if np.isnan(scale.first_scale) else scale.first_scale,
        final_scale=case.final_scale,
        overflows=max(events.overflows, numbers.skipped_steps),
        skipped=numbers.skipped_steps,
        exception=events.fatal[-1].exception if raised else None,
    )


def _as_iso_utc(time_ns: int | None) -> str | None:
    if not time_ns or time_ns < 0:
        return None
    moment = datetime.fromtimestamp(time_ns // 1_000_000_000, tz=timezone.utc)
    return moment.isoformat().replace("+00:00", "Z")


def verdict_text(diagnosis: Diagnosis) -> str:
    """The verdict as text for a list of runs, with whether the run was cut off."""
    verdict, state = diagnosis.verdict.value, diagnosis.run.state
    return f"{verdict}, {state}" if state == CUT_OFF != verdict else verdict
