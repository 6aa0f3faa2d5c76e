"""What does the run log cost: bytes and CPU a step to write, milliseconds to open?

    python benchmarks/log.py [--quick] [--out benchmarks/results/log.md]

Every logger gets the same ready-made numbers, 20 scalars a step and 300 layer values every tenth
step, in a process of its own, and is charged all the CPU time (its threads and children too) from
the first call until it is closed. ampwatch's row thread writes in batches, so it is shown by batch.
Results: results/log.md.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from log_rows import (
    LAYER_EVERY,
    LAYER_VALUES,
    LAYERS,
    SCALARS,
    as_lists,
    layer_columns,
    step_columns,
)
from parts.children import told_by
from parts.loggers import LOGGERS, PACKAGES
from parts.machine import folder_bytes, machine
from parts.options import command_line
from parts.tables import table
from parts.timing import cpu_s, seconds

from ampwatch.codec import encode
from ampwatch.rows import Table
from ampwatch.store import RankWriter, RunInfo, compact, create_run, open_run

# --- the loggers, each in a child ----------------------------------------------------------------


def log_with_ampwatch(folder: str, steps: int, rows: int) -> dict[str, float]:
    """Encode and append in batches of `rows` steps; then compact, which is not charged."""
    chance, charged = np.random.default_rng(0), 0.0
    run, writer = new_run(Path(folder), "run")
    for first in range(0, steps, rows):
        columns = as_lists(step_columns(first, rows, chance))
        sampled = np.arange(first, first + rows)
        sampled = sampled[sampled % LAYER_EVERY == 0]
        layers = as_lists(layer_columns(sampled, chance))
        start = cpu_s()
        writer.append(encode(Table.STEPS, columns))
        if len(sampled):
            writer.append(encode(Table.LAYERS, layers))
        charged += cpu_s() - start
    writer.close()
    live = folder_bytes(run)
    compact(run)
    found = {"cpu_us": charged * 1e6, "bytes": live, "compacted": folder_bytes(run)}
    return {name: total / steps for name, total in found.items()}


def log_with(name: str, folder: str, steps: int) -> dict[str, float]:
    """Log step by step with another logger."""
    logger, chance = LOGGERS[name](Path(folder)), np.random.default_rng(0)
    ready = [values_of(step, chance) for step in range(steps)]
    start = cpu_s()
    for step, values in enumerate(ready):
        logger.log(values, step)
    logger.close()
    spent = cpu_s() - start
    return {"cpu_us": spent / steps * 1e6, "bytes": folder_bytes(Path(folder)) / steps}


def values_of(step: int, chance: np.random.Generator) -> dict[str, float]:
    """One step's numbers by name, as loggers of scalars take them."""
    columns = step_columns(step, 1, chance)
    values = {name: float(columns[name][0]) for name in SCALARS}
    if step % LAYER_EVERY == 0:
        layers = layer_columns(np.array([step]), chance)
        for name in LAYER_VALUES:
            values |= {f"{name}/{layer}": float(v) for layer, v in enumerate(layers[name])}
    return values


def time_open(run: str) -> dict[str, float]:
    """Milliseconds, after the imports, to open a run and hold a column; and every column."""
    path = Path(run)
    column = seconds(lambda: open_run(path).read("steps", ["loss"]).column("loss"))
    whole = seconds(lambda: open_run(path).steps)
    return {"column_ms": column * 1e3, "all_ms": whole * 1e3}


TASKS: dict[str, Callable[..., dict[str, float]]] = {
    "ampwatch": log_with_ampwatch, "other": log_with, "open": time_open,
}  # fmt: skip


def child(task: str, *arguments: object) -> Any:
    """Do one measurement in a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "WANDB_SILENT": "true"}
    words = json.dumps([task, *arguments], default=str)
    return told_by(__file__, "--child", words, environment=environment)


# --- the tables ----------------------------------------------------------------------------------


def new_run(folder: Path, name: str) -> tuple[Path, RankWriter]:
    run = create_run(folder, RunInfo(id=name.encode().hex().ljust(32, "0")[:32], name=name))
    return run, RankWriter(run, 0)


def writing(folder: Path, steps: int) -> str:
    """What writing costs."""
    others = {
        name: child("other", name, folder / package, steps // 40)
        for name, package in PACKAGES.items()
        if find_spec(package)
    }
    trackio_us = others.get("trackio", {}).get("cpu_us", float("nan"))
    rows: list[tuple[str, ...]] = []
    for batch in (1, 10, 70, 170, 1000):
        count = steps // (10 if batch == 1 else 1)
        used = child("ampwatch", folder / f"ours-{batch}", count, batch)
        rows.append(
            (f"ampwatch, {batch} steps a batch", f"{used['bytes']:.0f}",
             f"{used['compacted']:.0f}", f"{used['cpu_us']:.2f}",
             f"1/{trackio_us / used['cpu_us']:.0f}")
        )  # fmt: skip
    for name, used in others.items():
        ratio = used["cpu_us"] / trackio_us
        rows.append((name, f"{used['bytes']:.0f}", "", f"{used['cpu_us']:.0f}", f"{ratio:.2f}"))
    return table("logger | bytes a step | finished | CPU µs a step | CPU against trackio", rows)


def opening(folder: Path, lengths: tuple[int, ...]) -> Iterator[tuple[str, ...]]:
    """What opening costs: the best of five fresh processes."""
    for steps in lengths:
        run = finished_run(folder, steps)
        tries = [child("open", run) for _ in range(5)]
        column, whole = (min(each[name] for each in tries) for name in ("column_ms", "all_ms"))
        yield f"{steps:,} steps", f"{column:.0f} ms", f"{whole:.0f} ms"


def finished_run(folder: Path, steps: int, rows: int = 170) -> Path:
    """A finished run of so many steps, in batches as the row thread makes them."""
    chance = np.random.default_rng(0)
    run, writer = new_run(folder, f"long-{steps}")
    writer.append(encode(Table.EVENTS, {"step": [0], "time_ns": [1], "kind": ["started"]}))
    for first in range(0, steps, rows):
        count = min(rows, steps - first)
        writer.append(encode(Table.STEPS, step_columns(first, count, chance)))
    writer.append(encode(Table.EVENTS, {"step": [steps], "time_ns": [2], "kind": ["ended"]}))
    writer.close()
    compact(run)
    return run


def report(*, quick: bool) -> str:
    """The whole of it, in Markdown."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        about = (
            f"Each step: {len(SCALARS)} scalars, and every {LAYER_EVERY}th step 3 values of each "
            f"of {LAYERS} layers. CPU: encoding and appending, until closed."
        )
        head = "finished run | open_run and one column | open_run and every column"
        parts = [
            "# What the run log costs",
            machine("pyarrow", "numpy", *PACKAGES.values()),
            about,
            writing(folder, 2_000 if quick else 20_000),
            table(head, opening(folder, (10_000,) if quick else (1_000_000, 10_000_000))),
        ]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it works")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        task, *arguments = options.child
        return print(json.dumps(TASKS[task](*arguments)))
    text = report(quick=options.quick)
    print(text)
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    return None


if __name__ == "__main__":
    main()
