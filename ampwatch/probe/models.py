"""What a model consists of: its layers and parameters, seen through every wrapper.

A survey is made once. It changes nothing in the model and runs nothing of it, and it keeps no
module alive: what is said of one that is gone is what was known when the survey was made. Part of
it is each layer's matrix product: its rows and its floating-point operations in one forward call,
where a multiplication and an addition count as two.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from ampwatch.errors import AttachError
from ampwatch.printable_text import with_article
from ampwatch.probe.tensor_values import parameter_shape

ROOT_NAME = "(root)"
BARE_PARAMETER = "Parameter"

# By name, so that neither FSDP nor the compiler has to be imported to look for them.
_WRAPPERS = {
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
    "OptimizedModule": "_orig_mod",
    "_FabricModule": "_forward_module",
    "Float16Module": "module",  # Megatron's, whose DistributedDataParallel is named as torch's is
}
# What wrappers add to the names of layers.
WRAPPER_ATTRIBUTES = frozenset({*_WRAPPERS.values(), "_original_module"})

Reference = weakref.ref[nn.Module]
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
            every = ((name, _plain(value)) for name, value in vars(module).items())
            plain = {name: value for name, value in every if isinstance(value, _PLAIN)}
            return Multiplier(formula, SimpleNamespace(**plain))
    return None


def _plain(value: Any) -> Any:
    """A size that numpy has counted, as Python's: some write `np.array(shape).prod()`."""
    return int(value) if isinstance(value, np.integer) else value


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


# -- layers and parameters -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """One module, or one bare parameter of a module that has children.

    `sealed` says why nothing inside can be seen ("compiled", "scripted").
    `parameters` are positions in `Survey.parameters` that this layer is the first to hold;
    `weights` also count those it shares with an earlier layer.
    """

    number: int
    name: str
    to_module: Reference = field(repr=False)
    to_hooked: Reference | None = field(repr=False)
    to_root: Reference = field(repr=False)
    parent: int | None
    leaf: bool
    first_kind: str
    first_multiplier: Multiplier | None = field(repr=False)
    sealed: str | None = None
    parameters: tuple[int, ...] = ()
    weights: tuple[int, ...] = ()

    @property
    def module(self) -> nn.Module | None:
        """The module, while it lives; of a bare parameter the one that holds it."""
        return self.to_module()

    @property
    def hooked(self) -> nn.Module | None:
        """Where hooks go: the module itself, or the compiled wrapper around it."""
        return None if self.to_hooked is None else self.to_hooked()

    @property
    def root(self) -> nn.Module | None:
        """The model that it is in, while that lives."""
        return self.to_root()

    @property
    def is_bare(self) -> bool:
        """Whether it is a bare parameter."""
        return self.to_hooked is None

    @property
    def kind(self) -> str:
        """The class's name; read late because a lazy module changes its class."""
        module = self.to_module()
        return self.first_kind if module is None or self.is_bare else _kind(module)

    @property
    def multiplier(self) -> Multiplier | None:
        """The matrix product that it makes, if it makes one."""
        module = self.to_module()
        return self.first_multiplier if module is None else multiplier_of(module)


def _kind(module: nn.Module) -> str:
    # TorchScript hides the class behind its own.
    return str(getattr(module, "original_name", type(module).__name__))


@dataclass(frozen=True, slots=True)
class Root:
    """One watched model: the prefix of its layers' names, and the wrappers around it."""

    prefix: str
    wrapped: tuple[str, ...]  # their classes, outermost first


