"""In which precision the layers run and keep their weights, folded: their latest samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ampwatch.diagnosis.blocks import Block, BlockLayerRows
from ampwatch.diagnosis.column_arrays import Integers
from ampwatch.diagnosis.layer_history import MOST_LAYERS

_HALF = ("float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class LayerPrecision:
    """The data types of one layer, as its latest sample shows them."""

    flops: float | None  # of its matrix product, if it is one
    runs_half: bool  # or in less
    keeps_float16: bool  # trainable weights
    sides: tuple[int, ...] = ()  # of the matrices it multiplies, as far as they are known
    output_dtype: str = "float32"
    formats: tuple[str | None, ...] = (None, None, None)  # below 16 bits: input, weight, gradient
    kind: str = ""
    order: int = -1  # in the forward pass

    @property
    def is_quantised(self) -> bool:
        """Whether the layer casts an operand of its product below 16 bits."""
        return any(self.formats)


@dataclass(frozen=True, slots=True)
class PrecisionHistory:
    """The precision in which each layer runs and keeps its weights; `fold` makes a new one."""

    layers: dict[str, LayerPrecision] = field(default_factory=dict)
    sampled_steps: int = 0
    batch_norms: frozenset[str] = frozenset()  # that learn, and so keep running statistics

    def fold(self, block: Block) -> PrecisionHistory:
        """The history of precisions with one more block."""
        rows = block.layers
        if not len(rows):
            return self
        norms = self.batch_norms
        norms |= _batch_norms(rows) if len(norms) < MOST_LAYERS else frozenset()
        names, codes = rows.dtypes["output_dtype"]
        cast = np.logical_or.reduce([rows.dtypes[name][1] >= 0 for name in _FORMATS])
        seen = np.flatnonzero((rows.layer >= 0) & ((codes >= 0) | cast))
        if not len(seen):
            return replace(self, batch_norms=norms)
        half = rows.has_dtype("output_dtype", *_HALF)
        formats = [_texts_at(*rows.dtypes[name]) for name in _FORMATS]
        kind_of, order = _texts_at(*rows.kinds), rows.numbers["order"]
        keeps = rows.has_dtype("param_dtype", "float16") & (rows.flags["trainable"] == 1)
        flops = rows.numbers["flops"]
        latest = seen[::-1][np.unique(rows.layer[seen][::-1], return_index=True)[1]]
        layers = dict(self.layers)
        for at in latest.tolist():
            name = rows.names[rows.layer[at]]
            if name in layers or len(layers) < MOST_LAYERS:
                work = float(flops[at]) if flops[at] > 0 else None
                told = tuple(format_of(at) for format_of in formats)
                sides = _sides(rows, at) if work or any(told) else ()
                output = names[codes[at]] if codes[at] >= 0 else ""
                layers[name] = LayerPrecision(
                    flops=work,
                    runs_half=bool(half[at]) or any(told),
                    keeps_float16=bool(keeps[at]),
                    sides=sides,
                    output_dtype=output,
                    formats=told,
                    kind=kind_of(at) or "",
                    order=int(order[at]) if order[at] >= 0 else -1,
                )
        steps = self.sampled_steps + len(np.unique(rows.step[seen]))
        return PrecisionHistory(layers, steps, norms)

    @property
    def products(self) -> dict[str, LayerPrecision]:
        """The layers that multiply matrices, and their precision."""
        return {name: one for name, one in self.layers.items() if one.flops is not None}


_FORMATS = ("input_format", "weight_format", "grad_format")


def _texts_at(names: Sequence[str], codes: Integers) -> Callable[[int], str | None]:
    """A function that gives the data type or kind of a layer's row; None where it is absent."""
    return lambda at: names[codes[at]] if codes[at] >= 0 else None


def _batch_norms(rows: BlockLayerRows) -> frozenset[str]:
    kinds, codes = rows.kinds
    wanted = [n for n, kind in enumerate(kinds) if "BatchNorm" in kind]
    at = np.isin(codes, wanted) & (rows.flags["trainable"] == 1) & (rows.layer >= 0)
    return frozenset(rows.names[layer] for layer in np.unique(rows.layer[at]))


def _sides(rows: BlockLayerRows, at: int) -> tuple[int, ...]:
    """The sides of a layer's matrix product, of which misaligned ones lose tensor cores.

    They are outputs, inputs and, of a plain layer, the rows of the batch. A convolution
    with one input channel a group is no matrix product for a GPU.
    """
    shape: list[int] = rows.weight_shapes[at].as_py() or []
    if len(shape) < 2 or (len(shape) > 2 and shape[1] == 1):
        return ()
    count = rows.numbers["rows"][at]
    plain = len(shape) == 2 and count > 0
    return (*shape[:2], int(count)) if plain else tuple(shape[:2])
