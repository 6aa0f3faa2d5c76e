"""What rises of the loss out of its recent band say to AMP206, AMP303 and AMP307."""

from __future__ import annotations

import math

import numpy as np

from ampwatch.diagnosis import policy
from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.findings import Evidence, Severity
from ampwatch.diagnosis.learning_rate import Rows, constants
from ampwatch.diagnosis.learning_rate.attribution import Cause
from ampwatch.diagnosis.learning_rate.onset import Sign
from ampwatch.diagnosis.learning_rate.scene import rows_around
from ampwatch.diagnosis.registry import Seen
from ampwatch.diagnosis.rises import MIXED_SHARE, TELLING, Octave, Open, Rise
from ampwatch.diagnosis.signals import Floats
from ampwatch.diagnosis.words import count_text, share_text
from ampwatch.rows import LR_LEAP

# A habit: three in the last quarter of a record, or three that cost one step in a hundred; two,
# where gradients or updates went with them, or one that did and lasted as long as a scale takes to
# be established. A short one of a short record is none, whatever its share.
LATE_SHARE, LATE_SPIKES = 1 / 4, 3
LOST_SHARE, LOST_SPIKES, GROWN_SPIKES, LONG_STEPS = 0.01, 3, 2, policy.ESTABLISHED_STEPS
# Leaps of one step: three stand for more than chance; two where the updates leapt with them.
LEAPS, GROWN_LEAPS = 3, 2
# Rises that take a tenth of all steps while gradients and updates stay as they were, or of which
# there are so many where neither is recorded, are the order of the data.
DATA_SHARE, DATA_SPIKES = 1 / 10, 16
# A hundredth of a short record is next to none.
FEW = 8


def spiked(case: Case) -> Seen | None:
    """Spikes of the loss that came back into its band."""
    rises = case.rises
    spikes, met = (tally.apart_beside(rises.single) for tally in (rises.spikes, rises.skipped))
    both = spikes + met
    often = max(both.count, rises.single.apart.count)
    if both.first is None or often > _most(case):
        return None
    last = both.last[-1]
    steps, record = both.steps, case.scale.steps
    return Seen(
        severity=Severity.WARNING if _is_habit(case, spikes) else Severity.INFO,
        first_step=both.first.first_step,
        last_step=last.last_step,
        summary=f"The loss spiked {count_text(both.count, 'time')} and came back by itself.",
        cause=f"{'The last time it' if both.count > 1 else 'It'} rose from {last.level:.4g} to "
        f"{last.peak:.4g} at step {last.first_step} and was back after "
        f"{count_text(last.steps, 'step')}; {share_text(steps, record)} of the steps "
        f"({steps:,}) went into such recoveries{_with_gradients(both)}.",
        action="If they go on: skip the batches that set them off, restarting before the first; "
        "clip the update (by its own norm, layer by layer); then lower the rate a little."
        if both.count > 1
        else "Nothing to do. If it returns, restart before it and skip those batches.",
        evidence=(
            Evidence("loss", last.first_step, last.peak, last.level),
            Evidence("spikes", last.last_step, float(both.count)),
            Evidence("lost_steps", last.last_step, float(steps), float(record)),
        ),
    )


def _is_habit(case: Case, spikes: Octave) -> bool:
    begins = (case.scale.last_step or 0) - LATE_SHARE * case.scale.steps
    late = sum(spike.first_step >= begins for spike in spikes.last)
    idle = spikes.idle_steps > 0 or spikes.count > DATA_SPIKES
    if idle and not spikes.grown and spikes.steps > DATA_SHARE * case.scale.steps:
        return False
    # Where gradients and updates stayed as they were, the data rose and fell: nothing was lost.
    lost = spikes.steps - spikes.idle_steps
    enough = spikes.count >= LOST_SPIKES or spikes.grown >= GROWN_SPIKES
    enough |= spikes.grown > 0 and lost >= LONG_STEPS
    # A loss that wanders may stay above its band for long: one at least is to be high.
    enough &= any(spike.height >= TELLING for spike in (spikes.first, *spikes.last) if spike)
    return late >= LATE_SPIKES or (enough and lost > LOST_SHARE * case.scale.steps)


def _with_gradients(spikes: Octave) -> str:
    if not spikes.grown:
        return ""
    return f"; gradients or updates left their band in {spikes.grown:,} of {spikes.count:,}"


def _most(case: Case) -> float:
    """More rises than this are what the data are made of."""
    return max(FEW, MIXED_SHARE * case.scale.steps)


