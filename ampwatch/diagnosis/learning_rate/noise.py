"""Bands of numbers: what is usual, how noisy it is, and when it was left."""

from __future__ import annotations

import numpy as np

from ampwatch.diagnosis.column_arrays import Floats
from ampwatch.diagnosis.learning_rate.constants import (
    BAND_FACTOR,
    MEDIAN_STEPS,
    ROBUST_DEVIATIONS,
)
from ampwatch.diagnosis.medians import median


def deviation(values: Floats) -> float:
    """A robust standard deviation, never quite zero."""
    middle = median(values)
    spread = 1.4826 * median(np.abs(values - middle))
    return float(never_zero(np.asarray(spread), np.asarray(middle)))


def never_zero(spread: Floats, middle: Floats) -> Floats:
    """The deviation, or the least that is allowed for a number of this size."""
    return np.maximum(spread, np.maximum(1e-3 * np.abs(middle), 1e-12))


def edge_of(usual: Floats) -> float:
    """The upper end of usual values: twice their median, or more if they are noisy."""
    middle = median(usual)
    return max(BAND_FACTOR * middle, middle + ROBUST_DEVIATIONS * deviation(usual))


def noise_of(loss: Floats) -> float:
    """The loss's noise from step to step, without its trend."""
    if len(loss) < 3:
        return 0.0
    return 1.4826 * median(np.abs(np.diff(loss))) / float(np.sqrt(2))


def calm_noise(loss: Floats) -> float:
    """The noise of the calmest quarter; after a divergence the rest shows the divergence."""
    parts = [p for p in np.array_split(loss, 4) if len(p) >= MEDIAN_STEPS]
    return min((noise_of(part) for part in parts), default=noise_of(loss))


def trailing_medians(loss: Floats, size: int = MEDIAN_STEPS) -> Floats:
    """The median of the last losses at each; at the start of half as many, or what there is."""
    if not len(loss):
        return loss
    padded = np.concatenate([np.full(size - 1, np.nan), loss])
    ordered = np.sort(np.lib.stride_tricks.sliding_window_view(padded, size), axis=1)
    known, rows = np.minimum(np.arange(len(loss)) + 1, size), np.arange(len(loss))
    return np.asarray((ordered[rows, (known - 1) // 2] + ordered[rows, known // 2]) / 2)
