"""How long `attach` takes for a model of 10,000 modules.

python benchmarks/attach.py
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable

import torch
from torch import nn

import ampwatch

BLOCKS, LEAVES = 100, 99


def seconds(leaf: Callable[[], nn.Module], folder: str) -> str:
    """Wall and CPU time of one `attach`; modules and parameters it found."""
    model = nn.Sequential(*(nn.Sequential(*(leaf() for _ in range(LEAVES))) for _ in range(BLOCKS)))
    scaler = torch.amp.GradScaler("cpu")
    wall, cpu = time.perf_counter(), time.process_time()
    watch = ampwatch.attach(scaler, model, log_dir=folder, endpoint="off")
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    watch.close()
    modules, parameters = sum(1 for _ in model.modules()), sum(1 for _ in model.parameters())
    return f"{modules} modules, {parameters} parameters: {wall:.2f} s, {cpu:.2f} s of CPU"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["XDG_STATE_HOME"] = scratch
        seconds(nn.Identity, scratch)  # what is imported on first use
        print(f"load {os.getloadavg()[0]:.1f}")
        print(seconds(nn.Identity, scratch))
        print(seconds(lambda: nn.Linear(2, 2), scratch))
