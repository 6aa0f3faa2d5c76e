"""How large the gradients of one optimizer usually are; an outlier cannot move that.

Only steps that were taken count. One is an outlier six robust deviations above their median, or ten
times above the third largest of them: norms that differ by hundreds at the lower end have a wide
deviation and yet none that large. It is none below four times the median, nor where it is not half
as large again as the third largest: a training whose every thirtieth batch is large is used to it.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Any

WINDOW = 128  # of the last steps that were taken: OLMo-core's
WARM_UP = 64  # of them, before a limit is given
DEVIATIONS = 6.0  # in octaves; also OLMo-core's, of deviations that an outlier can move
LEAST_FACTOR = 4.0  # gradients of a calm training double by chance
RARE = 3  # from the top: two outliers of the warm-up do not raise the limit
LEAST_OVER_RARE, MOST_OVER_RARE = 1.5, 10.0  # ten is Megatron-Bridge's factor
NEAR = 0.99  # of the limit: the same gradients may be above it on another rank
_TO_SIGMA = 1.4826  # from the median absolute deviation to a normal distribution's deviation
_EVERY = 8  # steps between two limits: sorting the window costs as much as all else


class UsualNorms:
    """The last norms of steps that were taken, and the limit above which one is an outlier."""

    def __init__(self) -> None:
        self.limit = math.inf
        self.median = math.nan
        self._octaves: deque[float] = deque(maxlen=WINDOW)
        self._taken = 0

    @property
    def is_known(self) -> bool:
        """Whether enough steps were taken to call one an outlier."""
        return self._taken >= WARM_UP

    def take(self, norm: float) -> None:
        """A step with this gradient norm was taken."""
        if not 0.0 < norm < math.inf:
            return
        self._octaves.append(math.log2(norm))
        self._taken += 1
        if self._taken >= WARM_UP and self._taken % _EVERY == 0:
            self._find_limit()

    def _find_limit(self) -> None:
        ordered = sorted(self._octaves)
        middle = ordered[len(ordered) // 2]
        distances = sorted(abs(one - middle) for one in ordered)
        deviation = _TO_SIGMA * distances[len(distances) // 2]
        rare = ordered[-RARE]
        far = min(middle + DEVIATIONS * deviation, rare + math.log2(MOST_OVER_RARE))
        least = max(middle + math.log2(LEAST_FACTOR), rare + math.log2(LEAST_OVER_RARE))
        self.median, self.limit = 2.0**middle, 2.0 ** max(far, least)


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen of one optimizer's gradients."""

    norm: float
    is_finite: bool
    usual: UsualNorms

    @property
    def is_outlying(self) -> bool:
        """Whether the step would harm."""
        return not self.is_finite or self.norm > self.usual.limit

    @property
    def is_near(self) -> bool:
        """Whether another rank may call it outlying."""
        return not self.is_finite or self.norm > NEAR * self.usual.limit

    @property
    def detail(self) -> dict[str, Any]:
        """For the event."""
        shown = {"grad_norm": self.norm, "usual": self.usual.median, "limit": self.usual.limit}
        return {name: one if math.isfinite(one) else str(one) for name, one in shown.items()}

    @property
    def words(self) -> str:
        """In words."""
        if not self.is_finite:
            return "The gradients were not finite"
        usual = self.usual
        return (
            f"The gradient norm was {self.norm:.3g}, usually {usual.median:.3g} (limit "
            f"{usual.limit:.3g})"
        )
