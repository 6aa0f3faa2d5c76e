"""The same model without a fault: now and then the scale grows too far, and comes back."""

import charmodel
import torch

import ampwatch

options = charmodel.arguments()
torch.manual_seed(options.seed)
device = charmodel.device()
model = charmodel.CharacterModel().to(device)
batches = charmodel.Batches(options.seed)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler(device, growth_interval=50)

with ampwatch.attach(scaler, model, run=options.run):
    for _ in range(options.steps):
        x, y = batches.next(device)
        with torch.autocast(device, torch.float16):
            loss = charmodel.loss_of(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
