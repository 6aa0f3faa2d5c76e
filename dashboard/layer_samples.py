"""The layers' samples, as the charts of the Layers page need them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc
from course import Course
from numpy.typing import NDArray
from open_runs import Look

from ampwatch.rows import EXPONENT_BINS, Table, column

COLUMNS = 240  # of the heatmap: more would not be visible on a screen
MOST_LAYERS = 400
_USUAL_HOLES = 1.5  # sampling intervals between two samples of a layer
HISTORY = ("grad_norm", "act_amax", "log2_headroom", "underflow_share", "update_ratio")
_DTYPES = ("input_dtype", "param_dtype", "output_dtype", "out_grad_dtype", "autocast", "kind")


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


@dataclass(frozen=True, slots=True)
class Grid:
    """A quantity of every layer, in forward order, over the sampled steps; nan where absent."""

    layers: tuple[str, ...]
    edges: NDArray[np.float64]  # of the columns, one more than there are
    values: NDArray[np.float32]


def grid(look: Look, quantity: Quantity, span: tuple[int, int] | None) -> Grid:
    """The worst value of each layer in each stretch of steps."""
    rows = look.read(Table.LAYERS, ("step", "layer", "order", quantity.column))
    if span is not None:
        steps = rows.column("step").to_numpy()
        first, last = np.searchsorted(steps, span[0]), np.searchsorted(steps, span[1], side="right")
        rows = rows.slice(int(first), int(last - first))
    rows = rows.filter(pc.is_valid(rows.column(quantity.column)))
    if not rows.num_rows:
        return Grid((), np.zeros(0), np.zeros((0, 0), np.float32))
    layers, at = _in_forward_order(rows)
    edges, places = _stretches(rows.column("step").to_numpy())
    values = np.asarray(rows.column(quantity.column).to_numpy(), np.float32)
    bad = np.float32(-np.inf if quantity.worst_is_low else np.inf)
    values = np.where(np.isfinite(values), values, bad)
    worst = np.fmin if quantity.worst_is_low else np.fmax
    found = np.full((len(layers), len(edges) - 1), np.nan, np.float32)
    worst.at(found, (at, places), values)
    return Grid(layers[:MOST_LAYERS], edges, found[:MOST_LAYERS])


def layer_names(look: Look) -> tuple[str, ...]:
    """All layers that were sampled, in forward order."""
    rows = look.read(Table.LAYERS, ("layer", "order"))
    return _in_forward_order(rows)[0] if rows.num_rows else ()


def history(look: Look, layer: str) -> Course:
    """One layer's numbers over the sampled steps."""
    rows = look.read(Table.LAYERS, ("step", "layer", *HISTORY))
    rows = rows.filter(_is(rows, layer))
    step = np.asarray(rows.column("step").to_numpy(), np.int64)
    columns = {name: _finite(rows.column(name)) for name in HISTORY}
    if len(look.ranks) > 1 and look.rank is None:
        step, columns = _worst_of_ranks(step, columns)
    present = frozenset(name for name, values in columns.items() if np.isfinite(values).any())
    starts = tuple(int(at) + 1 for at in np.flatnonzero(np.diff(step) < 0))
    return Course(
        0, step, columns, np.zeros(0, np.int64), present, starts,
        hole=_USUAL_HOLES * look.info.layer_every,
    )  # fmt: skip


def _worst_of_ranks(
    step: NDArray[np.int64], columns: dict[str, NDArray[np.float32]]
) -> tuple[NDArray[np.int64], dict[str, NDArray[np.float32]]]:
    """One row a step: of the ranks' values, the worst."""
    if not len(step):
        return step, columns
    starts = np.flatnonzero(np.diff(step, prepend=step[0] - 1))
    low = {quantity.column for quantity in QUANTITIES if quantity.worst_is_low}
    return step[starts], {
        name: (np.fmin if name in low else np.fmax).reduceat(values, starts)
        for name, values in columns.items()
    }


@dataclass(frozen=True, slots=True)
class Exponents:
    """How the values of a layer's output gradient are spread over powers of two, at a step."""

    step: int
    counts: NDArray[np.int64]
    scale_low: float | None
    scale_high: float | None


def exponents(look: Look, layer: str, step: int | None) -> Exponents | None:
    """The last histogram of a layer at a step, or at all; of several ranks their sum."""
    rows = look.read(Table.LAYERS, ("step", "layer", "exponents", "scale_low", "scale_high"))
    rows = rows.filter(pc.and_(_is(rows, layer), pc.is_valid(rows.column("exponents"))))
    if step is not None:
        rows = rows.filter(pc.less_equal(rows.column("step"), step))
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


@dataclass(slots=True)
class Branch:
    """A layer with what is inside it."""

    name: str
    facts: dict[str, Any]
    inside: dict[str, Branch]


def tree(look: Look) -> Branch:
    """The layers as the model nests them, with the data types last seen."""
    rows = look.read(Table.LAYERS, ("layer", "order", *_DTYPES))
    root = Branch("", {}, {})
    latest: dict[str, dict[str, Any]] = {}
    for row in _tail_of(rows).to_pylist():
        latest[row["layer"] or ""] = row
    for layer in layer_names(look):
        if layer == "(root)":
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


_TAIL_ROWS = 20_000


def _tail_of(rows: Any) -> Any:
    return rows.slice(max(0, rows.num_rows - _TAIL_ROWS))


def _is(rows: Any, layer: str) -> Any:
    return pc.fill_null(pc.equal(_texts(rows.column("layer")), layer), False)  # noqa: FBT003


def _texts(column: Any) -> Any:
    return pc.cast(column, "string")


def _finite(column: Any) -> NDArray[np.float32]:
    values = np.array(column.to_numpy(), np.float32)
    values[~np.isfinite(values)] = np.nan
    return values


def _in_forward_order(rows: Any) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """The layers by their place in the forward pass, and for each row which it is."""
    coded = pc.dictionary_encode(_texts(rows.column("layer"))).combine_chunks()
    names = coded.dictionary.to_pylist()
    codes = np.asarray(coded.indices.to_numpy(zero_copy_only=False), np.int64)
    order = np.full(len(names), np.iinfo(np.int64).max)
    places = np.asarray(
        pc.fill_null(rows.column("order"), np.iinfo(np.int32).max).to_numpy(), np.int64
    )
    np.minimum.at(order, codes, places)
    ranked = np.lexsort((np.arange(len(names)), order))
    position = np.empty(len(names), np.int64)
    position[ranked] = np.arange(len(names))
    return tuple(names[at] for at in ranked), position[codes]


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
