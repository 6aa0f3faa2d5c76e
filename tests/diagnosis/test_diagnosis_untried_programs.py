"""Real programs of kinds that nobody here had tried.

Each finding that is wrong for one has a neighbour for which it is right.
"""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

import ampwatch

EXAMPLES = 64
SIZE = 8


def diagnosed(folder):
    return ampwatch.diagnose(ampwatch.open_run(folder / "r"))


def codes(diagnosis) -> set[str]:
    return {finding.code for finding in diagnosis.findings}


def finding(diagnosis, code):
    return next(one for one in diagnosis.findings if one.code == code)


# --- an optimizer that makes several updates in a step --------------------------------------------


def by_lbfgs(folder, rate: float, *, logged: bool, steps: int, of_copies: bool = False):
    """A linear regression; the losses of the closures' last evaluations."""
    torch.manual_seed(0)
    model = nn.Linear(SIZE, 1)
    inputs = torch.randn(EXAMPLES, SIZE)
    targets = inputs.sum(1, keepdim=True) + 0.1 * torch.randn(EXAMPLES, 1)
    held = copy.deepcopy(model) if of_copies else model
    optimizer = torch.optim.LBFGS(held.parameters(), lr=rate)
    with ampwatch.attach(None, model, optimizer=optimizer, run="r", log_dir=folder) as watch:

        def closure():
            optimizer.zero_grad()
            loss = (model(inputs) - targets).square().mean()
            loss.backward()
            if logged:
                watch.log(loss=loss)
            return loss

        losses = [float(optimizer.step(closure).detach()) for _ in range(steps)]
    return losses, diagnosed(folder)


@pytest.mark.parametrize("logged", [True, False])
def test_an_lbfgs_that_has_converged_is_no_lost_update(tmp_path, logged):
    losses, diagnosis = by_lbfgs(tmp_path, 0.8, logged=logged, steps=250)
    assert losses[0] > 1000 * losses[-1]
    assert losses[-1] == losses[1]
    assert not diagnosis.findings


def test_a_line_search_that_finds_nothing_better_is_no_step_left_out(tmp_path):
    """A curve fitted to the limit of float32, where a search now and then ends where it began."""
    torch.manual_seed(9)
    model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
    x = torch.linspace(0, 1, 40).unsqueeze(1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe")
    with ampwatch.attach(None, model, optimizer=optimizer, run="r", log_dir=tmp_path):

        def closure():
            optimizer.zero_grad()
            loss = (model(x) - torch.sin(6 * x)).square().mean()
            loss.backward()
            return loss

        for _ in range(90):
            optimizer.step(closure)
    moves = ampwatch.open_run(tmp_path / "r").steps["update_norm"].to_pylist()
    assert 0 < moves.count(0.0) < 30
    assert "AMP212" not in codes(diagnosed(tmp_path))


def test_an_lbfgs_of_another_models_parameters_moves_nothing(tmp_path):
    losses, diagnosis = by_lbfgs(tmp_path, 0.8, logged=True, steps=40, of_copies=True)
    assert len(set(losses)) == 1
    assert "AMP410" in codes(diagnosis)


def test_a_step_of_many_updates_is_not_judged_by_its_size(tmp_path):
    """The first step diverges within itself: updates were made before its last evaluation."""
    losses, diagnosis = by_lbfgs(tmp_path, 80.0, logged=False, steps=40)
    assert math.isnan(losses[-1])
    assert diagnosis.verdict.value == "failing"
    assert diagnosis.learning_rate.action.value in {"unknown", "lower"}
    action = finding(diagnosis, "AMP207").action
    assert "eps" not in action
    assert "scaler" not in action


# --- scores that are masked -----------------------------------------------------------------------


class Scores(nn.Module):
    """Attention that gives its scores as well; `bias` lifts those that nothing masks."""

    def __init__(self, masked: float | None, bias: float) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(16, 16) for _ in range(3))
        self.masked, self.bias = masked, bias

    def forward(self, inputs):
        scores = self.query(inputs) @ self.key(inputs).transpose(-1, -2) / 4 + self.bias
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        masked = torch.finfo(scores.dtype).min if self.masked is None else self.masked
        scores = scores.masked_fill(hidden, masked)
        return scores.softmax(-1).to(inputs.dtype) @ self.value(inputs), scores


