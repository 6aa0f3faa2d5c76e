"""The learning rate, lowered for a while in groups and schedules, then raised again in parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from ampwatch.probe.optimizers import OptimizerView, number_of

HOLD_STEPS = 200
PART_STEPS = 50  # between two parts of the way back
_MOST_A_PART = 1.7  # times: less than a leap of the rate
_SAME = 1e-6


class LoweredRate:
    """One lowering; it comes back unless somebody else has set the rates meanwhile."""

    def __init__(
        self, views: Callable[[], Iterable[OptimizerView]], factor: float, step: int
    ) -> None:
        self._views = views
        self.factor = factor
        parts = max(1, math.ceil(math.log(1 / factor) / math.log(_MOST_A_PART)))
        self._part, self.parts_left = factor ** (-1 / parts), parts
        self._next = step + HOLD_STEPS
        self._multiply(factor)
        self._left = self._bases()

    def rates(self) -> list[float]:
        """Each group's rate."""
        return [number_of(group.get("lr")) for group in self._groups()]

    def _bases(self) -> list[float]:
        """Of each group what a schedule does not move: its initial rate, else the rate."""
        return [number_of(group.get("initial_lr", group.get("lr"))) for group in self._groups()]

    def _groups(self) -> list[dict[str, Any]]:
        optimizers = [view.reference() for view in self._views()]
        return [group for one in optimizers if one is not None for group in one.param_groups]

    @property
    def is_undone(self) -> bool:
        """Whether somebody else has set the rates since."""
        now = self._bases()
        pairs = zip(now, self._left, strict=False)
        return len(now) != len(self._left) or any(
            abs(one - other) > _SAME * abs(other) for one, other in pairs
        )

    def raise_if_due(self, step: int) -> bool:
        """Come back by a part where it is time; whether that was the last."""
        if step < self._next:
            return False
        self._next = step + PART_STEPS
        self._raise(1)
        return not self.parts_left

    def raise_all(self) -> None:
        """Come back at once: the watch ends, and the rate is not to stay low."""
        self._raise(self.parts_left)

    def _raise(self, parts: int) -> None:
        self._multiply(self._part**parts)
        self.parts_left -= parts
        self._left = self._bases()

    def _multiply(self, factor: float) -> None:
        for view in self._views():
            optimizer: Any = view.reference()
            if optimizer is not None:
                view.multiply_rates(optimizer, factor)
