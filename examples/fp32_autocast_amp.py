"""The same training in fp32, under autocast alone and under autocast with a scaler, side by side.

This is PyTorch's automatic-mixed-precision recipe with a watch on each of the three, so that the
dashboard can lay them over each other. On a recent GPU half precision wins in time and memory; on
a CPU fp16 arithmetic is emulated and slower.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

import ampwatch


def main(arguments: Sequence[str] | None = None) -> None:
    options = read_options(arguments)
    train(options, "fp32", autocast=False, scaled=False)
    train(options, "autocast", autocast=True, scaled=False)
    train(options, "amp", autocast=True, scaled=True)


def train(options: argparse.Namespace, name: str, *, autocast: bool, scaled: bool) -> None:
    """One of the three; they start from the same weights and see the same data."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(options.seed)
    width = 4096 if device == "cuda" else 64

    model = make_model(width, layers=3).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler(device, enabled=scaled)
    inputs, target = torch.randn(2, 64, width, device=device)

    def forward() -> Tensor:
        with torch.autocast(device, torch.float16, enabled=autocast):
            return nn.functional.mse_loss(model(inputs), target)

    memory = memory_in_words(forward, device)
    started_s = time.perf_counter()
    with ampwatch.attach(scaler, model, run=name, log_dir=options.log_dir) as watch:  # <-- added
        for _ in range(options.steps):
            loss = forward()
            if not scaled:
                watch.log(loss=loss)  # without a working scaler nobody else says it
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        if device == "cuda":
            torch.cuda.synchronize()
    print(f"{name:8}  loss {loss.item():.6g}  {time.perf_counter() - started_s:.3f} s  {memory}")


def make_model(width: int, layers: int) -> nn.Sequential:
    """Linear layers: the work that tensor cores do."""
    hidden = [module for _ in range(layers - 1) for module in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(width, width))


def memory_in_words(forward: Callable[[], Tensor], device: str) -> str:
    """What one forward pass holds; on a CPU, which counts no peak, what it keeps for backward."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        forward()
        return f"{torch.cuda.max_memory_allocated() / 1e6:.3f} MB at the peak"
    kept_bytes = 0

    def keep(tensor: Tensor) -> Tensor:
        nonlocal kept_bytes
        kept_bytes += tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda kept: kept):
        forward()
    return f"{kept_bytes / 1e6:.3f} MB kept for backward"


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--log-dir", default=None, help="default: ./ampwatch-runs")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
