"""A bf16 training with bad batches, and a guard that leaves them out.

    python examples/guarded.py                what the guard would do: a dry run, as at first
    python examples/guarded.py --act          what it does
    python examples/guarded.py --no-guard     what happens without one

Every 60th batch or so has labels of another scale, as a broken shard has: without a scaler nothing
skips such a step, and the model needs tens of steps to come back.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
from torch import nn

import ampwatch

BAD = (150, 211, 268)


def main(arguments: Sequence[str] | None = None) -> None:
    options = read_options(arguments)
    torch.manual_seed(options.seed)
    model = nn.Sequential(
        nn.Linear(16, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
    watch = ampwatch.attach(None, model, optimizer=optimizer, log_dir=options.log_dir)
    if not options.no_guard:
        ampwatch.guard(
            watch, dry_run=not options.act
        )  # <-- added; say dry_run=False once you trust it

    for step in range(options.steps):
        inputs = torch.randn(64, 16)
        target = inputs.sin().sum(1) * (60.0 if step in BAD else 1.0)
        with torch.autocast("cpu", torch.bfloat16):
            output = model(inputs).squeeze(1)
        loss = nn.functional.mse_loss(output.float(), target)
        watch.log(loss=loss)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}  loss {loss.item():.6g}")


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--act", action="store_true", help="leave the steps out")
    how.add_argument("--no-guard", action="store_true")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--log-dir", default=None, help="default: ./ampwatch-runs")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