@dataclass(frozen=True, slots=True, eq=False)
class Survey:
    """Every layer and parameter of the watched models, each once, in `named_modules` order.

    A parameter keeps its position when another takes its place in the module (`follow`).
    """

    layers: tuple[Layer, ...]
    parameters: list[nn.Parameter]
    slots: tuple[tuple[Reference, str], ...] = field(repr=False)  # where each parameter is held
    parameter_layers: NDArray[np.int64] = field(repr=False)
    to_roots: tuple[Reference, ...] = field(repr=False)
    described: tuple[Root, ...] = ()  # the roots, for readers of the run

    @property
    def roots(self) -> tuple[nn.Module, ...]:
        """The watched models that live."""
        return tuple(root for reference in self.to_roots if (root := reference()) is not None)

    def follow(self) -> bool:
        """Take up parameters put in the place of others, by `to_empty` or FSDP; were there any?"""
        changed = False
        for position, (reference, name) in enumerate(self.slots):
            module = reference()
            held = None if module is None else module._parameters.get(name)
            if held is not None and held is not self.parameters[position]:
                self.parameters[position] = held
                changed = True
        return changed

    def came_later(self, parameters: Sequence[Any]) -> list[str]:
        """The names of modules that hold one of these and were no part of the models before."""
        modules = {id(layer.module) for layer in self.layers}
        held = {id(parameter) for parameter in parameters}
        return [
            name
            for root in self.roots
            for name, module in root.named_modules()
            if id(module) not in modules and any(id(p) in held for p in module._parameters.values())
        ]

    def held_by(self, layer: Layer) -> list[nn.Parameter]:
        """The layer's own parameters, those among them that it shares with another."""
        return [self.parameters[at] for at in layer.weights]

    def matrix_of(self, layer: Layer) -> nn.Parameter | None:
        """The first of a layer's parameters with two dimensions or more."""
        held = self.held_by(layer)
        return next((one for one in held if len(parameter_shape(one) or ()) >= 2), None)

    def layers_of(self, positions: Sequence[int]) -> NDArray[np.int64]:
        """The layer of each parameter by its position; -1 for a parameter of no watched model."""
        at = np.asarray(positions, np.int64)
        layers, ours = np.full(len(at), -1), at >= 0
        layers[ours] = self.parameter_layers[at[ours]]
        return layers

    def around(self, layer: Layer) -> list[int]:
        """The numbers of the layers that contain this one, the nearest first."""
        models = []
        while layer.parent is not None:
            layer = self.layers[layer.parent]
            models.append(layer.number)
        return models


def survey(model: nn.Module | Sequence[nn.Module] | Mapping[str, nn.Module] | None) -> Survey:
    """Number the layers of a model, of several (prefixed by index or key), or of none."""
    surveyor = _Surveyor()
    for prefix, module in _models(model):
        surveyor.add_root(prefix, module)
    return Survey(
        layers=tuple(surveyor.layers),
        parameters=surveyor.parameters,
        slots=tuple(surveyor.slots),
        parameter_layers=np.asarray(surveyor.parameter_layers, dtype=np.int64),
        to_roots=tuple(weakref.ref(root) for root in surveyor.roots),
        described=tuple(surveyor.described),
    )


def unwrap(module: nn.Module) -> tuple[nn.Module, nn.Module | None]:
    """The module inside its wrappers, and the outermost compiled wrapper if there is one."""
    *around, (_, inner) = _layers_of_wrapping(module)
    return inner, next((wrapped for kind, wrapped in around if kind == "OptimizedModule"), None)


def wrapping_of(module: nn.Module) -> list[nn.Module]:
    """The wrappers around a module, outermost first, and last the module inside."""
    return [one for _, one in _layers_of_wrapping(module)]


