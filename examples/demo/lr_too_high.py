"""The learning rate warms up far beyond what this model tolerates: see the loss scale collapse."""

import charmodel
import torch

import ampwatch

PEAK_RATE = 1.0  # on purpose: this model is happy up to about 0.2
WARMUP_STEPS = 700

options = charmodel.arguments()
torch.manual_seed(options.seed)
device = charmodel.device()
model = charmodel.CharacterModel().to(device)
batches = charmodel.Batches(options.seed)
optimizer = torch.optim.SGD(model.parameters(), lr=PEAK_RATE, momentum=0.9)
warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / WARMUP_STEPS))
scaler = torch.amp.GradScaler(device, init_scale=2.0**14, growth_interval=100)

with ampwatch.attach(scaler, model, run=options.run):
    for _ in range(options.steps):
        x, y = batches.next(device)
        with torch.autocast(device, torch.float16):
            loss = charmodel.loss_of(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        warmup.step()
