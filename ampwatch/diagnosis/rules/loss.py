"""AMP206, AMP303, AMP307: bad batches, spikes that recover, a loss that does not come back."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ampwatch.diagnosis import thresholds
from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.column_arrays import Floats, known_of, median
from ampwatch.diagnosis.findings import Evidence, Severity
from ampwatch.diagnosis.learning_rate import RateRows, constants
from ampwatch.diagnosis.learning_rate.judgement import Cause
from ampwatch.diagnosis.learning_rate.noise import trailing_medians
from ampwatch.diagnosis.learning_rate.onset import Onset, OnsetSign, loss_wanders
from ampwatch.diagnosis.learning_rate.trouble import rows_around
from ampwatch.diagnosis.loss_spikes import (
    GREW,
    MIXED_SHARE,
    OUT_OF_BAND,
    ROUNDED,
    TELLING,
    WINDOW,
    LossRise,
    RiseKind,
    SpikeOctave,
    has_left_band,
)
from ampwatch.diagnosis.rule import Seen, rule
from ampwatch.diagnosis.value_text import count_text, share_text
from ampwatch.rows import LR_LEAP

# Jumps of one step: three are more than chance; two are, if the updates jumped with them.
LEAPS, GROWN_LEAPS = 3, 2
# Of a loss that stays high: as many rows at either end; and a level that has doubled, further above
# all before than that was wide.
_END_ROWS, _DOUBLE, _WIDE = 64, 2.0, 1.0
# Neither drift nor a change of the data lifts a loss above its past by so many times the width of
# that past.
_FAR = 4
# More rises than one in a hundred steps are normal for such data; in a short record, more than a
# few.
_FEW = 8
# Repeated spikes: three in the last quarter of a record, or three that cost 0.8 % of all steps;
# two, if gradients or updates rose with them; or one that cost as many steps as a scale takes to be
# established. A short spike in a short record does not count, whatever its share.
LATE_SHARE, LATE_SPIKES = 1 / 4, 3
# Spikes cost nothing if each was over within a twentieth of the steps before it, they do not grow
# from one to the next, and the loss has since stood so many deviations below where it was.
SOON, LEARNT_ON = 1 / 20, 1.0
LOST_SHARE, LOST_SPIKES, GROWN_SPIKES, LONG_STEPS = 0.008, 3, 2, thresholds.ESTABLISHED_STEPS
# Rises that take a fifteenth of all steps each come from the order of the data; so do rises of a
# tenth together, if gradients and updates stayed as they were, or if neither is recorded and there
# are this many.
_EACH_SHARE, _DATA_SHARE, _DATA_SPIKES = 1 / 15, 1 / 10, 16

_LEFT_OUT = (
    "Left out by the guard, so no weight moved: look where such a batch comes from (outliers, a "
    "corrupt file, a missing normalisation)."
)


@rule("AMP206", "bad-batch", Severity.WARNING)
def bad_batch(case: Case) -> Iterator[Seen]:
    """Isolated batches that stand out by their input or by a jump of the loss."""
    if case.judgement.is_the_rate:
        return
    inputs, leaps = case.batches, _leaps(case)
    first = inputs.first
    if leaps is not None and (first is None or leaps.severity is Severity.WARNING):
        yield leaps
    elif first is not None:
        harmless = inputs.are_crowded or inputs.are_left_out
        what = ", several close together" if inputs.are_crowded else ""
        yield Seen(
            severity=Severity.INFO if harmless else Severity.WARNING,
            at=inputs.times,
            summary=f"{_batches(inputs.times.count)} stood out from those before{what}.",
            action=_LEFT_OUT
            if inputs.are_left_out
            else f"Look in the batch of step {first.step} for outliers, a corrupt file or a "
            "missing normalisation. Limit such inputs, or leave such samples out.",
            cause=f"At step {first.step} the largest input was {first.value:,.4g}, "
            f"{first.times:,.0f} times its recent median, after an ordinary update.",
            evidence=Evidence("input_amax", first.step, first.value, first.median, "median before"),
        )


def _leaps(case: Case) -> Seen | None:
    """Single steps whose loss jumped and was back at the next one: bad batches."""
    leaps = case.rises.of(RiseKind.LEAP).apart
    grown, first = 2 * leaps.grown > leaps.count, leaps.first
    if first is None or (leaps.count > _most(case) and not grown):
        return None
    # A batch that leaves gradients and updates as they were is hard, but does no harm.
    repeated = leaps.count >= (GROWN_LEAPS if grown else LEAPS)
    are_left_out = leaps.left_out == leaps.count
    repeated &= 2 * leaps.idle_steps <= leaps.count and not are_left_out
    also = ", and gradients or updates rose with it" if first.grew else ""
    return Seen(
        severity=Severity.WARNING if repeated else Severity.INFO,
        first_step=first.first_step,
        last_step=leaps.last[-1].last_step,
        summary=f"{_batches(leaps.count)} stood out from those before"
        + ("." if repeated or are_left_out else ", and the run recovered."),
        action=_LEFT_OUT if are_left_out else None,
        cause=f"At step {first.first_step} the loss was {first.peak:,.4g}, after "
        f"{first.level:,.4g}: {first.height:,.0f} deviations above its recent band{also}; at "
        "the next step it was back.",
        evidence=Evidence("loss", first.first_step, first.peak, first.level, "before"),
    )


def _batches(count: int) -> str:
    return count_text(count, "batch", "batches")


def _most(case: Case) -> float:
    """How many rises of the loss are normal for data like these."""
    return max(_FEW, MIXED_SHARE * case.scale.steps)


@rule("AMP303", "recoverable-spike", Severity.INFO)
def recoverable_spike(case: Case) -> Iterator[Seen]:
    """Spikes of the loss, or bursts of skips, from which the run recovered."""
    if case.standing_fall is not None or case.judgement.onset is not None:
        return
    scale, bursts = case.scale, case.scale.spikes
    rises = _spikes(case)
    since = scale.steps - 1 - bursts.last_position
    burst = bursts.episodes and since >= scale.scaler.established_steps
    burst = burst and not case.loop_tells_skips
    if rises is not None and (not burst or rises.severity is Severity.WARNING):
        yield rises
    elif burst:
        yield _burst(case)


def _spikes(case: Case) -> Seen | None:
    """Spikes of the loss that came back by themselves."""
    leaps = case.rises.of(RiseKind.LEAP)
    spikes, met = (
        case.rises.of(kind).apart_beside(leaps) for kind in (RiseKind.SPIKE, RiseKind.SKIPPED)
    )
    both = spikes + met
    if both.first is None or max(both.count, leaps.apart.count) > _most(case):
        return None
    last, steps, record = both.last[-1], both.steps, case.scale.steps
    which = "The last time it" if both.count > 1 else "It"
    grown = f"; gradients or updates left their band in {both.grown:,} of {both.count:,}"
    return Seen(
        severity=Severity.WARNING if _is_habit(case, spikes) else Severity.INFO,
        first_step=both.first.first_step,
        last_step=last.last_step,
        summary=f"The loss spiked {count_text(both.count, 'time')} and came back by itself.",
        cause=f"{which} rose from {last.level:.4g}, from step {last.first_step} on, to "
        f"{last.peak:.4g} at most, and was back after {count_text(last.steps, 'step')}; "
        f"{share_text(steps, record)} of the steps ({steps:,}) were spent on such "
        f"recoveries{grown * bool(both.grown)}.",
        evidence=(
            Evidence("loss_peak", last.first_step, last.peak, last.level, "before"),
            Evidence("spikes", last.last_step, float(both.count)),
            Evidence("lost_steps", last.last_step, float(steps), float(record), "steps in all"),
        ),
    )


def _is_habit(case: Case, spikes: SpikeOctave) -> bool:
    record = case.scale.steps
    begins = (case.scale.last_step or 0) - LATE_SHARE * record
    if sum(spike.first_step >= begins for spike in spikes.last) >= LATE_SPIKES:
        return True
    idle = (spikes.idle_steps > 0 or spikes.count > _DATA_SPIKES) and not spikes.grown
    if spikes.steps > record * (_DATA_SHARE if idle else _EACH_SHARE * spikes.count):
        return False
    # If gradients and updates stayed as they were, only the data changed: nothing was lost.
    lost = spikes.steps - spikes.idle_steps
    enough = spikes.count >= LOST_SPIKES or spikes.grown >= GROWN_SPIKES
    # A loss that drifts may stay above its band for long while its gradients stay as they were.
    kept = [spike for spike in (spikes.first, *spikes.last) if spike]
    # One line of a sparse log is one outlying batch, however many steps lie between two lines.
    enough |= lost >= LONG_STEPS and any(spike.out > 1 for spike in kept)
    enough &= any(spike.strength >= TELLING or spike.entries >= LONG_STEPS for spike in kept)
    return enough and lost > LOST_SHARE * record and not _cost_nothing(case, kept)


def _cost_nothing(case: Case, spikes: list[LossRise]) -> bool:
    """Whether each spike was soon over, they do not grow, and the run has learnt on since."""
    first = case.scale.first_step or 0
    now = _median(case.rate.tail.of("loss"), constants.FINAL_STEPS)
    soon = all(spike.steps <= SOON * (spike.first_step - first) for spike in spikes)
    peaks = [spike.peak for spike in spikes[1:]]
    grow = len(peaks) >= LOST_SPIKES and sorted(set(peaks)) == peaks
    return soon and not grow and spikes[-1].band.height(now) <= -LEARNT_ON


def _burst(case: Case) -> Seen:
    """Bursts of skips from which the run recovered, reported like a spike of the loss."""
    scale, bursts = case.scale, case.scale.spikes
    octaves = bursts.deepest_octaves
    depth = f", by {octaves:.0f} octaves at most," if octaves else ""
    return Seen(
        severity=Severity.INFO,
        first_step=bursts.first_step,
        last_step=bursts.last_step,
        summary=f"{count_text(bursts.episodes, 'spike')} of {count_text(bursts.skips, 'skip')}"
        f"{' in all' if bursts.episodes > 1 else ''}, from which the run recovered by itself.",
        cause=f"The loss scale fell{depth} and steps are accepted again since step "
        f"{(bursts.last_step or 0) + 1}; the loss shows no lasting harm.",
        evidence=(
            Evidence("skipped", bursts.last_step, float(bursts.skips)),
            Evidence("scale", scale.last_step, case.final_scale, scale.level, "established"),
        ),
    )


@rule("AMP307", "diverging-without-overflow", Severity.ERROR)
def diverging_without_overflow(case: Case) -> Iterator[Seen]:
    """A loss that diverges or does not come back while the loss scale is steady."""
    if case.standing_fall is None:
        seen = _diverged(case) or _not_back(case) or _never_back(case)
        if seen is not None:
            yield seen


def _diverged(case: Case) -> Seen | None:
    """A loss far above its first value because of the learning rate."""
    judged = case.judgement
    onset = judged.onset
    if onset is None or not judged.is_the_rate or onset.collapsed or onset.descending:
        return None
    head, tail = (rows.of("loss") for rows in (case.rate.head, case.rate.tail))
    known, last = head[np.isfinite(head)], _median(tail, thresholds.ESTABLISHED_STEPS)
    if not len(known) or not last >= thresholds.DIVERGED_LOSS * known[0] > 0:
        return None
    first = float(known[0])
    return Seen(
        first_step=onset.step,
        last_step=case.scale.last_step,
        summary=f"The loss diverges without an overflow: {first:.4g} at first, {last:.4g} now.",
        cause=f"From step {onset.step} {onset.sign.value}, and the updates were out of their "
        "band before.",
        evidence=Evidence("loss", case.scale.last_step, last, first, "at first"),
    )


def rise_that_stands(case: Case) -> LossRise | None:
    """The rise of the loss that has not come back, unless a larger batch or a fall explains it."""
    rise = case.rises.standing
    if rise is None or case.standing_fall is not None:
        return None
    larger = case.rate.setup.larger_batches
    is_summed = any(0 <= rise.first_step - step <= thresholds.JUMP_STEPS for step in larger)
    return None if is_summed else rise


def _not_back(case: Case) -> Seen | None:
    """A loss that rose out of its recent band and has not come back by the end."""
    rise = rise_that_stands(case)
    if rise is None:
        return None
    above = "it has been above every earlier value"
    return _standing(case, rise.first_step, above, rise.level, rise.peak, grew=bool(rise.grew))


def _never_back(case: Case) -> Seen | None:
    """A loss that climbed slowly or from the start and has not come back by the end.

    `rise_that_stands` compares with the losses just before it; the onset, with the best of the run.
    """
    onset, found = case.judgement.onset, case.judgement.attribution
    if onset is None or found is None or found.cause is Cause.RATE:
        return None
    if onset.descending or onset.collapsed or onset.sign not in _TURNED:
        return None
    before, after = rows_around(case.rate, onset)
    grown = {row.group for row in found.table if row.reading.strength > 0}
    level = _median(before.of("loss"), constants.WINDOW_STEPS)
    now = _median(case.rate.tail.of("loss"), constants.FINAL_STEPS)
    above = _above_its_past(case, onset, now)
    if grown & _NOT_ITS_OWN or (_is_raised(before, after) and not above > 0):
        return None
    if _has_been_up(case, onset):
        return None
    grew = _norms_grew(before, after) or (bool(grown & {"gradients", "drift"}) or None)
    # Without gradients a loss may wander; no data make it far worse than all before for good.
    moves = any(np.isfinite(before.of(name)).any() for name in ("grad_norm", "update_norm"))
    is_far = above > _FAR or (moves and above > _WIDE and now >= _DOUBLE * level > 0)
    climbed = onset.sign is OnsetSign.CLIMB and not found.recorded
    if not grew and (_gradients_stayed(before, after) or not (climbed or is_far)):
        return None
    return _standing(case, onset.step, onset.sign.value, level, now, grew=bool(grew))


# Other batches, or more of them in a step, change what the loss means.
_NOT_ITS_OWN = {"input", "batch"}
_TURNED = {OnsetSign.SHIFT, OnsetSign.CLIMB, OnsetSign.RELAPSE}


def _above_its_past(case: Case, onset: Onset, now: float) -> float:
    """How far the loss stands above all earlier losses, in units of their range."""
    points, head = case.rate.points, case.rate.head.part(0, onset.row)
    early = trailing_medians(known_of(head.of("loss")))[constants.MEDIAN_STEPS // 2 :]
    known = np.concatenate([early, known_of(points.rows.of("loss")[points.start < onset.row])])
    if not len(known):
        return 0.0
    top, low = float(known.max()), float(known.min())
    return (now - top) / max(top - low, ROUNDED * abs(top), 1e-12)


def _has_been_up(case: Case, onset: Onset) -> bool:
    """Whether the loss has risen as far before and come down, as the order of data can cause."""
    points = case.rate.points
    loss = points.rows.of("loss")
    before, after = (
        known_of(loss[at]) for at in (points.start < onset.row, points.start >= onset.row)
    )
    return bool(len(before) and len(after)) and loss_wanders(before, after)


def _left_with_loss(before: RateRows, after: RateRows, name: str) -> Iterator[bool | None]:
    """Whether a norm left its band with the loss: right after the onset, and at the end."""
    past, since = (rows.of(name) for rows in (before, after))
    for now in (since[:_END_ROWS], since[-_END_ROWS:]):
        least = max(2, len(now) // 2)
        yield has_left_band(past[-WINDOW:], now, least, times=GREW, deviations=OUT_OF_BAND)


def _norms_grew(before: RateRows, after: RateRows) -> bool:
    """Whether gradients rose with the loss, or updates by more than the rate explains."""
    raised = _is_raised(before, after)
    names = ("grad_norm",) if raised else ("grad_norm", "update_norm")
    return any(one is True for name in names for one in _left_with_loss(before, after, name))


def _gradients_stayed(before: RateRows, after: RateRows) -> bool:
    """Whether gradients are known to have stayed in their band while the loss rose."""
    return all(one is False for one in _left_with_loss(before, after, "grad_norm"))


def _is_raised(before: RateRows, after: RateRows) -> bool:
    """Whether the rate was raised when the loss rose: after a warm restart both fall again."""
    low, high = (_median(rows.of("lr"), constants.WINDOW_STEPS) for rows in (before, after))
    return high >= LR_LEAP * low


def _median(values: Floats, last: int) -> float:
    return median(known_of(values)[-last:])


def _standing(case: Case, step: int, what: str, level: float, height: float, *, grew: bool) -> Seen:
    return Seen(
        # A change of the data may raise the loss for good; only gradients could tell.
        severity=Severity.ERROR if grew else Severity.WARNING,
        first_step=step,
        last_step=case.scale.last_step,
        summary="The loss rose out of its band and has not come back: "
        f"{level:.4g} before, up to {height:.4g} since.",
        cause=f"From step {step} {what}"
        + (
            ", and gradients or updates left their band with it."
            if grew
            else "; no gradient norms show whether a change of the data is behind it."
        ),
        # One batch is over in a step; gradients that grow with the loss are not a batch.
        action="Lower the learning rate. If that does not help, look at the batches around the "
        "step at which the loss rose."
        if grew
        else "Look at the batches around the step at which the loss rose: was the data changed "
        "there? If it was not, lower the learning rate and start once more.",
        evidence=Evidence("loss_peak", step, height, level, "before"),
    )
