"""How far optimizer steps move the weights, from a small strided slice before and after each.

A copy of all parameters each step would double a large model's memory. A slice holds at most 1 %
of a tensor, and at least 256 elements. Its stride shares no factor with the length of the tensor's
rows: a leading slice of an embedding was up to 8.5 times off.

The slices, scaled up, estimate the norm of the whole update; its standard error comes with it. They
also show how far two updates in a row point the same way: the cosine c between them. Its standard
error is about twice the norm's relative error, times sqrt(1 - c^2). The courier's thread computes
this on whole arrays of steps x parameters: that takes microseconds a step from the training thread,
which needs the interpreter too, and not a hundred.
"""

from __future__ import annotations

import math
import weakref
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ampwatch.probe.models import Survey
from ampwatch.probe.norms import norms_of
from ampwatch.probe.records import (
    DeviceUpdate,
    HostUpdate,
    SliceLayout,
    StepRecord,
    Turn,
    UpdateCapture,
)
from ampwatch.probe.tensor_values import PLAIN, Pack

LEAST_ELEMENTS = 256
LARGEST_SHARE = 100  # one element in a hundred

# Larger temporary arrays come fresh from the system each time, and their page faults cost more than
# the arithmetic.
CHUNK_ELEMENTS = 32_768

Floats = NDArray[np.float64]
Slice = NDArray[np.float32]
_POINTER = Tensor.data_ptr
_VERSION = attrgetter("_version")


# -- slices, on the training thread ----------------------------------------------------------------


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