def leapt(case: Case) -> Seen | None:
    """Single steps whose loss leapt and was back at the next one."""
    leaps = case.rises.single.apart
    grown = 2 * leaps.grown > leaps.count
    if leaps.first is None or (leaps.count > _most(case) and not grown):
        return None
    repeated = leaps.count >= (GROWN_LEAPS if grown else LEAPS)
    # A batch that leaves gradients and updates as they were is hard, and no harm.
    repeated &= 2 * leaps.idle_steps <= leaps.count
    first: Rise = leaps.first
    also = ", and gradients or updates with it" if first.grew else ""
    return Seen(
        severity=Severity.WARNING if repeated else Severity.INFO,
        first_step=first.first_step,
        last_step=leaps.last[-1].last_step,
        summary=f"{count_text(leaps.count, 'batch', 'batches')} stood out from those before"
        + ("." if repeated else ", and the run got over it."),
        cause=f"At step {first.first_step} the loss was {first.peak:,.4g} where it had been "
        f"{first.level:,.4g}, {first.height:,.0f} deviations above its recent band{also}; at the "
        "next step it was back.",
        action=f"Look at the batch of step {first.first_step}.",
        evidence=(Evidence("loss", first.first_step, first.peak, first.level),),
    )


def standing_rise(case: Case) -> Open | None:
    """A rise of the loss that has not come back, and that neither data nor rate were to bring."""
    rise = case.rises.standing
    if rise is None or rise.stayed or rise.is_meant or case.standing_fall is not None:
        return None
    larger = case.rate.setup.larger_batches
    if any(0 <= rise.first_step - step <= policy.JUMP_STEPS for step in larger):
        return None
    gave_back = rise.gave_back(case.rises.last)
    return None if not rise.grew and gave_back else rise


def not_back(case: Case) -> Seen | None:
    """A rise of the loss that has not come back by the end of the record."""
    rise = standing_rise(case)
    if rise is None:
        return None
    return Seen(
        # A change of the data may raise the loss for good: without gradients nobody can tell.
        severity=Severity.ERROR if rise.grew else Severity.WARNING,
        first_step=rise.first_step,
        last_step=case.scale.last_step,
        summary=f"The loss rose out of its band and has not come back: {rise.band.level:.4g} "
        f"before, up to {rise.peak:.4g} since.",
        cause=f"From step {rise.first_step} it has stood above all that it had been before"
        + _company(rise),
        action="Restart from a checkpoint before it and skip the batches around it; if it comes "
        "back, lower the rate.",
        evidence=(Evidence("loss", rise.first_step, rise.peak, rise.band.level),),
    )


def never_back(case: Case) -> Seen | None:
    """The same of a loss that climbed with its recent past, or before there was one.

    A rise is held against the losses just before it; the onset, against the best of the run.
    """
    judged = case.judgement
    onset, found = judged.onset, judged.attribution
    if onset is None or found is None or found.cause is Cause.RATE:
        return None
    told = onset.descending or onset.collapsed or onset.sign not in {Sign.SHIFT, Sign.CLIMB}
    if told or case.standing_fall is not None:
        return None
    before, after = rows_around(case.rate, onset)
    grown = {row.group for row in found.table if row.reading.strength > 0}
    if grown & _NOT_ITS_OWN or _is_raised(before, after):
        return None
    grew = bool(grown & {"gradients", "drift"})
    # Without gradients a loss may wander; no data make that of a new network far worse for good.
    if not grew and (found.recorded or onset.sign is not Sign.CLIMB):
        return None
    level = _median(before.of("loss")[-constants.WINDOW_STEPS :])
    now = _median(after.of("loss")[-constants.FINAL_STEPS :])
    company = _GREW if grew else _UNKNOWN
    return Seen(
        severity=Severity.ERROR if grew else Severity.WARNING,
        first_step=onset.step,
        last_step=case.scale.last_step,
        summary=f"The loss left its band and has not come back: {level:.4g} before, {now:.4g} now.",
        cause=f"From step {onset.step} {onset.sign.value}{company}",
        action="Restart from a checkpoint before it; if it comes back, lower the rate.",
        evidence=(Evidence("loss", case.scale.last_step, now, level),),
    )


# Other batches, or more of them in a step: then the loss is another one.
_NOT_ITS_OWN = {"input", "batch"}


def _is_raised(before: Rows, after: Rows) -> bool:
    """Whether the rate was raised with it: a warm restart, whose loss comes down with the rate."""
    low, high = (_median(rows.of("lr")[-constants.WINDOW_STEPS :]) for rows in (before, after))
    return high >= LR_LEAP * low


def _median(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else math.nan


def _company(rise: Open) -> str:
    if rise.grew:
        return _GREW
    return _UNKNOWN


_GREW = ", and gradients or updates left their band with it."
_UNKNOWN = "; no gradient norms are recorded, so a change of the data may be behind it."
