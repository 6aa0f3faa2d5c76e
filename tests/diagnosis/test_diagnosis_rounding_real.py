"""AMP418 on real trainings: weights in half precision, and who keeps what rounding loses."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import ampwatch

Make = Callable[[Iterable[Tensor]], torch.optim.Optimizer]


class ByHand(torch.optim.Optimizer):
    """Adam with moments in float32; what to do with the update is another's business."""

    def __init__(self, parameters: Iterable[Tensor], lr: float) -> None:
        super().__init__(parameters, {"lr": lr, "betas": (0.9, 0.999), "eps": 1e-8})
        self.random = torch.Generator().manual_seed(0)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    wide = torch.zeros_like(p, dtype=torch.float32)
                    state.update(step=torch.tensor(0.0), exp_avg=wide, exp_avg_sq=wide.clone())
                    self.prepare(p, state)
                state["step"] += 1
                number, g = state["step"].item(), p.grad.float()
                state["exp_avg"].lerp_(g, 0.1)
                state["exp_avg_sq"].mul_(0.999).addcmul_(g, g, value=0.001)
                root = (state["exp_avg_sq"] / (1 - 0.999**number)).sqrt()
                update = state["exp_avg"] / (1 - 0.9**number) / (root + 1e-8)
                self.move(p, -group["lr"] * update, state)

    def prepare(self, p: Tensor, state: dict) -> None:
        """What it keeps beside the moments."""

    def move(self, p: Tensor, update: Tensor, state: dict) -> None:
        raise NotImplementedError


class Kahan(ByHand):
    def prepare(self, p: Tensor, state: dict) -> None:
        state["rest"] = torch.zeros_like(p)

    def move(self, p: Tensor, update: Tensor, state: dict) -> None:
        rest = state["rest"].add_(update.to(p.dtype))
        moved = p + rest
        rest.add_(p - moved)
        p.copy_(moved)


class HiddenKahan(Kahan):
    """Keeps its sums where nobody can see them."""

    def prepare(self, p: Tensor, state: dict) -> None:
        self.rests = getattr(self, "rests", {})
        self.rests[id(p)] = torch.zeros_like(p)

    def move(self, p: Tensor, update: Tensor, state: dict) -> None:
        super().move(p, update, {"rest": self.rests[id(p)]})


class Masters(ByHand):
    """Float32 masters outside its state; the weights are their copies."""

    def prepare(self, p: Tensor, state: dict) -> None:
        self.masters = getattr(self, "masters", {})
        self.masters[id(p)] = p.float()

    def move(self, p: Tensor, update: Tensor, state: dict) -> None:
        p.copy_(self.masters[id(p)].add_(update))


class Stochastic(ByHand):
    def move(self, p: Tensor, update: Tensor, state: dict) -> None:
        bits = (p.float() + update).view(torch.int32)
        bits += torch.randint(0, 1 << 16, bits.shape, dtype=torch.int32, generator=self.random)
        bits &= -(1 << 16)  # what bf16 holds
        p.copy_(bits.view(torch.float32))


def diagnosed(
    folder: Path,
    make: Make,
    *,
    dtype: torch.dtype = torch.bfloat16,
    model: nn.Module | None = None,
    steps: int = 75,
    every: int = 5,
    tokens: bool = False,
    grown: float = 1.0,
) -> ampwatch.diagnosis.Diagnosis:
    """A short training without a scaler, watched."""
    torch.manual_seed(0)
    if model is None:
        model = nn.Sequential(nn.Linear(32, 48), nn.Tanh(), nn.Linear(48, 8))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= grown
    model = model.to(dtype)
    teacher = nn.Linear(32, 8)
    optimizer = make([p for p in model.parameters() if p.requires_grad])
    with ampwatch.attach(
        None, model, optimizer=optimizer, run="r", log_dir=folder, endpoint="off",
        layer_every=every,
    ) as watch:  # fmt: skip
        for _ in range(steps):
            x = torch.randint(0, 500, (32, 4)) if tokens else torch.randn(32, 32)
            y = torch.randn(32, 8) if tokens else teacher(x).tanh().detach()
            loss = (model(x if tokens else x.to(dtype)).float() - y).square().mean()
            watch.log(loss=loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return ampwatch.diagnose(ampwatch.open_run(folder / "r"))


def finding(diagnosis: ampwatch.diagnosis.Diagnosis) -> ampwatch.diagnosis.Finding | None:
    return next((f for f in diagnosis.findings if f.code == "AMP418"), None)


LOST = {
    "adamw at 1e-3 on large weights": (lambda p: torch.optim.AdamW(p, lr=1e-3), {"grown": 16.0}),
    "adamw at 1e-4": (lambda p: torch.optim.AdamW(p, lr=1e-4), {}),
    "adamw at 1e-5": (lambda p: torch.optim.AdamW(p, lr=1e-5), {"steps": 100}),
    "adam, fused": (lambda p: torch.optim.Adam(p, lr=3e-5, fused=True), {}),
    "adam, foreach": (lambda p: torch.optim.Adam(p, lr=3e-5, foreach=True), {}),
    "sgd": (lambda p: torch.optim.SGD(p, lr=1e-2), {}),
    "sgd with momentum": (lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9), {}),
    "rmsprop": (lambda p: torch.optim.RMSprop(p, lr=3e-5), {}),
    "adagrad": (lambda p: torch.optim.Adagrad(p, lr=3e-4), {}),
    "float16": (lambda p: torch.optim.SGD(p, lr=1e-3), {"dtype": torch.float16}),
    "as attach samples": (lambda p: torch.optim.AdamW(p, lr=3e-5), {"steps": 160, "every": 50}),
}


