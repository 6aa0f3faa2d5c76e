"""Batches that stand out from those before them, folded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from ampwatch.diagnosis import policy
from ampwatch.diagnosis.learning_rate import Rows
from ampwatch.diagnosis.named import Times
from ampwatch.diagnosis.signals import Floats


@dataclass(frozen=True, slots=True)
class Outlier:
    """A batch whose input or loss is far off its recent median."""

    signal: str
    step: int
    value: float
    median: float


@dataclass(frozen=True, slots=True)
class BatchCourse:
    """What is remembered of them; `fold` makes a new one."""

    times: Times = field(default_factory=Times)
    first: Outlier | None = None
    firm: int = 0  # of them, how many overflowed or had an outlying input
    crowded: int = 0  # of them, how many came close upon two others
    last_two: tuple[int, ...] = ()  # positions

    @property
    def are_crowded(self) -> bool:
        """Whether they come in swarms: then they are no batches apart."""
        return 2 * self.crowded >= self.times.count > 0

    def fold(self, before: Rows, rows: Rows, start: int) -> BatchCourse:
        """The course with a block more; `before` are the rows that came before it.

        A batch is judged when the rows after it have shown whether it was isolated, so the last
        few rows of a block are judged with the next one.
        """
        recent = before.part(-policy.BATCH_WINDOW - policy.BATCH_AFTER)
        both = Rows(np.concatenate([recent.values, rows.values]))
        begin = max(0, len(recent) - policy.BATCH_AFTER)
        course = self
        for at, outlier in _outliers(both, begin):
            firm = outlier.signal != "loss" or bool(both.of("skipped")[at])
            course = course._with(outlier, start + at - len(recent), firm=firm)
        return course

    def _with(self, outlier: Outlier, position: int, *, firm: bool) -> BatchCourse:
        third = len(self.last_two) == 2 and position - self.last_two[0] < policy.BATCH_APART
        return BatchCourse(
            times=self.times.and_at(outlier.step, position),
            first=self.first or outlier,
            firm=self.firm + firm,
            crowded=self.crowded + third,
            last_two=(*self.last_two, position)[-2:],
        )


def _outliers(rows: Rows, begin: int) -> Iterator[tuple[int, Outlier]]:
    """Skips after an accepted step, and leaps of the loss, that come with an outlying batch."""
    skipped, loss, scale = rows.of("skipped") > 0, rows.of("loss"), rows.of("scale")
    leap = np.zeros(len(rows), np.bool_)
    leap[1:] = (loss[1:] > policy.BATCH_LOSS * loss[:-1]) & (loss[:-1] > 0)
    bad = rows.of("loss_bad") > 0
    after_good = np.concatenate(([False], ~skipped[:-1]))
    grown = np.concatenate(([False], scale[1:] > scale[:-1]))  # that skip is growth's own
    candidates = np.flatnonzero(((skipped | bad) & after_good & ~grown) | (leap & ~skipped))
    candidates = candidates[(candidates >= begin) & (candidates < len(rows) - policy.BATCH_AFTER)]
    for at in candidates[: policy.BATCH_CANDIDATES].tolist():
        past = rows.part(max(0, at - policy.BATCH_WINDOW), at)
        outlier = _outlier(past.where(past.accepted), rows, at)
        if outlier is not None and _is_isolated(outlier, rows.part(at + 1), past):
            yield at, outlier


def _is_isolated(outlier: Outlier, after: Rows, past: Rows) -> bool:
    """Whether the next steps are as those before: else it is a change, or a spike that lasts."""
    later = after.part(0, policy.BATCH_AFTER)
    values, losses = later.of(outlier.signal), later.of("loss")
    usual = _median(past.of("loss"))
    calm = usual is None or bool((losses < policy.BATCH_CALM * usual).mean() > 0.5)
    back = bool((values < policy.BATCH_CALM * outlier.median).mean() > 0.5)
    return back and calm and not bool((later.of("skipped") > 0).mean() > 0.5)


def _outlier(past: Rows, rows: Rows, at: int) -> Outlier | None:
    if len(past) < policy.BATCH_LEAST or not _ordinary_update(past):
        return None
    step = int(rows.of("step")[at])
    limits = (("input_amax", policy.BATCH_INPUT), ("loss", policy.BATCH_LOSS))
    for signal, times in limits:
        value, median = float(rows.of(signal)[at]), _median(past.of(signal))
        most = _most(past.of(signal))
        if median is not None and median > 0 and value > times * max(median, most / 2):
            return Outlier(signal, step, value, median)
    return None


def _most(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(known.max()) if len(known) else 0.0


def _ordinary_update(past: Rows) -> bool:
    """Whether the last update was like those before it; unknown is no."""
    moves = past.of("update_norm")
    median, last = _median(moves), float(moves[-1])
    return median is not None and last <= policy.BATCH_UPDATE * median


def _median(values: Floats) -> float | None:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) >= policy.BATCH_LEAST else None
