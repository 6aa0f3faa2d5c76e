"""What `ampwatch run` does inside the script: finds scaler, optimizers and model, and attaches.

Nothing of the script's is read or changed before it imports torch by itself. From then on its
scalers and optimizers tell us when they are made. At the first forward pass in training mode of a
module whose parameters an optimizer holds, everything stands and the watch begins; the hooks that
waited for it are gone again. A script that compiles is watched from its first loss on instead:
torch warns of a hook on every module, and would compile it along. Where several scalers leave open
which is whose, each is watched from its first step on, with the model of the optimizer that it
steps. Without a scaler the loss is what `backward` was called on.

An optimizer that is made later belongs to the watch whose parameters it holds, or whose scaler
steps it; only one of neither kind begins another run. Nothing here keeps a scaler, an optimizer, a
model or a watch alive.
"""

from __future__ import annotations

import atexit
import json
import multiprocessing
import os
import sys
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ampwatch.environment import switched_off
from ampwatch.integrations.telling import (
    tell_of_calls,
    tell_of_each,
    tell_of_function,
    tell_of_lookups,
)
from ampwatch.integrations.torch_import import when_torch_is_loaded
from ampwatch.integrations.trained_models import is_trained, trained_models
from ampwatch.integrations.unwatched import Seen, why_unwatched

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ampwatch.probe import Watch

OPTIONS = "AMPWATCH_RUN_OPTIONS"
"""Where `ampwatch run` leaves what it was asked for, as JSON."""

PROCESS_ID = "AMPWATCH_RUN_PROCESS"
"""Where it leaves its own process id, which is the script's too."""

STEPS_TO_SHOW_A_MODEL = 3
"""An optimizer that has stepped so often, with no module of its own ever run, trains none."""


def prepare() -> None:
    """Wait for the script to import torch."""
    if not switched_off():
        _keep_closed_streams_closed()
        when_torch_is_loaded(_begin)


def _begin() -> None:
    try:
        script = Script(json.loads(os.environ.get(OPTIONS, "{}")))
    except ImportError as error:  # of what we need beside torch
        say(f"this Python cannot watch ({error}); the script runs alone.")
        return
    script.begin()


def say(sentence: str) -> None:
    """On stderr, where there is one."""
    try:
        sys.stderr.write(f"ampwatch: {sentence}\n")
    except (OSError, ValueError, AttributeError):  # closed by the script, or before it: it is None
        return


def _keep_closed_streams_closed() -> None:
    """A log of ours may not become stdout or stderr, which whoever writes there takes for its own.

    What stands there instead takes as little as a closed stream, and is closed in children too.
    """
    if hasattr(os, "O_PATH"):
        place = os.open("/", os.O_PATH)
        while place <= 2:
            place = os.open("/", os.O_PATH)
        os.close(place)


