"""The user's scalars, logged as long rows (step, name, value), as columns beside the steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ampwatch.rows import Table
from ampwatch.store.columns import integers, joined, masked, raw, valid
from ampwatch.store.public import PUBLIC_NAMES
from ampwatch.store.views import ATTEMPT, RANK, step_keys

CLASH_SUFFIX = "_logged"


def column_names(rows: pa.Table) -> dict[str, str]:
    """Public column name -> the user's name, in order of first sight; a clash gets a suffix."""
    taken = set(PUBLIC_NAMES[Table.STEPS])
    names: dict[str, str] = {}
    for name in joined(rows.column("name")).unique().to_pylist():
        public = name
        while public in taken:
            public += CLASH_SUFFIX
        taken.add(public)
        names[public] = name
    return names


def join(steps: pa.Table, extras: pa.Table, names: Sequence[str]) -> list[pa.Array]:
    """For each user's name a column with a value for each row of `steps`, else null."""
    step_keys, extra_keys = _keys(steps), _keys(extras)
    texts = joined(extras.column("name")).dictionary_encode()
    codes, known = raw(texts.indices), texts.dictionary.to_pylist()
    values = joined(extras.column("value"))
    numbers, there = raw(values), valid(values)
    columns = []
    for name in names:
        mine = (codes == known.index(name)) & there
        columns.append(_placed(step_keys, extra_keys[mine], numbers[mine]))
    return columns


def _placed(step_keys: np.ndarray, keys: np.ndarray, numbers: np.ndarray) -> pa.Array:
    """The last number of each step's key; keys of both are in order."""
    if not len(keys):
        return pa.nulls(len(step_keys), pa.float64())
    found = np.searchsorted(keys, step_keys, side="right") - 1
    there = (found >= 0) & (keys[found] == step_keys)
    return masked(numbers[found], there, pa.float64())


def _keys(rows: pa.Table) -> np.ndarray:
    names = (ATTEMPT, "step", RANK)
    return step_keys(*(integers(rows.column(name)) for name in names))
