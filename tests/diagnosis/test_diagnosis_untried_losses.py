"""Real programs whose loss goes below zero, swings about it, or leaps as its labels change."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

import ampwatch

# --- losses below and about zero ------------------------------------------------------------------


def minimised(folder, model: nn.Module, optimizer, loss_of, steps: int):
    """The losses of a training that makes this small."""
    losses = []
    with ampwatch.attach(None, model, optimizer=optimizer, run="r", log_dir=folder) as watch:
        for _ in range(steps):
            loss = loss_of()
            watch.log(loss=loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses, ampwatch.diagnose(ampwatch.open_run(folder / "r"))


def network(*sizes: int) -> nn.Sequential:
    layers = [nn.Linear(size, after) for size, after in pairwise(sizes)]
    return nn.Sequential(*[part for layer in layers for part in (layer, nn.SiLU())][:-1])


def energy(folder, penalty: float):
    """Low for what is there, high for what is drawn anywhere: without a penalty there is no end."""
    torch.manual_seed(0)
    model = network(2, 32, 32, 1)

    def loss_of():
        there, drawn = (
            model(at) for at in (torch.randn(64, 2) * 0.3 + 1, torch.rand(64, 2) * 4 - 2)
        )
        return (there - drawn).mean() + penalty * (there.square() + drawn.square()).mean()

    return minimised(folder, model, torch.optim.Adam(model.parameters(), 1e-3), loss_of, 300)


def contrastive(folder, *, normalised: bool):
    """Two views of one input are made alike, and those of others not."""
    torch.manual_seed(0)
    model = network(16, 32, 16)

    def loss_of():
        inputs = torch.randn(64, 16)
        one, other = (model(inputs + 0.1 * torch.randn_like(inputs)) for _ in range(2))
        if normalised:
            one, other = (nn.functional.normalize(made, dim=1) for made in (one, other))
        alike = one @ other.T
        return alike.mean() - alike.diag().mean()

    return minimised(folder, model, torch.optim.Adam(model.parameters(), 1e-3), loss_of, 300)


def likelihood(folder):
    """A Gaussian whose width is learnt too: its density grows, and its gradients with it."""
    torch.manual_seed(0)
    model = network(4, 64, 2)

    def loss_of():
        inputs = torch.randn(128, 4)
        targets = 0.5 * inputs.sum(1).sin() + 0.01 * torch.randn(128)
        mean, log_variance = model(inputs).unbind(1)
        missed = (targets - mean).square() * (-log_variance).exp()
        return 0.5 * (log_variance + missed).mean()

    return minimised(folder, model, torch.optim.Adam(model.parameters(), 3e-3), loss_of, 500)


@pytest.mark.parametrize(
    "train", [lambda at: energy(at, 0.0), lambda at: contrastive(at, normalised=False)]
)
def test_a_loss_that_falls_without_end_is_not_healthy(tmp_path, train):
    losses, diagnosis = train(tmp_path)
    assert losses[-1] < 10 * losses[30] < 0
    assert diagnosis.outcome.state.name == "WITHOUT_END"
    assert diagnosis.verdict.value == "warning"
    assert diagnosis.learning_rate.action.value != "lower"


@pytest.mark.parametrize(
    "train", [lambda at: energy(at, 0.1), lambda at: contrastive(at, normalised=True), likelihood]
)
def test_a_loss_below_zero_that_is_bounded_or_a_likelihood_is_healthy(tmp_path, train):
    losses, diagnosis = train(tmp_path)
    assert losses[-1] < min(losses[0], 0)
    assert diagnosis.verdict.value == "healthy"
    assert not diagnosis.findings


class Reversed(torch.autograd.Function):
    """Gives the gradient back with the other sign, as adversaries in one model have it."""

    @staticmethod
    def forward(context, values):
        return values.clone()

    @staticmethod
    def backward(context, gradient):
        return -gradient


def adversaries(folder, rate: float, decay: float):
    """A linear critic and a generator that move at once circle each other, ever farther out."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"critic": nn.Linear(4, 1, bias=False), "generator": nn.Linear(2, 4)})
    groups = [
        {"params": model["critic"].parameters(), "weight_decay": decay},
        {"params": model["generator"].parameters()},
    ]

    def loss_of():
        real, made = torch.randn(64, 4) * 0.3 + 1, model["generator"](torch.randn(64, 2))
        return model["critic"](Reversed.apply(made)).mean() - model["critic"](real).mean()

    return minimised(folder, model, torch.optim.SGD(groups, lr=rate), loss_of, 500)


def test_swings_about_zero_that_grow_are_not_healthy(tmp_path):
    losses, diagnosis = adversaries(tmp_path, 0.1, 0.0)
    assert max(losses[400:]) > 10 * max(losses[:100])
    assert diagnosis.outcome.state.name == "WIDER"
    assert diagnosis.verdict.value == "warning"


def test_swings_about_zero_that_are_damped_are_no_trouble(tmp_path):
    losses, diagnosis = adversaries(tmp_path, 0.05, 0.2)
    assert max(losses[400:]) < max(losses[:100])
    assert diagnosis.verdict.value == "healthy"


# --- labels shuffled in mid-run -------------------------------------------------------------------


def classified(folder, share: float, *, rate: float = 1e-2):
    """From the middle on this share of each batch has the labels of others."""
    torch.manual_seed(0)
    model = network(16, 64, 64, 4)
    weights, count = torch.randn(16, 4), 0

    def loss_of():
        nonlocal count
        count += 1
        inputs = torch.randn(64, 16)
        labels, few = (inputs @ weights).argmax(1), int(64 * share)
        if count > 150:
            labels[:few] = labels[:few][torch.randperm(few)]
        return nn.functional.cross_entropy(model(inputs), labels)

    return minimised(folder, model, torch.optim.AdamW(model.parameters(), rate), loss_of, 300)


@pytest.mark.parametrize("share", [0.25, 1.0])
def test_labels_shuffled_in_mid_run_are_told_and_not_laid_to_the_rate(tmp_path, share):
    losses, diagnosis = classified(tmp_path, share)
    assert min(losses[200:]) > max(losses[100:150])
    assert diagnosis.verdict.value in {"warning", "failing"}
    (rise,) = diagnosis.findings
    assert rise.code == "AMP307"
    assert rise.first_step == pytest.approx(150, abs=5)
    assert diagnosis.learning_rate.action.value == "unknown"


def test_labels_that_stay_as_they_are_are_no_trouble(tmp_path):
    _, diagnosis = classified(tmp_path, 0.0)
    assert diagnosis.verdict.value == "healthy"
