"""Where a training's stable rates end, by training at each of a row of rates."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from examples.gallery.variety.training.loops import Loop, Plan

GRID = tuple(2.0**octave for octave in range(-5, 8))  # times the nominal rate
_FINAL = 20  # steps whose median is the final loss
_LEARNT = 0.5  # of the best decrease: less, above the best rate, is no training
_HARDLY = 0.8  # of the first loss left at the best rate: the task was hardly learnt


@dataclass(frozen=True, slots=True)
class Limit:
    """The highest stable rate of the grid and the next one; and what the best rate came to."""

    stable: float
    unstable: float
    best_rate: float
    first: float
    best: float

    def fails(self, losses: Sequence[float], rate: float) -> bool:
        """Whether a training at this rate failed: lost, relapsed, or worse for being too high."""
        end = final(losses)
        if end is None:
            return True
        missed = (end - self.best) / max(1e-12, self.first - self.best)
        return rate > self.best_rate and missed > _LEARNT


def final(losses: Sequence[float]) -> float | None:
    """The loss at the end; none where most of it is not finite."""
    end = [loss for loss in losses[-_FINAL:] if math.isfinite(loss)]
    return statistics.median(end) if len(end) > _FINAL // 2 else None


@functools.lru_cache(maxsize=2)
def sweep_of(plan: Plan) -> dict[float, list[float]]:
    """The losses at each rate of the grid, with one seed and without a fault."""
    plan = replace(plan, at=0, severity=0.0)
    return {rate: Loop(plan, rate).go() for rate in (plan.nominal * factor for factor in GRID)}


@functools.lru_cache(maxsize=256)
def limit_of(plan: Plan) -> Limit | None:
    """The limit, by a sweep with one seed; none where the task is not learnt or all rates are."""
    swept = sweep_of(plan)
    rates, courses = list(swept), list(swept.values())
    finals = [final(losses) for losses in courses]
    known = [(end, rate) for end, rate in zip(finals, rates, strict=True) if end is not None]
    first = statistics.median(losses[0] for losses in courses)
    if not known or min(known)[0] > _HARDLY * first:
        return None
    best, best_rate = min(known)
    limit = Limit(0.0, 0.0, best_rate, first, best)
    bad = [limit.fails(losses, rate) for losses, rate in zip(courses, rates, strict=True)]
    if True not in bad or bad.index(True) == 0:
        return None
    edge = bad.index(True)
    return replace(limit, stable=rates[edge - 1], unstable=rates[edge])
