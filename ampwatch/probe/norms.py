"""Norms of the gradients, and of the weights: one foreach call in float32, where they live.

The global norm is made from the per-parameter norms with the operation that
`torch.nn.utils.clip_grad_norm_` uses, so that both agree to the last digit. Finiteness is judged on
the values themselves, never inferred from a norm.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ampwatch.probe.tensor_values import HALF, Pack, extremes, is_shard, measurable

# Two norms of the same gradients agree to this, also where one of them was divided by the scale.
SAME_NORM = 1e-3
LEAST_NORM = 1e-12  # the squares of what makes up a smaller one leave float32

# Read by `map`, for every parameter in every step: a loop of our own takes a tenth longer.
_GRADIENT = attrgetter("grad")
_TYPE = attrgetter("dtype")
_VERSION = attrgetter("_version")
_VALUE = Tensor.item
_ALL_PLAIN = {Tensor}


@dataclass(slots=True)
class NormCapture:
    """Where one measurement's values stand in the step's pack."""

    present: tuple[int, ...] | None  # positions of the parameters that have a gradient; None: all
    at: int  # the first of the per-parameter norms
    count: int
    total_at: int | None  # None: made on the host from the parameters' norms, by `total_norm`
    amax_at: int | None  # largest magnitudes per parameter, where they were needed
    unseen: int  # gradients that could not be measured without synchronising
    scaled: bool  # whether the gradients still held the loss scale
    sharded: bool = False  # whether other ranks hold parts of these gradients
    dtype: torch.dtype | None = None  # of norms that one operation may join to the total
    reported_at: int | None = None  # the total of all ranks, where a library has computed it

    def total(self, values: Sequence[float]) -> float:
        """The global norm of the gradients that this process holds, scaled if they were."""
        if self.total_at is not None:
            return values[self.total_at]
        return total_norm(values[self.at : self.at + self.count], self.dtype)

    def differs_from(self, other: NormCapture, values: Sequence[float], factor: float) -> bool:
        """Whether the norms show that these gradients are not `factor` times the others."""
        if not factor:  # a loss scale that was halved down to 0
            return False
        mine, theirs = self.total(values), factor * other.total(values)
        if not LEAST_NORM < min(mine, theirs / factor) <= max(mine, theirs) < math.inf:
            return False
        return abs(mine - theirs) > SAME_NORM * max(mine, theirs)


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Which gradient tensors there are, and how often each has been written to."""

    identities: list[int]
    versions: list[int]


def fingerprint(parameters: Sequence[Tensor]) -> Fingerprint:
    """Which gradients there are and how often each was written to; it differs after any write."""
    gradients = list(map(_GRADIENT, parameters))
    return Fingerprint(list(map(id, gradients)), versions_of(gradients))


def any_written(gradients: Iterable[Tensor | None]) -> bool:
    """Whether one of these gradients has been written to since it was made."""
    return any(versions_of(list(gradients)))


def versions_of(gradients: Sequence[Tensor | None]) -> list[int]:
    """How often each gradient has been written to; absent ones count as never.

    FSDP adds to the local part of a sharded gradient, whose own count stays.
    """
    if gradients and hasattr(gradients[0], "_local_tensor"):
        gradients = [getattr(g, "_local_tensor", g) for g in gradients]
    try:
        return list(map(_VERSION, gradients))
    except AttributeError:  # some parameter has none
        return [0 if g is None else g._version for g in gradients]


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
        """Learn what kind of gradients there are to measure now."""
        gradients = [g for p in self._parameters if (g := p.grad) is not None]
        self._dense = all(type(g) is Tensor and g.layout is torch.strided for g in gradients)
        self._half = any_half(gradients)
        self._sharded = any(map(is_shard, self._parameters))
        devices = {g.device for g in gradients}
        self._one_device = len(devices) == 1
        self._on_host = self._one_device and devices.pop().type == "cpu"

    def gradients(self) -> list[Any]:
        """Each parameter's gradient; None where there is none."""
        return list(map(_GRADIENT, self._parameters))

    def measure(
        self,
        pack: Pack,
        gradients: list[Any] | None = None,
        *,
        scaled: bool = False,
        amax: bool = False,
    ) -> NormCapture | None:
        """Put the norms into the pack, and the largest magnitudes; None without gradients.

        On the CPU magnitudes cost as much again, so they are taken where asked for, and where a
        norm that is not finite leaves open whether the gradients are. `gradients` saves asking
        for them where they are at hand; those that `unscale_` may replace are asked for again.
        """
        if gradients is None or not self._dense:
            gradients = self.gradients()
        present = total_at = amax_at = None
        unseen = 0
        if not self._dense or set(map(type, gradients)) != _ALL_PLAIN:
            pairs = [(n, g) for n, g in enumerate(gradients) if g is not None]
            dense = [(n, local) for n, g in pairs if (local := _local(g)) is not None]
            unseen = len(pairs) - len(dense)
            if not dense:
                return None
            present, gradients = tuple(n for n, _ in dense), [g for _, g in dense]
        norms = norms_of(gradients, half=self._half)
        values = pack.values
        at, dtype = len(values), norms[0].dtype if self._one_device else None
        if self._on_host:
            # Reading 24 numbers and writing them back costs half of stacking 24 tensors.
            numbers = list(map(_VALUE, norms))
            values.extend(numbers)
            if amax or not math.isfinite(sum(numbers)):
                amax_at = pack.put_numbers([_amax(g) for g in gradients])
        elif self._one_device:
            stacked = torch.stack(norms)
            pack.put(stacked)
            total_at = pack.put(torch.linalg.vector_norm(stacked))
            amax_at = pack.put(torch.stack(norms_of(gradients, math.inf, half=self._half)))
        else:
            pack.put_scalars(*norms)
        return NormCapture(
            present, at, len(gradients), total_at, amax_at, unseen, scaled, self._sharded, dtype
        )


