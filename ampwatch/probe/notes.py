"""What is noted of the layers in one step, while its forward and backward run.

Notes only: tensors are reduced where they live, and nothing is computed with the results. A
gradient is seen by a hook on the tensor it belongs to; a tensor that one layer gives and the next
takes is measured once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ampwatch.probe.capture import LayerCapture, Seen, Visit, capture_of
from ampwatch.probe.hooks import Guard, Handle, Hook, hook_gradient
from ampwatch.probe.models import Survey
from ampwatch.probe.readback import Pack
from ampwatch.probe.samples import copied_bits, counted
from ampwatch.probe.tensors import (
    FLOATING,
    HALF,
    dtype_name,
    extremes,
    measurable,
    shape_of,
    tensors_in,
)
from ampwatch.probe.weights import WeightMeasure


@dataclass(slots=True)
class Noted:
    """What was noted in one step; the courier makes a capture of it where no device is waited for.

    That takes a tenth of what a sampled step adds to the training thread.
    """

    visits: Mapping[int, Visit]
    weights: WeightMeasure | None
    gradient_dtypes: Mapping[int, torch.dtype]  # by the parameter's position
    sealed: Mapping[int, str]
    on_host: bool  # else the values must be put before the step's pack is sealed

    def capture(self, pack: Pack) -> LayerCapture:
        """Put every value into the step's pack."""
        weights = {} if self.weights is None else self.weights.put(pack)
        dtypes = {at: dtype_name(dtype) for at, dtype in self.gradient_dtypes.items()}
        return capture_of(self.visits, weights, dtypes, self.sealed, pack)


class StepNotes:
    """One step's notes; let go of with `release`, after which the tensors are unwatched."""

    def __init__(self, survey: Survey, guard: Guard) -> None:
        self.visits: dict[int, Visit] = {}
        self._survey = survey
        self._guard = guard
        self._seen: dict[int, Seen] = {}
        self._order = itertools.count()
        self._weights: WeightMeasure | None = None
        self._hooks: list[Handle] = []
        self._on_host = True

    def enter(self, number: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """A layer is about to run; noted now because an in-place layer overwrites its input."""
        self.measure_weights()
        tensors = tensors_in(*args, kwargs) if kwargs else tensors_in(*args)
        visit = self.visits.get(number)
        if visit is None:
            visit = self.visits[number] = Visit(next(self._order))
            _describe_call(visit, tensors)
        visit.calls += 1
        visit.inputs += self._note(tensors)

    def leave(self, number: int, output: Any) -> None:
        """A layer has run."""
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

    def extremes_of(self, tensor: Tensor) -> tuple[Tensor, Tensor] | None:
        """The extremes, measured now unless they are noted already; None if they cannot be."""
        seen = self._find(tensor)
        return None if seen is None else seen.extremes

    def measure_weights(self) -> None:
        """Measure the weights as they are now, once a step: the optimizer will move them."""
        if self._weights is None:
            self._weights = WeightMeasure(self._survey.parameters)

    def noted(self, sealed: Mapping[int, str]) -> Noted:
        """Everything noted, as it stands; nothing of the model is held."""
        gradients = enumerate([p.grad for p in self._survey.parameters])
        dtypes = {position: g.dtype for position, g in gradients if g is not None}
        on_host = self._on_host and (self._weights is None or self._weights.on_host)
        return Noted(self.visits, self._weights, dtypes, sealed, on_host)

    def release(self) -> None:
        """Unhook every tensor; one that the user keeps must not keep us."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _note(self, tensors: Iterable[Tensor]) -> list[Seen]:
        return [seen for seen in map(self._find, tensors) if seen is not None]

    def _find(self, tensor: Tensor) -> Seen | None:
        """What is known of this tensor; measures and hooks one that is new or was changed."""
        version = 0 if tensor.is_inference() else tensor._version
        known = self._seen.get(id(tensor))
        if known is not None and known.version == version and known.reference() is tensor:
            return known
        if not measurable(tensor):
            return None
        self._on_host = self._on_host and tensor.is_cpu
        seen = self._seen[id(tensor)] = Seen(tensor, version, extremes(tensor))
        if seen.requires_grad:
            hook = Hook(self._guard, _note_gradient, seen)
            self._hooks.append(hook_gradient(tensor, hook))
        return seen


def _note_gradient(seen: Seen, gradient: Tensor | None) -> None:
    if gradient is None or not measurable(gradient):
        return
    if gradient.requires_grad:
        gradient = gradient.detach()
    seen.grad_dtype = gradient.dtype
    seen.gradients.append(extremes(gradient))
    if seen.sampled and gradient.dtype in HALF:
        if gradient.is_cpu:
            seen.bits.append(copied_bits(gradient))
        else:
            seen.counts.append(counted(gradient))


def _describe_call(visit: Visit, tensors: list[Tensor]) -> None:
    if not tensors:
        return
    chosen = _representative(tensors)
    visit.input_dtype = chosen.dtype
    shapes = [shape_of(tensor) for tensor in tensors[:3]]
    visit.input_shapes = tuple(shape for shape in shapes if shape is not None)
    visit.autocast = torch.is_autocast_enabled(chosen.device.type)


def _representative(tensors: list[Tensor]) -> Tensor:
    """The first floating tensor: a layer is known by what it computes with."""
    for tensor in tensors:
        if tensor.dtype in FLOATING:
            return tensor
    return tensors[0]
