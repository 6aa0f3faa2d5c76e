"""What is seen of the layers in one sampled step, while its forward and backward run.

Nothing is computed with it here. Tensors are reduced where they live; a gradient is seen by a hook
on the tensor it belongs to; a tensor that one layer gives and the next takes is measured once.

What is seen keeps one shape all the way: a layer's visit lists the tensors it took and gave, and
each tensor holds its measurements, then their place in the step's pack, then the values read there.
On the CPU the courier puts them into the pack: on the training thread that would be a tenth of what
a sampled step adds.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ampwatch.probe.exponent_histogram import (
    Bins,
    bits_of,
    copied_bits,
    counted,
    histogram,
    histogram_of_counts,
)
from ampwatch.probe.hooks import Handle, Hook, hook_gradient
from ampwatch.probe.models import Survey
from ampwatch.probe.norms import WeightMeasure
from ampwatch.probe.number_formats import CastBatches
from ampwatch.probe.operand_casts import GradientCast, LayerCasts, Operands
from ampwatch.probe.own_failures import Guard
from ampwatch.probe.tensor_values import (
    FLOATING,
    HALF,
    Pack,
    activation_magnitude,
    extremes,
    is_mask,
    largest,
    magnitude,
    measurable,
    shape_of,
    tensors_in,
)
from ampwatch.rows import EXPONENT_BINS

Shape = tuple[int, ...]


class SeenTensor:
    """One tensor, as it was when a layer took or gave it; does not keep the tensor alive."""

    __slots__ = ("amax", "at", "bins", "bits", "cast", "counts", "counts_at", "dtype", "extremes",
                 "grad_dtype", "gradient_amax", "gradients_at", "is_mask", "reference",
                 "requires_grad", "sampled", "version")  # fmt: skip

    amax: float  # this and the next three are there once it has been read
    is_mask: bool
    gradient_amax: float | None
    bins: Bins | None  # of its gradients' exponents

    def __init__(self, tensor: Tensor, version: int) -> None:
        self.reference = weakref.ref(tensor)
        self.version = version
        self.dtype = tensor.dtype
        self.requires_grad = tensor.requires_grad
        self.extremes: list[Tensor] = [*extremes(tensor)]  # and then those of each gradient
        self.sampled = False  # whether its gradients' exponents are wanted
        self.cast: GradientCast | None = None  # where its gradient enters a matrix product
        self.grad_dtype: torch.dtype | None = None
        self.bits: list[Tensor] = []  # sampled on the CPU, to be counted by the courier
        self.counts: list[Tensor] = []  # counted on the device
        self.at = -1  # in the pack, of the first of `extremes`
        self.gradients_at: Sequence[
            int
        ] = ()  # of each gradient's lowest value; the highest follows
        self.counts_at: Sequence[int] = ()

    def note_gradient(self, gradient: Tensor | None) -> None:
        """Note the gradient that the backward has made of this tensor."""
        if gradient is None or not measurable(gradient):
            return
        if gradient.requires_grad:
            gradient = gradient.detach()
        self.grad_dtype = gradient.dtype
        found = extremes(gradient)
        self.extremes += found
        taken = None if self.cast is None else self.cast.take(gradient, found)
        if self.sampled and gradient.dtype in HALF:
            if gradient.is_cpu:
                # bfloat16 loses nothing: any sample of it shows its octaves
                shared = taken if gradient.dtype is torch.bfloat16 else None
                self.bits.append(copied_bits(gradient) if shared is None else bits_of(shared))
            else:
                self.counts.append(counted(gradient))

    def read(self, values: Sequence[float]) -> None:
        """Take the measurements out of the step's pack, where they have been put."""
        low, high = values[self.at], values[self.at + 1]
        self.amax = activation_magnitude(low, high, self.dtype)
        self.is_mask = is_mask(low, high, requires_grad=self.requires_grad)
        gradients = [magnitude(values[at], values[at + 1]) for at in self.gradients_at]
        self.gradient_amax = largest(gradients)
        parts = [histogram_of_counts(values[at : at + EXPONENT_BINS]) for at in self.counts_at]
        if self.grad_dtype is not None:
            parts += [histogram(bits, self.grad_dtype) for bits in self.bits]
        self.bins = sum(parts[1:], parts[0]) if parts else None


@dataclass(slots=True, eq=False)
class Visit:
    """What one layer took and gave in the step, over all its calls."""

    order: int
    calls: int = 0
    inputs: list[SeenTensor] = field(default_factory=list)
    outputs: list[SeenTensor] = field(default_factory=list)
    input_dtype: torch.dtype | None = None
    output_dtype: torch.dtype | None = None
    autocast: bool | None = None
    casts: LayerCasts | None = None  # of a matrix product
    input_shapes: tuple[Shape, ...] = ()
    output_shape: Shape | None = None

    def describe_call(self, tensors: list[Tensor]) -> None:
        """Note the data types and shapes that the layer's first call takes."""
        if not tensors:
            return
        chosen = _representative(tensors)
        self.input_dtype = chosen.dtype
        shapes = [shape_of(tensor) for tensor in tensors[:3]]
        self.input_shapes = tuple(shape for shape in shapes if shape is not None)
        self.autocast = torch.is_autocast_enabled(chosen.device.type)


