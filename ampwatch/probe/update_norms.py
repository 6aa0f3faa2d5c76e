"""How far optimizer steps moved the weights: norms, their errors, each layer's ratio, the cosine.

The slices of `weight_slices`, scaled up, estimate the norm of the whole update; its standard error
comes with it. The same slices show how far two updates in a row point the same way: the cosine c
between them. Its standard error is about twice the norm's relative error, times sqrt(1 - c^2).

The courier's thread computes on whole arrays of steps x parameters: that takes microseconds a step
from the training thread, which needs the interpreter too, and not a hundred.
"""

from __future__ import annotations

import math
import weakref
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ampwatch.probe.models import Survey
from ampwatch.probe.records import StepRecord, Turn
from ampwatch.probe.weight_slices import DeviceUpdate, HostUpdate, SliceLayout

Floats = NDArray[np.float64]
Slice = NDArray[np.float32]

# Larger temporary arrays come fresh from the system each time, and their page faults cost more than
# the arithmetic.
CHUNK_ELEMENTS = 32_768


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


@dataclass(frozen=True, slots=True)
class _Last:
    """An optimizer's latest update, as the next one needs it."""

    norm: float
    moved: NDArray[np.float32] | None  # None: the device has it


@dataclass(frozen=True, slots=True)
class _Grouping:
    """How the sliced parameters of one layout add up to layers."""

    order: NDArray[np.int64]
    starts: NDArray[np.int64]
    layers: NDArray[np.int64]


class Mover:
    """Finds the moves of some steps."""

    def __init__(self, survey: Survey) -> None:
        self._layer_of = np.asarray(survey.parameter_layers, np.int64)
        self._groupings: weakref.WeakKeyDictionary[SliceLayout, _Grouping] = (
            weakref.WeakKeyDictionary()
        )
        self._last: weakref.WeakKeyDictionary[SliceLayout, _Last] = weakref.WeakKeyDictionary()

    def moves(self, steps: Iterable[StepRecord]) -> dict[int, Move]:
        """Each turn's move by the turn's id; lets go of the slices."""
        found: dict[int, Move] = {}
        groups: defaultdict[int, list[tuple[Turn, HostUpdate]]] = defaultdict(list)
        for record in steps:
            for turn in record.turns:
                update, turn.update = turn.update, None
                if isinstance(update, HostUpdate):
                    groups[id(update.layout)].append((turn, update))
                elif isinstance(update, DeviceUpdate):
                    figures = _device_figures(record, update)
                    found |= self._described(update.layout, figures, [turn])
                    self._last[update.layout] = _Last(float(figures.update_norm[0]), None)
        for pairs in groups.values():
            together = max(1, CHUNK_ELEMENTS // max(1, len(pairs[0][1].before)))
            for first in range(0, len(pairs), together):
                found |= self._host_moves(pairs[first : first + together])
        return found

    def _host_moves(self, pairs: Sequence[tuple[Turn, HostUpdate]]) -> dict[int, Move]:
        layout = pairs[0][1].layout
        before = np.stack([update.before for _, update in pairs])
        after = np.stack([update.after for _, update in pairs])
        last = self._last.get(layout)
        with np.errstate(all="ignore"):  # weights may well be nan
            figures = figures_of(layout, before, after, None if last is None else last.moved)
            found = self._described(layout, figures, [turn for turn, _ in pairs])
            self._last[layout] = _Last(float(figures.update_norm[-1]), after[-1] - before[-1])
        return found

    def _described(
        self, layout: SliceLayout, figures: UpdateFigures, turns: Sequence[Turn]
    ) -> dict[int, Move]:
        grouping = self._grouping(layout, turns[0])
        matrix = layout.matrix
        with np.errstate(all="ignore"):
            weights = np.sqrt(figures.weight_squares[:, matrix].sum(axis=1)).tolist()
            ratios = _ratios(grouping, figures)
            known = np.where(np.isfinite(ratios), ratios, -1.0)
        best = known.argmax(axis=1).tolist() if len(grouping.layers) else [0] * len(turns)
        norms, errors = figures.update_norm.tolist(), figures.relative_error.tolist()
        alignments = self._alignments(layout, figures)
        found = {}
        for row, turn in enumerate(turns):
            largest = float(known[row, best[row]]) if len(grouping.layers) else -1.0
            found[id(turn)] = Move(
                norms[row],
                errors[row],
                weights[row] if matrix.any() else None,
                largest if largest >= 0 else None,
                int(grouping.layers[best[row]]) if largest >= 0 else None,
                ratios[row],
                grouping.layers,
                alignments[row],
            )
        return found

    def _alignments(self, layout: SliceLayout, figures: UpdateFigures) -> list[float | None]:
        """The cosine of each update to the one before it."""
        last, norm = self._last.get(layout), figures.update_norm
        with np.errstate(all="ignore"):
            before = np.concatenate([[np.nan if last is None else last.norm], norm[:-1]])
            cosines = figures.along / (norm * before)
        known = np.isfinite(cosines)
        return [
            max(-1.0, min(1.0, cosine)) if there else None
            for cosine, there in zip(cosines.tolist(), known.tolist(), strict=True)
        ]

    def _grouping(self, layout: SliceLayout, turn: Turn) -> _Grouping:
        known = self._groupings.get(layout)
        if known is None:
            known = self._groupings[layout] = self._group(layout, turn)
        return known

    def _group(self, layout: SliceLayout, turn: Turn) -> _Grouping:
        positions = np.asarray(turn.positions, np.int64)[layout.positions]
        layers = (
            np.where(positions >= 0, self._layer_of[positions], -1)
            if len(self._layer_of)
            else np.full(len(positions), -1)
        )
        # A bias that starts at zero has no ratio: weights speak where a layer has them.
        with_matrix = set(layers[layout.matrix].tolist())
        used = (layers >= 0) & (layout.matrix | ~np.isin(layers, list(with_matrix)))
        chosen = np.flatnonzero(used)
        order = chosen[np.argsort(layers[chosen], kind="stable")]
        numbers, starts = np.unique(layers[order], return_index=True)
        return _Grouping(order, starts, numbers)


def _ratios(grouping: _Grouping, figures: UpdateFigures) -> Floats:
    if not len(grouping.layers):
        return np.zeros((len(figures.update_norm), 0))
    order, starts = grouping.order, grouping.starts
    moved = np.add.reduceat(figures.update_squares[:, order], starts, axis=1)
    weights = np.add.reduceat(figures.weight_squares[:, order], starts, axis=1)
    ratios: Floats = np.where(weights > 0, np.sqrt(moved / weights), np.nan)
    return ratios


def _device_figures(record: StepRecord, update: DeviceUpdate) -> UpdateFigures:
    count = len(update.layout.starts)

    def squares(at: int) -> Floats:
        return np.array([record.pack.values[at : at + count]]) ** 2

    with np.errstate(all="ignore"):
        return estimate(
            update.layout,
            squares(update.moved_at),
            squares(update.squared_at),
            squares(update.weight_at),
            np.array(
                [math.nan if update.along_at is None else record.pack.values[update.along_at]]
            ),
        )


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
    layout: SliceLayout,
    squares: Floats,
    fourth: Floats,
    weight_squares: Floats,
    along: Floats,
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
