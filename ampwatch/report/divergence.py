"""Where two runs diverge: the first step at which anything differs, and what, and in which layer.

Several columns may differ at that step. They are named in causal order: inputs of the step (the
batch, the rate, the scale) before their results (loss, gradients).

Two runs with the same settings differ by noise (another seed, another order of sums). So the loss
has two steps: the first at which any bit differs, and the first at which the difference exceeds
the usual change from step to step. Scales and skips are compared exactly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from ampwatch.diagnosis.column_arrays import Floats, Integers, Mask, integers, known, numbers
from ampwatch.diagnosis.layer_history import ROOT, innermost_layers
from ampwatch.diagnosis.learning_rate.constants import (
    MEDIAN_STEPS,
    ROBUST_DEVIATIONS,
    SUSTAINED_STEPS,
)
from ampwatch.diagnosis.learning_rate.trouble import MEDIAN_NOISE
from ampwatch.report.facts import rows_of_optimizer
from ampwatch.rows import DTYPE_NUMBERS, Table, column
from ampwatch.store import Run

if TYPE_CHECKING:
    from ampwatch.diagnosis import Record

GIVEN = ("input_amax", "micro_batches", "autocast_dtype", "lr", "scale")  # from outside the step
RESULTS = (
    "param_norm", "loss", "grad_norm", "grad_norm_applied", "skipped", "update_norm", "scale_after",
)  # fmt: skip
FOR_ALL_LAYERS = frozenset({"micro_batches", "lr", "scale"})  # then no layer is the first
WORDS = {"input_amax": "batch", "autocast_dtype": "precision of autocast", "skipped": "skip"}
_FORWARD = ("input_amax", "weight_norm", "act_amax")
_LAYER_COLUMNS = (*_FORWARD, "grad_norm")  # unscaled all: runs may have other loss scales
# Samples may be far apart: each stretch of steps that is searched is so much longer than the last.
_STRETCH, _LONGER = 64, 8
# Logs print three digits: less is no difference.
_LEAST_SHARE = 0.01
_MAD_TO_DEVIATION = 1.4826  # of normal noise
_LEAST_STEPS = MEDIAN_STEPS + SUSTAINED_STEPS


@dataclass(frozen=True, slots=True)
class StepRows:
    """A run's columns, one row per step in rising order; of repeated steps, the last row."""

    step: Integers
    columns: Mapping[str, tuple[Floats, Mask]]  # each with the mask of what is known


@dataclass(frozen=True, slots=True)
class ColumnDifference:
    """The first step at which a column differs, and its value in each run."""

    column: str
    step: int
    first: float | str
    second: float | str


@dataclass(frozen=True, slots=True)
class LayerDifference:
    """Which layer differs, at the first step that both sampled.

    `is_where_it_began`: the runs diverge at this very step. Then the layer is the first one in the
    order of computation; otherwise it is the one that differs most.
    """

    step: int
    layer: str
    column: str
    first: float
    second: float
    differing: int  # layers that differ at that step,
    sampled: int  # of those that both have
    is_where_it_began: bool


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """The step at which two runs diverge: what differs there, and what differs later."""

    step: int
    columns: tuple[ColumnDifference, ...]
    later: tuple[ColumnDifference, ...]  # the other columns that differ, each at its first step
    same_before: int  # common steps before it, all of them the same
    layer: LayerDifference | None = None

    @property
    def column(self) -> str:
        """The first of the columns, in causal order."""
        return self.columns[0].column


