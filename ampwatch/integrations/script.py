"""What `ampwatch run` does inside the script: finds scaler, optimizers and model, and attaches.

Nothing of the script's is read or changed before it imports torch by itself. From then on its
scalers and optimizers tell us when they are made. At the first forward pass in training mode of a
module whose parameters an optimizer holds, everything stands and the watch begins; the hooks that
waited for it are gone again. A script that compiles is watched from its first loss on instead:
torch warns of a hook on every module, and would compile it along. Where several scalers leave open
which is whose, each is watched from its first step on, with the model of the optimizer that it
steps. Without a scaler the loss is what `backward` was called on.
"""

from __future__ import annotations

import atexit
import importlib.abc
import importlib.util
import json
import multiprocessing
import os
import sys
import weakref
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ampwatch.integrations.telling import tell_of_calls, tell_of_each, tell_of_function
from ampwatch.integrations.trained_models import is_trained, trained_models
from ampwatch.switch import switched_off

if TYPE_CHECKING:
    from torch import Tensor, nn

OPTIONS = "AMPWATCH_RUN_OPTIONS"
"""Where `ampwatch run` leaves what it was asked for, as JSON."""

PROCESS_ID = "AMPWATCH_RUN_PROCESS"
"""Where it leaves its own process id, which is the script's too."""


def prepare() -> None:
    """Wait for the script to import torch."""
    if switched_off(os.environ):
        return
    if "torch" in sys.modules:  # a package's .pth file has imported it before us
        _begin()
    else:
        sys.meta_path.insert(0, _Torch())


def _begin() -> None:
    Script(json.loads(os.environ.get(OPTIONS, "{}"))).begin()


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
        _begin()

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
        self._compiles = False
        self._watches: list[Any] = []
        self._optimizes = False
        self._losses = _Losses()

    def begin(self) -> None:
        """Be told of every scaler and optimizer that is made, and of what compiles."""
        import torch

        tell_of_each(torch.amp.GradScaler, self._made_scaler)
        tell_of_each(torch.optim.Optimizer, self._made_optimizer)
        tell_of_calls(torch.amp.GradScaler, "scale", self._scaling)
        tell_of_calls(torch.amp.GradScaler, "step", self._stepping)
        tell_of_calls(torch.Tensor, "backward", self._going_back)
        tell_of_function(torch, "compile", self._compiling)
        self._losses.begin()
        atexit.register(self._say_if_nothing)

    def _made_scaler(self, scaler: Any) -> None:
        self._scalers.add(scaler)
        self._wait()

    def _made_optimizer(self, optimizer: Any) -> None:
        self._optimizes = True
        self._optimizers.add(optimizer)
        self._wait()

    def _wait(self) -> None:
        """Look at forward passes until there is nothing left to attach to."""
        from torch.nn.modules.module import register_module_forward_pre_hook

        if self._waiting is None and not self._compiles:
            self._waiting = register_module_forward_pre_hook(self._forward)

    def _wait_no_more(self) -> None:
        if self._waiting is not None:
            self._waiting.remove()
            self._waiting = None

    def _compiling(self) -> None:
        """Losses tell from here on."""
        self._compiles = True
        self._wait_no_more()

    def _forward(self, module: nn.Module, _inputs: Any) -> None:
        import torch

        if module.training and torch.is_grad_enabled():
            self._guard.run(self._begin_with, module)

    def _begin_with(self, module: nn.Module) -> None:
        """Attach if an optimizer holds something of what runs here."""
        if is_trained(module, list(self._optimizers)):
            self._wait_no_more()
            self._attach_to_all(module)

    def _scaling(self, *_: Any, **__: Any) -> None:
        if self._compiles and self._optimizers:
            self._guard.run(self._attach_to_all, None)

    def _going_back(self, loss: Tensor, *_: Any, **__: Any) -> None:
        if self._compiles and self._optimizers:
            self._guard.run(self._attach_to_all, None)
        if self._losses.watch is not None:
            self._guard.run(self._losses.take, loss)

    def _attach_to_all(self, running: nn.Module | None) -> None:
        """Attach, if only one scaler is new."""
        scalers = [scaler for scaler in self._scalers if not scaler.is_enabled()]
        scalers = [scaler for scaler in self._scalers if scaler.is_enabled()] or scalers
        if len(scalers) > 1:
            return  # their first steps will tell which model each belongs to
        optimizers = list(self._optimizers)
        self._scalers.clear()
        self._optimizers.clear()
        self._attach(next(iter(scalers), None), optimizers, running)

    def _stepping(self, scaler: Any, optimizer: Any, *_: Any, **__: Any) -> None:
        """Attach to a scaler that is still new at its first step."""
        if scaler in self._scalers:
            self._scalers.discard(scaler)
            self._optimizers.discard(optimizer)
            self._guard.run(self._attach, scaler, [optimizer], None)

    def _attach(self, scaler: Any, optimizers: list[Any], running: nn.Module | None) -> None:
        from ampwatch.errors import AttachError
        from ampwatch.probe import attach, warn

        models = trained_models(optimizers, running)
        try:
            watch = attach(
                scaler, models, optimizer=optimizers if scaler is None else None, **self._options
            )
        except AttachError as error:
            warn(f"this training is not watched: {error}")
            return
        self._watches.append(watch)
        if scaler is None or scaler.is_enabled():  # which may turn out to be of no use
            self._losses.watch = watch
        if watch.run_folder is not None:
            folder = _shown(watch.run_folder)
            sys.stderr.write(f"ampwatch: watching; see `ampwatch report {folder}`\n")

    def _say_if_nothing(self) -> None:
        """Say that nothing was watched, but not of a launcher, whose children train."""
        launches = not self._optimizes and os.times().children_user > 0
        asked = _is_asked_for() and multiprocessing.parent_process() is None
        if not self._watches and not launches and asked:
            sys.stderr.write(
                "ampwatch: nothing was watched: no optimizer's model ran in training mode.\n"
            )


