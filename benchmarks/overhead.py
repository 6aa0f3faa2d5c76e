"""What watching costs a training step, beside the bare loop and other loggers.

python benchmarks/overhead.py                 both small models on the CPU
python benchmarks/overhead.py --model mlp --quick     a look
On a GPU: benchmarks/gpu.py.

One process trains twins, two equal trainings, the one bare, the other with a contender. They take
turns of ten steps, so that whatever else the machine does befalls both. Blocks of such turns come
in shuffled order over the contenders, the twins change roles with each round, and a contender's
cost is the median over rounds of the difference a step. Main-thread CPU time is what our calls burn
there; wall time adds what background threads take from it. Baselines get ready-made numbers.
Results: results/overhead.md.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import os
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median, quantiles

import torch
from overhead_training import Training, mlp, transformer
from parts.loggers import LOGGERS, PACKAGES
from parts.machine import keep_state_in, machine
from parts.options import command_line
from parts.tables import table
from rich.progress import track

import ampwatch

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


# --- what is compared -----------------------------------------------------------------------------

EIGHT = ("loss", "scale", "growth_tracker", "skipped", "lr", "grad_norm", "param_norm", "update")


class Bare:
    """The loop by itself; what the others are measured against."""

    name = "bare loop again"  # as a contender it shows what the method itself cannot tell apart
    logs = "nothing"

    def begin(self, training: Training) -> None:
        """Get ready for a block."""

    def after_step(self, training: Training) -> None:
        """Do what a loop with this contender does once a step."""

    def end(self) -> None:
        """Leave the training as it was."""

    def close(self) -> None:
        """Give everything back at the end of the benchmark."""


class Watched(Bare):
    """ampwatch, attached for each block and detached after it."""

    def __init__(self, key: str, folder: Path) -> None:
        self.name, self.logs, self._layer_every = WATCHED[key]
        self._folder = folder / "ampwatch"

    def begin(self, training: Training) -> None:
        of_layers = {} if self._layer_every is None else {"layer_every": self._layer_every}
        model = training.model if of_layers else None
        watch = ampwatch.attach(training.scaler, model, log_dir=self._folder, **of_layers)
        self.end = watch.close


class Logged(Bare):
    """Another logger."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.logs = "eight scalars by one call each" if name == "TensorBoard" else "eight scalars"
        self._logger = LOGGERS[name](folder)
        self._steps = itertools.count()
        self.close = self._logger.close

    def after_step(self, training: Training) -> None:
        step = next(self._steps)
        self._logger.log(dict.fromkeys(EIGHT, 0.5 * step), step)


class Naive(Logged):
    """The monitor people write first."""

    def __init__(self, folder: Path) -> None:
        super().__init__("TensorBoard", folder)
        self.name = "naive monitor"
        self.logs = "p.grad.norm().item() for each parameter and the eight scalars, by add_scalar"

    def after_step(self, training: Training) -> None:
        super().after_step(training)
        for name, parameter in training.model.named_parameters():
            self._logger.log({name: parameter.grad.norm().item()}, training.steps_done)


WATCHED = {
    "scalars": ("ampwatch, the scaler alone", "scalars and skips", None),
    "norms": ("ampwatch, layer_every=10**9", "and global, per-layer and update norms", 10**9),
    "default": ("ampwatch, default settings", "and layer statistics every 50 steps", 50),
}


def all_contenders(folder: Path) -> Iterator[Bare]:
    """The bare loop, the three watched settings, and every baseline that is installed."""
    yield Bare()
    yield from (Watched(key, folder) for key in WATCHED)
    yield from (Logged(name, folder / name) for name in LOGGERS if name not in left_out())
    if "TensorBoard" not in left_out():
        yield Naive(folder / "naive")


def left_out() -> list[str]:
    """Loggers that are not installed."""
    return [name for name, package in PACKAGES.items() if not find_spec(package)]


