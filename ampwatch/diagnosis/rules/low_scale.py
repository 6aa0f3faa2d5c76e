"""AMP104 and AMP109: a loss scale too low for any step to work, and one that is low by design."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ampwatch.diagnosis import thresholds
from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.column_arrays import median
from ampwatch.diagnosis.event_history import AT_FLOOR
from ampwatch.diagnosis.findings import Evidence, FindingStatus, Severity
from ampwatch.diagnosis.rule import Seen, rule
from ampwatch.diagnosis.rules.scale_collapse import slow_fall, unknown_cause_text
from ampwatch.diagnosis.rules.scale_search_and_growth import STARTUP_ERROR_SCALE
from ampwatch.diagnosis.value_text import scale_text


@rule("AMP104", "scale-at-floor", Severity.ERROR)
def scale_at_floor(case: Case) -> Iterator[Seen]:
    """A loss scale at the lowest value possible, or too low for any step to work."""
    scale, final, times = case.scale, case.final_scale, case.scale.floored
    if not times.count:
        yield from _gave_up(case)
        return
    healed = final is not None and final > max(thresholds.FLOOR_SCALE, scale.floor or 0.0)
    standing = FindingStatus.HEALED if healed else FindingStatus.STANDS
    yield Seen(
        standing=standing,
        at=times,
        summary=f"The loss scale reached its floor, {scale_text(scale.lowest)}"
        + (f"{standing.ending}." if healed else ": no step can succeed."),
        cause="It is so small that its inverse is not a finite number."
        if scale.tiny.count
        else "It fell to the lowest scale that the framework allows, and steps still overflow.",
        evidence=Evidence(
            "scale", times.first_step, scale.lowest, thresholds.FLOOR_SCALE, "smallest that works"
        ),
    )


def _gave_up(case: Case) -> Iterator[Seen]:
    """A scale too low to go on: the framework gave up at it, or no search goes so low."""
    final, last = case.final_scale, case.events.fatal[-1:]
    told = next((e for e in last if any(w in str(e.detail.get("message")) for w in AT_FLOOR)), None)
    if told is not None and told.step >= (case.scale.last_step or 0):
        summary = (
            f"The framework gave up: the loss scale, {scale_text(final)}, could not fall any "
            "further."
        )
        cause = "Steps overflowed at the lowest scale that the framework allows."
        step: int | None = told.step
    elif _is_lost(case):
        summary = f"The loss scale is {scale_text(final)}: no gradient survives at this scale."
        cause = "No summed loss needs so low a scale: it fell there step by step."
        step = case.scale.last_step
    else:
        return
    yield Seen(
        first_step=step,
        last_step=step,
        summary=summary,
        cause=cause + unknown_cause_text(case),
        evidence=Evidence("scale", step, final, case.scale.floor, "the framework's lowest"),
    )


def _is_lost(case: Case) -> bool:
    """Whether the scale is lower than any search needs, and no other finding reports that."""
    final = case.final_scale
    low = final is not None and final < STARTUP_ERROR_SCALE
    return low and not case.is_searching and case.standing_fall is None


@rule("AMP109", "low-scale-by-design", Severity.INFO)
def low_scale_by_design(case: Case) -> Iterator[Seen]:
    """A low loss scale, below 1, at which the run learns."""
    scale, final = case.scale, case.final_scale
    if final is None or final >= 1.0 or scale.low_scale_steps < thresholds.ESTABLISHED_STEPS:
        return
    if case.standing_fall is not None or slow_fall(case) is not None:
        return
    if scale.floored.count or not _loss_falls(case):
        return
    yield Seen(
        first_step=scale.level_step,
        last_step=scale.last_step,
        summary=f"The loss scale is {scale_text(final)}, and the run is healthy.",
        cause="Steps are accepted at this scale and the loss falls: a loss that is summed over "
        "many items has large gradients.",
        evidence=Evidence("scale", scale.last_step, final, 1.0, "usual at least"),
    )


def _loss_falls(case: Case) -> bool:
    """Whether the run learns at its low scale: the last losses are below the first."""
    head, tail = (rows.of("loss") for rows in (case.rate.head, case.rate.tail))
    first, last = head[np.isfinite(head)], tail[np.isfinite(tail)]
    few = thresholds.ESTABLISHED_STEPS
    if not case.observed.loop:  # a log has few lines for many steps: a third of them at each end
        few = min(few, len(first) // 3)
    if few < thresholds.LOSS_LINES or len(first) < 2 * few:
        return False
    return bool(median(last[-few:]) < median(first[:few]))
