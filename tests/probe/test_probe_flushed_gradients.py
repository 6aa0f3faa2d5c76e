"""Gradients that are all zero: flushed by half precision, or zero for a reason of their own."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import ampwatch
from ampwatch.probe.exponent_histogram import flushed_everywhere

Loss = Callable[[nn.Module, Tensor], Tensor]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))


def squared(model: nn.Module, x: Tensor) -> Tensor:
    return functional.mse_loss(model(x).to(x.dtype), x[:, :4])


def trained(
    folder: Path, model: nn.Module, loss_of: Loss, scale: float | None, steps: int = 12
) -> ampwatch.Run:
    """A real training, every step of it looked into; without a scaler if there is no scale."""
    scaler = None if scale is None else torch.amp.GradScaler("cpu", init_scale=scale)
    wanted = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(wanted, lr=0.01)
    random = torch.Generator().manual_seed(1)
    with ampwatch.attach(
        scaler, model, optimizer=optimizer, run="run", log_dir=folder, endpoint="off"
    ) as watch:
        for _ in range(steps):
            x = torch.randn(8, 16, generator=random)
            with torch.autocast("cpu", torch.float16):
                loss = loss_of(model, x)
            watch.log(loss=loss.detach())
            optimizer.zero_grad()
            if scaler is None:
                loss.backward()
                optimizer.step()
            else:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
    return ampwatch.open_run(folder / "run")


def shares(run: ampwatch.Run, layer: str) -> list[float | None]:
    rows = run.layers.to_pylist()
    return [row["underflow_share"] for row in rows if row["layer"] == layer and row["exponents"]]


def codes(run: ampwatch.Run) -> set[str]:
    return {finding.code for finding in ampwatch.diagnose(run).findings}


def true_amax(model: nn.Module, loss_of: Loss, scale: float) -> float:
    """The largest gradient at the model's output in float64, times the scale."""
    twin = copy.deepcopy(model).double()
    kept: list[Tensor] = []

    def keep(_module: nn.Module, _args: object, output: Tensor) -> None:
        output.retain_grad()
        kept.append(output)

    twin.register_forward_hook(keep)
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(1)).double()
    loss_of(twin, x).backward()
    assert kept[0].grad is not None
    return scale * kept[0].grad.abs().max().item()


def tiny(model: nn.Module, x: Tensor) -> Tensor:
    return squared(model, x) * 1e-7


# -- flushed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1.0, None])
def test_a_loss_so_small_that_every_gradient_is_flushed_is_underflow(
    tmp_path: Path, scale: float | None
) -> None:
    assert 0 < true_amax(network(), tiny, scale or 1.0) < 2.0**-25  # the independent truth
    run = trained(tmp_path, network(), tiny, scale)
    assert shares(run, "0") == [1.0] * 10 == shares(run, "2")
    assert "AMP201" in codes(run)


def test_the_finding_names_the_innermost_layer_and_the_scale_not_the_rate(tmp_path: Path) -> None:
    diagnosis = ampwatch.diagnose(trained(tmp_path, network(), tiny, 1.0))
    (one,) = [finding for finding in diagnosis.findings if finding.code == "AMP201"]
    assert one.layer in {"0", "1", "2"}
    assert "init_scale" in one.action
    assert "The loss scale is 1." in one.action
    assert diagnosis.learning_rate.action.value == "not-the-cause"


def test_the_same_training_at_a_higher_scale_loses_nothing(tmp_path: Path) -> None:
    run = trained(tmp_path, network(), tiny, 2.0**24)
    assert max(share for share in shares(run, "0") if share is not None) < 0.5
    assert "AMP201" not in codes(run)


class WithOwnLoss(nn.Module):
    """A model that returns its loss, as many do: the root's gradient is the scale itself."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.criterion = network(), nn.MSELoss()

    def forward(self, x: Tensor) -> Tensor:
        return self.criterion(self.body(x).float(), x[:, :4]) * 1e-7


def test_a_model_that_returns_its_own_loss_is_seen_through(tmp_path: Path) -> None:
    run = trained(tmp_path, WithOwnLoss(), lambda model, x: model(x), 1.0)
    assert shares(run, "body.0") == [1.0] * 10
    assert "AMP201" in codes(run)


# -- zero for reasons of their own -----------------------------------------------------------------


def dead() -> nn.Module:
    model = network()
    with torch.no_grad():
        model[0].bias.fill_(-1e3)  # no unit of the ReLU is ever on
    return model


def frozen() -> nn.Module:
    model = network()
    model[0].requires_grad_(False)
    return model


class LowRank(nn.Module):
    """A frozen matrix and a low-rank addition whose second factor is born zero."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(16, 4).requires_grad_(False)
        self.a, self.b = nn.Linear(16, 2, bias=False), nn.Linear(2, 4, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.b(self.a(x))


def exactly_zero(model: nn.Module, x: Tensor) -> Tensor:
    return functional.relu(model(x).float() - 1e3).mean()  # a margin that everyone keeps


def mostly_masked(model: nn.Module, x: Tensor) -> Tensor:
    mask = (x[:1, :1] > 1.5).float()  # most batches count for nothing
    return (functional.mse_loss(model(x).float(), x[:, :4], reduction="none") * mask).mean()


def satisfied(model: nn.Module, x: Tensor) -> Tensor:
    return exactly_zero(model, x) + 0.3  # a constant that no gradient comes from


@pytest.mark.parametrize(
    ("make", "loss_of"),
    [
        (dead, squared),
        (frozen, squared),
        (LowRank, squared),
        (network, exactly_zero),
        (network, mostly_masked),
        (network, satisfied),
    ],
)
def test_zeros_that_half_precision_did_not_make_are_no_underflow(
    tmp_path: Path, make: Callable[[], nn.Module], loss_of: Loss
) -> None:
    run = trained(tmp_path, make(), loss_of, 2.0**16, steps=30)
    assert not {"AMP201", "AMP208"} & codes(run)
    known = [row["underflow_share"] for row in run.layers.to_pylist()]
    assert all(share is None or share < 0.67 for share in known)


# -- the judgement alone ---------------------------------------------------------------------------


def test_one_half_gradient_above_zero_shows_that_the_others_are_zero_themselves() -> None:
    assert flushed_everywhere([(torch.float16, 0.0)], 100, 1e-6)
    assert not flushed_everywhere([(torch.float16, 0.0), (torch.float16, 6e-8)], 100, 1e-6)
    assert not flushed_everywhere([(torch.float16, 0.0), (torch.float16, math.nan)], 100, 1e-6)


def test_a_float32_gradient_below_the_format_shows_what_was_flushed() -> None:
    assert flushed_everywhere([(torch.float16, 0.0), (torch.float32, 1e-9)], 1, None)
    assert not flushed_everywhere([(torch.float16, 0.0), (torch.float32, 1e-3)], 1, None)


@pytest.mark.parametrize("loss", [None, 0.0, math.nan, math.inf, 1.0])
def test_a_loss_that_is_unknown_zero_broken_or_large_enough_proves_nothing(
    loss: float | None,
) -> None:
    assert not flushed_everywhere([(torch.float16, 0.0)], 100, loss)


def test_without_half_precision_nothing_is_flushed() -> None:
    assert not flushed_everywhere([(torch.bfloat16, 0.0), (torch.float32, 0.0)], 100, 1e-9)
