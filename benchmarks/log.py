"""What the run log costs: bytes and CPU a step to write, milliseconds to open.

    python benchmarks/log.py [--quick] [--out benchmarks/results/log.md]

Every logger gets the same ready-made numbers, 20 scalars a step and 300 layer values every tenth
step, in a process of its own, and is charged all the CPU time (its threads and children too) from
the first call until it is closed. ampwatch's courier writes in batches, so it is shown by batch.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from log_rows import (
    LAYER_EVERY,
    LAYER_VALUES,
    LAYERS,
    SCALARS,
    as_lists,
    full_layer_columns,
    layer_columns,
    step_columns,
)

from ampwatch.codec import Batch, encode
from ampwatch.rows import Table
from ampwatch.store import RankWriter, RunInfo, compact, create_run, open_run

# --- the loggers, each in a child ----------------------------------------------------------------


def cpu_s() -> float:
    """CPU seconds of this process, its threads and its ended children."""
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def log_with_ampwatch(folder: Path, steps: int, rows: int) -> dict[str, float]:
    """Encode and append in batches of `rows` steps; then compact, which is not charged."""
    chance = np.random.default_rng(0)
    run = create_run(folder, RunInfo(id="0" * 32, name="run"))
    writer = RankWriter(run, 0)
    charged = 0.0
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
    start = cpu_s()
    compact(run)
    return {
        "cpu_us": charged / steps * 1e6,
        "bytes": live / steps,
        "compacted": folder_bytes(run) / steps,
        "compact_us": (cpu_s() - start) / steps * 1e6,
    }


def values_of(step: int, chance: np.random.Generator) -> dict[str, float]:
    """One step's numbers by name, as loggers of scalars take them."""
    columns = step_columns(step, 1, chance)
    values = {name: float(columns[name][0]) for name in SCALARS}
    if step % LAYER_EVERY == 0:
        layers = layer_columns(np.array([step]), chance)
        for name in LAYER_VALUES:
            values |= {f"{name}/{layer}": float(v) for layer, v in enumerate(layers[name])}
    return values


def log_with(name: str, folder: Path, steps: int) -> dict[str, float]:
    """Log step by step with another logger."""
    log, close = LOGGERS[name](folder)
    chance = np.random.default_rng(0)
    ready = [values_of(step, chance) for step in range(steps)]
    start = cpu_s()
    for step, values in enumerate(ready):
        log(values, step)
    close()
    return {"cpu_us": (cpu_s() - start) / steps * 1e6, "bytes": folder_bytes(folder) / steps}


def tensorboard(folder: Path):
    """TensorBoard's writer: an add_scalar a value."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder))

    def log(values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)

    return log, writer.close


def wandb_offline(folder: Path):
    """W&B offline: a log call a step."""
    import wandb

    folder.mkdir(parents=True, exist_ok=True)
    settings = wandb.Settings(silent=True, console="off", x_disable_stats=True)
    run = wandb.init(project="log", mode="offline", dir=str(folder), settings=settings)
    return (lambda values, step: run.log(values, step=step)), run.finish


def trackio(folder: Path):
    """trackio: a log call a step."""
    os.environ["TRACKIO_DIR"] = str(folder)
    import trackio as library

    library.init(project="log", embed=False, auto_log_gpu=False)
    return (lambda values, step: library.log(values, step=step)), library.finish


LOGGERS = {"TensorBoard": tensorboard, "W&B offline": wandb_offline, "trackio": trackio}
PACKAGES = {"TensorBoard": "tensorboard", "W&B offline": "wandb", "trackio": "trackio"}


def folder_bytes(folder: Path) -> int:
    """What a folder's files hold."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


# --- opening -------------------------------------------------------------------------------------


def write_long(folder: Path, steps: int, rows: int) -> Path:
    """A finished run of so many steps, in batches as the courier makes them."""
    chance = np.random.default_rng(0)
    run = create_run(folder, RunInfo(id="1" * 32, name=f"long-{steps}"))
    writer = RankWriter(run, 0)
    writer.append(encode(Table.EVENTS, {"step": [0], "time_ns": [1], "kind": ["started"]}))
    for first in range(0, steps, rows):
        count = min(rows, steps - first)
        writer.append(encode(Table.STEPS, step_columns(first, count, chance)))
    writer.append(encode(Table.EVENTS, {"step": [steps], "time_ns": [2], "kind": ["ended"]}))
    writer.close()
    compact(run)
    return run


def time_open(run: Path) -> dict[str, float]:
    """Milliseconds, after the imports, to open a run and hold a column; and every column."""
    start = time.perf_counter()
    found = open_run(run)
    column = found.read("steps", ["loss"]).column("loss")
    one = time.perf_counter() - start
    assert len(column) > 0
    start = time.perf_counter()
    rows = open_run(run).steps
    assert rows.num_rows == len(column)
    return {"column_ms": one * 1e3, "all_ms": (time.perf_counter() - start) * 1e3}


