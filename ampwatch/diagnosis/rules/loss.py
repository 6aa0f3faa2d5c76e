"""AMP206, AMP303, AMP306, AMP307, AMP309 to AMP313: bad batches, spikes, a loss that stays high."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from ampwatch.diagnosis import thresholds
from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.column_arrays import Floats, known_of, median, median_of_known
from ampwatch.diagnosis.findings import FindingStatus, Outcome, Severity, State
from ampwatch.diagnosis.learning_rate import constants
from ampwatch.diagnosis.loss_series import RUNAWAY
from ampwatch.diagnosis.loss_spikes import MIXED_SHARE, TELLING, LossRise, RiseKind, SpikeOctave
from ampwatch.diagnosis.metric_outcome import first_metric, is_reached
from ampwatch.diagnosis.outcome import APART, FROM_ITS_START, REMEDIES, outcome_of
from ampwatch.diagnosis.outlying_inputs import OutlyingInput
from ampwatch.diagnosis.record import Event
from ampwatch.diagnosis.rule import Rule, RuleHit, rule
from ampwatch.diagnosis.rules.rate import how_to_change_rate
from ampwatch.diagnosis.setting_history import SettingChange
from ampwatch.diagnosis.value_text import Evidence, count_text, share_text, two_digits
from ampwatch.metric_names import Metric, is_of_validation
from ampwatch.rows import EventKind

# Jumps of one step: three are more than chance; two are, if the updates jumped with them.
LEAPS, GROWN_LEAPS = 3, 2
# More rises than one in a hundred steps are normal for such data; in a short record, more than a
# few.
_FEW = 8
_MIXED_AND_GROWN = 3  # times as many, if gradients rose with them: no fault is so common
_MISSED = 8  # leaps that would have come before the first, had the data always been so
_SAME_APART = 0.05  # of the distance
_EQUALLY_APART = 3  # so many steps at one distance are no chance
_LATEST = 4  # spikes that say how they go on
# Repeated spikes: three in the last quarter of a record, or three that cost 0.8 % of all steps;
# two, if gradients or updates rose with them; or one that cost as many steps as a scale takes to be
# established. A short spike in a short record does not count, whatever its share.
LATE_SHARE, LATE_SPIKES = 1 / 4, 3
# Spikes cost nothing if each was over within a twentieth of the steps before it, they do not grow
# from one to the next, and the loss has since stood so many deviations below where it was.
SOON, LEARNT_ON = 1 / 20, 1.0
# ... or if none lost more than a twentieth of what had been learnt.
LEFT, _FIRST_LOSSES = 1 / 20, 3
LOST_SHARE, LOST_SPIKES, GROWN_SPIKES, LONG_STEPS = 0.008, 3, 2, thresholds.ESTABLISHED_STEPS
ONE_SHARE = 0.03  # ... or, of a single one that falls back from its peak at once, 3 %
# Rises that take a fifteenth of all steps each come from the order of the data; so do rises of a
# tenth together, if gradients and updates stayed as they were, or if neither is recorded and there
# are this many.
_EACH_SHARE, _DATA_SHARE, _DATA_SPIKES = 1 / 15, 1 / 10, 16

_LEFT_OUT = (
    "Left out by the guard, so no weight moved: look where such a batch comes from (outliers, a "
    "corrupt file, a missing normalisation)."
)


@rule("AMP206", "bad-batch", Severity.WARNING)
def bad_batch(case: Case) -> Iterator[RuleHit]:
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
        yield RuleHit(
            severity=Severity.INFO if harmless else Severity.WARNING,
            at=inputs.times,
            summary=f"{_batches(inputs.times.count)} stood out from those before{what}.",
            action=_LEFT_OUT
            if inputs.are_left_out
            else _look_in(first.step, inputs.times.count, _IN_INPUTS),
            cause=f"At step {first.step} the largest input was {first.value:,.4g}, "
            f"{first.times:,.0f} times its recent median, after an ordinary update."
            + _spacing_text(inputs.last_steps, inputs.times.count),
            single_steps=inputs.last_steps,
            evidence=Evidence("input_amax", first.step, first.value, first.median, "median before"),
        )


# What to look for, by what stood out.
_IN_INPUTS = "outliers, a corrupt file or a missing normalisation"
_BY_THE_LOSS = "outliers, a corrupt file or wrong labels"


def _look_in(step: int, count: int, signs: str) -> str:
    """What to look for in the batches that stood out, the first of them at this step."""
    batches = f"batch of step {step}" if count == 1 else f"batches like that of step {step}"
    return f"Look in the {batches} for {signs}. Limit such inputs, or leave such samples out."


def _leaps(case: Case) -> RuleHit | None:
    """Single steps whose loss jumped and was back at the next one: bad batches."""
    leaps = case.rises.of(RiseKind.LEAP).apart
    grown, first = 2 * leaps.grown > leaps.count, leaps.first
    if first is None:
        return None
    most = _most(case) * (_MIXED_AND_GROWN if grown else 1)
    if leaps.count > most and not _began_late(case, leaps.count, first):
        return None  # what the data are made of, such as another task
    # A batch that leaves gradients and updates as they were is hard, but does no harm.
    repeated = leaps.count >= (GROWN_LEAPS if grown else LEAPS)
    are_left_out = leaps.left_out == leaps.count
    repeated &= 2 * leaps.idle_steps <= leaps.count and not are_left_out
    also = ", and gradients or updates rose with it" if first.grew else ""
    steps = tuple(rise.first_step for rise in leaps.last)
    return RuleHit(
        severity=Severity.WARNING if repeated else Severity.INFO,
        first_step=first.first_step,
        last_step=leaps.last[-1].last_step,
        summary=f"{_batches(leaps.count)} stood out from those before"
        + ("." if repeated or are_left_out else ", and the run recovered."),
        action=_LEFT_OUT if are_left_out else _look_in(first.first_step, leaps.count, _BY_THE_LOSS),
        cause=f"At step {first.first_step} the loss was {first.peak:,.4g}, after "
        f"{first.level:,.4g}: {first.height:,.0f} deviations above its recent range{also}; at "
        "the next step it was back." + _spacing_text(steps, leaps.count),
        single_steps=steps,
        evidence=Evidence("loss", first.first_step, first.peak, first.level, "before"),
    )


def _began_late(case: Case, count: int, first: LossRise) -> bool:
    """Whether so many leaps began after so long without one that the data were not always so.

    The first is above each loss before it: no hard batch of data that are nearly learnt is.
    """
    head, began = case.rate.head, first.first_step - (case.scale.first_step or 0)
    before = head.of("loss")[head.of("step") < first.first_step]
    missed = count * began / max(1, case.scale.steps - began)
    return missed >= _MISSED and first.peak > known_of(before).max(initial=0.0)


def _spacing_text(steps: tuple[int, ...], count: int) -> str:
    """The sentence on batches that are equally far apart; empty if they are not."""
    apart = {after - before for before, after in pairwise(steps)}
    if len(steps) < count or count < _EQUALLY_APART or len(apart) != 1:
        return ""
    return (
        f" Each is {apart.pop():,} steps after the one before: look for what recurs so often, such "
        "as the end of an epoch, an evaluation or a restart of the schedule."
    )


def _batches(count: int) -> str:
    return count_text(count, "batch", "batches")


def _most(case: Case) -> float:
    """How many rises of the loss are normal for data like these."""
    return max(_FEW, MIXED_SHARE * case.scale.steps)


@rule("AMP303", "recoverable-spike", Severity.INFO)
def recoverable_spike(case: Case) -> Iterator[RuleHit]:
    """Spikes of the loss, or bursts of skips, from which the run recovered."""
    if case.standing_fall is not None or case.judgement.onset is not None:
        return
    scale, bursts = case.scale, case.scale.spikes
    rises = _spikes(case) or _ran_away(case)
    since = scale.steps - 1 - bursts.last_position
    burst = bursts.episodes and since >= scale.scaler.established_steps
    burst = burst and not case.loop_tells_skips
    if rises is not None and (not burst or rises.severity is Severity.WARNING):
        yield rises
    elif burst:
        yield _burst(case)


def _spikes(case: Case) -> RuleHit | None:
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
    grown = f"; gradients or updates left their usual range in {both.grown:,} of {both.count:,}"
    return RuleHit(
        severity=Severity.WARNING if _is_habit(case, spikes) else Severity.INFO,
        standing=FindingStatus.PAUSED,
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


def _ran_away(case: Case) -> RuleHit | None:
    """A loss that ran far beyond its first ones before it had a band to leave, and came back."""
    rows = case.rate.head.where(np.isfinite(case.rate.head.of("loss")))
    loss, step = rows.of("loss"), rows.of("step").astype(np.int64)
    first = median(loss[:_FIRST_LOSSES]) if len(loss) else 0.0
    above = np.flatnonzero(loss >= RUNAWAY * first)
    if first <= 0 or len(above) < _FIRST_LOSSES or median(loss[-_LATEST:]) > first:
        return None
    share = len(above) / len(loss)
    peak = int(np.argmax(loss))
    return RuleHit(
        severity=Severity.WARNING if share > ONE_SHARE else Severity.INFO,
        standing=FindingStatus.PAUSED,
        first_step=int(step[above[0]]),
        last_step=int(step[above[-1]]),
        summary=f"The loss ran away to {loss[peak]:.2g} and came back by itself.",
        cause=f"In {count_text(len(above), 'entry', 'entries')} from step {step[above[0]]} to step "
        f"{step[above[-1]]} it was {RUNAWAY:,.0f} times as high as at first ({first:.3g}), or "
        "higher.",
        evidence=Evidence("loss_peak", int(step[peak]), float(loss[peak]), first, "at first"),
    )


def _is_habit(case: Case, spikes: SpikeOctave) -> bool:
    record = case.scale.steps
    begins = (case.scale.last_step or 0) - LATE_SHARE * record
    rises = [spike for spike in (spikes.first, *spikes.last[-_LATEST:]) if spike]
    first = median_of_known(known_of(case.rate.head.of("loss"))[:_FIRST_LOSSES])
    has_goal = first_metric(case, Metric.GOAL, is_reached) is not None
    if has_goal or all(0 < spike.peak <= LEFT * first for spike in rises):
        return False  # nearly all that was learnt stayed
    if sum(spike.first_step >= begins for spike in spikes.last) >= LATE_SPIKES:
        return True
    idle = (spikes.idle_steps > 0 or spikes.count > _DATA_SPIKES) and not spikes.grown
    planned = _are_equally_apart(spikes)
    if spikes.steps > record * (_DATA_SHARE if idle or planned else _EACH_SHARE * spikes.count):
        return False
    # If gradients and updates stayed as they were, only the data changed: nothing was lost.
    lost = spikes.steps - spikes.idle_steps
    enough = spikes.count >= LOST_SPIKES or spikes.grown >= GROWN_SPIKES
    # A loss that drifts may stay above its band for long while its gradients stay as they were.
    # One line of a sparse log is one outlying batch, however many steps lie between two lines.
    enough |= lost >= LONG_STEPS and any(spike.out > 1 for spike in rises)
    enough &= any(spike.strength >= TELLING or spike.entries >= LONG_STEPS for spike in rises)
    stood = spikes.count > 1 or any(spike.high >= LONG_STEPS for spike in rises)
    share = LOST_SHARE if stood else ONE_SHARE
    return enough and lost > share * record and not _cost_nothing(case, rises)


def _are_equally_apart(spikes: SpikeOctave) -> bool:
    """Whether spikes come at one distance, as a plan has it: of tasks, stages or lengths."""
    apart = np.diff([spike.first_step for spike in spikes.last])
    return len(apart) + 1 >= _EQUALLY_APART and bool(np.ptp(apart) <= _SAME_APART * apart.mean())


def _cost_nothing(case: Case, spikes: list[LossRise]) -> bool:
    """Whether each spike was soon over, they do not grow, and the run has learnt on since."""
    first = case.scale.first_step or 0
    now = _median(case.rate.tail.of("loss"), constants.FINAL_STEPS)
    soon = all(spike.steps <= SOON * (spike.first_step - first) for spike in spikes)
    peaks = [spike.peak for spike in spikes[1:]]
    grow = len(peaks) >= LOST_SPIKES and sorted(set(peaks)) == peaks
    return soon and not grow and spikes[-1].band.height(now) <= -LEARNT_ON


def _burst(case: Case) -> RuleHit:
    """Bursts of skips from which the run recovered, reported like a spike of the loss."""
    scale, bursts = case.scale, case.scale.spikes
    octaves = bursts.deepest_octaves
    depth = f", by a factor of {2**octaves:,.0f} at most," if octaves else ""
    return RuleHit(
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


@rule("AMP307", "loss-stays-high", Severity.ERROR)
def loss_stays_high(case: Case) -> Iterator[RuleHit]:
    """A loss that diverges or does not come back while the loss scale is steady."""
    if case.standing_fall is None:
        divergence = _diverged(case) or _not_back(case)
        if divergence is not None:
            yield divergence


def _diverged(case: Case) -> RuleHit | None:
    """A loss far above its first value because of the learning rate."""
    judged = case.judgement
    onset = judged.onset
    if onset is None or not judged.is_the_rate or onset.collapsed or onset.descending:
        return None
    head, tail = (rows.of("loss") for rows in (case.rate.head, case.rate.tail))
    losses, last = head[np.isfinite(head)], _median(tail, thresholds.ESTABLISHED_STEPS)
    if not len(losses) or not last >= thresholds.DIVERGED_LOSS * losses[0] > 0:
        return None
    first, known = float(losses[0]), np.flatnonzero(np.isfinite(tail))
    of = min(len(known), thresholds.ESTABLISHED_STEPS)
    return RuleHit(
        first_step=onset.step,
        last_step=case.scale.last_step,
        summary=f"The loss diverges without an overflow: {first:.4g} at first, {last:.4g} in the "
        f"median of the last {of} entries.",
        cause=f"From step {onset.step} {onset.sign.value}, and the updates were out of their "
        "usual range before.",
        evidence=Evidence(
            "loss",
            int(case.rate.tail.of("step")[known[-1]]),
            float(tail[known[-1]]),
            first,
            "at first",
        ),
    )


def rise_that_stands(case: Case) -> LossRise | None:
    """The rise of the loss that has not come back, unless a larger batch or a fall explains it."""
    rise = case.rises.standing
    if rise is None or case.standing_fall is not None:
        return None
    larger = case.rate.setup.larger_batches
    is_summed = any(0 <= rise.first_step - step <= thresholds.JUMP_STEPS for step in larger)
    return None if is_summed else rise


def _not_back(case: Case) -> RuleHit | None:
    """A loss that rose out of its recent range and has not come back by the end."""
    rise = rise_that_stands(case)
    if rise is None:
        return None
    step, grew = rise.first_step, bool(rise.grew)
    return RuleHit(
        # A change of the data may raise the loss for good; only gradients could tell.
        severity=Severity.ERROR if grew else Severity.WARNING,
        first_step=step,
        last_step=case.scale.last_step,
        summary="The loss rose above its recent range and has not come back: "
        f"{rise.level:.4g} before, up to {rise.peak:.4g} since.",
        cause=f"From step {step} it has been above every earlier value"
        + (
            ", and gradients or updates left their usual range with it."
            if grew
            else "; no gradient norms show whether a change of the data is behind it."
        ),
        # One batch is over in a step; gradients that grow with the loss are not a batch.
        action="Lower the learning rate. If that does not help, look at the batches around the "
        "step at which the loss rose."
        if grew
        else "Look at the batches around the step at which the loss rose: was the data changed "
        "there? If it was not, lower the learning rate and start once more.",
        evidence=Evidence("loss_peak", step, rise.peak, rise.level, "before"),
    )


def _median(values: Floats, last: int) -> float:
    return median(known_of(values)[-last:])


# --- outcomes, in their own words -----------------------------------------------------------------


UNKNOWN = "This log does not show why."


def _tells(code: str, name: str, usual: Severity, *states: State, cause: str = UNKNOWN) -> Rule:
    """Make the rule that tells of these outcomes."""

    def check(case: Case) -> Iterator[RuleHit]:
        if outcome_of(case).state in states:
            yield outcome_hit(case, cause)

    return Rule(code, name, usual, check)


def outcome_hit(case: Case, cause: str = UNKNOWN) -> RuleHit:
    """The outcome of a case in its own words, as a rule would tell of it."""
    outcome = outcome_of(case)
    # A slow fall has no first step: whatever explains it may come later.
    is_slow = outcome.state is State.HARDLY_FALLS
    why, remedy = _WHY.get(outcome.state, cause), REMEDIES.get(outcome.state)
    if outcome.grew_apart:
        why, remedy = APART
    if outcome.state is State.ANOTHER_LEVEL and outcome.since_step == case.scale.first_step:
        remedy = FROM_ITS_START
    if outcome.state is State.STANDS_STILL and _is_zero(outcome):
        remedy = _OF_ZEROS
    if outcome.state is State.GOAL_LOST and is_of_validation(outcome.rests_on[0]):
        remedy = f"{_BACK_TO_BEST} {REMEDIES[State.NOT_BACK]}"
    if outcome.state is State.NOT_BACK and not case.record.clean_end:
        remedy = f"Wait first: the loss may come back. {remedy}"
    return RuleHit(
        severity=outcome.severity,
        first_step=None if is_slow else outcome.since_step,
        last_step=case.scale.last_step,
        summary=outcome.words,
        cause=why,
        action=remedy,
        evidence=outcome.evidence,
    )


_WHY = {
    State.RATE_CLIMBS: "The learning rate had come down and went back up, and the loss rose with "
    "it.",
}
_BACK_TO_BEST = "Go back to the checkpoint of the best value."
_OF_ZEROS = (
    "Look what the loss is computed from: labels that are all ignored or masked, an empty batch, "
    "or a number that is printed in its place, as some loops print 0 for NaN. The learning rate "
    "mends none of these."
)


def _is_zero(outcome: Outcome) -> bool:
    """Whether the loss that stands still is exactly zero."""
    return any(piece.signal == "loss" and piece.value == 0 for piece in outcome.evidence)


no_progress = _tells(
    "AMP309", "no-progress", Severity.ERROR, State.STANDS_STILL, State.HARDLY_FALLS, State.SETTLED
)
overfitting = _tells(
    "AMP310", "overfitting", Severity.WARNING, State.OVERFITS,
    cause="The model learns its training data by heart.",
)  # fmt: skip
goal_lost = _tells("AMP311", "goal-lost", Severity.ERROR, State.GOAL_LOST, State.GOAL_FALLS)
discriminator_won = _tells(
    "AMP312", "discriminator-won", Severity.ERROR, State.ADVERSARY_WON,
    cause="The discriminator tells every sample apart: it leaves the generator no gradient.",
)  # fmt: skip
score_stands_still = _tells(
    "AMP313", "score-stands-still", Severity.WARNING, State.GOAL_STILL,
    cause="What is measured is not what is trained, or the data are in an order that teaches one "
    "thing at a time.",
)  # fmt: skip


# --- trouble that began with a change -------------------------------------------------------------


@rule("AMP306", "jump-at-event", Severity.WARNING)
def jump_at_event(case: Case) -> Iterator[RuleHit]:
    """Trouble that began right after something was changed."""
    onset, rise = case.judgement.onset, rise_that_stands(case)
    if (lost := harmful_restart(case)) is not None:
        yield lost
        return
    if outcome_of(case).is_good:  # whatever it was, it has passed
        return
    change = case.batches.change
    if change is not None and _began_near(case, change.step):
        yield _changed_inputs(case, change)
        return
    if (setting := _changed_before_it(case)) is not None:
        yield _changed_setting(case, setting)
        return
    if onset is not None:
        began, sign = onset.step, onset.sign.value
    elif rise is not None:
        began, sign = rise.first_step, "the loss was above its recent range"
    else:
        return
    start = case.scale.first_step or 0
    near = [
        (step, what)
        for step, what in _changes(case)
        if start < step and 0 <= began - step <= thresholds.JUMP_STEPS
    ]
    if near:
        step, what = max(near)
        yield RuleHit(
            first_step=step,
            last_step=began,
            summary=f"The trouble began {count_text(began - step, 'step')} after {what}.",
            cause=f"From step {began} {sign}; at step {step} {what}.",
            action=_back(case, step),
            evidence=Evidence("onset", began, float(began), float(step), "step of the change"),
        )


_NEAR = 0.01  # of a long record, whose points are medians of so many steps


def _beginnings(case: Case) -> list[int]:
    """The steps at which the trouble that stands began, as far as any row tells when."""
    onset, fall, rise = case.judgement.onset, case.standing_fall, rise_that_stands(case)
    begins = [onset.step] if onset is not None else []
    begins += [sign.first_step for sign in (fall, rise) if sign is not None]
    since = outcome_of(case).since_step
    return begins + ([since] if since is not None else [])


def _near(case: Case) -> int:
    """How many steps apart two things lie that may be one."""
    return max(thresholds.JUMP_STEPS, int(_NEAR * case.scale.steps))


def _began_near(case: Case, step: int) -> bool:
    """Whether the trouble that stands began about this step."""
    return any(abs(begin - step) <= _near(case) for begin in _beginnings(case))


def _changed_inputs(case: Case, change: OutlyingInput) -> RuleHit:
    """Inputs that left their range for good, with a skip or a leap of the loss at their first."""
    gravest = max(Severity.WARNING, outcome_of(case).severity, key=lambda one: one.weight)
    return RuleHit(
        severity=gravest,
        first_step=change.step,
        last_step=case.scale.last_step,
        summary=f"The inputs have been {two_digits(change.times)} times as large since step "
        f"{change.step}.",
        cause="The inputs became many times as large and have stayed so: with the first of them "
        f"the loss leapt, or the step was skipped. The largest was {change.median:.3g} before "
        f"(median), and {change.value:.3g} at step {change.step}.",
        action=f"Check the data from step {change.step} on: a missing normalisation, another unit, "
        "another file.",
        evidence=Evidence("input_amax", change.step, change.value, change.median, "median before"),
    )


_BY_CHANCE = 0.05  # that one of a setting's changes comes so soon before a trouble


def _changed_before_it(case: Case) -> SettingChange | None:
    """The logged setting that changed right before the trouble began; None if none did."""
    near = _near(case)
    early = 0 if case.rate.is_whole else near
    begin = min(_beginnings(case), default=-near)
    changes = [
        change
        for change in case.settings.changes(_BY_CHANCE * case.scale.steps / near)
        if -early <= begin - change.step <= near
    ]
    return max(changes, key=lambda change: change.step, default=None)


def _changed_setting(case: Case, change: SettingChange) -> RuleHit:
    """Trouble that began when a value changed that the loop sets and logs."""
    name, before, to = change.name, two_digits(change.before), two_digits(change.after[0])
    moved = f"{name} went from {before} to {to}" if change.stands else f"{name} left {before}"
    since = "" if change.stands else f" It has moved since, to {two_digits(change.now)} by now."
    return RuleHit(
        severity=max(Severity.WARNING, outcome_of(case).severity, key=lambda one: one.weight),
        first_step=change.step,
        last_step=case.scale.last_step,
        summary=f"The trouble began when {moved}, at step {change.step:,}.",
        cause=f"The loop sets and logs {name}, which had stood at {before} for long.{since}",
        action="Set that value back to what it was, or change it over many more steps. Go on from "
        "a checkpoint before it changed.",
        evidence=Evidence("metric", change.step, change.now, change.before, f"earlier {name}"),
    )


def _back(case: Case, step: int) -> str | None:
    """What to do if the change before the trouble was a leap of the rate; else None."""
    leapt = case.rate_advice.leapt_at_step
    is_this = leapt is not None and abs(step - leapt) <= 1  # an event may come a step early
    return how_to_change_rate(case.rate_advice) if is_this else None


def _changes(case: Case) -> Iterator[tuple[int, str]]:
    """When something was changed before the trouble, and what; stairs of a warm-up do not count."""
    leaps = case.leaps
    for event in case.events.changes:
        if event.kind != EventKind.LR_CHANGED.value or not leaps.is_climb(event.step):
            yield event.step, _said(event)
    for leap in filter(leaps.is_settled, leaps.leaps):  # of records without events
        yield leap.step, f"the learning rate went from {leap.before:.3g} to {leap.after:.3g}"


def _said(event: Event) -> str:
    before, after = (event.detail.get(end) for end in ("from", "to"))
    are_numbers = isinstance(before, (int, float)) and isinstance(after, (int, float))
    way = f"went from {before:,.6g} to {after:,.6g}" if are_numbers else "changed"
    group = event.detail.get("group")
    return {
        "state-loaded": "a state was loaded",
        "optimizer-replaced": "the optimizer was replaced",
        "scaler-replaced": "the scaler was replaced",
        "batch-size-changed": f"the batch size {way}",
        "lr-changed": f"the learning rate of group {group} {way}"
        if group
        else f"the learning rate {way}",
    }[event.kind]


_NORMS = {"update": "the updates", "grad_norm": "the gradient norm"}


def harmful_restart(case: Case) -> RuleHit | None:
    """A loss that jumps right after a restart, together with updates or gradients.

    A warning even if the run recovers: the next restart will do the same.
    """
    first, last, jumps = case.restarts.first, case.restarts.last, case.restarts.jumps
    if first is None or last is None:
        return None
    before, after = last.loss
    norm = f", {_NORMS[last.norm]} {last.times:.1f} times as large" if last.norm else ""
    times = f"At {count_text(jumps.count, 'restart')}" if jumps.count > 1 else "At the restart"
    where = f"before step {first.step}" if first.is_seam else f"at step {first.step}"
    summary = f"{times} {where} the loss jumped from {before:.3g} to {after:.3g}."
    cause = f"It stayed there for tens of steps{norm}: the run did not continue as it "
    cause += "was. Usually the optimizer's state was not loaded."
    action = "Save optimizer.state_dict() with each checkpoint and load it on resume. If that is "
    action += "not possible, warm the learning rate up."
    if last.rates is not None:
        summary = f"Since the restart {where} the loss went from {before:.3g} to {after:.3g}."
        cause = (
            f"The learning rate rose from {last.rates[0]:.3g} to {last.rates[1]:.3g} there, "
            "and at the "
        )
        cause += f"log's end the loss has not come back{norm}: the schedule started over."
        action = "Load the scheduler's state with that checkpoint."
    return RuleHit(
        severity=Severity.WARNING,
        standing=FindingStatus.PAUSED if last.rates is None else FindingStatus.STANDS,
        first_step=first.step,
        last_step=last.step,
        summary=summary,
        cause=cause,
        action=action,
        evidence=Evidence("loss", last.step, after, before, "before"),
    )
