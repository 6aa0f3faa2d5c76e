"""Not a bit is changed: every training ends exactly as it would without the watch."""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from invisible_trainings import TRAININGS, Outcome, Training, differences, mlp

import ampwatch

# The first step is skipped, and torch's schedulers warn about that.
pytestmark = pytest.mark.filterwarnings("ignore:Detected call of .lr_scheduler.step")

STEPS = 120
WITHOUT_A_SCALE = {"disabled scaler", "bfloat16 without scaler"}
LAYER_EVERY = 7  # many sampled steps and many that are not


def unwatched(training: Training) -> Outcome:
    return training(STEPS, lambda scaler, model, **options: None)


@functools.cache
def bare(name: str) -> Outcome:
    """The training's end without us, made once for the tests that compare with it."""
    return unwatched(TRAININGS[name])


def watched(training: Training, log_dir: Path, **settings: Any) -> Outcome:
    with contextlib.ExitStack() as stack:

        def attach(scaler: Any, model: Any, **options: Any) -> Any:
            made = ampwatch.attach(scaler, model, **options, **settings, run="run", log_dir=log_dir)
            return stack.enter_context(made)

        return training(STEPS, attach)


@pytest.mark.parametrize("name", TRAININGS)
def test_training_ends_bit_for_bit_as_without_the_watch(name: str, tmp_path: Path) -> None:
    alone = bare(name)
    if name not in WITHOUT_A_SCALE:
        assert 0 < alone.state["scaler"]["scale"] < 2.0**40, "it never skipped a step"
    with_watch = watched(TRAININGS[name], tmp_path, endpoint="off", layer_every=LAYER_EVERY)
    assert differences(alone, with_watch) == []
    rows = ampwatch.open_run(tmp_path / "run").steps
    assert rows.num_rows == STEPS * alone.steps_per_iteration, "it was watched indeed"


def test_training_is_unchanged_when_only_the_scaler_is_watched(tmp_path: Path) -> None:
    training = TRAININGS["adam"]

    def scaler_alone(steps: int, attach: Any) -> Outcome:
        return training(steps, lambda scaler, model, **options: attach(scaler, None, **options))

    assert differences(bare("adam"), watched(scaler_alone, tmp_path, endpoint="off")) == []
    assert ampwatch.open_run(tmp_path / "run").steps.num_rows == STEPS


def test_training_is_unchanged_when_nobody_listens_at_the_endpoint(tmp_path: Path) -> None:
    training = TRAININGS["clipping"]
    with_watch = watched(training, tmp_path, endpoint="tcp://127.0.0.1:9", layer_every=LAYER_EVERY)
    assert differences(bare("clipping"), with_watch) == []


def test_training_is_unchanged_under_deterministic_algorithms(tmp_path: Path) -> None:
    training = TRAININGS["foreach adamw"]
    torch.use_deterministic_algorithms(True)
    try:
        alone = unwatched(training)
        with_watch = watched(training, tmp_path, endpoint="off", layer_every=1)
    finally:
        torch.use_deterministic_algorithms(False)
    assert differences(alone, with_watch) == []


def test_a_changed_bit_would_be_noticed() -> None:
    one, other = unwatched(TRAININGS["sgd"]), unwatched(TRAININGS["sgd"])
    assert differences(one, other) == []
    other.state["models"][0]["0.weight"].view(torch.int32)[0, 0] ^= 1
    assert differences(one, other) == ["/models/0/0.weight"]
    torch.rand(1)
    later = Outcome(one.losses).keep(models=[], optimizers=[], scaler=None)
    assert "/torch" in differences(one, later)


def test_closing_leaves_no_hooks_and_no_trace_on_the_scaler(tmp_path: Path) -> None:
    model, scaler = mlp(), torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = dict(scaler.__dict__)
    with ampwatch.attach(scaler, model, log_dir=tmp_path, endpoint="off"):
        for _ in range(3):
            optimizer.zero_grad()
            scaler.scale(model(torch.randn(8, 12)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
    assert type(scaler) is torch.amp.GradScaler
    assert scaler.__dict__.keys() == before.keys()
    assert hooks_on(model) == []
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


def hooks_on(model: torch.nn.Module) -> list[str]:
    """Every hook that a module or a parameter of the model still bears."""
    found = [
        f"{path}: {name}"
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if "hooks" in name and value and not name.startswith("_is_full")
    ]
    found += [f"{n}: instance forward" for n, m in model.named_modules() if "forward" in vars(m)]
    return found + [n for n, p in model.named_parameters() if p._backward_hooks]
