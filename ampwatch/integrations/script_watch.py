"""Watches the script that `ampwatch run` starts: finds scaler, optimizers, model, and attaches.

Nothing is read or changed before the script itself imports torch. From then on we hear of each
scaler and optimizer when it is made. The watch begins at the first forward pass in training mode of
a module whose parameters an optimizer holds; the hooks that waited for it are then removed. A
script that compiles is watched from its first loss on: torch warns of a hook on every module, and
would compile it too. With several scalers each is watched from its first step on, with the model of
the optimizer that it steps. Without a scaler the loss is what `backward` was called on.

An optimizer that is made later belongs to the watch whose parameters it holds, or whose scaler
steps it; any other one begins another run. Nothing here keeps a scaler, an optimizer, a model or a
watch alive.
"""

from __future__ import annotations

import atexit
import json
import multiprocessing
import os
import sys
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ampwatch.environment import switched_off
from ampwatch.errors import say_to_stderr
from ampwatch.integrations import rerun_outputs
from ampwatch.integrations.script_hooks import (
    tell_of_calls,
    tell_of_each,
    tell_of_function,
    when_torch_is_loaded,
)
from ampwatch.integrations.trained_models import is_trained, trained_models

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ampwatch.probe import Watch

OPTIONS = "AMPWATCH_RUN_OPTIONS"
"""Where `ampwatch run` leaves what it was asked for, as JSON."""

PROCESS_ID = "AMPWATCH_RUN_PROCESS"
"""Where it leaves its own process id, which is the script's too."""

STEPS_TO_SHOW_A_MODEL = 3
"""An optimizer that has stepped so often, with no module of its own ever run, trains none."""

BY_HAND = "call ampwatch.attach(scaler, model, optimizer=...) in the script"
ITS_LOG = "give the log that it prints to `ampwatch report`"


def prepare() -> None:
    """Prepare to watch the script of `ampwatch run`: wait for it to import torch."""
    if not switched_off():
        _keep_closed_streams_closed()
        if rerun_outputs.is_rerun():
            rerun_outputs.redirect_outputs()
        when_torch_is_loaded(_begin)


def _begin() -> None:
    try:
        script = ScriptWatch(json.loads(os.environ.get(OPTIONS, "{}")))
    except ImportError as error:  # of what we need beside torch
        say_to_stderr(f"this Python cannot watch ({error}); the script runs alone.")
        return
    script.begin()
    if rerun_outputs.is_rerun():
        rerun_outputs.prepare_torch()


def _keep_closed_streams_closed() -> None:
    """Keep the run's log from becoming stdout or stderr where the script has these closed.

    What is opened in their place refuses writes like a closed stream, and is closed in children.
    """
    if hasattr(os, "O_PATH"):
        place = os.open("/", os.O_PATH)
        while place <= 2:
            place = os.open("/", os.O_PATH)
        os.close(place)


@dataclass(slots=True)
class SeenInScript:
    """What a script under `ampwatch run` did while nothing was attached."""

    optimizers: set[str] = field(default_factory=set)  # their classes' names
    scalers: int = 0
    ran: bool = False  # a module in training mode, though none that an optimizer trains
    evaluated: bool = False  # a module in eval mode, or without gradients
    went_back: bool = False
    watched: bool = False
    refused: bool = False  # and told why


