"""AMP101 to AMP109, AMP208, AMP416: the loss scale is searched, grows, falls, starts over, or fits
not every layer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ampwatch.diagnosis import thresholds
from ampwatch.diagnosis.blocks import Times
from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.column_arrays import median
from ampwatch.diagnosis.event_history import AT_FLOOR
from ampwatch.diagnosis.findings import FindingStatus, Severity
from ampwatch.diagnosis.rule import RuleHit, counted, rule
from ampwatch.diagnosis.scale_history import ScaleFall, SkipEpisode, SkipSpan
from ampwatch.diagnosis.scale_segments import RecordEnding, SlowFall
from ampwatch.diagnosis.value_text import Evidence, count_text, scale_text, share_text
from ampwatch.rows import EventKind

# --- search, growth, resets -----------------------------------------------------------------------


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
def startup_search(case: Case) -> Iterator[RuleHit]:
    """Overflows before the first accepted step, as long as they can be a search for a scale."""
    scale, search = case.scale, case.scale.search
    if not search.skips or (case.is_searching and startup_has_failed(case)):
        return
    if not case.observed.loop and (scale.first_step or 0) > thresholds.STORM_WINDOW_STEPS:
        return  # a part of a log, whose training began long before
    slow = case.is_searching and search.skips >= STARTUP_WARNING_SKIPS
    yield RuleHit(
        severity=Severity.WARNING if slow else Severity.INFO,
        first_step=scale.first_step,
        last_step=search.last_step,
        summary=f"{count_text(search.skips, 'step')} skipped in the search for a loss scale"
        + (", and no step has been accepted yet." if case.is_searching else "."),
        cause=f"The scale began at {scale_text(scale.first_scale)}, which is too high for these "
        f"gradients, and was {scale_text(search.scale_after)} after the last skip."
        if scale.has_scaler
        else "The log contains neither the scale nor the accepted steps between the skips.",
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
def scale_reset(case: Case) -> Iterator[RuleHit]:
    """A loss scale that jumped back to its initial value for no recorded reason."""
    resets, reset = case.scale.resets, case.scale.reset
    if reset is None:
        return
    times = "once" if resets.count == 1 else f"{resets.count} times"
    yield RuleHit(
        standing=case.recurrence(resets),
        at=resets,
        summary=f"The loss scale was reset to its initial {scale_text(reset.scale_to)} during "
        f"the run, {times}.",
        cause=f"It was {scale_text(reset.scale_from)} before; "
        + (
            "update(new_scale) set it back, and the very next step overflowed."
            if reset.by_hand
            else "nothing in the log explains the jump: the scaler's state was lost."
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
def scaler_recreated(case: Case) -> Iterator[RuleHit]:
    """A loss scale that starts over again and again, mostly because scalers are created anew."""
    new_scalers = case.events.of(EventKind.SCALER_REPLACED)
    scale = case.scale
    if new_scalers.count >= REPLACED_SCALERS:
        yield _made_anew(case, new_scalers)
    elif scale.resets.count >= RECREATED_RESETS and scale.reset is not None:
        yield RuleHit(
            standing=case.recurrence(scale.resets),
            at=scale.resets,
            summary=f"The loss scale started over {scale.resets.count} times.",
            cause=f"Each time it jumped back to its initial {scale_text(scale.reset.scale_to)} "
            f"and searched again, which skipped {count_text(scale.reset_skips, 'step')}.",
            evidence=counted("resets", scale.resets, RECREATED_RESETS, "threshold"),
        )


def _made_anew(case: Case, new_scalers: Times) -> RuleHit:
    """Scales that started over in new scalers; two that cost no steps may be phases of training."""
    searched = case.loop.searched
    harmless = new_scalers.count < RECREATED_RESETS and not searched
    cost = (
        f"their searches skipped {count_text(searched, 'step')} that are not in the log."
        if searched
        else "each starts at its initial scale, and never grows beyond it."
    )
    return RuleHit(
        severity=Severity.INFO if harmless else Severity.ERROR,
        standing=case.recurrence(new_scalers),
        at=new_scalers,
        summary=f"The optimizer stepped through {count_text(new_scalers.count, 'new GradScaler')}.",
        cause="The loop creates them during training, and the scale that was found is lost: "
        f"{cost}",
        evidence=counted("scaler-replaced", new_scalers),
    )


DEFAULT_SCALE = 2.0**16  # GradScaler's own
# Where that is not enough either.
RAISE_OCTAVES = 8


def start_scale_text(scale: float) -> str:
    """The advice to start at this loss scale, and why that is safe, as a sentence."""
    exponent = int(math.log2(scale))
    own = ", which is PyTorch's own default" if scale == DEFAULT_SCALE else ""
    return (
        f"Start at 2^{exponent}{own}: GradScaler(init_scale=2.0**{exponent}). A start that "
        "is twice too high costs one skipped step. One that is half of what is right costs "
        "growth_interval (2,000) accepted steps of lost gradients."
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
def scale_runaway(case: Case) -> Iterator[RuleHit]:
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
    yield RuleHit(
        first_step=scale.level_step if scale.level_step is not None else scale.first_step,
        last_step=scale.last_step,
        summary=f"The loss scale has grown to {scale_text(final)} and nothing overflows.",
        cause="The gradients are exactly zero."
        if gone
        else "The gradients are absent or almost zero: any others would overflow at this scale.",
        evidence=Evidence("scale", scale.last_step, final, late, "threshold"),
    )


@rule("AMP107", "scale-never-grows", Severity.INFO)
def scale_never_grows(case: Case) -> Iterator[RuleHit]:
    """A loss scale that never grows, if that costs gradients or resets prevent growth."""
    scale = case.scale
    if not scale.has_scaler or scale.growths or scale.first_accepted is None:
        return
    # A scale that has overflowed is as high as it can be.
    lost = () if scale.skips or case.is_all_learnt else case.layers.losing_layers()
    if len(lost) == 0 and scale.resets.count < LOST_GROWTH_RESETS:
        return
    steps = count_text(case.numbers.steps, "step")
    yield RuleHit(
        severity=Severity.WARNING if len(lost) else Severity.INFO,
        at=scale,
        summary=f"The loss scale has not grown in {steps}"
        + (", and gradients are lost to underflow." if len(lost) else "."),
        cause="Its state is lost again and again, so it never doubles."
        if scale.resets.count
        else f"It doubles after {scale.scaler.growth_interval:,} accepted steps in a row, which "
        "the log never has.",
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
def growth_sawtooth(case: Case) -> Iterator[RuleHit]:
    """Isolated overflows just after the loss scale grew."""
    teeth, scale = case.teeth, case.scale
    if not teeth.episodes:
        return
    enough = scale.steps >= thresholds.STORM_WINDOW_STEPS
    costly = enough and teeth.skips > SAWTOOTH_WASTE * scale.steps
    cost = f", and {share_text(teeth.skips, scale.steps)} of the steps are lost to it"
    yield RuleHit(
        severity=Severity.WARNING if costly else Severity.INFO,
        first_step=teeth.first_step,
        last_step=teeth.last_step,
        summary=f"{_tooth_skips(teeth)} just after the scale grew"
        + (f"{cost}." if costly else ", as expected."),
        cause=f"The scale doubled, to {scale_text(teeth.highest_scale)} at most; the gradients "
        "overflowed there, and it was halved again.",
        action=f"Give GradScaler a longer growth_interval than {scale.scaler.growth_interval:,}; "
        "its default is 2000."
        if costly
        else None,
        evidence=(
            Evidence("scale", teeth.last_step, teeth.last_scale),
            Evidence("skipped", teeth.last_step, float(teeth.skips)),
        ),
    )


def _tooth_skips(teeth: SkipSpan) -> str:
    """How many steps growth cost, and in how many overflows where one took several halvings."""
    several = f" in {teeth.episodes:,} overflows" if teeth.skips > teeth.episodes > 0 else ""
    return f"{count_text(teeth.skips, 'step')} skipped{several}"


# --- falls ----------------------------------------------------------------------------------------


# A scale that falls as far as in a collapse, but over thousands of steps. Each growth interval
# gives an octave back, so such a fall within twenty of them takes many more skips than growth
# causes. In a long record: within a quarter of it. A slower fall is a normal change of gradients
# during training.
SINK_INTERVALS, SINK_SHARE = 20, 0.25
# A record that ends during a fall: half the depth of a collapse, without an accepted step between.
ENDING_OCTAVES = thresholds.COLLAPSE_OCTAVES / 2


@rule("AMP103", "scale-collapse", Severity.ERROR)
def scale_collapse(case: Case) -> Iterator[RuleHit]:
    """A loss scale that falls far below its established level and does not recover."""
    if case.is_searching:
        if startup_has_failed(case):
            yield _failed_search(case)
    elif case.standing_fall is not None:
        yield _fall(case, case.standing_fall, healed=False)
    elif (sunk := slow_fall(case)) is not None:
        yield _sunk(case, sunk)
    elif (ending := _falling(case)) is not None:
        yield _ends_falling(case, ending)
    elif case.falls:
        yield _fall(case, case.falls[0], healed=True)


def _failed_search(case: Case) -> RuleHit:
    scale, final = case.scale, case.final_scale
    sees_forward, watched = case.numbers.sees_forward, case.observed.loop
    blind = "" if sees_forward else " Whether the forward pass was finite is not recorded."
    accepted = no_scale_helps(case) if watched else "The log shows no accepted step"
    return RuleHit(
        first_step=scale.first_step,
        last_step=scale.last_step,
        summary=f"{accepted}: {count_text(scale.search.skips, 'skip')} took the scale from "
        f"{scale_text(scale.first_scale)} to {scale_text(final)}.",
        cause="The gradients were not finite at any scale that was tried."
        + blind
        + unknown_cause_text(case),
        action="A lower scale or learning rate cannot help before the first update. Find the "
        "first layer or input that is not finite."
        if case.observed.loop
        else "Stop: nothing is learnt. Attach ampwatch to find out whether a layer, an input or "
        "the learning rate is the cause, and repair that.",
        evidence=Evidence("scale", scale.last_step, final, scale.first_scale, "at first"),
    )


def unknown_cause_text(case: Case) -> str:
    """The caveat for a fall of the scale if the record lacks loss and rate to name a cause."""
    if not (case.observed.loss or case.observed.rate):
        return " The cause cannot be determined without the loss and the learning rate."
    return ""


def _fall(case: Case, fall: ScaleFall, *, healed: bool) -> RuleHit:
    scale, last, final = case.scale, case.scale.last_step, case.final_scale
    skips = scale.skips - fall.skips_before
    ending = "and did not recover"
    is_lost = case.stands(case.unskipped.bad)
    now = "" if is_lost or len(scale.recent_skips) else f"{_ACCEPTED_AGAIN} "
    action = f"{now}Find what changed just before the scale fell: learning rate, data, a resume."
    if healed:
        stays = final is not None and final <= fall.level * 2.0**-thresholds.COLLAPSE_OCTAVES
        ending = "and the loss kept falling at that scale" if stays else "and recovered"
        last, final, skips = fall.end_step, fall.end_scale, fall.skips
        action = "Nothing to do unless it returns: the run recovered by itself."
    return RuleHit(
        severity=Severity.INFO if healed else None,
        first_step=fall.first_step,
        last_step=last,
        summary=f"The loss scale fell from {scale_text(fall.level)}, its established level, to "
        f"{scale_text(fall.lowest)} {ending}.",
        cause=f"Since then {count_text(skips, 'step was', 'steps were')} "
        f"skipped: {_of_the_skips(case, fall, skips)}.{unknown_cause_text(case)}",
        action=action,
        evidence=(
            Evidence("scale", last, final, fall.level, "established before"),
            Evidence("skipped", last, float(skips)),
        ),
    )


def _of_the_skips(case: Case, fall: ScaleFall, skips: int) -> str:
    lost = case.numbers.bad_loss
    is_lost = 2 * lost.count > skips and (lost.last_step or 0) >= fall.first_step
    loss = "in most of them the loss itself was inf or NaN, which no loss scale mends"
    return loss if is_lost else "the gradients overflowed again at every lower scale"


_ACCEPTED_AGAIN = "Steps are accepted again, but at a scale at which small gradients are lost."


def slow_fall(case: Case) -> SlowFall | None:
    """A scale that fell slowly, but as far as in a collapse, and has not recovered."""
    scale, final = case.scale, case.final_scale
    window = max(SINK_INTERVALS * scale.scaler.growth_interval, int(SINK_SHARE * scale.steps))
    if final is None:
        return None
    fall = scale.recent_levels.slow_fall(final, thresholds.COLLAPSE_OCTAVES, window, scale.skips)
    if fall is None or fall.skips < thresholds.COLLAPSE_SKIPS:
        return None
    down_step = (scale.last_step or 0) - (scale.steps - 1 - fall.down_position)
    return None if case.learnt_on(fall.first_step, down_step) else fall


def _sunk(case: Case, sunk: SlowFall) -> RuleHit:
    scale, final = case.scale, case.final_scale
    # At one pace the last two of eight octaves take a quarter of the way.
    way = (sunk.down_position - sunk.left_position) / 2
    held = scale.steps - sunk.down_position
    holds = held > max(2 * scale.scaler.growth_interval, way, thresholds.RECENT_SHARE * scale.steps)
    ending = "and has stayed there since" if holds else "and is still falling"
    return RuleHit(
        severity=Severity.WARNING if holds else Severity.ERROR,
        first_step=sunk.first_step,
        last_step=scale.last_step,
        summary=f"The loss scale sank from {scale_text(sunk.level)} to {scale_text(final)}, "
        f"{ending}.",
        cause=f"Since then {count_text(sunk.skips, 'step was', 'steps were')} "
        "skipped, more than growth makes up for: the gradients have grown by as much."
        + unknown_cause_text(case),
        action="Find what grew: the gradient norm, a layer's activations, the weights of the "
        "loss's terms.",
        evidence=(
            Evidence("scale", scale.last_step, final, sunk.level, "established before"),
            Evidence("skipped", scale.last_step, float(sunk.skips)),
        ),
    )


def _falling(case: Case) -> SkipEpisode | None:
    """The skips in a row with which a finished record ends, if the scale was falling.

    While a run goes on, they may be a spike from which it recovers.
    """
    ending, last = case.scale.ending, case.scale.last_step or 0
    over = case.record.clean_end or not case.observed.loop or case.events.is_over_by(last)
    if ending is None or not over or ending.from_reset or ending.is_tooth:
        return None
    at_end = ending.last == case.scale.steps - 1 and ending.streak >= thresholds.COLLAPSE_SKIPS
    return ending if at_end and ending.streak_octaves >= ENDING_OCTAVES else None


def _ends_falling(case: Case, ending: SkipEpisode) -> RuleHit:
    last = case.scale.last_step
    return RuleHit(
        severity=Severity.WARNING,
        first_step=None if last is None else last - ending.streak + 1,
        last_step=last,
        summary=f"The log ends while the loss scale falls: {count_text(ending.streak, 'step')} "
        f"in a row were skipped, from {scale_text(ending.streak_scale)} to "
        f"{scale_text(ending.scale_after)}.",
        cause="A spike that recovers and a collapse look alike for so few steps, "
        "and nothing after them is recorded." + unknown_cause_text(case),
        action="See whether steps are accepted again if the run goes on.",
        evidence=Evidence("scale", last, ending.scale_after, ending.streak_scale, "before"),
    )


# --- a low scale ----------------------------------------------------------------------------------


@rule("AMP104", "scale-too-low", Severity.ERROR)
def scale_too_low(case: Case) -> Iterator[RuleHit]:
    """A loss scale at the lowest value possible, or too low for any step to work."""
    scale, final, times = case.scale, case.final_scale, case.scale.floored
    if not times.count:
        yield from _gave_up(case)
        return
    healed = final is not None and final > max(thresholds.FLOOR_SCALE, scale.floor or 0.0)
    standing = FindingStatus.HEALED if healed else FindingStatus.STANDS
    yield RuleHit(
        standing=standing,
        at=times,
        summary=_low_scale_summary(case) + (f"{standing.ending}." if healed else "."),
        cause="Gradients are unscaled by the inverse of the loss scale, which is not a finite "
        "number where the loss scale is 2^-128 or less."
        if scale.tiny.count
        else "It fell to the lowest scale that the framework allows, and steps still overflow.",
        evidence=Evidence(
            "scale", times.last_step, scale.lowest, thresholds.FLOOR_SCALE, "smallest that works"
        ),
    )


def _low_scale_summary(case: Case) -> str:
    """That the scale stands at its minimum, or how low it is while it may fall further."""
    scale, final = case.scale, case.final_scale
    low = scale.lowest if final is None else min(scale.lowest, final)
    if low <= (scale.floor or 0.0):
        return f"The loss scale reached its minimum, {scale_text(low)}: no step can succeed"
    return f"The loss scale fell to {scale_text(low)}, too low for any step to succeed"


def _gave_up(case: Case) -> Iterator[RuleHit]:
    """A scale too low to go on: the framework gave up at it, or no search goes so low."""
    final, last = case.final_scale, case.events.fatal[-1:]
    event = next(
        (e for e in last if any(w in str(e.detail.get("message")) for w in AT_FLOOR)), None
    )
    if event is not None and event.step >= (case.scale.last_step or 0):
        summary = (
            f"The framework gave up: the loss scale, {scale_text(final)}, could not fall any "
            "further."
        )
        cause = "Steps overflowed at the lowest scale that the framework allows."
        step: int | None = event.step
    elif _is_lost(case):
        summary = f"The loss scale is {scale_text(final)}: no gradient survives at this scale."
        cause = "No summed loss needs so low a scale: it fell there step by step."
        step = case.scale.last_step
    else:
        return
    yield RuleHit(
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
def low_scale_by_design(case: Case) -> Iterator[RuleHit]:
    """A low loss scale, below 1, at which the run learns."""
    scale, final = case.scale, case.final_scale
    if final is None or final >= 1.0 or scale.low_scale_steps < thresholds.ESTABLISHED_STEPS:
        return
    if case.standing_fall is not None or slow_fall(case) is not None:
        return
    if scale.floored.count or not _loss_falls(case):
        return
    yield RuleHit(
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


# --- storms of skips ------------------------------------------------------------------------------


# A storm that begins late shows in the last part of the record. Over eight growth intervals or
# more, chance does not cause as many skips as growth does.
STORM_INTERVALS = 8
# Most of the last steps are skipped: hardly anything is learnt any more.
STORM_ERROR_SHARE = 0.5


@rule("AMP105", "overflow-storm", Severity.WARNING)
def overflow_storm(case: Case) -> Iterator[RuleHit]:
    """Steps skipped more often than the growth of the loss scale explains: a storm."""
    scale, loose = case.scale, case.loose
    if scale.first_accepted is None or not loose.skips or case.loop_tells_skips:
        return
    recent = len(scale.recent_skips)
    full = scale.steps - scale.first_accepted >= thresholds.STORM_WINDOW_STEPS
    most = full and recent > STORM_ERROR_SHARE * thresholds.STORM_WINDOW_STEPS
    crowd = _storm_part(case, most=most)
    if crowd is None:
        return
    quiet = max(thresholds.STORM_WINDOW_STEPS, thresholds.RECENT_SHARE * scale.steps)
    calm = full and scale.steps - loose.last_position > quiet and not recent
    wasted, allowed = share_text(scale.skips, scale.steps), _skips_allowed(case, crowd.steps)
    is_late = loose.first_position < scale.steps - crowd.steps
    late = f" in the last {crowd.steps:,} steps" if is_late else ""
    began = (scale.last_step or 0) - crowd.steps + 1 if is_late else loose.first_step
    yield RuleHit(
        severity=Severity.ERROR if most else Severity.INFO if calm else Severity.WARNING,
        first_step=began,
        last_step=loose.last_step,
        summary=f"{count_text(crowd.loose_skips, 'skip')}{late} that the scale's growth does not "
        "explain" + (", none of them recent." if calm else "."),
        cause=f"Growth explains about {math.floor(allowed)}. In all, {wasted} of the steps were "
        "computed and discarded.",
        evidence=Evidence(
                "skipped", loose.last_step, float(crowd.loose_skips), float(math.floor(allowed)),
                "explained by growth",
            ),
    )  # fmt: skip


def _storm_part(case: Case, *, most: bool) -> RecordEnding | None:
    """The part of the record that is a storm, with more skips than growth explains; or None.

    Bursts do not count: a burst is a spike or a fall, which has a finding of its own.
    """
    scale, loose = case.scale, case.loose
    assert scale.first_accepted is not None, "before that all is a search"
    since = scale.steps - scale.first_accepted
    if 2 * loose.episodes > loose.skips:  # isolated ones are counted from the first of them
        since = scale.steps - loose.first_position
    endings = [RecordEnding(since, loose.skips, loose.lone_skips)]
    if case.standing_fall is None:  # after a fall skips are part of it
        least = STORM_INTERVALS * scale.scaler.growth_interval
        endings += scale.recent_levels.endings(scale.steps, least)
    crowded = [
        ending
        for ending in endings
        if ending.loose_skips > _skips_allowed(case, ending.steps)
        and (2 * ending.lone_skips > ending.loose_skips or most)
    ]
    return max(
        crowded,
        key=lambda ending: ending.loose_skips / _skips_allowed(case, ending.steps),
        default=None,
    )


def _skips_allowed(case: Case, steps: int) -> float:
    """How many skips in so many steps are no storm: those that growth causes, and a few."""
    growths = case.scale.scaler.skips_by_growth(steps)
    return thresholds.STORM_FREE_SKIPS + growths + case.scale.accumulation_octaves


# --- layers that no scale fits together -----------------------------------------------------------


# Scale windows that do not overlap in most of at least so many judged samples.
CONFLICT_SAMPLES = 5


@rule("AMP208", "no-scale-fits", Severity.WARNING)
def no_scale_fits(case: Case) -> Iterator[RuleHit]:
    """Layers whose loss scales conflict: one scale that suits them all does not exist."""
    layers = case.layers
    if case.is_all_learnt:
        return
    first, last = layers.first_conflict, layers.last_conflict
    often = 2 * layers.conflicts > layers.window_steps >= CONFLICT_SAMPLES
    if first is None or last is None or not often:
        yield from _lost_at_the_ceiling(case)
        return
    pair = last.needs_layer != last.tolerates_layer
    yield RuleHit(
        first_step=first.step,
        last_step=last.step,
        layer=last.needs_layer,
        summary=f"No loss scale suits layer {last.needs_layer}"
        + (
            f" and layer {last.tolerates_layer} at once."
            if pair
            else ": its gradients span too wide a range."
        ),
        cause=f"Layer {last.needs_layer} needs {_power(last.needs)} or more, "
        f"{f'layer {last.tolerates_layer}' if pair else 'and'} tolerates {_power(last.tolerates)} "
        f"at most, in {layers.conflicts} of {count_text(layers.window_steps, 'sample')}.",
        action=f"Run layer {last.tolerates_layer} in float32, or use bf16.",
        evidence=Evidence("scale_low", last.step, last.needs, last.tolerates, "largest usable"),
    )


def _lost_at_the_ceiling(case: Case) -> Iterator[RuleHit]:
    """A layer in conflict with the rest: it loses gradients at the highest usable scale."""
    layers, scale = case.layers, case.scale
    lost = layers.losing_layers()
    capped = case.teeth.episodes > 0 or scale.startup_skips > 0
    if not len(lost) or not capped or case.is_searching or case.standing_fall is not None:
        return
    worst, share = layers.loses_most(lost)
    name, final = layers.names[worst], scale_text(case.final_scale)
    last = int(layers.last_step[worst])
    yield RuleHit(
        first_step=int(layers.first_step[worst]),
        last_step=last,
        layer=name,
        summary=f"No loss scale suits {name} and the rest: at {final} it still loses gradients.",
        cause="A higher scale overflows, as the skips show, and at this one most of its gradients "
        "are below half precision's smallest normal number.",
        evidence=Evidence("underflow_share", last, share, thresholds.UNDERFLOW_SHARE, "threshold"),
    )


def _power(scale: float) -> str:
    return scale_text(2.0 ** round(math.log2(scale))) if scale > 0 else scale_text(scale)
