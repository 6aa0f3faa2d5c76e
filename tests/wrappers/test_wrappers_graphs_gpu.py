"""CUDA graphs: what is captured is left alone, and replayed it trains as without us."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ampwatch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

STEPS = 20


def train(folder=None):
    """Attached after make_graphed_callables, which takes no module with hooks."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    with torch.autocast("cuda", torch.float16, cache_enabled=False):
        graphed = torch.cuda.make_graphed_callables(model, (torch.randn(16, 8, device="cuda"),))
    watch = None if folder is None else ampwatch.attach(scaler, graphed, log_dir=folder)
    for step in range(STEPS):
        optimizer.zero_grad()
        inputs = torch.randn(16, 8, generator=torch.Generator().manual_seed(step)).cuda()
        with torch.autocast("cuda", torch.float16, cache_enabled=False):
            loss = graphed(inputs).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    if watch is not None:
        watch.close()
    return [p.detach().cpu() for p in model.parameters()], watch


def test_a_graphed_model_trains_as_without_us_and_its_norms_are_told(tmp_path):
    weights, _ = train()
    watched_weights, watch = train(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(weights, watched_weights, strict=True))
    steps = ampwatch.open_run(watch.run_folder).steps
    assert steps.num_rows == STEPS
    assert None not in steps["grad_norm"].to_pylist()


def test_nothing_is_reduced_on_a_stream_that_is_captured():
    from ampwatch.probe.tensor_values import measurable

    values, told = torch.randn(8, device="cuda"), []
    torch.cuda.synchronize()
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        told.append(measurable(values))
    assert told == [False]
    assert measurable(values)