class ScriptWatch:
    """Watches a script that does not call ampwatch itself."""

    def __init__(self, options: dict[str, Any]) -> None:
        from ampwatch.probe import Guard

        self._options = options
        self._guard = Guard()
        self._scalers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()  # of no training so far
        self._fruitless: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._strangers: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # hold nothing of theirs
        self._waiting: Any = None
        self._compiles = False
        self._seen = SeenInScript()

    def begin(self) -> None:
        """Hear of every scaler and optimizer that the script makes, and of `torch.compile`."""
        import torch
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        from ampwatch.probe import live_watches
        from ampwatch.probe.backward_passes import hear_of_losses, tell_of_lookups

        tell_of_each(torch.amp.GradScaler, self._made_scaler)
        tell_of_each(torch.optim.Optimizer, self._made_optimizer)
        tell_of_lookups(torch.Tensor, "backward", self._going_back)  # before the loss is taken
        tell_of_function(torch, "compile", self._compiling)
        self._losses = hear_of_losses(live_watches, self._guard)
        self._losses.is_kept = True
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
        self._watch_forwards()

    def _watch_forwards(self) -> None:
        """Look at the script's forward passes until there is nothing left to attach to."""
        from torch.nn.modules.module import register_module_forward_pre_hook

        if self._waiting is None and not self._compiles:
            self._waiting = register_module_forward_pre_hook(self._forward)

    def _stop_watching_forwards(self) -> None:
        if self._waiting is not None:
            self._waiting.remove()
            self._waiting = None

    def _compiling(self) -> None:
        """Called as the script compiles: from now on losses show its training."""
        self._compiles = True
        self._stop_watching_forwards()

    def _forward(self, module: nn.Module, _inputs: Any) -> None:
        import torch

        if not (module.training and torch.is_grad_enabled()):
            self._seen.evaluated = True
        elif module not in self._strangers:
            self._guard.run(self._begin_with, module)

    def _scaling(self, scaler: Any, outputs: Any, *_: Any, **__: Any) -> None:
        self._guard.run(self._losses.add_scaled, scaler, outputs)
        if self._compiles and self._optimizers:
            self._guard.run(self._begin_with, None)

    def _going_back(self, _loss: Tensor) -> None:
        self._seen.went_back = True
        if self._optimizers:
            self._guard.run(self._begin_unscaled)

    def _stepping(self, scaler: Any, optimizer: Any, *_: Any, **__: Any) -> None:
        self._guard.run(self._begin_with_step, scaler, optimizer)

    def _optimizer_begins(self, optimizer: Any, *_: Any) -> None:
        """Called as an optimizer without a watch steps in the script."""
        import torch

        if not torch.compiler.is_compiling() and optimizer in self._optimizers:
            self._guard.run(self._count_steps_without_module, optimizer)

    def _count_steps_without_module(self, optimizer: Any) -> None:
        steps = self._fruitless[optimizer] = self._fruitless.get(optimizer, 0) + 1
        self._strangers.clear()  # its parameters may have been others before
        if steps > STEPS_TO_SHOW_A_MODEL and not self._compiles:
            self._optimizers.discard(optimizer)

    # -- when to attach ------------------------------------------------------------------------

    def _begin_with(self, module: nn.Module | None) -> None:
        """Attach if this module of the script is trained by an optimizer that no watch knows."""
        self._give_to_watches()
        if not self._optimizers:
            self._stop_watching_forwards()
        elif module is not None and not is_trained(module, list(self._optimizers)):
            self._seen.ran = True
            self._strangers.add(module)
        elif self._free_scalers() or not _a_scaler_is_used():
            self._attach_to_all(module)

    def _begin_unscaled(self) -> None:
        """Attach at a backward pass of the script whose loss no scaler was given."""
        self._give_to_watches()
        scaled = any(watch.has_scaled for watch in _live_watches())
        if self._optimizers and not scaled and (self._compiles or _a_scaler_is_used()):
            self._attach_to_all(None)

    def _begin_with_step(self, scaler: Any, optimizer: Any) -> None:
        """Attach to a scaler of the script that no watch knows, at its first step."""
        if scaler not in self._free_scalers():
            return
        for watch in _live_watches():
            if watch.knows(optimizer):
                if watch.adopts_scalers:
                    return
                watch.close()  # it began before there was a scaler of use
        self._attach(scaler, [optimizer], None)
        self._losses.log_scaled(scaler)

    def _give_to_watches(self) -> None:
        """Give the optimizers of the script's watched trainings to their watches."""
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
        """Attach to all new optimizers of the script, if only one scaler is new."""
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
            self._stop_watching_forwards()
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

    def _say_if_nothing(self) -> None:
        """Say that nothing in the script was watched; not of a launcher, whose children train."""
        launches = not self._seen.optimizers and os.times().children_user > 0
        asked = _is_own_process() and multiprocessing.parent_process() is None
        if not (self._seen.watched or self._seen.refused or launches) and asked:
            say_to_stderr(f"nothing was watched: {why_unwatched(self._seen)}")


def _live_watches() -> list[Watch]:
    from ampwatch.probe import live_watches

    return live_watches()


def _a_scaler_is_used() -> bool:
    """Whether a watched training of the script scales: a later optimizer may be its next one."""
    return any(watch.scales for watch in _live_watches())


def _is_own_process() -> bool:
    """Whether `ampwatch run` started this process, directly or as a launcher's rank.

    The script may read what other processes of its own print.
    """
    asked = os.environ.get(PROCESS_ID)
    own = os.getpid() if sys.platform != "win32" else os.getppid()
    return asked is None or asked == str(own) or "LOCAL_RANK" in os.environ


def why_unwatched(seen: SeenInScript) -> str:
    """A sentence that says why nothing in the script was watched, and what to do."""
    named = " and ".join(sorted(seen.optimizers))
    if not named and not seen.went_back:
        return (
            "this process made no torch.optim.Optimizer and no loss went backward in it; "
            "if it starts others that train, run those under ampwatch."
        )
    if not named:
        return (
            "losses went backward, but no torch.optim.Optimizer was made: what moves the weights "
            f"is of another kind (Keras's own, one by hand), which shows no steps; {ITS_LOG}."
        )
    if seen.ran:
        return (
            f"modules ran in training mode, but none holds a parameter of {named}: it was given "
            f"copies, as DeepSpeed and Apex make them; {ITS_LOG}, or {BY_HAND}."
        )
    if seen.evaluated:
        return (
            f"{named} was made, but after it modules ran only in eval mode or without gradients; "
            "call model.train() before the loop."
        )
    if seen.went_back:
        return (
            f"{named} was made and losses went backward, but no module ran: its parameters are "
            f"used outside of one; {BY_HAND}."
        )
    return (
        f"{named} was made, but no optimizer's model ran in training mode after it, and no loss "
        "went backward."
    )
