"""The update's norm from slices, and two updates' cosine, against the whole parameters."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import ampwatch
from ampwatch.probe.records import DeviceUpdate, HostUpdate
from ampwatch.probe.tensor_values import Pack
from ampwatch.probe.weight_updates import Slices, estimate, figures_of, stride_of

SHAPES = [(64, 64), (64,), (1000, 128), (7,), (3, 5, 7, 9)]


def parameters(shapes=SHAPES, dtype=torch.float32):
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape).to(dtype)) for shape in shapes]


def one_step(held, change):
    """The slices around a change, and the true norms of update and weights before it."""
    slices = Slices(held, range(len(held)))
    before = slices.before(fresh=True)
    whole = [p.detach().clone().double() for p in held]
    with torch.no_grad():
        for parameter in held:
            change(parameter)
    moved = [p.detach().double() - old for p, old in zip(held, whole, strict=True)]
    after = slices.after()
    norm = math.sqrt(sum(m.square().sum().item() for m in moved))
    weights = math.sqrt(sum(w.square().sum().item() for w in whole))
    return slices, before, after, norm, weights


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=4).filter(lambda s: math.prod(s) < 1e9))
def test_a_slice_is_at_least_256_and_at_most_one_in_a_hundred(shape):
    numel = math.prod(shape)
    stride = stride_of(shape)
    kept = -(-numel // stride)
    assert kept >= min(numel, 256)
    assert math.gcd(stride, numel // shape[0]) == 1
    if numel >= 30_000:  # below, the 256 that a tensor must keep are more than 1 %
        assert kept <= numel / 100 + 1


def test_a_stride_never_keeps_to_one_column_of_an_embedding():
    stride = stride_of((50_000, 256))
    columns = {(stride * n) % 256 for n in range(50_000 * 256 // stride)}
    assert len(columns) == 256


def test_the_estimate_is_within_its_stated_error():
    change = lambda p: p.add_(0.01 * torch.randn_like(p))  # noqa: E731
    slices, before, after, norm, weights = one_step(parameters(), change)
    found = figures_of(slices.layout, before[None], after[None])
    error = float(found.relative_error[0])
    assert 0 < error < 0.05
    assert float(found.update_norm[0]) == pytest.approx(norm, rel=4 * error)
    assert math.sqrt(found.weight_squares.sum()) == pytest.approx(weights, rel=0.1)


def test_small_tensors_are_taken_whole_and_exact():
    held = parameters([(16, 16), (3,)])
    slices, before, after, norm, _ = one_step(held, lambda p: p.mul_(1.5))
    found = figures_of(slices.layout, before[None], after[None])
    assert float(found.update_norm[0]) == pytest.approx(norm, rel=1e-6)
    assert float(found.relative_error[0]) == 0.0


def test_many_steps_at_once_give_what_each_gives_alone():
    rng = np.random.default_rng(0)
    slices = Slices(parameters(), range(len(SHAPES)))
    size = int(slices.layout.counts.sum())
    before, after = rng.normal(size=(2, 9, size)).astype(np.float32)
    together = figures_of(slices.layout, before, after)
    for row in range(9):
        alone = figures_of(slices.layout, before[row : row + 1], after[row : row + 1])
        assert alone.update_norm[0] == pytest.approx(together.update_norm[row], rel=1e-12)
        assert alone.relative_error[0] == pytest.approx(together.relative_error[row], rel=1e-12)


def test_the_device_path_finds_what_the_host_path_finds():
    change = lambda p: p.add_(0.01 * torch.randn_like(p))  # noqa: E731
    slices, before, after, _, _ = one_step(parameters(), change)
    host = slices.compare(before, after, Pack())
    assert isinstance(host, HostUpdate)
    pack = Pack()
    device = slices.compare(torch.from_numpy(before), torch.from_numpy(after), pack)
    assert isinstance(device, DeviceUpdate)
    count = len(slices.layout.starts)
    sums = [
        np.array([pack.values[at : at + count]]) ** 2
        for at in (device.moved_at, device.squared_at, device.weight_at)
    ]
    assert device.along_at is None  # there was no update before
    reduced = estimate(slices.layout, *sums, np.full(1, np.nan))
    expected = figures_of(slices.layout, before[None], after[None])
    assert reduced.update_norm == pytest.approx(expected.update_norm, rel=1e-5)
    assert reduced.relative_error == pytest.approx(expected.relative_error, rel=1e-3)


def test_bfloat16_parameters_are_seen_too():
    held = parameters([(64, 64)], torch.bfloat16)
    slices, before, after, norm, _ = one_step(held, lambda p: p.mul_(2.0))
    pack = Pack()
    update = slices.compare(before, after, pack)
    moved = np.array([pack.values[update.moved_at : update.moved_at + 1]]) ** 2
    assert math.sqrt((moved * slices.layout.weights).sum()) == pytest.approx(norm, rel=0.1)


def test_complex_weights_and_a_wide_default_dtype_are_seen_too():
    held = [*parameters([(64, 64)], torch.float64), *parameters([(9, 9)], torch.complex64)]
    torch.set_default_dtype(torch.float64)
    try:
        slices = Slices(held, range(len(held)))
        pack = Pack()
        before = slices.before(fresh=True)
        for _ in range(2):  # the second is multiplied with the first
            with torch.no_grad():
                moved = [p.mul_(2.0) for p in held]
            update = slices.compare(before, before := slices.after(), pack)
    finally:
        torch.set_default_dtype(torch.float32)
    squares = np.array(pack.values[update.moved_at : update.moved_at + 2]) ** 2
    norms = np.sqrt(squares * slices.layout.weights)
    assert norms == pytest.approx([m.norm().item() / 2 for m in moved], rel=0.1)


def test_channels_last_weights_are_seen_through_their_own_memory():
    held = [torch.nn.Parameter(torch.randn(8, 4, 3, 3).to(memory_format=torch.channels_last))]
    slices, before, after, norm, _ = one_step(held, lambda p: p.mul_(1.5))
    found = figures_of(slices.layout, before[None], after[None])
    assert float(found.update_norm[0]) == pytest.approx(norm, rel=0.1)


def test_the_slices_after_a_step_serve_for_the_next_unless_somebody_writes():
    held = parameters()
    slices = Slices(held, range(len(held)))
    last = slices.after()
    assert slices.before(fresh=False) is last
    with torch.no_grad():
        held[0].zero_()
    assert not np.array_equal(slices.before(fresh=False), last)


def test_parameters_that_get_other_memory_are_followed():
    held = parameters([(64, 64)])
    slices = Slices(held, [0])
    slices.after()
    held[0].data = torch.full((64, 64), 3.0)
    assert np.unique(slices.after()).tolist() == [3.0]


def test_a_parameter_without_dimensions_is_seen_whole():
    """CLIP's temperature is one: it may not keep the watch from starting."""
    held = parameters([(), (4, 3)])
    slices, before, after, norm, _ = one_step(held, lambda p: p.mul_(1.5))
    assert slices.layout.counts.tolist() == [1, 12]
    moved = np.linalg.norm(np.asarray(after) - np.asarray(before))
    assert moved == pytest.approx(norm, rel=1e-6)


# -- how far two updates in a row point the same way, by the slices and by the whole ---------------

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
