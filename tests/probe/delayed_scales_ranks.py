"""Two real processes that train with delayed scales over gloo, twice; run as a script.

Arguments: a file to meet at, and a folder for the runs: `reduced`, where maxima are reduced over
both ranks, and `own`, where they are not.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from delayed_scaling import DelayedScaling, Linear, fp8_autocast
from torch import multiprocessing, nn

import ampwatch

STEPS, WORLD = 10, 2


class Net(nn.Module):
    def __init__(self, recipe):
        super().__init__()
        self.first = nn.Linear(32, 32)
        self.blocks = nn.ModuleList([Linear(32, 32, recipe) for _ in range(2)])
        self.head = nn.Linear(32, 8)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def train(run, rank, folder):
    torch.manual_seed(0)
    model = Net(DelayedScaling(reduce_amax=run == "reduced"))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    data = torch.Generator().manual_seed(rank)
    with ampwatch.attach(None, model, optimizer=optimizer, run=run, log_dir=folder, endpoint="off"):
        for _ in range(STEPS):
            x = torch.randn(64, 32, generator=data) * (5 if rank else 1)
            with fp8_autocast(model):
                loss = model(x).square().mean()
            loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
            optimizer.step()
            optimizer.zero_grad()
    dist.barrier()


def work(rank, meet, folder):
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=WORLD)
    for run in ("reduced", "own"):
        train(run, rank, folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    multiprocessing.start_processes(
        work, args=tuple(sys.argv[1:3]), nprocs=WORLD,
        start_method="fork" if sys.platform == "linux" else "spawn",  # loading torch takes longer
    )  # fmt: skip
