"""AMP309 to AMP313: a loss that has not fallen, and what metrics beside the loss show."""

from __future__ import annotations

from collections.abc import Iterator

from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.findings import Severity, State
from ampwatch.diagnosis.outcome import REMEDIES, outcome_of
from ampwatch.diagnosis.rule import Seen, rule


@rule("AMP309", "no-progress", Severity.ERROR)
def no_progress(case: Case) -> Iterator[Seen]:
    """A loss that has not fallen from the start."""
    outcome = outcome_of(case)
    if outcome.state in {State.STANDS_STILL, State.HARDLY_FALLS}:
        yield Seen(
            severity=outcome.severity,
            action=REMEDIES.get(outcome.state),
            # A slow fall has no first step: whatever explains it may come later.
            first_step=outcome.since_step if outcome.state is State.STANDS_STILL else None,
            last_step=case.scale.last_step,
            summary=outcome.words,
            cause="This record does not show why.",
            evidence=outcome.evidence,
        )


@rule("AMP310", "overfitting", Severity.WARNING)
def overfitting(case: Case) -> Iterator[Seen]:
    """A validation loss that rises while the training loss falls."""
    yield from _of(case, State.OVERFITS, cause="The model learns its training data by heart.")


@rule("AMP311", "goal-lost", Severity.ERROR)
def goal_lost(case: Case) -> Iterator[Seen]:
    """A figure that should rise and has lost what it had won."""
    yield from _of(case, State.GOAL_LOST, State.GOAL_FALLS, cause="This record does not show why.")


@rule("AMP312", "discriminator-won", Severity.ERROR)
def discriminator_won(case: Case) -> Iterator[Seen]:
    """A discriminator whose loss is nothing while the generator's rises."""
    yield from _of(
        case, State.ADVERSARY_WON, cause="The discriminator tells every sample apart: it leaves "
        "the generator no gradient.",
    )  # fmt: skip


@rule("AMP313", "score-stands-still", Severity.WARNING)
def score_stands_still(case: Case) -> Iterator[Seen]:
    """A score that does not move while the training loss falls."""
    yield from _of(
        case, State.GOAL_STILL, cause="What is measured is not what is trained, or the data are in "
        "an order that teaches one thing at a time.",
    )  # fmt: skip


def _of(case: Case, *states: State, cause: str) -> Iterator[Seen]:
    outcome = outcome_of(case)
    if outcome.state in states:
        yield Seen(
            severity=outcome.severity,
            first_step=outcome.since_step,
            last_step=case.scale.last_step,
            summary=outcome.words,
            cause=cause,
            action=REMEDIES.get(outcome.state),
            evidence=outcome.evidence,
        )
