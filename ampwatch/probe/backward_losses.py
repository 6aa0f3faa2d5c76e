"""The losses of a training without a scaler: those that `backward` was called on.

They are heard of as `backward` is looked up on a tensor. A loss that the user logs is taken
instead.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection
from types import MethodType
from typing import TYPE_CHECKING, Any, Protocol

import torch

from ampwatch.probe.hooks import Handle, hook_any_step_end, hook_step_begin

if TYPE_CHECKING:
    from torch import Tensor

    from ampwatch.probe.own_failures import Guard


class Training(Protocol):
    """What is asked of a watched training."""

    @property
    def scales(self) -> bool: ...  # noqa: D102
    @property
    def has_scaled(self) -> bool: ...  # noqa: D102
    def knows(self, optimizer: Any) -> bool: ...  # noqa: D102
    def watches(self, scaler: Any) -> bool: ...  # noqa: D102
    def found_loss(self, loss: Tensor) -> None: ...  # noqa: D102


def tell_of_lookups(kind: Any, name: str, tell: Callable[[Any], None]) -> None:
    """Call `tell` with an object as its method is looked up, about to be called.

    Who asks first is told first; a hook that is there takes one more to tell.
    """
    there = vars(kind).get(name)
    if isinstance(there, _LookedUp):
        there.tells.append(tell)
    else:
        setattr(kind, name, _LookedUp(getattr(kind, name), tell))


def tell_no_more(kind: Any, name: str, tell: Callable[[Any], None]) -> None:
    """Take back what `tell_of_lookups` did; the last one leaves the method as it was."""
    there = vars(kind).get(name)
    if isinstance(there, _LookedUp) and tell in there.tells:
        there.tells.remove(tell)
        if not there.tells:
            setattr(kind, name, there.plain)


class _LookedUp:
    """The hook in place of a method that is looked up."""

    def __init__(self, plain: Callable[..., Any], tell: Callable[[Any], None]) -> None:
        self.tells = [tell]
        self.plain = plain

    def __get__(self, asked: Any, _kind: Any = None) -> Any:
        if asked is None:
            return self.plain
        for tell in self.tells:
            tell(asked)
        return MethodType(self.plain, asked)


class BackwardLosses:
    """The sum of the losses of a step's backward passes, one of each micro-batch."""

    def __init__(self, watches: Callable[[], Collection[Training]], guard: Guard) -> None:
        self._watches = watches  # those that go on; nothing here keeps one alive
        self._guard = guard
        self._handles: list[Handle] = []
        self.is_kept = False  # a script may attach at any time
        self._total: Tensor | None = None
        self._parts = 0  # of that sum
        # In this step, by scalers that nobody watches yet: the sum of the losses, if they are that.
        self._scaled: weakref.WeakKeyDictionary[Any, Tensor | None] = weakref.WeakKeyDictionary()
        self._stepping: Any = None  # an optimizer in whose step we are: a closure evaluates anew

    def begin(self) -> None:
        """Hear of each loss, and of optimizers' steps, which end a step's sum of them."""
        tell_of_lookups(torch.Tensor, "backward", self._going_back)
        self._handles = [
            hook_step_begin(self._begins_step),
            hook_any_step_end(self._ended_step),
        ]

    @property
    def is_needed(self) -> bool:
        """Whether a watched training has no scaler."""
        return any(not watch.scales for watch in self._watches())

    def end(self) -> None:
        """Hear of nothing more: everything is as it was."""
        tell_no_more(torch.Tensor, "backward", self._going_back)
        while self._handles:
            self._handles.pop().remove()

    def _going_back(self, loss: Tensor) -> None:
        if not torch.compiler.is_compiling():
            self._guard.run(self.add, loss)

    def add(self, loss: Tensor) -> None:
        """Add the loss whose `backward` is about to run to the step's sum."""
        watches = self._watches()
        if loss.ndim or self._scaled or any(watch.has_scaled for watch in watches):
            return
        unscaled = [watch for watch in watches if not watch.scales]
        if unscaled:
            before = None if self._stepping is not None else self._total
            self._parts = 1 if before is None else self._parts + 1
            self._total = _sum(before, loss)
            if self._parts == 1:  # more of them are told as the optimizer steps
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
                watch.found_loss(loss)

    def _log(self, unscaled: Collection[Training], total: Tensor) -> None:
        """Log the sum of backward losses to the watch of the training whose optimizer steps."""
        stepping = None if self._stepping is None else self._stepping()
        for watch in unscaled:
            if len(unscaled) == 1 or (stepping is not None and watch.knows(stepping)):
                watch.found_loss(total)

    def _begins_step(self, optimizer: Any, *_: Any) -> None:
        if torch.compiler.is_compiling():  # the step: we must not become part of its graph
            return
        self._stepping = weakref.ref(optimizer)
        if self._total is not None:
            self._guard.run(self._log_several, self._total)

    def _log_several(self, total: Tensor) -> None:
        unscaled = [watch for watch in self._watches() if not watch.scales]
        if len(unscaled) > 1 or self._parts > 1:
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


_heard: list[BackwardLosses] = []


def hear_of_losses(watches: Callable[[], Collection[Training]], guard: Guard) -> BackwardLosses:
    """The losses of this process that go backward; they are heard of from the first call on."""
    if not _heard:
        _heard.append(BackwardLosses(watches, guard))
        _heard[0].begin()
    return _heard[0]


def hear_no_more() -> None:
    """Give back what hears of losses, once no training without a scaler is watched."""
    if _heard and not _heard[0].is_kept and not _heard[0].is_needed:
        _heard.pop().end()
