"""What a diagnosis costs: of a finished run, and live for each row. Prints a table.

    python benchmarks/diagnosis_speed.py [--steps 1000000] [--layers 300]

The rows are made up and held in memory, so this is the diagnosis alone, without reading a log. All
figures are processor time, medians of rounds in which the works take turns.
"""

from __future__ import annotations

import argparse
import pickle
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from ampwatch.diagnosis import Engine, diagnose
from ampwatch.rows import SCHEMAS, Table

INTERVAL = 2000


@dataclass(frozen=True)
class Info:
    id: str = "0" * 32
    source: str = "ampwatch"
    started_ns: int = 1
    scaler: dict[str, Any] = field(
        default_factory=lambda: {"init_scale": 65536.0, "growth_interval": INTERVAL}
    )
    marks: dict[str, Any] = field(default_factory=dict)


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
        there = rows.column_names
        return rows.select([name for name in columns or there if name in there])

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
        "param_group": np.zeros(count, np.int32), "rows": np.full(count, 64),
        "weight_shape": pa.array([[64, 64]] * count, pa.list_(pa.int32())),
    })  # fmt: skip
    events = pa.table({
        "step": step[skipped], "rank": np.zeros(int(skipped.sum()), np.int32),
        "kind": ["overflow"] * int(skipped.sum()),
        "detail": ['{"direction": "backward", "layer": "blocks.0.linear"}'] * int(skipped.sum()),
    })  # fmt: skip
    return MadeUpRun({Table.STEPS: table, Table.LAYERS: layer, Table.EVENTS: events,
                      Table.EXTRAS: SCHEMAS[Table.EXTRAS].empty_table(),
                      Table.DEVICES: pa.table({"time_ns": pa.array([], pa.int64()),
                                               "step": pa.array([], pa.int64())})})  # fmt: skip


def cost(work: Callable[[], Any]) -> float:
    """The processor time of this work: neighbours on the machine must not count."""
    began = time.process_time()
    work()
    return time.process_time() - began


def medians(works: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """What each work costs, in the middle of some rounds in which all take turns."""
    seen: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            seen[name].append(cost(work))
    return {name: float(np.median(costs)) for name, costs in seen.items()}


def live(run: MadeUpRun, steps: int, every: int) -> Callable[[], None]:
    """Feeding and looking, again and again while the run grows."""
    parts = [run.up_to(end) for end in range(every, steps + 1, every)]

    def work() -> None:
        engine = Engine()
        for part in parts:
            engine.feed(part).diagnosis()

    return work


def finished_table(steps: int, layers: int, rounds: int) -> None:
    alone, bare, full = made_up(steps, 0), made_up(steps // 10, 0), made_up(steps // 10, layers)
    rows = full.tables[Table.LAYERS].num_rows
    runs = {"alone": alone, "bare": bare, "full": full}
    seen = medians({name: partial(diagnose, run) for name, run in runs.items()}, rounds)
    print(f"| finished run of {steps:,} steps | {seen['alone']:.2f} s |")
    print(f"| a step row of it | {seen['alone'] / steps * 1e6:.2f} µs |")
    print(f"| a layer row, finished | {(seen['full'] - seen['bare']) / rows * 1e6:.2f} µs |")
    held = len(pickle.dumps(Engine().feed(alone)._settled.case))
    print(f"| what is remembered of {steps:,} steps, without layers | {held / 1e3:.0f} kB |")


def live_table(steps: int, layers: int, rounds: int) -> None:
    run, full = made_up(steps, 0), made_up(steps, layers)
    rows = full.tables[Table.LAYERS].num_rows
    print(
        f"\n| live, {steps:,} steps | a look | a step row | with {layers} layers, every row "
        "| a layer row by itself |"
    )
    print("|---|---:|---:|---:|---:|")
    for every in (10, 100, 1000):
        some = max(20, steps * every // 1000) if every < 1000 else steps
        works = {"bare": live(run, some, every), "full": live(full, some, every)}
        seen = medians(works, rounds)
        look, row = seen["bare"] / (some // every), seen["bare"] / some
        every_row = seen["full"] / (some + rows * some / steps)
        layer_row = (seen["full"] - seen["bare"]) / (rows * some / steps)
        print(
            f"| a look every {every} steps | {look * 1e3:.2f} ms | {row * 1e6:.1f} µs "
            f"| {every_row * 1e6:.1f} µs | {layer_row * 1e6:.2f} µs |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--layers", type=int, default=300)
    parser.add_argument("--live-steps", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    print("| finished | |\n|---|---:|")
    finished_table(asked.steps, asked.layers, asked.rounds)
    live_table(asked.live_steps, asked.layers, asked.rounds)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"\nPeak memory of this process, its made-up rows included: {peak:.1f} GB.")


if __name__ == "__main__":
    main()
