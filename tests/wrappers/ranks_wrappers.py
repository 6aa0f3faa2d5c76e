"""Two ranks over gloo, each wrapper trained unwatched and watched; run as a script.

Arguments: a file to meet at, and a folder for the runs and for what the unwatched twins know.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import multiprocessing, nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.nn.parallel import DistributedDataParallel
from wrapper_parts import RATE_STEPS, Net, Training, batch, unwatched, watched
from wrapper_rank_cells import RANK_WRAPPERS

try:
    from torch.distributed.fsdp import fully_shard
except ImportError:  # torch before 2.6
    from torch.distributed._composable.fsdp import fully_shard

WORLD = 2


def loss_of_rank(training, step, part=0):
    inputs, targets = batch(step, 10 * dist.get_rank() + part)
    with torch.autocast("cpu", torch.float16):
        outputs = training.call(inputs)
    return nn.functional.mse_loss(outputs.float(), targets)


def backward(training, step):
    training.scaler.scale(loss_of_rank(training, step)).backward()


def accumulated(training, step):
    with training.call.no_sync():
        training.scaler.scale(loss_of_rank(training, step, 1) / 2).backward()
    training.scaler.scale(loss_of_rank(training, step, 2) / 2).backward()


def optimized(training):
    training.optimizers[:] = [torch.optim.SGD(training.call.parameters(), lr=0.1)]


def ddp(backward=backward):
    model = Net()
    return Training(model, attached=DistributedDataParallel(model), backward=backward)


def ddp_after():
    def wrap(training):
        training.call = DistributedDataParallel(training.model)

    return Training(once_attached=wrap, backward=backward)


def ddp_compiled():
    model = Net()
    compiled = torch.compile(DistributedDataParallel(model), backend="aot_eager")
    return Training(model, attached=compiled, backward=backward)


def sharded(training):
    for part in (training.model.middle, training.model):
        fully_shard(part)
    optimized(training)


def shard_before():
    training = Training(backward=backward)
    sharded(training)
    return training


def shard_after():
    return Training(once_attached=sharded, backward=backward)


def fsdp(*, orig):
    model = Net()
    wrapped = FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=orig)
    training = Training(model, attached=wrapped, backward=backward)
    training.scaler = ShardedGradScaler("cpu", init_scale=1024.0)
    optimized(training)
    return training


MAKES = {
    "DistributedDataParallel": ddp,
    "attach, then DistributedDataParallel": ddp_after,
    "no_sync accumulation": partial(ddp, accumulated),
    "torch.compile of DistributedDataParallel": ddp_compiled,
    "fully_shard": shard_before,
    "attach, then fully_shard": shard_after,
    "FullyShardedDataParallel": partial(fsdp, orig=False),
    "FullyShardedDataParallel(use_orig_params)": partial(fsdp, orig=True),
}


def whole(tensor):
    """A sharded tensor put together."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def work(rank, meet, folder):
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=WORLD)
    for wrapper in (one for one in RANK_WRAPPERS if one.runs):
        name, make = wrapper.name, MAKES[wrapper.name]
        truth = unwatched(make)
        ends, _ = watched(make, folder, run=name)
        for word, factor in (("well", 1.0), ("too high", wrapper.too_high)):
            rates = {"steps": RATE_STEPS, "spoilt": None, "rate_factor": factor}
            watched(make, folder, run=f"{name} {word}", **rates)
        for one in (truth, ends):
            one.weights = [whole(weight) for weight in one.weights]
        torch.save((truth, ends), Path(folder) / f"{name}-{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    multiprocessing.start_processes(
        work, args=tuple(sys.argv[1:3]), nprocs=WORLD,
        start_method="fork" if sys.platform == "linux" else "spawn",  # loading torch takes longer
    )  # fmt: skip
