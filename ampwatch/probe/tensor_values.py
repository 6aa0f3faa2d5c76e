"""The values of tensors: found in what a module takes and gives, measured, sampled, and read late.

A tensor on the CPU is read at once. Tensors on a device are joined by one kernel, copied to pinned
memory behind the work already queued, and read when the copy's event has passed: a step or more
late, and never by waiting (`Pack`).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from array import array
from collections import UserDict
from collections.abc import Iterable, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

HALF = frozenset({torch.float16, torch.bfloat16})
FLOATING = HALF | {torch.float32, torch.float64}

# Subclasses may communicate, decompress or not compute at all when they are reduced.
PLAIN = (Tensor, nn.Parameter)

# Dicts of tuples of tensors are common, deeper nests are not; a long cache of tensors is cut.
_DEPTH = 3
_MOST = 64

SAMPLE_LIMIT = 65_536

_WHOLE = frozenset({int})
_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor

# An additive attention mask holds 0 where attention is allowed and this or less where it is not.
_MASK_AT_MOST = -9984.0  # -1e4, as bfloat16 holds it
# Scores that are masked hold such a constant beside values that are so many times smaller.
_MASK_TIMES = 64.0


def tensors_in(*values: object) -> list[Tensor]:
    """The tensors in what a module takes or gives, in order, searched to a small depth."""
    tensors: list[Tensor] = []
    for value in values:
        if type(value) is Tensor and len(tensors) < _MOST:
            tensors.append(value)  # by far the commonest
        else:
            _search(value, tensors, _DEPTH)
    return tensors


def _search(value: object, found: list[Tensor], depth: int) -> None:
    if isinstance(value, Tensor):
        if len(found) < _MOST:
            found.append(value)
        return
    if depth == 0 or isinstance(value, (str, bytes, int, float)) or value is None:
        return
    for part in _parts(value):
        _search(part, found, depth - 1)


def _parts(value: object) -> Iterable[object]:
    """What a container holds, without running code of its own class: that may load, or draw."""
    if isinstance(value, tuple):
        return tuple.__getitem__(value, slice(_MOST))
    if isinstance(value, list):
        return list.__getitem__(value, slice(_MOST))
    if isinstance(value, dict):
        return dict.values(value)
    if isinstance(value, (UserDict, MappingProxyType)):
        return value.values()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        held = getattr(value, "__dict__", {})
        named = [field.name for field in dataclasses.fields(value)]
        return [held[name] if name in held else getattr(value, name, None) for name in named]
    return ()


def measurable(tensor: Tensor, dtypes: frozenset[torch.dtype] = FLOATING) -> bool:
    """Whether reducing this tensor now is safe, cheap and invisible."""
    return (
        tensor.dtype in dtypes
        and type(tensor) in PLAIN
        and tensor.layout is torch.strided
        and tensor.numel() > 0
        and (tensor.is_cpu or _device_allows(tensor))
        and not tensor.is_nested
        and not _is_wrapped(tensor)
    )


def shape_of(tensor: Tensor) -> tuple[int, ...] | None:
    """The tensor's sizes; None where they are no numbers: of a nested tensor, or a symbolic one."""
    if tensor.is_nested:
        return None
    shape = tuple(tensor.shape)
    return shape if _WHOLE.issuperset(map(type, shape)) else None


def parameter_shape(parameter: Tensor) -> tuple[int, ...] | None:
    """None for a lazy parameter, which has no shape before the first forward."""
    if type(parameter) not in PLAIN and hasattr(parameter, "materialize"):
        return None
    return parameter.shape


def is_shard(parameter: Tensor) -> bool:
    """Whether other ranks hold parts of this parameter; without communication."""
    if getattr(parameter, "_fsdp_flattened", False):  # FullyShardedDataParallel's mark
        return True
    if type(parameter) in PLAIN:
        return False
    mesh = getattr(parameter, "device_mesh", None)  # a DTensor's
    placements = getattr(parameter, "placements", ())
    return mesh is not None and any(
        mesh.size(dimension) > 1 and not placement.is_replicate()
        for dimension, placement in enumerate(placements)
    )


def _device_allows(tensor: Tensor) -> bool:
    if tensor.is_cuda:
        # A captured graph would replay our reductions for ever.
        return not torch.cuda.is_current_stream_capturing()
    return not tensor.is_meta


@functools.cache  # asked for every tensor of a sampled step, and there are but a few types
def dtype_name(dtype: object) -> str:
    """The type's name without torch's prefix."""
    return str(dtype).removeprefix("torch.")


def extremes(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest and the largest value, without a synchronisation; NaN if there is one."""
    low, high = torch.aminmax(tensor.detach() if tensor.requires_grad else tensor)
    return low, high


def strided(tensor: Tensor, limit: int = SAMPLE_LIMIT) -> Tensor:
    """A view of at most `limit` values, spread over the whole tensor."""
    count = tensor.numel()
    if count <= limit:
        return tensor
    if tensor.is_contiguous():
        stride = -(-count // limit)
        # A stride that shares a factor with the rows would always meet the same columns.
        while math.gcd(stride, tensor.shape[-1]) != 1:
            stride += 1
        return tensor.view(-1)[::stride]
    for axis, size in enumerate(tensor.shape):
        step = min(size, -(-tensor.numel() // limit))
        if step > 1:
            tensor = tensor[(slice(None),) * axis + (slice(None, None, step),)]
    return tensor


def magnitude(low: float, high: float) -> float:
    """The largest absolute value between two extremes; NaN if they are."""
    return math.nan if math.isnan(low) or math.isnan(high) else max(-low, high)


def activation_magnitude(low: float, high: float, dtype: torch.dtype) -> float:
    """The largest magnitude between two extremes that is no constant which masks scores.

    Such a constant is the format's lowest number, or one of two digits; the scores lie about zero.
    """
    if _MASK_AT_MOST >= low > -math.inf and abs(high) * _MASK_TIMES <= -low:
        rounded = torch.tensor(float(f"{low:.2g}"), dtype=torch.float64).to(dtype).item()
        if low in {torch.finfo(dtype).min, rounded}:
            return abs(high)
    return magnitude(low, high)


def is_mask(low: float, high: float, *, requires_grad: bool) -> bool:
    """Whether these extremes are those of an additive attention mask, which is no activation."""
    return not requires_grad and high == 0.0 and low <= _MASK_AT_MOST


def largest(magnitudes: Sequence[float]) -> float | None:
    """The largest of some magnitudes; NaN wins; None if there are none."""
    if not magnitudes:
        return None
    top = max(magnitudes) if len(magnitudes) > 1 else magnitudes[0]
    return math.nan if any(map(math.isnan, magnitudes)) else top


# -- read a step late, without making the device wait ----------------------------------------------


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
        scalar = value.detach()
        if scalar.ndim:
            scalar = (scalar if scalar.is_floating_point() else scalar.float()).mean()
        return pack.put(scalar)
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
