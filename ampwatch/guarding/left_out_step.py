"""Let an optimizer step on nothing: no weight, moment or count of steps differs afterwards.

An optimizer passes by a parameter without a gradient, so the gradients are taken away while it
steps and put back afterwards. What it counts in its parameter groups is set back. That nothing else
moved is not trusted: every write to a tensor raises its version, so the versions are compared.

On a device the verdict itself may stay there, so that nobody waits for it. Fused optimizers read a
tensor `found_inf`, which a GradScaler gives them: where it is 1, they move nothing and count no
step. Ours is made there of gradient norm, loss and inputs, of the limits that the host knows from
steps that have arrived, and of how many actions are left, in all and in a row. The host learns of
it with the step's other values, a step or more late.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ampwatch.guarding.guard_settings import MOST_IN_A_ROW
from ampwatch.guarding.outlying_steps import Guarded, Measured, UsualSteps
from ampwatch.probe.tensor_values import Pack


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


# -- on a device, without waiting for it -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pending:
    """A verdict on its way to the host."""

    part: Guarded
    at: int  # whether the step was outlying, and whether it was left out


class DeviceVerdicts:
    """The verdicts of one guard, and the actions that it has left, as devices know them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._left: dict[torch.device, Tensor] = {}
        self._rows: dict[int, Tensor] = {}  # outlying steps in a row, by the optimizer's number
        self._pending: deque[Pending] = deque()
        self._given: set[int] = set()  # ids of optimizers that step with a verdict of ours

    def fits(self, optimizer: Any, part: Guarded) -> bool:
        """Whether this step can be judged so; a first one cannot: its moments are not made."""
        return part.view.fused and bool(optimizer.state) and part.norm_there() is not None

    def give(self, optimizer: Any, part: Guarded, usual: UsualSteps | None) -> None:
        """Give the optimizer the verdict on the step that it is about to make.

        Without `usual` only a step that is not finite is left out.
        """
        total = part.norm_there()
        assert total is not None, "`fits` was asked"
        broken = ~torch.isfinite(total)
        outlying = broken if usual is None else broken | _is_outlying(part, total, usual)
        left, row = self._counts(part, total.device)
        may = (left > 0) & (row < MOST_IN_A_ROW)
        verdict = (broken | (outlying & may)).to(torch.float32)
        left.sub_(verdict * ~broken)
        row.add_(1).mul_(outlying)
        optimizer.grad_scale, optimizer.found_inf = None, verdict
        self._given.add(id(optimizer))
        at = part.pack.put(torch.stack([outlying.to(torch.float32), verdict]))
        self._pending.append(Pending(part, at))

    def _counts(self, part: Guarded, device: torch.device) -> tuple[Tensor, Tensor]:
        if device not in self._left:
            self._left[device] = torch.full((), float(self._most), device=device)
        if part.view.number not in self._rows:
            self._rows[part.view.number] = torch.zeros((), device=device)
        return self._left[device], self._rows[part.view.number]

    def take_back(self, optimizer: Any) -> None:
        """The step has run; a scaler's own verdict is not ours to take."""
        if id(optimizer) not in self._given:
            return
        self._given.discard(id(optimizer))
        for name in ("grad_scale", "found_inf"):
            optimizer.__dict__.pop(name, None)

    def arrived(self, pack: Pack) -> list[Pending]:
        """Those whose values have come with this pack."""
        found = []
        while self._pending and self._pending[0].part.pack is pack:
            found.append(self._pending.popleft())
        return found

    def allow(self, more: int) -> None:
        """So many actions lie far enough back, or, if negative, were done by others."""
        if not more:
            return
        for left in self._left.values():
            left.add_(more)


def _is_outlying(part: Guarded, total: Tensor, usual: UsualSteps) -> Tensor:
    """Whether it is, on the device; what the host knows already counts too."""
    limits = {"loss": usual.losses.limit, "largest_input": usual.inputs.limit}
    found = total > usual.norms.limit
    for name, value in part.own_there(total.device).items():
        found = found | (value > limits[name])
    here = part.own_values()
    leaps = usual.leaps(Measured(math.nan, is_finite=True, **part.rate))
    if leaps or any(here[name] > limits[name] for name in limits):
        found = torch.ones_like(found)
    return found
