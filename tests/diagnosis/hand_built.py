"""Runs built by hand: what the rules see is written down, not measured."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from ampwatch.rows import SCHEMAS, Table
from ampwatch.store.public_rows import PUBLIC_NAMES

DEFAULTS = {"init_scale": 65536.0, "growth_factor": 2.0, "growth_interval": 2000}


@dataclass(frozen=True)
class Info:
    id: str = "0" * 32
    source: str = "ampwatch"
    started_ns: int = 1_700_000_000_000_000_000
    scaler: Mapping[str, Any] = field(default_factory=lambda: dict(DEFAULTS))
    marks: Mapping[str, Sequence[str]] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class HandBuiltRun:
    """As much of a Run as the diagnosis reads."""

    steps: pa.Table
    layers: pa.Table = field(default_factory=lambda: layer_table([]))
    events: pa.Table = field(default_factory=lambda: event_table([]))
    devices: pa.Table = field(default_factory=lambda: device_table([]))
    extras: pa.Table = field(default_factory=lambda: extra_table({}))
    info: Info = field(default_factory=Info)
    notes: tuple[str, ...] = ()
    clean_end: bool = True
    last_time_ns: int | None = 1_700_000_100_000_000_000

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted(set(self.steps["rank"].to_pylist()))) or (0,)

    def read(self, table, columns=None, rank=None):
        rows = getattr(self, table.value)
        if rank is not None:
            rows = rows.filter(pa.compute.equal(rows["rank"], rank))
        return (
            rows if columns is None else rows.select([c for c in columns if c in rows.schema.names])
        )


def scaled_run(
    skipped: Sequence[bool],
    *,
    start: float = 65536.0,
    growth_interval: int = 2000,
    loss: Sequence[float | None] | None = None,
    **rest: Any,
) -> HandBuiltRun:
    """A run whose scale follows torch's own rule for these skips."""
    scale, after = follow(skipped, start, growth_interval)
    count = len(skipped)
    steps = step_table(
        scale=scale, scale_after=after, skipped=list(skipped), loss=loss or [1.0] * count
    )
    scaler = {**DEFAULTS, "init_scale": start, "growth_interval": growth_interval}
    rest.setdefault("info", Info(scaler=scaler))
    return HandBuiltRun(steps, **rest)


def follow(skipped: Sequence[bool], start: float, growth_interval: int) -> tuple[list, list]:
    """GradScaler's arithmetic: halve on a skip, double after an interval of accepted steps."""
    scale, after, now, good = [], [], np.float32(start), 0
    for skip in skipped:
        scale.append(float(now))
        good = 0 if skip else good + 1
        if skip:
            now = np.float32(now * 0.5)
        elif good == growth_interval:
            now, good = np.float32(now * 2), 0
        after.append(float(now))
    return scale, after


def step_table(**columns: Sequence[Any]) -> pa.Table:
    """Rows of `steps` as a Run shows them; a column left out is absent."""
    count = len(next(iter(columns.values()), ()))
    return _table(Table.STEPS, {"step": range(count), "rank": [0] * count, **columns}, count)


def layer_table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Rows of `layers`; what a row leaves out is absent."""
    return _table(Table.LAYERS, _columns([{"rank": 0, **row} for row in rows]), len(rows))


def device_table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Rows of `devices`; what a row leaves out is absent."""
    return _table(Table.DEVICES, _columns([{"rank": 0, **row} for row in rows]), len(rows))


def extra_table(metrics: Mapping[str, Mapping[int, float]]) -> pa.Table:
    """Rows of `extras`: for each metric its values by step."""
    rows = [(step, name, value) for name, told in metrics.items() for step, value in told.items()]
    step, name, value = zip(*sorted(rows), strict=True) if rows else ((), (), ())
    columns = {"step": step, "rank": [0] * len(rows), "name": name, "value": value}
    return _table(Table.EXTRAS, columns, len(rows))


def event_table(events: Sequence[tuple[int | None, str, Any]], *, raw: bool = False) -> pa.Table:
    """Rows of `events`: step, kind, detail; `raw` details are text already."""
    rows = [
        {"step": step, "time_ns": 0, "rank": 0, "kind": kind,
         "detail": detail if raw else json.dumps(detail)}
        for step, kind, detail in events
    ]  # fmt: skip
    return _table(Table.EVENTS, _columns(rows), len(rows))


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, Sequence[Any]]:
    names = {name for row in rows for name in row}
    return {name: [row.get(name) for row in rows] for name in names}


def _table(table: Table, columns: Mapping[str, Sequence[Any]], count: int) -> pa.Table:
    names = PUBLIC_NAMES[table]
    assert set(columns) <= set(names), f"{table.value} has no {set(columns) - set(names)}"
    made = {name: pa.array(columns.get(name, [None] * count), _type(table, name)) for name in names}
    return pa.table(made)


def _type(table: Table, name: str) -> pa.DataType:
    """A public column's type: what is stored by number is shown by name."""
    if name in {"layer", "max_update_layer"} or "dtype" in name:
        return pa.string()
    if name == "rank":
        return pa.int32()
    for schema in (SCHEMAS[table], SCHEMAS[Table.LAYER_INFO]):
        if schema.get_field_index(name) >= 0:
            return schema.field(name).type
    raise KeyError(name)
