"""What does watching cost in memory, and does that stay flat over ten million steps?

    python benchmarks/memory.py [--quick]                added memory of a training, 2,000 steps
    python benchmarks/memory.py --steps 1000000          flatness; some minutes
    python benchmarks/memory.py --live-steps 10000000    a live run: trainer's side, recorder, page

Each training runs in a process of its own, bare and watched, and reports its resident memory a
hundred times. The model is tiny: what grows is ours. See memory_live.py for the live run.
Results: results/memory.md.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import psutil
from parts.children import told_by
from parts.machine import folder_bytes
from parts.options import command_line
from parts.tables import table

LIMIT_MB = 100


@dataclass(frozen=True, slots=True)
class Growth:
    """Resident memory of one training after a tenth of its steps and at its end; its log."""

    early_mb: float
    end_mb: float
    log_mb: float


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--live-steps", type=int, default=0)
    parser.add_argument("--copy", action="store_true", help="the page follows the recorder's copy")
    parser.add_argument("--quick", action="store_true", help="200 steps")
    parser.add_argument("--child", nargs=2, metavar=("KIND", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    steps = 200 if options.quick else options.steps
    if options.child:
        print(json.dumps(train(*options.child, steps)))
    elif options.live_steps:
        import memory_live

        print(memory_live.report(options.live_steps, copy=options.copy))
    else:
        print(report({kind: measure(kind, steps) for kind in ("bare", "watched")}, steps))


def measure(kind: str, steps: int) -> Growth:
    """Run one training in a child, which says its samples."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "XDG_STATE_HOME": folder, "OMP_NUM_THREADS": "1"}
        samples = told_by(
            __file__, "--child", kind, folder, f"--steps={steps}", environment=environment
        )
        log_mb = folder_bytes(Path(folder)) / 1e6
    return Growth(samples[len(samples) // 10] / 1e6, samples[-1] / 1e6, log_mb)


def train(kind: str, folder: str, steps: int) -> list[int]:
    """The child: a loop of tiny steps; its resident memory, a hundred times."""
    import torch

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    inputs = torch.randn(8, 4)
    if kind == "watched":
        import ampwatch

        ampwatch.attach(scaler, model, log_dir=folder)
    process = psutil.Process()
    samples = []
    for step in range(steps):
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if (step + 1) % max(1, steps // 100) == 0:
            samples.append(process.memory_info().rss)
    return samples


def report(found: dict[str, Growth], steps: int) -> str:
    """The figures, in markdown."""
    added_mb = found["watched"].end_mb - found["bare"].end_mb
    rows = [
        (name, f"{of.early_mb:.1f}", f"{of.end_mb:.1f}", f"{of.end_mb - of.early_mb:+.1f}",
         f"{of.log_mb:.1f}")
        for name, of in found.items()
    ]  # fmt: skip
    verdict = "reached" if added_mb <= LIMIT_MB else "**missed**"
    return (
        f"Resident memory of a training process, {steps:,} steps, in MB:\n\n"
        f"{table(' | after a tenth | at the end | grown | on disk', rows)}\n\n"
        f"Added: {added_mb:.1f} MB (at most {LIMIT_MB}): {verdict}."
    )


if __name__ == "__main__":
    main()
