"""A run's figures equal those of a logger written by hand into the same loop.

The logger reads what a careful user would print: scales before and after `update`, the loss with
`.item()`, norms with torch's own functions, overflow from the gradients themselves, weights copied
whole before and after each step. Where both are float32 they agree to the last digit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ampwatch

STEPS = 100
EXACT = ("scale", "scale_after", "growth_tracker", "found_inf", "skipped", "loss", "lr",
         "grad_norm", "grad_norm_applied", "micro_batches")  # fmt: skip
# What a strided slice of at most 1 % can say of the whole update, as measured.
UPDATE_NORM_BAND = (0.92, 1.07)


@dataclass
class Line:
    """What the hand-written logger says of one step."""

    scale: float
    scale_after: float
    growth_tracker: int
    found_inf: bool
    skipped: bool
    loss: float
    lr: float
    grad_norm: float
    grad_norm_applied: float
    micro_batches: int
    update_norm: float = field(default=0.0)
    param_norm: float = field(default=0.0)


@dataclass
class Loop:
    """How one training differs from the others."""

    optimizer: Callable[[Any], torch.optim.Optimizer]
    clip: float | None = None
    micro_batches: int = 1
    schedule: bool = False
    init_scale: float = 2.0**38


LOOPS = {
    "sgd": Loop(lambda p: torch.optim.SGD(p, lr=0.05)),
    "adam": Loop(lambda p: torch.optim.Adam(p, lr=2e-3)),
    "fused adamw": Loop(lambda p: torch.optim.AdamW(p, lr=2e-3, fused=True)),
    "foreach adamw": Loop(lambda p: torch.optim.AdamW(p, lr=2e-3, foreach=True)),
    "clipped sgd": Loop(lambda p: torch.optim.SGD(p, lr=0.05), clip=0.3, schedule=True),
    "clipped fused": Loop(lambda p: torch.optim.AdamW(p, lr=2e-3, fused=True), clip=0.3),
    "clipped, accumulated": Loop(lambda p: torch.optim.Adam(p, 2e-3), clip=0.3, micro_batches=3),
    "accumulated": Loop(lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9), micro_batches=2),
}


def make_model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(12, 40), nn.GELU(), nn.LayerNorm(40), nn.Linear(40, 3))


def make_batch(step: int) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(8, 12)
    if step in (70, 71):
        inputs = inputs * 1e30  # overflows in the forward pass
    return inputs, torch.randint(0, 3, (8,))


def total_norm(tensors: list[Tensor]) -> float:
    return torch.stack([tensor.norm() for tensor in tensors]).norm().item()


def train_and_log(loop: Loop, log_dir: Path) -> list[Line]:
    """The loop with the logger in it, while ampwatch watches."""
    torch.manual_seed(3)
    model, scaler = make_model(), torch.amp.GradScaler("cpu", loop.init_scale, growth_interval=20)
    optimizer = loop.optimizer(model.parameters())
    halved = torch.optim.lr_scheduler.StepLR(optimizer, 40, 0.5)
    with ampwatch.attach(scaler, model, run="run", log_dir=log_dir, endpoint="off", layer_every=10):
        return [log_step(loop, step, model, optimizer, scaler, halved) for step in range(STEPS)]


def log_step(
    loop: Loop, step: int, model: nn.Module, optimizer: Any, scaler: Any, schedule: Any
) -> Line:
    parameters = list(model.parameters())
    losses = []
    for _ in range(loop.micro_batches):
        inputs, labels = make_batch(step)
        with torch.autocast("cpu", torch.float16):
            loss = nn.functional.cross_entropy(model(inputs), labels) / loop.micro_batches
        scaler.scale(loss).backward()
        losses.append(loss.item())
    scale, tracker = scaler.get_scale(), int(scaler._get_growth_tracker())
    unscaled = [p.grad / scale for p in parameters]
    found_inf = not all(gradient.isfinite().all() for gradient in unscaled)
    norm = total_norm(unscaled)
    applied = norm
    if loop.clip is not None:
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(parameters, loop.clip).item()
        applied = total_norm([p.grad for p in parameters])
    before = [p.detach().clone() for p in parameters]
    lr = optimizer.param_groups[0]["lr"]
    scaler.step(optimizer)
    scaler.update()
    line = Line(
        scale, scaler.get_scale(), tracker, found_inf, found_inf, sum(losses), lr, norm, applied,
        loop.micro_batches, *movement(before, parameters),
    )  # fmt: skip
    optimizer.zero_grad()
    if loop.schedule and not found_inf:
        schedule.step()
    return line


def movement(before: list[Tensor], parameters: list[nn.Parameter]) -> tuple[float, float]:
    """The norm of the whole update, and of the matrix weights before it."""
    moved = [new.detach() - old for new, old in zip(parameters, before, strict=True)]
    return total_norm(moved), total_norm([old for old in before if old.ndim >= 2])


def same(logged: Any, by_hand: Any) -> bool:
    """Equal to the last digit; two figures that are not finite are equal, however they came so."""
    if isinstance(by_hand, float) and not math.isfinite(by_hand):
        return logged is not None and not math.isfinite(logged)
    return logged == by_hand


Logged = tuple[list[Line], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Logged]:
    """Each loop is run once: by hand, and as ampwatch has it."""

    @cache
    def made(name: str) -> Logged:
        folder = tmp_path_factory.mktemp("logged")
        lines = train_and_log(LOOPS[name], folder)
        return lines, ampwatch.open_run(folder / "run").steps.sort_by("step").to_pylist()

    return made


@pytest.mark.parametrize("name", LOOPS)
def test_every_figure_equals_the_hand_written_loggers(
    name: str, logged: Callable[[str], Logged]
) -> None:
    lines, rows = logged(name)
    assert [row["step"] for row in rows] == list(range(STEPS))
    assert 5 < sum(line.skipped for line in lines) < STEPS / 2
    for column in EXACT:
        wrong = [
            (row["step"], row[column], by_hand)
            for row, by_hand in zip(rows, (asdict(line)[column] for line in lines), strict=True)
            if not same(row[column], by_hand)
        ]
        assert not wrong, f"{column}: {len(wrong)} differ, as (step, logged, by hand) {wrong[:3]}"


@pytest.mark.parametrize("name", ["sgd", "foreach adamw", "fused adamw"])
def test_update_and_weight_norms_are_close_to_full_copies(
    name: str, logged: Callable[[str], Logged]
) -> None:
    lines, rows = logged(name)
    assert_norms_agree(rows, lines)


def assert_norms_agree(rows: list[dict[str, Any]], lines: list[Line]) -> None:
    low, high = UPDATE_NORM_BAND
    for row, line in zip(rows, lines, strict=True):
        if line.skipped:
            assert row["update_norm"] in (0.0, None), f"step {row['step']} moved nothing"
            continue
        ratio = row["update_norm"] / line.update_norm
        assert low <= ratio <= high, f"update_norm at step {row['step']}: {ratio:.3f} of the truth"
        if row["param_norm"] is not None:
            assert row["param_norm"] == pytest.approx(line.param_norm, rel=0.05)
    assert any(row["param_norm"] is not None for row in rows)


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_update_norm_holds_for_an_embedding_of_zipf_distributed_tokens(
    name: str, tmp_path: Path
) -> None:
    torch.manual_seed(5)
    model = nn.Sequential(nn.Embedding(20_000, 32), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8))
    optimizer = LOOPS[name].optimizer(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
    tokens = zipf_tokens(60, 256, 20_000)
    ratios, stated = [], []
    with ampwatch.attach(scaler, model, run="run", log_dir=tmp_path, endpoint="off"):
        for batch in tokens:
            before = [p.detach().clone() for p in model.parameters()]
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = nn.functional.cross_entropy(model(batch), batch % 8)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            ratios.append(movement(before, list(model.parameters()))[0])
    rows = ampwatch.open_run(tmp_path / "run").steps.sort_by("step").to_pylist()
    for i, row in enumerate(rows):
        if ratios[i] == 0.0:
            assert row["update_norm"] in (0.0, None)
            continue
        ratios[i] = row["update_norm"] / ratios[i]
        stated.append(abs(ratios[i] - 1) / max(row["update_norm_rel_error"], 1e-6))
    taken = [ratio for ratio in ratios if ratio]
    low, high = UPDATE_NORM_BAND
    assert len(taken) > 40
    assert low <= min(taken)
    assert max(taken) <= high
    assert np.quantile(stated, 0.9) <= 3, "nine in ten lie within three stated standard errors"


def zipf_tokens(batches: int, size: int, vocabulary: int) -> Tensor:
    """Token numbers sorted by frequency, as in most vocabularies: n comes up with chance ~ 1/n."""
    generator = np.random.default_rng(0)
    chances = 1.0 / np.arange(1, vocabulary + 1)
    ranks = generator.choice(vocabulary, (batches, size), p=chances / chances.sum())
    return torch.from_numpy(ranks)
