"""Real ranks over gloo, with bad batches; run as a script.

Arguments: how many ranks, a file to meet at, a folder for the runs, and what happens: `ddp`,
`fsdp`, `parts` (each rank trains its own part of a model, in step with the others), `one` (only
rank 0 has a guard), `dies` (as `parts`, and rank 1 is killed before the vote on a bad step),
`stops` (as `parts`, with a guard that may act once and then stops), `lower` (rank 0's advice is to
lower the rate).
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

import ampwatch
from ampwatch.guarding import joint_decision, lowered_rate

STEPS, BAD, DIES_AT = 130, (90, 101, 117), 101


class Told:
    """What the diagnosis would say, after a while that differs from rank to rank."""

    def __init__(self, _folder):
        self.looks = 0

    def answer(self):
        self.looks += 1
        return (0.25, "as the test says") if self.looks > 5 else None

    def drop(self):
        pass


def train(rank, world, meet, folder, case):
    joint_decision.MOST_STEPS, lowered_rate.Advice = 60, Told
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=world)
    parts = case in {"parts", "dies", "stops"}
    torch.manual_seed(rank if parts else 0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    if case == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    elif not parts:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    watch = ampwatch.attach(
        None, model, optimizer=optimizer, run="ranks", log_dir=folder, endpoint="off"
    )
    ended = []
    if case != "one" or rank == 0:
        put_guard(watch, case).on_stop(lambda: ended.append(True))
    random = torch.Generator().manual_seed(rank)
    for step in range(STEPS):
        x = torch.randn(16, 8, generator=random)
        optimizer.zero_grad()
        loss = (model(x).squeeze(1) - x.sin().sum(1)).square().mean()
        if step in BAD and rank == BAD.index(step) % world:  # one rank's batch alone is bad
            loss = loss * (1000.0 if step != BAD[-1] else float("nan"))
        watch.log(loss=loss)
        loss.backward()
        if case == "dies" and step == DIES_AT and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        schedule.step()
        torch.save(local(model.state_dict()), folder / f"{rank}.{step}.pt")
        if ended or (case == "dies" and step == DIES_AT):
            break  # what the training itself does next needs the other rank
        if parts:
            dist.barrier()
    watch.close()
    if case != "dies":
        dist.destroy_process_group()
    # All that is tested is done. What would follow frees the process group in torch's own code, in
    # which a rank stood for ever, 2 times in some 400, when the others had left.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def put_guard(watch, case):
    """The guard of this case."""
    stops = case == "stops"
    options = {"lower_rate": case == "lower", "most": (1 if stops else 5, 1000), "stop": stops}
    return ampwatch.guard(watch, dry_run=False, **options)


def local(state):
    """Of each tensor what this rank holds."""
    return {name: getattr(one, "_local_tensor", one).clone() for name, one in state.items()}


def main(world, meet, folder, case):
    told = (int(world), meet, Path(folder), case)
    several = multiprocessing.start_processes(
        _with_environment, told, nprocs=int(world), join=False,
        start_method="fork" if sys.platform == "linux" else "spawn",  # loading torch takes longer
    )  # fmt: skip
    for process in several.processes:
        process.join()
    sys.exit(sum(process.exitcode not in {0, -signal.SIGKILL} for process in several.processes))


def _with_environment(rank, world, meet, folder, case):
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "TORCHELASTIC_RUN_ID": "together"}
    train(rank, world, meet, folder, case)


if __name__ == "__main__":
    main(*sys.argv[1:])
