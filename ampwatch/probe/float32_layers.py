"""Run one layer of a model in float32 while the rest of it runs in mixed precision.

The layer's class is exchanged for a subclass of the same name, as torch does for parametrizations.
So a copy, a pickle, a replica and a compiled graph of the layer run in float32, too, and its
`state_dict` keeps its names.
"""

from __future__ import annotations

import contextlib
import difflib
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from ampwatch.errors import Float32Error
from ampwatch.probe.models import ROOT_NAME, WRAPPER_ATTRIBUTES, wrapping_of
from ampwatch.probe.tensor_values import HALF, PLAIN, is_shard

_STATE = "_ampwatch_float32"  # in the `__dict__` of a layer
_SHARDING = frozenset({"FullyShardedDataParallel", "FSDPModule"})
_REDUCING = "DistributedDataParallel"
_NEAR_NAMES = 3


# -- the user's call -------------------------------------------------------------------------------


class Float32Layer:
    """A layer that runs in float32 until `undo()`, or until the end of a `with` statement."""

    def __init__(self, name: str, layer: nn.Module) -> None:
        self.name = name
        self._reference = weakref.ref(layer)

    def __enter__(self) -> Float32Layer:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()

    def __str__(self) -> str:
        layer = self._reference()
        is_on = layer is not None and _STATE in vars(layer)
        return f"{self.name} runs {'in float32' if is_on else 'as it did before'}."

    def undo(self) -> None:
        """Have the layer run as before, its weights in the types that they had."""
        layer = self._reference()
        if layer is not None:
            undo_float32(layer)


# The handle of each layer; it refers weakly to it.
_handles: weakref.WeakKeyDictionary[nn.Module, Float32Layer] = weakref.WeakKeyDictionary()


def run_in_float32(model: Any, name: str) -> Float32Layer:
    """Run the layer of this name in float32, where autocast runs the others in half precision.

    Its weights and inputs are float32, autocast is off inside it, and its outputs are left in
    float32. Of the inputs only float16 and bfloat16 tensors are cast, also in tuples, lists and
    dicts. `model` is what `attach` takes: a module, a list or a dict of modules. `name` is a path
    in `model.named_modules()`, with or without the parts that wrappers such as DDP add. Call it
    once, after the model is created and before the optimizer steps. A second call for the same
    layer changes nothing and returns the same handle.
    """
    way = _find_layer(_models(model), name)
    layer = way.layer
    if _STATE not in vars(layer):
        _check(way)
        run_layer_in_float32(layer)
        _handles.pop(layer, None)
    return _handles.setdefault(layer, Float32Layer(way.name, layer))


# -- find the layer --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Found:
    """A layer by its name, and what it lies in."""

    name: str
    way: tuple[nn.Module, ...]  # from the model as it was given down to the layer

    @property
    def layer(self) -> nn.Module:
        return self.way[-1]


def _models(model: Any) -> list[tuple[str, nn.Module]]:
    """The models with the prefixes of their layers' names; one model alone has none."""
    if isinstance(model, nn.Module):
        return [("", model)]
    if isinstance(model, Mapping):
        pairs = [(str(key), one) for key, one in model.items()]
    else:
        several = model if isinstance(model, (list, tuple)) else ()
        pairs = [(str(at), one) for at, one in enumerate(several)]
    if not pairs or not all(isinstance(one, nn.Module) for _, one in pairs):
        raise Float32Error(
            f"A {type(model).__name__} is no model: call ampwatch.run_in_float32(model, "
            '"name.of.the.layer"), where model is a torch.nn.Module, or a list or dict of them.'
        )
    return pairs


def _find_layer(models: list[tuple[str, nn.Module]], name: Any) -> _Found:
    if not isinstance(name, str):
        raise Float32Error(
            f"The name of the layer is a {type(name).__name__}, not a text: give its path in "
            'model.named_modules(), such as "blocks.0.up".'
        )
    ways = [
        way
        for prefix, model in models
        if (inner := _without_prefix(name, prefix)) is not None
        and (way := _way_to(model, inner)) is not None
    ]
    ways = ways or [way for _, model in models if (way := _way_to(model, name)) is not None]
    if len({id(way[-1]) for way in ways}) == 1:
        return _Found(name or ROOT_NAME, tuple(ways[0]))
    if ways:
        keys = ", ".join(f"{prefix}.{name}" for prefix, _ in models)
        raise Float32Error(f"Several of the models have a layer {name}: name one of {keys}.")
    raise Float32Error(_unknown_text(models, name))


def _without_prefix(name: str, prefix: str) -> str | None:
    """A layer's name inside its model; None if it is not one of that model's."""
    if not prefix:
        return name
    if name == prefix:
        return ""
    return name.removeprefix(f"{prefix}.") if name.startswith(f"{prefix}.") else None


