"""AMP301, AMP302, AMP305, AMP308: a learning rate too high, too steep, too low, or next to zero."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ampwatch.diagnosis import thresholds
from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.column_arrays import Floats, median_of_known
from ampwatch.diagnosis.findings import Severity
from ampwatch.diagnosis.finiteness_history import DEAD_RATE
from ampwatch.diagnosis.learning_rate import constants
from ampwatch.diagnosis.learning_rate.advice import Action, Advice
from ampwatch.diagnosis.rule import RuleHit, rule
from ampwatch.diagnosis.value_text import Evidence, count_text, go_back_text


@rule("AMP301", "learning-rate-too-high", Severity.ERROR)
def learning_rate_too_high(case: Case) -> Iterator[RuleHit]:
    """A learning rate that causes lasting trouble and was no longer rising."""
    if case.judgement.warmup is None:
        yield from _too_high(case, "The learning rate is too high.")


@rule("AMP302", "warmup-too-steep", Severity.ERROR)
def warmup_too_steep(case: Case) -> Iterator[RuleHit]:
    """A learning rate that caused lasting trouble while it was still rising."""
    if (warmup := case.judgement.warmup) is not None:
        reached = f"when it had reached {warmup.rate:.3g}"
        yield from _too_high(case, f"The learning rate became too high in the warm-up, {reached}.")


@rule("AMP305", "learning-rate-could-rise", Severity.INFO)
def learning_rate_could_rise(case: Case) -> Iterator[RuleHit]:
    """A learning rate so low that the gradient still points the same way after an update."""
    judgement = case.judgement
    advice = case.rate_advice
    if advice.action is not Action.RAISE or judgement.alignment is None:
        return
    yield RuleHit(
        first_step=judgement.last_step,
        last_step=judgement.last_step,
        summary="The learning rate could be higher.",
        cause=advice.because,
        action=how_to_change_rate(advice),
        evidence=Evidence(
            "next_gradient",
            judgement.last_step,
            judgement.alignment,
            constants.RAISE_ALIGNMENT,
            "threshold",
        ),
    )


def _too_high(case: Case, summary: str) -> Iterator[RuleHit]:
    """The trouble of a learning rate that is to be lowered; a warning if the run still learns."""
    onset, advice = case.judgement.onset, case.rate_advice
    if advice.action is not Action.LOWER or onset is None:
        return
    attribution = case.judgement.attribution
    assert attribution is not None
    sign, proofs = onset.sign.value, attribution.proofs
    signs = "; ".join(row.told for row in proofs[:2])
    yield RuleHit(
        severity=Severity.WARNING if onset.is_slow else Severity.ERROR,
        first_step=onset.step,
        last_step=case.judgement.last_step,
        summary=summary,
        # The advice has the arithmetic.
        cause=f"{sign[0].upper()}{sign[1:]}, with {signs}. {attribution.told}",
        action=how_to_change_rate(advice),
        evidence=tuple(
            Evidence(row.entry.name, row.reading.step, *row.entry.compared(row.reading))
            for row in proofs
        ),
    )


def rate_evidence_lines(case: Case) -> list[str]:
    """The table of evidence for the rate as text, one line a sign with its points."""
    attribution = case.judgement.attribution
    return [] if attribution is None else [str(row) for row in attribution.table]


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


# A log whose rates are all next to zero: reported from three lines on, an error from twenty.
DEAD_LINES, DEAD_MANY = 3, thresholds.NO_ACCIDENT_STEPS
# Many warm-ups begin below a hundredth of the base rate; a decay ends at that or at a tenth.
FIRST_SHARE = 0.01
# A schedule may advance once an epoch. A finished run in which it never did has at most one epoch,
# which is no longer than this; while a run goes on, its first epoch may not be over (5,000 steps in
# ImageNet's).
STUCK_STEPS, STUCK_RUNNING = 300, 10_000

ZERO_STEPS = 50  # at a learning rate of exactly 0: no schedule waits so long for the end
# No schedule means to end below a hundredth of its highest rate for half of a training.
VANISHED, VANISHED_SHARE, _VANISHED_ENTRIES, _FELL = 0.009, 0.5, 20, 0.05


@rule("AMP308", "learning-rate-next-to-zero", Severity.WARNING)
def learning_rate_next_to_zero(case: Case) -> Iterator[RuleHit]:
    """A learning rate that is zero throughout, never left its start, or fell to nothing."""
    if rate_is_stuck(case):
        yield _stuck(case)
        return
    if (vanished := _vanished(case)) is not None:
        yield vanished
        return
    numbers, scale = case.numbers, case.scale
    known_to_search = scale.has_scaler and case.is_searching
    if case.observed.loop or numbers.any_rate or known_to_search:
        return
    # A log that prints a rate only now and then must have printed it often.
    if numbers.rates < DEAD_LINES or numbers.rates < min(DEAD_MANY, scale.entries):
        return
    yield RuleHit(
        severity=Severity.ERROR if numbers.rates >= DEAD_MANY else Severity.WARNING,
        at=scale,
        summary="Nothing is learnt: the learning rate stayed at its start in "
        f"{count_text(numbers.rates, 'line')}.",
        cause="Either the scheduler waits for accepted steps and there are none, or nothing "
        "calls scheduler.step().",
        evidence=Evidence("lr", scale.last_step, 0.0, DEAD_RATE, "threshold"),
    )


def rate_is_stuck(case: Case) -> bool:
    """Whether a schedule's rate never moved from a start far below its base rate."""
    setup, first = case.setup, case.setup.first_rate
    if first.rate is None or first.moved or first.share >= FIRST_SHARE:
        return False
    if setup.begin or setup.loaded_at_start or setup.loads or setup.optimizers > 1:
        return False  # the rate may have come down before
    over = case.record.clean_end or not case.observed.loop
    enough = first.accepted >= (STUCK_STEPS if over else STUCK_RUNNING)
    return enough and setup.begins_below(FIRST_SHARE)


