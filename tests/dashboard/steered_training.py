"""A training whose rate is too high for long: `python steered_training.py RUN CONTROL`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch

import ampwatch


def main(name: str, control: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1_000_000)
    watch = ampwatch.attach(
        None, model, optimizer=optimizer, run=name, control=control == "allowed"
    )
    saved = Path(f"{name}.pt").absolute()
    watch.on_save(lambda: torch.save(model.state_dict(), saved))
    with watch:
        for _ in range(20_000):
            x = torch.randn(16, 8)
            loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
            watch.log(loss=loss.detach())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            time.sleep(0.01)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
