"""Arrow columns from lists and numpy arrays, and back, without `pyarrow.array` and `to_numpy`.

Those would import pandas if it is installed: a quarter of a second, holding the interpreter, and
40 MB in the training process.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

Values = Sequence[Any] | np.ndarray
Column: TypeAlias = "pa.Array | pa.ChunkedArray"

_WRAPS = int(np.__version__.partition(".")[0]) < 2  # a number that does not fit, silently


def column(values: Values, kind: pa.DataType) -> pa.Array:
    """An Arrow column from a list (None is null) or a numpy array, without loading pandas."""
    return _column_builder(kind)(values, kind)


def scalar(value: Any, kind: pa.DataType) -> pa.Scalar:
    """An Arrow value, without loading pandas."""
    return column([value], kind)[0]


@functools.cache
def _column_builder(kind: pa.DataType) -> Callable[[Values, pa.DataType], pa.Array]:
    if pa.types.is_list(kind):
        return _list_column
    if pa.types.is_string(kind):
        return _text_column
    return _flag_column if pa.types.is_boolean(kind) else _number_column


def _bitmap(flags: np.ndarray) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags, bitorder="little"))


def _split_nulls(values: Values, filler: Any) -> tuple[Values, pa.Buffer | None, int]:
    """A column's values with `filler` for each None, the validity bitmap and the null count."""
    if isinstance(values, np.ndarray) and values.dtype != object:
        return values, None, 0
    if not _has_none(values):
        return values, None, 0
    present = [value is not None for value in values]
    filled = [filler if value is None else value for value in values]
    return filled, _bitmap(np.array(present)), len(present) - sum(present)


def _has_none(values: Values) -> bool:
    try:
        return None in values  # twice as fast as asking each
    except ValueError:  # a list of arrays: comparing one gives no single answer
        return any(value is None for value in values)


@functools.cache
def numpy_type(kind: pa.DataType) -> np.dtype[Any]:
    """The numpy type of a fixed-width Arrow type; asking Arrow for it would load pandas."""
    names = {"float": "f4", "double": "f8", "bool": "?"}
    return np.dtype(names.get(str(kind), str(kind)))


def _number_column(values: Values, kind: pa.DataType) -> pa.Array:
    dtype = numpy_type(kind)
    try:
        data = _checked_numbers(values, dtype)
    except TypeError:  # a None among whole numbers
        return _number_column_with_nulls(values, kind)
    # numpy makes a None among floats a NaN: one sum shows whether there can be one.
    is_listed = not isinstance(values, np.ndarray)
    if is_listed and dtype.kind == "f" and np.isnan(np.add.reduce(data, axis=None)):
        return _number_column_with_nulls(values, kind)
    return pa.Array.from_buffers(kind, len(data), [None, pa.py_buffer(data)], 0)


def _number_column_with_nulls(values: Values, kind: pa.DataType) -> pa.Array:
    filled, validity, null_count = _split_nulls(values, 0)
    data = _checked_numbers(filled, numpy_type(kind))
    return pa.Array.from_buffers(kind, len(data), [validity, pa.py_buffer(data)], null_count)


def _checked_numbers(values: Values, dtype: np.dtype[Any]) -> np.ndarray:
    """A column's numbers in this numpy type; OverflowError if a whole number does not fit."""
    if not _WRAPS or dtype.kind not in "iu" or isinstance(values, np.ndarray):
        return np.ascontiguousarray(values, dtype)
    wide = np.ascontiguousarray(values, "u8" if dtype == np.uint64 else "i8")
    data = wide.astype(dtype)
    if (data != wide).any():
        raise OverflowError(f"a number is out of bounds for {dtype}")
    return data


def _flag_column(values: Values, kind: pa.DataType) -> pa.Array:
    filled, validity, null_count = _split_nulls(values, filler=False)
    bits = _bitmap(np.asarray(filled, bool))
    return pa.Array.from_buffers(kind, len(filled), [validity, bits], null_count)


def _text_column(values: Values, kind: pa.DataType) -> pa.Array:
    filled, validity, null_count = _split_nulls(values, "")
    encoded = [str(value).encode("utf-8", "replace") for value in filled]
    offsets = _offsets(list(map(len, encoded)))
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(kind, len(encoded), buffers, null_count)


def _list_column(values: Values, kind: pa.DataType) -> pa.Array:
    filled, validity, null_count = _split_nulls(values, ())
    offsets = _offsets(list(map(len, filled)))
    if isinstance(filled, np.ndarray) and filled.ndim == 2:
        flat: Values = filled.reshape(-1)
    else:
        flat = list(itertools.chain.from_iterable(filled))
    child = _number_column(flat, kind.value_type)
    buffers = [validity, pa.py_buffer(offsets)]
    return pa.Array.from_buffers(kind, len(filled), buffers, null_count, children=[child])


def _offsets(lengths: list[int]) -> np.ndarray:
    offsets = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def null_column(kind: pa.DataType, row_count: int) -> pa.Array:
    """An Arrow column that is null in every row."""
    small = row_count <= 1024  # large ones are not worth their memory
    return _kept_nulls(kind, row_count) if small else pa.nulls(row_count, kind)


@functools.lru_cache(maxsize=64)
def _kept_nulls(kind: pa.DataType, row_count: int) -> pa.Array:
    return pa.nulls(row_count, kind)


# --- back to numpy --------------------------------------------------------------------------------


def joined(column: Column) -> pa.Array:
    """An Arrow column as one contiguous array."""
    if isinstance(column, pa.Array):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.nulls(0, column.type) if not len(column) else column.combine_chunks()


def integers(column: Column, null: int = -1) -> np.ndarray:
    """An Arrow column of whole numbers as int64, nulls as `null`; do not write to it."""
    array = joined(column)
    numbers: np.ndarray = raw(array).astype(np.int64, copy=False)
    return np.where(valid(array), numbers, null) if array.null_count else numbers


def raw(array: pa.Array) -> np.ndarray:
    """The values of a fixed-width Arrow column as numpy has them; undefined where it is null."""
    kind: np.dtype[Any] = numpy_type(array.type)
    data = array.buffers()[1]
    if data is None or not len(array):
        return np.zeros(len(array), kind)
    whole = np.frombuffer(data, kind, count=array.offset + len(array))
    return whole[array.offset :]


def valid(array: pa.Array) -> np.ndarray:
    """A numpy mask of an Arrow column: True for each value that is not null."""
    bits = array.buffers()[0]
    if bits is None:
        return np.ones(len(array), dtype=bool)
    return unpacked(bits, array.offset, len(array)).astype(bool)


def unpacked(bits: pa.Buffer, offset: int, count: int) -> np.ndarray:
    """`count` bits of an Arrow buffer; a sliced column shares the buffer of the whole one."""
    first, last = offset // 8, (offset + count + 7) // 8
    part = np.frombuffer(bits, np.uint8)[first:last]
    return np.unpackbits(part, bitorder="little")[offset - 8 * first :][:count]


def masked(values: np.ndarray, there: np.ndarray, kind: pa.DataType) -> pa.Array:
    """An Arrow column from fixed-width values, null where `there` is False."""
    array = column(values, kind)
    missing = int(len(there) - np.count_nonzero(there))
    if not missing:
        return array
    bits = pa.py_buffer(np.packbits(there, bitorder="little"))
    return pa.Array.from_buffers(kind, len(there), [bits, array.buffers()[1]], missing)
