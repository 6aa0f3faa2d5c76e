"""What became of a training, and where a configuration's highest stable rate lies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ampwatch.diagnosis.learning_rate import RateRows

SEEDS = (0, 1)
FINAL = 20  # steps whose median is the final loss
LEARNT = 0.5  # of the best decrease: less, at a rate above the best one, is no training
RELAPSED = 0.5  # of its own progress lost at the end ...
PROGRESS = 0.1  # ... where that was more than noise
HARDLY = 0.75  # of the first loss left at the best rate: the task was hardly learnt
TIMES_OVER = (1.5, 64.0)


@dataclass(frozen=True)
class Outcome:
    """One training's course in a few numbers."""

    first: float
    final: float | None  # none where it is not finite
    best: float
    end_skips: int  # of the last FINAL steps


def outcome_of(rows: RateRows) -> Outcome:
    loss, bad = rows.of("loss"), rows.of("loss_bad") > 0
    known = loss[np.isfinite(loss)]
    smooth = [float(np.median(known[max(0, at - 9) : at + 1])) for at in range(len(known))]
    end = loss[-FINAL:][np.isfinite(loss[-FINAL:])]
    lost = bad[-FINAL:].sum() > FINAL // 2 or not len(end)
    first = float(known[0]) if len(known) else math.inf
    return Outcome(
        first=_short(first),
        final=None if lost else _short(float(np.median(end))),
        best=_short(min(smooth, default=first)),
        end_skips=int(rows.of("skipped")[-FINAL:].sum()),
    )


@dataclass(frozen=True)
class Truth:
    """A configuration's stable range, out of its sweep."""

    best: float  # the lowest final loss of the sweep
    best_rate: float
    first: float
    highest_stable: float | None
    lowest_unstable: float | None

    @property
    def is_learnt(self) -> bool:
        """Whether the task was learnt at all: else "stable" and "gap" stand on noise."""
        return self.best < HARDLY * self.first

    @property
    def limit(self) -> float | None:
        """The middle, in octaves, between the highest stable rate and the next one."""
        if self.highest_stable is None or self.lowest_unstable is None:
            return None
        return math.sqrt(self.highest_stable * self.lowest_unstable)

    def gap(self, outcome: Outcome) -> float:
        """The share of the possible decrease that was missed; at most 1."""
        if outcome.final is None:
            return 1.0
        return float(np.clip((outcome.final - self.best) / (self.first - self.best), 0.0, 1.0))

    def is_stable(self, outcome: Outcome, rate: float) -> bool:
        """Whether it trained: finite to the end, no relapse, and not worse for being too high."""
        if outcome.final is None or outcome.end_skips > FINAL // 4:
            return False
        progress = outcome.first - outcome.best
        learnt = progress > PROGRESS * outcome.first
        if learnt and outcome.final > outcome.best + RELAPSED * progress:
            return False
        return rate <= self.best_rate or self.gap(outcome) < LEARNT

    def unstable(self, rates: Sequence[float]) -> list[float]:
        """The grid's rates that lie 1.5 to 64 times over the limit."""
        low, high = TIMES_OVER
        limit = self.limit
        return [] if limit is None else [r for r in rates if low * 0.94 <= r / limit <= high]


def truth_of(rates: Sequence[float], sweep: Mapping[tuple[float, int], Outcome | None]) -> Truth:
    finals = {rate: np.mean([_final(sweep[rate, seed]) for seed in SEEDS]) for rate in rates}
    best_rate = min(rates, key=lambda rate: finals[rate])
    outcomes = {key: outcome for key, outcome in sweep.items() if outcome is not None}
    first = float(np.mean([outcome.first for outcome in outcomes.values()]))
    truth = Truth(float(finals[best_rate]), best_rate, first, None, None)
    stable = [all(truth.is_stable(outcomes[r, s], r) for s in SEEDS) for r in rates]
    count = stable.index(False) if False in stable else len(rates)
    return Truth(
        truth.best,
        best_rate,
        first,
        rates[count - 1] if count else None,
        rates[count] if count < len(rates) else None,
    )


def _final(outcome: Outcome | None) -> float:
    return math.inf if outcome is None or outcome.final is None else outcome.final


def _short(value: float) -> float:
    return float(f"{value:.5g}")
