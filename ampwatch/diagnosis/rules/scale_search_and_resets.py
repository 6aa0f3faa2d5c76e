"""AMP101, AMP108 and AMP416: the search for a loss scale, and scales that start over."""

from __future__ import annotations

from collections.abc import Iterator

from ampwatch.diagnosis import thresholds
from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.findings import Evidence, Severity
from ampwatch.diagnosis.rule import Seen, rule
from ampwatch.diagnosis.times import Times
from ampwatch.diagnosis.value_text import count_text, scale_text
from ampwatch.rows import EventKind

# A search from 2^32 may halve twenty times and be healthy; beyond that something else is wrong.
STARTUP_WARNING_SKIPS = 20
STARTUP_ERROR_SCALE = 2.0**-32
# Where the forward pass is not recorded: sixteen halvings of the default 2^16 end below this. Where
# the scale is not recorded either: sixty-four skips; a start at 2^32 would be at 2^-32 by then.
STARTUP_BLIND_SCALE = 1.0
STARTUP_UNRECORDED_SKIPS = 64
# Five steps in a row with a non-finite forward pass: no scale can help, so it is not a search.
STARTUP_FORWARD_STEPS = 5


@rule("AMP101", "startup-search", Severity.INFO)
def startup_search(case: Case) -> Iterator[Seen]:
    """Overflows before the first accepted step, as long as they can be a search for a scale."""
    scale, search = case.scale, case.scale.search
    if not search.skips or (case.is_searching and startup_has_failed(case)):
        return
    slow = case.is_searching and search.skips >= STARTUP_WARNING_SKIPS
    yield Seen(
        severity=Severity.WARNING if slow else Severity.INFO,
        first_step=scale.first_step,
        last_step=search.last_step,
        summary=f"{count_text(search.skips, 'step')} skipped in the search for a loss scale"
        + (", and no step has been accepted yet." if case.is_searching else "."),
        cause=f"The scale began at {scale_text(scale.first_scale)}, which is too high for these "
        f"gradients, and was {scale_text(search.scale_after)} after the last skip."
        if scale.has_scaler
        else "The record contains neither the scale nor the accepted steps between the skips.",
        action="Watch the next steps: the search should have ended by now." if slow else None,
        evidence=(Evidence("skipped", search.last_step, float(search.skips)),),
    )


def startup_has_failed(case: Case) -> bool:
    """Whether the search for a scale at the start has gone on too long to be one."""
    final, skips = case.final_scale, case.scale.search.skips
    if not skips:
        return False  # the loop itself left the steps out
    if case.numbers.bad_forwards_running >= STARTUP_FORWARD_STEPS:
        return True
    if final is None:
        return skips >= STARTUP_UNRECORDED_SKIPS
    if case.numbers.sees_forward or skips < thresholds.STARTUP_BLIND_SKIPS:
        # The record may be the end of a log: the search began long before it.
        few = 0 if case.numbers.sees_forward else thresholds.COLLAPSE_SKIPS
        return skips >= few and final < STARTUP_ERROR_SCALE
    return final < STARTUP_BLIND_SCALE


def no_scale_helps(case: Case) -> str:
    """How a summary begins if the search for a scale has failed: no scale can help."""
    several = case.rate.setup.several_optimizers  # others may have stepped
    what = "in every step an optimizer is" if several else "every step is"
    first = case.scale.first_step or 0
    return f"{what[0].upper()}{what[1:]} skipped since step {first:,}, and no loss scale can help"


@rule("AMP108", "scale-reset", Severity.WARNING)
def scale_reset(case: Case) -> Iterator[Seen]:
    """A loss scale that jumped back to its initial value for no recorded reason."""
    resets, reset = case.scale.resets, case.scale.reset
    if reset is None:
        return
    times = "once" if resets.count == 1 else f"{resets.count} times"
    yield Seen(
        at=resets,
        summary=f"The loss scale was reset to its initial {scale_text(reset.scale_to)} during "
        f"the run, {times}.",
        cause=f"It was {scale_text(reset.scale_from)} before; "
        + (
            "update(new_scale) set it back, and the very next step overflowed."
            if reset.by_hand
            else "nothing in the record explains the jump: the scaler's state was lost."
        ),
        action="Call scaler.update() without new_scale: the scaler finds the right level by itself."
        if reset.by_hand
        else None,
        evidence=(Evidence("scale", resets.last_step, reset.scale_to, reset.scale_from, "before"),),
    )


# A resume causes one or two resets; three or more are caused by the loop.
RECREATED_RESETS = 3
# A new scaler is observed, not inferred: two are enough, if they cost steps.
REPLACED_SCALERS = 2


@rule("AMP416", "scaler-recreated", Severity.ERROR)
def scaler_recreated(case: Case) -> Iterator[Seen]:
    """A loss scale that starts over again and again, mostly because scalers are created anew."""
    made = case.events.of(EventKind.SCALER_REPLACED)
    scale = case.scale
    if made.count >= REPLACED_SCALERS:
        yield _made_anew(made, case.loop.searched)
    elif scale.resets.count >= RECREATED_RESETS and scale.reset is not None:
        yield Seen(
            at=scale.resets,
            summary=f"The loss scale started over {scale.resets.count} times.",
            cause=f"Each time it jumped back to its initial {scale_text(scale.reset.scale_to)} "
            f"and searched again, which skipped {count_text(scale.reset_skips, 'step')}.",
            evidence=(
                Evidence(
                    "resets",
                    scale.resets.last_step,
                    float(scale.resets.count),
                    float(RECREATED_RESETS),
                    "threshold",
                ),
            ),
        )


def _made_anew(made: Times, searched: int) -> Seen:
    """Scales that started over in new scalers; two that cost no steps may be phases of training."""
    harmless = made.count < RECREATED_RESETS and not searched
    cost = (
        f"their searches skipped {count_text(searched, 'step')} that are not in the record."
        if searched
        else "each starts at its initial scale, and never grows beyond it."
    )
    return Seen(
        severity=Severity.INFO if harmless else Severity.ERROR,
        at=made,
        summary=f"The optimizer stepped through {count_text(made.count, 'new GradScaler')}.",
        cause="The loop creates them during training, and the scale that was found is lost: "
        f"{cost}",
        evidence=(Evidence("scaler-replaced", made.last_step, float(made.count)),),
    )
