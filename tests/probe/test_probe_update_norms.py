"""How far two updates in a row point the same way: the slices' cosine against the whole one."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ampwatch

STEPS = 25


class Words(nn.Module):
    """An embedding of words that follow Zipf's law: most rows hardly ever move."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(4000, 32), nn.Linear(32, 512)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(torch.tanh(self.embed(words)))


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 64))


def batch_for(model: nn.Module, random: torch.Generator) -> Tensor:
    if isinstance(model, Words):
        weights = 1.0 / torch.arange(1, 4001, dtype=torch.float32)
        return torch.multinomial(weights, 64, replacement=True, generator=random)
    return torch.randn(16, 64, generator=random).to(next(model.parameters()).dtype)


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-3),
}


def whole(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().double().flatten() for p in model.parameters()])


def trained(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
    """Train under a watch; the true cosine of each update to the one before, nan for the first."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    random = torch.Generator().manual_seed(0)
    truth, last = [], None
    with ampwatch.attach(scaler, model, run="run", log_dir=folder, endpoint="off"):
        for _ in range(STEPS):
            before = whole(model)
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = model(batch_for(model, random)).float().square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            moved = whole(model) - before
            truth.append(
                math.nan if last is None else float(moved @ last / (moved.norm() * last.norm()))
            )
            last = moved
    return truth


@pytest.mark.parametrize("kind", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("make", [network, Words])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # on the host, and by torch
def test_the_cosine_is_within_its_stated_error(
    tmp_path: Path, kind: str, make: type[nn.Module], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    model = make().to(dtype)
    truth = trained(tmp_path, model, OPTIMIZERS[kind](model.parameters()))
    rows = ampwatch.open_run(tmp_path / "run").steps.to_pylist()
    assert rows[0]["update_alignment"] is None
    seen = np.array([row["update_alignment"] for row in rows[1:]])
    errors = np.array([row["update_norm_rel_error"] for row in rows[1:]])
    true = np.array(truth[1:])
    stated = 2 * errors * np.sqrt(1 - true**2)
    assert errors.min() > 0.001  # these are samples, not the whole
    assert (np.abs(seen - true) <= 4 * stated + 1e-4).all()
    assert np.abs(seen - true).max() < 0.2


def test_a_skipped_step_has_no_direction_and_neither_has_the_next(tmp_path: Path) -> None:
    model = nn.Linear(8, 8)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ampwatch.attach(scaler, model, run="run", log_dir=tmp_path, endpoint="off"):
        for step in range(6):
            optimizer.zero_grad()
            scale = math.inf if step == 3 else 1.0
            scaler.scale(model(torch.ones(2, 8)).square().mean() * scale).backward()
            scaler.step(optimizer)
            scaler.update()
    column = ampwatch.open_run(tmp_path / "run").steps["update_alignment"].to_pylist()
    assert [value is None for value in column] == [True, False, False, True, True, False]
    assert column[1] > 0.9  # the same batch again: the gradient hardly turns
