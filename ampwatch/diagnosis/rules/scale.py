"""AMP101 to AMP103 and AMP108: findings that the loss scale itself shows."""

from __future__ import annotations

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
from ampwatch.diagnosis.scale_levels import Sink
from ampwatch.diagnosis.words import count_text, scale_text, share_text

# A search from 2^32 may halve twenty times and be healthy; beyond that something else is wrong.
STARTUP_WARNING_SKIPS = 20
STARTUP_ERROR_SCALE = 2.0**-32
# Where the forward pass is not recorded: sixteen halvings of the default 2^16 end below this. Where
# the scale is not recorded either: sixty-four skips; a start at 2^32 would be at 2^-32 by then.
STARTUP_BLIND_SCALE = 1.0
STARTUP_UNRECORDED_SKIPS = 64
# Five steps in a row with a non-finite forward pass: no scale can help, so it is not a search.
STARTUP_FORWARD_STEPS = 5
# At torch's interval growth costs one skip in 2,001 steps; at one in four it is too short.
SAWTOOTH_WASTE = 1 / 4
# A scale that falls as far as in a collapse, but over thousands of steps. Each growth interval
# gives an octave back, so such a fall within twenty of them takes many more skips than growth
# causes. In a long record: within a quarter of it. A slower fall is a normal change of gradients
# during training.
SINK_INTERVALS, SINK_SHARE = 20, 0.25
# A record that ends during a fall: half the depth of a collapse, without an accepted step between.
ENDING_OCTAVES = policy.COLLAPSE_OCTAVES / 2


@rule(
    "AMP101",
    "startup-search",
    Severity.INFO,
    Page(
        meaning="The scaler starts with a scale that is too high on purpose, and halves it until "
        "the gradients fit. The steps skipped before the first accepted one are this search.",
        looks="Skips at the very start; the scale halves at each; the loss is finite. Later a "
        "skip can still belong to the search: an overflow at a lower scale than any before, "
        "in a run twice as old as at the last one.",
        not_to_confuse="A forward pass that is not finite: no scale helps there, and "
        f"{STARTUP_FORWARD_STEPS} such steps in a row are AMP103. A loss summed over many "
        f"items may need {STARTUP_WARNING_SKIPS} halvings in a healthy run.",
        do="Nothing. A lower init_scale saves the skipped steps.",
        example="scale 2^16, 2^15, 2^14: three skips, then step 3 is accepted.",
    ),
)
def startup_search(case: Case) -> Iterator[Seen]:
    """Overflows before the first accepted step, as long as they can be a search."""
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
    """Whether a search that has not ended can no longer be one."""
    final, skips = case.final_scale, case.scale.search.skips
    if not skips:
        return False  # the loop itself left the steps out
    if case.numbers.bad_forwards_running >= STARTUP_FORWARD_STEPS:
        return True
    if final is None:
        return skips >= STARTUP_UNRECORDED_SKIPS
    if case.numbers.sees_forward or skips < policy.STARTUP_BLIND_SKIPS:
        # The record may be the end of a log: the search began long before it.
        few = 0 if case.numbers.sees_forward else policy.COLLAPSE_SKIPS
        return skips >= few and final < STARTUP_ERROR_SCALE
    return final < STARTUP_BLIND_SCALE


@rule(
    "AMP102",
    "growth-sawtooth",
    Severity.INFO,
    Page(
        meaning="After growth_interval accepted steps the scaler doubles the scale to see "
        "whether the gradients still fit. If they do not, one step is skipped and the scale "
        "is halved again.",
        looks="About one overflow in each growth interval, always just after a doubling, always "
        "back to the same scale.",
        not_to_confuse="AMP105, where skips come more often than the scale grows.",
        do="Nothing. A longer growth_interval makes it rarer. If it costs more than "
        f"{100 * SAWTOOTH_WASTE:.0f} % of the steps, this is a warning.",
        example="growth_interval 2000: skips at steps 2001, 4003, 6005, each at 2^17.",
    ),
    Ties(excludes_rate=always, cures=("growth_interval",)),
)
def growth_sawtooth(case: Case) -> Iterator[Seen]:
    """Isolated overflows just after the scale grew."""
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
        cause=f"The scale doubled, to {scale_text(teeth.highest_scale)} at most; the gradients "
        "overflowed there, and it was halved again.",
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
        meaning="The loss scale fell far below the level at which the run had worked and did "
        "not recover: step after step overflows, so hardly any update is made.",
        looks=f"At least {policy.COLLAPSE_SKIPS} skips close together take the scale "
        f"{policy.COLLAPSE_OCTAVES} octaves or more below its established level: the highest scale "
        f"at which {policy.ESTABLISHED_STEPS} steps in a row were accepted. Or slowly: one octave "
        f"more (up to four, if the level varied before) within {SINK_INTERVALS} growth intervals "
        f"or {100 * SINK_SHARE:.0f} % of the record; a warning once the scale holds. Or no step "
        "was ever accepted and no lower scale can help: the forward pass is not finite in "
        f"{STARTUP_FORWARD_STEPS} steps in a row, or the search has passed every scale that a "
        "training needs. A warning if the record ends in the middle of a fall.",
        not_to_confuse="A start-up search (AMP101), which ends; a sawtooth (AMP102), one "
        "overflow at a time; a spike that recovers, after which the scale grows back: then "
        "this finding is information.",
        do="Fix the finding that caused it. If there is none, restart from a checkpoint saved "
        "before the fall, and check what changed there (learning rate, data, a resume).",
        example="2^16 for 300 steps, then 41 skips in 60 steps: 2^-25 at the end.",
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
        cures=("float32", "bfloat16", "autocast-off"),
    ),
)
def scale_collapse(case: Case) -> Iterator[Seen]:
    """The scale falls far below its established level and does not recover."""
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
    seen, watched = case.numbers.sees_forward, case.observed.loop
    blind = "" if seen else " Whether the forward pass was finite is not recorded."
    accepted = no_scale_helps(case) if watched else "The record shows no accepted step"
    return Seen(
        first_step=scale.first_step,
        last_step=scale.last_step,
        summary=f"{accepted}: {count_text(scale.search.skips, 'skip')} took the scale from "
        f"{scale_text(scale.first_scale)} to {scale_text(final)}.",
        cause="The gradients are not finite at any scale." + blind + untold(case),
        action="A lower scale or learning rate cannot help before the first update. Find the "
        "first layer or input that is not finite."
        if case.observed.loop
        else "Stop: nothing is learnt. Attach ampwatch to find the layer, the input or the rate "
        "that causes it.",
        evidence=(Evidence("scale", scale.last_step, final, scale.first_scale, "at first"),),
    )