def with_scores(folder, masked: float | None, dtype: torch.dtype, bias: float = 0.0):
    torch.manual_seed(0)
    model = Scores(masked, bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, enabled=dtype is torch.float16)
    with ampwatch.attach(
        scaler if scaler.is_enabled() else None, model, optimizer=optimizer, run="r", log_dir=folder
    ):
        for _ in range(60):
            inputs = torch.randn(8, 6, 16)
            with torch.autocast("cpu", dtype):
                outputs, _ = model(inputs)
            loss = (outputs.float() - inputs).square().mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    run = ampwatch.open_run(folder / "r")
    rooms = zip(*(run.layers[name].to_pylist() for name in ("layer", "act_amax")), strict=True)
    return [amax for layer, amax in rooms if layer == "(root)" and amax is not None]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("masked", [None, -1e4, -5e4, -math.inf])
def test_a_constant_that_masks_scores_is_no_activation(tmp_path, masked, dtype):
    largest = with_scores(tmp_path, masked, dtype)
    assert codes(diagnosed(tmp_path)) == set()
    assert masked == -math.inf or max(largest) < 100.0


def test_scores_near_the_limit_are_told_though_others_are_masked(tmp_path):
    largest = with_scores(tmp_path, None, torch.float16, bias=40_000.0)
    assert min(largest) >= 39_000.0
    assert "AMP205" in codes(diagnosed(tmp_path))


# --- gradients below the smallest normal number ---------------------------------------------------


class Block(nn.Module):
    """Adds a little to what it takes, so that little comes back to its first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(32, 32), nn.Linear(32, 32)
        nn.init.normal_(self.last.weight, std=1e-3)

    def forward(self, inputs):
        return inputs + self.last(torch.relu(self.first(inputs)))


def blocks():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), Block(), Block(), nn.Linear(32, 16))


def batches(steps: int):
    chance = torch.Generator().manual_seed(1)
    weights = torch.randn(16, 16, generator=chance)
    for _ in range(steps):
        inputs = torch.randn(512, 16, generator=chance)
        yield inputs, (inputs @ weights).sin()


def scaled_loss(model, inputs, targets, weight: float, *, half: bool):
    with torch.autocast("cpu", torch.float16, enabled=half):
        outputs = model(inputs)
    return (outputs.float() - targets).square().mean() * weight


def share_lost(model, weight: float) -> float:
    """How far half precision is off in the gradient of the first block's first layer."""
    ((inputs, targets),) = batches(1)
    made = []
    for half in (False, True):
        model.zero_grad()
        scaled_loss(model, inputs, targets, weight, half=half).backward()
        made.append(model[1].first.weight.grad.clone())
    model.zero_grad()
    return float((made[1] - made[0]).norm() / made[0].norm())


def in_half(folder, weight: float):
    """Begun at PyTorch's own scale, at which the first steps overflow; the share lost at the end.

    `weight` is the loss's: what it makes small no scaler makes up for.
    """
    model = blocks()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 / weight)
    scaler = torch.amp.GradScaler("cpu")
    with ampwatch.attach(scaler, model, optimizer=optimizer, run="r", log_dir=folder):
        for number, (inputs, targets) in enumerate(batches(130)):
            loss = scaled_loss(model, inputs, targets, weight, half=True)
            if number in {3, 6}:
                loss = loss * 1e30
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    assert scaler.get_scale() == 2.0**14
    return share_lost(model, weight * scaler.get_scale()), diagnosed(folder)


def test_gradients_that_are_subnormal_are_not_lost(tmp_path):
    lost, diagnosis = in_half(tmp_path, 2.0**-15)
    shares = ampwatch.open_run(tmp_path / "r").layers["underflow_share"].to_pylist()
    assert max(share for share in shares if share is not None) > 0.9
    assert lost < 0.05
    assert codes(diagnosis).isdisjoint({"AMP201", "AMP107", "AMP208"})


def test_gradients_that_are_flushed_are_lost_and_no_start_is_higher_than_its_own(tmp_path):
    lost, diagnosis = in_half(tmp_path, 2.0**-24)
    assert lost > 0.3
    assert "init_scale" not in finding(diagnosis, "AMP201").action


