"""Layers that have gradients and belong to no optimizer, folded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from ampwatch.diagnosis.blocks import Block
from ampwatch.diagnosis.layer_history import innermost_layers

_MOST_LAYERS = 4096  # beyond, names are not judged
_LEAST_SAMPLES = 2


@dataclass(frozen=True, slots=True)
class UnheldLayers:
    """Of each layer with weights and gradients: samples in which no optimizer held it, and others.

    Before the first step no optimizer is known, so samples of a block without a step count for
    nothing.
    """

    unheld: Mapping[str, int] = field(default_factory=dict)
    held: frozenset[str] = frozenset()

    def fold(self, block: Block) -> UnheldLayers:
        """The counts with one more block."""
        layers = block.layers
        if not len(layers) or not (block.columns["update_norm"] > 0).any():
            return self
        flags, group = layers.flags, layers.numbers["param_group"]
        reached = (flags["grad_finite"] == 1) | (flags["out_grad_finite"] == 1)
        learns = (flags["trainable"] == 1) & reached & (layers.layer >= 0)
        unheld, held = dict(self.unheld), set(self.held)
        for at in np.flatnonzero(learns).tolist():
            name = layers.names[layers.layer[at]]
            if np.isfinite(group[at]):
                held.add(name)
            elif name in unheld or len(unheld) < _MOST_LAYERS:
                unheld[name] = unheld.get(name, 0) + 1
        return replace(self, unheld=unheld, held=frozenset(held))

    @property
    def names(self) -> tuple[str, ...]:
        """The innermost layers that no optimizer ever held, if others are held."""
        found = {name for name, count in self.unheld.items() if count >= _LEAST_SAMPLES}
        return tuple(innermost_layers(found - self.held)) if self.held else ()
