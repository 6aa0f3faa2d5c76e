"""AMP304: a gradient norm that keeps rising.

The last four fifths of the record are tested first, then shorter and shorter endings, because a
late rise does not show in the parts before it. An ending is also compared with the steps just
before it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ampwatch.diagnosis import thresholds
from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.column_arrays import Integers, median_of_known
from ampwatch.diagnosis.findings import Evidence, Severity
from ampwatch.diagnosis.learning_rate import RateRows
from ampwatch.diagnosis.rule import Seen, rule

# Endings of the record, each about two thirds of the one before, so that one of them begins where
# the rise does: in a shorter one too few points are left to tell it from noise.
ENDINGS = (thresholds.DRIFT_PART, 0.55, 0.4, 0.3, 0.2, 0.1)
# ... which end this far above everything within twice their length before: norms that vary with the
# rate or the data come back to where they were.
BEYOND_BEFORE = 2.0


@rule("AMP304", "gradient-norm-drift", Severity.WARNING)
def gradient_norm_drift(case: Case) -> Iterator[Seen]:
    """A gradient norm that keeps rising."""
    endings = ENDINGS if case.rate.rows >= thresholds.DRIFT_ROWS else ()
    drift = next((found for part in endings if (found := _drift(case, part))), None)
    if drift is None:
        return
    began, first, last = drift
    yield Seen(
        first_step=began,
        last_step=case.scale.last_step,
        summary=f"The gradient norm has grown {last / first:.0f}-fold.",
        cause=f"From {first:.3g} at step {began} to {last:.3g}, rising in every part of the "
        "record since.",
        evidence=Evidence("grad_norm", case.scale.last_step, last, first, f"at step {began:,}"),
    )


def _drift(case: Case, part: float) -> tuple[int, float, float] | None:
    """The step since which the norm rose in every part of the record's ending, and how far."""
    rows, total = case.rate.points, case.rate.rows
    begin = (1.0 - part) * total
    is_early = begin * _steps_a_row(case) < thresholds.DRIFT_EARLY_STEPS
    if part != thresholds.DRIFT_PART and is_early:
        return None
    late = rows.start >= begin
    windows = np.array_split(np.flatnonzero(late), thresholds.DRIFT_WINDOWS)
    first = last = _median(rows.rows, windows[0])
    for at in windows[1:]:
        before, last = last, _median(rows.rows, at)
        if not before < last:  # nor if one is unknown
            return None
    if last < thresholds.DRIFT_FACTOR * first:
        return None
    if part == thresholds.DRIFT_PART:
        # A norm that is still far below its start came down before it climbed.
        start = _median(rows.rows, np.flatnonzero(~late))
        came_down = last < start / thresholds.DRIFT_FACTOR
        if came_down or _is_early_learning(case, windows):
            return None
    elif not _is_beyond(case, part, last):
        return None
    return int(rows.rows.of("step")[late][0]), first, last


def _is_beyond(case: Case, part: float, last: float) -> bool:
    """Whether the norm drifted above everything in twice the stretch before."""
    points, total = case.rate.points, case.rate.rows
    since = (1.0 - 3 * part) * total
    before = np.flatnonzero((points.start >= since) & (points.start < (1.0 - part) * total))
    parts = np.array_split(before, 2 * thresholds.DRIFT_WINDOWS)
    known = [value for at in parts if np.isfinite(value := _median(points.rows, at))]
    return bool(known) and last >= BEYOND_BEFORE * max(known)


def _is_early_learning(case: Case, windows: list[Integers]) -> bool:
    """Whether the norm's drift is harmless: the run is young and its last losses the lowest."""
    if case.rate.accepted * _steps_a_row(case) >= thresholds.DRIFT_EARLY_STEPS:
        return False
    loss = case.rate.points.rows.of("loss")
    medians = [median_of_known(loss[at]) for at in windows]
    known = [value for value in medians if np.isfinite(value)]
    return len(known) > 1 and known[-1] <= thresholds.DRIFT_LOSS * min(known[:-1])


def _steps_a_row(case: Case) -> float:
    """For the norm's drift, how many steps a row stands for; programs print one in ten or fewer."""
    return 1.0 if case.observed.every_step else max(10.0, case.scale.steps / case.scale.entries)


def _median(rows: RateRows, at: Integers) -> float:
    return median_of_known(rows.of("grad_norm")[at])
