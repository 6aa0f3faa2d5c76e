"""Whether a checkpoint is one that anybody wants to load, told as soon as it is saved.

A save is an event. The weights' norm and the scale are in the rows of the steps before it: so a
save whose weights or scaler were broken is marked as poisoned, and reported, at once.

The optimizers' moments are looked at as it is saved. One may be inf while every weight is finite:
Adam's second moment overflows where a gradient's square does, and from then on that weight stands
still. Saves are rare, and each looks at every moment once; on a device the answer is read later,
and nothing waits for it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ampwatch.errors import warn
from ampwatch.probe.records import EventRecord
from ampwatch.probe.tensor_values import FLOATING, Pack
from ampwatch.rows import EventKind

POISONED = "poisoned"
_NOT_FINITE = "not finite"
_WEIGHTS, _SCALER = "weights that are not finite", "a loss scale that cannot be used"
_LEAST_SCALE = 2.0**-127  # the inverse of a lower one is inf in float32


class SavedMoments:
    """Adds to the events of saves what is known of the moments, and hands them on."""

    def __init__(self, deliver: Callable[[EventRecord], None]) -> None:
        self._deliver = deliver
        self.waiting: deque[tuple[EventRecord, Pack]] = deque()
        self._last: tuple[int, Pack] = (-1, Pack())  # a save of scaler and weights is two events

    def take(self, event: EventRecord, optimizers: Iterable[Any]) -> None:
        """Hand on a save's event once it is known whether the optimizers' moments are finite."""
        step, pack = self._last
        is_new = event.step != step
        if is_new:
            self._last = event.step, (pack := Pack())
        self.waiting.append((event, pack))  # it is handed on whatever the optimizers hold
        if is_new:
            for largest in _largest_of(optimizers):
                pack.put(largest)
            pack.seal()
        self.settle()

    def settle(self) -> None:
        """Hand on the events whose values have arrived, in their order; never waits."""
        while self.waiting and self.waiting[0][1].ready():
            event, pack = self.waiting.popleft()
            if not all(map(math.isfinite, pack.values)):
                event.detail["moments"] = _NOT_FINITE
            self._deliver(event)

    def close(self) -> None:
        """Let the values arrive: the watch ends."""
        for _, pack in self.waiting:
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


# -- marks, on the courier's thread ----------------------------------------------------------------


class CheckpointStamps:
    """Follows whether the weights are finite and the loss scale can be used."""

    def __init__(self) -> None:
        self._broken_since: dict[str, int] = {}  # by what is broken

    def follow(
        self,
        steps: Sequence[int],
        param_norms: Iterable[float | None],
        scales: Iterable[float | None],
    ) -> None:
        """Take in whether weights and scale were broken in the next steps, in their order."""
        for step, norm, scale in zip(steps, param_norms, scales, strict=True):
            if norm is not None:
                self._note(_WEIGHTS, step, is_broken=not math.isfinite(norm))
            if scale is not None:
                usable = math.isfinite(scale) and scale > _LEAST_SCALE
                self._note(_SCALER, step, is_broken=not usable)

    def _note(self, what: str, step: int, *, is_broken: bool) -> None:
        if is_broken:
            self._broken_since.setdefault(what, step)
        else:
            self._broken_since.pop(what, None)

    def stamp(self, events: Iterable[EventRecord]) -> None:
        """Mark the saves of checkpoints among these events that nobody wants to load."""
        for event in events:
            if event.kind is not EventKind.STATE_SAVED:
                continue
            broken = [
                f"{what} since step {at:,}"
                for what, at in self._broken_since.items()
                if event.step > at
            ]
            if event.detail.get("moments") == _NOT_FINITE:
                broken.append("optimizer moments that are not finite")
            if not broken:
                continue
            event.detail["state"] = POISONED
            path = event.detail.get("path")
            warn(
                f"the checkpoint saved before step {event.step:,}{f' ({path})' if path else ''} "
                f"holds {' and '.join(broken)}: do not keep this one."
            )