@dataclass(frozen=True, slots=True)
class Difference:
    """The first step at which a quantity differs, and its value in each run."""

    step: int
    first: float
    second: float


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where a run differs from another; None where all common steps are the same."""

    common_steps: int
    last_common_step: int | None = None
    both_tell: tuple[str, ...] = ()  # of loss, scale and skips, those that both runs record
    loss_bits: Difference | None = None
    loss: Difference | None = None
    knows_noise: bool = False  # whether both losses are long enough to estimate it
    scale: Difference | None = None
    skips: Difference | None = None
    first: FirstDifference | None = None  # in anything that both record
    compared: tuple[str, ...] = ()  # the columns that both record
    loss_end: Difference | None = None  # the medians of the last losses that both recorded
    loss_noise: float | None = None  # how far two losses of these runs lie apart by noise

    @property
    def ends_higher(self) -> bool:
        """Whether the second run's loss is higher at the end, by more than noise."""
        end, noise = self.loss_end, self.loss_noise
        if end is None or noise is None:
            return False
        return end.second - end.first > _least_difference(noise, abs(end.first))


def step_rows(run: Record) -> StepRows:
    """A run's columns by step, to compare with another's; of its first optimizer."""
    names = (*GIVEN, *RESULTS)
    rows = rows_of_optimizer(run, ("step", *names))
    step = integers(rows, "step")
    _, from_end = np.unique(step[::-1], return_index=True)
    last = len(step) - 1 - from_end
    columns = {}
    for name in names:
        values, there = _numbers(rows, name)
        if there.any():
            columns[name] = values[last], there[last]
    return StepRows(step[last], columns)


def _numbers(rows: Any, name: str) -> tuple[Floats, Mask]:
    there = known(rows, name)
    if name == "autocast_dtype":
        values = [DTYPE_NUMBERS.get(text, -1) for text in rows.column(name).to_pylist()]
        return np.asarray(values, np.float64), there
    return numbers(rows, name), there


def divergence_of(first: Run, second: Run, one: StepRows | None = None) -> Divergence:
    """Where the second run differs from the first; `one` are the first run's rows, if at hand."""
    one, other = one or step_rows(first), step_rows(second)
    step, mine, its = np.intersect1d(one.step, other.step, return_indices=True)
    if not len(step):
        return Divergence(0)
    columns = {
        name: _pair(step, mine, its, (one.columns[name], other.columns[name]))
        for name in one.columns
        if name in other.columns
    }
    columns = {name: pair for name, pair in columns.items() if len(pair.step)}
    scale = _pair(step, mine, its, (_scale_of(one), _scale_of(other)))
    loss, skips = (columns.get(name, _NO_PAIR) for name in ("loss", "skipped"))
    pairs = {"loss": loss, "scale": scale, "skips": skips}
    unequal = loss.unequal  # without any, none is beyond noise: a million medians are slow
    found = _first_difference(step, columns)
    if found is not None and found.column not in FOR_ALL_LAYERS:
        layer = layer_difference(first, second, found.step, int(step[-1]))
        found = replace(found, layer=layer)
    return Divergence(
        len(step),
        int(step[-1]),
        tuple(name for name, pair in pairs.items() if len(pair.step)),
        loss.at(unequal),
        loss.at(_beyond_noise(loss)) if len(unequal) else None,
        int(loss.both_finite.sum()) >= _LEAST_STEPS,
        scale.at(scale.unequal),
        skips.at(skips.unequal),
        found,
        tuple(columns),
        _loss_end(loss),
        _noise(loss),
    )


# --- columns -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Pair:
    """One quantity of both runs, at the steps that both recorded."""

    step: Integers
    one: Floats
    other: Floats

    @property
    def unequal(self) -> NDArray[np.intp]:
        """Where they differ."""
        return np.flatnonzero(~same(self.one, self.other))

    @property
    def both_finite(self) -> Mask:
        """Where both are numbers."""
        return np.isfinite(self.one) & np.isfinite(self.other)

    def at(self, places: NDArray[np.intp]) -> Difference | None:
        """The first of these places, if any."""
        if not len(places):
            return None
        at = int(places.min())
        return Difference(int(self.step[at]), float(self.one[at]), float(self.other[at]))


_NO_PAIR = _Pair(np.zeros(0, np.int64), np.zeros(0), np.zeros(0))


