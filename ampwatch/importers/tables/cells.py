"""The cells of a table's column as numbers, however they are stored.

An empty cell and one that is not a number are absent; `nan` and `inf` are numbers. Arrow reads
almost all cells of a column; `as_number` reads each of the others.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ampwatch.codec import column
from ampwatch.codec.columns import integers

_FLAGS = {"true": 1.0, "yes": 1.0, "false": 0.0, "no": 0.0}
_GROUPED = re.compile(r"[-+]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?")  # 65,536
_NAMED_NAN = re.compile(r"[-+]?nan\(\w*\)")  # -nan(ind), as C prints it on Windows
# What Arrow and Python read alike.
_PLAIN = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"


@dataclass(frozen=True, slots=True)
class Cells:
    """Some cells of one table column: their numbers, and which of them are present."""

    values: npt.NDArray[np.float64]
    present: npt.NDArray[np.bool_]

    @classmethod
    def absent(cls, count: int) -> Cells:
        """Cells that are all absent."""
        return cls(np.full(count, np.nan), np.zeros(count, np.bool_))

    def at(self, rows: npt.NDArray[Any] | slice) -> Cells:
        """The cells of these rows of the column, in this order."""
        return Cells(self.values[rows], self.present[rows])

    def where(self, kept: npt.NDArray[np.bool_]) -> Cells:
        """The same cells, absent where `kept` is false."""
        return Cells(self.values, self.present & kept)


def as_number(value: Any) -> float | None:
    """A table cell as a number; None if it is empty or not a number."""
    if isinstance(value, (int, float)):
        try:
            return float(value)
        except OverflowError:
            return math.inf
    if not isinstance(value, str) or not value.strip():
        return None
    text = value.strip().lower()
    if text in _FLAGS:
        return _FLAGS[text]
    share = 0.01 if text.endswith("%") else 1.0
    text = text.removesuffix("%").rstrip()
    if _NAMED_NAN.fullmatch(text):
        return math.nan
    if _GROUPED.fullmatch(text):
        text = text.replace(",", "")
    try:
        return share * float(text)
    except ValueError:
        return None


def of_values(values: Sequence[Any]) -> Cells:
    """Cells made of a list of Python values."""
    numbers = list(map(as_number, values))
    present = np.array([value is not None for value in numbers], np.bool_)
    return Cells(np.array([np.nan if value is None else value for value in numbers]), present)


def of_arrow(column: pa.Array | pa.ChunkedArray) -> Cells:
    """Cells made of an Arrow column of any type; absent if they are not numbers."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _of_texts(column)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return _of_numbers(pc.cast(column, pa.float64(), safe=False))
    if pa.types.is_boolean(kind):
        return _of_numbers(pc.cast(pc.cast(column, pa.uint8()), pa.float64()))
    return Cells.absent(len(column))


def _of_numbers(numbers: pa.DoubleArray) -> Cells:
    present = np.ones(len(numbers), np.bool_)
    if numbers.null_count:
        present = pc.is_valid(numbers).to_numpy(zero_copy_only=False)
        numbers = pc.fill_null(numbers, math.nan)
    return Cells(numbers.to_numpy(zero_copy_only=False).copy(), present)


def _of_texts(texts: pa.StringArray) -> Cells:
    if pc.any(pc.equal(texts, "")).as_py():
        texts = pc.if_else(pc.equal(texts, ""), pa.scalar(None, texts.type), texts)
    try:  # almost always all are plain
        return _of_numbers(pc.cast(texts, pa.float64()))
    except pa.ArrowInvalid:
        pass
    plain = pc.fill_null(pc.match_substring_regex(texts, _PLAIN), True)  # noqa: FBT003
    cells = _of_numbers(pc.cast(pc.if_else(plain, texts, None), pa.float64()))
    odd = np.flatnonzero(~plain.to_numpy(zero_copy_only=False))
    encoded = texts.take(column(odd, pa.int64())).dictionary_encode()
    meant = of_values(encoded.dictionary.to_pylist())
    where = integers(encoded.indices)
    cells.values[odd], cells.present[odd] = meant.values[where], meant.present[where]
    return cells


def joined(cells: Sequence[Cells]) -> Cells:
    """The cells of one column, of several blocks, concatenated."""
    values = np.concatenate([one.values for one in cells])
    return Cells(values, np.concatenate([one.present for one in cells]))


@dataclass(frozen=True, slots=True)
class Block:
    """Some rows of a table, as cells by the table's own column names."""

    count: int
    columns: Mapping[str, Cells | pa.Array]

    def cells(self, name: str) -> Cells:
        """The cells of one column; absent if these rows do not have the column."""
        column = self.columns.get(name)
        if column is None:
            return Cells.absent(self.count)
        return column if isinstance(column, Cells) else of_arrow(column)
