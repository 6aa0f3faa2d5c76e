"""A loop of one's own under Accelerate: one line after `accelerator.prepare`.

fp16 where there is a GPU, else bfloat16, which has no scaler: then the loss is logged by hand. The
same for Lightning's Fabric: `from ampwatch.integrations.fabric import attach`, after
`fabric.setup`. Needs `pip install accelerate`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn

from ampwatch.integrations.accelerate import attach  # <-- added


def main(arguments: Sequence[str] | None = None) -> None:
    options = read_options(arguments)
    set_seed(options.seed)
    on_gpu = torch.cuda.is_available()
    accelerator = Accelerator(mixed_precision="fp16" if on_gpu else "bf16", cpu=not on_gpu)
    model = nn.Sequential(nn.Linear(16, 64), nn.SiLU(), nn.Linear(64, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model, optimizer = accelerator.prepare(model, optimizer)

    watch = attach(accelerator, model, optimizer, log_dir=options.log_dir)  # <-- added

    for step in range(options.steps):
        inputs = torch.randn(64, 16, device=accelerator.device)
        loss = nn.functional.cross_entropy(model(inputs), (inputs.norm(dim=1) > 4).long())
        watch.log(loss=loss)  # <-- added; with a scaler it is known without
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        print(f"step {step}  loss {loss.item():.6g}")


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--log-dir", default=None, help="default: ./ampwatch-runs")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
