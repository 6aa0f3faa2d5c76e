"""AMP101 to AMP108: what the loss scale itself tells."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ampwatch.diagnosis import policy
from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.findings import Evidence, Severity
from ampwatch.diagnosis.registry import Page, Seen, rule
from ampwatch.diagnosis.words import count_text, scale_text, share_text


@rule(
    "AMP101",
    "startup-search",
    Severity.INFO,
    Page(
        meaning="The scaler starts too high on purpose and halves the loss scale until the "
        "gradients fit. The steps skipped before the first accepted one are that search.",
        looks="Skips at the very start only, the scale halving at each, a finite loss.",
        not_to_confuse="A forward pass that is not finite: no scale helps there, and five such "
        "steps running are AMP103. A loss summed over many items may need 20 halvings and be fine.",
        do="Nothing. A lower init_scale saves the skipped steps.",
        example="scale 2^16, 2^15, 2^14: three skips, then step 3 is accepted.",
    ),
)
def startup_search(case: Case) -> Iterator[Seen]:
    """Overflows before the first accepted step, while they can still be a search."""
    skips = case.startup_skips
    if not skips or (case.first_accepted is None and startup_has_failed(case)):
        return
    open_end = case.first_accepted is None
    signals = case.signals
    reached = signals.scale_after[skips - 1]
    slow = open_end and skips >= policy.STARTUP_WARNING_SKIPS
    yield Seen(
        severity=Severity.WARNING if slow else Severity.INFO,
        first_step=int(signals.step[0]),
        last_step=int(signals.step[skips - 1]),
        summary=f"{count_text(skips, 'step')} skipped while the scale searched its level"
        + (", and none was accepted yet." if open_end else "."),
        cause=f"The scale began at {scale_text(_at(signals.scale, 0))}, above what the gradients "
        f"allow, and stood at {scale_text(float(reached))} after the last of them.",
        action="Watch the next steps: the search should have ended by now."
        if slow
        else "Nothing to do: this is how a loss scale finds its level.",
        evidence=(Evidence("skipped", int(signals.step[skips - 1]), float(skips)),),
    )


def startup_has_failed(case: Case) -> bool:
    """Whether the search that nothing ended is a search no longer."""
    signals, skips = case.signals, case.startup_skips
    run_of_bad = int((np.cumprod(case.forward_finite[::-1] == 0)).sum())
    if run_of_bad >= policy.STARTUP_FORWARD_STEPS:
        return True
    scale = signals.final_scale
    if scale is None:
        return False
    if case.sees_forward:
        return scale < policy.STARTUP_ERROR_SCALE
    return skips >= policy.STARTUP_BLIND_SKIPS and scale < policy.STARTUP_BLIND_SCALE


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
        do="Nothing. A longer growth_interval makes it rarer.",
        example="growth_interval 2000: skips at steps 2001, 4003, 6005, each at 2^17.",
    ),
)
def growth_sawtooth(case: Case) -> Iterator[Seen]:
    """Isolated overflows at a scale the run has just grown into."""
    teeth = case.is_sawtooth & ~case.is_collapse & ~_after_collapse(case)
    if not teeth.any():
        return
    signals, first = case.signals, case.episodes.first[teeth]
    ceiling = float(np.max(signals.scale[first]))
    yield Seen(
        severity=Severity.INFO,
        first_step=int(signals.step[first[0]]),
        last_step=int(signals.step[first[-1]]),
        summary=f"{count_text(len(first), 'overflow')} just after the scale grew, as expected.",
        cause=f"The scale doubled to {scale_text(ceiling)} at most, found no room, and came back.",
        action="Nothing to do: it is the price of looking for the highest scale.",
        evidence=(
            Evidence("scale", int(signals.step[first[-1]]), float(signals.scale[first[-1]])),
        ),
    )


@rule(
    "AMP103",
    "scale-collapse",
    Severity.ERROR,
    Page(
        meaning="The loss scale fell far below the level at which the run had worked and did not "
        "come back: step after step overflows, so hardly any update is made.",
        looks="Skips close together carry the scale 8 octaves or more below its established "
        "level. The established level is the highest scale at which 20 steps in a row were "
        "accepted.",
        not_to_confuse="A start-up search (AMP101), which ends; a sawtooth (AMP102), one overflow "
        "at a time; a spike that heals, whose scale grows back: then this falls to info.",
        do="Look at the finding that caused it. Without one: restart from a checkpoint saved "
        "before the fall, and look at what changed there (learning rate, data, a resume).",
        example="2^16 held for 300 steps, then 41 skips in 60 steps: 2^-25 at the end.",
    ),
)
def scale_collapse(case: Case) -> Iterator[Seen]:
    """The scale falls far below its established level and does not come back."""
    if case.first_accepted is None:
        if len(case.signals) and startup_has_failed(case):
            yield _failed_search(case)
        return
    falls = np.flatnonzero(case.is_collapse).tolist()
    if falls:
        yield _fall(case, min(falls, key=lambda i: (_recovered(case, i), i)))


def _failed_search(case: Case) -> Seen:
    signals, skips = case.signals, case.startup_skips
    first, final = _at(signals.scale, 0), signals.final_scale
    blind = "" if case.sees_forward else " Whether the forward pass was finite is not recorded."
    return Seen(
        severity=Severity.ERROR,
        first_step=int(signals.step[0]),
        last_step=int(signals.step[-1]),
        summary=f"No step was ever accepted: {count_text(skips, 'skip')} took the scale from "
        f"{scale_text(first)} to {scale_text(final)}.",
        cause="The gradients are not finite at any scale." + blind,
        action="A lower scale or learning rate cannot help before the first update. Find the "
        "first layer or input that is not finite.",
        evidence=(Evidence("scale", int(signals.step[-1]), final, first),),
    )


def _recovered(case: Case, episode: int) -> bool:
    """Whether the scale has come back to within the octaves that count as a fall."""
    level = case.established_before(int(case.episodes.first[episode]))
    final = case.signals.final_scale
    return level is None or final is None or final > level * 2.0**-policy.COLLAPSE_OCTAVES


def _fall(case: Case, episode: int) -> Seen:
    signals, episodes = case.signals, case.episodes
    start, end = int(episodes.first[episode]), int(episodes.last[episode])
    level = case.established_before(start)
    healed = _recovered(case, episode)
    low = float(np.nanmin(signals.scale_after[start:]))
    last = end if healed else len(signals) - 1
    skipped = int(signals.skipped[start : last + 1].sum())
    steps = last + 1 - start
    ending = "and it came back" if healed else "and it does not come back"
    return Seen(
        severity=Severity.INFO if healed else Severity.ERROR,
        first_step=int(signals.step[start]),
        last_step=int(signals.step[last]),
        summary=f"The loss scale fell from {scale_text(level)} to {scale_text(low)} {ending}.",
        cause=f"From there {skipped:,} of {count_text(steps, 'step')} were skipped: the gradients "
        "overflowed again at every lower scale.",
        action="Nothing to do unless it returns: the run recovered by itself."
        if healed
        else f"Stop: nothing is being learnt. Restart from a checkpoint before step "
        f"{signals.step[start]}, with what caused the fall put right.",
        evidence=(
            Evidence("scale", int(signals.step[last]), float(signals.scale_after[last]), level),
            Evidence("skipped", int(signals.step[last]), float(skipped), float(steps)),
        ),
    )


@rule(
    "AMP104",
    "scale-at-floor",
    Severity.ERROR,
    Page(
        meaning="The loss scale is zero, at the framework's minimum, or so small that no step can "
        "succeed. At 2^-128 and below its inverse is inf in float32: torch then finds no "
        "overflow, takes the step, and destroys the weights without a word.",
        looks="A skip at the minimum, or any step at a scale below 2^-126.",
        not_to_confuse="AMP109: a loss summed over many items lives well below 1 in good health.",
        do="Stop the run. Restart from a checkpoint with a healthy scale; a minimum scale or a "
        "lower floor cures nothing.",
        example="scale 1.2e-38 and still skipping.",
    ),
)
def scale_at_floor(case: Case) -> Iterator[Seen]:
    """A step at a scale that leaves no room."""
    signals = case.signals
    tiny = signals.scale < policy.FLOOR_SCALE
    if signals.floor_scale is not None:
        tiny = tiny | (signals.skipped & (signals.scale <= signals.floor_scale))
    at = np.flatnonzero(tiny)
    if not len(at):
        return
    scale = float(signals.scale[at[0]])
    final = signals.final_scale
    healed = final is not None and final > max(policy.FLOOR_SCALE, signals.floor_scale or 0.0)
    yield Seen(
        severity=Severity.INFO if healed else Severity.ERROR,
        first_step=int(signals.step[at[0]]),
        last_step=int(signals.step[at[-1]]),
        summary=f"The loss scale stood at its floor, {scale_text(scale)}"
        + (", and rose again." if healed else ": no step can succeed."),
        cause="It fell as far as it can; at this size its inverse is no longer a finite number."
        if scale < policy.FLOOR_SCALE
        else "It fell to the lowest scale that the framework allows, and steps still overflow.",
        action="Nothing to do unless it returns."
        if healed
        else "Stop, and restart from a checkpoint with a healthy scale.",
        evidence=(Evidence("scale", int(signals.step[at[0]]), scale, policy.FLOOR_SCALE),),
    )


@rule(
    "AMP105",
    "overflow-storm",
    Severity.WARNING,
    Page(
        meaning="Steps are skipped more often than a growing scale explains. Each skip is a "
        "forward and a backward pass thrown away.",
        looks="More skips than one each growth interval, most of them isolated. An error when "
        "over half of the last 100 steps were skipped.",
        not_to_confuse="AMP102, one skip after each doubling; AMP103, one long fall.",
        do="See which layer overflows (AMP202, AMP203) and whether the batches differ.",
        example="growth_interval 2000, 900 skips in 10,000 steps.",
    ),
)
def overflow_storm(case: Case) -> Iterator[Seen]:
    """More skips than growth explains."""
    signals, first = case.signals, case.first_accepted
    loose = ~(case.is_sawtooth | case.is_after_reset | case.is_collapse | _after_collapse(case))
    if first is None or not loose.any():
        return
    skips = int(case.episodes.skips[loose].sum())
    allowed = policy.STORM_FREE_SKIPS + (len(signals) - first) / signals.growth_interval
    if skips <= allowed:
        return
    recent = signals.skipped[first:][-policy.STORM_WINDOW_STEPS :]
    most = len(recent) == policy.STORM_WINDOW_STEPS and (
        float(recent.mean()) > policy.STORM_ERROR_SHARE
    )
    calm = not recent.any() and len(recent) == policy.STORM_WINDOW_STEPS
    starts, ends = case.episodes.first[loose], case.episodes.last[loose]
    wasted = share_text(int(signals.skipped.sum()), len(signals))
    severity = Severity.ERROR if most else Severity.INFO if calm else Severity.WARNING
    yield Seen(
        severity=severity,
        first_step=int(signals.step[starts[0]]),
        last_step=int(signals.step[ends[-1]]),
        summary=f"{count_text(skips, 'skip')} that the scale's growth does not explain"
        + (", none in the last 100 steps." if calm else "."),
        cause=f"Growth explains about {math.ceil(allowed)}; in all {wasted} "
        "of the steps were computed and thrown away.",
        action="See which layer overflows first, and whether those batches differ from the rest.",
        evidence=(Evidence("skipped", int(signals.step[ends[-1]]), float(skips), float(allowed)),),
    )


@rule(
    "AMP108",
    "scale-reset",
    Severity.WARNING,
    Page(
        meaning="In mid-run the loss scale jumped to its initial value. The scaler's state was "
        "lost: usually a resume without scaler.load_state_dict(), or a new GradScaler.",
        looks="The scale is the initial one though neither growth nor a skip led there, then a "
        "burst of log2(initial / old) skips.",
        not_to_confuse="scaler.update(new_scale), which is a decision and is recorded as one.",
        do="Save scaler.state_dict() with the checkpoint and load it on resume.",
        example="2^9 before a restart, 2^16 after it, then 7 skips.",
    ),
)
def scale_reset(case: Case) -> Iterator[Seen]:
    """Back to the initial scale without a reason."""
    at, signals = case.resets, case.signals
    if not len(at):
        return
    before = float(signals.scale_after[at[-1] - 1])
    first, last = int(signals.step[at[0]]), int(signals.step[at[-1]])
    times = "once" if len(at) == 1 else f"{len(at)} times"
    yield Seen(
        severity=Severity.WARNING,
        first_step=first,
        last_step=last,
        summary=f"The loss scale was reset to its initial {scale_text(signals.initial_scale)} "
        f"in mid-run, {times}.",
        cause=f"It stood at {scale_text(before)} and nothing in the record leads from there: the "
        "scaler's state was lost.",
        action="Save scaler.state_dict() with each checkpoint and load it on resume.",
        evidence=(Evidence("scale", last, float(signals.scale[at[-1]]), before),),
    )


def _after_collapse(case: Case) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which episodes come after the first fall that did not heal: they are part of it."""
    falls = [i for i in np.flatnonzero(case.is_collapse) if not _recovered(case, int(i))]
    mask = np.zeros(len(case.episodes), np.bool_)
    if falls:
        mask[falls[0] :] = True
    return mask


def _at(values: np.ndarray[tuple[int], np.dtype[np.float64]], position: int) -> float | None:
    return float(values[position]) if len(values) > position else None
