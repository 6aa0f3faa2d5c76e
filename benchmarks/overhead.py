"""What watching costs a training step, beside the bare loop and other loggers.

python benchmarks/overhead.py                 both small models on the CPU
python benchmarks/overhead.py --device cuda   a transformer of 100 M parameters on a GPU

One process trains twins, two equal trainings, the one bare, the other with a contender. They take
turns of ten steps, so that whatever else the machine does befalls both. Blocks of such turns come
in shuffled order over the contenders, the twins change roles with each round, and a contender's
cost is the median over rounds of the difference a step. Main-thread CPU time is what our calls burn
there; wall time adds what background threads take from it. Baselines get ready-made numbers.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import random
import statistics
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from overhead_contenders import Bare, all_contenders, left_out, watched
from overhead_training import Training, large_transformer, mlp, transformer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

NO_GPU = "No CUDA device here: the GPU part was not run. It is ready to run where there is one.\n"
TURN = 10  # steps; shorter turns let a logger's thread work in the bare twin's

SCALARS = "ampwatch, the scaler alone"
NORMS = "ampwatch, layer_every=10**9"
DEFAULT = "ampwatch, default settings"
TARGETS_MODEL = "12-layer MLP"  # the figures to reach speak of it
TARGETS = (  # what, against what, at most
    (SCALARS, "TensorBoard", 0.10),
    (SCALARS, "W&B offline", 0.08),
    (NORMS, "naive monitor", 0.25),
    (DEFAULT, "TensorBoard", 1.00),
)
PROTOTYPE_US = {SCALARS: 16, NORMS: 110, DEFAULT: 221}


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds a step: the main thread's CPU, the wall, and all other threads' CPU."""

    main_us: float
    wall_us: float
    other_us: float


@dataclass(frozen=True, slots=True)
class Block:
    """What a contender added to a step, and what the bare steps between took."""

    added: Cost
    bare: Cost


@dataclass(frozen=True, slots=True)
class Result:
    """One contender's median added cost, and the quartiles of the main thread's."""

    name: str
    logs: str
    added: Cost
    low_us: float
    high_us: float


def main(arguments: Sequence[str] | None = None) -> None:
    options = read_options(arguments)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if options.device == "cuda":
        report = measure_gpu(options) if torch.cuda.is_available() else NO_GPU
    else:
        makers = {"mlp": [mlp], "transformer": [transformer], "both": [mlp, transformer]}
        sections = [measure([make(), make()], options.rounds) for make in makers[options.model]]
        report = "\n\n".join([machine(), *sections]) + "\n"
    print(report)
    if options.out:
        options.out.write_text(report, encoding="utf-8")


def measure(twins: list[Training], rounds: int) -> str:
    """One model's section of the report."""
    with tempfile.TemporaryDirectory() as name:
        keep_to(name)
        contenders = list(all_contenders(Path(name)))
        blocks = run_rounds(twins, contenders, rounds)
        for contender in contenders:
            contender.close()
    results = [summarise(contender, blocks[contender.name]) for contender in contenders]
    bare_us = statistics.median(block.bare.main_us for each in blocks.values() for block in each)
    return section(twins[0], bare_us, results, rounds)


def keep_to(folder: str) -> None:
    """The benchmark's runs are listed nowhere else, and a watch that fails is not measured."""
    os.environ["XDG_STATE_HOME"] = folder
    os.environ["AMPWATCH_STRICT"] = "1"


def run_rounds(
    twins: list[Training], contenders: list[Bare], rounds: int
) -> dict[str, list[Block]]:
    """Every contender once a round, each round in an order of its own, the twins in turn."""
    shuffled = random.Random(0)
    blocks: dict[str, list[Block]] = {contender.name: [] for contender in contenders}
    with progress() as bar:
        task = bar.add_task(twins[0].name, total=rounds * len(contenders))
        for _ in range(rounds):
            twins.reverse()
            for contender in shuffled.sample(contenders, len(contenders)):
                blocks[contender.name].append(run_block(*twins, contender))
                bar.advance(task)
    return blocks