def _way_to(model: nn.Module, name: str) -> list[nn.Module] | None:
    """The modules from a model to the layer of this name, wrappers too; None without such a one."""
    way = wrapping_of(model)
    if name in {"", ROOT_NAME}:
        return way
    for part in name.split("."):
        child = _child(way[-1], part)
        if child is None and part in WRAPPER_ATTRIBUTES:
            continue
        if child is None and (inner := _child(way[-1], "module")) is not None:
            way += wrapping_of(inner)  # a wrapper that is not known by name
            child = _child(way[-1], part)
        if child is None:
            return None
        way += wrapping_of(child)
    return way


def _child(module: nn.Module, name: str) -> nn.Module | None:
    children = module._modules  # TorchScript's has no `get`
    return children[name] if name in children else None  # noqa: SIM401


def _unknown_text(models: list[tuple[str, nn.Module]], name: str) -> str:
    names, parameters = [], []
    for prefix, model in models:
        names += [_plain_name(prefix, path) for path, _ in model.named_modules()]
        parameters += [_plain_name(prefix, path) for path, _ in model.named_parameters()]
    if name in parameters:
        holder = name.rpartition(".")[0] or ROOT_NAME
        return f"{name} is a parameter, not a layer: name the layer that holds it, {holder}."
    near = difflib.get_close_matches(name, [one for one in names if one], _NEAR_NAMES)
    last = name.rpartition(".")[2]
    near = near or [one for one in names if one.rpartition(".")[2] == last][:_NEAR_NAMES]
    hint = f"Near names: {', '.join(near)}." if near else "model.named_modules() has the names."
    return f"The model has no layer {name!r}. {hint}"


def _plain_name(prefix: str, path: str) -> str:
    """A path without what wrappers add to it, below its model's prefix."""
    parts = [part for part in path.split(".") if part and part not in WRAPPER_ATTRIBUTES]
    return ".".join([prefix, *parts] if prefix else parts)


# -- what cannot be done ---------------------------------------------------------------------------


def _check(found: _Found) -> None:
    """Raise an error for a layer that would not run in float32, or only with harm to another."""
    name, layer = found.name, found.layer
    around = [*found.way, *layer.modules()]
    if any(_is_kind(one, _SHARDING) for one in around) or any(map(is_shard, layer.parameters())):
        raise Float32Error(
            f"{name} is sharded by FSDP, which casts its weights itself: give that layer an FSDP "
            "unit of its own, with param_dtype=torch.float32 in its mixed-precision policy."
        )
    if isinstance(layer, torch.jit.ScriptModule):
        raise Float32Error(
            f"{name} is TorchScript, whose code cannot be changed: call ampwatch.run_in_float32 "
            "before torch.jit.script or torch.jit.trace."
        )
    if len(found.way) > 1 and _is_read_by(layer, found.way[-2]):
        whole = name.rpartition(".")[0] or ROOT_NAME
        raise Float32Error(
            f"{name} is never called: {whole} reads its weights and multiplies by itself. Run "
            f"{whole} in float32."
        )
    _check_casts(found)


def _check_casts(found: _Found) -> None:
    """Raise an error if weights have to be cast that something else relies on."""
    name, layer = found.name, found.layer
    cast = {id(one): one for one in layer.parameters() if one.dtype in HALF}
    if not cast:
        return
    strange = next((one for one in cast.values() if type(one) not in PLAIN), None)
    if strange is not None:
        raise Float32Error(
            f"The weights of {name} are a {type(strange).__name__}, which cannot be cast: leave "
            "the layer out where the model is converted."
        )
    if any(_is_kind(one, {_REDUCING}) for one in found.way):
        raise Float32Error(
            f"The weights of {name} are in half precision, and DistributedDataParallel has "
            "already made its buffers for them: call ampwatch.run_in_float32 before the model is "
            "wrapped."
        )
    inside = {id(one) for one in layer.modules()}
    for path, module in found.way[0].named_modules():
        own = module._parameters.values()
        if id(module) not in inside and any(id(one) in cast for one in own):
            other = _plain_name("", path) or ROOT_NAME
            raise Float32Error(
                f"{name} shares its weights, which are in half precision, with {other}: cast "
                "those weights to float32 yourself, then call ampwatch.run_in_float32 for the "
                "layers that are to compute in it."
            )


def _is_kind(module: nn.Module, names: frozenset[str] | set[str]) -> bool:
    return any(kind.__name__ in names for kind in type(module).__mro__)


def _is_read_by(layer: nn.Module, parent: nn.Module) -> bool:
    return isinstance(parent, nn.MultiheadAttention) and parent.out_proj is layer


# -- run a layer in float32 ------------------------------------------------------------------------


@dataclass(slots=True)
class _Before:
    """How a layer was before: its weights in half precision, and a `forward` of its own."""

    dtypes: dict[str, torch.dtype] = field(default_factory=dict)  # by name, where half
    forward: Callable[..., Any] | None = None  # that somebody had set on this very layer


