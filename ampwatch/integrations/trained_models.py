"""The models that a script trains: those around the parameters that its optimizers hold."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


def is_trained(module: nn.Module, optimizers: Iterable[Any]) -> bool:
    """Whether an optimizer holds a parameter of this model."""
    held = _held_parameters(optimizers)
    return any(id(parameter) in held for parameter in module.parameters())


def trained_models(optimizers: Iterable[Any], running: nn.Module | None) -> Any:
    """The models that these optimizers train, several by class name; `running` if none is found."""
    from ampwatch.probe.models import unwrap

    models = _outermost_modules(_held_parameters(optimizers)) or (
        [running] if running is not None else []
    )
    if len(models) < 2:
        return models[0] if models else None
    names = [type(unwrap(model)[0]).__name__ for model in models]
    if len(set(names)) == len(names):
        return dict(zip(names, models, strict=True))
    return models


def _held_parameters(optimizers: Iterable[Any]) -> set[int]:
    return {
        id(parameter)
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    }


def _outermost_modules(held: set[int]) -> list[nn.Module]:
    """The outermost modules in the process around the parameters that optimizers hold."""
    from torch import nn

    modules = [thing for thing in gc.get_objects() if issubclass(type(thing), nn.Module)]
    around: dict[int, list[nn.Module]] = {}
    for module in modules:
        for child in module.__dict__.get("_modules", {}).values():
            around.setdefault(id(child), []).append(module)
    found: dict[int, nn.Module] = {}
    seen: set[int] = set()
    reached = [m for m in modules if any(id(p) in held for p in _own_parameters(m))]
    while reached:
        module = reached.pop()
        if id(module) not in seen:
            seen.add(id(module))
            outer = around.get(id(module), [])
            reached += outer
            if not outer:
                found[id(module)] = module
    return [module for module in modules if id(module) in found]


def _own_parameters(module: nn.Module) -> list[Any]:
    return list(module.__dict__.get("_parameters", {}).values())
