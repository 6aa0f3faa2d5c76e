"""What does a diagnosis cost: of a finished run, and live for each row?

    python benchmarks/diagnosis_speed.py [--steps 1000000] [--layers 300] [--quick]

The rows are made up and held in memory, so this is the diagnosis alone, without reading a log. All
figures are processor time, medians of rounds in which the works take turns.
Results: results/diagnosis_speed.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from statistics import median

import numpy as np
import pyarrow as pa
from parts.memory_run import Info, MemoryRun
from parts.options import command_line
from parts.tables import table
from parts.timing import in_turns, peak_mb

from ampwatch.diagnosis import Engine, diagnose
from ampwatch.rows import Table

INTERVAL = 2000
INFO = Info({"init_scale": 65536.0, "growth_interval": INTERVAL})


def made_up(steps: int, layers: int, layer_every: int = 50) -> MemoryRun:
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
    overflows = int(skipped.sum())
    events = pa.table({
        "step": step[skipped], "rank": np.zeros(overflows, np.int32),
        "kind": ["overflow"] * overflows,
        "detail": ['{"direction": "backward", "layer": "blocks.0.linear"}'] * overflows,
    })  # fmt: skip
    return MemoryRun({Table.STEPS: table, Table.LAYERS: layer, Table.EVENTS: events}, INFO)


def beginning(run: MemoryRun, step: int) -> MemoryRun:
    """All tables up to a step."""
    cut = {
        name: rows.slice(0, int(np.searchsorted(rows.column("step").to_numpy(), step)))
        for name, rows in run.tables.items()
    }
    return MemoryRun(cut, run.info)


def live(run: MemoryRun, steps: int, every: int) -> Callable[[], None]:
    """Feeding and looking, again and again while the run grows."""
    parts = [beginning(run, end) for end in range(every, steps + 1, every)]

    def work() -> None:
        engine = Engine()
        for part in parts:
            engine.feed(part).diagnosis()

    return work


def finished_rows(steps: int, layers: int, rounds: int) -> Iterator[tuple[str, str]]:
    alone, bare, full = made_up(steps, 0), made_up(steps // 10, 0), made_up(steps // 10, layers)
    rows = full.tables[Table.LAYERS].num_rows
    works = {"alone": alone, "bare": bare, "full": full}
    turns = in_turns({name: partial(diagnose, run) for name, run in works.items()}, rounds)
    cost = {name: median(times) for name, times in turns.items()}
    yield f"finished run of {steps:,} steps", f"{cost['alone']:.2f} s"
    yield "a step row of it", f"{cost['alone'] / steps * 1e6:.2f} µs"
    yield "a layer row, finished", f"{(cost['full'] - cost['bare']) / rows * 1e6:.2f} µs"


def live_rows(steps: int, layers: int, rounds: int) -> Iterator[tuple[str, ...]]:
    run, full = made_up(steps, 0), made_up(steps, layers)
    rows = full.tables[Table.LAYERS].num_rows
    for every in (10, 100, 1000):
        some = max(20, steps * every // 1000) if every < 1000 else steps
        turns = in_turns({"bare": live(run, some, every), "full": live(full, some, every)}, rounds)
        bare_s, full_s = median(turns["bare"]), median(turns["full"])
        yield (
            f"a look every {every} steps", f"{bare_s / (some // every) * 1e3:.2f} ms",
            f"{bare_s / some * 1e6:.1f} µs",
            f"{full_s / (some + rows * some / steps) * 1e6:.1f} µs",
            f"{(full_s - bare_s) / (rows * some / steps) * 1e6:.2f} µs",
        )  # fmt: skip


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--layers", type=int, default=300)
    parser.add_argument("--live-steps", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a hundredth of the steps, one round")
    options = parser.parse_args()
    share, rounds = (100, 1) if options.quick else (1, options.rounds)
    steps, live_steps = options.steps // share, max(2000, options.live_steps // share)
    print(table("finished | ", finished_rows(steps, options.layers, rounds)))
    head = (
        f"live, {live_steps:,} steps | a look | a step row | with {options.layers} layers, every "
        "row | a layer row by itself"
    )
    print(f"\n{table(head, live_rows(live_steps, options.layers, rounds))}")
    print(f"\nPeak memory of this process, its made-up rows included: {peak_mb() / 1e3:.1f} GB.")


if __name__ == "__main__":
    main()