def _layers_of_wrapping(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """The wrappers around a module by the names of their classes, outermost first; then itself."""
    layers: list[tuple[str, nn.Module]] = []
    while (wrapper := _wrapper_of(module)) is not None:
        inner = getattr(module, _WRAPPERS[wrapper], None)
        if not isinstance(inner, nn.Module):
            break
        layers.append((wrapper, module))
        module = inner
    return [*layers, ("", module)]


def _wrapper_of(module: nn.Module) -> str | None:
    return next((c.__name__ for c in type(module).__mro__ if c.__name__ in _WRAPPERS), None)


def _models(model: Any) -> Iterator[tuple[str, nn.Module]]:
    if model is None:
        return
    if isinstance(model, nn.Module):
        yield "", model
        return
    if isinstance(model, Mapping):
        pairs: list[tuple[str, Any]] = [(str(key), value) for key, value in model.items()]
    elif isinstance(model, (list, tuple, set, frozenset)):
        pairs = [(str(index), value) for index, value in enumerate(model)]
    else:
        pairs = [("", model)]
    for key, value in pairs:
        if not isinstance(value, nn.Module):
            which = f"model[{key!r}]" if key else "model"
            raise AttachError(
                f"{which} is {with_article(type(value).__name__)}, not a "
                "torch.nn.Module; pass attach(scaler, model), where model is a module, a list or "
                "a dict of modules, or None to watch the scaler alone."
            )
        yield key, value


class _Surveyor:
    """Collects while it walks; the walk is what gives numbers and first holders."""

    def __init__(self) -> None:
        self.layers: list[Layer] = []
        self.parameters: list[nn.Parameter] = []
        self.slots: list[tuple[Reference, str]] = []
        self.parameter_layers: list[int] = []
        self.roots: list[nn.Module] = []
        self.described: list[Root] = []
        self._seen: set[int] = set()
        self._positions: dict[int, int] = {}

    def add_root(self, prefix: str, module: nn.Module) -> None:
        root, _ = unwrap(module)
        if id(root) in self._seen:
            return
        self.roots.append(root)
        wrappers = tuple(kind for kind, _ in _layers_of_wrapping(module)[:-1])
        self.described.append(Root(prefix, wrappers))
        self._walk(module, prefix, root, parent=None)

    def _walk(self, wrapped: nn.Module, path: str, root: nn.Module, parent: int | None) -> None:
        module, compiled = unwrap(wrapped)
        if id(module) in self._seen:
            return
        self._seen.add(id(module))
        children = [(name, child) for name, child in module.named_children() if child is not None]
        number = len(self.layers)
        own = {} if children else dict(module.named_parameters(recurse=False))
        self._add(
            name=path or ROOT_NAME,
            module=module,
            hooked=compiled if compiled is not None else module,
            root=root,
            parent=parent,
            leaf=not children,
            sealed=_seal(module, compiled),
            held=own,
        )
        if children:
            self._add_bare_parameters(module, path, root, number)
        for name, child in children:
            self._walk(child, _join(path, name), root, number)

    def _add_bare_parameters(
        self, module: nn.Module, path: str, root: nn.Module, parent: int
    ) -> None:
        for name, parameter in module.named_parameters(recurse=False):
            self._add(
                name=_join(path, name),
                module=module,
                hooked=None,
                root=root,
                parent=parent,
                leaf=False,
                sealed=None,
                held={name: parameter},
            )

    def _add(
        self,
        *,
        held: dict[str, nn.Parameter],
        module: nn.Module,
        hooked: nn.Module | None,
        root: nn.Module,
        **fields: Any,
    ) -> None:
        before = len(self.parameters)
        weights = tuple(self._position(module, name, held[name]) for name in held)
        layer = Layer(
            number=len(self.layers),
            to_module=weakref.ref(module),
            to_hooked=None if hooked is None else weakref.ref(hooked),
            to_root=weakref.ref(root),
            first_kind=BARE_PARAMETER if hooked is None else _kind(module),
            first_multiplier=multiplier_of(module),
            parameters=tuple(position for position in weights if position >= before),
            weights=weights,
            **fields,
        )
        self.layers.append(layer)

    def _position(self, module: nn.Module, name: str, parameter: nn.Parameter) -> int:
        position = self._positions.setdefault(id(parameter), len(self.parameters))
        if position == len(self.parameters):
            self.parameters.append(parameter)
            self.slots.append((weakref.ref(module), name))
            self.parameter_layers.append(len(self.layers))
        return position


def _seal(module: nn.Module, compiled: nn.Module | None) -> str | None:
    if compiled is not None:
        return "compiled"
    # TorchScript modules of every kind carry the compiled module behind this name.
    return "scripted" if hasattr(module, "original_name") and hasattr(module, "_c") else None


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
