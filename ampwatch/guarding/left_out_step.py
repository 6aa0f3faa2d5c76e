"""Let an optimizer step on nothing: no weight, moment or count of steps differs afterwards.

An optimizer passes by a parameter without a gradient, so the gradients are taken away while it
steps and put back afterwards. What it counts in its parameter groups is set back. That nothing else
moved is not trusted: every write to a tensor raises its version, so the versions are compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What was there before the optimizer stepped on nothing."""

    gradients: tuple[tuple[Tensor, Tensor], ...]  # parameter and gradient
    settings: tuple[dict[str, Any], ...]  # the numbers of each group
    state: tuple[object, ...]


def leave_out(optimizer: Any) -> LeftOut:
    """Take the gradients away; `put_back` is called after the step."""
    parameters = list(_parameters(optimizer))
    before = LeftOut(
        tuple((p, p.grad) for p in parameters if p.grad is not None),
        tuple({k: v for k, v in g.items() if _is_number(v)} for g in optimizer.param_groups),
        _state_of(optimizer),
    )
    for parameter, _ in before.gradients:
        parameter.grad = None
    return before


def put_back(optimizer: Any, before: LeftOut) -> bool:
    """Give the gradients back; whether the step has moved nothing."""
    for parameter, gradient in before.gradients:
        if parameter.grad is None:
            parameter.grad = gradient
    for group, numbers in zip(optimizer.param_groups, before.settings, strict=False):
        group.update(numbers)
    return _state_of(optimizer) == before.state


def _parameters(optimizer: Any) -> Iterator[Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _state_of(optimizer: Any) -> tuple[object, ...]:
    """The version of each weight and moment, and the numbers among the state."""
    found: list[object] = [_version(parameter) for parameter in _parameters(optimizer)]
    for key, state in optimizer.state.items():
        if isinstance(state, dict):
            found += [(id(key), name, _version(value)) for name, value in state.items()]
    return tuple(found)


def _version(value: Any) -> object:
    if isinstance(value, Tensor):
        return id(value), -1 if value.is_inference() else value._version
    return value if _is_number(value) else id(value)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float, bool)
