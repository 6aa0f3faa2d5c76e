"""A small strided slice of every parameter, taken before and after an optimizer's step.

A copy of all parameters each step would double a large model's memory. A slice holds at most 1 %
of a tensor, and at least 256 elements. Its stride shares no factor with the length of the tensor's
rows: a leading slice of an embedding was up to 8.5 times off. What the slices say of the step is
computed in `update_norms`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ampwatch.probe.norms import norms_of
from ampwatch.probe.tensor_values import PLAIN, Pack

LEAST_ELEMENTS = 256
LARGEST_SHARE = 100  # one element in a hundred

Floats = NDArray[np.float32]
_POINTER = Tensor.data_ptr
_VERSION = attrgetter("_version")


@dataclass(frozen=True, eq=False)  # without slots, so that it can be referred to weakly
class SliceLayout:
    """Which elements stand for which parameter in a joined slice."""

    starts: NDArray[np.int64]  # where each sliced parameter begins
    weights: NDArray[np.float64]  # elements of the parameter for one of the slice
    counts: NDArray[np.int64]
    positions: NDArray[np.int64]  # the parameters' positions in the survey or the optimizer
    matrix: NDArray[np.bool_]  # two dimensions or more


@dataclass(slots=True)  # not frozen: one is made each step, and freezing triples its price
class HostUpdate:
    """One optimizer step seen through the slices of parameters on the CPU: before and after."""

    layout: SliceLayout
    before: Floats
    after: Floats


@dataclass(frozen=True, slots=True)
class DeviceUpdate:
    """The same, reduced on the device: where each parameter's norms stand in the pack."""

    layout: SliceLayout
    moved_at: int  # norms of the slices' movement
    squared_at: int  # norms of the squared movement, for the error
    weight_at: int  # norms of the slices before
    along_at: int | None = None  # the scaled-up product with the update before, if there was one


UpdateCapture = HostUpdate | DeviceUpdate


