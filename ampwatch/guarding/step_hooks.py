"""Hooks around an optimizer's step and in its closure; they keep no guard alive."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch

from ampwatch.probe.optimizers import OptimizerView

_is_compiling = torch.compiler.is_compiling


class Judge(Protocol):
    """What they call; `step_guard.StepGuard`."""

    run: Callable[..., Any]

    def begins(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        """An optimizer's step is about to run."""

    def evaluated(self, optimizer: Any, view: OptimizerView) -> None:
        """A closure has run."""

    def ended(self, optimizer: Any) -> None:
        """An optimizer's step has run."""


def any_step_begins(reference: weakref.ref[Judge], optimizer: Any, args: Any, kwargs: Any) -> Any:
    """Before any optimizer's step; other arguments for it, or None."""
    found = None if _is_compiling() else reference()
    return None if found is None else found.run(found.begins, optimizer, args, kwargs)


def any_step_ended(reference: weakref.ref[Judge], optimizer: Any, *_: Any) -> None:
    """After the step of an optimizer that is guarded."""
    found = None if _is_compiling() else reference()
    if found is not None:
        found.run(found.ended, optimizer)


def evaluate(
    reference: weakref.ref[Judge],
    optimizer: weakref.ref[Any],
    view: OptimizerView,
    closure: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    """The user's closure, and then ours."""
    given = closure(*args, **kwargs)
    found = reference()
    if found is not None:
        found.run(found.evaluated, optimizer(), view)
    return given
