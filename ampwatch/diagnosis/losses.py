"""Where the loss stands, asked of the rows that are kept."""

from __future__ import annotations

import numpy as np

from ampwatch.diagnosis import policy
from ampwatch.diagnosis.learning_rate import RateState
from ampwatch.diagnosis.medians import median


def fell_on(rate: RateState, first_step: int, end_step: int) -> bool:
    """Whether the last losses, after `end_step`, are below all those before `first_step`."""
    parts = (rate.head, rate.points.rows, rate.tail)
    step = np.concatenate([rows.of("step") for rows in parts])
    loss = np.concatenate([rows.of("loss") for rows in parts])
    known = np.isfinite(loss)
    before, after = loss[known & (step < first_step)], loss[known & (step > end_step)]
    if not len(before) or len(after) < policy.LOSS_LINES:
        return False
    return bool(median(after[-policy.LOSS_LINES :]) < before.min())
