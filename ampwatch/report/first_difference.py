"""The first step at which two runs differ in anything that both recorded, and in which layer.

Several columns may differ at that step. They are named in causal order: inputs of the step (the
batch, the rate, the scale) before their results (loss, gradients).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ampwatch.report.facts import rows_of_first_optimizer
from ampwatch.rows import DTYPE_NUMBERS, DTYPES, Table, column

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.diagnosis import Record

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]

GIVEN = ("input_amax", "micro_batches", "autocast_dtype", "lr", "scale")  # from outside the step
RESULTS = (
    "param_norm", "loss", "grad_norm", "grad_norm_applied", "skipped", "update_norm", "scale_after",
)  # fmt: skip
FOR_ALL_LAYERS = frozenset({"micro_batches", "lr", "scale"})  # then no layer is the first
WORDS = {
    "input_amax": "batch",
    "autocast_dtype": "precision of autocast",
    "skipped": "skip",
}
_FORWARD = ("input_amax", "weight_norm", "act_amax")
_ROOT = "(root)"  # the model itself, as the probe names it
_LAYER_COLUMNS = (*_FORWARD, "grad_norm")  # unscaled all: runs may have other loss scales
# Samples may be far apart: each stretch of steps that is searched is so much longer than the last.
_STRETCH, _LONGER = 64, 8


class Readable(Protocol):
    """A run whose rows can be read in ranges of steps."""

    @property
    def ranks(self) -> tuple[int, ...]: ...  # noqa: D102

    def rows_between(
        self, table: Table, columns: Sequence[str], first: int, last: int, rank: int | None = None
    ) -> Iterator[pa.Table]:
        """The rows of some steps, in portions."""


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


def step_rows(run: Record) -> StepRows:
    """A run's columns by step, for its first optimizer."""
    names = (*GIVEN, *RESULTS)
    rows = rows_of_first_optimizer(run, ("step", *names))
    step = np.asarray(rows.column("step").fill_null(-1).to_numpy(), np.int64)
    _, from_end = np.unique(step[::-1], return_index=True)
    last = len(step) - 1 - from_end
    columns = {}
    for name in names:
        values, known = _numbers(name, rows.column(name))
        if known.any():
            columns[name] = values[last], known[last]
    return StepRows(step[last], columns)


def _numbers(name: str, values: Any) -> tuple[Floats, Mask]:
    known = np.asarray(values.is_valid().to_numpy(), np.bool_)
    if name == "autocast_dtype":
        numbers = [DTYPE_NUMBERS.get(text, -1) for text in values.to_pylist()]
        return np.asarray(numbers, np.float64), known
    if pa.types.is_boolean(values.type):
        values = values.cast("int8")
    return np.asarray(values.to_numpy(), np.float64), known


def compared_columns(one: StepRows, other: StepRows) -> tuple[str, ...]:
    """The columns that both recorded at some common step."""
    _, mine, its = np.intersect1d(one.step, other.step, return_indices=True)
    return tuple(
        name
        for name in one.columns
        if name in other.columns
        and (one.columns[name][1][mine] & other.columns[name][1][its]).any()
    )


def first_difference(one: StepRows, other: StepRows) -> FirstDifference | None:
    """Where the rows begin to differ; None if every common column is the same."""
    step, mine, its = np.intersect1d(one.step, other.step, return_indices=True)
    found = []
    for name, (values, known) in one.columns.items():
        if name not in other.columns:
            continue
        its_values, its_known = other.columns[name]
        both = known[mine] & its_known[its]
        at = np.flatnonzero(both & ~same(values[mine], its_values[its]))
        if len(at):
            place = int(at[0])
            pair = values[mine][place], its_values[its][place]
            found.append(ColumnDifference(name, int(step[place]), *_told(name, *pair)))
    if not found:
        return None
    begin = min(one.step for one in found)
    at_once = [one for one in found if one.step == begin]
    later = sorted((one for one in found if one.step > begin), key=lambda one: one.step)
    before = int(np.searchsorted(step, begin))
    return FirstDifference(begin, tuple(at_once), tuple(later), before)