def _vanished(case: Case) -> RuleHit | None:
    """A rate that fell to next to nothing of its highest long before the record ends."""
    rows = case.rate.head if case.rate.is_whole else case.rate.points.rows
    entries = np.flatnonzero(np.isfinite(rows.of("lr")))
    if len(entries) < _VANISHED_ENTRIES:
        return None
    rate, step = rows.of("lr")[entries], rows.of("step")[entries]
    top = float(rate.max())
    alive = np.flatnonzero(rate > VANISHED * top)
    since = int(alive[-1]) + 1 if len(alive) else 0
    # Exactly zero is no rounding where the loop was watched.
    is_over = case.observed.loop and len(rate) > ZERO_STEPS and not rate[-ZERO_STEPS:].any()
    if not since or not (is_over or since <= (1 - VANISHED_SHARE) * len(rate)):
        return None
    if _falls_on(rows.of("loss")[entries][since:]):
        return None
    first, low, now = int(step[since]), float(rate[since]), float(rate[-1])
    lately = float(rate[-max(2, len(rate) // 10)])
    since_then = "has stayed there" if now == low else f"is {now:.3g} at step {int(step[-1]):,}"
    return RuleHit(
        first_step=first,
        last_step=case.scale.last_step,
        summary=f"The learning rate fell to next to nothing: from {top:.3g} to {low:.3g} at step "
        f"{first:,}, and {since_then}.",
        cause=f"The schedule {_lowers if now < lately else _is_over}: it may be meant for epochs, "
        "and scheduler.step() is called in each step.",
        action="Call scheduler.step() once an epoch, or give the schedule its lengths in steps.",
        evidence=Evidence("lr", int(step[-1]), now, top, "highest"),
    )


_is_over, _lowers = "is over, and the training goes on", "lowers it further and further"


def _falls_on(loss: Floats) -> bool:
    """Whether the loss went on falling: then the rate is small, and not next to nothing."""
    few = max(1, len(loss) // 10)
    return median_of_known(loss[-few:]) < (1 - _FELL) * median_of_known(loss[:few])


def _stuck(case: Case) -> RuleHit:
    first = case.setup.first_rate
    assert first.rate is not None, "a constant learning rate is known"
    return RuleHit(
        at=case.scale,
        summary=f"The learning rate never rose: it was {first.rate:.3g} in all "
        f"{count_text(first.steps, 'step')}, {100 * first.share:.2g} % of its base learning rate.",
        cause="The schedule starts there and nothing calls scheduler.step(), so next to nothing "
        "is learnt.",
        action="Call scheduler.step() after each optimizer.step(), or once an epoch if its "
        "lengths are in epochs.",
        evidence=Evidence("lr", case.scale.last_step, first.rate, first.base, "base learning rate"),
    )
