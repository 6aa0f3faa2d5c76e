"""Whether the loss ended where it was best, or worse, and since when: of any record that has one.

The loss is compared with its own best: how far its median stands above the lowest before it, its
*excess*. What healed before is the measure: an excess counts only if it is twice any earlier one,
and is final only if it lasted twice as long. So noise, heavy tails, an order of the data and
spikes that heal are no trouble, however they are distributed. A few entries show no noise: a tenth
of the level stands for three of them.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

import numpy as np

from ampwatch.diagnosis.column_arrays import Floats, median
from ampwatch.diagnosis.learning_rate.constants import NOTHING
from ampwatch.diagnosis.learning_rate.noise import robust_deviation, trailing_medians
from ampwatch.diagnosis.loss_spikes import independent_values

LEAST = 3  # fewer losses are no course
# The median that smooths: of a fifteenth of the losses, of one while they are few.
_PARTS, _FEW, _WIDEST = 15, 12, 15
# Of an excess: from where it began, as a share of where it ended.
_BEGUN = 1 / 4
_TIMES_HEALED = 2.0
# The least that matters, of the level and of what was gained.
_OF_LEVEL, _OF_GAIN = 0.1, 0.05
# A prior for the noise: a tenth of the level, worth so many differences.
_PRIOR, _PRIOR_WORTH = 0.1, 3
# Deviations that are not chance: of many losses, and of few, where the noise itself is uncertain
# (one look in two hundred). A state that is final takes twice as many.
_DEVIATIONS, _FOR_FEW = 3.0, 3.0
_SURE = 2.0
_MANY, _LEAST_SIGNED = 30, 12
# No data make a loss so many times worse than it was at first, nor in so few entries.
_BEYOND, _BEYOND_ENTRIES, _FAR_BEYOND = 10.0, 2, 1000.0
_GAVE_BACK = 0.2  # of the climb: the loss is on its way down
_MOST_ABOVE = 0.8  # of all pairs of a loss before the rise and one at the end
_LOST = 0.5  # of what was gained
_CLIMBED, _ABRUPT, _AT_ONCE = 3 / 4, 1 / 20, 5  # of the height, within so much of the record
_USUAL = (2, 98)  # percentiles of what was before
_SIGNED_TIMES = 4.0  # the range of all before, for a loss that may be negative


class LossEnd(enum.Enum):
    """How a loss ended, held against its own course."""

    TOO_FEW = "too few losses"
    LEARNING = "at or near its best"
    FLAT = "where it began"
    HIGHER = "higher, not by much"
    NOT_BACK = "higher, and not back yet"
    WORSE = "worse, and not coming back"


@dataclass(frozen=True, slots=True)
class LossCourse:
    """How a loss ended, since which of its entries, and the values that show it."""

    end: LossEnd
    since: int = 0  # the entry at which the rise began
    first: float = float("nan")
    best: float = float("nan")
    last: float = float("nan")
    peak: float = float("nan")
    is_abrupt: bool = False  # most of the climb took a small part of the record
    wanders: bool = False  # it rose as it fell in the same time just before


def loss_course(losses: Floats) -> LossCourse:
    """How these losses ended, in their order; they are finite, and may be medians of stretches."""
    count = len(losses)
    if count < LEAST:
        return LossCourse(LossEnd.TOO_FEW)
    size = 1 if count < _FEW else min(_WIDEST, max(3, count // _PARTS) | 1)
    smooth = trailing_medians(losses, size)
    smooth[: size - 1] = smooth[size - 1]
    best = np.minimum.accumulate(smooth)
    excess = smooth - best
    height = float(excess[-1])
    low = np.flatnonzero(excess <= _BEGUN * height)
    # The median of a window is up once half of the window is.
    since = max(int(low[-1]) + 1 - size // 2, 1) if height > 0 else count
    past, level = excess[:since], float(best[-1])
    first, peak = float(smooth[0]), float(smooth[since:].max(initial=smooth[-1]))
    climbed = np.flatnonzero(excess[since:] >= _CLIMBED * height)[:1]
    is_abrupt = len(climbed) > 0 and climbed[0] < max(_AT_ONCE, _ABRUPT * count)
    if losses.min() > 0 and smooth[-1] >= _FAR_BEYOND * losses[0] >= _FAR_BEYOND * NOTHING:
        near = np.flatnonzero(smooth < _BEYOND * losses[0])
        since = int(near[-1]) + 1 if len(near) else 1
        return LossCourse(
            LossEnd.WORSE, since, float(losses[0]), float(losses[0]), float(smooth[-1]),
            float(losses.max()), is_abrupt=True,
        )  # fmt: skip
    course = LossCourse(
        LossEnd.LEARNING, since, first, level, float(smooth[-1]), peak, bool(is_abrupt)
    )
    noise, bar = _noise(losses[:since], level)
    chance = noise * (bar * _error(since, count - since) + _luck(since, size))
    beyond = _beyond_spread(losses, course, size)
    if beyond <= 1 or not _matters(losses, course, past, chance):
        gained = first - course.last
        flat = gained <= max(noise / np.sqrt(size), _OF_LEVEL / 4 * abs(first))
        return replace(course, end=LossEnd.FLAT if flat else LossEnd.LEARNING)
    end = _how_bad(smooth, course, past)
    sure = since >= _MANY or (height > _SURE * chance and beyond > _SURE)
    return replace(course, end=end if sure else LossEnd.NOT_BACK, wanders=_wanders(smooth, course))


def _wanders(smooth: Floats, course: LossCourse) -> bool:
    """Whether the loss rose as it fell in the same time just before: the order of the data."""
    lasted, since = len(smooth) - course.since, course.since
    if since < max(lasted, _MANY) or course.last > smooth[:since].max():
        return False
    top = since - lasted + int(smooth[since - lasted : since].argmax())
    height, rose = course.last - course.best, smooth[top] - smooth[: top + 1].min()
    # The first fall of a record is no order of its data, but what was learnt.
    is_first = top < lasted and rose < _BEGUN * height
    return not is_first and bool(smooth[top] - course.best >= height / 2)


def _beyond_spread(losses: Floats, course: LossCourse, size: int) -> float:
    """How many times farther a few losses ended above their best than their ratios go by chance.

    A loss of single samples spreads by its ratios: the lowest of a few lies far below all others.
    How far it falls again after its best shows the noise as well as what was before.
    """
    since = course.since
    if since >= _MANY or not losses.min() > NOTHING:
        return float("inf")
    logs = np.log(losses)
    before, after = np.diff(logs[:since]), np.diff(logs[since:])
    before -= before.mean() if len(before) else 0.0  # what was learnt is no noise
    worth, changes = _PRIOR_WORTH + len(before), np.concatenate([before, after[after < 0]])
    squares = _PRIOR_WORTH * _PRIOR**2 + float((changes**2).sum()) / 2
    noise = float(np.sqrt(squares / (_PRIOR_WORTH + len(changes))))
    bar = _DEVIATIONS * (1 + _FOR_FEW / worth)
    chance = noise * (bar * _error(since, len(losses) - since) + _luck(since, size))
    return float(np.log(course.last / course.best)) / chance


def _noise(before: Floats, level: float) -> tuple[float, float]:
    """The noise of one loss before the rise, and how many deviations are not chance.

    Losses that wander are as noisy as their later half is wide, and stand for few.
    """
    changes = np.diff(before)
    size = max(abs(level), 1e-12)
    if len(changes) >= _MANY:
        later = before[len(before) // 2 :]
        wide = max(robust_deviation(changes) / np.sqrt(2), robust_deviation(later), 1e-3 * size)
        worth = _PRIOR_WORTH + independent_values(later, len(later))
        return wide, _DEVIATIONS * (1 + _FOR_FEW / worth)
    if len(changes) >= _FEW:
        changes = changes[len(changes) // 2 :]  # at first a loss falls, which is no noise
    squares = _PRIOR_WORTH * (_PRIOR * size) ** 2 + float((changes**2).sum()) / 2
    worth = _PRIOR_WORTH + len(changes)
    return float(np.sqrt(squares / worth)), _DEVIATIONS * (1 + _FOR_FEW / worth)


def _error(before: int, after: int) -> float:
    """The error of the difference of two means of so few losses, in deviations; of many, 1."""
    if before >= _MANY or not (before and after):
        return 1.0
    return float(np.sqrt(1 / before + 1 / after))


def _luck(before: int, size: int) -> float:
    """How far the lowest of so many medians lies below the others by luck, in deviations."""
    return float(np.sqrt(2 * np.log1p(before / size) / size))


def _matters(losses: Floats, course: LossCourse, past: Floats, chance: float) -> bool:
    """Whether the loss ended above its best by more than chance, and more than ever healed."""
    height = course.last - course.best
    if not height > max(chance, _TIMES_HEALED * float(past.max(initial=0.0))):
        return False
    if _share_above(losses, course.since) < _MOST_ABOVE:
        return False
    if losses.min() < 0 or course.first < NOTHING:
        if len(losses) < _LEAST_SIGNED:
            return False
        before = losses[: max(1, course.since)]
        usual = float(np.ptp(np.percentile(before, _USUAL)))
        return height > _SIGNED_TIMES * max(usual, abs(course.best))
    return height >= max(_OF_LEVEL * course.best, _OF_GAIN * (course.first - course.best))


def _share_above(losses: Floats, since: int) -> float:
    """How likely one of the last losses is higher than one just before the rise.

    Where two losses are printed in turn, one that rises moves the median and half of the entries.
    """
    late = losses[-max(1, (len(losses) - since + 1) // 2) :]
    # Of those before it only the nearest: a loss that had just come down was higher before.
    near = max(_MANY // 4, len(late) // 2)
    early = np.sort(losses[max(0, since - near) : since])
    below = np.searchsorted(early, late) + np.searchsorted(early, late, side="right")
    return float(below.mean() / 2 / max(1, len(early)))


def _how_bad(smooth: Floats, course: LossCourse, past: Floats) -> LossEnd:
    """Whether a loss that stands above its best is lost, or may still come back."""
    height, lasted = course.last - course.best, len(smooth) - course.since
    beyond = course.last >= _BEYOND * max(course.first, course.best) > 0
    if beyond and lasted >= _BEYOND_ENTRIES:
        return LossEnd.WORSE
    if lasted < max(LEAST, _TIMES_HEALED * _longest(past, height)):
        return LossEnd.NOT_BACK
    climb = course.peak - course.best
    third = max(1, lasted // 3)
    falls = median(smooth[-third:]) < median(smooth[-2 * third : -third])
    if course.peak - course.last > _GAVE_BACK * climb and falls:
        return LossEnd.NOT_BACK
    gained = course.first - course.best
    lost = height >= _LOST * gained or course.last >= (1 + _LOST) * course.best > 0
    return LossEnd.WORSE if lost else LossEnd.HIGHER


def _longest(past: Floats, height: float) -> int:
    """How long the longest earlier excess lasted that was an eighth as high, until it healed."""
    up = np.concatenate([[False], past > _BEGUN / 2 * height, [False]])
    edges = np.flatnonzero(np.diff(up.astype(np.int8)))
    return int((edges[1::2] - edges[::2]).max(initial=0))
