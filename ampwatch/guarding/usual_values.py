"""What is usual in the steps of one optimizer, and the limit above which a value is an outlier.

Only steps that were taken count, so an outlier that was left out cannot move what is usual; one
that was taken can hardly: median, median deviation and the third largest value hold against two.
With few steps known every distance counts double.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

WINDOW = 128  # of the last steps that were taken: OLMo-core's
START = 16  # of them, before there is a limit
SETTLED = 64  # until then distances count double: OLMo-core begins here
DEVIATIONS = 6.0  # also OLMo-core's, of deviations that an outlier can move
RARE = 3  # from the top: two outliers that were taken do not raise the limit
MOST_OVER_RARE = 10.0  # times: Megatron-Bridge's factor
NEAR = 0.99  # of the limit: the same gradients may be above it on another rank
RATE_LEAP = 4.0  # times the highest rate before: warm-ups rise by less in a step
_TO_SIGMA = 1.4826  # from the median absolute deviation to a normal distribution's deviation
_EVERY = 8  # steps between two limits: sorting the window costs as much as all else
_MOST_OCTAVES = 1000.0  # of a limit that a float can hold


@dataclass(frozen=True, slots=True)
class Spread:
    """How a window of values is spread."""

    middle: float
    deviation: float  # as of a normal distribution, from the median deviation
    quarter: float  # a quarter are above
    rare: float  # the third largest


class _Window:
    """The last values of steps that were taken."""

    def __init__(self, window: int = WINDOW) -> None:
        self.limit = math.inf
        self.middle = math.nan
        self._values: deque[float] = deque(maxlen=window)
        self._taken = 0

    def _add(self, value: float) -> Spread | None:
        """Take a value; how all are spread, where it is time for another limit."""
        self._values.append(value)
        self._taken += 1
        if self._taken < START or self._taken % _EVERY:
            return None
        ordered = sorted(self._values)
        middle = ordered[len(ordered) // 2]
        distances = sorted([abs(one - middle) for one in ordered])
        deviation = _TO_SIGMA * distances[len(distances) // 2]
        return Spread(middle, deviation, ordered[-len(ordered) // 4], ordered[-RARE])

    @property
    def _width(self) -> float:
        return 1.0 if self._taken >= SETTLED else 2.0


class UsualSizes(_Window):
    """Sizes such as gradient norms, judged by their octaves.

    One is an outlier six robust deviations above the median, or ten times above the third largest:
    norms that differ by hundreds at the lower end have a wide deviation and yet none that large. It
    is none below `least` times the median, nor below `over_rare` times the third largest: a
    training whose every thirtieth batch is large is used to it.
    """

    def __init__(self, least: float, over_rare: float) -> None:
        super().__init__()
        self._least, self._over_rare = math.log2(least), math.log2(over_rare)

    def take(self, size: float) -> None:
        """A step with this size was taken."""
        if not 0.0 < size < math.inf:
            return
        spread = self._add(math.log2(size))
        if spread is None:
            return
        wide, middle, rare = self._width, spread.middle, spread.rare
        far = min(
            middle + wide * DEVIATIONS * spread.deviation, rare + wide * math.log2(MOST_OVER_RARE)
        )
        least = max(middle + wide * self._least, rare + wide * self._over_rare)
        self.middle = 2.0**middle
        self.limit = 2.0 ** min(max(far, least), _MOST_OCTAVES)


def usual_norms() -> UsualSizes:
    """For gradient norms: those of a calm training double by chance."""
    return UsualSizes(least=4.0, over_rare=1.5)


def usual_inputs() -> UsualSizes:
    """For the largest value that enters the model: stricter, since large ones may be harmless."""
    return UsualSizes(least=8.0, over_rare=4.0)


class UsualLosses(_Window):
    """Losses, judged by their distance above the median; they may be negative.

    One is an outlier six robust deviations above it, beyond what one batch in 100,000 would show by
    the tail of the last, and half of the way back to where the training began. The tail is an
    exponential one through the upper quartile and the third largest. A training that knows its data
    by heart has a heavier one: single batches a thousand times above the median, by which it
    unlearns nothing.
    """

    ONCE_IN = 1e5
    WAY_BACK = 0.5
    LEAST_SHARE = 0.25  # of the median: where a training was resumed, it began where it is
    FIRST = 8

    def __init__(self) -> None:
        super().__init__(SETTLED)  # of a loss that falls, older values say too much
        self._began = math.nan

    def take(self, loss: float) -> None:
        """A step with this loss was taken."""
        if not math.isfinite(loss):
            return
        spread = self._add(loss)
        if self._taken == self.FIRST:
            self._began = sorted(self._values)[self.FIRST // 2]
        if spread is None:
            return
        self.middle = spread.middle
        far = max(
            DEVIATIONS * spread.deviation,
            self._tail(spread),
            self.WAY_BACK * (self._began - spread.middle),
            self.LEAST_SHARE * abs(spread.middle),
        )
        self.limit = spread.middle + self._width * far if far > 0.0 else math.inf

    def _tail(self, spread: Spread) -> float:
        """How far above the median one batch in 100,000 lies."""
        count, far = len(self._values), DEVIATIONS * spread.deviation
        quarter, rare = spread.quarter - spread.middle, spread.rare - spread.middle
        if rare <= 0.0:
            return 0.0
        rare_share = (RARE - 0.5) / count
        slope = (rare - quarter) / math.log(0.25 / rare_share)
        reach = rare + slope * math.log(rare_share * self.ONCE_IN)
        return reach * max(1.0, math.sqrt(rare / far) if far > 0.0 else math.inf)


class UsualRates:
    """Learning rates: one is an outlier far above all before it and above its schedule's peak."""

    def __init__(self) -> None:
        self.limit = math.inf
        self.highest = 0.0
        self._taken = 0

    def take(self, rate: float) -> None:
        """A step with this rate was taken."""
        if not 0.0 < rate < math.inf:
            return
        self._taken += 1
        self.highest = max(self.highest, rate)
        if self._taken >= START:
            self.limit = RATE_LEAP * self.highest
