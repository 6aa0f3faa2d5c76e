"""What is read from the optimizer's state on sampled steps, against torch's own numbers."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ampwatch
from ampwatch.probe import optimizers
from ampwatch.probe.weight_updates import Slices
from ampwatch.store import Run

STEPS = 14  # the first ten are sampled, and then each third
EVERY = 3


def network(dtype: torch.dtype = torch.float32) -> nn.Module:
    """Small enough that the slices are the whole parameters."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(dtype)


class Training:
    """A training whose true figures are worked out beside it, from the whole tensors."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer
        self.random = torch.Generator().manual_seed(1)
        self.ratios: list[dict[str, float]] = []
        self.unmoved: list[float] = []

    def step(self) -> None:
        dtype = next(self.model.parameters()).dtype
        rows = torch.randn(16, 8, generator=self.random).to(dtype)
        self.optimizer.zero_grad()
        (self.model(rows).float() - 1.0).square().mean().backward()
        before = [p.detach().clone() for p in self.model.parameters()]
        self.optimizer.step()
        self.ratios.append(self._true_ratios())
        self.unmoved.append(self._true_unmoved(before))

    def _true_ratios(self) -> dict[str, float]:
        found = {}
        for name, module in self.model.named_modules():
            weight = getattr(module, "weight", None)
            state = self.optimizer.state.get(weight, {})
            if weight is None or weight.grad is None or "exp_avg_sq" not in state:
                continue
            second = state.get("max_exp_avg_sq", state["exp_avg_sq"]).double()
            second = second / (1 - 0.999 ** float(state["step"]))
            found[name] = float((weight.grad.double() ** 2 / second).mean().sqrt())
        return found

    def _true_unmoved(self, before: list[Tensor]) -> float:
        moved = [
            (old == new)[new.grad != 0]
            for old, new in zip(before, self.model.parameters(), strict=True)
            if new.grad is not None
        ]
        return float(torch.cat(moved).double().mean()) if moved else 0.0


def watched(folder: Path, training: Training, steps: int = STEPS) -> Run:
    with ampwatch.attach(
        None, training.model, optimizer=training.optimizer, run="r", log_dir=folder,
        endpoint="off", layer_every=EVERY,
    ):  # fmt: skip
        for _ in range(steps):
            training.step()
    return ampwatch.open_run(folder / "r")


def column(run: Run, name: str) -> list[Any]:
    return run.steps[name].to_pylist()


ADAMS = {
    "adam": lambda p: torch.optim.Adam(p, lr=1e-2),
    "adam with decay": lambda p: torch.optim.Adam(p, lr=1e-2, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "foreach": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=True),
    "fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True),
    "maximize": lambda p: torch.optim.Adam(p, lr=1e-2, maximize=True),
}


@pytest.mark.parametrize("kind", ADAMS)
def test_the_moment_ratio_is_the_rms_of_gradient_over_root_v(tmp_path: Path, kind: str) -> None:
    model = network()
    training = Training(model, ADAMS[kind](model.parameters()))
    run = watched(tmp_path, training)
    rows = run.layers.to_pylist()
    seen = {(row["step"], row["layer"]): row["moment_ratio"] for row in rows}
    sampled = [step for step in range(STEPS) if step < 10 or step % EVERY == 0]
    assert {step for (step, _), ratio in seen.items() if ratio is not None} == set(sampled)
    for step in sampled:
        for name, ratio in training.ratios[step].items():
            assert seen[step, name] == pytest.approx(ratio, rel=1e-4)


def test_the_moment_ratio_leaps_when_the_gradient_outgrows_the_second_moment(
    tmp_path: Path,
) -> None:
    model = network()
    training = Training(model, torch.optim.Adam(model.parameters(), lr=1e-4))
    step = training.step
    # A gradient ten times larger for one step: v has a thousandth of its square.
    hook = [1.0]
    for parameter in model.parameters():
        parameter.register_hook(lambda g: g * hook[0])

    def stepped() -> None:
        hook[0] = 10.0 if len(training.ratios) == 12 else 1.0
        step()

    training.step = stepped  # type: ignore[method-assign]
    run = watched(tmp_path, training)
    rows = [row for row in run.layers.to_pylist() if row["layer"] == "0"]
    ratios = {row["step"]: row["moment_ratio"] for row in rows if row["moment_ratio"] is not None}
    assert ratios[12] > 2.5 * ratios[9]


@pytest.mark.parametrize("kind", ["sgd", "rmsprop"])
def test_without_a_second_moment_of_adams_there_is_no_ratio(tmp_path: Path, kind: str) -> None:
    model = network()
    made = {"sgd": torch.optim.SGD, "rmsprop": torch.optim.RMSprop}[kind]
    run = watched(tmp_path, Training(model, made(model.parameters(), lr=1e-3)))
    assert set(run.layers["moment_ratio"].to_pylist()) == {None}


def test_a_skipped_step_has_no_ratio_and_no_share(tmp_path: Path) -> None:
    model = network(torch.bfloat16)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with ampwatch.attach(scaler, model, run="r", log_dir=tmp_path, endpoint="off"):
        for step in range(4):
            optimizer.zero_grad()
            loss = model(torch.ones(3, 8, dtype=torch.bfloat16)).float().square().mean()
            scaler.scale(loss * (float("inf") if step == 2 else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
    run = ampwatch.open_run(tmp_path / "r")
    assert [share is None for share in column(run, "unmoved_share")] == [False, False, True, False]
    at_skip = [row["moment_ratio"] for row in run.layers.to_pylist() if row["step"] == 2]
    assert at_skip
    assert set(at_skip) == {None}


HALVES = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=3e-4),
    "adam, fused": lambda p: torch.optim.Adam(p, lr=3e-4, fused=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2),
    "momentum": lambda p: torch.optim.SGD(p, lr=3e-3, momentum=0.9),
    "nesterov": lambda p: torch.optim.SGD(p, lr=3e-3, momentum=0.9, nesterov=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-4),
    "rmsprop with momentum": lambda p: torch.optim.RMSprop(p, lr=1e-4, momentum=0.9),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-3),
    "sgd with decay": lambda p: torch.optim.SGD(p, lr=1e-2, weight_decay=0.5),
    "of another kind": lambda p: torch.optim.Adamax(p, lr=1e-4),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", HALVES)
def test_the_unmoved_share_is_that_of_weights_with_a_gradient(
    tmp_path: Path, kind: str, dtype: torch.dtype
) -> None:
    model = network(dtype)
    training = Training(model, HALVES[kind](model.parameters()))
    run = watched(tmp_path, training)
    shares = column(run, "unmoved_share")
    for step, true in enumerate(training.unmoved):
        if step < 10 or step % EVERY == 0:
            assert shares[step] == pytest.approx(true, abs=1e-6)
        else:
            assert shares[step] is None


@pytest.mark.parametrize("kind", [name for name in HALVES if name != "of another kind"])
def test_what_is_asked_is_what_the_same_step_does_to_wide_weights(
    tmp_path: Path, kind: str
) -> None:
    model = network(torch.bfloat16)
    training = Training(model, HALVES[kind](model.parameters()))
    truth: list[tuple[float, float]] = []
    step = training.step

    def stepped() -> None:
        before = [p.detach().float() for p in model.parameters()]
        twins = [nn.Parameter(w.clone()) for w in before]
        twin = HALVES[kind](twins)
        state = copy.deepcopy(training.optimizer.state_dict())
        step()
        for wide, parameter in zip(twins, model.parameters(), strict=True):
            wide.grad = parameter.grad.float()
        if state["state"]:
            twin.load_state_dict(state)
        twin.step()
        asked = torch.cat([(w.detach() - b).flatten() for w, b in zip(twins, before, strict=True)])
        moved = torch.cat([
            (p.detach().float() - b).flatten()
            for p, b in zip(model.parameters(), before, strict=True)
        ])  # fmt: skip
        place = torch.cat([b.flatten() for b in before]).bfloat16()
        up = torch.nextafter(place.abs(), torch.full_like(place, torch.inf)).float()
        spacing = up - place.abs().float()
        movable = float((asked.abs() / spacing).clamp(max=1.0).mean())
        truth.append((movable, float((moved * asked.sign()).sum() / asked.abs().sum())))

    training.step = stepped  # type: ignore[method-assign]
    run = watched(tmp_path, training)
    movable, kept = column(run, "asked_share"), column(run, "update_kept_share")
    # The moments are bf16 here and float32 there, and Nesterov's look ahead is left out.
    slack = 0.35 if kind == "nesterov" else 0.05
    for at in range(1, 10):
        assert movable[at] == pytest.approx(truth[at][0], rel=slack)
        assert kept[at] == pytest.approx(truth[at][1], rel=2 * slack, abs=0.02)


def test_a_large_model_is_worked_on_in_parts_with_the_same_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for most in (1 << 22, 20):
        monkeypatch.setattr(optimizers, "_MOST_ELEMENTS", most)
        model = network(torch.bfloat16)
        training = Training(model, torch.optim.AdamW(model.parameters(), lr=3e-4))
        run = watched(tmp_path / str(most), training)
        found.append([column(run, "update_kept_share"), run.layers["moment_ratio"].to_pylist()])
    for one, other in zip(*found, strict=True):
        known = [value for value in other if value is not None]
        assert [value for value in one if value is not None] == pytest.approx(known, rel=1e-5)


def test_steps_that_are_counted_on_the_device_correct_as_those_on_the_host() -> None:
    group, adam = {"betas": (0.9, 0.999)}, optimizers._Kind.ADAM
    host = optimizers._Bucket(group, torch.float32, adam, 7.0)
    assert optimizers._started(host, [3, 2], 1) == 1 - 0.999**7
    steps = [torch.tensor(7.0), torch.tensor([2.0])]  # as capturable and fused optimizers keep them
    device = optimizers._Bucket(group, torch.float32, adam, None, steps=steps)
    each = optimizers._started(device, [3, 2], 1)
    assert each[:3].tolist() == pytest.approx([1 - 0.999**7] * 3, rel=1e-4)
    assert each[3:].tolist() == pytest.approx([1 - 0.999**2] * 2, rel=1e-4)


@pytest.mark.parametrize("kind", ["of another kind", "centered", "falling adagrad"])
def test_an_optimizer_that_is_not_understood_has_the_unmoved_share_alone(
    tmp_path: Path, kind: str
) -> None:
    model = network(torch.bfloat16)
    made = {
        "of another kind": HALVES["of another kind"],
        "centered": lambda p: torch.optim.RMSprop(p, lr=1e-4, centered=True),
        "falling adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-3, lr_decay=0.1),
    }[kind]
    run = watched(tmp_path, Training(model, made(model.parameters())))
    assert column(run, "unmoved_share")[0] is not None
    assert set(column(run, "asked_share")) == {None}
    assert set(column(run, "update_kept_share")) == {None}


def test_weights_in_float32_have_no_share(tmp_path: Path) -> None:
    model = network()
    run = watched(tmp_path, Training(model, torch.optim.AdamW(model.parameters(), lr=1e-6)))
    for name in ("unmoved_share", "asked_share", "update_kept_share"):
        assert set(column(run, name)) == {None}


def test_frozen_weights_and_rows_without_a_gradient_do_not_count(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(64, 4), nn.Linear(4, 2)).bfloat16()
    model[1].requires_grad_(requires_grad=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=10.0)
    with ampwatch.attach(
        None, model, optimizer=optimizer, run="r", log_dir=tmp_path, endpoint="off"
    ):
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.tensor([3, 5])).float().square().sum().backward()
            optimizer.step()
    assert all(share < 0.5 for share in column(ampwatch.open_run(tmp_path / "r"), "unmoved_share"))


def test_sparse_gradients_are_left_alone(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(64, 4, sparse=True)).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    with ampwatch.attach(
        None, model, optimizer=optimizer, run="r", log_dir=tmp_path, endpoint="off"
    ):
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.tensor([3, 5])).float().square().sum().backward()
            optimizer.step()
    assert set(column(ampwatch.open_run(tmp_path / "r"), "unmoved_share")) == {None}


@pytest.mark.parametrize("kind", HALVES)
def test_weights_and_state_are_the_same_with_and_without_us(tmp_path: Path, kind: str) -> None:
    plain = network(torch.bfloat16)
    alone = Training(plain, HALVES[kind](plain.parameters()))
    for _ in range(STEPS):
        alone.step()
    model = network(torch.bfloat16)
    seen = Training(model, HALVES[kind](model.parameters()))
    watched(tmp_path, seen)
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        assert torch.equal(one, other)
    one, other = alone.optimizer.state_dict()["state"], seen.optimizer.state_dict()["state"]
    assert one.keys() == other.keys()
    for at in one:
        assert one[at].keys() == other[at].keys()
        assert all(
            torch.equal(one[at][name], other[at][name])
            for name in one[at]
            if isinstance(one[at][name], Tensor)
        )


def test_a_parameter_that_never_had_a_gradient_gets_no_state_from_us(tmp_path: Path) -> None:
    model = network()
    model[2].requires_grad_(requires_grad=False)
    rest = [p for p in model.parameters() if not p.requires_grad]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    watched(tmp_path, Training(model, optimizer), steps=3)
    assert all(parameter not in optimizer.state for parameter in rest)


@pytest.mark.parametrize("kind", ["channels last", "a moment in another order"])
def test_what_is_laid_out_otherwise_than_its_parameter_is_left_alone(
    tmp_path: Path, kind: str
) -> None:
    torch.manual_seed(0)
    model = nn.Conv2d(3, 8, 3).bfloat16()
    if kind == "channels last":
        model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with ampwatch.attach(
        None, model, optimizer=optimizer, run="r", log_dir=tmp_path, endpoint="off"
    ):
        for step in range(4):
            optimizer.zero_grad()
            model(torch.randn(2, 3, 8, 8).bfloat16()).float().square().mean().backward()
            if kind == "a moment in another order" and step:
                for state in optimizer.state.values():
                    state["exp_avg"] = state["exp_avg"].contiguous(
                        memory_format=torch.channels_last
                        if state["exp_avg"].ndim == 4
                        else torch.contiguous_format
                    )
            optimizer.step()
    shares = column(ampwatch.open_run(tmp_path / "r"), "unmoved_share")
    assert all(share is not None and 0.0 <= share <= 1.0 for share in shares)


def test_slices_follow_parameters_that_move_to_other_memory() -> None:
    weight = nn.Parameter(torch.arange(600.0).reshape(20, 30))
    slices = Slices([weight], [0])
    weight.data = weight.data.t().contiguous().t()  # the same values, laid out by columns
    alike = torch.empty_like(weight).copy_(weight.detach())
    assert slices.like(0, alike) is not None
    assert slices.like(0, weight.detach().clone(memory_format=torch.contiguous_format)) is None
    assert slices.like(0, weight.detach().to_sparse()) is None
    assert slices.like(0, torch.zeros(20, 30, dtype=torch.int32)) is None
    assert slices.like(0, None) is None
