"""Our hooks on the user's modules, tensors and optimizers, and the shield at the probe's edge.

What fails in us never reaches the training. The shield warns once, counts, carries on, and after
too many failures switches the watch off. Under our own tests (`AMPWATCH_STRICT=1`) it re-raises, so
that nothing hides there.

Hooks refer weakly to what they call, so a model keeps no watch alive. They stand in torch's ordered
dicts under numbers below 0; torch counts from 0 up, so a user's hooks have the numbers they would
have without us. What is saved or copied does not contain our hooks: every pickler and `copy` ask
`copyreg` about ordered dicts, and while a dict holds hooks of ours, our answer is the dict without
them.
"""

from __future__ import annotations

import contextlib
import copyreg
import itertools
import os
import threading
import traceback
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from functools import partial, wraps
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.overrides import has_torch_function_unary
from torch.utils._python_dispatch import _disable_current_modes

from ampwatch.errors import warn

FAILURES_BEFORE_OFF = 100

_dispatch_modes = torch._C._len_torch_dispatch_stack
_function_modes = torch._C._len_torch_function_stack


@contextlib.contextmanager
def _apart_from_modes() -> Iterator[None]:
    """A mode of the user's (a counter, selective checkpointing, a default device) is not for us.

    It would take our operations for the training's.
    """
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        yield


class FailureShield:
    """Runs our code for its effect; its failures are counted, not raised."""

    def __init__(self) -> None:
        self.failures = 0
        self.off = False
        self._strict = os.environ.get("AMPWATCH_STRICT") == "1"

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The function's result, or None if it failed or the watch is off."""
        if self.off:
            return None
        try:
            if _dispatch_modes() or _function_modes():
                with _apart_from_modes():
                    return function(*arguments)
            return function(*arguments)
        except Exception as error:  # noqa: BLE001 - the one place where everything is caught
            self.failed(error)
            return None

    def failed(self, error: Exception) -> None:
        """Count a failure; the first is said with its place."""
        if self._strict:
            raise error
        self.failures += 1
        if self.failures == 1:
            place = traceback.extract_tb(error.__traceback__)[-1]
            warn(
                f"could not observe this step ({type(error).__name__}: {error}; "
                f"{place.name}, line {place.lineno}). Training goes on; some figures are absent."
            )
        if self.failures >= FAILURES_BEFORE_OFF:
            self.off = True
            warn(f"switched off after {self.failures} failures of its own; training goes on.")


# -- hooks -----------------------------------------------------------------------------------------


HookTable = OrderedDict[int, Any]

_numbers = itertools.count(-1, -1)  # of our hooks
_all_steps: Any = _global_optimizer_pre_hooks
_all_ends: Any = _global_optimizer_post_hooks
_is_compiling = torch.compiler.is_compiling
_tracing = torch._C._get_tracing_state


class Hook:
    """Calls a function of ours, guarded, and returns None: it changes nothing.

    It refers weakly to a method's object, and does nothing once that is gone. A copy or a pickle of
    the hook is a function of the standard library that takes anything and returns None: what is
    saved loads where ampwatch is not installed.
    """

    __slots__ = ("_bound", "_function", "_owner", "_shield")

    # Says to torch that a tensor with this hook may be saved without a warning.
    __torch_unserializable__ = True

    def __init__(self, shield: FailureShield, function: Callable[..., None], *bound: Any) -> None:
        self._shield = shield
        self._owner: weakref.ref[Any] | None = None
        self._function: Callable[..., None] = function
        if isinstance(function, MethodType):
            self._owner = weakref.ref(function.__self__)
            self._function = function.__func__
        self._bound = bound

    def __call__(self, *args: Any) -> None:
        """Take whatever the hook's caller gives."""
        # While the compiler or the tracer reads the model, we must not become part of its graph.
        if _is_compiling() or _tracing() is not None:
            return
        if self._owner is None:
            self._shield.run(self._function, *self._bound, *args)
            return
        owner = self._owner()
        if owner is not None:
            self._shield.run(self._function, owner, *self._bound, *args)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")

    def __copy__(self) -> Any:
        return contextlib.nullcontext().__exit__

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return contextlib.nullcontext().__exit__


# -- putting them on -------------------------------------------------------------------------------


class Handle:
    """Takes one hook away again, as torch's own handle would."""

    __slots__ = ("_number", "_places")

    def __init__(self, hook: Any, place: HookTable, *marks: HookTable, saved: bool = True) -> None:
        self._number = number = next(_numbers)
        self._places = tuple([weakref.ref(each) for each in (place, *marks)])
        if saved:  # with what it belongs to
            for each in (place, *marks):
                _note_hook(each)
        for mark in marks:
            mark[number] = True
        place[number] = hook

    def remove(self) -> None:
        """Take the hook away, or within `removed_later` leave that to `remove_what_was_left`."""
        if getattr(_later, "active", False):
            self.leave()
            return
        for reference in self._places:
            place = reference()
            if place is not None and place.pop(self._number, None) is not None:
                _forget_hook(place)

    def leave(self) -> None:
        """Leave the hook where it is, for `remove_what_was_left`."""
        _left.append(self)


def hook_before(module: Any, hook: Hook) -> Handle:
    """Call the hook with this module's arguments, positional and by name, before each forward."""
    return Handle(hook, module._forward_pre_hooks, module._forward_pre_hooks_with_kwargs)


def hook_after(module: Any, hook: Hook) -> Handle:
    """Call the hook with this module's arguments and output after each forward."""
    return Handle(hook, module._forward_hooks)


