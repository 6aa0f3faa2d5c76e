"""What the training thread hands over about the layers of one sampled step: nothing computed.

Values stand in the step's `Pack`; these records say where. A tensor that leaves one layer and
enters the next is one `TensorCapture`.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

import torch
from torch import Tensor

from ampwatch.probe.readback import Pack
from ampwatch.probe.tensors import dtype_name

Shape = tuple[int, ...]
Extremes = tuple[Tensor, Tensor]


class Seen:
    """One tensor, as it was when a layer took or gave it; does not keep the tensor alive."""

    __slots__ = ("bits", "counts", "dtype", "extremes", "grad_dtype", "gradients", "reference",
                 "requires_grad", "sampled", "version")  # fmt: skip

    def __init__(self, tensor: Tensor, version: int, extremes: Extremes) -> None:
        self.reference = weakref.ref(tensor)
        self.version = version
        self.dtype = tensor.dtype
        self.requires_grad = tensor.requires_grad
        self.extremes = extremes
        self.sampled = False  # whether its gradient's exponents are wanted
        self.grad_dtype: torch.dtype | None = None
        self.gradients: list[Extremes] = []
        self.bits: list[Tensor] = []  # sampled on the CPU, to be counted later
        self.counts: list[Tensor] = []  # counted on the device


class Visit:
    """What one layer took and gave in the step, over all its calls."""

    __slots__ = ("autocast", "calls", "input_dtype", "input_shapes", "inputs", "order",
                 "output_dtype", "output_shape", "outputs")  # fmt: skip

    def __init__(self, order: int) -> None:
        self.order = order
        self.calls = 0
        self.inputs: list[Seen] = []
        self.outputs: list[Seen] = []
        self.input_dtype: torch.dtype | None = None
        self.output_dtype: torch.dtype | None = None
        self.autocast: bool | None = None
        self.input_shapes: tuple[Shape, ...] = ()
        self.output_shape: Shape | None = None


# Some fifty of the next three are made on a sampled step, on the training thread; frozen ones would
# take three times as long.


@dataclass(slots=True)
class TensorCapture:
    """Positions in the pack: lowest and highest value, and those of each gradient that came."""

    dtype: str
    requires_grad: bool
    at: int
    grad_dtype: str | None
    gradients_at: tuple[int, ...]
    bits: tuple[Tensor, ...]
    counts_at: tuple[int, ...]


@dataclass(slots=True)
class VisitCapture:
    """One layer's part of the step; tensors by their position in `LayerCapture.tensors`."""

    layer: int
    order: int
    calls: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    input_dtype: str | None
    output_dtype: str | None
    autocast: bool | None
    input_shapes: tuple[Shape, ...]
    output_shape: Shape | None


@dataclass(slots=True)
class WeightCapture:
    """Where a parameter's norm and largest magnitude stand, as they were before the forward."""

    norm_at: int
    amax_at: int | None  # None: the norm is finite, so every value is


@dataclass(frozen=True, slots=True)
class LayerCapture:
    """The layers of one step."""

    tensors: tuple[TensorCapture, ...]
    visits: tuple[VisitCapture, ...]
    weights: Mapping[int, WeightCapture]  # by the parameter's position
    param_grad_dtypes: Mapping[int, str]  # likewise
    sealed: Mapping[int, str] = field(default_factory=dict)  # layers not seen inside, and why


def capture_of(
    visits: Mapping[int, Visit],
    weights: Mapping[int, WeightCapture],
    param_grad_dtypes: Mapping[int, str],
    sealed: Mapping[int, str],
    pack: Pack,
) -> LayerCapture:
    """Put every value into the pack and keep its place."""
    places: dict[Seen, int] = {}
    for visit in visits.values():
        for seen in chain(visit.inputs, visit.outputs):
            places.setdefault(seen, len(places))
    captured = tuple([
        VisitCapture(
            number,
            visit.order,
            visit.calls,
            tuple([places[seen] for seen in visit.inputs]),
            tuple([places[seen] for seen in visit.outputs]),
            None if visit.input_dtype is None else dtype_name(visit.input_dtype),
            None if visit.output_dtype is None else dtype_name(visit.output_dtype),
            visit.autocast,
            visit.input_shapes,
            visit.output_shape,
        )
        for number, visit in visits.items()
    ])  # fmt: skip
    tensors = tuple(_tensor_captures(places, pack))
    return LayerCapture(tensors, captured, weights, param_grad_dtypes, sealed)


def _tensor_captures(tensors: Iterable[Seen], pack: Pack) -> Iterator[TensorCapture]:
    """All extremes are put at once, each tensor's before those of its gradients."""
    pairs = [pair for seen in tensors for pair in (seen.extremes, *seen.gradients)]
    at = pack.put_scalars(*chain.from_iterable(pairs))
    for seen in tensors:
        end = at + 2 + 2 * len(seen.gradients)
        yield TensorCapture(
            dtype_name(seen.dtype),
            seen.requires_grad,
            at,
            None if seen.grad_dtype is None else dtype_name(seen.grad_dtype),
            tuple(range(at + 2, end, 2)),
            tuple(seen.bits),
            tuple(map(pack.put, seen.counts)),
        )
        at = end
