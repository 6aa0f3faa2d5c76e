"""Layers that have gradients and belong to no optimizer, folded."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from ampwatch.diagnosis.blocks import Block
from ampwatch.diagnosis.layer_history import innermost_layers

_MOST_LAYERS = 4096  # beyond, names are not judged
_LEAST_SAMPLES = 2


@dataclass(frozen=True, slots=True)
class LayersWithoutOptimizer:
    """Of layers with weights and gradients: samples in which no optimizer had them, and others.

    Before the first step no optimizer is known, so samples of a block without a step count for
    nothing.
    """

    samples: Counter[str] = field(default_factory=Counter)
    trained: frozenset[str] = frozenset()  # that an optimizer had

    def fold(self, block: Block) -> LayersWithoutOptimizer:
        """The counts with one more block."""
        layers = block.layers
        if not len(layers) or not (block.columns["update_norm"] > 0).any():
            return self
        flags = layers.flags
        reached = (flags["grad_finite"] == 1) | (flags["out_grad_finite"] == 1)
        learns = (flags["trainable"] == 1) & reached & (layers.layer >= 0)
        has_group = np.isfinite(layers.numbers["param_group"])
        without, counts = np.unique(layers.layer[learns & ~has_group], return_counts=True)
        samples = self.samples.copy()
        for code, count in zip(without.tolist(), counts.tolist(), strict=True):
            name = layers.names[code]
            if name in samples or len(samples) < _MOST_LAYERS:
                samples[name] += count
        trained = {layers.names[code] for code in np.unique(layers.layer[learns & has_group])}
        return LayersWithoutOptimizer(samples, self.trained | trained)

    @property
    def names(self) -> tuple[str, ...]:
        """The innermost layers that no optimizer ever had, if it had others."""
        found = {name for name, count in self.samples.items() if count >= _LEAST_SAMPLES}
        return tuple(innermost_layers(found - self.trained)) if self.trained else ()
