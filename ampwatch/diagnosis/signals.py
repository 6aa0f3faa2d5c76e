"""What the diagnosis reads of a run, and how its columns become numpy arrays.

Numbers are float64 with nan where absent; where a value may itself be nan, a mask says so. Flags
are int8: 1 yes, 0 no, -1 absent.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ampwatch.codec.columns import Column, joined, raw, unpacked, valid
from ampwatch.rows import EventKind, Table

Floats: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.int8]
Mask: TypeAlias = npt.NDArray[np.bool_]
ArrowRows: TypeAlias = "pa.Table | pa.RecordBatch"


_LARGEST = 2**1000


class Info(Protocol):
    """What of a run's identity the diagnosis and its letter read."""

    @property
    def id(self) -> str: ...  # noqa: D102
    @property
    def source(self) -> str: ...  # noqa: D102
    @property
    def started_ns(self) -> int: ...  # noqa: D102
    @property
    def config(self) -> Mapping[str, Any]: ...  # noqa: D102
    @property
    def scaler(self) -> Mapping[str, Any]: ...  # noqa: D102
    @property
    def marks(self) -> Mapping[str, Sequence[str]]: ...  # noqa: D102


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


class Rows(Protocol):
    """A record's rows for who takes each once, some at a time; `store.Reading` is one."""

    is_overtaken: bool  # a row has come among those that were taken: they no longer hold

    def portions(self) -> Iterator[None]:
        """Show more of the record, until all is shown."""

    def read(
        self, table: Table, columns: Sequence[str], rank: int | None = None, start: int = 0
    ) -> pa.Table:
        """The rows shown by now, from number `start` on."""


class RowsInMemory:
    """The rows of a record that holds them anyway, all in one portion."""

    is_overtaken = False

    def __init__(self, record: Record) -> None:
        self._record = record

    def portions(self) -> Iterator[None]:
        """All at once."""
        yield

    def read(
        self, table: Table, columns: Sequence[str], rank: int | None = None, start: int = 0
    ) -> pa.Table:
        """The rows from number `start` on."""
        return self._record.read(table, columns=columns, rank=rank).slice(start)


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

    def is_traced_to(self, direction: str) -> bool:
        """Whether it is an overflow that came from there: input, forward, loss, weights ..."""
        return self.kind == EventKind.OVERFLOW.value and self.detail.get("direction") == direction

    def retraced(self, direction: str, layer: str) -> Event:
        """The same event, traced to a layer of another model."""
        detail = {**self.detail, "direction": direction, "layer": layer}
        return Event(self.step, self.rank, self.kind, detail)

    @property
    def is_guarded(self) -> bool:
        """Whether it tells of a forward that was not finite and that no step followed."""
        return self.detail.get("guarded") is True


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
    if isinstance(value, int):
        value = min(value, _LARGEST)  # JSON's whole numbers have no end
    return float(value) if value > 0 else None


def in_one_piece(rows: pa.Table) -> pa.RecordBatch:
    """The same rows, each column one array: asking a table for a column's array is slow."""
    batches = rows.to_batches()
    if len(batches) == 1:
        return batches[0]
    arrays = [joined(column) for column in rows.unify_dictionaries().columns]
    return pa.RecordBatch.from_arrays(arrays, schema=rows.schema)


def numbers(rows: ArrowRows, name: str) -> Floats:
    """A column as float64, nan where absent."""
    return _values(rows, name, np.float64(np.nan))


def steps_of(rows: ArrowRows, name: str = "step", begin: int = 0) -> Integers:
    """The steps (or times) from a row on; a row without one takes that of the row before it."""
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
    """A column as int64, with a number for what is absent."""
    return _values(rows, name, np.int64(absent))


def known(rows: ArrowRows, name: str) -> Mask:
    """Where a column is not absent."""
    array = _array(rows, name)
    return np.zeros(rows.num_rows, np.bool_) if array is None else valid(array)


def flags(rows: ArrowRows, name: str) -> Flags:
    """A column of truths as 1, 0, and -1 where absent."""
    return _values(rows, name, np.int8(-1))


def texts(rows: ArrowRows, name: str) -> tuple[tuple[str, ...], Integers]:
    """The different texts of a column, and for each row which of them, -1 where absent."""
    column = _column(rows, name)
    if column is None or not rows.num_rows:
        return (), np.full(rows.num_rows, -1, np.int64)
    if not pa.types.is_dictionary(column.type):
        column = pc.dictionary_encode(column)
    array = joined(column if isinstance(column, pa.Array) else column.unify_dictionaries())
    return tuple(array.dictionary.to_pylist()), _filled(array.indices, np.int64(-1))


def _column(rows: ArrowRows, name: str) -> Column | None:
    """A column, None if it is absent in every row."""
    at = rows.schema.get_field_index(name)
    column = rows.column(at) if at >= 0 else None
    return None if column is None or pa.types.is_null(column.type) else column


def _array(rows: ArrowRows, name: str) -> pa.Array | None:
    column = _column(rows, name)
    return None if column is None else joined(column)


def _plain(array: pa.Array) -> npt.NDArray[Any]:
    """The values of numbers or truths, not to be written to; undefined where absent."""
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
    """A column as an array of this value's type, and this value where it is absent."""
    array = _array(rows, name)
    if array is None or array.null_count == len(array):  # most columns of most logs
        return np.full(rows.num_rows, absent)
    return _filled(array, absent)


def _filled(array: pa.Array, absent: np.generic) -> npt.NDArray[Any]:
    values = _plain(array).astype(absent.dtype, copy=False)
    return np.where(valid(array), values, absent) if array.null_count else values
