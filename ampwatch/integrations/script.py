"""What `ampwatch run` does inside the script: finds scaler, optimizers and model, and attaches.

Nothing of the script's is read or changed before it imports torch by itself. From then on its
scalers and optimizers tell us when they are made. At the first forward pass in training mode of a
module whose parameters an optimizer holds, everything stands and the watch begins; the hooks that
waited for it are gone again. Where several scalers leave open which is whose, each is watched from
its first step on, with the model of the optimizer that it steps.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib.abc
import importlib.util
import json
import multiprocessing
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

OPTIONS = "AMPWATCH_RUN_OPTIONS"
"""Where `ampwatch run` leaves what it was asked for, as JSON."""


def prepare() -> None:
    """Wait for the script to import torch."""
    if os.environ.get("AMPWATCH") != "0":
        sys.meta_path.insert(0, _Torch())


class _Torch(importlib.abc.MetaPathFinder):
    """Lets torch be imported as ever, and is told when it is there."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Only torch's own, once; every other module is somebody else's to find."""
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            _follow_up(spec.loader)
        return spec


def _follow_up(loader: Any) -> None:
    load = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        load(module)
        Script(json.loads(os.environ.get(OPTIONS, "{}"))).begin()

    loader.exec_module = exec_module


class Script:
    """What is known of a training that does not know us."""

    def __init__(self, options: dict[str, Any]) -> None:
        from ampwatch.probe import Guard

        self._options = options
        self._guard = Guard()
        self._scalers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._waiting: Any = None
        self._watches: list[Any] = []

    def begin(self) -> None:
        """Be told of every scaler and optimizer that is made."""
        import torch

        _tell_of_each(torch.amp.GradScaler, self._made_scaler)
        _tell_of_each(torch.optim.Optimizer, self._made_optimizer)
        _tell_of_steps(torch.amp.GradScaler, self._stepping)
        atexit.register(self._say_if_nothing)

    def _made_scaler(self, scaler: Any) -> None:
        self._scalers.add(scaler)
        self._wait()

    def _made_optimizer(self, optimizer: Any) -> None:
        self._optimizers.add(optimizer)
        self._wait()

    def _wait(self) -> None:
        """Look at forward passes until there is nothing left to attach to."""
        from torch.nn.modules.module import register_module_forward_pre_hook

        if self._waiting is None:
            self._waiting = register_module_forward_pre_hook(self._forward)

    def _forward(self, module: nn.Module, _inputs: Any) -> None:
        import torch

        if module.training and torch.is_grad_enabled():
            self._guard.run(self._begin_with, module)

    def _begin_with(self, module: nn.Module) -> None:
        """Attach if an optimizer holds something of what runs here, and only one scaler is new."""
        optimizers = list(self._optimizers)
        if not _share(module, optimizers):
            return
        self._waiting.remove()
        self._waiting = None
        scalers = [scaler for scaler in self._scalers if not scaler.is_enabled()]
        scalers = [scaler for scaler in self._scalers if scaler.is_enabled()] or scalers
        if len(scalers) > 1:
            return  # their first steps will tell which model each belongs to
        self._scalers.clear()
        self._optimizers.clear()
        self._attach(next(iter(scalers), None), optimizers, module)

    def _stepping(self, scaler: Any, optimizer: Any) -> None:
        """Attach to a scaler that is still new at its first step."""
        if scaler in self._scalers:
            self._scalers.discard(scaler)
            self._optimizers.discard(optimizer)
            self._guard.run(self._attach, scaler, [optimizer], None)

    def _attach(self, scaler: Any, optimizers: list[Any], running: nn.Module | None) -> None:
        from ampwatch.errors import AttachError
        from ampwatch.probe import attach, warn

        models = _named(_roots(_held(optimizers)) or ([running] if running is not None else []))
        try:
            watch = attach(
                scaler, models, optimizer=optimizers if scaler is None else None, **self._options
            )
        except AttachError as error:
            warn(f"this training is not watched: {error}")
            return
        self._watches.append(watch)
        if watch.run_folder is not None:
            folder = os.path.relpath(watch.run_folder)
            sys.stderr.write(f"ampwatch: watching; see `ampwatch report {folder}`\n")

    def _say_if_nothing(self) -> None:
        if not self._watches and multiprocessing.parent_process() is None:
            sys.stderr.write(
                "ampwatch: nothing was watched: no optimizer's model ran in training mode.\n"
            )


# -- being told ----------------------------------------------------------------------------------


def _tell_of_each(kind: type, tell: Callable[[Any], None]) -> None:
    """Call `tell` with each object of this class, and of its subclasses, once it is made."""
    make = kind.__init__  # type: ignore[misc]

    @functools.wraps(make)
    def init(self: Any, *arguments: Any, **named: Any) -> None:
        make(self, *arguments, **named)
        tell(self)

    kind.__init__ = init  # type: ignore[misc]


def _tell_of_steps(kind: Any, tell: Callable[[Any, Any], None]) -> None:
    """Call `tell` before each step of a scaler; a class that it swaps takes this very step."""
    plain = kind.step

    @functools.wraps(plain)
    def step(self: Any, optimizer: Any, *arguments: Any, **named: Any) -> Any:
        before = type(self)
        tell(self, optimizer)
        if type(self) is not before:
            return self.step(optimizer, *arguments, **named)
        return plain(self, optimizer, *arguments, **named)

    kind.step = step


# -- which model ---------------------------------------------------------------------------------


def _held(optimizers: Iterable[Any]) -> set[int]:
    return {
        id(parameter)
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    }


def _share(module: nn.Module, optimizers: Iterable[Any]) -> bool:
    held = _held(optimizers)
    return any(id(parameter) in held for parameter in module.parameters())


def _roots(held: set[int]) -> list[nn.Module]:
    """The outermost modules around these parameters, of all that there are in the process."""
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


def _named(models: list[nn.Module]) -> Any:
    """None, one model, or several by the name of their class."""
    if len(models) < 2:
        return models[0] if models else None
    names = [type(model).__name__ for model in models]
    if len(set(names)) == len(names):
        return dict(zip(names, models, strict=True))
    return models
