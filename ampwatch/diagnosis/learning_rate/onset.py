"""When the trouble began, and whether the run got over it.

From random weights the tests compare with the first loss. Later, and in a resumed run, only the
recent past can be compared with. Nothing that the run recovered from is an onset.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np

from ampwatch.diagnosis.learning_rate import constants
from ampwatch.diagnosis.learning_rate.course import Points, RateState, Rows
from ampwatch.diagnosis.learning_rate.shift import falls, find_shift, never_zero
from ampwatch.diagnosis.learning_rate.short_record import short_facts
from ampwatch.diagnosis.signals import Floats, Integers, Mask


class Sign(str, enum.Enum):
    """What gave the onset away."""

    NOT_FINITE = "the loss was not finite"
    SKIPS = "three steps in a row were skipped"
    CLIMB = "the loss stood at 1.5 times its first value"
    RELAPSE = "the loss gave back more than half of its progress"
    NO_LEARNING = "the loss did not fall"
    STALLED = "the loss hardly fell and then stood"
    LITTLE_LEARNT = "most of the loss was left"
    SHIFT = "the loss left the band of its recent past"
    BEYOND = "an update was larger than the weights that it changed"


@dataclass(frozen=True, slots=True)
class Onset:
    """Where trouble began that still stands at the end of the record."""

    sign: Sign
    row: int  # position in the run
    step: int
    early: bool
    collapsed: bool  # the end of the record is skips
    descending: bool  # the loss is on its way down again at the end

    @property
    def hard(self) -> bool:
        """Whether numbers left their format, which no benign course of a loss does."""
        return self.collapsed or self.sign is Sign.NOT_FINITE

    @property
    def is_slow(self) -> bool:
        """Whether the run still learns, only less than it could; no descent after a climb."""
        return self.sign is Sign.LITTLE_LEARNT or (self.sign in IDLE and self.descending)


def find_onset(state: RateState) -> Onset | None:
    """The onset of what is still wrong at the end of the record."""
    collapsed = _is_collapsed(state)
    if len(state.head) == state.rows or state.accepted < constants.EARLY_STEPS:
        early = _early(state, collapsed=collapsed)
        if early is not None:
            return early
    elif (climb := _climb_that_stands(state, collapsed=collapsed)) is not None:
        return climb
    return _late(state, state.points, collapsed=collapsed)


def _climb_that_stands(state: RateState, *, collapsed: bool) -> Onset | None:
    """A climb of the first steps of a long run, under which no part of it has come since."""
    at, loss = _known_losses(state.head.part(0, constants.SCRATCH_STEPS))
    several = state.setup.several_optimizers  # whose losses are no one course
    if several or len(loss) < constants.POINT_STEPS // 2 or float(loss.min()) <= 0:
        return None
    first, wide = float(loss[0]), constants.ROBUST_DEVIATIONS * _calm_noise(loss)
    line = max(constants.CLIMB * first, first + constants.MEDIAN_NOISE * wide)
    climbed = np.flatnonzero(trailing_medians(loss) > line)
    if not len(climbed):
        return None
    begin = int(at[climbed[0]])
    since = state.points.rows.of("loss")[state.points.start >= begin]
    since = since[np.isfinite(since)]
    if not len(since) or float(since.min()) <= line:
        return None
    descending = falls(since, first) and not collapsed
    early, step = _is_early(state, begin), _step(state.head, begin)
    return Onset(Sign.CLIMB, begin, step, early=early, collapsed=collapsed, descending=descending)


def _is_collapsed(state: RateState) -> bool:
    """Whether the record ends in skips or in losses that are not finite; a search does not count.

    While nothing was accepted the scale may still be searching, unless no scale can be meant.
    """
    if state.setup.stopped:
        return True
    end = state.tail.part(-constants.FINAL_STEPS)
    if not state.accepted:
        scale = end.of("scale")[-1:]
        lost = bool((end.of("loss_bad") + end.of("forward_bad") > 0).sum() >= constants.EVENT_SKIPS)
        return lost or bool((scale < constants.STATIC_SCALE).any())
    if len(state.head) == state.rows:  # leave out the search before the first accepted step
        end = state.head.part(int(np.argmax(state.head.accepted))).part(-constants.FINAL_STEPS)
    bad = (end.of("skipped") > 0) | (end.of("loss_bad") > 0)
    streak = int(np.argmin(bad[::-1])) if not bad.all() else len(bad)
    often = bad.mean() > constants.COLLAPSED_SHARE and len(bad) >= constants.MEDIAN_STEPS
    return bool(often or streak >= constants.EVENT_SKIPS)


def _early(state: RateState, *, collapsed: bool) -> Onset | None:
    rows = state.head
    signs: list[tuple[int, Sign]] = []
    if collapsed:
        signs += _hard_signs(rows)
    if state.setup.several_optimizers:  # whose losses are no one course
        signs += _beyond_weights(rows)
    else:
        signs += _soft_signs(rows, collapsed=collapsed, from_scratch=not state.setup.resumed)
    if not signs:
        return None
    at, sign = min(signs, key=lambda pair: pair[0])
    # The losses of several optimizers are no one course, and taken for one they may seem to fall.
    descending = not state.setup.several_optimizers and _descends_below_start(rows, at)
    return Onset(
        sign, at, _step(rows, at), early=True, collapsed=collapsed,
        descending=descending and not collapsed,
    )  # fmt: skip


def _hard_signs(rows: Rows) -> list[tuple[int, Sign]]:
    signs = []
    bad = np.flatnonzero(rows.of("loss_bad") > 0)
    accepted = np.flatnonzero(rows.accepted)
    begin = int(accepted[0]) if len(accepted) else 0
    after = bad[bad >= begin]
    if len(after):
        signs.append((int(after[0]), Sign.NOT_FINITE))
    streak = _first_streak(rows.of("skipped")[begin:] > 0, constants.SKIPS_IN_A_ROW)
    if streak is not None:
        signs.append((begin + streak, Sign.SKIPS))
    return signs


def _beyond_weights(rows: Rows) -> list[tuple[int, Sign]]:
    """A first update of the whole network that leaves little of it, whatever the losses say."""
    first = np.flatnonzero(rows.accepted & np.isfinite(rows.ratio))[: constants.PROOF_STEPS]
    large = first[rows.ratio[first] > constants.BEYOND_WEIGHTS]
    # Trouble begins with what follows the update, which is the rate's own part in it.
    return [(min(int(large[0]) + 1, len(rows) - 1), Sign.BEYOND)] if len(large) else []


def _soft_signs(rows: Rows, *, collapsed: bool, from_scratch: bool) -> list[tuple[int, Sign]]:
    """The tests against the first loss: a positive loss that stands no better at the end.

    A run that goes on from a checkpoint may stand; it may not climb from where it began.
    """
    at, loss = _known_losses(rows.part(0, constants.SCRATCH_STEPS))
    everything = _known_losses(rows)[1]
    if len(loss) < constants.POINT_STEPS // 2 or float(everything.min()) <= 0:
        return []
    first, noise = float(loss[0]), _calm_noise(everything)
    final = float(np.median(everything[-constants.FINAL_STEPS :]))
    smooth = trailing_medians(loss)
    best = np.minimum.accumulate(smooth)
    wide = constants.ROBUST_DEVIATIONS * constants.MEDIAN_NOISE * noise
    signs = []
    climbed = np.flatnonzero((smooth > constants.CLIMB * first) & (smooth > first + wide))
    if len(climbed) and final > first + wide:
        signs.append((int(at[climbed[0]]), Sign.CLIMB))
    progress = first - best
    back = (smooth - best > constants.RELAPSE_SHARE * progress) & (smooth - best > wide)
    relapsed = np.flatnonzero(back & (progress > constants.RELAPSE_PROGRESS * first))
    if len(relapsed):
        where = relapsed[0]
        lost = max(constants.RECOVERED_SHARE * float(progress[where]), wide)
        if final > float(best[where]) + lost:
            signs.append((int(at[where]), Sign.RELAPSE))
    facts = short_facts(rows)
    if from_scratch and not signs and facts is not None and facts.are_trouble:
        leapt = np.flatnonzero(smooth > constants.CLIMB * first)
        signs.append((int(at[leapt[0]]) if len(leapt) else int(at[1]), Sign.CLIMB))
    idle = from_scratch and not signs and not collapsed
    if idle and len(loss) >= constants.NO_LEARNING_STEPS:
        if final > constants.NO_LEARNING * first:
            signs.append((int(at[1]), Sign.NO_LEARNING))
        elif _is_stalled(everything, first, final):
            signs.append((int(at[1]), Sign.STALLED))
        elif len(loss) >= constants.STALLED_STEPS and final >= constants.LITTLE_LEARNT * first:
            signs.append((int(at[1]), Sign.LITTLE_LEARNT))
    return signs


def _is_stalled(loss: Floats, first: float, final: float) -> bool:
    """Whether the loss stands where it stood after the first quarter, high up."""
    if len(loss) < constants.STALLED_STEPS or final < constants.STALLED * first:
        return False
    quarter = float(np.median(loss[len(loss) // 4 :][: constants.FINAL_STEPS]))
    return quarter - final < constants.STALLED_PROGRESS * first


# No trouble by themselves, whatever the loss.
IDLE = (Sign.NO_LEARNING, Sign.STALLED, Sign.LITTLE_LEARNT)


def _descends_below_start(rows: Rows, at: int) -> bool:
    """Whether the loss falls again at the end and stands below where it began."""
    loss = _known_losses(rows)[1]
    after = _known_losses(rows.part(at))[1]
    if len(after) < 3 * constants.POINT_STEPS:
        return False
    third = len(after) // 3
    before_last, last = np.median(after[third : 2 * third]), np.median(after[-third:])
    falls = before_last - last > 3 * noise_of(after) / np.sqrt(third)
    return bool(falls and last < constants.NO_LEARNING * loss[0])


def _late(state: RateState, course: Points, *, collapsed: bool) -> Onset | None:
    shift = find_shift(course)
    if shift is not None:
        at, descending = shift
        step = _step(course.rows, at)
        start = int(course.start[at])
        return Onset(
            Sign.SHIFT, start, step, early=_is_early(state, start), collapsed=collapsed,
            descending=descending and not collapsed,
        )  # fmt: skip
    if not collapsed:
        return None
    tail = state.tail
    signs = _hard_signs(tail) or [(max(0, len(tail) - constants.FINAL_STEPS), Sign.SKIPS)]
    at, sign = min(signs, key=lambda pair: pair[0])
    row = state.rows - len(tail) + at
    early = _is_early(state, row)
    return Onset(sign, row, _step(tail, at), early=early, collapsed=True, descending=False)


def _is_early(state: RateState, row: int) -> bool:
    """Whether the rate had not been shown to work by then."""
    return row < constants.EARLY_STEPS and not state.setup.resumed


def deviation(values: Floats) -> float:
    """A robust standard deviation, never quite zero."""
    middle = np.asarray(np.median(values))
    return float(never_zero(1.4826 * np.median(np.abs(values - middle)), middle))


def noise_of(loss: Floats) -> float:
    """The loss's noise from step to step, its course left out."""
    if len(loss) < 3:
        return 0.0
    return 1.4826 * float(np.median(np.abs(np.diff(loss)))) / float(np.sqrt(2))


