"""Gradient clipping and accumulation: one step is four micro-batches, unscaled once, then clipped.

The order matters and ampwatch checks it: unscale_, clip, step, update. The run shows the gradient
norm before clipping (`grad_norm`) and as the optimizer saw it (`grad_norm_applied`).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
from torch import nn

import ampwatch

MICRO_BATCHES = 4
MAX_NORM = 1.0


def main(arguments: Sequence[str] | None = None) -> None:
    options = read_options(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(options.seed)

    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 4))
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler(device)

    ampwatch.attach(scaler, model, log_dir=options.log_dir)  # <-- the added line

    for step in range(options.steps):
        total = 0.0
        for _ in range(MICRO_BATCHES):
            inputs, labels = make_batch(device)
            with torch.autocast(device, torch.float16):
                loss = nn.functional.cross_entropy(model(inputs), labels) / MICRO_BATCHES
            scaler.scale(loss).backward()
            total += loss.item()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        print(f"step {step}  loss {total:.6g}  norm {norm.item():.6g}")


def make_batch(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Sixteen numbers; the label says which quarter holds the largest sum."""
    inputs = torch.randn(32, 16, device=device)
    return inputs, inputs.reshape(32, 4, 4).sum(2).argmax(1)


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--log-dir", default=None, help="default: ./ampwatch-runs")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
