"""Save a checkpoint half-way, build everything anew, load it and go on: one run, two attempts.

The scaler's state belongs in the checkpoint. Without it the scale starts again at 65536, and the
first steps after each restart are skipped until it has come down to where it was.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

import ampwatch


def main(arguments: Sequence[str] | None = None) -> None:
    options = read_options(arguments)
    options.checkpoint.parent.mkdir(parents=True, exist_ok=True)
    half = options.steps // 2
    train(options, first_step=0, last_step=half)
    train(options, first_step=half, last_step=options.steps)
    options.checkpoint.unlink()


def train(options: argparse.Namespace, first_step: int, last_step: int) -> None:
    """One attempt: a fresh process would do the same."""
    resumed = first_step > 0
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(options.seed + first_step)

    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**20)
    if resumed:
        state = torch.load(options.checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scaler.load_state_dict(state["scaler"])

    with ampwatch.attach(  # <-- the added statement
        scaler, model, log_dir=options.log_dir, run=options.run,
        start_step=first_step, resume=resumed,
    ):  # fmt: skip
        for step in range(first_step, last_step):
            inputs = torch.randn(64, 16, device=device)
            with torch.autocast(device, torch.float16):
                loss = nn.functional.mse_loss(model(inputs), inputs.amax(1, keepdim=True))
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            print(f"step {step}  loss {loss.item():.6g}  scale {scaler.get_scale():g}")
        checkpoint = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scaler": scaler.state_dict(),
        }
        torch.save(checkpoint, options.checkpoint)


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--log-dir", default=None, help="default: ./ampwatch-runs")
    parser.add_argument("--run", default="save-and-resume", help="the run that is resumed")
    parser.add_argument("--checkpoint", type=Path, default=Path("save_and_resume.pt"))
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