def few_of(parameters: Sequence[Tensor]) -> list[Tensor]:
    """The first, the middle and the last, to stand for all."""
    count = len(parameters)
    return [parameters[at] for at in sorted({0, count // 2, count - 1})] if count else []


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
        self.parameters = [p for p, flat in flats if flat is not None]  # as the layout has them
        at = {id(p): position for p, position in zip(parameters, positions, strict=True)}
        shapes = [(*p.shape, 2) if p.is_complex() else p.shape for p in self.parameters]
        self._strides = strides = [stride_of(shape) for shape in shapes]
        # Of a sharded parameter this rank's part stands for the whole.
        held = [flat.numel() for _, flat in flats if flat is not None]
        self._counts = counts = [-(-numel // s) for numel, s in zip(held, strides, strict=True)]
        self.layout = SliceLayout(
            np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64)
            if counts
            else np.zeros(0, np.int64),
            np.array(
                [math.prod(shape) / c for shape, c in zip(shapes, counts, strict=True)], np.float64
            ),
            np.array(counts, np.int64),
            np.array([at[id(p)] for p in self.parameters], np.int64),
            np.array([p.ndim >= 2 for p in self.parameters], np.bool_),
        )
        # Whatever gives parameters other memory (`.to`, FSDP) does so for all of them.
        self._sentinels = few_of(self.parameters)
        self._plain = {type(p) for p in self.parameters} <= set(PLAIN)
        self._pointers: list[int] = []  # of the sentinels, as they were looked at
        self._all_pointers: list[int] = []
        self._versions: list[int] = []
        self._views: list[Any] = []
        self._last: Any = None
        self._last_moved: Tensor | None = None  # on a device: by the update before
        self._weights: Tensor | None = None  # each element's there
        self._on_host = all(p.device.type == "cpu" for p in self.parameters)

    def before(self, *, fresh: bool) -> Any:
        """The slices before a step; the values after the last one where nobody wrote since.

        Version counters show writes, except those through `.data`: `fresh` always reads again.
        """
        if fresh and not (self._plain and self._all_pointers == self._addresses()):
            self._pointers = []
        if fresh or self._last is None:
            return self._read()
        unwritten = list(map(_VERSION, self.parameters)) == self._versions
        return self._last if unwritten else self._read()

    def _addresses(self) -> list[int]:
        return list(map(_POINTER, self.parameters))

    def after(self) -> Any:
        """The slices after a step, remembered for the next."""
        self._last = self._read()
        self._versions = list(map(_VERSION, self.parameters))
        return self._last

    def _read(self) -> Any:
        """The present values: on the CPU a new numpy array, else one device tensor."""
        if not self.parameters:
            return None
        pointers = list(map(_POINTER, self._sentinels))
        if pointers != self._pointers:
            self._views = self._look()
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

    def like(self, place: int, tensor: Any) -> Tensor | None:
        """The same elements of what belongs to one parameter: its gradient, a moment.

        None where it is not laid out as the parameter is.
        """
        if type(tensor) not in PLAIN:
            tensor = getattr(tensor, "_local_tensor", None)  # a DTensor's
            if type(tensor) not in PLAIN:
                return None
        mine = _local(self.parameters[place])
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

    def _look(self) -> list[Any]:
        views: list[Any] = []
        for parameter, stride in zip(self.parameters, self._strides, strict=True):
            flat = _flat(parameter)
            assert flat is not None, "chosen for its dense memory"
            views.append(flat[::stride])
        if self._on_host and all(view.dtype == torch.float32 for view in views):
            return [view.numpy() for view in views]
        return views


# -- norms, on the courier's thread ----------------------------------------------------------------


@dataclass(slots=True)
class Move:
    """One optimizer step: estimated from its slices."""

    update_norm: float
    relative_error: float
    weight_norm: float | None  # of the matrix weights; None if there are none
    largest_ratio: float | None
    largest_layer: int | None
    ratios: Floats  # update over weight norm of each of `layers`; nan where weights are zero
    layers: NDArray[np.int64]
    alignment: float | None  # the cosine to the update before; None where either moved nothing


@dataclass(frozen=True, slots=True)
class UpdateFigures:
    """Per step (rows) and sliced parameter (columns): estimated sums of squares."""

    update_squares: Floats
    weight_squares: Floats
    update_norm: Floats
    relative_error: Floats
    along: Floats  # its product with the update before; nan where there was none


@dataclass(slots=True)
class _Known:
    """How the sliced parameters of one layout add up to layers, and the latest update of them."""

    order: NDArray[np.int64]
    starts: NDArray[np.int64]
    layers: NDArray[np.int64]
    norm: float = math.nan  # this and the next are of that update
    moved: Slice | None = None  # None: there was none, or the device has it


class Mover:
    """Finds the moves of some steps; weights may well be nan, so numpy must be told not to warn."""

    def __init__(self, survey: Survey) -> None:
        self._survey = survey
        self._known: weakref.WeakKeyDictionary[SliceLayout, _Known] = weakref.WeakKeyDictionary()

    def moves(self, steps: Iterable[StepRecord]) -> dict[int, Move]:
        """Each turn's move by the turn's id; lets go of the slices."""
        moves_of: dict[int, Move] = {}
        groups: defaultdict[int, list[tuple[Turn, HostUpdate]]] = defaultdict(list)
        for record in steps:
            for turn in record.turns:
                update, turn.update = turn.update, None
                if isinstance(update, HostUpdate):
                    groups[id(update.layout)].append((turn, update))
                elif isinstance(update, DeviceUpdate):
                    figures, known = _device_figures(record, update), self._of(update.layout, turn)
                    moves_of |= _described(update.layout, known, figures, [turn])
        for pairs in groups.values():
            together = max(1, CHUNK_ELEMENTS // max(1, len(pairs[0][1].before)))
            for first in range(0, len(pairs), together):
                moves_of |= self._host_moves(pairs[first : first + together])
        return moves_of

    def _host_moves(self, pairs: Sequence[tuple[Turn, HostUpdate]]) -> dict[int, Move]:
        turns, layout = [turn for turn, _ in pairs], pairs[0][1].layout
        before = np.stack([update.before for _, update in pairs])
        after = np.stack([update.after for _, update in pairs])
        layers = self._of(layout, turns[0])
        figures = figures_of(layout, before, after, layers.moved)
        found = _described(layout, layers, figures, turns)
        layers.moved = after[-1] - before[-1]
        return found

    def _of(self, layout: SliceLayout, turn: Turn) -> _Known:
        entry = self._known.get(layout)
        if entry is not None:
            return entry
        layers = self._survey.layers_of(turn.positions)[layout.positions]
        # A bias that starts at zero has no ratio: weights speak where a layer has them.
        with_matrix = set(layers[layout.matrix].tolist())
        used = (layers >= 0) & (layout.matrix | ~np.isin(layers, list(with_matrix)))
        chosen = np.flatnonzero(used)
        order = chosen[np.argsort(layers[chosen], kind="stable")]
        numbers, starts = np.unique(layers[order], return_index=True)
        made = self._known[layout] = _Known(order, starts, numbers)
        return made


def _described(
    layout: SliceLayout, known: _Known, figures: UpdateFigures, turns: Sequence[Turn]
) -> dict[int, Move]:
    """The moves of these turns, which are known from here on."""
    weights = np.sqrt(figures.weight_squares[:, layout.matrix].sum(axis=1)).tolist()
    ratios = _ratios(known, figures)
    finite = np.where(np.isfinite(ratios), ratios, -1.0)
    best = finite.argmax(axis=1).tolist() if len(known.layers) else [0] * len(turns)
    norms, errors = figures.update_norm.tolist(), figures.relative_error.tolist()
    alignments = _alignments(known.norm, figures)
    known.norm, known.moved = norms[-1], None
    described = {}
    for row, turn in enumerate(turns):
        largest = float(finite[row, best[row]]) if len(known.layers) else -1.0
        described[id(turn)] = Move(
            norms[row],
            errors[row],
            weights[row] if layout.matrix.any() else None,
            largest if largest >= 0 else None,
            int(known.layers[best[row]]) if largest >= 0 else None,
            ratios[row],
            known.layers,
            alignments[row],
        )
    return described


def _alignments(before: float, figures: UpdateFigures) -> list[float | None]:
    """The cosine of each update to the one before it; `before` is the norm of the one before."""
    norm = figures.update_norm
    cosines = figures.along / (norm * np.concatenate([[before], norm[:-1]]))
    return [
        max(-1.0, min(1.0, cosine)) if math.isfinite(cosine) else None
        for cosine in cosines.tolist()
    ]


def _ratios(known: _Known, figures: UpdateFigures) -> Floats:
    """Each layer's update over its weights."""
    if not len(known.layers):
        return np.zeros((len(figures.update_norm), 0))
    moved = np.add.reduceat(figures.update_squares[:, known.order], known.starts, axis=1)
    weights = np.add.reduceat(figures.weight_squares[:, known.order], known.starts, axis=1)
    ratios: Floats = np.where(weights > 0, np.sqrt(moved / weights), np.nan)
    return ratios


def _device_figures(record: StepRecord, update: DeviceUpdate) -> UpdateFigures:
    values, count = record.pack.values, len(update.layout.starts)
    places = update.moved_at, update.squared_at, update.weight_at
    squares, fourth, weights = (np.array([values[at : at + count]]) ** 2 for at in places)
    along = math.nan if update.along_at is None else values[update.along_at]
    return estimate(update.layout, squares, fourth, weights, np.array([along]))


# -- arithmetic ------------------------------------------------------------------------------------


def figures_of(
    layout: SliceLayout, before: Slice, after: Slice, last: Slice | None = None
) -> UpdateFigures:
    """Norms and products of many updates at once: arrays of steps x slice elements.

    `last` is the update before. Pure.
    """
    moved = (after - before).astype(np.float64)
    along = _products(layout, moved, last)
    moved *= moved
    starts = layout.starts
    squares = np.add.reduceat(moved, starts, axis=1)
    moved *= moved
    fourth = np.add.reduceat(moved, starts, axis=1)
    old = before.astype(np.float64)
    old *= old
    return estimate(layout, squares, fourth, np.add.reduceat(old, starts, axis=1), along)


def _products(layout: SliceLayout, moved: Floats, last: Slice | None) -> Floats:
    """Each row's product with the row before it, scaled up to whole parameters."""
    products = np.empty_like(moved)
    np.multiply(moved[1:], moved[:-1], out=products[1:])
    products[0] = np.nan if last is None else moved[0] * last
    scaled: Floats = np.add.reduceat(products, layout.starts, axis=1) @ layout.weights
    return scaled


def estimate(
    layout: SliceLayout, squares: Floats, fourth: Floats, weight_squares: Floats, along: Floats
) -> UpdateFigures:
    """Scale the slices' sums up to whole parameters, with the standard error of the result."""
    update_squares = squares * layout.weights
    total = update_squares.sum(axis=1)
    counts = layout.counts
    # The variance of a scaled-up sum under sampling without replacement.
    spread = np.maximum(fourth / counts - (squares / counts) ** 2, 0.0)
    left_out = 1.0 - 1.0 / layout.weights
    variance = (counts * layout.weights**2 * spread * left_out).sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.where(total > 0, np.sqrt(variance) / (2 * total), 0.0)
    weight_squares = weight_squares * layout.weights
    return UpdateFigures(update_squares, weight_squares, np.sqrt(total), error, along)