def _calm_noise(loss: Floats) -> float:
    """The noise of the calmest quarter: after a divergence it is that of the divergence."""
    parts = [p for p in np.array_split(loss, 4) if len(p) >= constants.MEDIAN_STEPS]
    return min((noise_of(part) for part in parts), default=noise_of(loss))


def trailing_medians(loss: Floats, size: int = constants.MEDIAN_STEPS) -> Floats:
    """The median of the last losses at each; at the start of half as many, or what there is."""
    padded = np.concatenate([np.full(size - 1, np.nan), loss])
    windows = np.lib.stride_tricks.sliding_window_view(padded, size)
    ordered = np.sort(windows, axis=1)
    known = (~np.isnan(windows)).sum(axis=1)
    rows = np.arange(len(loss))
    return (
        np.asarray((ordered[rows, (known - 1) // 2] + ordered[rows, known // 2]) / 2)
        if len(loss)
        else loss
    )


def _known_losses(rows: Rows) -> tuple[Integers, Floats]:
    loss = rows.of("loss")
    at = np.flatnonzero(np.isfinite(loss))
    return at, loss[at]


def _first_streak(mask: Mask, length: int) -> int | None:
    if len(mask) < length:
        return None
    windows = np.lib.stride_tricks.sliding_window_view(mask, length).all(axis=1)
    return int(np.argmax(windows)) if windows.any() else None


def _step(rows: Rows, at: int) -> int:
    value = rows.of("step")[at] if at < len(rows) else np.nan
    return int(value) if np.isfinite(value) else at
