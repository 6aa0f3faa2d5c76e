"""Finding the tensors in what a module takes and gives, and the extremes of their values."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

HALF = frozenset({torch.float16, torch.bfloat16})
FLOATING = HALF | {torch.float32, torch.float64}

# Subclasses may communicate, decompress or not compute at all when they are reduced.
PLAIN = (Tensor, nn.Parameter)

# Dicts of tuples of tensors are common, deeper nests are not; a long cache of tensors is cut.
_DEPTH = 3
_MOST = 64

# An additive attention mask holds 0 where attention is allowed and this or less where it is not.
_MASK_AT_MOST = -1e4


def tensors_in(*values: object) -> list[Tensor]:
    """The tensors in what a module takes or gives, in order, searched to a small depth."""
    found: list[Tensor] = []
    for value in values:
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
    if isinstance(value, (tuple, list)):
        return value[:_MOST]
    if isinstance(value, Mapping):
        return value.values()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name) for field in dataclasses.fields(value)]
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
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


def is_shard(parameter: Tensor) -> bool:
    """Whether other ranks hold parts of this parameter; asks nobody."""
    if getattr(parameter, "_fsdp_flattened", False):  # FullyShardedDataParallel's mark
        return True
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


def extremes(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest and the largest value, without a synchronisation; NaN if there is one."""
    low, high = tensor.detach().aminmax()
    return low, high


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
    return math.nan if any(math.isnan(value) for value in magnitudes) else max(magnitudes)
