"""What a diagnosis costs: of a finished run, and live for each row. Prints a table.

    python benchmarks/diagnosis_speed.py [--steps 1000000] [--layers 300]

The rows are made up and held in memory, so this is the diagnosis alone, without reading a log.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from ampwatch.diagnosis import Engine, diagnose
from ampwatch.rows import Table

INTERVAL = 2000


@dataclass(frozen=True)
class Info:
    id: str = "0" * 32
    source: str = "ampwatch"
    started_ns: int = 1
    scaler: dict[str, Any] = field(
        default_factory=lambda: {"init_scale": 65536.0, "growth_interval": INTERVAL}
    )


@dataclass
class MadeUpRun:
    tables: dict[Table, pa.Table]
    info: Info = field(default_factory=Info)
    ranks: tuple[int, ...] = (0,)
    notes: tuple[str, ...] = ()
    clean_end: bool = True
    last_time_ns: int = 2

    def read(
        self, table: Table, columns: Sequence[str] | None = None, rank: int | None = None
    ) -> pa.Table:
        rows = self.tables[table]
        return rows.select([c for c in columns or rows.column_names if c in rows.column_names])

    def up_to(self, step: int) -> MadeUpRun:
        def cut(rows: pa.Table) -> pa.Table:
            return rows.slice(0, int(np.searchsorted(rows.column("step").to_numpy(), step)))

        return MadeUpRun({table: cut(rows) for table, rows in self.tables.items()})


def made_up(steps: int, layers: int, layer_every: int = 50) -> MadeUpRun:
    """A healthy run: one overflow a growth interval, a falling loss, noisy norms."""
    rng = np.random.default_rng(0)
    step = np.arange(steps)
    skipped = step % (INTERVAL + 1) == INTERVAL
    scale = np.where(skipped, 131072.0, 65536.0)
    numbers = {
        name: rng.lognormal(0.0, 0.3, steps)
        for name in ("loss", "grad_norm", "grad_norm_applied", "update_norm", "input_amax")
    }
    table = pa.table({
        "step": step, "time_ns": step * 1_000_000, "optimizer": np.zeros(steps, np.int16),
        "scale": scale, "scale_after": np.full(steps, 65536.0), "skipped": skipped,
        "lr": np.full(steps, 1e-3), "lr_base": np.full(steps, 1e-3),
        "param_norm": np.full(steps, 100.0), "update_seen": np.ones(steps, np.bool_), **numbers,
    })  # fmt: skip
    sampled = np.repeat(step[::layer_every], layers)
    count = len(sampled)
    names = pa.array([f"blocks.{n}.linear" for n in range(layers)])
    codes = pa.array(np.tile(np.arange(layers, dtype=np.int32), count // max(1, layers)))
    layer = pa.table({
        "step": sampled, "rank": np.zeros(count, np.int32),
        "layer": pa.DictionaryArray.from_arrays(codes, names),
        "act_finite": np.ones(count, np.bool_), "weight_finite": np.ones(count, np.bool_),
        "underflow_share": rng.uniform(0, 0.1, count), "act_amax": rng.lognormal(2, 1, count),
        "log2_headroom": rng.uniform(6, 9, count), "scale_low": np.full(count, 4.0),
        "scale_high": np.full(count, 2.0**20), "update_ratio": np.full(count, 1e-3),
        "param_group": np.zeros(count, np.int32),
    })  # fmt: skip
    events = pa.table({
        "step": step[skipped], "rank": np.zeros(int(skipped.sum()), np.int32),
        "kind": ["overflow"] * int(skipped.sum()),
        "detail": ['{"direction": "backward", "layer": "blocks.0.linear"}'] * int(skipped.sum()),
    })  # fmt: skip
    return MadeUpRun({Table.STEPS: table, Table.LAYERS: layer, Table.EVENTS: events,
                      Table.DEVICES: pa.table({"time_ns": pa.array([], pa.int64()),
                                               "step": pa.array([], pa.int64())})})  # fmt: skip


def seconds(work: Callable[[], Any], repeats: int = 3) -> float:
    """The shortest of some runs: what the work costs when nobody disturbs it."""
    best = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return best


def live(run: MadeUpRun, steps: int, looks: int) -> float:
    """Feeding and looking, again and again while the run grows; per step."""
    parts = [run.up_to(steps * n // looks) for n in range(1, looks + 1)]

    def work() -> None:
        engine = Engine()
        for part in parts:
            engine.feed(part).look()

    return seconds(work, 1) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--layers", type=int, default=300)
    asked = parser.parse_args()
    alone = made_up(asked.steps, 0)
    print(f"| finished run of {asked.steps:,} steps | {seconds(lambda: diagnose(alone)):.2f} s |")
    short = min(asked.steps, 100_000)
    bare, full = made_up(short, 0), made_up(short, asked.layers)
    rows = full.tables[Table.LAYERS].num_rows
    without, with_layers = seconds(lambda: diagnose(bare)), seconds(lambda: diagnose(full))
    print(f"| a step row, finished | {without / short * 1e6:.2f} µs |")
    print(f"| a layer row, finished | {(with_layers - without) / rows * 1e6:.2f} µs |")
    for every in (1000, 100):
        text = f"a step row, live, a look every {every} steps"
        print(f"| {text} | {live(bare, short, short // every) * 1e6:.1f} µs |")


if __name__ == "__main__":
    main()