def _pair(
    step: Integers,
    mine: NDArray[np.intp],
    its: NDArray[np.intp],
    columns: tuple[tuple[Floats, Mask], tuple[Floats, Mask]],
) -> _Pair:
    """A column of both runs, each with the places of the common steps in it."""
    (one, known), (other, known_other) = columns
    both = known[mine] & known_other[its]
    return _Pair(step[both], one[mine][both], other[its][both])


def _scale_of(rows: StepRows) -> tuple[Floats, Mask]:
    """Each step's scale, to compare; its value after the step if a log has only that."""
    unknown: Mask = np.zeros(len(rows.step), np.bool_)
    nothing: tuple[Floats, Mask] = np.full(len(rows.step), np.nan), unknown
    scale, known = rows.columns.get("scale", nothing)
    after, known_after = rows.columns.get("scale_after", nothing)
    either: Floats = np.where(known, scale, after)
    return either, known | known_after


def _first_difference(step: Integers, columns: Mapping[str, _Pair]) -> FirstDifference | None:
    """Where the common columns begin to differ; None if every one is the same."""
    found = [
        ColumnDifference(name, begins.step, *_values_told(name, begins))
        for name, pair in columns.items()
        if (begins := pair.at(pair.unequal)) is not None
    ]
    if not found:
        return None
    begin = min(one.step for one in found)
    at_once = [one for one in found if one.step == begin]
    later = sorted((one for one in found if one.step > begin), key=lambda one: one.step)
    return FirstDifference(begin, tuple(at_once), tuple(later), int(np.searchsorted(step, begin)))


def same(one: Floats, other: Floats) -> Mask:
    """Where two runs' values are bit-identical; two nan count as equal."""
    return np.asarray((one == other) | (np.isnan(one) & np.isnan(other)))


def _values_told(name: str, found: Difference) -> tuple[float | str, float | str]:
    if name != "autocast_dtype":
        return found.first, found.second
    dtypes = {number: text for text, number in DTYPE_NUMBERS.items()}
    return dtypes.get(int(found.first), "unknown"), dtypes.get(int(found.second), "unknown")


def words_of(name: str, table: Table = Table.STEPS) -> str:
    """A column as a sentence on a divergence names it."""
    return (WORDS.get(name) if table is Table.STEPS else None) or column(table, name).label or name


