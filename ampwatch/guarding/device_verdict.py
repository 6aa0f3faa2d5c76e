"""Leave a step out on a device without waiting for it: the verdict never leaves the device in time.

Fused optimizers read a tensor `found_inf`, which a GradScaler gives them: where it is 1, they move
nothing and count no step. Ours is made of the gradient norm on the device, of the limit that the
host knows from steps that have arrived, and of how many actions are left. The host learns of it
with the step's other values, a step or more late.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ampwatch.probe.norms import NormCapture
from ampwatch.probe.optimizers import OptimizerView
from ampwatch.probe.tensor_values import Pack


@dataclass(frozen=True, slots=True)
class Pending:
    """A verdict on its way to the host."""

    pack: Pack
    view: OptimizerView
    norms: NormCapture
    at: int  # whether the step was outlying, and whether it was left out


class DeviceVerdicts:
    """The verdicts of one guard, and the actions that it has left, as devices know them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._left: dict[torch.device, Tensor] = {}
        self._pending: deque[Pending] = deque()
        self._given: set[int] = set()  # ids of optimizers that step with a verdict of ours

    def fits(self, optimizer: Any, view: OptimizerView, norms: NormCapture, pack: Pack) -> bool:
        """Whether this step can be judged so; a first one cannot: its moments are not made."""
        return view.fused and bool(optimizer.state) and _tensor_at(pack, norms) is not None

    def give(
        self, optimizer: Any, view: OptimizerView, norms: NormCapture, pack: Pack, limit: float
    ) -> None:
        """Give the optimizer the verdict on the step that it is about to make."""
        total = _tensor_at(pack, norms)
        assert total is not None
        if total.device not in self._left:
            self._left[total.device] = torch.full((), float(self._most), device=total.device)
        left = self._left[total.device]
        outlying = ~(torch.isfinite(total) & (total <= limit))
        verdict = (outlying & (left > 0)).to(torch.float32)
        left.sub_(verdict)
        optimizer.grad_scale, optimizer.found_inf = None, verdict
        self._given.add(id(optimizer))
        at = pack.put(torch.stack([outlying.to(torch.float32), verdict]))
        self._pending.append(Pending(pack, view, norms, at))

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
        while self._pending and self._pending[0].pack is pack:
            found.append(self._pending.popleft())
        return found

    def allow(self, more: int) -> None:
        """So many actions lie far enough back, or, if negative, were done by others."""
        if not more:
            return
        for left in self._left.values():
            left.add_(more)


def waited_for(pack: Pack, norms: NormCapture) -> float | None:
    """The gradient norm, waited for; None where it is on several devices."""
    total = _tensor_at(pack, norms)
    return None if total is None else float(total.item())


def norm_of(norms: NormCapture, pack: Pack) -> tuple[float, bool]:
    """The gradient norm once it is known, and whether the gradients are finite."""
    values = pack.values
    total = math.hypot(*values[norms.at : norms.at + norms.count])
    if math.isfinite(total) or norms.amax_at is None:
        return total, math.isfinite(total)
    largest = values[norms.amax_at : norms.amax_at + norms.count]  # a norm may leave its format
    return total, all(map(math.isfinite, largest))


def _tensor_at(pack: Pack, norms: NormCapture) -> Tensor | None:
    if norms.total_at is None or pack.pending is None:
        return None
    return dict(pack.pending).get(norms.total_at)
