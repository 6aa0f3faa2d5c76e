"""DataParallel, which needs two cards: its replicas run in threads of their own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ampwatch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
]

STEPS = 4


def train(folder=None):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).cuda()
    replicated = nn.DataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    watch = None if folder is None else ampwatch.attach(scaler, replicated, log_dir=folder)
    norms = []
    for step in range(STEPS):
        optimizer.zero_grad()
        inputs = torch.randn(16, 8, generator=torch.Generator().manual_seed(step)).cuda()
        with torch.autocast("cuda", torch.float16):
            loss = replicated(inputs).float().square().mean()
        scaler.scale(loss).backward()
        if watch is None:
            scaler.unscale_(optimizer)
            squares = [p.grad.double().square().sum().item() for p in model.parameters()]
            norms.append(sum(squares) ** 0.5)
        scaler.step(optimizer)
        scaler.update()
    if watch is not None:
        watch.close()
    return [p.detach().cpu() for p in model.parameters()], norms, watch


def test_replicas_train_as_without_us_and_their_norms_and_types_are_told(tmp_path):
    weights, norms, _ = train()
    watched_weights, _, watch = train(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(weights, watched_weights, strict=True))
    run = ampwatch.open_run(watch.run_folder)
    assert run.steps["grad_norm"].to_pylist() == pytest.approx(norms, rel=1e-5)
    assert ampwatch.diagnose(run).verdict.value == "healthy"
