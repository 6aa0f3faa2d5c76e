"""Where to restart from: the last step at which nothing had begun to drift."""

from __future__ import annotations

import numpy as np

from ampwatch.diagnosis.learning_rate import constants
from ampwatch.diagnosis.learning_rate.attribution import rows_around
from ampwatch.diagnosis.learning_rate.course import RateState, Rows
from ampwatch.diagnosis.learning_rate.onset import Onset, deviation, noise_of, trailing_medians
from ampwatch.diagnosis.signals import Floats


def ideal_step(state: RateState, onset: Onset) -> int | None:
    """The last accepted step before gradients, updates or activations left their band."""
    before, _ = rows_around(state, onset)
    good = before.where(before.accepted & np.isfinite(before.of("step")))
    if not len(good):
        first = state.head.of("step")
        return int(first[0]) if len(first) and np.isfinite(first[0]) else None
    ends = [_calm_end(_signal(good, name)) for name in ("ratio", "grad_norm", "act_amax")]
    at = max(0, min([len(good) - 1, _best_end(good.of("loss")), _last_whole(good), *ends]))
    return int(good.of("step")[at])


def checkpoint_step(state: RateState, ideal: int | None) -> int | None:
    """The last saved step that is not after the ideal one."""
    saved = [step for step in state.setup.saved_steps if ideal is not None and step <= ideal]
    return max(saved, default=None)


def _signal(rows: Rows, name: str) -> Floats:
    return rows.ratio if name == "ratio" else rows.of(name)


def _best_end(loss: Floats) -> int:
    """The last position at which the loss was still about as good as it ever was."""
    known = np.flatnonzero(np.isfinite(loss))
    if len(known) < constants.POINT_STEPS:
        return len(loss) - 1
    smooth = trailing_medians(loss[known])
    best = float(smooth.min())
    near = best + max(constants.NEAR_BEST * (float(smooth[0]) - best), noise_of(loss[known]))
    last = int(np.flatnonzero(smooth <= near)[-1])
    if last == len(known) - 1:
        return len(loss) - 1
    return int(known[max(0, last - constants.MEDIAN_STEPS // 2)])  # a median of the past lags


def _last_whole(rows: Rows) -> int:
    """The last position before an update that left little of the weights it found."""
    harmful = np.flatnonzero(rows.ratio >= constants.PROOF_RATIO)
    return int(harmful[0]) if len(harmful) else len(rows) - 1


def _calm_end(values: Floats) -> int:
    """The last position before the values leave, for good, the band of those further back."""
    known = np.flatnonzero(np.isfinite(values))
    end = len(values) - 1
    if len(known) < constants.POINT_STEPS:
        return end
    past = values[known[: max(5, len(known) - 2 * constants.POINT_STEPS)]]
    past = past[-constants.WINDOW_STEPS :]
    middle = float(np.median(past))
    line = max(
        constants.BAND_FACTOR * middle, middle + constants.ROBUST_DEVIATIONS * deviation(past)
    )
    inside = np.flatnonzero(values[known] <= line)
    if len(inside) and inside[-1] < len(known) - 1:
        return int(known[inside[-1]])
    return end
