"""What formats below sixteen bits did to each layer's operands: the last samples of each role."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ampwatch.diagnosis.blocks import Block, LayerRows
from ampwatch.diagnosis.layer_history import MOST_LAYERS
from ampwatch.diagnosis.signals import Floats, Integers

# A layer is judged by its last samples, so that what begins late is seen and what is over is not.
LAST_SAMPLES = 8
ROLES = ("input", "weight", "grad")


@dataclass(frozen=True, slots=True)
class CastSamples:
    """The last samples of one layer's role, the oldest first."""

    steps: tuple[int, ...] = ()
    cut: tuple[float, ...] = ()  # shares
    flushed: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class CastHistory:
    """What is remembered of them; `fold` makes a new one."""

    operands: dict[tuple[str, str], CastSamples] = field(default_factory=dict)  # by layer and role
    staleness: dict[str, tuple[tuple[int, ...], tuple[float, ...]]] = field(default_factory=dict)

    def fold(self, block: Block) -> CastHistory:
        """The history with one more block."""
        rows, history = block.layers, self._before(block) if block.restart else self
        for role in ROLES:
            cut = rows.numbers[f"{role}_saturated_share"]
            flushed = rows.numbers[f"{role}_flushed_share"]
            if not np.isnan(flushed).all():
                history = history._with_role(rows, role, cut, flushed)
        if not np.isnan(rows.numbers["amax_staleness"]).all():
            history = history._with_stale(rows)
        return history

    def _before(self, block: Block) -> CastHistory:
        """What an attempt that begins anew leaves of the one before it."""
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
        return CastHistory(operands, staleness)

    def _with_role(self, rows: LayerRows, role: str, cut: Floats, flushed: Floats) -> CastHistory:
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

    def _with_stale(self, rows: LayerRows) -> CastHistory:
        staleness = dict(self.staleness)
        values = rows.numbers["amax_staleness"]
        for name, at in _last_of_each(rows, values):
            if name in staleness or len(staleness) < MOST_LAYERS:
                old = zip(*staleness.get(name, ((), ())), strict=True)
                told = zip(rows.step[at].tolist(), values[at].tolist(), strict=True)
                steps, kept = zip(*_worst_of_each_step([*old, *told]), strict=True)
                staleness[name] = (steps, kept)
        return replace(self, staleness=staleness)


def _worst_of_each_step(told: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The last samples by step: of several ranks' the largest values, as far as they are known."""
    found: dict[int, tuple[Any, ...]] = {}
    for step, *values in told:
        pairs = zip(found.get(step, values), values, strict=True)
        found[step] = tuple(float(np.fmax(one, other)) for one, other in pairs)
    return [(step, *found[step]) for step in sorted(found)][-LAST_SAMPLES:]


def _last_of_each(rows: LayerRows, values: Floats) -> Iterator[tuple[str, Integers]]:
    """Each layer that has values, and where its last few stand, in the order of steps."""
    told = np.flatnonzero(~np.isnan(values) & (rows.layer >= 0))
    if not len(told):
        return
    order = told[np.lexsort((rows.step[told], rows.layer[told]))]
    layers, begin = np.unique(rows.layer[order], return_index=True)
    for layer, part in zip(layers.tolist(), np.split(order, begin[1:]), strict=True):
        steps = np.unique(rows.step[part])[-LAST_SAMPLES:]
        yield rows.names[layer], part[rows.step[part] >= steps[0]]
