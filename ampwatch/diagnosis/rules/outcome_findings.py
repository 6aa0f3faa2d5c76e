"""AMP309 to AMP313: a loss that has not fallen, and what metrics beside the loss show.

Each tells of an outcome in the outcome's own words.
"""

from __future__ import annotations

from collections.abc import Iterator

from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.findings import Severity, State
from ampwatch.diagnosis.outcome import APART, REMEDIES, outcome_of
from ampwatch.diagnosis.rule import Rule, Seen

_UNKNOWN = "This record does not show why."


def _tells(code: str, name: str, usual: Severity, *states: State, cause: str = _UNKNOWN) -> Rule:
    """Make the rule that tells of these outcomes."""

    def check(case: Case) -> Iterator[Seen]:
        outcome = outcome_of(case)
        # A slow fall has no first step: whatever explains it may come later.
        is_slow = outcome.state is State.HARDLY_FALLS
        why, remedy = APART if outcome.gap_sign else (cause, REMEDIES.get(outcome.state))
        if outcome.state in states:
            yield Seen(
                severity=outcome.severity,
                first_step=None if is_slow else outcome.since_step,
                last_step=case.scale.last_step,
                summary=outcome.words,
                cause=why,
                action=remedy,
                evidence=outcome.evidence,
            )

    return Rule(code, name, usual, check)


no_progress = _tells(
    "AMP309", "no-progress", Severity.ERROR, State.STANDS_STILL, State.HARDLY_FALLS
)
overfitting = _tells(
    "AMP310", "overfitting", Severity.WARNING, State.OVERFITS,
    cause="The model learns its training data by heart.",
)  # fmt: skip
goal_lost = _tells("AMP311", "goal-lost", Severity.ERROR, State.GOAL_LOST, State.GOAL_FALLS)
discriminator_won = _tells(
    "AMP312", "discriminator-won", Severity.ERROR, State.ADVERSARY_WON,
    cause="The discriminator tells every sample apart: it leaves the generator no gradient.",
)  # fmt: skip
score_stands_still = _tells(
    "AMP313", "score-stands-still", Severity.WARNING, State.GOAL_STILL,
    cause="What is measured is not what is trained, or the data are in an order that teaches one "
    "thing at a time.",
)  # fmt: skip
