"""A real training that logs four hundred values of its own: `python many_values_training.py RUN`.

Their names are what people's code makes of them: prefixed, very long, from right to left, with
emoji and with markup.
"""

from __future__ import annotations

import sys

import torch

import ampwatch

STEPS = 30
ODD_NAMES = (
    "<img src=x onerror=document.title='taken'>",
    "\u202e\u05e9\u05d2\u05d9\u05d0\u05d4 \u05e9\u05dc",  # two words, in Hebrew
    "loss 😀 of the teacher",
    "a/" + "very long name of a value " * 11 + "end",
)


def names() -> list[str]:
    """All of them: the odd ones, then the rows of the weights."""
    return [*ODD_NAMES, *(f"rows/{number:03d}" for number in range(400 - len(ODD_NAMES)))]


def main(name: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 400)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with ampwatch.attach(scaler, model, run=name) as watch:
        for _ in range(STEPS):
            x = torch.randn(32, 8)
            with torch.autocast("cpu", dtype=torch.float16):
                out = model(x)
            loss = ((out.float() - x.sum(1, keepdim=True)) ** 2).mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            norms = model.weight.detach().norm(dim=1).tolist()
            watch.log(**dict(zip(names(), norms, strict=True)))
            scaler.update()


if __name__ == "__main__":
    main(sys.argv[1])
