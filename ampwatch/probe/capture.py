"""What the training thread hands over about the layers of one sampled step: nothing computed.

Values stand in the step's `Pack`; these records say where. A tensor that leaves one layer and
enters the next is one `TensorCapture`.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ampwatch.probe.readback import Pack

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

    def is_now(self, tensor: Tensor, version: int) -> bool:
        """Whether this is that tensor, unchanged."""
        return self.version == version and self.reference() is tensor


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


@dataclass(frozen=True, slots=True)
class TensorCapture:
    """Positions in the pack: lowest and highest value, and those of each gradient that came."""

    dtype: str
    requires_grad: bool
    at: int
    grad_dtype: str | None
    gradients_at: tuple[int, ...]
    bits: tuple[Tensor, ...]
    counts_at: tuple[int, ...]


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
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


def dtype_name(dtype: torch.dtype) -> str:
    """The type's name without torch's prefix."""
    return str(dtype).removeprefix("torch.")


def capture_of(
    visits: Mapping[int, Visit],
    weights: Mapping[int, WeightCapture],
    param_grad_dtypes: Mapping[int, str],
    sealed: Mapping[int, str],
    pack: Pack,
) -> LayerCapture:
    """Put every value into the pack and keep its place."""
    places: dict[int, int] = {}
    tensors: list[TensorCapture] = []

    def place(seen: Seen) -> int:
        at = places.get(id(seen))
        if at is None:
            at = places[id(seen)] = len(tensors)
            tensors.append(_tensor_capture(seen, pack))
        return at

    captured = tuple(
        VisitCapture(
            layer=number,
            order=visit.order,
            calls=visit.calls,
            inputs=tuple(map(place, visit.inputs)),
            outputs=tuple(map(place, visit.outputs)),
            input_dtype=_name(visit.input_dtype),
            output_dtype=_name(visit.output_dtype),
            autocast=visit.autocast,
            input_shapes=visit.input_shapes,
            output_shape=visit.output_shape,
        )
        for number, visit in visits.items()
    )
    return LayerCapture(tuple(tensors), captured, weights, param_grad_dtypes, sealed)


def _tensor_capture(seen: Seen, pack: Pack) -> TensorCapture:
    return TensorCapture(
        dtype=dtype_name(seen.dtype),
        requires_grad=seen.requires_grad,
        at=_put(seen.extremes, pack),
        grad_dtype=_name(seen.grad_dtype),
        gradients_at=tuple(_put(extremes, pack) for extremes in seen.gradients),
        bits=tuple(seen.bits),
        counts_at=tuple(pack.put(counts) for counts in seen.counts),
    )


def _put(extremes: Extremes, pack: Pack) -> int:
    at = pack.put(extremes[0])
    pack.put(extremes[1])
    return at


def _name(dtype: torch.dtype | None) -> str | None:
    return None if dtype is None else dtype_name(dtype)
