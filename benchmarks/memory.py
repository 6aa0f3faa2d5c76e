"""What watching costs in memory, and whether that stays flat over a million steps.

python benchmarks/memory.py                    added memory, 2,000 steps
python benchmarks/memory.py --steps 1000000    flatness; some minutes
python benchmarks/memory.py --live-steps 10000000    a live run: trainer's side, recorder, page

Each training runs in a process of its own, bare and watched, and reports its resident memory a
hundred times. The model is tiny: what grows is ours. See memory_live.py for the live run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

LIMIT_MB = 100


@dataclass(frozen=True, slots=True)
class Growth:
    """Resident memory of one training after a tenth of its steps and at its end; its log."""

    early_mb: float
    end_mb: float
    log_mb: float


def main(arguments: Sequence[str] | None = None) -> None:
    options = read_options(arguments)
    if options.child:
        train(options)
        return
    if options.live_steps:
        import memory_live

        print(memory_live.report(options.live_steps))
        return
    bare, watched = measure("bare", options.steps), measure("watched", options.steps)
    print(report(bare, watched, options.steps))


def measure(kind: str, steps: int) -> Growth:
    """Run one training in a child; its samples come back on stdout."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "XDG_STATE_HOME": folder, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, __file__, f"--child={kind}", f"--steps={steps}"]
        child = subprocess.run(
            [*command, f"--log-dir={folder}"],
            env=environment, check=True, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        samples = json.loads(child.stdout.splitlines()[-1])
        log_bytes = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    return Growth(samples[len(samples) // 10] / 1e6, samples[-1] / 1e6, log_bytes / 1e6)


def train(options: argparse.Namespace) -> None:
    """The child: a loop of tiny steps."""
    import torch

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    inputs = torch.randn(8, 4)
    if options.child == "watched":
        import ampwatch

        ampwatch.attach(scaler, model, log_dir=options.log_dir)
    process = psutil.Process()
    samples = []
    for step in range(options.steps):
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if (step + 1) % max(1, options.steps // 100) == 0:
            samples.append(process.memory_info().rss)
    print(json.dumps(samples))


def report(bare: Growth, watched: Growth, steps: int) -> str:
    """The figures, in markdown."""
    added_mb = watched.end_mb - bare.end_mb
    verdict = "reached" if added_mb <= LIMIT_MB else "**missed**"
    lines = [
        f"Resident memory of a training process, {steps:,} steps, in MB:",
        "",
        "| | after a tenth | at the end | grown | on disk |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, growth in (("bare", bare), ("watched", watched)):
        grown_mb = growth.end_mb - growth.early_mb
        lines.append(
            f"| {name} | {growth.early_mb:.1f} | {growth.end_mb:.1f} | {grown_mb:+.1f} "
            f"| {growth.log_mb:.1f} |"
        )
    return "\n".join([*lines, "", f"Added: {added_mb:.1f} MB (at most {LIMIT_MB}): {verdict}."])


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--live-steps", type=int, default=0)
    parser.add_argument("--child", choices=("bare", "watched"), help=argparse.SUPPRESS)
    parser.add_argument("--log-dir", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
