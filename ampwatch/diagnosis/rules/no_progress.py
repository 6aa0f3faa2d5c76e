"""AMP309: a loss that has not fallen from the start."""

from __future__ import annotations

from collections.abc import Iterator

from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.findings import Severity, State
from ampwatch.diagnosis.loss_progress import (
    AT_FIRST,
    HARDLY,
    HARDLY_STEPS,
    SAME,
    SAME_LINES,
    SAME_STEPS,
)
from ampwatch.diagnosis.outcome import outcome_of
from ampwatch.diagnosis.outcome_remedies import REMEDIES
from ampwatch.diagnosis.rule import Page, Seen, rule


@rule(
    "AMP309",
    "no-progress",
    Severity.ERROR,
    Page(
        meaning="The loss stands where it began: the model gives the same answer whatever it is "
        "shown, and nothing is learnt.",
        looks="A record from the first step on whose loss is the same, within "
        f"{100 * SAME:g} %, in {SAME_LINES} lines or more of a log, or in {SAME_STEPS} steps. A "
        f"warning: in {HARDLY_STEPS} steps or more it fell by no more than {100 * HARDLY:g} %, or "
        f"by {100 * AT_FIRST:g} % in its first tenth and no further, and its noise would not hide "
        "more.",
        not_to_confuse="AMP410, where no gradient arrives; AMP308, where the learning rate is next "
        "to zero; a fine-tuning that begins at a good loss; a loss of reinforcement learning or of "
        "an adversarial pair, which need not fall.",
        do=REMEDIES[State.STANDS_STILL],
        example="a cross-entropy of 2.303, the logarithm of 10, in ten epochs with ten classes: "
        "each answer is a guess.",
    ),
)
def no_progress(case: Case) -> Iterator[Seen]:
    """A loss that has not fallen from the start."""
    outcome = outcome_of(case)
    if outcome.state in {State.STANDS_STILL, State.HARDLY_FALLS}:
        yield Seen(
            severity=outcome.severity,
            action=REMEDIES[outcome.state],
            # A slow fall has no first step: whatever explains it may come later.
            first_step=outcome.since_step if outcome.state is State.STANDS_STILL else None,
            last_step=case.scale.last_step,
            summary=outcome.words,
            cause="This record does not show why.",
            evidence=outcome.evidence,
        )
