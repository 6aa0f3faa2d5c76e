"""bfloat16 needs no loss scaling, and ampwatch no scaler: name the optimizer, hand over the loss.

With a scaler ampwatch takes the loss from `scaler.scale` and the rate from `scaler.step`. Without
one a step ends at `optimizer.step()`, and `watch.log(loss=...)` says what the loss was.
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

    model = nn.Sequential(nn.Linear(16, 64), nn.SiLU(), nn.Linear(64, 2)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    watch = ampwatch.attach(None, model, optimizer=optimizer, log_dir=options.log_dir)  # <-- added

    for step in range(options.steps):
        inputs = torch.randn(64, 16, device=device)
        labels = (inputs.norm(dim=1) > 4).long()
        with torch.autocast(device, torch.bfloat16):
            logits = model(inputs)
            loss = nn.functional.cross_entropy(logits, labels)
        accuracy = (logits.argmax(1) == labels).float().mean()
        watch.log(loss=loss, accuracy=accuracy)  # <-- added; tensors are read later, without a wait
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}  loss {loss.item():.6g}  accuracy {accuracy.item():.6g}")


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--log-dir", default=None, help="default: ./ampwatch-runs")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
