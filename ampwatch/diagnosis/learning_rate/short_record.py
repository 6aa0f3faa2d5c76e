"""What a record shows that is too short for the tests of an onset: plain facts, or nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ampwatch.diagnosis.learning_rate import constants
from ampwatch.diagnosis.learning_rate.course import Rows
from ampwatch.diagnosis.signals import Floats


@dataclass(frozen=True, slots=True)
class ShortFacts:
    """What even a short record shows, where its loss has not come down."""

    steps: int
    first_loss: float
    last_loss: float
    update_step: int  # of the largest of the first updates
    update: float  # over the weights it changed; nan where that is not recorded

    @property
    def has_doubled(self) -> bool:
        """Whether the loss stands at twice its first value."""
        return self.last_loss >= constants.DOUBLED * self.first_loss

    @property
    def is_beyond_weights(self) -> bool:
        """Whether an update was larger than the weights."""
        return self.update > constants.BEYOND_WEIGHTS

    @property
    def are_trouble(self) -> bool:
        """Whether they leave no doubt: the higher the loss, the fewer steps it takes."""
        if not (self.has_doubled and self.is_beyond_weights):
            return False
        octaves = math.log2(self.last_loss / self.first_loss)
        enough = self.steps * octaves >= constants.SHORT_LEAST
        return enough and self.steps >= constants.MEDIAN_STEPS


def short_facts(rows: Rows) -> ShortFacts | None:
    """The plain facts of a short record; None if it is long, or if its loss has come down."""
    loss = rows.of("loss")
    loss = loss[np.isfinite(loss)]
    if not 1 < len(loss) < constants.SHORT_STEPS or float(loss.min()) <= 0:
        return None
    first, last = float(loss[0]), float(np.median(loss[-constants.MEDIAN_STEPS :]))
    if last <= constants.NO_LEARNING * first:
        return None
    early = rows.where(rows.accepted).part(0, constants.PROOF_STEPS)
    # Matrices that begin at zero (LoRA) are changed by more than they hold, without any harm.
    update = early.ratio if is_born_zero(rows) else np.fmax(early.ratio, early.of("max_ratio"))
    if not np.isfinite(update).any():
        return ShortFacts(len(loss), first, last, -1, float("nan"))
    largest = int(np.nanargmax(update))
    step = early.of("step")[largest]
    at = int(step) if np.isfinite(step) else largest
    return ShortFacts(len(loss), first, last, at, float(update[largest]))


def is_born_zero(rows: Rows) -> bool:
    """Matrices that begin at zero (LoRA) make early ratios enormous without any harm."""
    first = rows.where(rows.accepted).part(0, 3)
    largest, whole = _median(first.of("max_ratio")), _median(first.ratio)
    return largest > 1.0 and largest > constants.BORN_ZERO * whole


def _median(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else float("nan")
