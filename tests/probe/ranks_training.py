"""Two real processes that train together over gloo, each scenario watched and not; run as a script.

Arguments: a file to meet at, and a folder for the runs and the weights that each ends with.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import multiprocessing, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

import ampwatch

STEPS, WORLD = 60, 2
SCENARIOS = ("healthy", "labels", "inputs", "compressed", "uncompressed", "same-data", "apart")
_RARE = range(12, STEPS, 5)


class Head(nn.Linear):
    """The last layer in float32, as is usual; its gradients may leave half precision in health."""

    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            return super().forward(x.float())


def model_of():
    torch.manual_seed(0)
    head = Head(16, 4)
    nn.init.normal_(head.weight, std=1e-4)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.Tanh(), head)


def batch_of(scenario, step, rank):
    """Inputs and targets; what is rare in them is the scenario's."""
    seed = step if scenario == "same-data" else 2 * step + rank
    random = torch.Generator().manual_seed(seed)
    inputs, targets = torch.randn(8, 8, generator=random), torch.randn(8, 4, generator=random)
    if step in _RARE:
        if rank == 1 and scenario in {"labels", "apart"}:
            targets *= 1e13  # its loss is finite, its gradients in half precision are not
        if rank == 1 and scenario == "inputs":
            inputs *= 1e7
        if scenario.endswith("compressed"):
            targets *= 5000.0  # gradients that only float32 holds
    return inputs, targets


def train(scenario, rank, folder, *, watched):
    inner = model_of()
    model = inner if scenario == "apart" else DistributedDataParallel(inner)
    if scenario == "compressed":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=1000)
    watch = ampwatch.attach(scaler, model, run=scenario, log_dir=folder) if watched else None
    for step in range(STEPS):
        inputs, targets = batch_of(scenario, step, rank)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            outputs = model(inputs)
        scaler.scale(nn.functional.mse_loss(outputs, targets)).backward()
        scaler.step(optimizer)
        scaler.update()
    if watch is not None:
        watch.close()
    ends = [p.detach() for p in inner.parameters()], scaler.state_dict(), torch.get_rng_state()
    torch.save(ends, folder / f"{scenario}-{rank}-{watched}.pt")
    dist.barrier()


def work(rank, meet, folder):
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=WORLD)
    for scenario in SCENARIOS:
        for watched in (False, True):
            train(scenario, rank, Path(folder), watched=watched)
    dist.destroy_process_group()


if __name__ == "__main__":
    multiprocessing.start_processes(
        work, args=tuple(sys.argv[1:3]), nprocs=WORLD,
        start_method="fork" if sys.platform == "linux" else "spawn",  # loading torch takes longer
    )  # fmt: skip