def _local(gradient: Tensor) -> Tensor | None:
    """The dense values this process holds; None if finding them would synchronise a device."""
    if gradient.is_sparse:
        if gradient.is_coalesced():
            return gradient._values()
        # Summing duplicates needs their number, which a device would have to be asked for.
        return gradient.coalesce()._values() if gradient.device.type == "cpu" else None
    inner = getattr(gradient, "_local_tensor", None)  # a DTensor's shard: no communication
    return gradient.detach() if inner is None else inner.detach()


def total_norm(norms: Sequence[float], dtype: torch.dtype | None) -> float:
    """The global norm of all gradients from each one's; exact to the last digit with a dtype."""
    if dtype is None:
        return math.sqrt(sum(norm * norm for norm in norms))
    kind = np.float64 if dtype == torch.float64 else np.float32
    return float(torch.linalg.vector_norm(torch.from_numpy(np.array(norms, kind))).item())


def norms_of(tensors: Any, order: float = 2.0, *, half: bool) -> tuple[Tensor, ...]:
    """Each tensor's norm; half precision is summed in float32, where it does not overflow."""
    if half:
        wide = torch.float64 if tensors[0].dtype == torch.float64 else torch.float32
        return torch._foreach_norm(tensors, order, dtype=wide)
    return torch._foreach_norm(tensors, order)


def any_half(tensors: Sequence[Tensor]) -> bool:
    """Whether one of these tensors is in half precision: then its norm is summed in float32."""
    return not HALF.isdisjoint(map(_TYPE, tensors))


def _amax(gradient: Tensor) -> float:
    """The largest magnitude, nan if there is one; much faster on the CPU than an infinity norm."""
    if gradient.numel() == 0:
        return 0.0
    if gradient.is_complex():
        gradient = gradient.abs()
    low, high = torch.aminmax(gradient)
    return max(-low.item(), high.item())  # both are nan if one is


# -- of the weights, as they are before a forward --------------------------------------------------


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
            self._norms = _norms_in_width(tensors, 2.0)
            self.on_host = all(tensor.is_cpu for tensor in tensors)
            self._largest = _largest_magnitudes(tensors, self._norms)
        self.norm_at: dict[int, int] = {}  # in the pack, by the parameter's position
        self.amax_at: dict[int, int] = {}  # likewise; none where a finite norm says enough

    def put(self, pack: Pack) -> None:
        """Put the weights' norms into the pack, and keep their places there."""
        first = pack.put_scalars(*self._norms)
        self.norm_at = {position: at for at, position in enumerate(self._positions, first)}
        self.amax_at = {
            position: pack.put(amax)
            for position, amax in zip(self._positions, self._largest, strict=True)
            if amax is not None
        }
        self._norms, self._largest = [], []


def _norms_in_width(tensors: list[Tensor], order: float) -> list[Tensor]:
    """Norms in float32, or wider where the weights are."""
    found: dict[int, Tensor] = {}
    for wide in (False, True):
        chosen = [at for at, t in enumerate(tensors) if (t.dtype is torch.float64) is wide]
        if chosen:
            norms = norms_of([tensors[at] for at in chosen], order, half=True)
            found.update(zip(chosen, norms, strict=True))
    return [found[at] for at in range(len(tensors))]


def _largest_magnitudes(tensors: list[Tensor], norms: list[Tensor]) -> list[Tensor | None]:
    """Where the norm is no proof of finiteness: on a device, which cannot be asked, always."""
    on_device = iter(_norms_in_width([t for t in tensors if not t.is_cpu], math.inf))
    largest: list[Tensor | None] = []
    for tensor, norm in zip(tensors, norms, strict=True):
        if not tensor.is_cpu:
            largest.append(next(on_device))
        elif math.isfinite(norm.item()):
            largest.append(None)
        else:
            low, high = extremes(tensor)
            largest.append(torch.maximum(-low, high))
    return largest
