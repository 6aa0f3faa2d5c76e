"""Medians of short arrays, ten times as fast as numpy's: a look at a run takes dozens."""

from __future__ import annotations

import numpy as np

from ampwatch.diagnosis.column_arrays import Floats

_FEW = 512  # up to here sorting all is the fastest


def median(values: Floats) -> float:
    """The median of these numbers, the same as `np.median`; nan if there are none."""
    count = len(values)
    if not count:
        return float("nan")
    low, high = (count - 1) // 2, count // 2
    # nan comes last, and is then the answer.
    ordered = np.sort(values) if count <= _FEW else np.partition(values, (low, high, -1))
    if ordered[-1] != ordered[-1]:
        return float("nan")
    return float(ordered[low] if low == high else (ordered[low] + ordered[high]) / 2)


def known_of(values: Floats) -> Floats:
    """The finite numbers among these, of which a median can be taken."""
    return values[np.isfinite(values)]


def median_of_known(values: Floats, least: int = 1) -> float:
    """The median of the finite numbers among these; nan if they are fewer than `least`."""
    known = known_of(values)
    return median(known) if len(known) >= least else float("nan")
