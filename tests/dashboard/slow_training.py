"""A real training that takes its time: `slow_training.py RUN STEPS PAUSE_S [FROM [FACTOR]]`.

From step FROM on the loss is FACTOR times as large: by default so large that fp16 gradients
overflow and steps are skipped. A small one loses gradients; its learning rate makes up for it.
"""

from __future__ import annotations

import sys
import time

import torch

import ampwatch


def main(name: str, steps: int, pause_s: float, first: int, factor: float) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01 / min(1.0, factor))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=20)
    with ampwatch.attach(scaler, model, run=name):
        for step in range(steps):
            x = torch.randn(32, 8)
            with torch.autocast("cpu", dtype=torch.float16):
                out = model(x)
            loss = ((out.float() - x.sum(1, keepdim=True)) ** 2).mean()
            if step >= first:
                loss = loss * factor
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            time.sleep(pause_s)


if __name__ == "__main__":
    name, steps, pause_s, *more = sys.argv[1:]
    first, factor = (more + ["1000000000", "1e30"][len(more) :])[:2]
    main(name, int(steps), float(pause_s), int(first), float(factor))
