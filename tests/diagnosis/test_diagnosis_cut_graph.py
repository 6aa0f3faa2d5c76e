"""Real programs whose gradients do not arrive: a graph that is cut, numbers too small for fp16.

Each has a neighbour with the one line that mends it.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import ampwatch
from ampwatch.diagnosis import Action

SIZE, CLASSES, STEPS = 16, 4, 120


def diagnosed(folder):
    return ampwatch.diagnose(ampwatch.open_run(folder / "r"))


class Adapted(nn.Module):
    """A frozen layer with a low-rank adapter beside it."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(SIZE, SIZE).requires_grad_(False)
        self.down, self.up = nn.Linear(SIZE, 2, bias=False), nn.Linear(2, SIZE, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return torch.tanh(self.base(x) + self.up(self.down(x)))


class Checkpointed(nn.Module):
    """Adapters under re-entrant checkpointing, and a head."""

    def __init__(self, *, inputs_require_grad: bool):
        super().__init__()
        self.blocks = nn.ModuleList(Adapted() for _ in range(3))
        self.head = nn.Linear(SIZE, CLASSES)
        self.inputs_require_grad = inputs_require_grad

    def forward(self, x):
        x = x.clone().requires_grad_(self.inputs_require_grad)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=True)
        return self.head(x)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("inputs_require_grad", [False, True])
def test_adapters_that_no_gradient_reaches_are_told(tmp_path, inputs_require_grad):
    torch.manual_seed(0)
    model = Checkpointed(inputs_require_grad=inputs_require_grad)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=3e-3)
    teacher = torch.randn(SIZE, CLASSES)
    with ampwatch.attach(
        None, model, optimizer=optimizer, layer_every=5, run="r", log_dir=tmp_path
    ):
        for _ in range(STEPS):
            inputs = torch.randn(32, SIZE)
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(inputs), (inputs @ teacher).argmax(1))
            loss.backward()
            optimizer.step()
    missing = sum(parameter.grad is None for parameter in trained)
    found = {finding.code: finding for finding in diagnosed(tmp_path).findings}
    assert (missing > 0) is not inputs_require_grad
    assert ("AMP417" in found) is not inputs_require_grad
    if not inputs_require_grad:
        assert found["AMP417"].severity.value == "warning"
        assert f"{missing} layers" in found["AMP417"].summary


@pytest.mark.parametrize("of_copy", [False, True])
def test_an_optimizer_of_another_models_parameters_has_no_gradients(tmp_path, of_copy):
    torch.manual_seed(0)
    model = nn.Linear(SIZE, CLASSES)
    optimizer = torch.optim.NAdam((copy.deepcopy(model) if of_copy else model).parameters(), 1e-2)
    losses = []
    with ampwatch.attach(None, model, optimizer=optimizer, run="r", log_dir=tmp_path):
        for _ in range(STEPS):
            inputs = torch.ones(8, SIZE)
            model.zero_grad()
            loss = functional.cross_entropy(model(inputs), torch.zeros(8, dtype=torch.long))
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    diagnosis = diagnosed(tmp_path)
    assert (losses[0] == losses[-1]) is of_copy
    assert [finding.code for finding in diagnosis.findings] == ["AMP410"] * of_copy
    if of_copy:
        assert diagnosis.verdict.value == "failing"
        assert diagnosis.learning_rate.action is Action.NOT_THE_CAUSE


@pytest.mark.parametrize("unit", [1e-6, 1.0])
def test_intensities_too_small_for_half_precision_are_told(tmp_path, unit):
    torch.manual_seed(0)
    sizes = ((1, 8), (8, 8), (8, 1))
    convs = [nn.Conv2d(one, other, 3, padding=1, bias=False) for one, other in sizes]
    model = nn.Sequential(convs[0], nn.ReLU(), convs[1], nn.ReLU(), convs[2])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu")
    lost = 0
    with ampwatch.attach(scaler, model, layer_every=5, run="r", log_dir=tmp_path):
        for _ in range(STEPS):
            image = unit * torch.rand(4, 1, 24, 24)
            with torch.autocast("cpu", dtype=torch.float16):
                blurred = functional.avg_pool2d(image, 3, 1, 1)
                loss = functional.mse_loss(model(blurred).float(), image)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            lost += bool((convs[0].weight.grad == 0).all())
    told = {finding.code for finding in diagnosed(tmp_path).findings}
    is_small = unit < 1
    assert (lost > STEPS / 2) is is_small
    assert bool(told & {"AMP107", "AMP201"}) is is_small
