"""What the diagnosis reads of a run, and how its columns become numpy arrays.

Numbers are float64 with nan where absent; where a value may itself be nan, a mask says so. Flags
are int8: 1 yes, 0 no, -1 absent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ampwatch.rows import Table

Floats: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.int8]
Mask: TypeAlias = npt.NDArray[np.bool_]


class Info(Protocol):
    """What of a run's identity the diagnosis reads."""

    @property
    def id(self) -> str: ...  # noqa: D102
    @property
    def source(self) -> str: ...  # noqa: D102
    @property
    def started_ns(self) -> int: ...  # noqa: D102
    @property
    def scaler(self) -> Mapping[str, Any]: ...  # noqa: D102


class Record(Protocol):
    """What the diagnosis reads of a run; `store.Run` is one."""

    @property
    def info(self) -> Info: ...  # noqa: D102
    @property
    def ranks(self) -> tuple[int, ...]: ...  # noqa: D102
    @property
    def notes(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def clean_end(self) -> bool: ...  # noqa: D102
    @property
    def last_time_ns(self) -> int | None: ...  # noqa: D102

    def read(
        self, table: Table, columns: Sequence[str] | None = None, rank: int | None = None
    ) -> pa.Table:
        """A table's rows in canonical order: only these columns, only this rank's."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event, its detail read."""

    step: int
    rank: int
    kind: str
    detail: Mapping[str, Any]

    @property
    def exception(self) -> str:
        """The type of the exception that an `exception` event tells of."""
        return str(self.detail.get("exception") or self.detail.get("type") or "an exception")

    @property
    def layer(self) -> str | None:
        """The layer that the event names, if it names one."""
        layer = self.detail.get("layer")
        return str(layer) if layer else None


def detail_of(text: str | None) -> Mapping[str, Any]:
    """An event's detail; what is no JSON object is kept under its only name."""
    if not text:
        return {}
    try:
        detail = json.loads(text)
    except (ValueError, RecursionError):
        return {"text": text}
    return detail if isinstance(detail, dict) else {"text": detail}


def positive(value: Any) -> float | None:
    """A number above zero, or none: what run.json says may be anything."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if value > 0 else None


def numbers(rows: pa.Table, name: str) -> Floats:
    """A column as float64, nan where absent."""
    column = _column(rows, name)
    if pa.types.is_null(column.type):
        return np.full(rows.num_rows, np.nan)
    return np.array(pc.cast(column, pa.float64(), safe=False).to_numpy(), dtype=np.float64)


def steps_of(rows: pa.Table) -> Integers:
    """The steps; a row without one takes that of the row before it."""
    column = _column(rows, "step")
    filled = pc.fill_null(pc.fill_null_forward(pc.cast(column, pa.int64())), 0)
    return np.asarray(filled.to_numpy(), dtype=np.int64)


def integers(rows: pa.Table, name: str, absent: int = -1) -> Integers:
    """A column as int64, with a number for what is absent."""
    column = pc.fill_null(pc.cast(_column(rows, name), pa.int64()), absent)
    return np.asarray(column.to_numpy(), dtype=np.int64)


def known(rows: pa.Table, name: str) -> Mask:
    """Where a column is not absent."""
    return np.asarray(_column(rows, name).is_valid().to_numpy(), dtype=np.bool_)


def flags(rows: pa.Table, name: str) -> Flags:
    """A column of truths as 1, 0, and -1 where absent."""
    column = _column(rows, name)
    if pa.types.is_null(column.type):
        return np.full(rows.num_rows, -1, np.int8)
    filled = pc.fill_null(pc.cast(column, pa.int8()), -1)
    return np.asarray(filled.to_numpy(), dtype=np.int8)


def texts(rows: pa.Table, name: str) -> tuple[tuple[str, ...], Integers]:
    """The different texts of a column, and for each row which of them, -1 where absent."""
    column = _column(rows, name)
    if pa.types.is_null(column.type):
        return (), np.full(rows.num_rows, -1, np.int64)
    if not pa.types.is_dictionary(column.type):
        column = pc.dictionary_encode(column)
    joined = column.unify_dictionaries().combine_chunks()
    if isinstance(joined, pa.ChunkedArray):
        joined = joined.chunk(0) if joined.num_chunks else pa.array([], column.type)
    codes = pc.fill_null(pc.cast(joined.indices, pa.int64()), -1)
    return tuple(joined.dictionary.to_pylist()), np.asarray(codes.to_numpy(), dtype=np.int64)


def _column(rows: pa.Table, name: str) -> pa.ChunkedArray:
    at = rows.schema.get_field_index(name)
    return rows.column(at) if at >= 0 else pa.chunked_array([pa.nulls(rows.num_rows)])
