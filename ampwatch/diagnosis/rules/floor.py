"""AMP104: a loss scale that can fall no further."""

from __future__ import annotations

from collections.abc import Iterator

from ampwatch.diagnosis import policy
from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.event_course import AT_FLOOR
from ampwatch.diagnosis.findings import Evidence, Severity, Standing
from ampwatch.diagnosis.registry import NOT_FINITE, RATE, Page, Seen, Ties, rule
from ampwatch.diagnosis.rules.scale import STARTUP_ERROR_SCALE, untold
from ampwatch.diagnosis.words import scale_text


@rule(
    "AMP104",
    "scale-at-floor",
    Severity.ERROR,
    Page(
        meaning="The loss scale is zero, at the framework's minimum, or so small that no step can "
        "succeed. At 2^-128 and below its inverse is inf in float32: torch then finds no "
        "overflow, takes the step, and destroys the weights without a word.",
        looks="A skip at the minimum, or any step at a scale below "
        f"{scale_text(policy.FLOOR_SCALE)}. In another trainer's log also the error by which it "
        "gave up there.",
        not_to_confuse="AMP109: a loss summed over many items lives well below 1 in good health.",
        do="Stop the run. Restart from a checkpoint with a healthy scale, with what made it fall "
        "put right; a minimum scale or a lower floor cures nothing.",
        example="scale 1.2e-38 and still skipping.",
    ),
    Ties(explained_by=("AMP103", "AMP209", *RATE, *NOT_FINITE)),
)
def scale_at_floor(case: Case) -> Iterator[Seen]:
    """A step at a scale that leaves no room."""
    scale, final, times = case.scale, case.final_scale, case.scale.floored
    if not times.count:
        yield from _gave_up(case)
        return
    healed = final is not None and final > max(policy.FLOOR_SCALE, scale.floor or 0.0)
    standing = Standing.HEALED if healed else Standing.STANDS
    yield Seen(
        standing=standing,
        at=times,
        summary=f"The loss scale stood at its floor, {scale_text(scale.lowest)}"
        + (f"{standing.ending}." if healed else ": no step can succeed."),
        cause="It fell as far as it can; at this size its inverse is no longer a finite number."
        if scale.tiny.count
        else "It fell to the lowest scale that the framework allows, and steps still overflow.",
        evidence=(Evidence("scale", times.first_step, scale.lowest, policy.FLOOR_SCALE),),
    )


def _gave_up(case: Case) -> Iterator[Seen]:
    """The framework itself ended the run there, or the scale is beyond any search."""
    final, last = case.final_scale, case.ledger.fatal[-1:]
    told = next((e for e in last if any(w in str(e.detail.get("message")) for w in AT_FLOOR)), None)
    if told is not None and told.step >= (case.scale.last_step or 0):
        summary = f"The run was ended: its loss scale, {scale_text(final)}, could fall no further."
        cause = "The framework gave up: steps overflowed at the lowest scale that it allows."
        step: int | None = told.step
    elif _is_lost(case):
        summary = f"The loss scale stands at {scale_text(final)}: no gradient survives that."
        cause = "No loss that a training sums up needs so low a scale; it fell, step after step."
        step = case.scale.last_step
    else:
        return
    yield Seen(
        first_step=step,
        last_step=step,
        summary=summary,
        cause=cause + untold(case),
        evidence=(Evidence("scale", step, final, case.scale.floor),),
    )


def _is_lost(case: Case) -> bool:
    """Whether the scale is below any that a search ends at, and no finding says so yet."""
    final = case.final_scale
    low = final is not None and final < STARTUP_ERROR_SCALE
    return low and not case.is_searching and case.standing_fall is None
