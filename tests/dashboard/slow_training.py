"""A real training that takes its time: `python slow_training.py RUN STEPS PAUSE_S [SKIPS_FROM]`.

From step SKIPS_FROM on the loss is so large that fp16 gradients overflow and steps are skipped.
"""

from __future__ import annotations

import sys
import time

import torch

import ampwatch


def main(name: str, steps: int, pause_s: float, skips_from: int) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=20)
    with ampwatch.attach(scaler, model, run=name):
        for step in range(steps):
            x = torch.randn(32, 8)
            with torch.autocast("cpu", dtype=torch.float16):
                out = model(x)
            loss = ((out.float() - x.sum(1, keepdim=True)) ** 2).mean()
            if step >= skips_from:
                loss = loss * 1e30
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            time.sleep(pause_s)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int((sys.argv[4:] or [10**9])[0]))
