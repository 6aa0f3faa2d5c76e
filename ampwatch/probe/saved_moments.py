"""Whether what the optimizers keep for their weights is finite as a checkpoint is saved.

A moment may be inf while every weight is finite: Adam's second moment overflows where a gradient's
square does, and from then on that weight stands still. Saves are rare, and each looks at every
moment once; on a device the answer is read later, and nothing waits for it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ampwatch.probe.records import EventRecord
from ampwatch.probe.tensor_values import FLOATING, Pack

NOT_FINITE = "not finite"


class SavedMoments:
    """Adds to the events of saves what is known of the moments, and hands them on."""

    def __init__(self, deliver: Callable[[EventRecord], None]) -> None:
        self._deliver = deliver
        self._waiting: deque[tuple[EventRecord, Pack]] = deque()
        self._last: tuple[int, Pack] = (-1, Pack())  # a save of scaler and weights is two events

    def take(self, event: EventRecord, optimizers: Iterable[Any]) -> None:
        """Hand on a save's event once it is known whether the optimizers' moments are finite."""
        step, pack = self._last
        is_new = event.step != step
        if is_new:
            self._last = event.step, (pack := Pack())
        self._waiting.append((event, pack))  # it is handed on whatever the optimizers hold
        if is_new:
            for largest in _largest_of(optimizers):
                pack.put(largest)
            pack.seal()
        self.settle()

    def settle(self) -> None:
        """Hand on the events whose values have arrived, in their order; never waits."""
        while self._waiting and self._waiting[0][1].ready():
            event, pack = self._waiting.popleft()
            if not all(map(math.isfinite, pack.values)):
                event.detail["moments"] = NOT_FINITE
            self._deliver(event)

    def close(self) -> None:
        """Let the values arrive: the watch ends."""
        for _, pack in self._waiting:
            pack.wait()
        self.settle()


@torch.no_grad()
def _largest_of(optimizers: Iterable[Any]) -> Iterator[Tensor]:
    """The largest magnitude of the moments of each device and format; nan where one is nan."""
    alike: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for moment in _moments_of(optimizers):
        alike.setdefault((moment.device, moment.dtype), []).append(moment)
    for moments in alike.values():
        yield torch.stack(torch._foreach_norm(moments, math.inf)).amax()


def _moments_of(optimizers: Iterable[Any]) -> Iterator[Tensor]:
    """What optimizers keep besides counts; of what is sharded, this rank's part."""
    for optimizer in optimizers:
        state = getattr(optimizer, "state", None)
        for kept in state.values() if isinstance(state, Mapping) else ():
            for value in kept.values() if isinstance(kept, Mapping) else ():
                moment = getattr(value, "_local_tensor", value)
                if type(moment) is Tensor and _has_values(moment):
                    yield moment.detach()


def _has_values(moment: Tensor) -> bool:
    is_plain = moment.dtype in FLOATING and moment.layout is torch.strided
    return is_plain and moment.ndim > 0 and moment.numel() > 0
