"""The columns of Arrow rows as numpy arrays.

Numbers are float64 with nan where absent; where a value may itself be nan, a mask says so. Flags
are int8: 1 yes, 0 no, -1 absent. Beside them: medians of short arrays, ten times as fast as
numpy's (a look at a run takes dozens).
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ampwatch.codec.columns import Column, joined, raw, unpacked, valid

Floats: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.int8]
Mask: TypeAlias = npt.NDArray[np.bool_]
ArrowRows: TypeAlias = "pa.Table | pa.RecordBatch"


def unchunked(rows: pa.Table) -> pa.RecordBatch:
    """The same rows, each column as one Arrow array: chunked columns are slow to read."""
    batches = rows.to_batches()
    if len(batches) == 1:
        return batches[0]
    arrays = [joined(column) for column in rows.unify_dictionaries().columns]
    return pa.RecordBatch.from_arrays(arrays, schema=rows.schema)


def numbers(rows: ArrowRows, name: str) -> Floats:
    """A column of rows as a float64 array, nan where absent."""
    return _values(rows, name, np.float64(np.nan))


def steps_of(rows: ArrowRows, name: str = "step", begin: int = 0) -> Integers:
    """The steps (or times) of rows as an int64 array; an absent one repeats the row before it."""
    column = _column(rows, name)
    if column is None or begin == rows.num_rows:
        return np.zeros(rows.num_rows - begin, np.int64)
    array = joined(column.slice(begin))
    values = _plain(array).astype(np.int64, copy=False)
    if not array.null_count:
        return values
    there = valid(array)
    latest = np.maximum.accumulate(np.where(there, np.arange(len(values)), 0))
    return np.asarray(np.where(there[latest], values[latest], 0))


def integers(rows: ArrowRows, name: str, absent: int = -1) -> Integers:
    """A column of rows as an int64 array, with `absent` where the value is absent."""
    return _values(rows, name, np.int64(absent))


def known(rows: ArrowRows, name: str) -> Mask:
    """The mask of the rows in which a column has a value."""
    array = _array(rows, name)
    return np.zeros(rows.num_rows, np.bool_) if array is None else valid(array)


def flags(rows: ArrowRows, name: str) -> Flags:
    """A boolean column of rows as an int8 array: 1 yes, 0 no, -1 absent."""
    return _values(rows, name, np.int8(-1))


def texts(rows: ArrowRows, name: str) -> tuple[tuple[str, ...], Integers]:
    """A column of texts as the different texts and an array of codes into them, -1 where absent."""
    column = _column(rows, name)
    if column is None or not rows.num_rows:
        return (), np.full(rows.num_rows, -1, np.int64)
    if not pa.types.is_dictionary(column.type):
        column = pc.dictionary_encode(column)
    array = joined(column if isinstance(column, pa.Array) else column.unify_dictionaries())
    return tuple(array.dictionary.to_pylist()), _filled(array.indices, np.int64(-1))


def _column(rows: ArrowRows, name: str) -> Column | None:
    """A column of these rows; None if they lack it or it is absent in every row."""
    at = rows.schema.get_field_index(name)
    column = rows.column(at) if at >= 0 else None
    return None if column is None or pa.types.is_null(column.type) else column


def _array(rows: ArrowRows, name: str) -> pa.Array | None:
    column = _column(rows, name)
    return None if column is None else joined(column)


def _plain(array: pa.Array) -> npt.NDArray[Any]:
    """An Arrow array of numbers or booleans as a read-only numpy array; undefined where absent."""
    kind = array.type
    if pa.types.is_boolean(kind):
        bits = array.buffers()[1]
        if bits is None:
            return np.zeros(len(array), np.uint8)
        return unpacked(bits, array.offset, len(array))
    if pa.types.is_integer(kind) or pa.types.is_float32(kind) or pa.types.is_float64(kind):
        return raw(array)
    return raw(pc.cast(array, pa.float64(), safe=False))


def _values(rows: ArrowRows, name: str, absent: np.generic) -> npt.NDArray[Any]:
    """A column as an array of the type of `absent`, filled with that value where it is absent."""
    array = _array(rows, name)
    if array is None or array.null_count == len(array):  # most columns of most logs
        return np.full(rows.num_rows, absent)
    return _filled(array, absent)


def _filled(array: pa.Array, absent: np.generic) -> npt.NDArray[Any]:
    values = _plain(array).astype(absent.dtype, copy=False)
    return np.where(valid(array), values, absent) if array.null_count else values


_FEW = 512  # up to here sorting all is the fastest


def median(values: Floats) -> float:
    """The median of these numbers, the same as `np.median`; nan if there are none."""
    count = len(values)
    if not count:
        return float("nan")
    low, high = (count - 1) // 2, count // 2
    # nan comes last, and is then the answer.
    ordered = np.sort(values) if count <= _FEW else np.partition(values, (low, high, -1))
    if ordered[-1] != ordered[-1]:
        return float("nan")
    return float(ordered[low] if low == high else (ordered[low] + ordered[high]) / 2)


def known_of(values: Floats) -> Floats:
    """The finite numbers among these, of which a median can be taken."""
    return values[np.isfinite(values)]


def median_of_known(values: Floats, least: int = 1) -> float:
    """The median of the finite numbers among these; nan if they are fewer than `least`."""
    finite = known_of(values)
    return median(finite) if len(finite) >= least else float("nan")
