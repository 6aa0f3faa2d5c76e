"""Callables that sit on the user's modules and tensors, and must leave no trace in copies of them.

A module that is pickled, saved or deep-copied takes its hooks along. Ours become a function of the
standard library that accepts anything and returns None, so that the file loads where ampwatch is
not installed and the copy is not watched.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle


class Guard(Protocol):
    """Runs what must never raise into training."""

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call the function; an exception is counted and warned of once, and None returned."""


def hook_gradient(tensor: Tensor, hook: Callable[[Tensor], None]) -> RemovableHandle:
    """Call the hook with this tensor's gradient.

    Where a view was written to twice since it was made, torch (2.13 does) ends the
    process by a segmentation fault if it has to renew `grad_fn` while the hook is being put on:
    asked for first, it is renewed in time.
    """
    _ = tensor.grad_fn
    return tensor.register_hook(hook)  # type: ignore[no-untyped-call,no-any-return]


class Hook:
    """Calls a function of ours, guarded, and returns None: it changes nothing."""

    __slots__ = ("_bound", "_function", "_guard")

    # Says to torch that a tensor with this hook may be saved without a warning.
    __torch_unserializable__ = True

    def __init__(self, guard: Guard, function: Callable[..., None], *bound: Any) -> None:
        self._guard = guard
        self._function = function
        self._bound = bound

    def __call__(self, *args: Any) -> None:
        """Take whatever the hook's caller gives."""
        # While the compiler or the tracer reads the model, we must not become part of its graph.
        if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
            return
        self._guard.run(self._function, *self._bound, *args)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")

    def __copy__(self) -> Any:
        return contextlib.nullcontext().__exit__

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return contextlib.nullcontext().__exit__
