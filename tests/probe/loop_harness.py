"""A small real training whose loop a test writes itself, call by call."""

from __future__ import annotations

import json

import torch
from torch import nn

import ampwatch


class Trainer:
    """A small real training; `watch` it, call the loop's parts in any order, `read` the run."""

    def __init__(self, folder, *, scale=1024.0, enabled=True, model=None, **settings):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=scale, enabled=enabled)
        watched = self.model if model is None else None
        self.watch = ampwatch.attach(self.scaler, watched, log_dir=folder, run="r", **settings)

    def loss(self, factor=1.0):
        return self.model(torch.ones(3, 4)).square().mean() * factor

    def backward(self, factor=1.0):
        loss = self.loss(factor)
        self.scaler.scale(loss).backward()
        return loss.item()

    def step(self, factor=1.0):
        self.optimizer.zero_grad()
        loss = self.backward(factor)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss

    def read(self):
        self.watch.close()
        return ampwatch.open_run(self.watch.run_folder)


def column(run, name):
    return run.steps[name].to_pylist()


def events(run, kind):
    return [
        json.loads(event["detail"]) for event in run.events.to_pylist() if event["kind"] == kind
    ]
