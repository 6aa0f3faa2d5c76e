"""AMP301, AMP302, AMP305: a learning rate that is too high, rises too fast, or could be higher."""

from __future__ import annotations

from collections.abc import Iterator

from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.findings import Evidence, Severity
from ampwatch.diagnosis.learning_rate import Judgement, constants
from ampwatch.diagnosis.learning_rate.advice import Action, Advice
from ampwatch.diagnosis.learning_rate.attribution import LOWER_LINE, weights_text
from ampwatch.diagnosis.learning_rate.onset import CLIMB, Onset
from ampwatch.diagnosis.rule import Page, Seen, rule
from ampwatch.diagnosis.value_text import go_back_text


@rule(
    "AMP301",
    "learning-rate-too-high",
    Severity.ERROR,
    Page(
        meaning="The learning rate is higher than this training tolerates: updates, gradients or "
        "weights left their usual range before the trouble began, and the run did not recover.",
        looks=f"From random weights: a loss {CLIMB} times its first value, one that gave back "
        "half of its progress, one that never fell, or skips without end. Later: a loss that "
        "left the band of its recent past. The cause is then weighed: for each sign, the "
        "octaves beyond its usual range, times its points; of correlated signs only the "
        "strongest counts, and what is not recorded counts nothing. Points per octave for "
        f"the rate: {weights_text()}. The finding is reported from a probability of "
        f"{LOWER_LINE:.2f} on; as a warning only if the run still learns.",
        not_to_confuse="A change of the data or the objective, which moves the loss alone; a "
        "bad batch (AMP206); an operation that overflows at any rate (AMP203); a spike that "
        "recovers (AMP303). The loss alone never causes this finding.",
        do="Train again at the advised rate, from the advised step. Dividing by ten fails when "
        "the rate was far too high and wastes training when it was not.",
        example="a small network, momentum at a rate of 1.6, where 0.14 is about the limit: the "
        "weights are 14 times larger by step 50 and the loss never falls; no overflow.",
    ),
)
def learning_rate_too_high(case: Case) -> Iterator[Seen]:
    """A learning rate that causes lasting trouble and was no longer rising."""
    seen, onset = case.judgement, case.judgement.onset
    advice = case.rate_advice
    if advice.action is Action.LOWER and seen.warmup is None and onset is not None:
        severity = Severity.WARNING if onset.is_slow else Severity.ERROR
        yield _seen(seen, onset, advice, severity, "The learning rate is too high.")


@rule(
    "AMP302",
    "warmup-too-steep",
    Severity.WARNING,
    Page(
        meaning="The rate became too high while it was still rising: it never reached its peak.",
        looks="As AMP301, at a step at which the rate was still rising.",
        not_to_confuse="AMP301, where the rate was at its peak or falling.",
        do="Lower the peak to at most the rate of that step, or warm up for longer.",
        example="ampwatch demo: a warm-up to 1.0 over 700 steps. Before the rate has reached half "
        "of that, the loss gives back half of its progress and the scale collapses.",
    ),
)
def warmup_too_steep(case: Case) -> Iterator[Seen]:
    """A learning rate that caused lasting trouble while it was still rising."""
    seen, onset = case.judgement, case.judgement.onset
    advice = case.rate_advice
    if advice.action is Action.LOWER and seen.warmup is not None and onset is not None:
        severity = Severity.ERROR if onset.collapsed else Severity.WARNING
        rate = f"{seen.warmup.rate:.3g}"
        summary = f"The learning rate became too high in the warm-up, when it had reached {rate}."
        yield _seen(seen, onset, advice, severity, summary)


@rule(
    "AMP305",
    "learning-rate-could-rise",
    Severity.INFO,
    Page(
        meaning="The run hardly learns, and after each update the gradient still points the "
        "same way: the steps are shorter than they could be.",
        looks="The loss has fallen by less than a tenth in the last thousand steps, and the "
        "gradient after an update still points against it: their product, divided by that of the "
        f"update with its own gradient, is below {constants.RAISE_ALIGNMENT} in the median of "
        f"{constants.RAISE_STEPS} steps at the full rate. It is computed from `update_alignment`, "
        "the cosine of each update to the one before, without the part that momentum adds.",
        not_to_confuse="A low loss or a slow one by itself: neither shows that the rate could "
        "rise. Updates that are alike only because of momentum or weight decay.",
        do="Try twice the rate, with a checkpoint to return to.",
        example="alignment below -0.5 over 100 steps after warm-up: in every run tried, doubling "
        "was stable. Above -0.3, leave it.",
    ),
)
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
