"""One watched training step and one unwatched twin that tells the truth about it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from ampwatch.probe.layer_observer import LayerObserver, SampledLayers
from ampwatch.probe.layer_rows import LayerFigures, LayerInfo, LayerInfos, figures_of
from ampwatch.probe.models import Survey, survey
from ampwatch.probe.tensor_values import Pack
from ampwatch.rows import DTYPES

Forward = Callable[[nn.Module], Tensor]


class Strict:
    """A guard that hides nothing."""

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)


@dataclass
class Watched:
    """A model under observation, and what is known of its last step by layer name."""

    model: Any
    scale: float = 1024.0
    survey: Survey = field(init=False)
    observer: LayerObserver = field(init=False)
    infos: LayerInfos = field(init=False)
    last: LayerFigures = field(init=False)
    changed: list[LayerInfo] = field(init=False)
    steps: int = 0

    def __post_init__(self) -> None:
        self.survey = survey(self.model)
        self.observer = LayerObserver(self.survey, Strict())
        self.infos = LayerInfos(self.survey, lambda _position: None)

    def step(self, run: Callable[[], None]) -> Watched:
        """Run an armed step and make its figures."""
        self.observer.arm()
        run()
        pack = Pack()
        sampled = self.observer.collect()
        sampled.put(pack)
        pack.seal()
        assert pack.ready()
        self.read(sampled, pack)
        self.steps += 1
        return self

    def read(self, sampled: SampledLayers, pack: Pack) -> None:
        """Make the figures of a step whose values have arrived."""
        self.changed = self.infos.with_routers(self.infos.changed(sampled), sampled, pack.values)
        self.last = figures_of(sampled, self.survey.layers, pack.values, self.scale)

    def cells(self, name: str) -> Any:
        return SimpleNamespace(**self.last.row(self.number(name)))

    def info(self, name: str) -> Any:
        return self.infos.written[self.number(name)]

    def dtype(self, name: str, which: str) -> str | None:
        number = getattr(self.info(name), which)
        return None if number is None else DTYPES[number]

    def number(self, name: str) -> int:
        return next(layer.number for layer in self.survey.layers if layer.name == name)


def half_step(model: nn.Module, forward: Forward, scale: float = 1024.0) -> Callable[[], None]:
    """One forward and backward in float16 on the CPU, through a real GradScaler."""
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)

    def run() -> None:
        with torch.autocast("cpu", torch.float16):
            loss = forward(model)
        scaler.scale(loss).backward()

    return run


@dataclass
class Truth:
    """What a twin's own hooks saw of one module, kept alive and cloned."""

    act: list[float] = field(default_factory=list)
    input: list[float] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    inputs: list[Tensor] = field(default_factory=list)
    order: int = -1
    own_finite: bool = True  # the gradients of its own parameters

    @property
    def out_grad(self) -> float:
        return max(amax(t.grad) for t in self.outputs if t.grad is not None)

    @property
    def in_grad(self) -> float:
        return max(amax(t.grad) for t in self.inputs if t.grad is not None)


def amax(tensor: Tensor) -> float:
    value = tensor.detach().double().abs()
    return math.nan if value.isnan().any() else value.max().item()


def truth_of(model: nn.Module, forward: Forward, scale: float = 1024.0) -> dict[str, Truth]:
    """Run the same step on a copy, every tensor retained; not for in-place layers."""
    twin = copy.deepcopy(model)
    known: dict[str, Truth] = {}

    def before(name: str) -> Any:
        def hook(_module: Any, args: Any, kwargs: Any) -> None:
            record = known.setdefault(name, Truth())
            if record.order < 0:
                record.order = len(known) - 1
            for tensor in floating([*args, *kwargs.values()]):
                record.input.append(amax(tensor))
                keep(record.inputs, tensor)

        return hook

    def after(name: str) -> Any:
        def hook(_module: Any, _args: Any, output: Any) -> None:
            for tensor in floating([output]):
                known[name].act.append(amax(tensor))
                keep(known[name].outputs, tensor)

        return hook

    for name, module in twin.named_modules():
        module.register_forward_pre_hook(before(name or "(root)"), with_kwargs=True)
        module.register_forward_hook(after(name or "(root)"))
    half_step(twin, forward, scale)()
    for name, record in known.items():
        record.own_finite = gradients_finite(twin.get_submodule("" if name == "(root)" else name))
    return known


def gradients_finite(module: nn.Module) -> bool:
    gradients = [p.grad for p in module.parameters(recurse=False) if p.grad is not None]
    return all(bool(gradient.isfinite().all()) for gradient in gradients)


def floating(values: Any) -> list[Tensor]:
    if isinstance(values, Tensor):
        return [values] if values.is_floating_point() else []
    if hasattr(values, "logits"):
        values = vars(values)
    if isinstance(values, dict):
        values = list(values.values())
    if isinstance(values, (list, tuple)):
        return [tensor for value in values for tensor in floating(value)]
    return []


def keep(kept: list[Tensor], tensor: Tensor) -> None:
    if tensor.requires_grad:
        tensor.retain_grad()
        kept.append(tensor)
