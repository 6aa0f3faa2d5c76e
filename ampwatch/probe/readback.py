"""Small tensors of one step, read without making the device wait.

A tensor on the CPU is read at once. Tensors on a device are joined by one kernel, copied to pinned
memory behind the work already queued, and read when the copy's event has passed: a step or more
late, and never by waiting.
"""

from __future__ import annotations

import math
from array import array
from typing import Any

import torch
from torch import Tensor


class Pack:
    """The values of one step. `put` them in, `seal` it, and read `values` once it is `ready`."""

    # On the class, because on the CPU they stay as they are.
    pending: list[tuple[int, Tensor]] | None = None  # taken, and not sealed yet
    copies: list[tuple[list[tuple[int, int]], Tensor, Any]] | None = None  # that have not arrived

    def __init__(self) -> None:
        self.values = array("d")  # 64 steps of a large model wait with theirs

    def put(self, tensor: Tensor) -> int:
        """Take a tensor's values (few of them); return the position of the first in `values`.

        What stands in a device tensor is read in stream order at `seal`, so one that is about to be
        changed in place asks for a seal before that.
        """
        values = self.values
        position = len(values)
        if tensor.is_cpu:
            if tensor.ndim == 0:
                values.append(tensor.item())
            else:
                values.extend(tensor.reshape(-1).tolist())
        else:
            if self.pending is None:
                self.pending = []
            self.pending.append((position, tensor.detach()))
            values.extend([math.nan] * tensor.numel())
        return position

    def put_scalars(self, *tensors: Tensor) -> int:
        """Take tensors of one value each; the position of the first, the others follow it."""
        values = self.values
        position = len(values)
        for tensor in tensors:
            if tensor.is_cpu:
                values.append(tensor.item())
            else:
                self.put(tensor)
        return position

    def put_number(self, value: float) -> int:
        """Take a number that is known already."""
        values = self.values
        values.append(value)
        return len(values) - 1

    def put_magnitude(self, low: Tensor, high: Tensor) -> int:
        """Take the largest magnitude between two extremes; nan if they are."""
        if not low.is_cpu:
            return self.put(torch.maximum(-low, high))
        values = self.values
        values.append(max(-low.item(), high.item()))  # both are nan if one is
        return len(values) - 1

    def put_numbers(self, values: list[float]) -> int:
        """Take numbers that are known already; the position of the first."""
        position = len(self.values)
        self.values.extend(values)
        return position

    def seal(self) -> None:
        """Start the copy of what is pending; may be called several times."""
        if self.pending is None:
            return
        copies = self.copies = self.copies or []
        by_device: dict[torch.device, list[tuple[int, Tensor]]] = {}
        for position, tensor in self.pending:
            by_device.setdefault(tensor.device, []).append((position, tensor))
        self.pending = None
        for device, items in by_device.items():
            joined = torch.cat([tensor.reshape(-1) for _, tensor in items])
            places = [(position, tensor.numel()) for position, tensor in items]
            copies.append((places, *_copy_out(joined, device)))

    def ready(self) -> bool:
        """Whether every value has arrived; never waits."""
        while self.copies:
            places, host, event = self.copies[-1]
            if event is not None and not event.query():
                return False
            arrived = host.tolist()
            start = 0
            for position, count in places:
                self.values[position : position + count] = array(
                    "d", arrived[start : start + count]
                )
                start += count
            self.copies.pop()
        return True

    def wait(self) -> None:
        """Let the copies arrive; only for the end of a watch, never between steps."""
        for _, _, event in self.copies or ():
            if event is not None:
                event.synchronize()


def put_scalar(pack: Pack, value: Any) -> int | None:
    """Take what a user logs: a number, or a tensor, of several its mean; None if it is neither."""
    if isinstance(value, Tensor):
        if value.is_complex() or value.numel() == 0 or value.layout is not torch.strided:
            return None
        known = value.detach()
        if known.ndim:
            known = (known if known.is_floating_point() else known.float()).mean()
        return pack.put(known)
    try:
        return pack.put_number(float(value))
    except (TypeError, ValueError, OverflowError):
        return None


def _copy_out(joined: Tensor, device: torch.device) -> tuple[Tensor, Any]:
    """The copy on the host, and the event after which it may be read."""
    if device.type != "cuda":
        # Other accelerators (MPS, XPU, ...) have no common event interface in torch 2.4.
        return joined.to("cpu"), None
    host = torch.empty(joined.shape, dtype=joined.dtype, device="cpu", pin_memory=True)
    host.copy_(joined, non_blocking=True)
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return host, event
