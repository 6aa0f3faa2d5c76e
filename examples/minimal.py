"""The smallest mixed-precision loop, and the one line that watches it.

python examples/minimal.py, then: ampwatch list, ampwatch report RUN
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
from torch import nn

import ampwatch


def main(arguments: Sequence[str] | None = None) -> None:
    options = read_options(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(options.seed)

    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler(device)

    ampwatch.attach(scaler, model, log_dir=options.log_dir)  # <-- the added line

    for step in range(options.steps):
        inputs = torch.randn(64, 32, device=device)
        with torch.autocast(device, torch.float16):
            loss = nn.functional.mse_loss(model(inputs), inputs[:, :4].sum(1, keepdim=True))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        print(f"step {step}  loss {loss.item():.6g}  scale {scaler.get_scale():g}")


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--log-dir", default=None, help="default: ./ampwatch-runs")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