def _beyond_noise(pair: _Pair) -> NDArray[np.intp]:
    """Where the medians begin to differ by more than noise, for long or to the end.

    A finite loss and one that is not finite differ by more than any noise.
    """
    one, other = np.isfinite(pair.one), np.isfinite(pair.other)
    noise = _noise(pair)
    if noise is None:
        return np.flatnonzero(one != other)
    places = np.flatnonzero(one | other)
    away = np.where(one & other, pair.one - pair.other, np.inf)[places]
    middle = np.abs(np.median(sliding_window_view(away, MEDIAN_STEPS), axis=1))
    apart = middle > _least_difference(noise, float(np.median(np.abs(pair.one[one]))))
    lasting = np.append(apart, np.ones(SUSTAINED_STEPS - 1, bool))
    starts = np.flatnonzero(sliding_window_view(lasting, SUSTAINED_STEPS).all(axis=1))
    return np.asarray(places[starts + MEDIAN_STEPS // 2])


def _least_difference(noise: float, level: float) -> float:
    """How far two medians of losses must lie apart to differ by more than noise."""
    return max(ROBUST_DEVIATIONS * MEDIAN_NOISE * noise, _LEAST_SHARE * level)


def _noise(pair: _Pair) -> float | None:
    """How far two runs' losses lie apart by noise; None where they are too short to tell."""
    if pair.both_finite.sum() < _LEAST_STEPS:
        return None
    one, other = pair.one[np.isfinite(pair.one)], pair.other[np.isfinite(pair.other)]
    return float(np.hypot(_deviation(one), _deviation(other)))


def _loss_end(pair: _Pair) -> Difference | None:
    """What the losses of two runs are at the last steps that both recorded, as medians."""
    at = np.flatnonzero(pair.both_finite)[-MEDIAN_STEPS:]
    if not len(at):
        return None
    ends = float(np.median(pair.one[at])), float(np.median(pair.other[at]))
    return Difference(int(pair.step[at[-1]]), *ends)


def _deviation(loss: Floats) -> float:
    """The usual change of a loss from step to step."""
    moves = np.diff(loss)
    return float(_MAD_TO_DEVIATION * np.median(np.abs(moves - np.median(moves))) / np.sqrt(2))


# --- layers --------------------------------------------------------------------------------------


def layer_difference(one: Run, other: Run, step: int, last: int) -> LayerDifference | None:
    """The layer that shows the difference at this step; None if no layer was recorded."""
    first, length = step, _STRETCH
    while first <= last:
        end = min(last, first + length - 1)
        mine, its = _samples(one, first, end), _samples(other, first, end)
        for at in sorted(mine.keys() & its.keys()):
            found = _among(mine[at], its[at], at, began=at == step)
            if found is not None:
                return found
        first, length = end + 1, length * _LONGER
    return None


_LayerRow = Mapping[str, Any]


def _samples(run: Run, first: int, last: int) -> dict[int, dict[str, _LayerRow]]:
    """The layers' rows by step, of the lowest rank; each with its place in the forward pass."""
    names = ("step", "layer", "order", *_LAYER_COLUMNS)
    samples: dict[int, dict[str, _LayerRow]] = {}
    rank = min(run.ranks, default=0)
    for rows in run.rows_between(Table.LAYERS, names, first, last, rank):
        for row in rows.to_pylist():
            if row["step"] is None or not row["layer"]:
                continue
            layers = samples.setdefault(row["step"], {})
            order = len(layers) if row["order"] is None else row["order"]
            layers[row["layer"]] = {**row, "order": order}
    return samples


def _among(
    mine: Mapping[str, _LayerRow], its: Mapping[str, _LayerRow], step: int, *, began: bool
) -> LayerDifference | None:
    both = sorted((name for name in mine if name in its), key=lambda name: mine[name]["order"])
    differing = {
        name: columns for name in both if (columns := _unequal_columns(mine[name], its[name]))
    }
    if not differing:
        return None
    inner = set(innermost_layers(both)) - {ROOT}
    chosen = {name: columns for name, columns in differing.items() if name in inner} or differing
    if began:
        layer, column = _where_it_began(chosen)
    else:
        pairs = ((name, column) for name, columns in chosen.items() for column in columns)
        layer, column = max(pairs, key=lambda pair: _times(mine[pair[0]], its[pair[0]], pair[1]))
    values = float(mine[layer][column]), float(its[layer][column])
    return LayerDifference(step, layer, column, *values, len(differing), len(both), began)


def _unequal_columns(first: _LayerRow, second: _LayerRow) -> list[str]:
    """The columns that both recorded and that differ; two nan are the same."""
    pairs = ((name, first[name], second[name]) for name in _LAYER_COLUMNS)
    return [
        name
        for name, one, other in pairs
        if None not in (one, other) and one != other and not (one != one and other != other)
    ]


def _where_it_began(differing: Mapping[str, list[str]]) -> tuple[str, str]:
    """The first layer that differs in the forward pass; if none does, in the backward pass."""
    for name, columns in differing.items():
        if columns[0] in _FORWARD:
            return name, columns[0]
    name = list(differing)[-1]
    return name, differing[name][0]


def _times(one: _LayerRow, other: _LayerRow, column: str) -> float:
    """The ratio of two values, at least 1; inf if one is not finite."""
    low, high = sorted((abs(one[column]), abs(other[column])))
    return high / low if low and math.isfinite(low) and math.isfinite(high) else math.inf
