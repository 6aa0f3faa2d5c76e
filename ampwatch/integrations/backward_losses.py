"""The losses of a script that is watched without a scaler: those that `backward` was called on."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import optimizer as optim

if TYPE_CHECKING:
    from torch import Tensor

    from ampwatch.probe import Guard, Watch


class BackwardLosses:
    """The sum of the losses of a step's backward passes, one of each micro-batch."""

    def __init__(self, watches: Callable[[], Collection[Watch]], guard: Guard) -> None:
        self._watches = watches  # those that go on; nothing here keeps one alive
        self._guard = guard
        self._total: Tensor | None = None
        # In this step, by scalers that nobody watches yet: the sum of the losses, if they are that.
        self._scaled: weakref.WeakKeyDictionary[Any, Tensor | None] = weakref.WeakKeyDictionary()
        self._stepping: Any = None  # an optimizer in whose step we are: a closure evaluates anew

    def begin(self) -> None:
        """Register hooks on optimizers' steps, which end a step's sum of backward losses."""
        optim.register_optimizer_step_pre_hook(self._begins_step)
        optim.register_optimizer_step_post_hook(self._ended_step)

    def add(self, loss: Tensor) -> None:
        """Add the loss whose `backward` is about to run to the step's sum."""
        watches = self._watches()
        if loss.ndim or self._scaled or any(watch.has_scaled for watch in watches):
            return
        unscaled = [watch for watch in watches if not watch.scales]
        if unscaled:
            before = None if self._stepping is not None else self._total
            self._total = _sum(before, loss)
            self._log(unscaled, self._total)

    def add_scaled(self, scaler: Any, outputs: Any) -> None:
        """Note a loss that a scaler without a watch is about to scale."""
        known = self._scaled.get(scaler) if scaler in self._scaled else 0.0
        is_loss = isinstance(outputs, torch.Tensor) and outputs.ndim == 0 and known is not None
        self._scaled[scaler] = _sum(known, outputs) if is_loss else None

    def log_scaled(self, scaler: Any) -> None:
        """Log the losses that a scaler has scaled in this step; it is watched from now on."""
        loss = self._scaled.pop(scaler, None)
        for watch in self._watches():
            if loss is not None and watch.watches(scaler):
                watch.log(loss=loss)

    def _log(self, unscaled: Collection[Watch], total: Tensor) -> None:
        """Log the sum of backward losses to the watch of the training whose optimizer steps."""
        stepping = None if self._stepping is None else self._stepping()
        for watch in unscaled:
            if len(unscaled) == 1 or (stepping is not None and watch.knows(stepping)):
                watch.log(loss=total)

    def _begins_step(self, optimizer: Any, *_: Any) -> None:
        if torch.compiler.is_compiling():  # the step: we must not become part of its graph
            return
        self._stepping = weakref.ref(optimizer)
        if self._total is not None:
            self._guard.run(self._log_several, self._total)

    def _log_several(self, total: Tensor) -> None:
        unscaled = [watch for watch in self._watches() if not watch.scales]
        if len(unscaled) > 1:
            self._log(unscaled, total)

    def _ended_step(self, *_: Any) -> None:
        if torch.compiler.is_compiling():
            return
        self._stepping = self._total = None
        self._scaled.clear()


def _sum(before: Tensor | float | None, loss: Tensor) -> Tensor:
    with torch._C.DisableTorchFunctionSubclass():  # a subclass may do as it likes in these
        part = loss.detach().clone()
        return part if before is None else before + part
