"""Weights that were at home in bf16: one activation leaves fp16, and no loss scale can help."""

import charmodel
import torch
from torch import Tensor, nn

import ampwatch


class SquaredReLU(nn.Module):
    """relu(x)^2: large inputs become very large."""

    def forward(self, x: Tensor) -> Tensor:
        """The square; bf16 reaches 3e38, fp16 ends at 65504."""
        positive = torch.relu(x)
        return positive * positive


options = charmodel.arguments()
torch.manual_seed(options.seed)
device = charmodel.device()
model = charmodel.CharacterModel(SquaredReLU).to(device)
with torch.no_grad():
    model.blocks[1].up.weight.mul_(200)  # as a training in bf16 may leave it
batches = charmodel.Batches(options.seed)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler(device)

with ampwatch.attach(scaler, model, run=options.run):
    for _ in range(options.steps):
        x, y = batches.next(device)
        with torch.autocast(device, torch.float16):
            loss = charmodel.loss_of(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