def same(one: Floats, other: Floats) -> Mask:
    """Where values are bit-identical; two nan count as equal."""
    return np.asarray((one == other) | (np.isnan(one) & np.isnan(other)))


def _told(name: str, first: float, second: float) -> tuple[float | str, float | str]:
    if name != "autocast_dtype":
        return float(first), float(second)
    known = {number: text for text, number in DTYPE_NUMBERS.items()}
    assert len(known) == len(DTYPES)
    return known.get(int(first), "unknown"), known.get(int(second), "unknown")


def words_of(name: str, table: Table = Table.STEPS) -> str:
    """A column as a sentence names it."""
    return (WORDS.get(name) if table is Table.STEPS else None) or column(table, name).label or name


# --- layers --------------------------------------------------------------------------------------


def layer_difference(
    one: Readable, other: Readable, step: int, last: int
) -> LayerDifference | None:
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


@dataclass(frozen=True, slots=True)
class _Sample:
    """A layer's numbers at a step, and its place in the forward pass."""

    order: int
    values: tuple[float, ...]  # of _LAYER_COLUMNS, nan where unknown
    known: tuple[bool, ...]


def _samples(run: Readable, first: int, last: int) -> dict[int, dict[str, _Sample]]:
    """The layers' samples by step, of the lowest rank."""
    names = ("step", "layer", "order", *_LAYER_COLUMNS)
    found: dict[int, dict[str, _Sample]] = {}
    rank = min(run.ranks, default=0)
    for rows in run.rows_between(Table.LAYERS, names, first, last, rank):
        for row in rows.to_pylist():
            if row["step"] is None or not row["layer"]:
                continue
            told = [row[name] for name in _LAYER_COLUMNS]
            values = tuple(np.nan if value is None else float(value) for value in told)
            known = tuple(value is not None for value in told)
            order = row["order"] if row["order"] is not None else len(found.get(row["step"], ()))
            sample = _Sample(order, values, known)
            found.setdefault(row["step"], {})[row["layer"]] = sample
    return found


def _among(
    mine: Mapping[str, _Sample], its: Mapping[str, _Sample], step: int, *, began: bool
) -> LayerDifference | None:
    both = sorted((name for name in mine if name in its), key=lambda name: mine[name].order)
    differing = {name: columns for name in both if (columns := _unequal(mine[name], its[name]))}
    if not differing:
        return None
    leaves = {name: columns for name, columns in differing.items() if not _holds_others(name, both)}
    chosen = leaves or differing
    if began:
        layer, at = _where_it_began(chosen)
    else:
        pairs = ((name, at) for name, columns in chosen.items() for at in columns)
        layer, at = max(pairs, key=lambda one: _times(mine[one[0]], its[one[0]], one[1]))
    values = mine[layer].values[at], its[layer].values[at]
    return LayerDifference(
        step, layer, _LAYER_COLUMNS[at], *values, len(differing), len(both), began
    )


def _holds_others(name: str, names: Sequence[str]) -> bool:
    """Whether a module contains others: a difference in it is one in a module inside."""
    return name == _ROOT or any(other.startswith(f"{name}.") for other in names)


def _unequal(one: _Sample, other: _Sample) -> list[int]:
    """The places among the columns that differ."""
    alike = same(np.array(one.values), np.array(other.values))
    return [
        at
        for at in range(len(_LAYER_COLUMNS))
        if one.known[at] and other.known[at] and not alike[at]
    ]


def _where_it_began(differing: Mapping[str, list[int]]) -> tuple[str, int]:
    """The first layer that differs in the forward pass; if none does, in the backward pass."""
    for name, columns in differing.items():
        if columns[0] < len(_FORWARD):
            return name, columns[0]
    name = list(differing)[-1]
    return name, differing[name][0]


def _times(one: _Sample, other: _Sample, at: int) -> float:
    """The ratio of two values, at least 1; inf if one is not finite."""
    first, second = abs(one.values[at]), abs(other.values[at])
    if not np.isfinite(first) or not np.isfinite(second) or not min(first, second):
        return np.inf
    return max(first, second) / min(first, second)
