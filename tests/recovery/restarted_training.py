"""A training that a launcher starts again by its plan: `python restarted_training.py RATE`.

It saves as it goes, resumes where `plan.json` says, and takes from it the rate.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import nn

import ampwatch

STEPS, EVERY = 400, 50


def main(rate: float) -> None:
    plan = json.loads(Path("plan.json").read_text()) if Path("plan.json").exists() else {}
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=50)
    first, saved = 0, plan.get("checkpoint")
    if saved:
        state = torch.load(saved["path"], weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        if plan["scaler"]["restore"]:
            scaler.load_state_dict(state["scaler"])
        first = saved["step"]
    if plan:
        for group in optimizer.param_groups:
            group["lr"] = rate * (plan["learning_rate"]["factor"] or 1.0)
    with ampwatch.attach(
        scaler, model, run="train", start_step=first, resume=bool(plan), endpoint="off"
    ) as watch:
        train(model, optimizer, scaler, watch, first)


def train(model, optimizer, scaler, watch, first):
    for step in range(first, STEPS):
        if step and step % EVERY == 0:
            path = f"step-{step}.pt"
            torch.save(
                {"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                 "scaler": scaler.state_dict()}, path,
            )  # fmt: skip
            watch.saved(path)
        random = torch.Generator().manual_seed(step)
        x = torch.randn(32, 16, generator=random)
        with torch.autocast("cpu", dtype=torch.float16):
            out = model(x)
        loss = 4 * ((out.float() - x[:, :4].sin()) ** 2).mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


if __name__ == "__main__":
    main(float(sys.argv[1]))
