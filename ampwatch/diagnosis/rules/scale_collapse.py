"""AMP103: a loss scale that falls far below its established level."""

from __future__ import annotations

from collections.abc import Iterator

from ampwatch.diagnosis import thresholds
from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.findings import Evidence, Severity
from ampwatch.diagnosis.rule import Seen, rule
from ampwatch.diagnosis.rules.scale_search_and_growth import no_scale_helps, startup_has_failed
from ampwatch.diagnosis.scale_history import ScaleFall, SkipEpisode
from ampwatch.diagnosis.scale_segments import SlowFall
from ampwatch.diagnosis.value_text import count_text, scale_text

# A scale that falls as far as in a collapse, but over thousands of steps. Each growth interval
# gives an octave back, so such a fall within twenty of them takes many more skips than growth
# causes. In a long record: within a quarter of it. A slower fall is a normal change of gradients
# during training.
SINK_INTERVALS, SINK_SHARE = 20, 0.25
# A record that ends during a fall: half the depth of a collapse, without an accepted step between.
ENDING_OCTAVES = thresholds.COLLAPSE_OCTAVES / 2


@rule("AMP103", "scale-collapse", Severity.ERROR)
def scale_collapse(case: Case) -> Iterator[Seen]:
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


def _failed_search(case: Case) -> Seen:
    scale, final = case.scale, case.final_scale
    seen, watched = case.numbers.sees_forward, case.observed.loop
    blind = "" if seen else " Whether the forward pass was finite is not recorded."
    accepted = no_scale_helps(case) if watched else "The record shows no accepted step"
    return Seen(
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


def _fall(case: Case, fall: ScaleFall, *, healed: bool) -> Seen:
    scale, last, final = case.scale, case.scale.last_step, case.final_scale
    skips = scale.skips - fall.skips_before
    ending = "and did not recover"
    now = "" if len(scale.recent_skips) else f"{_ACCEPTED_AGAIN} "
    action = f"{now}Find what changed just before the scale fell: learning rate, data, a resume."
    if healed:
        stays = final is not None and final <= fall.level * 2.0**-thresholds.COLLAPSE_OCTAVES
        ending = "and the loss kept falling at that scale" if stays else "and recovered"
        last, final, skips = fall.end_step, fall.end_scale, fall.skips
        action = "Nothing to do unless it returns: the run recovered by itself."
    return Seen(
        severity=Severity.INFO if healed else None,
        first_step=fall.first_step,
        last_step=last,
        summary=f"The loss scale fell from {scale_text(fall.level)}, its established level, to "
        f"{scale_text(fall.lowest)} "
        f"{ending}.",
        cause=f"Since then {count_text(skips, 'step was', 'steps were')} "
        "skipped: the gradients overflowed again at every lower scale." + unknown_cause_text(case),
        action=action,
        evidence=(
            Evidence("scale", last, final, fall.level, "established before"),
            Evidence("skipped", last, float(skips)),
        ),
    )


_ACCEPTED_AGAIN = "Steps are accepted again, but at a scale at which small gradients are lost."


def slow_fall(case: Case) -> SlowFall | None:
    """A scale that fell slowly, but as far as in a collapse, and has not recovered."""
    scale, final = case.scale, case.final_scale
    window = max(SINK_INTERVALS * scale.scaler.growth_interval, int(SINK_SHARE * scale.steps))
    if final is None:
        return None
    found = scale.recent_levels.slow_fall(final, thresholds.COLLAPSE_OCTAVES, window, scale.skips)
    if found is None or found.skips < thresholds.COLLAPSE_SKIPS:
        return None
    down_step = (scale.last_step or 0) - (scale.steps - 1 - found.down_position)
    return None if case.learnt_on(found.first_step, down_step) else found


def _sunk(case: Case, sunk: SlowFall) -> Seen:
    scale, final = case.scale, case.final_scale
    # At one pace the last two of eight octaves take a quarter of the way.
    way = (sunk.down_position - sunk.left_position) / 2
    held = scale.steps - sunk.down_position
    holds = held > max(2 * scale.scaler.growth_interval, way, thresholds.RECENT_SHARE * scale.steps)
    ending = "and has stayed there since" if holds else "and is still falling"
    return Seen(
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


def _ends_falling(case: Case, ending: SkipEpisode) -> Seen:
    last = case.scale.last_step
    return Seen(
        severity=Severity.WARNING,
        first_step=None if last is None else last - ending.streak + 1,
        last_step=last,
        summary=f"The record ends while the loss scale falls: {count_text(ending.streak, 'step')} "
        f"in a row were skipped, from {scale_text(ending.streak_scale)} to "
        f"{scale_text(ending.scale_after)}.",
        cause="A spike that recovers and a collapse look alike for so few steps, "
        "and nothing after them is recorded." + unknown_cause_text(case),
        action="See whether steps are accepted again if the run goes on.",
        evidence=Evidence("scale", last, ending.scale_after, ending.streak_scale, "before"),
    )
