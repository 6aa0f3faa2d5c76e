"""AMP101, AMP102, AMP106 to AMP108, AMP416: the loss scale is searched, grows, starts over."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ampwatch.diagnosis import thresholds
from ampwatch.diagnosis.blocks import Times
from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.findings import Evidence, Severity
from ampwatch.diagnosis.rule import Seen, rule
from ampwatch.diagnosis.value_text import count_text, scale_text, share_text
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
        evidence=Evidence("skipped", search.last_step, float(search.skips)),
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
        evidence=Evidence("scale", resets.last_step, reset.scale_to, reset.scale_from, "before"),
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
            evidence=Evidence(
                "resets",
                scale.resets.last_step,
                float(scale.resets.count),
                float(RECREATED_RESETS),
                "threshold",
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
        evidence=Evidence("scaler-replaced", made.last_step, float(made.count)),
    )


DEFAULT_SCALE = 2.0**16  # GradScaler's own
# Where that is not enough either.
RAISE_OCTAVES = 8


def start_scale_text(scale: float) -> str:
    """The advice to start at this loss scale, and why that is safe, as a sentence."""
    exponent = int(math.log2(scale))
    own = ", which is PyTorch's own default" if scale == DEFAULT_SCALE else ""
    return (
        f"Start at 2^{exponent}{own}: GradScaler(init_scale=2.0**{exponent}). Too high a start "
        "costs one skipped step for each octave, too low a one growth_interval accepted steps."
    )


START_HIGHER = start_scale_text(DEFAULT_SCALE)


def raise_scale_text(case: Case) -> str:
    """How to have a higher loss scale: no start helps a run that began as high and overflowed."""
    first = case.scale.first_scale
    if case.scale.skips and first >= DEFAULT_SCALE:
        return (
            f"It began at {scale_text(first)} and fell with each overflow: find the layer that "
            "overflows (AMP202), or train in bf16."
        )
    return f"{START_HIGHER} In mid-run, one call of scaler.update(new_scale=2.0**16) does the same."


# Scales that work end below 2^40 even where the largest gradient is 2^-24, half precision's
# smallest; at 2^64 nothing has overflowed in some forty doublings, and inf is as many away.
RUNAWAY_SCALE = 2.0**64
# One reset is one lost state; two or more explain why the scale never grows.
LOST_GROWTH_RESETS = 2

# Gradients that vanish late: the scale is this far above every scale that has overflowed, and so
# high that even half precision's smallest gradient, 2^-24, would be an ordinary number.
RUNAWAY_LATE_SCALE, RUNAWAY_LATE_OCTAVES = 2.0**40, 16.0


@rule("AMP106", "scale-runaway", Severity.WARNING)
def scale_runaway(case: Case) -> Iterator[Seen]:
    """A loss scale that grows without limit because nothing overflows."""
    final, scale = case.final_scale, case.scale
    if final is None:
        return
    above_all = final >= scale.highest_skip * 2.0**RUNAWAY_LATE_OCTAVES
    late = RUNAWAY_LATE_SCALE if above_all else RUNAWAY_SCALE
    if final < late:
        return
    norms = case.rate.tail.of("grad_norm")
    gone = bool(len(norms) and (norms == 0).all())
    yield Seen(
        first_step=scale.level_step if scale.level_step is not None else scale.first_step,
        last_step=scale.last_step,
        summary=f"The loss scale has grown to {scale_text(final)} and nothing overflows.",
        cause="The gradients are exactly zero."
        if gone
        else "The gradients are absent or almost zero: any others would overflow at this scale.",
        evidence=Evidence("scale", scale.last_step, final, late, "threshold"),
    )


@rule("AMP107", "scale-never-grows", Severity.INFO)
def scale_never_grows(case: Case) -> Iterator[Seen]:
    """A loss scale that never grows, if that costs gradients or resets prevent growth."""
    scale = case.scale
    if not scale.has_scaler or scale.growths or scale.first_accepted is None:
        return
    # A scale that has overflowed is as high as it can be.
    lost = case.layers.losing_layers() if not scale.skips else ()
    if len(lost) == 0 and scale.resets.count < LOST_GROWTH_RESETS:
        return
    steps = count_text(case.numbers.steps, "step")
    yield Seen(
        severity=Severity.WARNING if len(lost) else Severity.INFO,
        at=scale,
        summary=f"The loss scale has not grown in {steps}"
        + (", and gradients are lost to underflow." if len(lost) else "."),
        cause="Its state is lost again and again, so it never doubles."
        if scale.resets.count
        else f"It doubles after {scale.scaler.growth_interval:,} accepted steps in a row, which "
        "the record never has.",
        action=_start_higher(case),
        evidence=Evidence(
            "growths", scale.last_step, 0.0, float(scale.scaler.growth_interval), "growth interval"
        ),
    )


def _start_higher(case: Case) -> str | None:
    """The advice to start at a higher scale; growth would take long to get there."""
    scale, final = case.scale, case.final_scale
    if scale.resets.count or not final:
        return None
    target = DEFAULT_SCALE
    if final >= DEFAULT_SCALE:
        target = 2.0 ** (math.ceil(math.log2(final)) + RAISE_OCTAVES)
    return start_scale_text(target).partition(" Too high")[0]


# At torch's interval growth costs one skip in 2,001 steps; at one in four it is too short.
SAWTOOTH_WASTE = 1 / 4


@rule("AMP102", "growth-sawtooth", Severity.INFO)
def growth_sawtooth(case: Case) -> Iterator[Seen]:
    """Isolated overflows just after the loss scale grew."""
    teeth, scale = case.teeth, case.scale
    if not teeth.episodes:
        return
    enough = scale.steps >= thresholds.STORM_WINDOW_STEPS
    costly = enough and teeth.skips > SAWTOOTH_WASTE * scale.steps
    cost = f", and {share_text(teeth.skips, scale.steps)} of the steps are lost to it"
    yield Seen(
        severity=Severity.WARNING if costly else Severity.INFO,
        first_step=teeth.first_step,
        last_step=teeth.last_step,
        summary=f"{count_text(teeth.episodes, 'overflow')} just after the scale grew"
        + (f"{cost}." if costly else ", as expected."),
        cause=f"The scale doubled, to {scale_text(teeth.highest_scale)} at most; the gradients "
        "overflowed there, and it was halved again.",
        action=f"Give GradScaler a longer growth_interval than {scale.scaler.growth_interval:,}; "
        "its default is 2000."
        if costly
        else None,
        evidence=Evidence("scale", teeth.last_step, teeth.last_scale),
    )
