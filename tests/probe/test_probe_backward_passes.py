"""Gradients older than the step that uses them: not cleared, or gathered over an update."""

from __future__ import annotations

import math

import pytest
import torch
from loop_harness import Trainer, events
from torch import nn

import ampwatch


def mistakes(run):
    return [event["code"] for event in events(run, "misuse")]


def misuse_of(folder, clear, *, model=None, watched=True, steps=15):
    """The mistakes said of a loop that clears its gradients this way."""
    trainer = Trainer(folder, enabled=watched, model=model)
    for number in range(steps):
        clear(trainer.optimizer, number)
        trainer.backward()
        trainer.scaler.unscale_(trainer.optimizer)
        nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
        trainer.scaler.step(trainer.optimizer)
        trainer.scaler.update()
    return mistakes(trainer.read())


@pytest.mark.parametrize("watched", [True, False])
def test_gradients_that_are_never_cleared_are_said(tmp_path, watched):
    assert misuse_of(tmp_path, lambda optimizer, number: None, watched=watched) == ["AMP412"]


def test_gradients_that_are_never_cleared_are_said_without_a_model(tmp_path):
    assert misuse_of(tmp_path, lambda optimizer, number: None, model="none") == ["AMP412"]


@pytest.mark.parametrize("watched", [True, False])
@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_that_are_cleared_either_way_are_not(tmp_path, to_none, watched):
    clear = lambda optimizer, number: optimizer.zero_grad(set_to_none=to_none)  # noqa: E731
    assert misuse_of(tmp_path, clear, watched=watched) == []


def test_gradients_zeroed_through_data_are_not(tmp_path):
    def clear(optimizer, number):
        for parameter in optimizer.param_groups[0]["params"]:
            if parameter.grad is not None:
                parameter.grad.data.zero_()

    assert misuse_of(tmp_path, clear) == []


def test_gradients_left_by_another_loss_and_then_cleared_are_not(tmp_path):
    """A GAN: the generator's loss reaches the discriminator, which clears before its own."""
    torch.manual_seed(0)
    maker, judge = nn.Linear(4, 4), nn.Linear(4, 1)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.01) for m in (maker, judge)]
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    models = {"maker": maker, "judge": judge}
    with ampwatch.attach(scaler, models, log_dir=tmp_path) as watch:
        for _ in range(15):
            for optimizer, sign in zip(optimizers, (-1.0, 1.0), strict=True):
                optimizer.zero_grad(set_to_none=False)
                loss = judge(maker(torch.ones(3, 4))).mean() * sign
                scaler.scale(loss).backward()
                scaler.step(optimizer)
            scaler.update()
    assert mistakes(ampwatch.open_run(watch.run_folder)) == []


def test_an_overflow_that_nobody_clears_is_said_in_the_next_step(tmp_path):
    trainer = Trainer(tmp_path)
    for number in range(40):
        trainer.backward(math.inf if number == 30 else 1.0)
        trainer.scaler.step(trainer.optimizer)
        trainer.scaler.update()
        if number < 30:
            trainer.optimizer.zero_grad()
    told = [e["step"] for e in trainer.read().events.to_pylist() if e["kind"] == "misuse"]
    assert told == [31]


def test_what_an_overflow_left_in_the_gradients_names_no_layer(tmp_path):
    trainer = Trainer(tmp_path)
    for number in range(20):
        trainer.backward(1e38 if number == 12 else 1.0)
        trainer.scaler.step(trainer.optimizer)
        trainer.scaler.update()
        if number < 12:
            trainer.optimizer.zero_grad()
    overflows = events(trainer.read(), "overflow")
    assert "stale" not in overflows[0]
    assert len(overflows) == 8
    assert all(event["stale"] and "layer" not in event for event in overflows[1:])


def accumulate(trainer, between, *, windows=6):
    """Windows of four micro-batches; `between` is called after the first three of each."""
    for number in range(4 * windows):
        trainer.backward(0.25)
        if number % 4 < 3:
            between(trainer)
        else:
            trainer.scaler.step(trainer.optimizer)
            trainer.scaler.update()
            trainer.optimizer.zero_grad()
    return trainer.read()


def unscale_and_update(trainer):
    trainer.scaler.unscale_(trainer.optimizer)
    trainer.scaler.update()


def clip_and_update(trainer):
    trainer.scaler.unscale_(trainer.optimizer)
    nn.utils.clip_grad_norm_(trainer.model.parameters(), 1e-4)
    trainer.scaler.update()


@pytest.mark.parametrize("model", [None, "none"])
@pytest.mark.parametrize("between", [unscale_and_update, clip_and_update])
def test_an_update_inside_an_accumulation_is_said_with_its_scales(tmp_path, between, model):
    trainer = Trainer(tmp_path, scale=256.0, model=model)
    trainer.scaler.set_growth_interval(3)
    said = events(accumulate(trainer, between), "misuse")
    assert said == [
        {
            "code": "AMP403",
            "optimizer": 0,
            "scales": [256.0, 256.0, 256.0, 512.0],
            "updates": 3,
            "unscaled": True,
        }
    ]


def test_an_update_before_anything_was_unscaled_is_said_when_torch_refuses_it(tmp_path):
    trainer = Trainer(tmp_path)
    trainer.backward()
    with pytest.raises(AssertionError, match="prior to update"):
        trainer.scaler.update()
    assert [event["raised"] for event in events(trainer.read(), "misuse")] == [True]


def test_an_accumulation_whose_update_follows_the_step_is_right(tmp_path):
    run = accumulate(Trainer(tmp_path), lambda trainer: None)
    assert mistakes(run) == []


@pytest.mark.parametrize("to_none", [True, False])
def test_a_step_left_out_and_cleared_is_no_accumulation(tmp_path, to_none):
    """The loop unscales, finds the norm too large, updates without a step and goes on."""

    def leave_out(trainer):
        unscale_and_update(trainer)
        trainer.optimizer.zero_grad(set_to_none=to_none)

    trainer = Trainer(tmp_path, scale=256.0)
    trainer.scaler.set_growth_interval(3)
    assert mistakes(accumulate(trainer, leave_out)) == []


@pytest.mark.parametrize(("interval", "expected"), [(2000, []), (3, ["AMP403"])])
def test_two_optimizers_in_different_rhythm_mix_scales_only_where_it_moves(
    tmp_path, interval, expected
):
    torch.manual_seed(0)
    fast, slow = nn.Linear(4, 1), nn.Linear(4, 1)
    often, seldom = (torch.optim.SGD(m.parameters(), lr=0.01) for m in (fast, slow))
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=interval)
    with ampwatch.attach(scaler, {"fast": fast, "slow": slow}, log_dir=tmp_path) as watch:
        for number in range(24):
            for model in (fast, slow):
                scaler.scale(model(torch.ones(3, 4)).mean()).backward()
            scaler.step(often)
            often.zero_grad()
            if number % 4 == 3:
                scaler.step(seldom)
                seldom.zero_grad()
            scaler.update()
    assert mistakes(ampwatch.open_run(watch.run_folder)) == expected