def _is_compiling() -> bool:
    """Whether the compiler reads an optimizer's step: we must not become part of its graph."""
    import torch

    return bool(torch.compiler.is_compiling())


def _is_asked_for() -> bool:
    """Whether this process is what `ampwatch run` has become, or a launcher's rank of it.

    What a script starts for itself may have its words read by the script.
    """
    asked = os.environ.get(PROCESS_ID)
    own = os.getpid() if sys.platform != "win32" else os.getppid()
    return asked is None or asked == str(own) or "LOCAL_RANK" in os.environ


def _shown(folder: Path) -> str:
    """A folder as one would type it from here, where that is no longer than its whole name."""
    try:
        return min(os.path.relpath(folder), str(folder), key=len)
    except (OSError, ValueError):  # here is no more, or on another drive
        return str(folder)


class _Losses:
    """What the backward passes of a step began from, where no scaler is given the loss."""

    def __init__(self) -> None:
        self.watch: Any = None
        self._total: Tensor | None = None
        self._stepping = False  # within an optimizer's step: a closure evaluates anew

    def begin(self) -> None:
        """Be told of optimizers' steps: a sum of losses ends there."""
        from torch.optim import optimizer

        optimizer.register_optimizer_step_pre_hook(self._begins_step)
        optimizer.register_optimizer_step_post_hook(self._ended_step)

    def take(self, loss: Tensor) -> None:
        """`loss.backward()` is about to run: micro-batches' parts add up to the step's."""
        from torch.overrides import has_torch_function_unary

        if loss.ndim or has_torch_function_unary(loss) or self.watch.closed or self.watch.scales:
            return  # a tensor's subclass comes again, as a plain tensor
        part = loss.detach().clone()
        self._total = part if self._total is None or self._stepping else self._total + part
        self.watch.log(loss=self._total)

    def _begins_step(self, *_: Any) -> None:
        if _is_compiling():
            return
        self._stepping = True

    def _ended_step(self, *_: Any) -> None:
        if _is_compiling():
            return
        self._stepping, self._total = False, None
