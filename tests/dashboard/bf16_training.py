"""A real training in bf16 whose one layer would not survive fp8: `python bf16_training.py RUN`.

One channel that enters `blocks.1.up` is far larger than the others, as it is in large models.
"""

from __future__ import annotations

import sys

import torch
from narrow_models import Language

import ampwatch


def main(name: str) -> None:
    torch.manual_seed(0)
    model = Language()
    with torch.no_grad():
        model.blocks[1].norm.weight[3] = 3e5
        model.blocks[1].up.weight[:, 3] *= 3e-6
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with ampwatch.attach(None, model, optimizer=optimizer, run=name, layer_every=5) as watch:
        for _ in range(30):
            words = torch.randint(64, (8, 16))
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = model(words)
            loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), words.flatten())
            watch.log(loss=loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main(sys.argv[1])