def hook_gradient(tensor: Tensor, hook: Callable[[Tensor], None]) -> Handle:
    """Call the hook with this tensor's gradient.

    Where a view was written to twice since it was made, torch (2.13) dies of a segmentation fault
    if it has to renew `grad_fn` while the hook is put on. So `grad_fn` is read first.
    """
    if has_torch_function_unary(tensor):  # a subclass would hear of each attribute
        with torch._C.DisableTorchFunctionSubclass():
            return Handle(hook, _gradient_hooks(tensor), saved=False)
    return Handle(hook, _gradient_hooks(tensor), saved=False)


def _gradient_hooks(tensor: Any) -> HookTable:
    """The tensor's dict of hooks, made as `Tensor.register_hook` makes it."""
    node = tensor.grad_fn
    if tensor._backward_hooks is None:
        tensor._backward_hooks = OrderedDict()
        if node is not None:
            node._register_hook_dict(tensor)
    hooks: HookTable = tensor._backward_hooks
    return hooks


def hook_step_begin(hook: Callable[..., None]) -> Handle:
    """Call the hook before each step of any optimizer of this process."""
    return Handle(hook, _all_steps, saved=False)


def hook_any_step_end(hook: Callable[..., None]) -> Handle:
    """Call the hook after each step of any optimizer of this process."""
    return Handle(hook, _all_ends, saved=False)


def hook_step_end(optimizer: Any, hook: Callable[..., None]) -> Handle:
    """Call the hook after each step of this optimizer."""
    return Handle(hook, optimizer._optimizer_step_post_hooks)


# -- on the lookup of a method ---------------------------------------------------------------------


def tell_of_lookups(
    kind: Any, name: str, tell: Callable[[Any], None], *, also_by_class: bool = False
) -> None:
    """Call `tell` with an object as its method is looked up, about to be called.

    Who asks first is told first; a hook that is there takes one more to tell. `also_by_class`: of
    calls of the class's own function too, as in `Base.__init__(self)`.
    """
    there = vars(kind).get(name)
    if isinstance(there, _LookedUp):
        there.tells.append(tell)
    else:
        hook = _LookedUp(getattr(kind, name), tell)
        if also_by_class:
            hook.of_class = hook.telling()
        setattr(kind, name, hook)


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
        self.plain = self.of_class = plain

    def __get__(self, asked: Any, _kind: Any = None) -> Any:
        if asked is None:
            return self.of_class
        for tell in self.tells:
            tell(asked)
        return MethodType(self.plain, asked)

    def telling(self) -> Callable[..., Any]:
        """The method as a function that tells as it is called."""

        @wraps(self.plain)
        def function(asked: Any, *arguments: Any, **named: Any) -> Any:
            for tell in self.tells:
                tell(asked)
            return self.plain(asked, *arguments, **named)

        return function


# -- taking them off when nobody iterates over them ------------------------------------------------

_later = threading.local()
_left: deque[Handle] = deque()


@contextlib.contextmanager
def removed_later() -> Iterator[None]:
    """Hooks that are removed in here, on this thread, stay where they are for now.

    The garbage collector may run us inside an optimizer's step, which would raise if its dict of
    hooks changed while it iterates.
    """
    _later.active = True
    try:
        yield
    finally:
        _later.active = False


def remove_what_was_left() -> None:
    """Take away the hooks that were left where they were."""
    while _left:
        _left.popleft().remove()


# -- left out of pickles and copies of a module ----------------------------------------------------


class _Holder:
    """A dict, and how many hooks of ours it holds."""

    __slots__ = ("count", "reference")

    def __init__(self, place: HookTable) -> None:
        self.count = 0
        self.reference = weakref.ref(place, partial(_is_gone, id(place)))


# By the dict's id. A pickler asks for every ordered dict, so only this is looked up.
_holders: dict[int, _Holder] = {}
_before: Callable[[Any], Any] | None = None  # what the picklers called before us
_asked = False  # whether our function is in copyreg's table, or called by a later one there


def _note_hook(place: HookTable) -> None:
    """One more hook of ours is about to be put into this dict."""
    holder = _holder(place)
    if holder is None:
        holder = _holders[id(place)] = _Holder(place)
        _answer()
    holder.count += 1


def _forget_hook(place: HookTable) -> None:
    """One of our hooks was removed from this dict."""
    holder = _holder(place)
    if holder is None:
        return
    holder.count -= 1
    if not holder.count:
        _is_gone(id(place))


def _holder(place: HookTable) -> _Holder | None:
    holder = _holders.get(id(place))
    return holder if holder is not None and holder.reference() is place else None


def _is_gone(number: int, _reference: object = None) -> None:
    _holders.pop(number, None)
    if not _holders:
        _answer_no_more()


def _answer() -> None:
    global _before, _asked
    now = copyreg.dispatch_table.get(OrderedDict)
    if now is _reduce or (_asked and now is not None):
        return  # a function put there after ours calls ours
    _before, _asked = now, True
    copyreg.dispatch_table[OrderedDict] = _reduce


def _answer_no_more() -> None:
    """Restore copyreg's table, unless another function was put there after ours."""
    global _before, _asked
    if copyreg.dispatch_table.get(OrderedDict) is not _reduce:
        return
    if _before is None:
        del copyreg.dispatch_table[OrderedDict]
    else:
        copyreg.dispatch_table[OrderedDict] = _before
    _before, _asked = None, False


def _reduce(place: Any) -> Any:
    if _holder(place) is not None:
        place = _without_ours(place)
    return place.__reduce_ex__(4) if _before is None else _before(place)


def _without_ours(place: HookTable) -> HookTable:
    # Copied at once: another thread may add and remove hooks meanwhile.
    items = [(number, value) for number, value in list(place.items()) if number >= 0]
    plain: HookTable = OrderedDict(items)
    vars(plain).update(vars(place))
    return plain
