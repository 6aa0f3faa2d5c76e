"""The data of the charts on the Layers page: heatmap, a layer's curves, exponent histogram."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc
from layer_choices import QUANTITIES, Quantity, columns_with
from numpy.typing import NDArray
from open_runs import RunSnapshot
from step_curves import StepCurves

from ampwatch.report.format_losses import CAST_COLUMNS, STALENESS
from ampwatch.rows import EXPONENT_BINS, Table

COLUMNS = 240  # of the heatmap: more would not be visible on a screen
_LEAST_COLUMNS = 60  # of that of very many layers
_MOST_VALUES = 500_000  # of a heatmap: 2 MB
_SEARCHED_ROWS = (1 << 12, 1 << 17)  # for a layer's last histogram: soon found, as a rule
_USUAL_HOLES = 1.5  # sampling intervals between two samples of a layer
_HISTORY = {
    "grad_norm": False, "act_amax": False, "log2_headroom": True, "underflow_share": False,
    "update_ratio": False,
}  # fmt: skip
_CAST_HISTORY = dict.fromkeys((*CAST_COLUMNS, STALENESS), False)


@dataclass(frozen=True, slots=True)
class HeatmapGrid:
    """The heatmap: a quantity of every layer over the sampled steps; nan where absent."""

    layers: tuple[str, ...]
    edges: NDArray[np.float64]  # of the columns, one more than there are
    values: NDArray[np.float32]
    steps: NDArray[np.int64]  # the first of each column that was sampled
    is_merged: bool  # whether a column may hold several sampled steps

    @property
    def axis(self) -> tuple[int, int]:
        """The first and the last step of the heatmap's axis."""
        return math.floor(self.edges[0]), math.ceil(self.edges[-1])

    @property
    def id(self) -> str:
        """An id of the heatmap's contents, which tells whether the browser has them."""
        digest = hashlib.blake2b(self.values.tobytes(), digest_size=12)
        digest.update(self.edges.tobytes())
        digest.update("\n".join(self.layers).encode())
        return digest.hexdigest()


def heatmap_grid(
    run: RunSnapshot, quantity: Quantity, span: tuple[int, int] | None, role: str | None = None
) -> HeatmapGrid:
    """The heatmap's data: each layer's worst value in each stretch of steps."""
    worst = run.layers.worst(columns_with(quantity), is_live=run.is_live)
    columns = quantity.columns(role)
    if span is not None and worst.width > 1:
        is_low = dict.fromkeys(columns, quantity.worst_is_low)
        worst = run.layers.worst_within(is_low, *span)
    layers, values = worst.of_columns(*columns)
    shown = ~np.isnan(values).all(axis=0)
    if span is not None:
        shown &= (worst.first >= span[0]) & (worst.first <= span[1])
    step, values = worst.first[shown], values[:, shown]
    if span is None and len(step):
        step[-1] = max(int(step[-1]), worst.last_step if worst.width > 1 else 0)
    if np.isnan(values).all():
        none = np.zeros(0, np.int64)
        return HeatmapGrid((), np.zeros(0), np.zeros((0, 0), np.float32), none, is_merged=False)
    most = max(_LEAST_COLUMNS, min(COLUMNS, _MOST_VALUES // len(layers)))
    edges, column = _heatmap_columns(step, most)
    found = np.full((len(layers), len(edges) - 1), np.nan, np.float32)
    fold = np.fmin if quantity.worst_is_low else np.fmax
    index: Any = np.s_[:, column]  # numpy's stubs know no slices here
    fold.at(found, index, values)
    firsts = np.ceil(edges[:-1]).astype(np.int64)  # where nothing was sampled
    firsts[column[::-1]] = step[::-1]
    is_merged = worst.width > 1 or len(firsts) < len(step)
    return HeatmapGrid(layers, edges, found, firsts, is_merged=is_merged)


def layer_names(run: RunSnapshot, quantity: Quantity = QUANTITIES[1]) -> tuple[str, ...]:
    """The names of all layers that were sampled, in forward order."""
    return run.layers.worst(columns_with(quantity), is_live=run.is_live).layers


def layer_curves(run: RunSnapshot, layer: str, *, casts: bool = False) -> StepCurves:
    """One layer's numbers over the sampled steps, as curves; of several ranks the worst."""
    is_low = {**_HISTORY, **(_CAST_HISTORY if casts else {})}
    kept = run.layers.numbers_of(layer, is_low, is_live=run.is_live).history
    columns = {name: column.values for name, column in kept.columns.items()}
    return StepCurves(
        0, kept.step.values, columns, np.zeros(0, np.int64), kept.present, kept.starts,
        hole=_USUAL_HOLES * run.info.layer_every, past=kept.past,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ExponentHistogram:
    """The histogram of a layer's output gradient over powers of two, at a step."""

    step: int
    counts: NDArray[np.int64]
    scale_low: float | None
    scale_high: float | None


def exponent_histogram(run: RunSnapshot, layer: str, step: int | None) -> ExponentHistogram | None:
    """A layer's last exponent histogram up to a step; of several ranks the sum."""
    columns = ("step", "layer", "exponents", "scale_low", "scale_high")
    for most in _SEARCHED_ROWS:
        rows = run.last_rows(Table.LAYERS, columns, most, step=step)
        rows = rows.filter(pc.and_(_is(rows, layer), pc.is_valid(rows.column("exponents"))))
        if rows.num_rows:
            break
    if not rows.num_rows:
        return None
    last = rows.slice(max(0, rows.num_rows - len(run.ranks))).to_pylist()
    step = last[-1]["step"]
    told = [row for row in last if row["step"] == step]
    counts = np.zeros(EXPONENT_BINS, np.int64)
    for row in told:
        counts[: len(row["exponents"])] += row["exponents"]
    lows = [row["scale_low"] for row in told if row["scale_low"] is not None]
    highs = [row["scale_high"] for row in told if row["scale_high"] is not None]
    return ExponentHistogram(step, counts, max(lows, default=None), min(highs, default=None))


def _is(rows: Any, layer: str) -> Any:
    return pc.fill_null(pc.equal(_texts(rows.column("layer")), layer), False)  # noqa: FBT003


def _texts(column: Any) -> Any:
    return pc.cast(column, "string")


def _heatmap_columns(
    step: NDArray[np.int64], most: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The edges of the heatmap's columns, and the column of each step."""
    steps = np.unique(step)
    if len(steps) > most:
        low, high = int(steps[0]), int(steps[-1]) + 1
        edges = np.linspace(low, high, most + 1)
        return edges, np.minimum(most - 1, np.searchsorted(edges, step, side="right") - 1)
    middles = (steps[1:] + steps[:-1]) / 2
    ends = (steps[0] - 0.5, steps[-1] + 0.5)
    return np.concatenate(([ends[0]], middles, [ends[1]])), np.searchsorted(steps, step)
