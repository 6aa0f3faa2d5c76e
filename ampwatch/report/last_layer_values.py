"""Each layer's last known values, at a step or at the end of a run.

An element of a list column is requested by its index: `input_what_if.2`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ampwatch.codec import column
from ampwatch.diagnosis.column_arrays import Integers, integers, known, numbers, texts
from ampwatch.rows import Table

FORMAT_FACTS = ("input_format", "weight_format", "grad_format")
# Before the step: each layer's last sample is among the first so many rows as a rule; thousands of
# layers with a row at each step need more.
_ROWS_READ = (20_000, 400_000)
_WORST_IS_LOW = frozenset(("scale_high", "log2_headroom"))
# Each row has these: they tell of no sample.
_FACTS = frozenset(("rank", "order", "input_dtype", "output_dtype", "rows", *FORMAT_FACTS))


class Readable(Protocol):
    """What has tables: a run, or the dashboard's view of one."""

    def last_rows(
        self, table: Table, columns: Sequence[str], most: int, *, step: int | None = None
    ) -> pa.Table:
        """The last rows up to a step, or of all, at most a given number."""


def last_known(
    run: Readable, columns: Sequence[str], step: int | None
) -> dict[str, dict[str, Any]]:
    """For each layer the last known value of each column, at a step or at the end.

    If several ranks have a value at the same step, the worst: one scale has to suit all ranks.
    """
    return last_of_layers(sampled_rows(run, columns, step), columns)


def last_of_layers(rows: pa.Table, columns: Sequence[str]) -> dict[str, dict[str, Any]]:
    """For each layer the last known value of each column among these rows."""
    names, layer = texts(rows, "layer")
    steps = integers(rows, "step")
    facts: dict[str, dict[str, Any]] = {name: {} for name in names}
    for wanted in columns:
        values = pa.table({wanted: values_of(rows, wanted)})
        for at, value in _last_of(values, wanted, layer, steps):
            facts[names[at]][wanted] = value
    return facts


def stored(columns: Iterable[str]) -> tuple[str, ...]:
    """The stored columns that contain these values of layers, each once."""
    return tuple(dict.fromkeys(name.partition(".")[0] for name in columns))


def values_of(rows: pa.Table, name: str) -> pa.ChunkedArray:
    """A column of layers' values, or one element of its lists; null if a list is shorter."""
    source, _, place = name.partition(".")
    values = rows.column(source)
    if not place:
        return values
    first = int(place)
    filled = pc.list_slice(values, first, first + 1, return_fixed_size_list=True)
    return pc.list_element(filled, 0)


def columns_with_values(
    run: Readable, columns: Iterable[str], *, quick: bool = False
) -> frozenset[str]:
    """Those of the columns in which layers have a value, among the last rows."""
    wanted = tuple(columns)
    few, many = _ROWS_READ
    read = run.last_rows(Table.LAYERS, stored(wanted), few if quick else many)
    there = {name for name in stored(wanted) if read.column(name).null_count < read.num_rows}
    return frozenset(name for name in wanted if stored((name,))[0] in there)


def _last_of(
    values: pa.Table, name: str, layer: Integers, steps: Integers
) -> Iterator[tuple[int, Any]]:
    """The last value of each layer that has one; the worst if a step has several."""
    there = np.flatnonzero(known(values, name) & (layer >= 0))
    if not len(there):
        return iter(())
    last = np.full(layer.max() + 1, -1)
    last[layer[there]] = there
    told = np.flatnonzero(last >= 0)
    if not pa.types.is_floating(values.schema.field(name).type):
        newest = values.column(name).take(column(last[told], pa.int64()))
        return zip(told.tolist(), newest.to_pylist(), strict=True)
    newest = there[steps[there] == steps[last][layer[there]]]
    worst = np.minimum if name in _WORST_IS_LOW else np.maximum
    found = np.full(len(last), np.inf if name in _WORST_IS_LOW else -np.inf)
    with np.errstate(invalid="ignore"):  # a signalling NaN is as bad as another
        worst.at(found, layer[newest], numbers(values, name)[newest])
    return zip(told.tolist(), found[told].tolist(), strict=True)


def sampled_rows(run: Readable, columns: Sequence[str], step: int | None) -> pa.Table:
    """The last rows with a number in any of the columns; if there are none, the last rows."""
    numbers = [name for name in stored(columns) if name not in _FACTS]
    for most in _ROWS_READ:
        wanted = ("step", "layer", *stored(columns))
        read = run.last_rows(Table.LAYERS, wanted, most, step=step)
        tells = reduce(pc.or_, (pc.is_valid(read.column(name)) for name in numbers))
        rows = read.filter(tells)
        if rows.num_rows or read.num_rows < most:
            break
    return rows if rows.num_rows else read
