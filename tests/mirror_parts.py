"""Runs that grow, trainings in a child, and a mirror that keeps what it is handed."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import children

import ampwatch
from ampwatch import codec, store


def write(path, table, columns, rank=0):
    """Rows of any table."""
    with contextlib.closing(store.RankWriter(path, rank)) as writer:
        writer.append(codec.encode(table, columns))


class Kept:
    """A mirror that keeps what it is handed, unless it is told to raise."""

    label = "the test"
    shows_past = True

    def __init__(self, trouble=None):
        self.trouble, self.asked, self.closed = trouble, 0, 0
        self.updates = []

    def take(self, update):
        self.asked += 1
        if self.trouble is not None:
            raise self.trouble
        self.updates.append(update)

    def close(self):
        self.closed += 1

    @property
    def points(self):
        return [points for update in self.updates for points in update.points]

    def curve(self, name, prefix="ampwatch/"):
        """The rows handed on, as (step, value)."""
        return [
            (step, readings[prefix + name])
            for points in self.points
            for step, _, readings in points.one_by_one()
            if prefix + name in readings
        ]


TRAINING = """
import hashlib, sys, torch, ampwatch
{before}
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
watch = ampwatch.attach(scaler, model, run="r", config={{"rate": 0.1}}{options})
{after}
for step in range(40):
    x = torch.randn(3, 4)
    if step in (5, 6):
        x = x * 1e6
    with torch.autocast("cpu", torch.float16):
        loss = model(x).square().mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    {each}
{end}
weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
print(hashlib.sha256(weights).hexdigest())
"""


def train(folder, *, fails=False, **parts):
    """A small real training in a process of its own; the child, whose stdout ends with a hash.

    `parts` fill the script, and those in capitals its environment.
    """
    own = {name: text for name, text in parts.items() if not name.isupper()}
    environment = {name: text for name, text in parts.items() if name.isupper()}
    empty = {"before": "", "options": "", "after": "", "each": "pass", "end": ""}
    code = TRAINING.format(**(empty | own))
    environment = {
        **os.environ, "PYTHONPATH": str(Path(ampwatch.__file__).parents[1]),
        "AMPWATCH_DIR": str(folder / "runs"), "OMP_NUM_THREADS": "1", **environment,
    }  # fmt: skip
    child = children.run("-c", code, cwd=folder, env=environment)
    assert (child.returncode != 0) == fails, child.stderr
    return child


def weights(child):
    """What the training ended with."""
    return child.stdout.split()[-1]


def logged(path, name):
    """A column of a run's steps as (step, value), absent left out: the truth."""
    rows = store.open_run(path).steps
    pairs = zip(rows["step"].to_pylist(), rows[name].to_pylist(), strict=True)
    return [(step, value) for step, value in pairs if value is not None]


def assert_report(path, diagnosis):
    """The report in this file is of this diagnosis; how the run stands is the reader's to say."""
    mirrored, told = json.loads(path.read_text("utf-8")), diagnosis.to_json()
    for report in (mirrored, told):
        del report["run"]["state"]
    assert mirrored == told


def skips(path):
    """How many steps were skipped up to each: the truth."""
    count, found = 0, []
    for step, was_skipped in logged(path, "skipped"):
        count += was_skipped
        found.append((step, count))
    return found