# --- measuring ------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    options = read_options(arguments)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rounds = 2 if options.quick else options.rounds
    makers = {"mlp": [mlp], "transformer": [transformer], "both": [mlp, transformer]}
    sections = []
    for make in makers[options.model]:
        twins = [make(), make()]
        for twin in twins:
            twin.block_steps //= 10 if options.quick else 1
        sections.append(measure(twins, rounds))
    report = "\n\n".join([head(), *sections]) + "\n"
    print(report)
    if options.out:
        options.out.write_text(report, encoding="utf-8")


def measure(twins: list[Training], rounds: int) -> str:
    """One model's section of the report."""
    with tempfile.TemporaryDirectory() as name:
        prepare(name)
        contenders = list(all_contenders(Path(name)))
        blocks = run_rounds(twins, contenders, rounds)
        for contender in contenders:
            contender.close()
    bare_us = median(block.bare.main_us for each in blocks.values() for block in each)
    return section(twins[0], bare_us, contenders, blocks, rounds)


def prepare(folder: str) -> None:
    """The benchmark's runs are listed nowhere else, and a watch that fails is not measured."""
    keep_state_in(folder)
    os.environ["AMPWATCH_STRICT"] = "1"


def run_rounds(
    twins: list[Training], contenders: list[Bare], rounds: int
) -> dict[str, list[Block]]:
    """Every contender once a round, each round in an order of its own, the twins in turn."""
    shuffled = random.Random(0)
    blocks: dict[str, list[Block]] = {contender.name: [] for contender in contenders}
    for _ in track(range(rounds), twins[0].name):
        twins.reverse()
        for contender in shuffled.sample(contenders, len(contenders)):
            blocks[contender.name].append(run_block(*twins, contender))
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


def section(
    training: Training, bare_us: float, contenders: list[Bare], blocks: dict[str, list[Block]],
    rounds: int,
) -> str:  # fmt: skip
    """A table of costs and one of ratios: medians, so that a disturbed round does not count."""
    tensors = list(training.model.parameters())
    facts = (
        f"{len(tensors)} parameter tensors, {sum(p.numel() for p in tensors):,} parameters, fp16 "
        f"autocast with a GradScaler; the bare step takes {bare_us / 1000:.2f} ms of main-thread "
        f"CPU. {rounds} rounds of {training.block_steps} steps."
    )
    rows, main_us = [], {}
    for who in contenders:
        added = [block.added for block in blocks[who.name]]
        low, main_us[who.name], high = quantiles((cost.main_us for cost in added), n=4)
        wall, other = (median(getattr(c, of) for c in added) for of in ("wall_us", "other_us"))
        figures = (f"{main_us[who.name]:.1f}", f"{low:.1f} to {high:.1f}")
        rows.append((who.name, who.logs, *figures, f"{wall:.1f}", f"{other:.1f}"))
    costs = table("µs a step, added | logs | main thread | quartiles | wall | other threads", rows)
    ratios = [ratios_table(main_us)] if training.name == TARGETS_MODEL else []
    return "\n\n".join([f"## {training.name}", facts, costs, *ratios])


def ratios_table(main_us: dict[str, float]) -> str:
    """Our cost over theirs, beside the figure to reach."""
    rows = []
    for ours, theirs, limit in TARGETS:
        if theirs in main_us:
            ratio = main_us[ours] / main_us[theirs]
            verdict = "reached" if ratio <= limit else "**missed**"
            rows.append((ours, theirs, f"{ratio:.3f}", f"{limit:.2f}", verdict))
    return table("main thread | over | ratio | at most | ", rows)


def head() -> str:
    """What was measured on."""
    absent = f"\nLeft out, because not installed: {', '.join(left_out())}." if left_out() else ""
    packages = ("torch", "numpy", "pyarrow", "pyzmq", "tensorboard", "wandb", "trackio")
    return (
        "# What watching costs a training step\n\nMade by `python benchmarks/overhead.py`, whose "
        f"docstring says how. One core for torch of {machine(*packages)}\n"
        f"W&B hands its scalars to a process of its own, whose time is not counted.{absent}"
    )


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--model", choices=("mlp", "transformer", "both"), default="both")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="two rounds of few steps")
    parser.add_argument("--out", type=Path, help="a file that gets the report too")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
