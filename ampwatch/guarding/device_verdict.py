"""Leave a step out on a device without waiting for it: the verdict never leaves the device in time.

Fused optimizers read a tensor `found_inf`, which a GradScaler gives them: where it is 1, they move
nothing and count no step. Ours is made there of gradient norm, loss and inputs, of the limits that
the host knows from steps that have arrived, and of how many actions are left, in all and in a row.
The host learns of it with the step's other values, a step or more late.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ampwatch.guarding.caps import MOST_IN_A_ROW
from ampwatch.guarding.step_signs import Measured, UsualSteps, own_places, own_values
from ampwatch.probe.norms import NormCapture
from ampwatch.probe.optimizers import OptimizerView
from ampwatch.probe.records import StepRecord, Turn
from ampwatch.probe.tensor_values import Pack


@dataclass(frozen=True, slots=True)
class Guarded:
    """One optimizer's part of the step in progress, as the probe has measured it."""

    view: OptimizerView
    turn: Turn
    norms: NormCapture
    record: StepRecord
    rate: dict[str, float]  # as `step_signs.rate_of` gives it

    @property
    def pack(self) -> Pack:
        """Where the values stand."""
        return self.record.pack

    def measured(self) -> Measured:
        """What is known of it, once its values have arrived."""
        norm, is_finite = norm_of(self.norms, self.pack)
        own = own_values(self.record, self.turn)
        return Measured(norm, is_finite, **self.rate, **own)


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
        return (
            part.view.fused
            and bool(optimizer.state)
            and _tensors(part.pack).get(_total(part)) is not None
        )

    def give(self, optimizer: Any, part: Guarded, usual: UsualSteps | None) -> None:
        """Give the optimizer the verdict on the step that it is about to make.

        Without `usual` only a step that is not finite is left out.
        """
        known = _tensors(part.pack)
        total = known[_total(part)]
        broken = ~torch.isfinite(total)
        outlying = broken if usual is None else broken | _is_outlying(part, known, usual)
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


def waited_for(part: Guarded) -> Measured | None:
    """What is known of the step, waited for once; None where it is on several devices."""
    known = _tensors(part.pack)
    total = known.get(_total(part))
    if total is None:
        return None
    own = own_values(part.record, part.turn)
    there = _own_tensors(part, known, total.device)
    norm, *others = torch.stack([total.float(), *there.values()]).tolist()
    own |= dict(zip(there, others, strict=True))
    return Measured(norm, math.isfinite(norm), **part.rate, **own)


def norm_of(norms: NormCapture, pack: Pack) -> tuple[float, bool]:
    """The gradient norm once it is known, and whether the gradients are finite."""
    values = pack.values
    total = math.hypot(*values[norms.at : norms.at + norms.count])
    if math.isfinite(total) or norms.amax_at is None:
        return total, math.isfinite(total)
    largest = values[norms.amax_at : norms.amax_at + norms.count]  # a norm may leave its format
    return total, all(map(math.isfinite, largest))


def _is_outlying(part: Guarded, known: dict[int, Tensor], usual: UsualSteps) -> Tensor:
    """Whether it is, on the device; what the host knows already counts too."""
    total = known[_total(part)]
    limits = {"loss": usual.losses.limit, "largest_input": usual.inputs.limit}
    found = total > usual.norms.limit
    for name, value in _own_tensors(part, known, total.device).items():
        found = found | (value > limits[name])
    here = own_values(part.record, part.turn)
    leaps = usual.leaps(Measured(math.nan, is_finite=True, **part.rate))
    if leaps or any(here[name] > limits[name] for name in limits):
        found = torch.ones_like(found)
    return found


def _own_tensors(
    part: Guarded, known: dict[int, Tensor], device: torch.device
) -> dict[str, Tensor]:
    """This rank's loss and largest input, where they wait on this device."""
    found = {}
    for name, places in own_places(part.record, part.turn).items():
        waiting = [known[at].reshape(-1)[0].float() for at in places if at in known]
        if waiting and len(waiting) == len(places) and all(w.device == device for w in waiting):
            joined = torch.stack(waiting)
            found[name] = joined.mean() if name == "loss" else joined.amax()
    return found


def _total(part: Guarded) -> int:
    at = part.norms.total_at
    return -1 if at is None else at


def _tensors(pack: Pack) -> dict[int, Tensor]:
    return dict(pack.pending or ())
