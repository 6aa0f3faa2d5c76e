"""fp16 without a GradScaler, and a loss with a small weight: gradients too small for fp16."""

import charmodel
import torch

import ampwatch

LOSS_WEIGHT = 1e-5  # one term among many; Adam would not mind, fp16 does

options = charmodel.arguments()
torch.manual_seed(options.seed)
device = charmodel.device()
model = charmodel.CharacterModel().to(device)
batches = charmodel.Batches(options.seed)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-15)

with ampwatch.attach(None, model, optimizer=optimizer, run=options.run) as watch:
    for _ in range(options.steps):
        x, y = batches.next(device)
        with torch.autocast(device, torch.float16):
            loss = LOSS_WEIGHT * charmodel.loss_of(model(x), y)
        watch.log(loss=loss)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
