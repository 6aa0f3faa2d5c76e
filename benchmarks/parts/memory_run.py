"""A run whose rows are held in memory: the diagnosis alone, without reading a log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from ampwatch.rows import SCHEMAS, Table

_EMPTY = {
    Table.LAYERS: pa.table({"step": pa.array([], pa.int64()), "weight_shape": pa.array([])}),
    Table.DEVICES: pa.table(
        {"time_ns": pa.array([], pa.int64()), "step": pa.array([], pa.int64())}
    ),
    Table.EXTRAS: SCHEMAS[Table.EXTRAS].empty_table(),
}


@dataclass(frozen=True)
class Info:
    scaler: dict[str, Any]
    id: str = "0" * 32
    source: str = "ampwatch"
    started_ns: int = 1
    marks: dict[str, Any] = field(default_factory=dict)


@dataclass
class MemoryRun:
    """As the diagnosis reads a run; the first `rows` of its steps, while it grows."""

    tables: Mapping[Table, pa.Table]
    info: Info
    rows: int | None = None
    clean_end: bool = True
    ranks: tuple[int, ...] = (0,)
    notes: tuple[str, ...] = ()
    last_time_ns: int = 2

    def read(
        self, table: Table, columns: Sequence[str] | None = None, rank: int | None = None
    ) -> pa.Table:
        rows = {**_EMPTY, **self.tables}[table]
        if table is Table.STEPS:
            rows = rows.slice(0, self.rows)
        return rows.select([name for name in columns or rows.column_names
                            if name in rows.column_names])  # fmt: skip