class _RunsInFloat32:
    """What is put before a layer's class."""

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The layer's own forward, in float32."""
        before = vars(self).get(_STATE)
        forward = super().forward  # type: ignore[misc]
        if before is None:  # it was undone below another class that was put before it
            return forward(*inputs, **named)
        if before.forward is not None:
            forward = before.forward
        with _without_autocast(self, inputs, named):
            return forward(*full_precision(inputs), **full_precision(named))

    def __reduce_ex__(self, protocol: Any) -> Any:
        state: Any = super().__reduce_ex__(protocol)
        kind = type(self)
        plain = _plain_class(kind)
        if plain is None or not isinstance(state, tuple):
            return state
        function, arguments, *rest = state
        arguments = tuple(plain if one is kind else one for one in arguments)
        return (_remade, (function, arguments), *rest)


def _remade(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """A layer from a pickle or a copy: of its own class first, which has a name to find it by."""
    layer = function(*arguments)
    kind: Any = type(layer)
    layer.__class__ = _float32_class(kind)
    return layer


@cache
def _float32_class(kind: Any) -> Any:
    members = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
    }
    return type(kind.__name__, (_RunsInFloat32, kind), members)


def _plain_class(kind: type[Any]) -> type[Any] | None:
    """The layer's own class; None if another one was put before ours."""
    bases = kind.__bases__
    return bases[1] if bases[0] is _RunsInFloat32 else None


def run_layer_in_float32(layer: nn.Module) -> None:
    """Have this layer run in float32: its weights, its inputs and what it computes."""
    if _STATE in vars(layer):
        return
    dtypes = {name: one.dtype for name, one in _weights(layer) if one.dtype in HALF}
    forward = vars(layer).pop("forward", None)
    kind: Any = type(layer)
    if not issubclass(kind, _RunsInFloat32):
        layer.__class__ = _float32_class(kind)
    vars(layer)[_STATE] = _Before(dtypes, forward)
    if dtypes:
        _cast(layer, _float32)


def undo_float32(layer: nn.Module) -> None:
    """Have the layer run as it did before `run_layer_in_float32`."""
    before = vars(layer).pop(_STATE, None)
    if before is None:
        return
    plain = _plain_class(type(layer))
    if plain is not None:
        layer.__class__ = plain
    if before.forward is not None:
        vars(layer).setdefault("forward", before.forward)
    dtypes = {
        id(one): before.dtypes[name] for name, one in _weights(layer) if name in before.dtypes
    }
    for one in layer.parameters():
        if one.grad is not None and id(one) in dtypes:
            dtypes[id(one.grad)] = dtypes[id(one)]
    if dtypes:
        _cast(layer, lambda one: one.to(dtypes.get(id(one), one.dtype)))


def _cast(layer: Any, cast: Callable[[Tensor], Tensor]) -> None:
    """Put the cast values into the layer's own parameters, gradients and buffers."""
    layer._apply(cast)


def _weights(layer: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from layer.named_parameters(remove_duplicate=False)
    yield from layer.named_buffers(remove_duplicate=False)


def _float32(value: Tensor) -> Tensor:
    return value.float() if value.dtype in HALF else value


def full_precision(value: Any) -> Any:
    """The value with its half-precision tensors in float32; itself where it holds none."""
    if isinstance(value, Tensor):
        return _float32(value)
    if not _holds_half(value):
        return value
    if isinstance(value, dict):
        named = {key: full_precision(one) for key, one in value.items()}
        return named if type(value) is dict else _copied(value, named)
    parts = [full_precision(one) for one in value]
    return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)


def _holds_half(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.dtype in HALF
    if isinstance(value, dict):
        return any(_holds_half(one) for one in value.values())
    return isinstance(value, (tuple, list)) and any(_holds_half(one) for one in value)


def _copied(value: Any, parts: dict[Any, Any]) -> Any:
    """A copy of a dict of another class, such as a library's model output."""
    copy = value.copy()
    for key, one in parts.items():
        copy[key] = one
    return copy


def _without_autocast(layer: Any, *inputs: Any) -> Any:
    """A context without autocast for the device on which the layer computes."""
    first = next(layer.parameters(), None)
    first = _first_tensor(inputs) if first is None else first
    kind = "cpu" if first is None else first.device.type
    is_known = torch.amp.is_autocast_available(kind)
    return torch.autocast(kind, enabled=False) if is_known else contextlib.nullcontext()


def _first_tensor(value: Any) -> Tensor | None:
    """The first floating-point tensor in what a layer is called with."""
    if isinstance(value, Tensor):
        return value if value.is_floating_point() else None
    parts = list(value.values()) if isinstance(value, dict) else value
    if not isinstance(parts, (tuple, list)):
        return None
    tensors = (_first_tensor(one) for one in parts)
    return next((one for one in tensors if one is not None), None)
