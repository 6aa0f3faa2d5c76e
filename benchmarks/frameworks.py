"""What watching costs a training step where a framework writes the loop, beside its own logger.

python benchmarks/frameworks.py            about four minutes
python benchmarks/frameworks.py --quick    a look

Under every framework twins train the 12-layer MLP of benchmarks/overhead.py, each in a thread of
its own: the one by itself, the other with a contender. As a step begins they give way to each
other, every ten steps, so that whatever else the machine does befalls both; after a warm-up they
are timed. Contenders: nothing (what the method itself cannot tell apart), the framework's own
TensorBoard logger given eight ready-made numbers a step (for Transformers the same calls from a
callback: its own logs three), and ampwatch. Pairs of such twins come in shuffled order, and take
turns in going first. A contender's cost is the median over blocks of fifty steps, as many as from
one sampled step to the next, of what it took beyond its twin: a block in which the machine did
something else counts for no more than any other. The main thread is the one that trains.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import random
import statistics
import tempfile
import threading
import warnings
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import torch
from frameworks_loops import BARE, CONTENDERS, DEFAULT, LOGGER, LOOPS, SCALER, Loop
from overhead import Block, Cost, clocks, cpu_model, installed, keep_to, progress

WARM_UP, TIMED, BLOCK, TURN = 100, 300, 50, 10  # steps: the first after attach are sampled
LIMITS = {SCALER: 0.10, DEFAULT: 1.00}  # of the logger's main-thread time
PACKAGES = ("torch", "lightning", "accelerate", "transformers", "tensorboard")
NEEDS = {"Lightning": "lightning", "Lightning Fabric": "lightning", "Accelerate": "accelerate",
         "Transformers Trainer": "transformers"}  # fmt: skip

Costs = dict[str, list[Block]]  # by contender, several a round


class Turn:
    """One of two loops that somebody else writes: it is stopped and timed as its steps begin."""

    def __init__(self) -> None:
        self.may_run = threading.Event()
        self.partner: Turn = self
        self.blocks_us = [[0.0, 0.0, 0.0] for _ in range(TIMED // BLOCK)]
        self.problem: BaseException | None = None
        self._step = 0
        self._began = (0.0, 0.0, 0.0)

    def tick(self) -> None:
        """A step begins; after a turn it is the partner's."""
        if self._step % TURN == 0 and self._step:
            if self._step > WARM_UP:
                block_us = self.blocks_us[(self._step - WARM_UP - 1) // BLOCK]
                for i, (start, end) in enumerate(zip(self._began, clocks(), strict=True)):
                    block_us[i] += (end - start) * 1e6 / BLOCK
            self.hand_over()
            self.may_run.wait()
            self._began = clocks()
        self._step += 1

    def hand_over(self) -> None:
        """Let the partner run."""
        if self.partner is not self:
            self.may_run.clear()
            self.partner.may_run.set()

    def run(self, loop: Loop, contender: str, folder: Path) -> None:
        """The whole training, when it is this one's turn."""
        self.may_run.wait()
        try:
            loop(contender, folder, WARM_UP + TIMED + 1, self.tick)
        except BaseException as problem:
            self.problem = problem
        self.partner.partner = self.partner  # it goes on alone
        self.partner.may_run.set()


def main(arguments: Sequence[str] | None = None) -> None:
    options = read_options(arguments)
    torch.set_num_threads(1)
    rounds = 3 if options.quick else options.rounds
    loops = {name: loop for name, loop in LOOPS.items() if find_spec(NEEDS[name])}
    costs = run_rounds(loops, rounds)
    sections = [section(name, costs[name], rounds) for name in loops]
    report = "\n\n".join([head(), *sections, verdicts(costs)]) + "\n"
    print(report)
    if options.out:
        options.out.write_text(report, encoding="utf-8")


def run_rounds(loops: dict[str, Loop], rounds: int) -> dict[str, Costs]:
    """Every framework with every contender once a round, each round in an order of its own."""
    shuffled = random.Random(0)
    pairs = [(name, contender) for name in loops for contender in CONTENDERS]
    costs: dict[str, Costs] = {name: {one: [] for one in CONTENDERS} for name in loops}
    with tempfile.TemporaryDirectory() as place, progress() as bar, silence():
        keep_to(place)
        task = bar.add_task("frameworks", total=rounds * len(pairs))
        for number in range(rounds):
            for name, contender in shuffled.sample(pairs, len(pairs)):
                costs[name][contender] += timed(loops[name], contender, place, number % 2)
                bar.advance(task)
    return costs


def timed(loop: Loop, contender: str, place: str, bare_place: int) -> list[Block]:
    """Both trainings from nothing, in turns; what each block of steps took."""
    bare, other = Turn(), Turn()
    bare.partner, other.partner = other, bare
    twins = [(other, contender)]
    twins.insert(bare_place, (bare, BARE))
    with tempfile.TemporaryDirectory(dir=place) as folder:
        threads = [
            threading.Thread(target=turn.run, args=(loop, who, Path(folder) / str(number)))
            for number, (turn, who) in enumerate(twins)
        ]
        for thread in threads:
            thread.start()
        twins[0][0].may_run.set()
        for thread in threads:
            thread.join()
    for turn, _ in twins:
        if turn.problem is not None:
            raise turn.problem
    return [
        Block(Cost(*(mine - its for mine, its in zip(ours, theirs, strict=True))), Cost(*theirs))
        for ours, theirs in zip(other.blocks_us, bare.blocks_us, strict=True)
    ]


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """The frameworks greet and warn, each in its way."""
    logging.disable(logging.WARNING)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
    logging.disable(logging.NOTSET)


def section(name: str, costs: Costs, rounds: int) -> str:
    """A framework's table, in markdown."""
    bare_us = statistics.median(block.bare.main_us for each in costs.values() for block in each)
    measured = f"{rounds} rounds of {TIMED // BLOCK} blocks of {BLOCK} steps"
    lines = [
        f"## {name}",
        "",
        f"By itself a step takes {bare_us / 1000:.2f} ms of the main thread. {measured}.",
        "",
        "| µs a step, added | main thread | quartiles | wall | other threads |",
        "|---|---:|---:|---:|---:|",
    ]
    for contender in CONTENDERS:
        extra = [block.added for block in costs[contender]]
        low, middle, high = statistics.quantiles((cost.main_us for cost in extra), n=4)
        wall, other = (
            statistics.median(getattr(cost, field) for cost in extra)
            for field in ("wall_us", "other_us")
        )
        lines.append(
            f"| {contender} | {middle:.0f} | {low:.0f} to {high:.0f} | {wall:.0f} | {other:.0f} |"
        )
    return "\n".join(lines)


def verdicts(costs: dict[str, Costs]) -> str:
    """Ours over the logger's, beside the figures of the plain loop."""
    lines = [
        "## Ours over the framework's logger",
        "",
        "| main thread | framework | ratio | at most | |",
        "|---|---|---:|---:|---|",
    ]
    for contender, limit in LIMITS.items():
        for name, its in costs.items():
            ours, logger = (
                statistics.median(block.added.main_us for block in its[one])
                for one in (contender, LOGGER)
            )
            ratio = ours / logger
            verdict = "reached" if ratio <= limit else "**missed**"
            lines.append(f"| {contender} | {name} | {ratio:.2f} | {limit:.2f} | {verdict} |")
    return "\n".join(lines)


def head() -> str:
    """What was measured, and on what."""
    versions = ", ".join(f"{name} {installed(name)}" for name in PACKAGES)
    return (
        "# What watching costs a step under a framework\n\n"
        "Made by `python benchmarks/frameworks.py`, whose docstring says how.\n"
        f"Machine: {cpu_model()}, one core for torch, {versions}."
    )


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="three rounds")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--out", type=Path, help="a file that gets the report too")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
