"""A rank that trains by itself for a number of steps: `late_rank.py STEPS [RUN]`.

Whether and where it meets others is told by the environment, as a launcher leaves it.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist

import ampwatch


def main(steps: int, run: str | None = None) -> None:
    if "MASTER_ADDR" in os.environ:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    rank = int(os.environ.get("RANK", 0))
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with ampwatch.attach(scaler, model, run=run):
        for step in range(steps):
            inputs = torch.randn(32, 8, generator=torch.Generator().manual_seed(2 * step + rank))
            with torch.autocast("cpu", torch.float16):
                outputs = model(inputs)
            optimizer.zero_grad()
            scaler.scale((outputs.float() - inputs.sum(1, keepdim=True)).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
