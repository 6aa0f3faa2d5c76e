"""What formats below sixteen bits did to each layer's operands: the last samples of each role."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

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
        rows, history = block.layers, self
        for role in ROLES:
            cut = rows.numbers[f"{role}_saturated_share"]
            flushed = rows.numbers[f"{role}_flushed_share"]
            if not np.isnan(flushed).all():
                history = history._with_role(rows, role, cut, flushed)
        if not np.isnan(rows.numbers["amax_staleness"]).all():
            history = history._with_stale(rows)
        return history

    def _with_role(self, rows: LayerRows, role: str, cut: Floats, flushed: Floats) -> CastHistory:
        operands = dict(self.operands)
        for name, at in _last_of_each(rows, flushed):
            key = (name, role)
            if key not in operands and len(operands) >= MOST_LAYERS:
                continue
            old = operands.get(key, CastSamples())
            operands[key] = CastSamples(
                (*old.steps, *rows.step[at].tolist())[-LAST_SAMPLES:],
                (*old.cut, *cut[at].tolist())[-LAST_SAMPLES:],
                (*old.flushed, *flushed[at].tolist())[-LAST_SAMPLES:],
            )
        return replace(self, operands=operands)

    def _with_stale(self, rows: LayerRows) -> CastHistory:
        staleness = dict(self.staleness)
        values = rows.numbers["amax_staleness"]
        for name, at in _last_of_each(rows, values):
            if name in staleness or len(staleness) < MOST_LAYERS:
                steps, kept = staleness.get(name, ((), ()))
                staleness[name] = (
                    (*steps, *rows.step[at].tolist())[-LAST_SAMPLES:],
                    (*kept, *values[at].tolist())[-LAST_SAMPLES:],
                )
        return replace(self, staleness=staleness)


def _last_of_each(rows: LayerRows, values: Floats) -> Iterator[tuple[str, Integers]]:
    """Each layer that has values, and where its last few stand."""
    told = np.flatnonzero(~np.isnan(values) & (rows.layer >= 0))
    order = told[np.argsort(rows.layer[told], kind="stable")]
    layers, begin = np.unique(rows.layer[order], return_index=True)
    for layer, part in zip(layers.tolist(), np.split(order, begin[1:]), strict=True):
        yield rows.names[layer], part[-LAST_SAMPLES:]
