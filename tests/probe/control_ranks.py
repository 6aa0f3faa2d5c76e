"""Real ranks over gloo of which a page asks something; run as a script.

Arguments: how many ranks, a file to meet at, a folder for the run, and which rank is deaf, or -1.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

import ampwatch
from ampwatch.feed import Instruction, InstructionArrived, Key
from ampwatch.probe import control as controls

STEPS, ASKED_AT, LATER, HALVED_AT = 500, 30, 260, 220


def train(rank, world, meet, folder, deaf):
    controls.LOOK_S = 0.1
    controls._SPARE_S = 1.5
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=world)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [HALVED_AT], 0.5)
    watch = ampwatch.attach(
        None, model, optimizer=optimizer, run="ranks", log_dir=folder, endpoint="off", control=True
    )
    control = watch.loop.control
    if rank == 0:
        watch.on_save(lambda: torch.save(model.state_dict(), folder / "saved.pt"))
    if rank == deaf:
        control.look = lambda: None
    random = torch.Generator().manual_seed(rank)
    for step in range(STEPS):
        asked = {ASKED_AT: Instruction(Key.RATE, 0.25), LATER: Instruction(Key.SAVE)}.get(step)
        if rank == 0 and asked is not None:
            control.take(InstructionArrived(asked, step, 0.1, True))
        optimizer.zero_grad()
        model(torch.randn(4, 8, generator=random)).square().mean().backward()
        optimizer.step()
        schedule.step()
        time.sleep(0.01)
    watch.close()
    torch.save(model.state_dict(), folder / f"{rank}.pt")
    dist.destroy_process_group()


def main(world, meet, folder, deaf):
    told = (int(world), meet, Path(folder), int(deaf))
    multiprocessing.start_processes(
        _with_environment, told, nprocs=int(world),
        start_method="fork" if sys.platform == "linux" else "spawn",  # loading torch takes longer
    )  # fmt: skip


def _with_environment(rank, world, meet, folder, deaf):
    import os

    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "TORCHELASTIC_RUN_ID": "together"}
    train(rank, world, meet, folder, deaf)


if __name__ == "__main__":
    main(*sys.argv[1:])