# --- one step number for one event ----------------------------------------------------------------


def test_a_forward_overflow_begins_at_the_step_whose_loss_was_lost(tmp_path):
    """Layers are looked at from the step after; the finding and the rate name the same step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(),
                          nn.Linear(32, 1))  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with ampwatch.attach(scaler, model, optimizer=optimizer, run="r", log_dir=tmp_path):
        for number in range(150):
            if number == 120:
                model[2].weight.data.mul_(3e5)
            inputs = torch.randn(32, 16)
            with torch.autocast("cpu", torch.float16):
                outputs = model(inputs)
            loss = (outputs.float() - inputs.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    diagnosis = diagnosed(tmp_path)
    overflow = finding(diagnosis, "AMP203")
    assert (overflow.first_step, overflow.layer) == (120, "2")
    assert "step 120" in diagnosis.learning_rate.because
    assert diagnosis.outcome.since_step == 120


# --- a loss that is summed over the batch ---------------------------------------------------------


def shapes(count: int, chance: torch.Generator, size: int = 28):
    """Discs, squares and diamonds of all sizes, anywhere in an image."""
    across = torch.arange(size).float()
    place, radius = (
        7 + 14 * torch.rand(2, count, generator=chance),
        torch.rand(count, generator=chance),
    )
    kind = torch.randint(0, 3, (count, 1, 1), generator=chance)
    x = (across[None, None, :] - place[0, :, None, None]).abs()
    y = (across[None, :, None] - place[1, :, None, None]).abs()
    away = torch.where(kind == 0, x.hypot(y), torch.where(kind == 1, torch.maximum(x, y), x + y))
    return (3.5 + 4 * radius[:, None, None] - away).clamp(0, 1).flatten(1)


class VariationalAutoencoder(nn.Module):
    """As in pytorch/examples."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc21, self.fc22 = nn.Linear(784, 400), nn.Linear(400, 20), nn.Linear(400, 20)
        self.fc3, self.fc4 = nn.Linear(20, 400), nn.Linear(400, 784)

    def forward(self, images):
        seen = torch.relu(self.fc1(images))
        mean, log_variance = self.fc21(seen), self.fc22(seen)
        drawn = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
        return self.fc4(torch.relu(self.fc3(drawn))), mean, log_variance


def autoencoded(folder, rate: float):
    """The losses and the scales of a training whose losses are sums; each image counts 30 times."""
    torch.manual_seed(0)
    chance = torch.Generator().manual_seed(1)
    images, model = shapes(1000, chance), VariationalAutoencoder()
    optimizer, losses, scales = torch.optim.Adam(model.parameters(), rate), [], []
    scaler = torch.amp.GradScaler("cpu")
    with ampwatch.attach(scaler, model, optimizer=optimizer, run="r", log_dir=folder):
        for _ in range(240):
            batch = images[torch.randint(0, len(images), (128,), generator=chance)]
            with torch.autocast("cpu", torch.float16):
                made = model(batch)
            made, mean, log_variance = (one.float() for one in made)
            loss = nn.functional.binary_cross_entropy_with_logits(made, batch, reduction="sum")
            spread = 1 + log_variance - mean.square() - log_variance.exp()
            loss = 30 * (loss - 0.5 * spread.sum())
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
            scales.append(scaler.get_scale())
    return losses, scales, diagnosed(folder)


@pytest.mark.slow_trainings
def test_gradients_that_grow_as_a_summed_loss_falls_only_prolong_the_search_for_a_scale(tmp_path):
    losses, scales, diagnosis = autoencoded(tmp_path, 0.005)
    assert losses[-1] < losses[0] / 5
    assert scales[20] > 2 * scales[-1]
    assert diagnosis.verdict.value == "healthy"
    assert codes(diagnosis).isdisjoint({"AMP103", "AMP105"})


@pytest.mark.slow_trainings
def test_a_scale_that_falls_as_the_loss_leaps_far_above_its_start_has_collapsed(tmp_path):
    losses, _, diagnosis = autoencoded(tmp_path, 0.1)
    assert max(losses) > 10 * losses[0]
    assert finding(diagnosis, "AMP103").severity.value != "info"
    assert diagnosis.learning_rate.action.value in {"unknown", "lower"}
