"""How a rerun came out, by its losses beside those of the other reruns. Pure.

A verdict is made of one run alone. Where several were trained alike but for their rate, the losses
at equal steps say more: a rate is too high if the training is lost with it, if its loss stood far
above where it began, or if it learnt much less than with a lower rate.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ampwatch.recovery.change import RATE, Cure, Value

LEARNT = 0.5  # of the progress of a lower rate: less is above the limit, though it lives
STOOD_ABOVE = 0.5  # of that progress above the first loss, for WINDOW steps: it has diverged
WINDOW = 20  # steps whose median is one loss: a leap of a few steps does no harm
_LEAST_TO_COMPARE = 40  # steps: enough to have learnt
_HARDLY = 0.03  # of the first loss: what came down by less has not learnt, what rose by more lost


@dataclass(frozen=True, slots=True)
class Try:
    """One rerun: what was changed, and how many steps it trained."""

    change: str
    value: Value
    steps: int
    verdict: str
    is_stable: bool  # it came as far as asked, and the run's trouble was not found
    told: str  # its headline, or why it ended
    loss_at: Mapping[str, float]  # by step
    run: str  # its folder
    is_lost: bool = False  # it ended before its time, or with losses or weights that are not finite
    highest: float | None = None  # the highest median of WINDOW losses
    kept: Cure | None = None  # what was changed besides the rate
    # Whether the run's named trouble is gone, whatever else came; None: not asked, or not known.
    is_cured: bool | None = None

    @property
    def rate(self) -> float:
        """The rate that was tried; 0 where something else was changed."""
        return self.value if self.change == RATE and isinstance(self.value, float) else 0.0


def failed_rates(rates: Sequence[Try]) -> set[float]:
    """The rates, of these reruns, of which one came out badly."""
    return {one.rate for one in rates if not _came_out_well(one, rates)}


def ceiling(rates: Sequence[Try], rate: float) -> float | None:
    """The loss above which a rate is too high; None where no lower one has shown how far it is."""
    lower = [one for one in rates if one.rate < rate and not one.is_lost]
    spans = [(first, first - last) for one in lower for first, last in [_ends(one)]]
    first, progress = max(spans, key=lambda span: span[1], default=(math.nan, math.nan))
    return first + STOOD_ABOVE * progress if progress > 0 else None


def highest_loss(losses: Mapping[int, float]) -> float | None:
    """The highest median of WINDOW losses; None of fewer."""
    course = [losses[step] for step in sorted(losses)]
    windows = range(len(course) - WINDOW + 1)
    return max((statistics.median(course[at : at + WINDOW]) for at in windows), default=None)


def is_doubtful(one: Try) -> bool:
    """Whether its loss stood above its first: only a lower rate shows what it might have learnt."""
    first, _ = _ends(one)
    return one.highest is not None and one.highest - first > _HARDLY * abs(first)


def has_learnt(one: Try) -> bool:
    """Whether its loss came down; true where none is known."""
    first, last = _ends(one)
    return not first - last <= _HARDLY * abs(first)


def _rose(one: Try) -> bool:
    """Whether its loss ended above where it began."""
    first, last = _ends(one)
    return last - first > _HARDLY * abs(first)


def _ends(one: Try) -> tuple[float, float]:
    """The first loss and the last; nan where they are not known."""
    steps = sorted(map(int, one.loss_at))
    if len(steps) < 2:
        return math.nan, math.nan
    return one.loss_at[str(steps[0])], one.loss_at[str(steps[-1])]


def _came_out_well(one: Try, rates: Sequence[Try]) -> bool:
    if one.is_lost or _rose(one):
        return False
    compared = [found for other in rates if (found := _compared(one, other)) is not None]
    if not compared:
        return one.is_stable
    if any(progress < LEARNT * best for progress, best in compared):
        return False
    most = ceiling(rates, one.rate)
    return one.highest is None or most is None or one.highest <= most


def _compared(one: Try, other: Try) -> tuple[float, float] | None:
    """The progress of a rerun, and of one at a lower rate, by the last step that both have."""
    shared = sorted(map(int, set(one.loss_at) & set(other.loss_at)))
    if other.rate >= one.rate or other.is_lost:
        return None
    if not shared or shared[-1] < shared[0] + _LEAST_TO_COMPARE:
        return None
    first, last = str(shared[0]), str(shared[-1])
    return one.loss_at[first] - one.loss_at[last], other.loss_at[first] - other.loss_at[last]
