"""AMP206, AMP303, AMP304, AMP306 and AMP307: what the course of loss and gradients tells."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ampwatch.diagnosis import policy
from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.findings import Evidence, Severity
from ampwatch.diagnosis.registry import NOT_ITS_GRADIENTS, RATE, Page, Seen, Ties, rule
from ampwatch.diagnosis.rises import OUT_OF_BAND, SHORT, TELLING
from ampwatch.diagnosis.rules import spikes
from ampwatch.diagnosis.rules.harmful_restart import harmful_restart
from ampwatch.diagnosis.rules.norm_drift import drift_of
from ampwatch.diagnosis.signals import Event
from ampwatch.diagnosis.words import count_text
from ampwatch.rows import EventKind

_NAMES = {"input_amax": "largest input", "loss": "loss"}


@rule(
    "AMP206",
    "bad-batch",
    Severity.WARNING,
    Page(
        meaning="Now and then a batch overflows, or its loss leaps, because of what is in it: the "
        "steps before were ordinary.",
        looks="An isolated overflow or leap of the loss, with the input's maximum "
        f"{policy.BATCH_INPUT:.0f} times or the loss {policy.BATCH_LOSS:.0f} times its recent "
        "median, after an ordinary update. Or steps whose loss leaps "
        f"{TELLING:.0f} deviations and more above its recent band and is back at the next one, "
        f"where they stand apart from the noise: a warning from {spikes.LEAPS} on, from "
        f"{spikes.GROWN_LEAPS} where gradients or updates leapt with them.",
        not_to_confuse="AMP102, an overflow just after the scale grew; AMP301, where updates grow "
        "first; AMP303, which is about how the run got over it. Several in "
        f"{policy.BATCH_APART} steps are AMP105 or AMP203.",
        do="Look at that batch: outliers, a corrupt file, a missing normalisation. Clip or filter "
        "the input.",
        example="one image in float values of 0 to 65535 among images of 0 to 1.",
    ),
)
def bad_batch(case: Case) -> Iterator[Seen]:
    """Isolated batches that stand out."""
    times, first = case.batches.times, case.batches.first
    if case.judgement.is_the_rate:
        return
    leaps = spikes.leapt(case)
    if leaps is not None and (first is None or leaps.severity is Severity.WARNING):
        yield leaps
        return
    if first is None:
        return
    name = _NAMES[first.signal]
    # One leap of the loss may have other reasons; an outlying input is the data's own fault.
    lonely = first.signal == "loss" and times.count == 1 and not case.stands(times)
    over, crowded = lonely or not case.batches.firm, case.batches.are_crowded
    ending = ", several close together." if crowded else ", and the run got over it."
    yield Seen(
        severity=Severity.INFO if over or crowded else Severity.WARNING,
        first_step=times.first_step,
        last_step=times.last_step,
        summary=f"{count_text(times.count, 'batch', 'batches')} stood out from those before"
        + (ending if over or crowded else "."),
        cause=f"At step {first.step} the {name} was {first.value:,.4g}, "
        f"{first.value / first.median:,.0f} times its recent median, after an ordinary update.",
        action=f"Look at the batch of step {first.step}; clip or filter such inputs.",
        evidence=(Evidence(first.signal, first.step, first.value, first.median),),
    )


@rule(
    "AMP303",
    "recoverable-spike",
    Severity.INFO,
    Page(
        meaning="The loss rose out of its recent band and came back by itself; or several steps in "
        "a row overflowed, the loss scale fell a few octaves, and the run got over it. This is "
        "about the recovery; what set it off may have one of its own.",
        looks="With a scaler or without: a rise of the loss, for three steps and more, "
        f"{TELLING:.0f} deviations above what it had been ({OUT_OF_BAND:.0f}, for more than "
        f"{SHORT} entries, where gradients or updates left their band too), that stands apart from "
        "the noise and comes back. A warning where they repeat: "
        f"{spikes.LATE_SPIKES} in the last quarter of the record, or more than "
        f"{100 * spikes.LOST_SHARE:.0f} % of the steps lost to {spikes.LOST_SPIKES} of them (to "
        f"{spikes.GROWN_SPIKES} where gradients or updates left their band as well; to one of "
        f"those if it cost {spikes.LONG_STEPS} steps). Or "
        f"{policy.SPIKE_SKIPS} skips in a row and more, after which steps are accepted again; "
        f"falls of about {policy.COLLAPSE_OCTAVES} octaves have healed like this in large runs. A "
        "rise right after the rate was raised is no spike.",
        not_to_confuse="AMP103, which does not come back; AMP206, the batch that caused it; "
        "AMP105, skips that go on coming.",
        do="Nothing, of one. If they return, restart before them and skip those batches, or clip "
        "the updates layer by layer; only then lower the rate a little.",
        example="a 13B model whose scale went from 65536 to 4096 and was back within 500 steps, "
        "with nothing changed.",
    ),
    Ties(explained_by=("AMP206",)),
)
def recoverable_spike(case: Case) -> Iterator[Seen]:
    """Spikes of the loss, or bursts of skips, that the run got over."""
    if case.standing_fall is not None or case.judgement.onset is not None:
        return
    scale, bursts = case.scale, case.scale.spikes
    rises = spikes.spiked(case)
    since = scale.steps - 1 - bursts.last_position
    burst = bursts.episodes and since >= scale.scaler.established_steps
    burst = burst and not case.loop_tells_skips
    if rises is not None and (not burst or rises.severity is Severity.WARNING):
        yield rises
    elif burst:
        yield _burst(case)


def _burst(case: Case) -> Seen:
    """Bursts of skips, after which steps are accepted again."""
    scale, bursts = case.scale, case.scale.spikes
    octaves = bursts.deepest_octaves
    depth = f", {octaves:.0f} octaves down at most," if octaves else ""
    return Seen(
        severity=Severity.INFO,
        first_step=bursts.first_step,
        last_step=bursts.last_step,
        summary=f"{count_text(bursts.episodes, 'spike')} of {count_text(bursts.skips, 'skip')}"
        f"{' in all' if bursts.episodes > 1 else ''}, and the run got over it by itself.",
        cause=f"The loss scale fell{depth} and steps are accepted again since step "
        f"{(bursts.last_step or 0) + 1}; the loss shows no lasting harm.",
        action="Nothing to do. If it returns, restart before it and skip those batches.",
        evidence=(
            Evidence("skipped", bursts.last_step, float(bursts.skips)),
            Evidence("scale", scale.last_step, case.final_scale, scale.level),
        ),
    )


@rule(
    "AMP304",
    "gradient-norm-drift",
    Severity.WARNING,
    Page(
        meaning="The gradient norm climbs and climbs, long before anything overflows: an early "
        "sign that the run is on its way out of its stable range.",
        looks=f"{policy.DRIFT_FACTOR:.0f} times higher over the last "
        f"{100 * policy.DRIFT_PART:.0f} % of the record, each of {policy.DRIFT_WINDOWS} parts of "
        f"that above the one before; in the first {policy.DRIFT_EARLY_STEPS:,} steps only if the "
        "loss makes no progress. Or so over the last two fifths, the last fifth or the last tenth, "
        "and at its end twice above all that stood just before.",
        not_to_confuse="A jump at one moment (AMP306); a norm that settles at a new level.",
        do="Look at the largest layers' gradients; lower the rate or clip before it overflows.",
        example="a norm of 0.5 at step 2,000, 0.9 at 4,000, 2.3 at 8,000.",
    ),
)
def gradient_norm_drift(case: Case) -> Iterator[Seen]:
    """A gradient norm that only ever rises."""
    drift = drift_of(case)
    if drift is None:
        return
    began, first, last = drift.step, drift.first, drift.last
    yield Seen(
        severity=Severity.WARNING,
        first_step=began,
        last_step=case.scale.last_step,
        summary=f"The gradient norm has drifted up {last / first:.0f} times.",
        cause=f"From {first:.3g} at step {began} to {last:.3g}, rising in every part of the "
        "record since.",
        action="Clip the gradients, or lower the rate, before they overflow; save a checkpoint.",
        evidence=(Evidence("grad_norm", case.scale.last_step, last, first),),
    )


@rule(
    "AMP306",
    "jump-at-event",
    Severity.WARNING,
    Page(
        meaning="The trouble began right after something was changed: a state was loaded, an "
        "optimizer or the scaler was replaced, the rate was at least doubled, the batch size "
        "changed.",
        looks=f"The onset within {policy.JUMP_STEPS} steps after such an event, which the record "
        "holds. Or a restart after which the loss, and with it gradients or updates, leap out of "
        "their bands, also where the run gets over it; or one that at least doubled the rate, and "
        "the loss climbed after it and has not come back at the end.",
        not_to_confuse="AMP301, where nothing but the rate itself is to blame. A rate that is "
        "lowered is never a cause, nor is the next stair of a warm-up that climbs by epochs.",
        do="Undo that change, or make it gradual: load the optimizer's and the scaler's state "
        "with the model's, warm up after a change of rate or batch size.",
        example="a resume without the optimizer's state at step 5,000: the loss leaps at 5,003.",
    ),
)
def jump_at_event(case: Case) -> Iterator[Seen]:
    """Trouble that began with a change."""
    onset, rise = case.judgement.onset, spikes.standing_rise(case)
    if (lost := harmful_restart(case)) is not None:
        yield lost
        return
    if onset is not None:
        began, sign = onset.step, onset.sign.value
    elif rise is not None:
        began, sign = rise.first_step, "the loss stood above its recent band"
    else:
        return
    leaps = case.leaps
    changes = [(e.step, _said(e)) for e in case.ledger.changes if not _is_climb(case, e)]
    changes += [  # of records without events
        (leap.step, f"the rate went from {leap.before:.3g} to {leap.after:.3g}")
        for leap in leaps.settled
    ]
    near = [c for c in changes if 0 <= began - c[0] <= policy.JUMP_STEPS]
    start = case.scale.first_step or 0
    near = [change for change in near if change[0] > start]
    if not near:
        return
    step, what = max(near)
    yield Seen(
        severity=Severity.WARNING,
        first_step=step,
        last_step=began,
        summary=f"The trouble began {count_text(began - step, 'step')} after {what}.",
        cause=f"From step {began} {sign}; at step {step} {what}.",
        action="Undo that change, or make it gradual.",
        evidence=(Evidence("step", began, float(began), float(step)),),
    )


def _is_climb(case: Case, event: Event) -> bool:
    """Whether this is the next stair of a warm-up, and no leap of the rate."""
    return event.kind == EventKind.LR_CHANGED.value and case.leaps.is_climb(event.step)


def _said(event: Event) -> str:
    before, after = (event.detail.get(end) for end in ("from", "to"))
    known = isinstance(before, (int, float)) and isinstance(after, (int, float))
    way = f"went from {before:,.6g} to {after:,.6g}" if known else "changed"
    group = event.detail.get("group")
    return {
        "state-loaded": "a state was loaded",
        "optimizer-replaced": "the optimizer was replaced",
        "scaler-replaced": "the scaler was replaced",
        "batch-size-changed": f"the batch size {way}",
        "lr-changed": f"the rate of group {group} {way}" if group else f"the rate {way}",
    }[event.kind]


@rule(
    "AMP307",
    "diverging-without-overflow",
    Severity.ERROR,
    Page(
        meaning="The loss runs away and the loss scale does not notice, or there is none: nothing "
        "overflows, every step is taken, and each makes it worse.",
        looks=f"A loss at least {policy.DIVERGED_LOSS} times its first value and no better than "
        "before, updates or weights out of their band before it, and no skips. Or a rise of the "
        f"loss, {TELLING:.0f} deviations above its recent band, or a climb out of its best one, "
        "that has not come back by the end and is not on its way: an error where gradients or "
        "updates left their band with it, a warning where no gradient norms are recorded, nothing "
        "where they stayed.",
        not_to_confuse="A loss that rises in health (one half of an adversarial pair): its "
        "updates stay in their band. AMP103, where the scale falls.",
        do="As for AMP301, which names the cause.",
        example="a loss of 2.3 that stands at 40 after 200 steps, at a steady scale of 2^16.",
    ),
    Ties(explained_by=(*NOT_ITS_GRADIENTS, *RATE, "AMP306")),
)
def diverging_without_overflow(case: Case) -> Iterator[Seen]:
    """A loss that is driven away while the scale is steady."""
    seen = _driven_away(case) or spikes.not_back(case) or spikes.never_back(case)
    if seen is not None:
        yield seen


def _driven_away(case: Case) -> Seen | None:
    """Far above where it began, and the rate is why."""
    judged = case.judgement
    onset = judged.onset
    if onset is None or not judged.is_the_rate or onset.collapsed or onset.descending:
        return None
    head, tail = (rows.of("loss") for rows in (case.rate.head, case.rate.tail))
    known, late = head[np.isfinite(head)], tail[np.isfinite(tail)]
    if not len(known) or known[0] <= 0 or case.standing_fall is not None:
        return None
    first, last = float(known[0]), float(np.median(late[-policy.ESTABLISHED_STEPS :]))
    if last < policy.DIVERGED_LOSS * first:
        return None
    return Seen(
        severity=Severity.ERROR,
        first_step=onset.step,
        last_step=case.scale.last_step,
        summary=f"The loss diverges without an overflow: {first:.4g} at first, {last:.4g} now.",
        cause=f"From step {onset.step} {onset.sign.value}, and the updates were out of their "
        "band before.",
        action="See the advice on the learning rate.",
        evidence=(Evidence("loss", case.scale.last_step, last, first),),
    )
