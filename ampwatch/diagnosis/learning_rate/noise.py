"""How noisy values are: robust deviations, where usual values end, medians that smooth a loss."""

from __future__ import annotations

import numpy as np

from ampwatch.diagnosis.column_arrays import Floats, median
from ampwatch.diagnosis.learning_rate.constants import BAND_FACTOR, MEDIAN_STEPS, ROBUST_DEVIATIONS


def robust_deviation(values: Floats) -> float:
    """The robust standard deviation of these values, never quite zero."""
    middle = median(values)
    return max(1.4826 * median(np.abs(values - middle)), 1e-3 * abs(middle), 1e-12)


def rounding_unit(values: Floats) -> float:
    """The largest power of ten of which all values are whole multiples; 0 if there is none."""
    for unit in 10.0 ** np.arange(2, -13, -1):
        whole = np.round(values / unit)
        if (np.abs(values / unit - whole) <= 1e-6 * np.abs(whole)).all():
            return float(unit)
    return 0.0


def upper_edge(usual: Floats) -> float:
    """Where usual values end: at twice their median, or higher if they are noisy."""
    middle = median(usual)
    return max(BAND_FACTOR * middle, middle + ROBUST_DEVIATIONS * robust_deviation(usual))


def loss_noise(loss: Floats) -> float:
    """The noise of a loss from step to step, without its trend."""
    if len(loss) < 3:
        return 0.0
    return 1.4826 * median(np.abs(np.diff(loss))) / float(np.sqrt(2))


def calmest_noise(loss: Floats) -> float:
    """The noise of the calmest quarter of a loss: after a divergence the rest shows that."""
    parts = [p for p in np.array_split(loss, 4) if len(p) >= MEDIAN_STEPS]
    return min((loss_noise(part) for part in parts), default=loss_noise(loss))


def trailing_medians(loss: Floats, size: int = MEDIAN_STEPS) -> Floats:
    """The median of the last losses at each step, which removes most of the noise."""
    if not len(loss):
        return loss
    padded = np.concatenate([np.full(size - 1, np.nan), loss])
    ordered = np.sort(np.lib.stride_tricks.sliding_window_view(padded, size), axis=1)
    counts, rows = np.minimum(np.arange(len(loss)) + 1, size), np.arange(len(loss))
    return np.asarray((ordered[rows, (counts - 1) // 2] + ordered[rows, counts // 2]) / 2)
