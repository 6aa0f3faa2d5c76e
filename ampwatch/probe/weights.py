"""Norms and largest magnitudes of the weights, as they are before a forward."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite

import torch
from torch import Tensor, nn

from ampwatch.probe.readback import Pack
from ampwatch.probe.tensors import extremes, is_shard, measurable


class WeightMeasure:
    """The weights of a step, measured once; put into the pack at its end."""

    __slots__ = ("_largest", "_norms", "_positions", "amax_at", "norm_at", "on_host")

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        chosen: dict[int, Tensor] = {
            position: parameter
            for position, parameter in enumerate(parameters)
            if type(parameter) is nn.Parameter and measurable(parameter) and not is_shard(parameter)
        }
        self._positions = list(chosen)
        tensors = list(chosen.values())
        with torch.no_grad():
            self._norms = _norms(tensors, 2.0)
            self.on_host = all(tensor.is_cpu for tensor in tensors)
            self._largest = _largest_magnitudes(tensors, self._norms)
        self.norm_at: dict[int, int] = {}  # in the pack, by the parameter's position
        self.amax_at: dict[int, int] = {}  # likewise; none where a finite norm says enough

    def put(self, pack: Pack) -> None:
        """Put the figures into the pack, and keep their places there."""
        first = pack.put_scalars(*self._norms)
        self.norm_at = {position: at for at, position in enumerate(self._positions, first)}
        self.amax_at = {
            position: pack.put(amax)
            for position, amax in zip(self._positions, self._largest, strict=True)
            if amax is not None
        }
        self._norms, self._largest = [], []


def _norms(tensors: list[Tensor], order: float) -> list[Tensor]:
    """Norms in float32, or wider where the weights are."""
    wide = [tensor.dtype is torch.float64 for tensor in tensors]
    if not any(wide):
        return _foreach_norms(tensors, order, torch.float32)
    narrow = iter(_foreach_norms(
        [t for t, is_wide in zip(tensors, wide, strict=True) if not is_wide], order, torch.float32
    ))  # fmt: skip
    doubles = iter(_foreach_norms(
        [t for t, is_wide in zip(tensors, wide, strict=True) if is_wide], order, torch.float64
    ))  # fmt: skip
    return [next(doubles) if is_wide else next(narrow) for is_wide in wide]


def _foreach_norms(tensors: list[Tensor], order: float, dtype: torch.dtype) -> list[Tensor]:
    return list(torch._foreach_norm(tensors, order, dtype=dtype)) if tensors else []


def _largest_magnitudes(tensors: list[Tensor], norms: list[Tensor]) -> list[Tensor | None]:
    """Where the norm is no proof of finiteness: on a device, which cannot be asked, always."""
    found: list[Tensor | None] = [None] * len(tensors)
    on_device = [index for index, tensor in enumerate(tensors) if not tensor.is_cpu]
    asked = _norms([tensors[index] for index in on_device], inf)
    for index, amax in zip(on_device, asked, strict=True):
        found[index] = amax
    for index, tensor in enumerate(tensors):
        if tensor.is_cpu and not isfinite(norms[index].item()):
            low, high = extremes(tensor)
            found[index] = torch.maximum(-low, high)
    return found
