"""A strided sample of a half-precision gradient, taken without a synchronisation.

On the CPU the sampled bits are copied, and counted later. On a device they are counted there, by
comparisons and a sum: `bincount`, `histc` and `scatter_add` synchronise or are refused by
`torch.use_deterministic_algorithms(True)`.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from ampwatch.rows import EXPONENT_BINS, EXPONENT_LOWEST

SAMPLE_LIMIT = 65_536

_FLOAT32_BIAS = 127
_FLOAT32_FRACTION_BITS = 23
_FLOAT32_NOT_FINITE = 255


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


def copied_bits(tensor: Tensor) -> Tensor:
    """The sample's bit patterns, copied: the gradient itself will be changed in place."""
    return strided(tensor).clone(memory_format=torch.contiguous_format).view(torch.int16)


def counted(tensor: Tensor) -> Tensor:
    """How many sampled magnitudes reach into each bin or a higher one; stays on the device."""
    magnitudes = strided(tensor).float().view(torch.int32).bitwise_and(0x7FFF_FFFF)
    reached = magnitudes.reshape(1, -1) >= _lower_edges(tensor.device)
    return reached.sum(dim=1)


@functools.cache
def _lower_edges(device: torch.device) -> Tensor:
    """Each bin's least magnitude, as the bits of a float32; made on the device."""
    exponents = torch.arange(EXPONENT_BINS, device=device, dtype=torch.int32)
    exponents += EXPONENT_LOWEST - 1 + _FLOAT32_BIAS
    edges = exponents << _FLOAT32_FRACTION_BITS
    edges[0].fill_(0)
    edges[1].fill_(1)
    edges[-1].fill_(_FLOAT32_NOT_FINITE << _FLOAT32_FRACTION_BITS)
    return edges.unsqueeze(1)
