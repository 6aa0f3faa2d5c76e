"""A part of AMP304: since when, and how far, the gradient norm has been rising.

The whole late record is looked at first, then ever shorter endings of it: what begins late rises in
none of the parts before. An ending is held against what came just before it as well.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ampwatch.diagnosis import policy
from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.learning_rate import Rows
from ampwatch.diagnosis.signals import Floats, Integers

# Endings of the record, each half of the one before: in a shorter one too few points are left to
# tell a rise in every fifth of it from noise.
ENDINGS = (policy.DRIFT_PART, 0.4, 0.2, 0.1)
# ... which end this far above all that stood within twice their length before: norms that swing
# with the rate or the data come back to where they were.
BEYOND_BEFORE = 2.0


@dataclass(frozen=True, slots=True)
class Drift:
    """A norm that rose in every part of the record's ending."""

    step: int
    first: float
    last: float


def drift_of(case: Case) -> Drift | None:
    """The drift of the longest ending that shows one."""
    if case.rate.rows < policy.DRIFT_ROWS:
        return None
    found = (_drift(case, part) for part in ENDINGS)
    return next((drift for drift in found if drift is not None), None)


def _drift(case: Case, part: float) -> Drift | None:
    rows, total = case.rate.points, case.rate.rows
    begin = (1.0 - part) * total
    if part != policy.DRIFT_PART and begin < policy.DRIFT_EARLY_STEPS:
        return None
    late = rows.start >= begin
    windows = np.array_split(np.flatnonzero(late), policy.DRIFT_WINDOWS)
    medians = [_median(rows.rows, at) for at in windows]
    if any(np.isnan(medians)) or (np.diff(medians) <= 0).any():
        return None
    first, last = medians[0], medians[-1]
    if last < policy.DRIFT_FACTOR * first:
        return None
    if part == policy.DRIFT_PART:
        # What has climbed, and is still far below where the record began, came down first.
        start = _median(rows.rows, np.flatnonzero(~late))
        came_down = last < start / policy.DRIFT_FACTOR
        if came_down or _is_early_learning(case, windows):
            return None
    elif not _is_beyond(case, part, last):
        return None
    step = rows.rows.of("step")[late]
    return Drift(int(step[0]) if len(step) else 0, first, last)


def _is_beyond(case: Case, part: float, last: float) -> bool:
    """Whether the norm stands above all windows of the stretch before, of twice the length."""
    points, total = case.rate.points, case.rate.rows
    since = (1.0 - 3 * part) * total
    before = np.flatnonzero((points.start >= since) & (points.start < (1.0 - part) * total))
    parts = np.array_split(before, 2 * policy.DRIFT_WINDOWS)
    known = [value for at in parts if np.isfinite(value := _median(points.rows, at))]
    return bool(known) and last >= BEYOND_BEFORE * max(known)


def _is_early_learning(case: Case, windows: list[Integers]) -> bool:
    """Whether few steps were made, and the last losses are the lowest yet: that does no harm."""
    if case.rate.accepted >= policy.DRIFT_EARLY_STEPS:
        return False
    loss = case.rate.points.rows.of("loss")
    medians = [_middle(loss[at]) for at in windows]
    known = [value for value in medians if np.isfinite(value)]
    return len(known) > 1 and known[-1] <= policy.DRIFT_LOSS * min(known[:-1])


def _median(rows: Rows, at: Integers) -> float:
    return _middle(rows.of("grad_norm")[at])


def _middle(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else float("nan")
