"""Read by Python as it starts: notes when each optimizer steps and what its weights end as.

Stands on PYTHONPATH in both halves of `real_programs.py`, so that its own cost is in both. The time
is the processor's, of all threads: another program on the machine does not count.
"""

import atexit
import hashlib
import json
import os
import time
from pathlib import Path

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

_seconds: list[float] = []
_optimizers: dict[int, Optimizer] = {}


def _stepped(optimizer: Optimizer, *_: object) -> None:
    _seconds.append(time.process_time())
    _optimizers[id(optimizer)] = optimizer


def _tell() -> None:
    if not _seconds:
        return  # a launcher, a worker
    digest = hashlib.sha256()
    for optimizer in _optimizers.values():
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                digest.update(parameter.detach().cpu().contiguous().numpy().tobytes())
    rank = os.environ.get("RANK", "0")
    told = {"seconds": _seconds, "weights": digest.hexdigest()}
    Path(os.environ["STEP_CLOCK"], f"{rank}.json").write_text(json.dumps(told))


register_optimizer_step_post_hook(_stepped)
atexit.register(_tell)
