"""AMP102, AMP106 and AMP107: a loss scale that grows and falls, without limit, or never."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ampwatch.diagnosis import thresholds
from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.findings import Evidence, Severity
from ampwatch.diagnosis.rule import Seen, rule
from ampwatch.diagnosis.value_text import count_text, scale_text, share_text

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
        evidence=(Evidence("scale", scale.last_step, final, late, "threshold"),),
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
        evidence=(
            Evidence(
                "growths",
                scale.last_step,
                0.0,
                float(scale.scaler.growth_interval),
                "growth interval",
            ),
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
        evidence=(Evidence("scale", teeth.last_step, teeth.last_scale),),
    )
