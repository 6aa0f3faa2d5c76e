"""The layers' samples, as the charts of the Layers page need them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray
from open_runs import Look
from step_curves import StepCurves

from ampwatch.rows import EXPONENT_BINS, Table, column

COLUMNS = 240  # of the heatmap: more would not be visible on a screen
MOST_LAYERS = 400
_TAIL_ROWS = 20_000  # tell every layer's data types
_SEARCHED_ROWS = (1 << 12, 1 << 17)  # for a layer's last histogram: soon found, as a rule
_USUAL_HOLES = 1.5  # sampling intervals between two samples of a layer
HISTORY = ("grad_norm", "act_amax", "log2_headroom", "underflow_share", "update_ratio")
ROOT = "(root)"
_DTYPES = ("input_dtype", "param_dtype", "output_dtype", "out_grad_dtype", "autocast", "kind",
           "input_format", "weight_format", "grad_format")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Quantity:
    """What a heatmap can show of the layers."""

    column: str
    aside: str = ""  # said after the label
    is_log: bool = False
    worst_is_low: bool = False

    @property
    def label(self) -> str:
        """Its name."""
        return column(Table.LAYERS, self.column).label


QUANTITIES = (
    Quantity("grad_norm", is_log=True),
    Quantity("log2_headroom", "octaves below fp16's maximum", worst_is_low=True),
    Quantity("underflow_share", "share of the gradient's values"),
    Quantity("act_amax", is_log=True),
    Quantity("update_ratio", "update / weights", is_log=True),
    Quantity("moment_ratio", "gradient / root of Adam's v", is_log=True),
)


_IS_LOW = {quantity.column: quantity.worst_is_low for quantity in QUANTITIES}


@dataclass(frozen=True, slots=True)
class Grid:
    """A quantity of every layer, in forward order, over the sampled steps; nan where absent."""

    layers: tuple[str, ...]
    edges: NDArray[np.float64]  # of the columns, one more than there are
    values: NDArray[np.float32]


def grid(look: Look, quantity: Quantity, span: tuple[int, int] | None) -> Grid:
    """The worst value of each layer in each stretch of steps."""
    worst = look.layers.worst(_IS_LOW, is_live=look.is_live)
    if span is not None and worst.width > 1:
        is_low = {quantity.column: quantity.worst_is_low}
        worst = look.layers.worst_within(is_low, *span)
    layers, values = worst.of(quantity.column)
    shown = ~np.isnan(values).all(axis=0)
    if span is not None:
        shown &= (worst.first >= span[0]) & (worst.first <= span[1])
    step, values = worst.first[shown], values[:, shown]
    if span is None and len(step):
        step[-1] = max(int(step[-1]), worst.last_step if worst.width > 1 else 0)
    there = ~np.isnan(values).all(axis=1)
    if not there.any():
        return Grid((), np.zeros(0), np.zeros((0, 0), np.float32))
    layers, values = tuple(np.array(layers, object)[there].tolist()), values[there]
    edges, column = _stretches(step)
    found = np.full((len(layers), len(edges) - 1), np.nan, np.float32)
    fold = np.fmin if quantity.worst_is_low else np.fmax
    index: Any = np.s_[:, column]  # numpy's stubs know no slices here
    fold.at(found, index, values)
    return Grid(layers[:MOST_LAYERS], edges, found[:MOST_LAYERS])


def layer_names(look: Look) -> tuple[str, ...]:
    """All layers that were sampled, in forward order."""
    return look.layers.worst(_IS_LOW, is_live=look.is_live).layers


def history(look: Look, layer: str) -> StepCurves:
    """One layer's numbers over the sampled steps; where several ranks tell them, the worst."""
    is_low = {name: _IS_LOW[name] for name in HISTORY}
    kept = look.layers.line(layer, is_low, is_live=look.is_live).history
    columns = {name: column.values for name, column in kept.columns.items()}
    return StepCurves(
        0, kept.step.values, columns, np.zeros(0, np.int64), kept.present, kept.starts,
        hole=_USUAL_HOLES * look.info.layer_every, past=kept.past,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Exponents:
    """How the values of a layer's output gradient are spread over powers of two, at a step."""

    step: int
    counts: NDArray[np.int64]
    scale_low: float | None
    scale_high: float | None


def exponents(look: Look, layer: str, step: int | None) -> Exponents | None:
    """The last histogram of a layer at a step, or at all; of several ranks their sum."""
    columns = ("step", "layer", "exponents", "scale_low", "scale_high")
    for most in _SEARCHED_ROWS:
        rows = look.last_rows(Table.LAYERS, columns, most, step=step)
        rows = rows.filter(pc.and_(_is(rows, layer), pc.is_valid(rows.column("exponents"))))
        if rows.num_rows:
            break
    if not rows.num_rows:
        return None
    last = rows.slice(max(0, rows.num_rows - len(look.ranks))).to_pylist()
    step = last[-1]["step"]
    told = [row for row in last if row["step"] == step]
    counts = np.zeros(EXPONENT_BINS, np.int64)
    for row in told:
        counts[: len(row["exponents"])] += row["exponents"]
    lows = [row["scale_low"] for row in told if row["scale_low"] is not None]
    highs = [row["scale_high"] for row in told if row["scale_high"] is not None]
    return Exponents(step, counts, max(lows, default=None), min(highs, default=None))


def is_within(name: str, layer: str) -> bool:
    """Whether a name is the layer's or that of what is inside it; the root holds all."""
    return layer in {name, ROOT} or name.startswith(f"{layer}.")


@dataclass(slots=True)
class Branch:
    """A layer with what is inside it."""

    name: str
    facts: dict[str, Any]
    inside: dict[str, Branch]


def tree(look: Look) -> Branch:
    """The layers as the model nests them, with the data types last seen."""
    rows = look.last_rows(Table.LAYERS, ("layer", "order", *_DTYPES), _TAIL_ROWS)
    root = Branch("", {}, {})
    latest: dict[str, dict[str, Any]] = {}
    for row in rows.to_pylist():
        latest[row["layer"] or ""] = row
    for layer in layer_names(look):
        if layer == ROOT:
            root.facts = latest.get(layer, {})
            continue
        branch = root
        for part in layer.split("."):
            branch = branch.inside.setdefault(part, Branch(part, {}, {}))
        branch.facts = latest.get(layer, {})
    return root


def leaves(branch: Branch) -> Iterator[Branch]:
    """A branch and all inside it that have facts of their own."""
    if branch.facts:
        yield branch
    for one in branch.inside.values():
        yield from leaves(one)


def _is(rows: Any, layer: str) -> Any:
    return pc.fill_null(pc.equal(_texts(rows.column("layer")), layer), False)  # noqa: FBT003


def _texts(column: Any) -> Any:
    return pc.cast(column, "string")


def _stretches(step: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The columns' edges, and each row's column: one column a sampled step while there is room."""
    steps = np.unique(step)
    if len(steps) > COLUMNS:
        low, high = int(steps[0]), int(steps[-1]) + 1
        edges = np.linspace(low, high, COLUMNS + 1)
        return edges, np.minimum(COLUMNS - 1, np.searchsorted(edges, step, side="right") - 1)
    middles = (steps[1:] + steps[:-1]) / 2
    ends = (steps[0] - 0.5, steps[-1] + 0.5)
    return np.concatenate(([ends[0]], middles, [ends[1]])), np.searchsorted(steps, step)