def no_scale_helps(case: Case) -> str:
    """The first words on a run of which no step was ever accepted, where no search ends that."""
    several = case.rate.setup.several_optimizers  # others may have stepped
    what = "in every step an optimizer is" if several else "every step is"
    first = case.scale.first_step or 0
    return f"{what[0].upper()}{what[1:]} skipped since step {first:,}, and no loss scale can help"


def untold(case: Case) -> str:
    """The caveat where the record holds nothing that could name the cause."""
    if not (case.observed.loss or case.observed.rate):
        return " The cause cannot be determined without the loss and the learning rate."
    return ""


def _fall(case: Case, fall: Fall, *, healed: bool) -> Seen:
    scale, last, final = case.scale, case.scale.last_step, case.final_scale
    skips = scale.skips - fall.skips_before
    ending = "and did not recover"
    now = "Stop: nothing is learnt." if len(scale.recent_skips) else _ACCEPTED_AGAIN
    action = f"{now} Fix the cause of the fall and restart from a checkpoint before step "
    action += f"{fall.first_step}."
    if healed:
        stays = final is not None and final <= fall.level * 2.0**-policy.COLLAPSE_OCTAVES
        ending = "and the loss kept falling at that scale" if stays else "and recovered"
        last, final, skips = fall.end_step, fall.end_scale, fall.skips
        action = "Nothing to do unless it returns: the run recovered by itself."
    return Seen(
        severity=Severity.INFO if healed else None,
        first_step=fall.first_step,
        last_step=last,
        summary=f"The loss scale fell from {scale_text(fall.level)} to {scale_text(fall.lowest)} "
        f"{ending}.",
        cause=f"Since then {count_text(skips, 'step was', 'steps were')} "
        "skipped: the gradients overflowed again at every lower scale." + untold(case),
        action=action,
        evidence=(
            Evidence("scale", last, final, fall.level, "established before"),
            Evidence("skipped", last, float(skips)),
        ),
    )


_ACCEPTED_AGAIN = "Steps are accepted again, but at a scale at which small gradients are lost."


def sink(case: Case) -> Sink | None:
    """A scale that fell slowly, as far as in a collapse, and has not recovered."""
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
    ending = "and has stayed there since" if holds else "and is still falling"
    return Seen(
        severity=Severity.WARNING if holds else Severity.ERROR,
        first_step=sunk.first_step,
        last_step=scale.last_step,
        summary=f"The loss scale sank from {scale_text(sunk.level)} to {scale_text(final)}, "
        f"{ending}.",
        cause=f"Since then {count_text(sunk.skips, 'step was', 'steps were')} "
        "skipped, more than growth makes up for: the gradients have grown by as much."
        + untold(case),
        action="Find what grew: the gradient norm, a layer's activations, the weights of the "
        f"loss's terms. Fix it and restart from a checkpoint before step {sunk.first_step}.",
        evidence=(
            Evidence("scale", scale.last_step, final, sunk.level, "established before"),
            Evidence("skipped", scale.last_step, float(sunk.skips)),
        ),
    )


def _falling(case: Case) -> Episode | None:
    """The consecutive skips with which a finished record ends.

    While a run goes on, they may be a spike that recovers.
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
        cause="A spike that recovers and a collapse look alike for so few steps, "
        "and nothing after them is recorded." + untold(case),
        action="If the run was stopped here, restart from an earlier checkpoint; if it goes on, "
        "see whether steps are accepted again.",
        evidence=(Evidence("scale", last, ending.scale_after, ending.streak_scale, "before"),),
    )


@rule(
    "AMP108",
    "scale-reset",
    Severity.WARNING,
    Page(
        meaning="During the run the loss scale jumped back to its initial value. The scaler's "
        "state was lost: usually by a resume without scaler.load_state_dict(), or by a new "
        "GradScaler.",
        looks="The scale is the initial one although neither growth nor a skip led there; then "
        "come log2(initial / old) skips. If the record does not contain the initial scale: a jump "
        "that growth cannot make, back to where the record began, followed at once by an overflow.",
        not_to_confuse="scaler.update(new_scale), which is intended and is recorded; unless it "
        "goes far back to the initial value and the very next step overflows.",
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
