"""What casts below sixteen bits did to each layer's operands, folded: the last samples of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ampwatch.diagnosis.blocks import Block, BlockLayerRows
from ampwatch.diagnosis.column_arrays import Floats, Integers
from ampwatch.diagnosis.event import Event
from ampwatch.diagnosis.layer_history import MOST_LAYERS
from ampwatch.rows import EventKind

# A layer is judged by its last samples, so that what begins late is seen and what is over is not.
LAST_SAMPLES = 8
ROLES = ("input", "weight", "grad")


@dataclass(frozen=True, slots=True)
class CastSamples:
    """The last samples of what casts did to one operand of a layer, the oldest first."""

    steps: tuple[int, ...] = ()
    cut: tuple[float, ...] = ()  # shares
    flushed: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class CastScales:
    """The delayed scales of one layer's casts in one step: the least and the largest of all ranks.

    They are nan where a role has none.
    """

    step: int
    least: tuple[float, ...]
    largest: tuple[float, ...]

    def with_rank(self, values: Sequence[float]) -> CastScales:
        """The delayed scales of a layer's casts in a step, with those of one more rank."""
        least, largest = np.fmin(self.least, values), np.fmax(self.largest, values)
        return CastScales(self.step, tuple(least.tolist()), tuple(largest.tolist()))


@dataclass(frozen=True, slots=True)
class CastHistory:
    """The last samples of casts below 16 bits, by layer and operand; `fold` makes a new one."""

    operands: dict[tuple[str, str], CastSamples] = field(default_factory=dict)  # by layer and role
    staleness: dict[str, tuple[tuple[int, ...], tuple[float, ...]]] = field(default_factory=dict)
    scales: dict[str, tuple[CastScales, ...]] = field(default_factory=dict)  # by layer
    resumed_at: int | None = None  # where the last attempt went on from a checkpoint
    after_resume: dict[str, CastScales] = field(
        default_factory=dict
    )  # the first sample of each layer

    def fold(self, block: Block) -> CastHistory:
        """The history of casts with one more block."""
        rows, history = block.layers, self._before(block) if block.restart else self
        for role in ROLES:
            cut = rows.numbers[f"{role}_saturated_share"]
            flushed = rows.numbers[f"{role}_flushed_share"]
            if not np.isnan(flushed).all():
                history = history._with_role(rows, role, cut, flushed)
        if not np.isnan(rows.numbers["amax_staleness"]).all():
            history = history._with_stale(rows)
        for step in map(_resumed_at, block.events):
            if step is not None and step != history.resumed_at:
                history = replace(history, resumed_at=step, after_resume={})
        if not all(np.isnan(rows.numbers[f"{role}_scale"]).all() for role in ROLES):
            history = history._with_scales(rows)
        return history

    def _before(self, block: Block) -> CastHistory:
        """What of the cast samples remains when an attempt begins anew from an earlier step."""
        first = int(block.step.min()) if len(block.step) else 0
        operands = {
            key: CastSamples(*zip(*kept, strict=True))
            for key, old in self.operands.items()
            if (kept := [one for one in zip(old.steps, old.cut, old.flushed, strict=True)
                         if one[0] < first])
        }  # fmt: skip
        staleness = {
            name: (tuple(one[0] for one in left), tuple(one[1] for one in left))
            for name, known in self.staleness.items()
            if (left := [one for one in zip(*known, strict=True) if one[0] < first])
        }
        scales = {
            name: earlier
            for name, held in self.scales.items()
            if (earlier := tuple(one for one in held if one.step < first))
        }
        return CastHistory(operands, staleness, scales)

    def _with_role(
        self, rows: BlockLayerRows, role: str, cut: Floats, flushed: Floats
    ) -> CastHistory:
        operands = dict(self.operands)
        for name, at in _last_of_each(rows, flushed):
            key = (name, role)
            if key not in operands and len(operands) >= MOST_LAYERS:
                continue
            old = operands.get(key, CastSamples())
            told = zip(rows.step[at].tolist(), cut[at].tolist(), flushed[at].tolist(), strict=True)
            known = _worst_of_each_step([*zip(old.steps, old.cut, old.flushed, strict=True), *told])
            operands[key] = CastSamples(*zip(*known, strict=True))
        return replace(self, operands=operands)

    def _with_stale(self, rows: BlockLayerRows) -> CastHistory:
        staleness = dict(self.staleness)
        values = rows.numbers["amax_staleness"]
        for name, at in _last_of_each(rows, values):
            if name in staleness or len(staleness) < MOST_LAYERS:
                old = zip(*staleness.get(name, ((), ())), strict=True)
                told = zip(rows.step[at].tolist(), values[at].tolist(), strict=True)
                steps, kept = zip(*_worst_of_each_step([*old, *told]), strict=True)
                staleness[name] = (steps, kept)
        return replace(self, staleness=staleness)

    def _with_scales(self, rows: BlockLayerRows) -> CastHistory:
        scales, after_resume = dict(self.scales), dict(self.after_resume)
        values = np.stack([rows.numbers[f"{role}_scale"] for role in ROLES])
        told = np.flatnonzero(~np.isnan(values).all(axis=0) & (rows.layer >= 0))
        for at in told[np.argsort(rows.step[told], kind="stable")].tolist():
            name, step = rows.names[rows.layer[at]], int(rows.step[at])
            known = scales.get(name, ())
            if name not in scales and len(scales) >= MOST_LAYERS:
                continue
            one = tuple(values[:, at].tolist())
            if known and known[-1].step == step:
                known = (*known[:-1], known[-1].with_rank(one))
            else:
                known = (*known, CastScales(step, one, one))[-LAST_SAMPLES:]
            scales[name] = known
            first = after_resume.get(name)
            is_first = self.resumed_at is not None and step >= self.resumed_at and (
                first is None or first.step == step
            )  # fmt: skip
            if is_first:
                after_resume[name] = known[-1]
        return replace(self, scales=scales, after_resume=after_resume)


def _resumed_at(event: Event) -> int | None:
    """The step at which training resumed, after which casts may have lost their scales; or None."""
    if event.kind != EventKind.STARTED.value:
        return None
    start = event.detail.get("start_step")
    step = start if isinstance(start, int) else event.step
    return step if step > 0 else None


def _worst_of_each_step(told: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The last cast samples by step, the largest value of all ranks in each."""
    found: dict[int, tuple[Any, ...]] = {}
    for step, *values in told:
        pairs = zip(found.get(step, values), values, strict=True)
        found[step] = tuple(float(np.fmax(one, other)) for one, other in pairs)
    return [(step, *found[step]) for step in sorted(found)][-LAST_SAMPLES:]


def _last_of_each(rows: BlockLayerRows, values: Floats) -> Iterator[tuple[str, Integers]]:
    """Each layer with cast samples in a block, and the rows of its last few, in order of steps."""
    told = np.flatnonzero(~np.isnan(values) & (rows.layer >= 0))
    if not len(told):
        return
    order = told[np.lexsort((rows.step[told], rows.layer[told]))]
    layers, begin = np.unique(rows.layer[order], return_index=True)
    for layer, part in zip(layers.tolist(), np.split(order, begin[1:]), strict=True):
        steps = np.unique(rows.step[part])[-LAST_SAMPLES:]
        yield rows.names[layer], part[rows.step[part] >= steps[0]]
