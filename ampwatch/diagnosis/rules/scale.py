"""AMP101 to AMP103, AMP105 and AMP108: what the loss scale itself tells."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ampwatch.diagnosis import policy
from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.episodes import Episode, Fall
from ampwatch.diagnosis.findings import Evidence, Severity
from ampwatch.diagnosis.registry import (
    NOT_FINITE,
    NOT_ITS_GRADIENTS,
    RATE,
    Page,
    Seen,
    Ties,
    always,
    codes,
    rule,
)
from ampwatch.diagnosis.scale_levels import Ending, Sink
from ampwatch.diagnosis.words import count_text, scale_text, share_text

# A search from 2^32 may halve twenty times and be healthy; beyond that something else is wrong.
STARTUP_WARNING_SKIPS = 20
STARTUP_ERROR_SCALE = 2.0**-32
# Where nobody saw the forward pass, sixteen halvings of the default 2^16 end below this; where
# nobody tells the scale either, sixty-four of 2^32 end at 2^-32.
STARTUP_BLIND_SCALE = 1.0
STARTUP_UNTOLD_SKIPS = 64
# Five steps running whose forward is not finite: no scale can help, so it is no search.
STARTUP_FORWARD_STEPS = 5
# Growth's own skips cost one step in 2,001 at torch's interval; where they cost one in four, the
# interval is too short.
SAWTOOTH_WASTE = 1 / 4
# A scale that comes down as far as a collapse, over thousands of steps: each growth interval gives
# an octave back, so within twenty of them that takes many skips more than growth's own. In a long
# record a quarter of it: what takes longer is how gradients change while a run learns.
SINK_INTERVALS, SINK_SHARE = 20, 0.25
# A record that ends in a fall that has not got so far yet: half of the way, and not a step between.
ENDING_OCTAVES = policy.COLLAPSE_OCTAVES / 2
# A storm that begins late shows in the record's ending, whatever was free before it. Over eight
# growth intervals and more, chance does not bring as many skips as growth does.
STORM_INTERVALS = 8
# Most of the last steps thrown away: hardly anything is learnt any more.
STORM_ERROR_SHARE = 0.5


@rule(
    "AMP101",
    "startup-search",
    Severity.INFO,
    Page(
        meaning="The scaler starts too high on purpose and halves the loss scale until the "
        "gradients fit. The steps skipped before the first accepted one are that search.",
        looks="Skips at the very start, the scale halving at each, a finite loss. Now and then "
        "one more later, ever more seldom: an overflow at a lower scale than any before, in a run "
        "twice as old as at the last one, is the search still.",
        not_to_confuse="A forward pass that is not finite: no scale helps there, and "
        f"{STARTUP_FORWARD_STEPS} such steps running are AMP103. A loss summed over many "
        f"items may need {STARTUP_WARNING_SKIPS} halvings and be fine.",
        do="Nothing. A lower init_scale saves the skipped steps.",
        example="scale 2^16, 2^15, 2^14: three skips, then step 3 is accepted.",
    ),
)
def startup_search(case: Case) -> Iterator[Seen]:
    """Overflows before the first accepted step, while they can still be a search."""
    scale, search = case.scale, case.scale.search
    if not search.skips or (case.is_searching and startup_has_failed(case)):
        return
    slow = case.is_searching and search.skips >= STARTUP_WARNING_SKIPS
    yield Seen(
        severity=Severity.WARNING if slow else Severity.INFO,
        first_step=scale.first_step,
        last_step=search.last_step,
        summary=f"{count_text(search.skips, 'step')} skipped while the scale searched its level"
        + (", and none was accepted yet." if case.is_searching else "."),
        cause=f"The scale began at {scale_text(scale.first_scale)}, above what the gradients "
        f"allow, and stood at {scale_text(search.scale_after)} after the last of them."
        if scale.has_scaler
        else "Nothing tells the scale, nor whether steps were accepted between them.",
        action="Watch the next steps: the search should have ended by now." if slow else None,
        evidence=(Evidence("skipped", search.last_step, float(search.skips)),),
    )


def startup_has_failed(case: Case) -> bool:
    """Whether the search that nothing ended is a search no longer."""
    final, skips = case.final_scale, case.scale.search.skips
    if not skips:
        return False  # the loop itself left the steps out
    if case.numbers.bad_forwards_running >= STARTUP_FORWARD_STEPS:
        return True
    if final is None:
        return skips >= STARTUP_UNTOLD_SKIPS
    if case.numbers.sees_forward or skips < policy.STARTUP_BLIND_SKIPS:
        # A log's last lines: the search had begun long before them.
        few = 0 if case.numbers.sees_forward else policy.COLLAPSE_SKIPS
        return skips >= few and final < STARTUP_ERROR_SCALE
    return final < STARTUP_BLIND_SCALE


@rule(
    "AMP102",
    "growth-sawtooth",
    Severity.INFO,
    Page(
        meaning="After growth_interval accepted steps the scaler doubles the scale to see whether "
        "the gradients still fit. When they do not, one step is skipped and the scale halves back.",
        looks="About one overflow each growth interval, always just after a doubling, always back "
        "to the same ceiling.",
        not_to_confuse="AMP105, where skips come more often than the scale grows.",
        do="Nothing. A longer growth_interval makes it rarer; where it costs more than "
        f"{100 * SAWTOOTH_WASTE:.0f} % of the steps, that is a warning.",
        example="growth_interval 2000: skips at steps 2001, 4003, 6005, each at 2^17.",
    ),
    Ties(excludes_rate=always),
)
def growth_sawtooth(case: Case) -> Iterator[Seen]:
    """Isolated overflows at a scale the run has just grown into."""
    teeth, scale = case.teeth, case.scale
    if not teeth.episodes:
        return
    enough = scale.steps >= policy.STORM_WINDOW_STEPS
    costly = enough and teeth.skips > SAWTOOTH_WASTE * scale.steps
    cost = f", and {share_text(teeth.skips, scale.steps)} of the steps are lost to it"
    yield Seen(
        severity=Severity.WARNING if costly else Severity.INFO,
        first_step=teeth.first_step,
        last_step=teeth.last_step,
        summary=f"{count_text(teeth.episodes, 'overflow')} just after the scale grew"
        + (f"{cost}." if costly else ", as expected."),
        cause=f"The scale doubled to {scale_text(teeth.highest_scale)} at most, found no room, "
        "and came back.",
        action=f"Give GradScaler a longer growth_interval than {scale.scaler.growth_interval:,}; "
        "its default is 2000."
        if costly
        else None,
        evidence=(Evidence("scale", teeth.last_step, teeth.last_scale),),
    )


@rule(
    "AMP103",
    "scale-collapse",
    Severity.ERROR,
    Page(
        meaning="The loss scale fell far below the level at which the run had worked and did not "
        "come back: step after step overflows, so hardly any update is made.",
        looks=f"Skips close together, {policy.COLLAPSE_SKIPS} at least, carry the scale "
        f"{policy.COLLAPSE_OCTAVES} octaves or more below its established level: the highest scale "
        f"at which {policy.ESTABLISHED_STEPS} steps in a row were accepted. Slowly: an octave "
        "farther (up to four, where its level had wandered before) within "
        f"{SINK_INTERVALS} growth intervals or {100 * SINK_SHARE:.0f} % of the record; a warning "
        "once it holds. Or no step was ever accepted, and no lower scale can "
        f"help: the forward pass is not finite in {STARTUP_FORWARD_STEPS} steps running, "
        "or the search is past every scale that a training needs. A warning where the record ends "
        "in the middle of a fall.",
        not_to_confuse="A start-up search (AMP101), which ends; a sawtooth (AMP102), one overflow "
        "at a time; a spike that heals, whose scale grows back: then this falls to info.",
        do="Look at the finding that caused it. Without one: restart from a checkpoint saved "
        "before the fall, and look at what changed there (learning rate, data, a resume).",
        example="2^16 held for 300 steps, then 41 skips in 60 steps: 2^-25 at the end.",
    ),
    Ties(
        explained_by=(
            "AMP209",
            *NOT_ITS_GRADIENTS,
            *RATE,
            *NOT_FINITE,
            *codes("AMP604 AMP602 AMP202 AMP413"),
        ),
        spares_weights=True,
    ),
)
def scale_collapse(case: Case) -> Iterator[Seen]:
    """The scale falls far below its established level and does not come back."""
    if case.is_searching:
        if startup_has_failed(case):
            yield _failed_search(case)
    elif case.standing_fall is not None:
        yield _fall(case, case.standing_fall, healed=False)
    elif (sunk := sink(case)) is not None:
        yield _sunk(case, sunk)
    elif (ending := _falling(case)) is not None:
        yield _ends_falling(case, ending)
    elif case.scale.falls:
        yield _fall(case, case.scale.falls[0], healed=True)


def _failed_search(case: Case) -> Seen:
    scale, final = case.scale, case.final_scale
    blind = "" if case.numbers.sees_forward else " Whether the forward pass was finite is unknown."
    accepted = "No step was ever accepted" if case.observed.loop else "No accepted step is shown"
    return Seen(
        first_step=scale.first_step,
        last_step=scale.last_step,
        summary=f"{accepted}: {count_text(scale.search.skips, 'skip')} took the scale from "
        f"{scale_text(scale.first_scale)} to {scale_text(final)}.",
        cause="The gradients are not finite at any scale." + blind + untold(case),
        action="A lower scale or learning rate cannot help before the first update. Find the "
        "first layer or input that is not finite."
        if case.observed.loop
        else "Stop: nothing is being learnt. Attach ampwatch to see which layer, input or rate "
        "it is.",
        evidence=(Evidence("scale", scale.last_step, final, scale.first_scale),),
    )


def untold(case: Case) -> str:
    """The caveat where the record holds nothing that could name the cause."""
    if not (case.observed.loss or case.observed.rate):
        return " Without the loss and the learning rate the cause cannot be told."
    return ""


def _fall(case: Case, fall: Fall, *, healed: bool) -> Seen:
    scale, last, final = case.scale, case.scale.last_step, case.final_scale
    skips = scale.skips - fall.skips_before
    ending = "and it does not come back"
    now = "Stop: nothing is being learnt." if len(scale.recent_skips) else _TAKEN_AGAIN
    action = f"{now} Restart from a checkpoint before step {fall.first_step}, with what caused "
    action += "the fall put right."
    if healed:
        stays = final is not None and final <= fall.level * 2.0**-policy.COLLAPSE_OCTAVES
        ending = "and the loss fell on at that scale" if stays else "and it came back"
        last, final, skips = fall.end_step, fall.end_scale, fall.skips
        action = "Nothing to do unless it returns: the run recovered by itself."
    return Seen(
        severity=Severity.INFO if healed else None,
        first_step=fall.first_step,
        last_step=last,
        summary=f"The loss scale fell from {scale_text(fall.level)} to {scale_text(fall.lowest)} "
        f"{ending}.",
        cause=f"From there {count_text(skips, 'step was', 'steps were')} skipped: the gradients "
        "overflowed again at every lower scale." + untold(case),
        action=action,
        evidence=(
            Evidence("scale", last, final, fall.level),
            Evidence("skipped", last, float(skips)),
        ),
    )


_TAKEN_AGAIN = "Steps are taken again, at a scale that loses small gradients."


def sink(case: Case) -> Sink | None:
    """A scale that came down slowly as far as a collapse does, and has not come back."""
    scale, final = case.scale, case.final_scale
    window = max(SINK_INTERVALS * scale.scaler.growth_interval, int(SINK_SHARE * scale.steps))
    if final is None:
        return None
    found = scale.recent_levels.sink(final, policy.COLLAPSE_OCTAVES, window, scale.skips)
    if found is None or found.skips < policy.COLLAPSE_SKIPS:
        return None
    down_step = (scale.last_step or 0) - (scale.steps - 1 - found.down_position)
    return None if case.learnt_on(found.first_step, down_step) else found


def _sunk(case: Case, sunk: Sink) -> Seen:
    scale, final = case.scale, case.final_scale
    # At one pace the last two of eight octaves take a quarter of the way.
    way = (sunk.down_position - sunk.left_position) / 2
    held = scale.steps - sunk.down_position
    holds = held > max(2 * scale.scaler.growth_interval, way, policy.RECENT_SHARE * scale.steps)
    ending = "and has held there since" if holds else "and is still on its way"
    return Seen(
        severity=Severity.WARNING if holds else Severity.ERROR,
        first_step=sunk.first_step,
        last_step=scale.last_step,
        summary=f"The loss scale sank from {scale_text(sunk.level)} to {scale_text(final)}, "
        f"{ending}.",
        cause=f"From there {count_text(sunk.skips, 'step')} were skipped, more than growth gives "
        "back: the gradients have become as much larger." + untold(case),
        action="Look at what grew: the gradient norm, a layer's activations, the loss's own "
        f"weights. Restart from a checkpoint before step {sunk.first_step} with that put right.",
        evidence=(
            Evidence("scale", scale.last_step, final, sunk.level),
            Evidence("skipped", scale.last_step, float(sunk.skips)),
        ),
    )


def _falling(case: Case) -> Episode | None:
    """The skips, one after the other, with which the record ends, if it is over.

    While a run goes on, that may be a spike that heals.
    """
    ending, last = case.scale.ending, case.scale.last_step or 0
    over = case.record.clean_end or not case.observed.loop or case.ledger.is_over_by(last)
    if ending is None or not over or ending.from_reset or ending.is_tooth:
        return None
    at_end = ending.last == case.scale.steps - 1 and ending.streak >= policy.COLLAPSE_SKIPS
    return ending if at_end and ending.streak_octaves >= ENDING_OCTAVES else None


def _ends_falling(case: Case, ending: Episode) -> Seen:
    last = case.scale.last_step
    return Seen(
        severity=Severity.WARNING,
        first_step=None if last is None else last - ending.streak + 1,
        last_step=last,
        summary=f"The record ends while the loss scale falls: {count_text(ending.streak, 'step')} "
        f"in a row were skipped, from {scale_text(ending.streak_scale)} to "
        f"{scale_text(ending.scale_after)}.",
        cause="A spike that heals and a collapse look alike for so few steps; nothing after them "
        "is recorded." + untold(case),
        action="If the run was stopped for it, restart from a checkpoint before; if it goes on, "
        "see whether steps are accepted again.",
        evidence=(Evidence("scale", last, ending.scale_after, ending.streak_scale),),
    )


@rule(
    "AMP105",
    "overflow-storm",
    Severity.WARNING,
    Page(
        meaning="Steps are skipped more often than a growing scale explains. Each skip is a "
        "forward and a backward pass thrown away.",
        looks="More skips than one each growth interval, and than a search that goes on (AMP101), "
        "most of them isolated: up to "
        f"{policy.SAWTOOTH_SKIPS} in a row. An error when over "
        f"{100 * STORM_ERROR_SHARE:.0f} % of the last {policy.STORM_WINDOW_STEPS} steps "
        "were skipped; or, in a log without a scale, when no gradient norm is finite any more.",
        not_to_confuse="AMP102, one skip after each doubling; AMP103, one long fall; AMP303, one "
        "burst that heals.",
        do="See which layer overflows (AMP202, AMP203) and whether the batches differ.",
        example="growth_interval 2000, 900 skips in 10,000 steps.",
    ),
    Ties(
        explained_by=(
            "AMP209",
            *NOT_ITS_GRADIENTS,
            *RATE,
            *NOT_FINITE,
            *codes("AMP202 AMP604 AMP602 AMP108 AMP413 AMP206"),
        ),
        spares_weights=True,
    ),
)
def overflow_storm(case: Case) -> Iterator[Seen]:
    """More skips than growth explains."""
    scale, loose = case.scale, case.loose
    if scale.first_accepted is None or not loose.skips or case.loop_tells_skips:
        return
    recent = len(scale.recent_skips)
    full = scale.steps - scale.first_accepted >= policy.STORM_WINDOW_STEPS
    most = full and recent > STORM_ERROR_SHARE * policy.STORM_WINDOW_STEPS
    crowd = _crowd(case, most=most)
    if crowd is None:
        return
    quiet = max(policy.STORM_WINDOW_STEPS, policy.RECENT_SHARE * scale.steps)
    calm = full and scale.steps - loose.last_position > quiet and not recent
    wasted, allowed = share_text(scale.skips, scale.steps), _allowed(case, crowd.steps)
    is_late = loose.first_position < scale.steps - crowd.steps
    late = f" in the last {crowd.steps:,} steps" if is_late else ""
    began = (scale.last_step or 0) - crowd.steps + 1 if is_late else loose.first_step
    yield Seen(
        severity=Severity.ERROR if most else Severity.INFO if calm else Severity.WARNING,
        first_step=began,
        last_step=loose.last_step,
        summary=f"{count_text(crowd.loose_skips, 'skip')}{late} that the scale's growth does not "
        "explain" + (", and none of them recent." if calm else "."),
        cause=f"Growth explains about {math.floor(allowed)}; in all {wasted} "
        "of the steps were computed and thrown away.",
        evidence=(Evidence("skipped", loose.last_step, float(crowd.loose_skips), float(allowed)),),
    )


def _crowd(case: Case, *, most: bool) -> Ending | None:
    """The whole record or an ending of it with more skips than growth explains, not in bursts.

    A burst is a spike or a fall, each with a finding of its own.
    """
    scale, loose = case.scale, case.loose
    assert scale.first_accepted is not None, "before that all is a search"
    since = scale.steps - scale.first_accepted
    if 2 * loose.episodes > loose.skips:  # isolated ones are counted from the first of them
        since = scale.steps - loose.first_position
    endings = [Ending(since, loose.skips, loose.lone_skips)]
    if case.standing_fall is None:  # after a fall skips are part of it
        least = STORM_INTERVALS * scale.scaler.growth_interval
        endings += scale.recent_levels.endings(scale.steps, least)
    crowded = [
        one
        for one in endings
        if one.loose_skips > _allowed(case, one.steps)
        and (2 * one.lone_skips > one.loose_skips or most)
    ]
    return max(crowded, key=lambda one: one.loose_skips / _allowed(case, one.steps), default=None)


def _allowed(case: Case, steps: int) -> float:
    """The skips that growth, and a loss summed over more micro-batches, bring in so many steps."""
    growths = case.scale.scaler.skips_by_growth(steps)
    return policy.STORM_FREE_SKIPS + growths + case.scale.accumulation_octaves


@rule(
    "AMP108",
    "scale-reset",
    Severity.WARNING,
    Page(
        meaning="In mid-run the loss scale jumped to its initial value. The scaler's state was "
        "lost: usually a resume without scaler.load_state_dict(), or a new GradScaler.",
        looks="The scale is the initial one though neither growth nor a skip led there, then a "
        "burst of log2(initial / old) skips. Where the record does not tell the initial one: a "
        "leap that no growth makes, back to where the record began, and an overflow at once.",
        not_to_confuse="scaler.update(new_scale), which is a decision and is recorded as one; "
        "unless it goes far back to the initial value and the very next step overflows.",
        do="Save scaler.state_dict() with the checkpoint and load it on resume.",
        example="2^9 before a restart, 2^16 after it, then 7 skips.",
    ),
    Ties(explained_by=("AMP416",), excludes_rate=always),
)
def scale_reset(case: Case) -> Iterator[Seen]:
    """Back to the initial scale without a reason."""
    resets, reset = case.scale.resets, case.scale.reset
    if reset is None:
        return
    times = "once" if resets.count == 1 else f"{resets.count} times"
    yield Seen(
        at=resets,
        summary=f"The loss scale was reset to its initial {scale_text(reset.scale_to)} "
        f"in mid-run, {times}.",
        cause=f"It stood at {scale_text(reset.scale_from)}; "
        + (
            "update(new_scale) set it back, and the very next step overflowed."
            if reset.by_hand
            else "nothing in the record leads from there: the scaler's state was lost."
        ),
        action="Call scaler.update() without a scale: it finds and keeps its level."
        if reset.by_hand
        else None,
        evidence=(Evidence("scale", resets.last_step, reset.scale_to, reset.scale_from),),
    )