def run_block(bare: Training, twin: Training, contender: Bare) -> Block:
    """Warm up, then time: the first steps after attach are sampled, and its thread starts up."""
    contender.begin(twin)
    gc.collect()
    time_turns(bare, twin, contender, twin.block_steps // 2)
    bare_cost, twin_cost = time_turns(bare, twin, contender, twin.block_steps)
    contender.end()
    added = Cost(
        twin_cost.main_us - bare_cost.main_us,
        twin_cost.wall_us - bare_cost.wall_us,
        twin_cost.other_us + bare_cost.other_us,  # a background thread works when it likes
    )
    return Block(added, bare_cost)


def time_turns(bare: Training, twin: Training, contender: Bare, steps: int) -> tuple[Cost, Cost]:
    """What a step took on average: the bare one's, and the twin's with the contender."""
    nothing = Bare()
    bare_us, twin_us = [0.0] * 3, [0.0] * 3
    for turn in range(steps // TURN):
        turns = [(bare, nothing, bare_us), (twin, contender, twin_us)]
        for training, who, total_us in turns if turn % 2 else reversed(turns):
            began = clocks()
            for _ in range(TURN):
                training.step()
                who.after_step(training)
            for i, (start, end) in enumerate(zip(began, clocks(), strict=True)):
                total_us[i] += (end - start) * 1e6 / steps
    return Cost(*bare_us), Cost(*twin_us)


def clocks() -> tuple[float, float, float]:
    """Main-thread CPU, wall and other threads' CPU, in seconds."""
    main_s = time.thread_time()
    return main_s, time.perf_counter(), time.process_time() - main_s


def summarise(contender: Bare, blocks: list[Block]) -> Result:
    """Medians, so that what else the machine did in a round does not count."""
    main_us = [block.added.main_us for block in blocks]
    low_us, middle_us, high_us = statistics.quantiles(main_us, n=4)
    wall_us = statistics.median(block.added.wall_us for block in blocks)
    other_us = statistics.median(block.added.other_us for block in blocks)
    added = Cost(middle_us, wall_us, other_us)
    return Result(contender.name, contender.logs, added, low_us, high_us)


def section(training: Training, bare_us: float, results: list[Result], rounds: int) -> str:
    """A table of costs and one of ratios, in markdown."""
    tensors = list(training.model.parameters())
    facts = (
        f"{len(tensors)} parameter tensors, {sum(p.numel() for p in tensors):,} parameters, fp16 "
        f"autocast with a GradScaler; the bare step takes {bare_us / 1000:.2f} ms of main-thread "
        f"CPU. {rounds} rounds of {training.block_steps} steps."
    )
    lines = [
        f"## {training.name}",
        "",
        facts,
        "",
        "| µs a step, added | logs | main thread | quartiles | wall | other threads | prototype |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for result in results:
        prototype = PROTOTYPE_US.get(result.name, "") if training.name == TARGETS_MODEL else ""
        lines.append(
            f"| {result.name} | {result.logs} | {result.added.main_us:.1f} "
            f"| {result.low_us:.1f} to {result.high_us:.1f} | {result.added.wall_us:.1f} "
            f"| {result.added.other_us:.1f} | {prototype} |"
        )
    if training.name == TARGETS_MODEL:
        lines += ["", *ratios(results)]
    return "\n".join(lines)


def ratios(results: list[Result]) -> list[str]:
    """Our cost over theirs, beside the figure to reach."""
    main_us = {result.name: result.added.main_us for result in results}
    lines = ["| main thread | over | ratio | at most | |", "|---|---|---:|---:|---|"]
    for ours, theirs, limit in TARGETS:
        if ours in main_us and theirs in main_us:
            ratio = main_us[ours] / main_us[theirs]
            verdict = "reached" if ratio <= limit else "**missed**"
            lines.append(f"| {ours} | {theirs} | {ratio:.3f} | {limit:.2f} | {verdict} |")
    return lines


def machine() -> str:
    """What was measured on, without saying whose it is."""
    packages = ("torch", "numpy", "pyarrow", "pyzmq", "tensorboard", "wandb", "trackio")
    versions = ", ".join(f"{name} {installed(name)}" for name in packages)
    absent = left_out()
    described = (
        f"Machine: {cpu_model()}, {os.cpu_count()} cores (one for torch), {platform.system()}, "
        f"Python {platform.python_version()}, {versions}."
    )
    lines = [
        "# What watching costs a training step",
        "",
        "Made by `python benchmarks/overhead.py`, whose docstring says how.",
        described,
        "W&B hands its scalars to a process of its own, whose time is not counted.",
    ]
    if absent:
        lines.append(f"Left out, because not installed: {', '.join(absent)}.")
    return "\n".join(lines)


def cpu_model() -> str:
    """The processor's name, as the system gives it."""
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return platform.processor() or platform.machine()
    names = [line for line in path.read_text().splitlines() if line.startswith("model name")]
    return names[0].partition(":")[2].strip() if names else platform.machine()


def installed(package: str) -> str:
    """A package's version, or that there is none."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "(absent)"


def measure_gpu(options: argparse.Namespace) -> str:
    """Step time of the large transformer with and without the watch, and synchronisations added."""
    training = large_transformer()
    with tempfile.TemporaryDirectory() as name:
        keep_to(name)
        bare, watch = Bare(), watched("default", Path(name))
        pairs = [
            (timed_on_gpu(training, bare), timed_on_gpu(training, watch))
            for _ in range(options.rounds)
        ]
        syncs = [count_syncs(training, contender) for contender in (bare, watch)]
    bare_ms = statistics.median(pair[0] for pair in pairs)
    added_ms = statistics.median(pair[1] - pair[0] for pair in pairs)
    parameters = sum(p.numel() for p in training.model.parameters())
    return (
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}: {training.name} "
        f"({parameters:,}), bare step {bare_ms:.2f} ms, added by the default settings "
        f"{added_ms:.3f} ms = {added_ms / bare_ms:.2%} (at most 1 %); synchronisations in "
        f"{training.block_steps} steps: bare {syncs[0]}, watched {syncs[1]} (must be equal).\n"
    )


def timed_on_gpu(training: Training, contender: Bare) -> float:
    """Milliseconds a step, the device's queue empty before and after."""
    contender.begin(training)
    run_steps(training, training.block_steps // 2)
    torch.cuda.synchronize()
    began_s = time.perf_counter()
    run_steps(training, training.block_steps)
    torch.cuda.synchronize()
    took_s = time.perf_counter() - began_s
    contender.end()
    return took_s * 1e3 / training.block_steps


def run_steps(training: Training, steps: int) -> None:
    for _ in range(steps):
        training.step()


def count_syncs(training: Training, contender: Bare) -> int:
    """Warnings of torch's sync debug mode over a block; torch's own scaler makes one a step."""
    contender.begin(training)
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run_steps(training, training.block_steps)
    finally:
        torch.cuda.set_sync_debug_mode("default")
        contender.end()
    return sum("synchroniz" in str(warning.message) for warning in caught)


def progress() -> Progress:
    """A bar that says how many blocks are left."""
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    )


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--model", choices=("mlp", "transformer", "both"), default="both")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--out", type=Path, help="a file that gets the report too")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
