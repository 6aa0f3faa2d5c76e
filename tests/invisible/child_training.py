"""A training that meets with something; a child of test_bad_circumstances.

child_training.py LOG_DIR [--bare] [--steps N] [--at STEP] [--way WAY] [--acknowledge]. WAY is one
of WAYS, or nothing. Prints `ready` once it trains and at its end a digest of all that training
leaves; with --acknowledge also each batch, once the log has acknowledged it.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import resource
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import ampwatch

FULL_DISK_BYTES = 20_000


class Layer(nn.Module):
    """Linear, until told to fail."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.broken = False

    def forward(self, inputs: Tensor) -> Tensor:
        if self.broken:
            raise ValueError("the layer broke")
        return self.inner(inputs).relu()


class Training:
    """A loop that overflows a few times; the data comes through DataLoader workers if wanted."""

    def __init__(self, workers: int) -> None:
        torch.manual_seed(11)
        self.model = nn.Sequential(nn.Linear(8, 8), Layer(), nn.Linear(8, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=30)
        self.data: Any = None
        if workers:
            inputs = torch.randn(160, 8)
            context = "fork" if hasattr(os, "fork") else None
            self.data = DataLoader(
                TensorDataset(inputs), 8, num_workers=workers, multiprocessing_context=context
            )
            self.rows = iter(self.data)

    def batch(self) -> Tensor:
        if self.data is None:
            return torch.randn(8, 8)
        try:
            return next(self.rows)[0]
        except StopIteration:
            self.rows = iter(self.data)
            return next(self.rows)[0]

    def step(self) -> None:
        with torch.autocast("cpu", torch.float16):
            loss = self.model(self.batch()).square().mean()
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def digest(self) -> str:
        state = [p.detach().numpy().tobytes() for p in self.model.parameters()]
        state += [repr(self.scaler.state_dict()).encode(), torch.get_rng_state().numpy().tobytes()]
        return hashlib.sha256(b"".join(state)).hexdigest()


def folder_vanishes(training: Training, log_dir: Path) -> None:
    shutil.rmtree(log_dir, ignore_errors=True)


def forward_fails(training: Training, log_dir: Path) -> None:
    training.model[1].broken = True


def exits(training: Training, log_dir: Path) -> None:
    sys.exit(3)


def exits_hard(training: Training, log_dir: Path) -> None:
    time.sleep(0.5)  # what is older than a flush is on disk
    os._exit(5)


def clock_jumps_back(training: Training, log_dir: Path) -> None:
    real, real_ns = time.time, time.time_ns
    time.time = lambda: real() - 3600.0
    time.time_ns = lambda: real_ns() - 3600 * 10**9


def forks(training: Training, log_dir: Path) -> None:
    """The child trains on, and ends as any program does, with what runs at exit."""
    if pid := os.fork():
        assert os.waitpid(pid, 0)[1] == 0
        return
    for _ in range(20):
        training.step()
    sys.exit(0)


def forks_and_leaves(training: Training, log_dir: Path) -> None:
    """The child trains on with a new watch of its own, and leaves hard."""
    if pid := os.fork():
        assert os.waitpid(pid, 0)[1] == 0
        return
    training.step()
    os._exit(0)


def scaler_is_watched_again(training: Training, log_dir: Path) -> None:
    """A notebook cell that is run twice."""
    if type(training.scaler) is not torch.amp.GradScaler:  # not in the bare loop
        ampwatch.attach(training.scaler, training.model, log_dir=log_dir, run="again")


WAYS: dict[str, Callable[[Training, Path], None]] = {
    function.__name__.replace("_", "-"): function
    for function in (
        folder_vanishes, forward_fails, exits, exits_hard, clock_jumps_back, forks,
        forks_and_leaves, scaler_is_watched_again,
    )
}  # fmt: skip


def say_what_is_acknowledged() -> None:
    """Write a line for each batch whose append has returned, past all buffers."""
    from ampwatch.store import RankWriter

    append = RankWriter.append

    def saying(self: Any, batch: Any, sequence: int | None = None) -> int:
        number = append(self, batch, sequence)
        os.write(1, f"acknowledged {number} {batch.table.value} {batch.row_count}\n".encode())
        return number

    RankWriter.append = saying


def main() -> None:
    options = read_options()
    torch.set_num_threads(1)
    training = Training(options.workers)
    if options.full_disk:
        resource.setrlimit(resource.RLIMIT_FSIZE, (FULL_DISK_BYTES, FULL_DISK_BYTES))
    if options.acknowledge:
        say_what_is_acknowledged()
    if not options.bare:
        ampwatch.attach(training.scaler, training.model, log_dir=options.log_dir, run="run")
    for step in range(options.steps):
        if step == options.at and options.way:
            WAYS[options.way](training, options.log_dir)
        training.step()
        if step == 0:
            print("ready", flush=True)
        time.sleep(options.pause_s)
    print(training.digest(), flush=True)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("log_dir", type=Path)
    parser.add_argument("--bare", action="store_true")
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--pause-s", type=float, default=0.0)
    parser.add_argument("--at", type=int, default=40)
    parser.add_argument("--way", choices=WAYS)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--full-disk", action="store_true")
    parser.add_argument("--acknowledge", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
