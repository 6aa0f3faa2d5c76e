"""Runs built by hand: what the rules see is written down, not measured."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

DEFAULTS = {"init_scale": 65536.0, "growth_factor": 2.0, "growth_interval": 2000}


@dataclass(frozen=True)
class Info:
    id: str = "0" * 32
    source: str = "ampwatch"
    started_ns: int = 1_700_000_000_000_000_000
    scaler: Mapping[str, Any] = field(default_factory=lambda: dict(DEFAULTS))


@dataclass
class HandBuiltRun:
    """As much of a Run as the diagnosis reads."""

    steps: pa.Table
    layers: pa.Table = field(default_factory=lambda: layer_table([]))
    events: pa.Table = field(default_factory=lambda: event_table([]))
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
    count = len(next(iter(columns.values()), ()))
    types = {"loss": pa.float64(), "scale": pa.float64(), "scale_after": pa.float64(),
             "skipped": pa.bool_(), "autocast_dtype": pa.string(), "input_finite": pa.bool_(),
             "param_norm": pa.float32(), "update_seen": pa.bool_(),
             "optimizer": pa.int16()}  # fmt: skip
    base = {
        "step": pa.array(columns.pop("step", range(count)), pa.int64()),
        "rank": pa.array(columns.pop("rank", [0] * count), pa.int32()),
    }
    made = {name: pa.array(columns.get(name, [None] * count), kind) for name, kind in types.items()}
    return pa.table({**base, **made})


def layer_table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    schema = pa.schema(
        [("step", pa.int64()), ("rank", pa.int32()), ("layer", pa.string()),
         ("input_finite", pa.bool_()), ("act_finite", pa.bool_()), ("weight_finite", pa.bool_()),
         ("underflow_share", pa.float32())]
    )  # fmt: skip
    return pa.Table.from_pylist([{"rank": 0, **row} for row in rows], schema)


def event_table(events: Sequence[tuple[int, str, Mapping[str, Any]]]) -> pa.Table:
    schema = pa.schema(
        [("step", pa.int64()), ("time_ns", pa.int64()), ("rank", pa.int32()),
         ("kind", pa.string()), ("detail", pa.string())]
    )  # fmt: skip
    rows = [
        {"step": step, "time_ns": 0, "rank": 0, "kind": kind, "detail": json.dumps(detail)}
        for step, kind, detail in events
    ]
    return pa.Table.from_pylist(rows, schema)
