"""What a program logged beside the loss, folded: each metric in a fixed number of cells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ampwatch.diagnosis.blocks import Block
from ampwatch.diagnosis.column_arrays import Floats, Integers
from ampwatch.diagnosis.doubling_windows import DoublingWindows
from ampwatch.metric_names import Metric, metric_of

_MOST_METRICS, _MOST_CELLS = 24, 512
_STEP, _VALUE, _COUNT = range(3)
_EMPTY = DoublingWindows.empty(np.add, _MOST_CELLS, 3)


@dataclass(frozen=True, slots=True)
class MetricCourse:
    """How one metric went: its values in their order, or means of stretches, each with its step."""

    name: str
    step: Integers
    value: Floats

    def at(self, steps: Integers) -> Floats:
        """The metric's last value at each of these steps; nan before its first."""
        before = np.searchsorted(self.step, steps, side="right") - 1
        return np.where(before >= 0, self.value[np.maximum(before, 0)], np.nan)


@dataclass(frozen=True, slots=True)
class LostMetric:
    """A metric that is not finite any more: since which step, and in how many values."""

    since: int
    count: int


def _follow_lost(
    lost: dict[str, LostMetric], name: str, step: Integers, finite: npt.NDArray[np.bool_]
) -> None:
    """Follow whether a metric's values are finite up to the last one."""
    if not len(step) or metric_of(name) is not Metric.VALIDATION:
        return
    good = np.flatnonzero(finite)
    rest = step[good[-1] + 1 :] if len(good) else step
    before = None if len(good) else lost.get(name)
    lost.pop(name, None)
    if len(rest) and len(lost) < _MOST_METRICS:
        since, count = (int(rest[0]), 0) if before is None else (before.since, before.count)
        lost[name] = LostMetric(since, count + len(rest))


@dataclass(frozen=True, slots=True)
class MetricHistory:
    """The metrics whose names say what they measure; `fold` makes a new history."""

    cells: Mapping[str, DoublingWindows] = field(default_factory=dict)
    lost: Mapping[str, LostMetric] = field(default_factory=dict)  # those not finite any more

    def fold(self, block: Block) -> MetricHistory:
        """The history of metrics with one more block."""
        names, codes = block.metrics.texts("name")
        if not names:
            return self
        cells, lost = dict(self.cells), dict(self.lost)
        steps, values = block.metrics.step, block.metrics.numbers("value")
        finite = np.isfinite(values)
        for code, name in enumerate(names):
            own = codes == code
            _follow_lost(lost, name, steps[own], finite[own])
            is_known = name in cells or (len(cells) < _MOST_METRICS and metric_of(name) is not None)
            own &= finite
            if is_known and own.any():
                rows = np.stack([steps[own], values[own], np.ones(own.sum())], axis=1)
                cells[name] = cells.get(name, _EMPTY).with_next(rows)
        return MetricHistory(cells, lost)

    def of(self, *wanted: Metric) -> Iterator[MetricCourse]:
        """The courses of the metrics that are one of these."""
        for name, cells in self.cells.items():
            if metric_of(name) in wanted:
                rows = cells.values[cells.values[:, _COUNT] > 0]
                step = (rows[:, _STEP] / rows[:, _COUNT]).astype(np.int64)
                yield MetricCourse(name, step, rows[:, _VALUE] / rows[:, _COUNT])
