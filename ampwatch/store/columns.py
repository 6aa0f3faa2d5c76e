"""Arrow columns as numpy arrays and back, without `to_numpy`, which would load pandas."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from ampwatch.codec import REQUIRED, column, numpy_type
from ampwatch.errors import CodecError
from ampwatch.rows import Table

Column: TypeAlias = "pa.Array | pa.ChunkedArray"

# A layer's number indexes tables that a reader allocates; no model has a hundredth of these.
MAX_LAYER = 1 << 20


def joined(column: Column) -> pa.Array:
    """One contiguous array of a column."""
    if isinstance(column, pa.Array):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.nulls(0, column.type) if not len(column) else column.combine_chunks()


def integers(column: Column, null: int = -1) -> np.ndarray:
    """A column of whole numbers as int64, nulls as `null`; do not write to it."""
    array = joined(column)
    numbers: np.ndarray = raw(array).astype(np.int64, copy=False)
    return np.where(valid(array), numbers, null) if array.null_count else numbers


def raw(array: pa.Array) -> np.ndarray:
    """A fixed-width array's values; undefined where it is null."""
    kind: np.dtype[Any] = numpy_type(array.type)
    data = array.buffers()[1]
    if data is None or not len(array):
        return np.zeros(len(array), kind)
    whole = np.frombuffer(data, kind, count=array.offset + len(array))
    return whole[array.offset :]


def valid(array: pa.Array) -> np.ndarray:
    """True for each value that is not null."""
    bits = array.buffers()[0]
    if bits is None:
        return np.ones(len(array), dtype=bool)
    return unpacked(bits, array.offset, len(array)).astype(bool)


def unpacked(bits: pa.Buffer, offset: int, count: int) -> np.ndarray:
    """`count` bits of a buffer; a sliced column shares the buffer of the whole one."""
    first, last = offset // 8, (offset + count + 7) // 8
    part = np.frombuffer(bits, np.uint8)[first:last]
    return np.unpackbits(part, bitorder="little")[offset - 8 * first :][:count]


def masked(values: np.ndarray, there: np.ndarray, kind: pa.DataType) -> pa.Array:
    """A fixed-width Arrow array, null where `there` is False."""
    array = column(values, kind)
    missing = int(len(there) - np.count_nonzero(there))
    if not missing:
        return array
    bits = pa.py_buffer(np.packbits(there, bitorder="little"))
    return pa.Array.from_buffers(kind, len(there), [bits, array.buffers()[1]], missing)


def refuse_unplaced(table: Table, rows: pa.Table) -> None:
    """Raise CodecError for rows without their key columns; a foreign log's may lack the time."""
    for name in REQUIRED[table]:
        if name != "time_ns" and name in rows.column_names and rows.column(name).null_count:
            raise CodecError(f"There are rows of {table.value} without {name}.")
    if "layer" in rows.column_names and integers(rows.column("layer")).max(initial=0) > MAX_LAYER:
        raise CodecError(f"There are rows of {table.value} of a layer beyond {MAX_LAYER}.")
