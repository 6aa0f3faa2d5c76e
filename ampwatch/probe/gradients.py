"""Gradient norms: one foreach call in float32 for all of them, where the gradients live.

The global norm is made from the per-parameter norms with the operation that
`torch.nn.utils.clip_grad_norm_` uses, so that both agree to the last digit. Finiteness is judged on
the values themselves, never inferred from a norm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ampwatch.probe.readback import Pack
from ampwatch.probe.tensors import is_shard

_HALF = frozenset((torch.float16, torch.bfloat16))


@dataclass(slots=True)
class NormCapture:
    """Where one measurement's values stand in the step's pack."""

    present: tuple[int, ...] | None  # positions of the parameters that have a gradient; None: all
    at: int  # the first of the per-parameter norms
    count: int
    total_at: int | None  # None: made on the host from the parameters' norms
    amax_at: int | None  # largest magnitudes per parameter, where they were needed
    unseen: int  # gradients that could not be measured without synchronising
    scaled: bool  # whether the gradients still held the loss scale
    sharded: bool = False  # whether other ranks hold parts of these gradients


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Which gradient tensors there are, and how often each has been written to."""

    identities: list[int]
    versions: list[int]


def fingerprint(parameters: Sequence[Tensor]) -> Fingerprint:
    """The state of the gradients; two unequal ones mean that someone wrote in between."""
    gradients = [p.grad for p in parameters]
    return Fingerprint(
        list(map(id, gradients)),
        [0 if g is None else g._version for g in gradients],
    )


def versions_of(parameters: Sequence[Tensor]) -> list[int]:
    """How often each gradient has been written to; absent ones count as never."""
    return [0 if (g := p.grad) is None else g._version for p in parameters]


class GradientMeter:
    """Measures the gradients of one optimizer's parameters.

    What kind of gradients they are (dense, half, on one device) seldom changes, and asking each
    tensor each step would cost as much as the norms of a small network: `look_again` asks.
    """

    __slots__ = ("_dense", "_half", "_on_host", "_one_device", "_parameters", "_sharded")

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters
        self._dense = self._one_device = self._on_host = False
        self._half = True
        self._sharded = False

    def look_again(self) -> None:
        """Learn what kind of gradients there are now."""
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        self._dense = all(type(g) is Tensor and g.layout is torch.strided for g in gradients)
        self._half = any_half(gradients)
        self._sharded = any(map(is_shard, self._parameters))
        devices = {g.device for g in gradients}
        self._one_device = len(devices) == 1
        self._on_host = self._one_device and devices.pop().type == "cpu"

    def measure(
        self, pack: Pack, *, scaled: bool = False, amax: bool = False
    ) -> NormCapture | None:
        """Put the norms into the pack, and the largest magnitudes; None without gradients.

        On the CPU magnitudes cost as much again, so they are taken where asked for, and where a
        norm that is not finite leaves open whether the gradients are.
        """
        parameters = self._parameters
        gradients = [g for p in parameters if (g := p.grad) is not None]
        if not gradients:
            return None
        present = None
        unseen = 0
        if len(gradients) != len(parameters) or not self._dense:
            found = [(n, p.grad) for n, p in enumerate(parameters) if p.grad is not None]
            dense = [(n, local) for n, g in found if (local := _local(g)) is not None]
            unseen = len(found) - len(dense)
            if not dense:
                return None
            present, gradients = tuple(n for n, _ in dense), [g for _, g in dense]
        norms = norms_of(gradients, half=self._half)
        at, total_at, amax_at = self._put(gradients, norms, pack, amax=amax)
        return NormCapture(
            present, at, len(gradients), total_at, amax_at, unseen, scaled, self._sharded
        )

    def _put(
        self, gradients: list[Tensor], norms: list[Tensor], pack: Pack, *, amax: bool
    ) -> tuple[int, int | None, int | None]:
        if not self._one_device:
            places = [pack.put(norm) for norm in norms]
            return places[0], None, None
        if self._on_host:
            # Reading 24 numbers and writing them back costs half of stacking 24 tensors.
            numbers = [norm.item() for norm in norms]
            kind = np.float64 if norms[0].dtype == torch.float64 else np.float32
            total = torch.linalg.vector_norm(torch.from_numpy(np.array(numbers, kind))).item()
            at = pack.put_numbers(numbers)
            total_at = pack.put_number(total)
            if math.isfinite(total) and not amax:
                return at, total_at, None
            return at, total_at, pack.put_numbers([_amax(g) for g in gradients])
        stacked = torch.stack(norms)
        at = pack.put(stacked)
        total_at = pack.put(torch.linalg.vector_norm(stacked))
        return at, total_at, pack.put(torch.stack(norms_of(gradients, math.inf, half=self._half)))


def _local(gradient: Tensor) -> Tensor | None:
    """The dense values this process holds; None if only a synchronisation would tell."""
    if gradient.is_sparse:
        if gradient.is_coalesced():
            return gradient._values()
        # Summing duplicates needs their number, which a device would have to be asked for.
        return gradient.coalesce()._values() if gradient.device.type == "cpu" else None
    inner = getattr(gradient, "_local_tensor", None)  # a DTensor's shard: no communication
    return gradient.detach() if inner is None else inner.detach()


def norms_of(tensors: list[Tensor], order: float = 2.0, *, half: bool) -> list[Tensor]:
    """Each tensor's norm; half precision is summed in float32, where it does not overflow."""
    if half:
        wide = torch.float64 if tensors[0].dtype == torch.float64 else torch.float32
        return list(torch._foreach_norm(tensors, order, dtype=wide))
    return list(torch._foreach_norm(tensors, order))


def any_half(tensors: Sequence[Tensor]) -> bool:
    """Whether one of them is in half precision."""
    return any(t.dtype in _HALF for t in tensors)


def _amax(gradient: Tensor) -> float:
    """The largest magnitude, nan if there is one; much faster on the CPU than an infinity norm."""
    if gradient.numel() == 0:
        return 0.0
    if gradient.is_complex():
        gradient = gradient.abs()
    low, high = torch.aminmax(gradient)
    lowest, highest = low.item(), high.item()
    return lowest if math.isnan(lowest) else max(-lowest, highest)
