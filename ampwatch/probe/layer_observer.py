"""The layers while they run: hooks, on all in sampled steps, on root and first layer in others.

Forward hooks only, and no full backward hooks, which would change the graph. Forward passes in eval
mode or without gradients are not training and are passed over.

In a sampled step a layer's visit lists the tensors that it took and gave. Each tensor holds its
measurements, then their place in the step's pack, then the values read there. Nothing is computed
with them here. Tensors are reduced where they live; a gradient is seen by a hook on the tensor it
belongs to; a tensor that one layer gives and the next takes is measured once. On the CPU the
courier puts them into the pack: on the training thread that would be a tenth of what a sampled step
adds.

Where several ranks join their gradients, hooks also show what this rank's own backward gave before
that. A hook on a parameter sees its gradient before it is accumulated, and so before DDP's reducer,
whose own hooks come after. That is a reduction for each parameter, so it is done on armed steps
only. On every step the gradients that reach the first layer are looked at: one value that is not
finite spoils all that the backward reaches after it. Nothing here communicates, synchronises or
writes to a gradient. What no hook sees stays unknown: parameters inside a compiled graph, those
that FSDP keeps (their gradients are joined before they arrive), and sparse gradients.
"""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ampwatch.probe.expert_load import Router, routers_of, tokens_by_expert
from ampwatch.probe.exponent_histogram import (
    Bins,
    bits_of,
    copied_bits,
    counted,
    histogram,
    histogram_of_counts,
)
from ampwatch.probe.formats.casts import CastBatches, GradientCast, LayerCasts, Operands
from ampwatch.probe.hooks import FailureShield, Handle, Hook, hook_after, hook_before, hook_gradient
from ampwatch.probe.models import Layer, Survey
from ampwatch.probe.norms import WeightMeasure
from ampwatch.probe.tensor_values import (
    FLOATING,
    HALF,
    PLAIN,
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


class MeasuredTensor:
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
    inputs: list[MeasuredTensor] = field(default_factory=list)
    outputs: list[MeasuredTensor] = field(default_factory=list)
    input_dtype: torch.dtype | None = None
    output_dtype: torch.dtype | None = None
    autocast: bool | None = None
    casts: LayerCasts | None = None  # of a matrix product
    input_shapes: tuple[Shape, ...] = ()
    output_shape: Shape | None = None
    expert_tokens: list[Tensor] = field(default_factory=list)  # of each call of a router
    expert_tokens_at: slice | None = None  # of all calls, in the pack

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
    tensors: list[MeasuredTensor] = field(default_factory=list)  # each once, from `put` on
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
        for visit in visits:
            if visit.expert_tokens:
                tokens, visit.expert_tokens = torch.stack(visit.expert_tokens).sum(dim=0), []
                first = pack.put(tokens)
                visit.expert_tokens_at = slice(first, first + len(tokens))


class LayerNotes:
    """One step's notes; let go of with `release`, after which the tensors are unwatched."""

    def __init__(
        self, survey: Survey, shield: FailureShield, routers: Mapping[int, Router]
    ) -> None:
        self.visits: dict[int, Visit] = {}
        self._survey = survey
        self._routers = routers
        self._shield = shield
        self._seen: dict[int, MeasuredTensor] = {}
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
        if number in self._routers:
            tokens = tokens_by_expert(self._routers[number], tensors)
            if tokens is not None:
                visit.expert_tokens.append(tokens)

    def _cast_operands(self, number: int, visit: Visit, inputs: Sequence[MeasuredTensor]) -> None:
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

    def _note(self, tensors: Iterable[Tensor]) -> list[MeasuredTensor]:
        return [seen for seen in map(self._find, tensors) if seen is not None]

    def _find(self, tensor: Tensor) -> MeasuredTensor | None:
        """What is known of this tensor; measures and hooks one that is new or was changed."""
        version = 0 if tensor.is_inference() else tensor._version
        known = self._seen.get(id(tensor))
        if known is not None and known.version == version and known.reference() is tensor:
            return known
        if not measurable(tensor):
            return None
        self._on_host = self._on_host and tensor.is_cpu
        measured = self._seen[id(tensor)] = MeasuredTensor(tensor, version)
        if measured.requires_grad:
            hook = Hook(self._shield, MeasuredTensor.note_gradient, measured)
            self._hooks.append(hook_gradient(tensor, hook))
        return measured


def _representative(tensors: list[Tensor]) -> Tensor:
    """The first floating tensor: a layer is known by what it computes with."""
    for tensor in tensors:
        if tensor.dtype in FLOATING:
            return tensor
    return tensors[0]


# -- the hooks -------------------------------------------------------------------------------------


_STEPS_UNTIL_BLIND = 2
_MOST_FIRST = 2048  # outputs of the first layer in one step

Extremes = tuple[Tensor, Tensor]


class ForwardListener(Protocol):
    """Is called for every training forward, on the thread that runs it."""

    def forward_began(self, inputs: Sequence[Tensor], device_type: str) -> None:
        """A training forward begins: these tensors enter the model, the batch first."""

    def forward_ended(self, layer: int, outputs: Sequence[Tensor]) -> None:
        """These tensors left the model, by the layer with this number."""


class LayerObserver:
    """Hooks on every eager module while armed; two on each root, one on the first layer always."""

    def __init__(
        self, survey: Survey, shield: FailureShield, *, several_ranks: bool = False
    ) -> None:
        self.armed = False
        self.first_layer: Layer | None = None
        self._survey = survey
        self._shield = shield
        self._listener: ForwardListener | None = None
        self._ran_roots: set[int] = set()  # ids of root modules that have run
        self._part: Layer | None = None  # one that is called though its root is not, at work
        self._routers = routers_of(survey)
        self._notes = LayerNotes(survey, shield, self._routers)
        self.local = LocalGradients(survey, shield) if several_ranks else None
        self._while_armed: dict[int, tuple[Handle, ...]] = {}  # by the layer's number
        self._hooks: dict[int, tuple[Hook, Hook]] = {}  # to enter and to leave, likewise
        self._heard: set[int] = set()  # layers whose hooks have been called
        self._permanent: list[Handle] = []
        self._sealed: dict[int, str] = {}
        self._first: list[tuple[Tensor, Tensor]] = []
        self._steps_unseen = 0  # armed steps in a row in which no hook fired
        for layer in survey.layers:
            if layer.parent is None:
                self._follow_forwards(layer, layer)

    # -- lifetime --------------------------------------------------------------------------------

    def follow(self, listener: ForwardListener) -> None:
        """Tell this listener of every training forward."""
        self._listener = listener

    def arm(self, *, what_if: bool = True) -> None:
        """Sample the coming step; `what_if`: and what casts would do that are not made."""
        self.armed = True
        self._notes.operands.what_if = what_if
        if self._is_blind():
            self._notes.measure_weights()  # no hook will be called when a forward begins
        else:
            self._hook_modules()
            if self.local is not None:
                self.local.arm(self._sealed)

    def _hook_modules(self) -> None:
        self._sealed = {}
        for layer in self._survey.layers:
            if layer.hooked is None or self._is_inside_a_graph(layer):
                continue
            if layer.number not in self._while_armed:
                enter, leave = self._hooks_of(layer)
                self._while_armed[layer.number] = (
                    hook_before(layer.hooked, enter),
                    hook_after(layer.hooked, leave),
                )

    def _hooks_of(self, layer: Layer) -> tuple[Hook, Hook]:
        """A layer's two hooks, made once and put on again for each armed step."""
        hooks = self._hooks.get(layer.number)
        if hooks is None:
            enter = Hook(self._shield, self._enter, layer)
            hooks = self._hooks[layer.number] = enter, Hook(self._shield, self._leave, layer)
        return hooks

    def _unhook_modules(self) -> None:
        """Take off the hooks on layers that have been called.

        Those that have not are on modules that never ran, or were compiled behind our back: then
        they are in the graph, where they do nothing, and to take them off would compile it anew.
        """
        for number in self._heard:
            _remove(self._while_armed.pop(number, ()))
        self._heard.clear()

    def _is_blind(self) -> bool:
        """Whether hooks are of no use: all is compiled, perhaps behind our back."""
        return self._steps_unseen >= _STEPS_UNTIL_BLIND

    def disarm(self) -> None:
        """Take the hooks off the layers; what was noted and not collected is forgotten."""
        self.armed = False
        self._unhook_modules()
        if self.local is not None:
            self.local.disarm()
        self._begin_notes()

    def release(self) -> None:
        """Leave no hook of ours on the model."""
        self.disarm()
        for handles in (*self._while_armed.values(), self._permanent):
            _remove(handles)
        self._while_armed.clear()
        self._hooks.clear()
        self._permanent.clear()
        if self.local is not None:
            self.local.release()
        self._listener = None

    def _begin_notes(self) -> None:
        self._part = None
        self._notes.release()
        self._notes = LayerNotes(self._survey, self._shield, self._routers)

    def _is_inside_a_graph(self, layer: Layer) -> bool:
        """Whether hooks here would be compiled in; notes why a layer cannot be seen inside."""
        around = None if layer.parent is None else self._sealed.get(layer.parent)
        compiled = _compiles_its_call(layer.module)
        reason = around or layer.sealed or ("compiled" if compiled else None)
        if reason is not None:
            self._sealed[layer.number] = reason
        return around is not None or compiled

    # -- what is taken over at the end of a step -------------------------------------------------

    def collect(self) -> SampledLayers:
        """What the hooks saw of the layers in the armed step."""
        sampled = self._notes.sampled(dict(self._sealed))
        self._steps_unseen = 0 if self._notes.visits else self._steps_unseen + 1
        if self.first_layer is None and self._notes.visits:
            self._find_first_layer()
        self._begin_notes()
        return sampled

    def collect_weights(self) -> SampledLayers:
        """The weights as they are, though the step was not armed: it ends where none moved them."""
        self._notes.measure_weights()
        sampled = self._notes.sampled(dict(self._sealed))
        self._begin_notes()
        return sampled

    def collect_first(self, pack: Pack) -> list[int]:
        """Where the first layer's activation maxima of this step stand, one for each call."""
        if not self._first:
            return []
        first, self._first = self._first, []
        return [pack.put_magnitude(low, high) for low, high in first]  # each step: no call more

    # -- hooks while armed -----------------------------------------------------------------------

    def _enter(
        self,
        layer: Layer,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any] | None = None,  # none where it is taken off at this moment
    ) -> None:
        self._heard.add(layer.number)
        if not self.armed or not _trains(layer):
            return
        if self.first_layer is None and self._part is None and self._is_called_alone(layer):
            self._part = layer
            if not self._notes.visits:
                self._begin(layer, module, args, kwargs or {})
        self._notes.enter(layer.number, args, kwargs or {})

    def _leave(self, layer: Layer, module: nn.Module, args: Any, output: Any) -> None:
        if not self.armed or not _trains(layer):
            return
        self._notes.leave(layer.number, output)
        if layer is self._part:
            self._part = None
            self._end(layer, module, args, output)

    def _is_called_alone(self, layer: Layer) -> bool:
        """Whether a part of a model runs whose root does not; asked until that is known."""
        return layer.parent is not None and id(layer.root) not in self._ran_roots

    # -- permanent hooks -------------------------------------------------------------------------

    def _follow_forwards(self, first: Layer, last: Layer) -> None:
        """Tell the listener when a training forward begins in the one, and what the other gave."""
        if first.hooked is not None and not _compiles_its_call(first.module):
            begin = Hook(self._shield, self._begin, first)
            self._permanent.append(hook_before(first.hooked, begin))
        if last.hooked is not None and not _compiles_its_call(last.module):
            end = Hook(self._shield, self._end, last)
            self._permanent.append(hook_after(last.hooked, end))

    def _begin(
        self, layer: Layer, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        root = layer.to_root()
        if root is None or not root.training or not torch.is_grad_enabled():
            return
        self._steps_unseen = 0
        if layer.parent is None:
            self._ran_roots.add(id(root))
        if self._listener is None:
            return
        if kwargs:
            # An additive mask holds -inf by intention, and says nothing about the data.
            tensors = tensors_in(*args, *[v for k, v in kwargs.items() if "mask" not in k])
        else:
            tensors = tensors_in(*args)
        device = tensors[0].device if tensors else _device_of(module)
        self._listener.forward_began(tensors, device.type)

    def _end(self, layer: Layer, _module: nn.Module, _args: Any, output: Any) -> None:
        if self._listener is not None and _trains(layer):
            self._listener.forward_ended(layer.number, tensors_in(output))

    def _find_first_layer(self) -> None:
        """Where the forward starts is known once one has been watched."""
        visits = self._notes.visits
        in_order = sorted(visits, key=lambda number: visits[number].order)
        layers = [self._survey.layers[number] for number in in_order]
        if layers[0].parent is not None:  # parts are called one by one, their root never is
            self._follow_forwards(layers[0], self._last_part(layers))
        for layer in layers:
            module = layer.hooked  # None if the user has let go of the model since
            if (
                module is not None
                and layer.leaf
                and layer.sealed is None
                and visits[layer.number].outputs
            ):
                hook = Hook(self._shield, self._note_first, layer)
                self._permanent.append(hook_after(module, hook))
                self.first_layer = layer
                return

    def _last_part(self, layers: Sequence[Layer]) -> Layer:
        """Of the layers that ran, in order, the last that no other of them contains."""
        ran = {layer.number for layer in layers}
        return [layer for layer in layers if ran.isdisjoint(self._survey.around(layer))][-1]

    def _note_first(self, layer: Layer, _module: nn.Module, _args: Any, output: Any) -> None:
        if not _trains(layer) or len(self._first) >= _MOST_FIRST:
            return
        outputs = tensors_in(output)
        if self.local is not None:
            self.local.follow_first(outputs)
        for tensor in outputs:
            if self.armed:
                seen = self._notes.extremes_of(tensor)
            else:
                seen = extremes(tensor) if measurable(tensor) else None
            if seen is not None:
                self._first.append(seen)


def _trains(layer: Layer) -> bool:
    root = layer.to_root()
    return root is not None and root.training and torch.is_grad_enabled()


def _device_of(module: nn.Module) -> torch.device:
    return next((p.device for p in module.parameters()), torch.device("cpu"))


def _compiles_its_call(module: nn.Module | None) -> bool:
    """Whether `module.compile()` was used, which leaves the module's class alone."""
    return getattr(module, "_compiled_call_impl", None) is not None


def _remove(handles: Iterable[Handle]) -> None:
    for handle in handles:
        handle.remove()


# -- what this rank's own backward gave ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LocalCapture:
    """Where a step's largest magnitudes stand in its pack."""

    parameters: Mapping[int, tuple[int, ...]]  # by the parameter's position, one for each pass
    first: tuple[int, ...]  # of what reached the first layer's output, one for each call

    def finite(self, pack: Pack) -> dict[int, bool]:
        """Which parameters' own gradients were finite, as far as they were seen."""
        return {
            position: all(math.isfinite(pack.values[at]) for at in places)
            for position, places in self.parameters.items()
        }

    def first_finite(self, pack: Pack) -> bool | None:
        """Whether what reached the first layer was; None if nothing was seen there."""
        if not self.first:
            return None
        return all(math.isfinite(pack.values[at]) for at in self.first)


class LocalGradients:
    """Hooks on the parameters while armed, and on the first layer's output in each forward."""

    def __init__(self, survey: Survey, shield: FailureShield) -> None:
        self._survey = survey
        self._shield = shield
        self._handles: list[Handle] = []
        self._first_handles: list[Handle] = []
        self._seen: dict[int, list[Extremes]] = {}
        self._first: list[Extremes] = []

    def arm(self, blind: Iterable[int]) -> None:
        """Look at the parameters from now on, but for those of layers that no hook sees into."""
        if self._handles:
            return
        unseen = frozenset(blind)
        for position, parameter in enumerate(self._survey.parameters):
            layer = self._survey.layers[self._survey.parameter_layers[position]]
            sealed = layer.number in unseen or layer.parent in unseen
            if parameter.requires_grad and type(parameter) in PLAIN and not sealed:
                hook = Hook(self._shield, self._note, position)
                self._handles.append(hook_gradient(parameter, hook))

    def disarm(self) -> None:
        """Take the hooks off the parameters."""
        _remove(self._handles)
        self._handles.clear()
        self._seen.clear()

    def release(self) -> None:
        """Leave no hook on parameters and outputs."""
        self.disarm()
        self._forget_first()

    def follow_first(self, outputs: Iterable[Tensor]) -> None:
        """Look at the gradients that will reach these outputs of the first layer."""
        for tensor in outputs:
            if tensor.requires_grad and measurable(tensor):
                hook = Hook(self._shield, self._note_first)
                self._first_handles.append(hook_gradient(tensor, hook))

    def collect(self, pack: Pack) -> LocalCapture | None:
        """This rank's own gradients in the step, put into its pack; None if nothing was seen."""
        seen, self._seen = self._seen, {}
        first, self._first = self._first, []
        self._forget_first()
        if not seen and not first:
            return None
        return LocalCapture(
            {position: _put(values, pack) for position, values in seen.items()}, _put(first, pack)
        )

    def _forget_first(self) -> None:
        """Unhook the first layer's outputs: one that the user keeps must not keep us."""
        _remove(self._first_handles)
        self._first_handles.clear()

    def _note(self, position: int, gradient: Tensor | None) -> None:
        if gradient is not None and measurable(gradient):
            self._seen.setdefault(position, []).append(extremes(gradient))

    def _note_first(self, gradient: Tensor | None) -> None:
        if gradient is not None and measurable(gradient):
            self._first.append(extremes(gradient))


def _put(values: Iterable[Extremes], pack: Pack) -> tuple[int, ...]:
    return tuple(pack.put_magnitude(low, high) for low, high in values)
