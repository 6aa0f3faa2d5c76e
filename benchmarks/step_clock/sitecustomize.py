"""Read by Python as it starts: notes when each optimizer steps, and the state it all ends in.

Stands on PYTHONPATH in both halves of `programs.py`, so that its own cost is in both. The time is
the processor's, of all threads: another program on the machine does not count. The state is the
weights, the optimizers' own tensors and where torch's random numbers stand.
"""

import atexit
import hashlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

_seconds: list[float] = []
_optimizers: dict[int, Optimizer] = {}


def _stepped(optimizer: Optimizer, *_: object) -> None:
    _seconds.append(time.process_time())
    _optimizers[id(optimizer)] = optimizer


def _tensors(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            yield parameter
            held = optimizer.state.get(parameter, {})
            yield from (value for value in held.values() if isinstance(value, torch.Tensor))


def _tell() -> None:
    if not _seconds:
        return  # a launcher, a worker
    digest = hashlib.sha256(torch.get_rng_state().numpy().tobytes())
    for optimizer in _optimizers.values():
        for tensor in _tensors(optimizer):
            bits = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            digest.update(bits.numpy().tobytes())
    rank = os.environ.get("RANK", "0")
    told = {"seconds": _seconds, "state": digest.hexdigest()}
    Path(os.environ["STEP_CLOCK"], f"{rank}.json").write_text(json.dumps(told))


register_optimizer_step_post_hook(_stepped)
atexit.register(_tell)
