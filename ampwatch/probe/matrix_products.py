"""The matrix product behind a layer: its rows and its floating-point operations.

Of one forward call; a multiplication and an addition count as two. Other modules have none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from torch import nn

Shape = tuple[int, ...]
_PLAIN = (int, str, tuple)


@dataclass(frozen=True, slots=True)
class Product:
    """Rows of the left matrix, and operations of the forward pass."""

    rows: int
    flops: float


@dataclass(frozen=True, slots=True)
class Multiplier:
    """How a module multiplies: what its formula reads of it, and nothing that keeps it alive."""

    formula: Callable[[Any, Sequence[Shape], Shape], Product | None]
    facts: SimpleNamespace

    def product(self, inputs: Sequence[Shape], output: Shape) -> Product | None:
        """What was multiplied, from the shapes that were taken and given."""
        return self.formula(self.facts, inputs, output)


def multiplier_of(module: nn.Module) -> Multiplier | None:
    """How this module multiplies; None if it does not, or is not known."""
    for kind, formula in _FORMULAS:
        if isinstance(module, kind):
            plain = {name: v for name, v in vars(module).items() if isinstance(v, _PLAIN)}
            return Multiplier(formula, SimpleNamespace(**plain))
    return None


def _linear(module: Any, _inputs: Sequence[Shape], output: Shape) -> Product:
    rows = math.prod(output) // max(1, module.out_features)
    return Product(rows, 2.0 * rows * module.in_features * module.out_features)


def _convolution(module: Any, inputs: Sequence[Shape], output: Shape) -> Product | None:
    if module.transposed and not inputs:
        return None
    # A transposed convolution is the product of its input's positions, not of its output's.
    turned, channels = (inputs[0], module.in_channels) if module.transposed else (
        output,
        module.out_channels,
    )  # fmt: skip
    rows = math.prod(turned) // channels
    pairs = module.in_channels * module.out_channels // module.groups
    return Product(rows, 2.0 * rows * pairs * math.prod(module.kernel_size))


def _embedding(module: Any, _inputs: Sequence[Shape], output: Shape) -> Product:
    return Product(math.prod(output) // max(1, module.embedding_dim), 0.0)


def _attention(module: Any, inputs: Sequence[Shape], _output: Shape) -> Product | None:
    if not inputs or len(inputs[0]) not in {2, 3}:
        return None
    query = inputs[0]
    key = inputs[1] if len(inputs) > 1 else query
    queries, keys = math.prod(query[:-1]), math.prod(key[:-1])
    batch = 1 if len(query) == 2 else query[0 if module.batch_first else 1]
    width = module.embed_dim
    outer = 4.0 * queries * width * width  # into the heads and out of them
    inner = 2.0 * keys * width * (module.kdim + module.vdim)
    scores = 4.0 * queries * (keys / max(1, batch)) * width
    return Product(queries, outer + inner + scores)


def _recurrent(module: Any, _inputs: Sequence[Shape], output: Shape) -> Product:
    directions = 2 if module.bidirectional else 1
    hidden = module.hidden_size
    width = module.proj_size or hidden
    rows = math.prod(output) // max(1, width * directions)
    gates = {"LSTM": 4, "GRU": 3}.get(module.mode, 1)
    flops = 0.0
    for layer in range(module.num_layers):
        taken = module.input_size if layer == 0 else width * directions
        flops += directions * 2.0 * rows * (gates * hidden * (taken + width))
        flops += directions * 2.0 * rows * hidden * module.proj_size
    return Product(rows, flops)


_FORMULAS: tuple[tuple[Any, Callable[[Any, Sequence[Shape], Shape], Product | None]], ...] = (
    (nn.Linear, _linear),
    (nn.modules.conv._ConvNd, _convolution),
    ((nn.Embedding, nn.EmbeddingBag), _embedding),
    (nn.MultiheadAttention, _attention),
    (nn.RNNBase, _recurrent),
)