# --- the report ----------------------------------------------------------------------------------


def child(task: str, *arguments: object) -> dict[str, float]:
    """Do one measurement in a process of its own."""
    command = [sys.executable, __file__, "--child", task, *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "WANDB_SILENT": "true"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def run_child(task: str, arguments: list[str]) -> None:
    """The child's side of `child`."""
    if task == "ampwatch":
        found = log_with_ampwatch(Path(arguments[0]), int(arguments[1]), int(arguments[2]))
    elif task == "open":
        found = time_open(Path(arguments[0]))
    else:
        found = log_with(task, Path(arguments[0]), int(arguments[1]))
    print(json.dumps(found))


def writing(folder: Path, steps: int) -> Iterator[str]:
    """The table of what writing costs."""
    yield "| logger | bytes a step | finished | CPU µs a step | CPU against trackio |"
    yield "|---|---|---|---|---|"
    others = {
        name: child(name, folder / PACKAGES[name], steps // 40)
        for name in LOGGERS
        if find_spec(PACKAGES[name])
    }
    trackio_us = others.get("trackio", {}).get("cpu_us", float("nan"))
    for rows in (1, 10, 70, 170, 1000):
        used = child("ampwatch", folder / f"ours-{rows}", steps // (10 if rows == 1 else 1), rows)
        yield (
            f"| ampwatch, {rows} steps a batch | {used['bytes']:.0f} | {used['compacted']:.0f} "
            f"| {used['cpu_us']:.2f} | 1/{trackio_us / used['cpu_us']:.0f} |"
        )
    for name, used in others.items():
        yield (
            f"| {name} | {used['bytes']:.0f} | | {used['cpu_us']:.0f} "
            f"| {used['cpu_us'] / trackio_us:.2f} |"
        )


def layer_table(folder: Path, samples: int) -> str:
    """What a sampled step of every layer, every column, costs."""
    chance = np.random.default_rng(0)
    run = create_run(folder, RunInfo(id="2" * 32, name="layers"))
    writer = RankWriter(run, 0)
    batches: list[Batch] = []
    for sample in range(samples):
        batches.append(encode(Table.LAYERS, full_layer_columns(sample * 50, chance)))
        writer.append(batches[-1])
    writer.close()
    live = folder_bytes(run) / samples
    compact(run)
    kept = folder_bytes(run) / samples
    return (
        f"A full sample of {LAYERS} layers (every column, the exponent histogram too): "
        f"{live / 1000:.1f} kB live, {kept / 1000:.1f} kB compacted; at one sample in 50 steps "
        f"{live / 50:.0f} and {kept / 50:.0f} bytes a step."
    )


def opening(folder: Path, lengths: tuple[int, ...]) -> Iterator[str]:
    """The table of what opening costs: the best of five fresh processes."""
    yield "| finished run | open_run and one column | open_run and every column |"
    yield "|---|---|---|"
    for steps in lengths:
        run = write_long(folder, steps, 170)
        tries = [child("open", run) for _ in range(5)]
        one, every = (min(t[name] for t in tries) for name in ("column_ms", "all_ms"))
        yield f"| {steps:,} steps | {one:.0f} ms | {every:.0f} ms |"


def machine() -> str:
    """What it ran on, without saying where."""
    packages = ("pyarrow", "numpy", "tensorboard", "wandb", "trackio")
    versions = ", ".join(f"{name} {version(name)}" for name in packages if find_spec(name))
    load = os.getloadavg()[0]
    busy = "" if load < 1 else f" Others were at work (load {load:.1f}): times are noisy."
    return (
        f"{os.cpu_count()} cores ({platform.machine()}), {platform.system()}, "
        f"Python {platform.python_version()}, {versions}.{busy}"
    )


def report(*, quick: bool) -> str:
    """The whole of it, in Markdown."""
    lines = ["# What the run log costs", "", machine(), ""]
    lines += [f"Each step: {len(SCALARS)} scalars, and every {LAYER_EVERY}th step 3 values of each"]
    lines += [f"of {LAYERS} layers. CPU: encoding and appending, until closed.", ""]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lines += [*writing(folder, 2_000 if quick else 20_000), ""]
        lines += [layer_table(folder, 20 if quick else 400), ""]
        lines += opening(folder, (10_000,) if quick else (1_000_000, 10_000_000))
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and print; with --out also write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it works")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        run_child(arguments.child[0], arguments.child[1:])
        return
    text = report(quick=arguments.quick)
    print(text)
    if arguments.out:
        arguments.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