@pytest.mark.parametrize("kind", LOST)
def test_updates_that_round_away_are_found(tmp_path: Path, kind: str) -> None:
    make, settings = LOST[kind]
    diagnosis = diagnosed(tmp_path, make, **settings)
    lost = finding(diagnosis)
    assert lost is not None
    assert lost.severity.value == "warning"
    assert diagnosis.learning_rate.action.value == "not-the-cause"


KEPT = {
    "a kahan sum": (lambda p: Kahan(p, 3e-5), {}),
    "a kahan sum that nobody sees": (lambda p: HiddenKahan(p, 3e-5), {}),
    "float32 masters": (lambda p: Masters(p, 3e-5), {}),
    "float32 masters at a small rate": (lambda p: Masters(p, 1e-5), {"steps": 120}),
    "stochastic rounding": (lambda p: Stochastic(p, 3e-5), {}),
    "stochastic rounding at a small rate": (lambda p: Stochastic(p, 1e-5), {"steps": 120}),
    "a large rate": (lambda p: torch.optim.SGD(p, lr=1.0), {}),
    "adam at a large rate": (lambda p: torch.optim.AdamW(p, lr=1e-2), {}),
    "float32": (lambda p: torch.optim.AdamW(p, lr=1e-6), {"dtype": torch.float32}),
}


@pytest.mark.parametrize("kind", KEPT)
def test_who_moves_the_weights_as_far_as_is_asked_hears_nothing(tmp_path: Path, kind: str) -> None:
    make, settings = KEPT[kind]
    assert finding(diagnosed(tmp_path, make, **settings)) is None


def test_frozen_layers_are_not_judged(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 48), nn.Tanh(), nn.Linear(48, 8))
    model[0].requires_grad_(requires_grad=False)
    assert finding(diagnosed(tmp_path, lambda p: torch.optim.SGD(p, lr=1.0), model=model)) is None


class Scaled(nn.Module):
    """An embedding of many words, most of them in no batch, scaled as some models scale theirs."""

    def __init__(self, *, sparse: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(500, 16, sparse=sparse)
        nn.init.normal_(self.words.weight, std=0.02)
        self.head = nn.Linear(64, 8)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head((self.words(tokens) * 4.0).flatten(1))


@pytest.mark.parametrize("sparse", [False, True])
def test_rows_of_an_embedding_that_no_batch_has_do_not_count(tmp_path: Path, sparse: bool) -> None:
    diagnosis = diagnosed(
        tmp_path, lambda p: torch.optim.SGD(p, lr=0.5), model=Scaled(sparse=sparse), tokens=True
    )
    assert finding(diagnosis) is None


def test_under_autocast_the_weights_are_wide_and_nothing_is_said(tmp_path: Path) -> None:
    class Cast(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return super().forward(x)

    torch.manual_seed(0)
    model = Cast(nn.Linear(32, 48), nn.Tanh(), nn.Linear(48, 8))
    make: Make = lambda p: torch.optim.AdamW(p, lr=1e-5)  # noqa: E731
    assert finding(diagnosed(tmp_path, make, dtype=torch.float32, model=model)) is None