class Script:
    """What is known of a training that does not know us."""

    def __init__(self, options: dict[str, Any]) -> None:
        from ampwatch.integrations.backward_losses import BackwardLosses
        from ampwatch.probe import Guard

        self._options = options
        self._guard = Guard()
        self._scalers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()  # of no training so far
        self._fruitless: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._strangers: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # hold nothing of theirs
        self._waiting: Any = None
        self._compiles = False
        self._own: weakref.WeakSet[Watch] = weakref.WeakSet()
        self._seen = Seen()
        self._losses = BackwardLosses(self._own_live, self._guard)

    def begin(self) -> None:
        """Be told of every scaler and optimizer that is made, and of what compiles."""
        import torch
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        tell_of_each(torch.amp.GradScaler, self._made_scaler)
        tell_of_each(torch.optim.Optimizer, self._made_optimizer)
        tell_of_lookups(torch.Tensor, "backward", self._going_back)
        tell_of_function(torch, "compile", self._compiling)
        self._losses.begin()
        register_optimizer_step_pre_hook(self._optimizer_begins)
        atexit.register(self._say_if_nothing)

    # -- what the script makes and does --------------------------------------------------------

    def _made_scaler(self, scaler: Any) -> None:
        import torch

        for kind in type(scaler).__mro__:
            if issubclass(kind, torch.amp.GradScaler):
                self._hear_calls_of(kind)
        self._scalers.add(scaler)
        self._seen.scalers += 1

    def _hear_calls_of(self, kind: type) -> None:
        for name, tell in (("scale", self._scaling), ("step", self._stepping)):
            if name in vars(kind):
                tell_of_calls(kind, name, tell)

    def _made_optimizer(self, optimizer: Any) -> None:
        self._seen.optimizers.add(type(optimizer).__name__)
        self._optimizers.add(optimizer)
        self._strangers.clear()
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

        if not (module.training and torch.is_grad_enabled()):
            self._seen.evaluated = True
        elif module not in self._strangers:
            self._guard.run(self._begin_with, module)

    def _scaling(self, scaler: Any, outputs: Any, *_: Any, **__: Any) -> None:
        self._guard.run(self._losses.scaled_unwatched, scaler, outputs)
        if self._compiles and self._optimizers:
            self._guard.run(self._begin_with, None)

    def _going_back(self, loss: Tensor) -> None:
        self._seen.went_back = True
        if self._optimizers:
            self._guard.run(self._begin_unscaled)
        self._guard.run(self._losses.take, loss)

    def _stepping(self, scaler: Any, optimizer: Any, *_: Any, **__: Any) -> None:
        self._guard.run(self._begin_with_step, scaler, optimizer)

    def _optimizer_begins(self, optimizer: Any, *_: Any) -> None:
        """One that is nobody's steps: is there a module of its own at all?"""
        import torch

        if not torch.compiler.is_compiling() and optimizer in self._optimizers:
            self._guard.run(self._count_fruitless, optimizer)

    def _count_fruitless(self, optimizer: Any) -> None:
        steps = self._fruitless[optimizer] = self._fruitless.get(optimizer, 0) + 1
        self._strangers.clear()  # its parameters may have been others before
        if steps > STEPS_TO_SHOW_A_MODEL and not self._compiles:
            self._optimizers.discard(optimizer)

    # -- when to attach ------------------------------------------------------------------------

    def _begin_with(self, module: nn.Module | None) -> None:
        """Attach if an optimizer that is nobody's holds something of what runs here."""
        self._hand_over()
        if not self._optimizers:
            self._wait_no_more()
        elif module is not None and not is_trained(module, list(self._optimizers)):
            self._seen.ran = True
            self._strangers.add(module)
        elif self._free_scalers() or not _a_scaler_is_used():
            self._attach_to_all(module)

    def _begin_unscaled(self) -> None:
        """A backward that no scaler was given the loss of: no scaler will step its optimizer."""
        self._hand_over()
        scaled = any(watch.has_scaled for watch in _live_watches())
        if self._optimizers and not scaled and (self._compiles or _a_scaler_is_used()):
            self._attach_to_all(None)

    def _begin_with_step(self, scaler: Any, optimizer: Any) -> None:
        """Attach to a scaler that is nobody's at its first step."""
        if scaler not in self._free_scalers():
            return
        for watch in _live_watches():
            if watch.knows(optimizer):
                if watch.adopts_scalers:
                    return
                watch.close()  # it began before there was a scaler of use
        self._attach(scaler, [optimizer], None)
        self._losses.hand_over(scaler)

    def _hand_over(self) -> None:
        """An optimizer of a training that is watched is another of that training's."""
        for optimizer in list(self._optimizers):
            if not hasattr(optimizer, "param_groups"):  # its making failed
                self._optimizers.discard(optimizer)
                continue
            owner = next((one for one in _live_watches() if one.knows(optimizer)), None)
            if owner is not None:
                self._seen.watched = True
                self._optimizers.discard(optimizer)
                if not owner.scales:  # else the scaler shows it
                    owner.take_up(optimizer)

    def _free_scalers(self) -> list[Any]:
        watches = _live_watches()
        return [one for one in self._scalers if not any(watch.watches(one) for watch in watches)]

    def _attach_to_all(self, running: nn.Module | None) -> None:
        """Attach, if only one scaler is new."""
        free = self._free_scalers()
        scalers = [scaler for scaler in free if scaler.is_enabled()] or free
        if len(scalers) > 1:
            return  # their first steps will tell which model each belongs to
        self._attach(next(iter(scalers), None), list(self._optimizers), running)

    # -- attaching -----------------------------------------------------------------------------

    def _attach(self, scaler: Any, optimizers: list[Any], running: nn.Module | None) -> None:
        from ampwatch.errors import AttachError
        from ampwatch.probe import Watch, attach, warn

        for optimizer in optimizers:
            self._optimizers.discard(optimizer)
        if not self._optimizers:
            self._wait_no_more()
        models = trained_models(optimizers, running)
        try:
            watch = attach(
                scaler, models, optimizer=optimizers if scaler is None else None, **self._options
            )
        except AttachError as error:
            self._seen.refused = True
            self._scalers.discard(scaler)
            warn(f"this training is not watched: {error}")
            return
        if isinstance(watch, Watch):
            self._seen.watched = True
            self._own.add(watch)
        if watch.run_folder is not None:
            say(f"watching; see `ampwatch report {_shown(watch.run_folder)}`")

    def _own_live(self) -> list[Watch]:
        return [watch for watch in self._own if not watch.closed]

    def _say_if_nothing(self) -> None:
        """Say that nothing was watched, but not of a launcher, whose children train."""
        launches = not self._seen.optimizers and os.times().children_user > 0
        asked = _is_asked_for() and multiprocessing.parent_process() is None
        if not (self._seen.watched or self._seen.refused or launches) and asked:
            say(f"nothing was watched: {why_unwatched(self._seen)}")


def _live_watches() -> list[Watch]:
    from ampwatch.probe import live_watches

    return live_watches()


def _a_scaler_is_used() -> bool:
    """Whether a training that is watched scales: then an optimizer made later may be its next."""
    return any(watch.scales for watch in _live_watches())


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
