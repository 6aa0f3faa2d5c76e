"""AMP301, AMP302, AMP305: a learning rate that is too high, rises too fast, or could be higher."""

from __future__ import annotations

from collections.abc import Iterator

from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.findings import Evidence, Severity
from ampwatch.diagnosis.learning_rate import Judgement, constants
from ampwatch.diagnosis.learning_rate.advice import Action, Advice
from ampwatch.diagnosis.learning_rate.onset import Onset
from ampwatch.diagnosis.rule import Seen, rule
from ampwatch.diagnosis.value_text import go_back_text


@rule("AMP301", "learning-rate-too-high", Severity.ERROR)
def learning_rate_too_high(case: Case) -> Iterator[Seen]:
    """A learning rate that causes lasting trouble and was no longer rising."""
    seen, onset = case.judgement, case.judgement.onset
    advice = case.rate_advice
    if advice.action is Action.LOWER and seen.warmup is None and onset is not None:
        severity = Severity.WARNING if onset.is_slow else Severity.ERROR
        yield _seen(seen, onset, advice, severity, "The learning rate is too high.")


@rule("AMP302", "warmup-too-steep", Severity.WARNING)
def warmup_too_steep(case: Case) -> Iterator[Seen]:
    """A learning rate that caused lasting trouble while it was still rising."""
    seen, onset = case.judgement, case.judgement.onset
    advice = case.rate_advice
    if advice.action is Action.LOWER and seen.warmup is not None and onset is not None:
        severity = Severity.ERROR if onset.collapsed else Severity.WARNING
        rate = f"{seen.warmup.rate:.3g}"
        summary = f"The learning rate became too high in the warm-up, when it had reached {rate}."
        yield _seen(seen, onset, advice, severity, summary)


@rule("AMP305", "learning-rate-could-rise", Severity.INFO)
def learning_rate_could_rise(case: Case) -> Iterator[Seen]:
    """A learning rate so low that the gradient still points the same way after an update."""
    seen = case.judgement
    advice = case.rate_advice
    if advice.action is not Action.RAISE or seen.alignment is None:
        return
    yield Seen(
        first_step=seen.last_step,
        last_step=seen.last_step,
        summary="The learning rate could be higher.",
        cause=advice.because,
        action=how_to_change_rate(advice),
        evidence=(
            Evidence(
                "next_gradient",
                seen.last_step,
                seen.alignment,
                constants.RAISE_ALIGNMENT,
                "threshold",
            ),
        ),
    )


def _seen(seen: Judgement, onset: Onset, advice: Advice, severity: Severity, summary: str) -> Seen:
    assert seen.attribution is not None
    sign, proofs = onset.sign.value, seen.attribution.proofs
    told = "; ".join(row.told for row in proofs[:2])
    return Seen(
        severity=severity,
        first_step=onset.step,
        last_step=seen.last_step,
        summary=summary,
        # The advice has the arithmetic.
        cause=f"{sign[0].upper()}{sign[1:]}, with {told}. {seen.attribution.told}",
        action=how_to_change_rate(advice),
        evidence=tuple(
            Evidence(row.entry.signal, row.reading.step, *row.entry.compared(row.reading))
            for row in proofs
        ),
    )


def rate_evidence_lines(case: Case) -> list[str]:
    """The table of evidence for the rate as text, one line a sign with its points."""
    seen = case.judgement.attribution
    return [] if seen is None else [str(row) for row in seen.table]


def how_to_change_rate(advice: Advice) -> str:
    """Which peak to set; where to restart is said once for all findings (`report.restart_place`).

    After a leap nothing is to be set: a checkpoint from before it holds the right rate.
    """
    assert advice.factor is not None
    if advice.leapt_at_step is not None:
        back = go_back_text(f"{advice.recommended:.3g}", advice.leapt_at_step)
        return (
            f"{back}: the run had trained at it. Undo what made the learning rate "
            f"{advice.current:.3g} there: the schedule, or a change by hand."
        )
    return peak_text(advice)


def peak_text(advice: Advice) -> str:
    """Which peak to set, and how after loading a checkpoint, if one is to be loaded."""
    assert advice.factor is not None
    if advice.recommended is None:
        return f"Multiply every learning rate by {advice.factor:.2g}."
    peak = f"{advice.recommended:{'.2g' if advice.proved_steps is None else '.3g'}}"
    now = "" if advice.current is None else f" (now {advice.current:.4g})"
    besides = "" if advice.besides is None else f", with {advice.besides}"
    text = f"Set the peak learning rate to {peak}{now}{besides}."
    if advice.restart_checkpoint_step is None:
        return text
    call = f"ampwatch.set_learning_rate(optimizer, {peak}, scheduler)"
    return f"{text} After loading a checkpoint, call `{call}`."
