"""AMP104: a loss scale that cannot fall any further."""

from __future__ import annotations

from collections.abc import Iterator

from ampwatch.diagnosis import policy
from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.event_history import AT_FLOOR
from ampwatch.diagnosis.findings import Evidence, Severity, Standing
from ampwatch.diagnosis.registry import NOT_FINITE, RATE, Page, Seen, Ties, rule
from ampwatch.diagnosis.rules.scale import STARTUP_ERROR_SCALE, untold
from ampwatch.diagnosis.words import scale_text


@rule(
    "AMP104",
    "scale-at-floor",
    Severity.ERROR,
    Page(
        meaning="The loss scale is zero, at the framework's minimum, or so small that no step "
        "can succeed. At 2^-128 and below, its inverse is inf in float32: torch then finds "
        "no overflow, takes the step, and destroys the weights without a warning.",
        looks="A skip at the minimum, or any step at a scale below "
        f"{scale_text(policy.FLOOR_SCALE)}. In another trainer's log also the error with "
        "which it gave up.",
        not_to_confuse="AMP109: with a loss summed over many items, a scale well below 1 is "
        "healthy.",
        do="Stop the run, fix what made the scale fall, and restart from a checkpoint with a "
        "healthy scale. A minimum scale or a lower floor does not help.",
        example="scale 1.2e-38 and still skipping.",
    ),
    Ties(explained_by=("AMP103", "AMP209", *RATE, *NOT_FINITE)),
)
def scale_at_floor(case: Case) -> Iterator[Seen]:
    """A skip at the lowest scale, or a step at a scale too small to work."""
    scale, final, times = case.scale, case.final_scale, case.scale.floored
    if not times.count:
        yield from _gave_up(case)
        return
    healed = final is not None and final > max(policy.FLOOR_SCALE, scale.floor or 0.0)
    standing = Standing.HEALED if healed else Standing.STANDS
    yield Seen(
        standing=standing,
        at=times,
        summary=f"The loss scale reached its floor, {scale_text(scale.lowest)}"
        + (f"{standing.ending}." if healed else ": no step can succeed."),
        cause="It is so small that its inverse is not a finite number."
        if scale.tiny.count
        else "It fell to the lowest scale that the framework allows, and steps still overflow.",
        evidence=(
            Evidence(
                "scale", times.first_step, scale.lowest, policy.FLOOR_SCALE, "smallest that works"
            ),
        ),
    )


def _gave_up(case: Case) -> Iterator[Seen]:
    """The framework itself gave up, or the scale is lower than any search needs."""
    final, last = case.final_scale, case.ledger.fatal[-1:]
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
        cause=cause + untold(case),
        evidence=(Evidence("scale", step, final, case.scale.floor, "the framework's lowest"),),
    )


def _is_lost(case: Case) -> bool:
    """Whether the scale is lower than any search needs, and no other finding reports it."""
    final = case.final_scale
    low = final is not None and final < STARTUP_ERROR_SCALE
    return low and not case.is_searching and case.standing_fall is None
