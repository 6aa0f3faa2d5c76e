"""A training that a launcher starts again by its plan: `python restarted_training.py RATE [STEPS]`.

It saves as it goes, resumes where `plan.json` says, and does what it says. Under torchrun it trains
on all ranks.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ampwatch

EVERY = 50
RANK, RANKS = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def main(rate: float, steps: int) -> None:
    plan = json.loads(Path("plan.json").read_text()) if Path("plan.json").exists() else {}
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=50)
    first = resume(plan, model, optimizer, scaler) if plan.get("checkpoint") else 0
    for group, planned in zip(optimizer.param_groups, rates_of(plan), strict=False):
        group["lr"] = planned
    trained = DistributedDataParallel(model) if RANKS > 1 else model
    with ampwatch.attach(
        scaler, trained, run="train", start_step=first, resume=bool(plan), endpoint="off"
    ) as watch:
        train(model, trained, optimizer, scaler, watch, range(first, steps))


def rates_of(plan):
    return plan["learning_rate"]["groups"] if plan else []


def resume(plan, model, optimizer, scaler):
    state = torch.load(plan["checkpoint"]["path"], weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    if plan["scaler"]["restore"]:
        scaler.load_state_dict(state["scaler"])
    return plan["checkpoint"]["step"]


def train(model, trained, optimizer, scaler, watch, steps):
    for step in steps:
        if step and step % EVERY == 0:
            path = f"step-{step}.pt"
            if RANK == 0:
                torch.save(
                    {"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                     "scaler": scaler.state_dict()}, path,
                )  # fmt: skip
            watch.saved(path)
        random = torch.Generator().manual_seed(step * RANKS + RANK)
        x = torch.randn(32, 16, generator=random)
        with torch.autocast("cpu", dtype=torch.float16):
            out = trained(x)
        loss = 4 * ((out.float() - x[:, :4].sin()) ** 2).mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


if __name__ == "__main__":
    if RANKS > 1:
        torch.distributed.init_process_group("gloo")
    main(float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 400)
    if RANKS > 1:
        torch.distributed.destroy_process_group()