@dataclass(slots=True, eq=False)
class SampledLayers:
    """The layers of one sampled step; holds nothing of the model."""

    visits: Mapping[int, Visit]
    weights: WeightMeasure | None
    grad_dtypes: Mapping[int, torch.dtype]  # by the parameter's position
    sealed: Mapping[int, str]  # layers not seen inside, and why
    batches: CastBatches
    on_host: bool  # else the values must be put before the step's pack is sealed
    tensors: list[SeenTensor] = field(default_factory=list)  # each once; listed when they are put
    is_put: bool = False

    def put(self, pack: Pack) -> None:
        """Put every value seen of the layers into the step's pack, once."""
        if self.is_put:
            return
        self.is_put = True
        if self.weights is not None:
            self.weights.put(pack)
        self.batches.put(pack)
        visits = self.visits.values()
        both = itertools.chain.from_iterable((visit.inputs, visit.outputs) for visit in visits)
        self.tensors = list(dict.fromkeys(itertools.chain.from_iterable(both)))
        values = itertools.chain.from_iterable([seen.extremes for seen in self.tensors])
        if self.on_host:
            at = pack.put_numbers(list(map(Tensor.item, values)))
        else:
            at = pack.put_scalars(*values)
        for seen in self.tensors:
            end = at + len(seen.extremes)
            seen.at, seen.gradients_at, at = at, range(at + 2, end, 2), end
            if not self.on_host:
                seen.counts_at = [pack.put(counts) for counts in seen.counts]
                seen.extremes, seen.counts = [], []  # device memory is the training's


class StepNotes:
    """One step's notes; let go of with `release`, after which the tensors are unwatched."""

    def __init__(self, survey: Survey, guard: Guard) -> None:
        self.visits: dict[int, Visit] = {}
        self._survey = survey
        self._guard = guard
        self._seen: dict[int, SeenTensor] = {}
        self._order = itertools.count()
        self._weights: WeightMeasure | None = None
        self.operands = Operands(survey)
        self._hooks: list[Handle] = []
        self._on_host = True

    def enter(self, number: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """A layer is about to run; noted now because an in-place layer overwrites its input."""
        self.measure_weights()
        tensors = tensors_in(*args, kwargs) if kwargs else tensors_in(*args)
        visit = self.visits.get(number)
        if visit is None:
            visit = self.visits[number] = Visit(next(self._order))
            visit.describe_call(tensors)
        visit.calls += 1
        seen = self._note(tensors)
        visit.inputs += seen
        if visit.calls == 1:
            self._cast_operands(number, visit, seen)

    def leave(self, number: int, output: Any) -> None:
        """A layer has run: note what it gave."""
        visit = self.visits.get(number)
        if visit is None:
            return
        tensors = tensors_in(output)
        if visit.output_shape is None and tensors:
            chosen = _representative(tensors)
            visit.output_dtype, visit.output_shape = chosen.dtype, shape_of(chosen)
        for seen in self._note(tensors):
            seen.sampled = seen.dtype in HALF
            visit.outputs.append(seen)
        if visit.calls == 1:
            visit.casts = self.operands.leave(number, visit.casts)
            if visit.casts is not None and visit.outputs:
                self.operands.follow_gradient(visit.casts, visit.outputs[0])

    def _cast_operands(self, number: int, visit: Visit, inputs: Sequence[SeenTensor]) -> None:
        """Sample what a matrix product takes, if it is cast below sixteen bits or might be."""
        first = inputs[0] if inputs else None
        half = bool(visit.autocast) or (first is not None and first.dtype in HALF)
        visit.casts = self.operands.begin(number, first, half=half)

    def extremes_of(self, tensor: Tensor) -> tuple[Tensor, Tensor] | None:
        """The extremes, measured now unless they are noted already; None if they cannot be."""
        seen = self._find(tensor)
        return None if seen is None else (seen.extremes[0], seen.extremes[1])

    def measure_weights(self) -> None:
        """Measure the weights as they are now, once a step: the optimizer will move them."""
        if self._weights is None:
            self._weights = WeightMeasure(self._survey.parameters)

    def sampled(self, sealed: Mapping[int, str]) -> SampledLayers:
        """Everything noted of the layers so far."""
        gradients = enumerate([p.grad for p in self._survey.parameters])
        dtypes = {position: g.dtype for position, g in gradients if g is not None}
        self.operands.end(visit.casts for visit in self.visits.values())
        on_host = self._on_host and (self._weights is None or self._weights.on_host)
        batches = self.operands.batches
        return SampledLayers(self.visits, self._weights, dtypes, sealed, batches, on_host)

    def release(self) -> None:
        """Unhook every tensor; one that the user keeps must not keep us."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _note(self, tensors: Iterable[Tensor]) -> list[SeenTensor]:
        return [seen for seen in map(self._find, tensors) if seen is not None]

    def _find(self, tensor: Tensor) -> SeenTensor | None:
        """What is known of this tensor; measures and hooks one that is new or was changed."""
        version = 0 if tensor.is_inference() else tensor._version
        known = self._seen.get(id(tensor))
        if known is not None and known.version == version and known.reference() is tensor:
            return known
        if not measurable(tensor):
            return None
        self._on_host = self._on_host and tensor.is_cpu
        seen = self._seen[id(tensor)] = SeenTensor(tensor, version)
        if seen.requires_grad:
            hook = Hook(self._guard, SeenTensor.note_gradient, seen)
            self._hooks.append(hook_gradient(tensor, hook))
        return seen


def _representative(tensors: list[Tensor]) -> Tensor:
    """The first floating tensor: a layer is known by what it computes with."""
    for tensor in tensors:
        if tensor.dtype in FLOATING:
            return tensor
    return tensors[0]
