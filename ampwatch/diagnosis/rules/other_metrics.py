"""AMP310 to AMP313: what metrics beside the loss show."""

from __future__ import annotations

from collections.abc import Iterator

from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.findings import Severity, State
from ampwatch.diagnosis.outcome import outcome_of
from ampwatch.diagnosis.outcome_remedies import REMEDIES
from ampwatch.diagnosis.rule import Page, Seen, rule


@rule(
    "AMP310",
    "overfitting",
    Severity.WARNING,
    Page(
        meaning="The validation loss rises while the training loss still falls: the model learns "
        "its training data by heart.",
        looks="A logged loss or error whose name says validation, eval or test: it left its lowest "
        "value, further than its noise, and has not come back.",
        not_to_confuse="A training loss that rises as well (AMP307): then training itself is in "
        "trouble. Validation data that are harder from some step on.",
        do=REMEDIES[State.OVERFITS],
        example="val_loss is lowest after 5 of 40 epochs and three times as high at the end.",
    ),
)
def overfitting(case: Case) -> Iterator[Seen]:
    """A validation loss that rises while the training loss falls."""
    yield from _of(case, State.OVERFITS, cause="The model learns its training data by heart.")


@rule(
    "AMP311",
    "goal-lost",
    Severity.ERROR,
    Page(
        meaning="A reward, an accuracy or another figure that should rise has lost most of what it "
        "had won.",
        looks="A logged metric whose name says that it should rise: its end lies below nearly all "
        "values around its best. A warning while that is recent.",
        not_to_confuse="A loss around zero in reinforcement learning, which says little; a reward "
        "that is noisy and was never clearly better.",
        do=REMEDIES[State.GOAL_LOST],
        example="the return of PPO goes from 320 to 20 within ten updates and stays there.",
    ),
)
def goal_lost(case: Case) -> Iterator[Seen]:
    """A figure that should rise and has lost what it had won."""
    yield from _of(case, State.GOAL_LOST, State.GOAL_FALLS, cause="This record does not show why.")


@rule(
    "AMP312",
    "discriminator-won",
    Severity.ERROR,
    Page(
        meaning="In an adversarial training the discriminator is always right, so the generator "
        "gets no gradient to learn from.",
        looks="The loss of a discriminator falls to nothing and stays there, while the generator's "
        "rises above all it was.",
        not_to_confuse="Two losses that swing around a balance: neither has to fall.",
        do=REMEDIES[State.ADVERSARY_WON],
        example="errD is 0.00002 from iteration 6,200 on and errG climbs to 35.",
    ),
)
def discriminator_won(case: Case) -> Iterator[Seen]:
    """A discriminator whose loss is nothing while the generator's rises."""
    yield from _of(
        case, State.ADVERSARY_WON, cause="The discriminator tells every sample apart: it leaves "
        "the generator no gradient.",
    )  # fmt: skip


@rule(
    "AMP313",
    "score-stands-still",
    Severity.WARNING,
    Page(
        meaning="An accuracy or another score is 0, or does not move, while the training loss "
        "falls: what is measured is not what is trained.",
        looks="A logged metric whose name says that it is a score: 0 in five evaluations or more, "
        "or the same within a tenth in eight or more, and not a high one.",
        not_to_confuse="AMP309, where the training loss stands still as well.",
        do=REMEDIES[State.GOAL_STILL],
        example="bbox_mAP is 0.0000 in 20 epochs while the loss falls from 1.6 to 0.5: the classes "
        "of the evaluation have other names.",
    ),
)
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
            action=REMEDIES[outcome.state],
            evidence=outcome.evidence,
        )
