"""Scripts for `ampwatch run`, in real processes: alone, and watched."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import children

import ampwatch

ROOT = Path(__file__).parents[2]

TRAIN = """
import sys, torch
from torch import nn
torch.manual_seed(0)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 1)
    def forward(self, x):
        return self.last(torch.relu(self.first(x)))
def train(steps, scaler, model, optimizer):
    for step in range(steps):
        with torch.autocast("cpu", torch.float16):
            loss = model(torch.randn(4, 8)).float().square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
def parts(scale=2.0**60):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return torch.amp.GradScaler("cpu", init_scale=scale), model, optimizer
"""


def script(folder: Path, text: str, name: str = "train.py") -> Path:
    path = folder / name
    path.write_text(TRAIN + textwrap.dedent(text))
    return path


def environment(folder: Path, **more: str) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "AMPWATCH_ENDPOINT": "off",
        "AMPWATCH_QUIET": "",  # the line that says where the run is belongs to what is tested
        "XDG_STATE_HOME": str(folder / "state"),
        "OMP_NUM_THREADS": "1",
        **more,
    }


# What `ampwatch run` does within the script's process.
WITHIN = """
import runpy, sys
from ampwatch.integrations.script_watch import prepare
prepare()
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def ran(folder: Path, *command: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder, env=environment(folder, **more), capture_output=True, text=True, timeout=150,
        check=False,
    )  # fmt: skip


def alone(folder: Path, *command: str, **more: str) -> subprocess.CompletedProcess[str]:
    """As `ran`, in a process that has loaded torch already."""
    return children.run(*command, cwd=folder, env=environment(folder, **more))


def watched(folder: Path, *command: str, **more: str) -> subprocess.CompletedProcess[str]:
    return ran(folder, "-m", "ampwatch", "run", "--name", "it", *command, **more)


def watched_as_forks(folder: Path, *command: str, **more: str) -> subprocess.CompletedProcess[str]:
    """As `watched`, with the command, the script and what that starts forked."""
    words = ["-m", "ampwatch", "run", "--name", "it", *command]
    forks = children.forking(environment(folder, **more))
    return children.run(*words, cwd=folder, env=forks)


def watched_within(folder: Path, name: str, **more: str) -> subprocess.CompletedProcess[str]:
    """As `watched`, in a process that has loaded torch already."""
    more = {"AMPWATCH_RUN_OPTIONS": '{"run": "it"}', **more}
    return children.run("-c", WITHIN, name, cwd=folder, env=environment(folder, **more))


def the_run(folder: Path, name: str = "it") -> ampwatch.Run:
    return ampwatch.open_run(folder / "ampwatch-runs" / name)


def without_ours(text: str) -> str:
    return re.sub(r"(?m)^ampwatch: .*\n", "", text)