def stride_of(shape: Sequence[int]) -> int:
    """The stride that keeps at most 1 % but at least 256 elements, coprime to the rows' length."""
    numel = math.prod(shape)
    rows = math.prod(shape[1:])
    stride = LARGEST_SHARE
    while math.gcd(stride, rows) != 1:
        stride += 1
    if numel // stride >= LEAST_ELEMENTS:
        return stride
    stride = max(1, numel // LEAST_ELEMENTS)
    while math.gcd(stride, rows) != 1:
        stride -= 1
    return stride


def _local(tensor: Tensor) -> Tensor:
    """The part of a sharded tensor that this process holds."""
    local: Tensor = getattr(tensor, "_local_tensor", tensor)
    return local


def _flat(parameter: Tensor) -> Tensor | None:
    """The parameter's own memory as one dimension, whatever its memory format."""
    local = _local(parameter).detach()
    if local.numel() == 0 or local.layout != torch.strided or local.is_conj():
        return None
    local = torch.view_as_real(local) if local.is_complex() else local
    if local.is_contiguous():
        return local.view(-1)
    order = sorted(range(local.ndim), key=local.stride, reverse=True)
    dense = local.permute(order)
    return dense.view(-1) if dense.is_contiguous() else None  # else its memory overlaps


class Slices:
    """The slices of one optimizer's parameters; follows parameters whose memory is replaced."""

    def __init__(self, parameters: Sequence[Tensor], positions: Sequence[int]) -> None:
        kinds = [p for p in parameters if p.is_floating_point() or p.is_complex()]
        flats = [(p, _flat(p)) for p in kinds]
        self._parameters = [p for p, flat in flats if flat is not None]
        at = {id(p): position for p, position in zip(parameters, positions, strict=True)}
        shapes = [(*p.shape, 2) if p.is_complex() else p.shape for p in self._parameters]
        strides = [stride_of(shape) for shape in shapes]
        self._strides = strides
        # Of a sharded parameter this rank's part stands for the whole.
        held = [flat.numel() for _, flat in flats if flat is not None]
        counts = [-(-numel // s) for numel, s in zip(held, strides, strict=True)]
        self._counts = counts
        self.layout = SliceLayout(
            np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64)
            if counts
            else np.zeros(0, np.int64),
            np.array(
                [math.prod(shape) / c for shape, c in zip(shapes, counts, strict=True)], np.float64
            ),
            np.array(counts, np.int64),
            np.array([at[id(p)] for p in self._parameters], np.int64),
            np.array([p.ndim >= 2 for p in self._parameters], np.bool_),
        )
        # Whatever gives parameters other memory (`.to`, FSDP) does so for all of them.
        self._sentinels = [self._parameters[at] for at in _spread(len(self._parameters))]
        self._plain = {type(p) for p in self._parameters} <= set(PLAIN)
        self._pointers: list[int] = []  # of the sentinels, as they were looked at
        self._all_pointers: list[int] = []
        self._versions: list[int] = []
        self._views: list[Any] = []
        self._last: Any = None
        self._last_moved: Tensor | None = None  # on a device: by the update before
        self._weights: Tensor | None = None  # each element's there
        self._on_host = all(p.device.type == "cpu" for p in self._parameters)

    def before(self, *, fresh: bool) -> Any:
        """The slices before a step; the values after the last one where nobody wrote since.

        Version counters show writes, except those through `.data`: `fresh` always reads again.
        """
        if fresh and not (self._plain and self._all_pointers == self._addresses()):
            self._pointers = []
        if fresh or self._last is None:
            return self._read()
        unwritten = list(map(_VERSION, self._parameters)) == self._versions
        return self._last if unwritten else self._read()

    def _addresses(self) -> list[int]:
        return list(map(_POINTER, self._parameters))

    def after(self) -> Any:
        """The slices after a step, remembered for the next."""
        self._last = self._read()
        self._versions = list(map(_VERSION, self._parameters))
        return self._last

    def _read(self) -> Any:
        """The present values: on the CPU a new numpy array, else one device tensor."""
        if not self._parameters:
            return None
        pointers = list(map(_POINTER, self._sentinels))
        if pointers != self._pointers:
            self._views = self._look(self._parameters)
            self._pointers, self._all_pointers = pointers, self._addresses()
        if self._on_host and isinstance(self._views[0], np.ndarray):
            return np.concatenate(self._views)
        return torch.cat([view.float() for view in self._views])

    def compare(self, before: Any, after: Any, pack: Pack) -> UpdateCapture:
        """What a step has moved, from the slices before and after; reduced where they live."""
        if isinstance(before, np.ndarray):
            return HostUpdate(self.layout, before, after)
        counts = self.layout.counts.tolist()
        moved = after - before
        moved_at, squared_at, weight_at = (
            pack.put(torch.stack(norms_of(values.split(counts), half=False)))
            for values in (moved, moved * moved, before)
        )
        along_at = self._put_product(moved, pack)
        return DeviceUpdate(self.layout, moved_at, squared_at, weight_at, along_at)

    def _put_product(self, moved: Tensor, pack: Pack) -> int | None:
        """Put the product with the update before, from which the cosine is made."""
        last, self._last_moved = self._last_moved, moved
        if last is None or last.device != moved.device:
            return None
        return pack.put(torch.dot(moved * self.element_weights(moved), last))

    # -- what else there is of the same elements --------------------------------------------------

    @property
    def parameters(self) -> Sequence[Tensor]:
        """The sliced parameters, as the layout has them."""
        return self._parameters

    def like(self, place: int, tensor: Any) -> Tensor | None:
        """The same elements of what belongs to one parameter: its gradient, a moment.

        None where it is not laid out as the parameter is.
        """
        if type(tensor) not in PLAIN:
            tensor = getattr(tensor, "_local_tensor", None)  # a DTensor's
            if type(tensor) not in PLAIN:
                return None
        mine = _local(self._parameters[place])
        if tensor.layout is not torch.strided or tensor.shape != mine.shape:
            return None
        if tensor.device != mine.device or tensor.stride() != mine.stride():
            return None
        if not tensor.is_floating_point():
            return None
        cut: Tensor = torch.as_strided(tensor, (self._counts[place],), (self._strides[place],))
        return cut

    def chosen(self, values: Tensor, places: Sequence[int]) -> Tensor:
        """The parts of these parameters in a joined slice, joined."""
        parts = torch.split(values, self.layout.counts.tolist())
        return values if len(places) == len(parts) else torch.cat([parts[at] for at in places])

    def element_weights(self, like: Tensor) -> Tensor:
        """How many of a parameter's elements each one of a joined slice stands for."""
        if self._weights is None or self._weights.device != like.device:
            self._weights = torch.cat([
                torch.full((count,), weight, dtype=like.dtype, device=like.device)
                for count, weight in zip(
                    self.layout.counts.tolist(), self.layout.weights.tolist(), strict=True
                )
            ])  # fmt: skip
        return self._weights

    def _look(self, parameters: Sequence[Tensor]) -> list[Any]:
        views: list[Any] = []
        for parameter, stride in zip(parameters, self._strides, strict=True):
            flat = _flat(parameter)
            assert flat is not None, "chosen for its dense memory"
            views.append(flat[::stride])
        if self._on_host and all(view.dtype == torch.float32 for view in views):
            return [view.numpy() for view in views]
        return views


def _spread(count: int) -> list[int]:
    """The first, the middle and the last position."""
    return sorted({0, count // 2, count - 1}) if count else []
