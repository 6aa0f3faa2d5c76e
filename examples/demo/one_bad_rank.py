"""Two processes train one model, each on a text of its own, and one text is bad: all ranks skip.

A character counts by how rare it is, as it was counted in rank 0's text alone. What stands only in
rank 1's was never counted, and gets a weight that no gradient in half precision can hold.
"""

import argparse
import doctest

import charmodel
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import ampwatch


def weights_by(text: Tensor) -> Tensor:
    """What each character's loss is multiplied by: 1 for the usual ones, more for the rare."""
    shares = torch.bincount(text, minlength=charmodel.CHARACTERS) / len(text)
    return (0.01 / (shares + 1e-16)).clamp(min=1.0)


options = charmodel.arguments()
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(options.seed)
model = DistributedDataParallel(charmodel.CharacterModel())
texts = [charmodel.Batches(2 * options.seed + rank, of=file) for file in (argparse, doctest)]
weights, batches = weights_by(texts[0].text), texts[rank]
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=50)

with ampwatch.attach(scaler, model, run=options.run):
    for _ in range(options.steps):
        x, y = batches.next("cpu")
        with torch.autocast("cpu", torch.float16):
            losses = torch.nn.functional.cross_entropy(model(x), y, reduction="none")
        optimizer.zero_grad()
        scaler.scale((weights[y] * losses).mean()).backward()
        scaler.step(optimizer)
        scaler.update()
dist.destroy_process_group()
