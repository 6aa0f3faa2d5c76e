"""Finds the tensors in what a module takes and gives, and measures or samples their values."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import UserDict
from collections.abc import Iterable, Sequence
from types import MappingProxyType

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
_MASK_AT_MOST = -1e4


def tensors_in(*values: object) -> list[Tensor]:
    """The tensors in what a module takes or gives, in order, searched to a small depth."""
    found: list[Tensor] = []
    for value in values:
        if type(value) is Tensor and len(found) < _MOST:
            found.append(value)  # by far the commonest
        else:
            _search(value, found, _DEPTH)
    return found


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


def measurable(tensor: Tensor) -> bool:
    """Whether reducing this tensor now is safe, cheap and invisible."""
    return (
        tensor.dtype in FLOATING
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
def dtype_name(dtype: torch.dtype) -> str:
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
    if math.isnan(low) or math.isnan(high):
        return math.nan
    return max(-low, high)


def is_mask(low: float, high: float, *, requires_grad: bool) -> bool:
    """Whether these extremes are those of an additive attention mask, which is no activation."""
    return not requires_grad and high == 0.0 and low <= _MASK_AT_MOST


def largest(magnitudes: Sequence[float]) -> float | None:
    """The largest of some magnitudes; NaN wins; None if there are none."""
    if not magnitudes:
        return None
    top = max(magnitudes) if len(magnitudes) > 1 else magnitudes[0]
    return math.nan if any(map(math.isnan, magnitudes)) else top
