"""Gradients that are written to through `.data`, which no version counter tells."""

from __future__ import annotations

import pytest
import torch
from loop_harness import Trainer, column, events

import ampwatch

LIMIT = 0.05


def norm_of(parameters):
    return torch.stack([p.grad.norm() for p in parameters]).norm().item()


def clip_through_data(parameters, limit):
    """DINO's and VITS's way: each gradient by its own norm, if it is too large."""
    for parameter in parameters:
        coefficient = limit / (parameter.grad.data.norm(2) + 1e-6)
        if coefficient < 1:
            parameter.grad.data.mul_(coefficient)


@pytest.mark.parametrize("begins", [0, 23])
def test_an_edit_after_unscale_shows_in_the_norm_that_the_optimizer_saw(tmp_path, begins):
    trainer = Trainer(tmp_path, layer_every=10)
    trainer.optimizer.param_groups[0]["lr"] = 1e-4
    parameters, true, applied = list(trainer.model.parameters()), [], []
    for number in range(60):
        trainer.optimizer.zero_grad()
        trainer.backward(10.0)
        trainer.scaler.unscale_(trainer.optimizer)
        true.append(norm_of(parameters))
        if number >= begins:
            clip_through_data(parameters, LIMIT)
        applied.append(norm_of(parameters))
        trainer.scaler.step(trainer.optimizer)
        trainer.scaler.update()
    run = trainer.read()
    known = begins + (7 if begins else 0)  # the next sampled step looks, every one from then on
    assert column(run, "grad_norm") == pytest.approx(true)
    assert column(run, "grad_norm_applied")[known:] == pytest.approx(applied[known:])
    assert true[-1] > 2 * applied[-1]
    assert not events(run, "misuse")


@pytest.mark.parametrize("by_hand", [True, False])
def test_an_edit_before_unscale_costs_the_norm_and_is_said(tmp_path, by_hand):
    trainer = Trainer(tmp_path, layer_every=10)
    parameters, applied = list(trainer.model.parameters()), []
    for _ in range(40):
        trainer.optimizer.zero_grad()
        trainer.backward(10.0)
        clip_through_data(parameters, LIMIT)
        applied.append(norm_of(parameters) / 1024.0)
        if by_hand:
            trainer.scaler.unscale_(trainer.optimizer)
        trainer.scaler.step(trainer.optimizer)
        trainer.scaler.update()
    run = trainer.read()
    assert column(run, "grad_norm") == [None] * 40
    assert column(run, "grad_norm_applied") == pytest.approx(applied, rel=1e-5)
    assert [event["code"] for event in events(run, "misuse")] == ["AMP401"]


def test_without_a_scaler_norms_stand_before_and_after_the_edit(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = ampwatch.attach(
        None, model, optimizer=optimizer, log_dir=tmp_path, run="r", layer_every=10
    )
    parameters, true, applied = list(model.parameters()), [], []
    for _ in range(40):
        optimizer.zero_grad()
        (model(torch.ones(3, 4)).square().mean() * 10).backward()
        true.append(norm_of(parameters))
        clip_through_data(parameters, LIMIT)
        applied.append(norm_of(parameters))
        optimizer.step()
    watch.close()
    run = ampwatch.open_run(watch.run_folder)
    assert column(run, "grad_norm") == pytest.approx(true)
    assert column(run, "grad_norm_applied") == pytest.approx(applied)
    assert true[-1] > 2 * applied[-1]


def test_gradients_that_nobody_edits_are_not_taken_for_edited(tmp_path):
    trainer = Trainer(tmp_path, layer_every=5, scale=2.0**16)
    for _ in range(40):
        trainer.step()
    run = trainer.read()
    assert column(run, "grad_norm") == column(run, "grad_norm_applied")
    assert None not in column(run, "grad_norm")
    assert not events(run, "misuse")


def test_a_scale_that_was_halved_down_to_zero_is_still_observed(tmp_path):
    """One loss on a shared scaler is never finite; the other's gradients come to 0 with the scale.

    A failure of the probe itself would be raised here.
    """
    models = {name: torch.nn.Linear(4, 1) for name in ("good", "broken")}
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models.values()]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**-148)
    with ampwatch.attach(scaler, models, log_dir=tmp_path) as watch:
        for _ in range(5):
            x = torch.randn(8, 4)
            for factor, model, optimizer in zip(
                (1.0, float("inf")), models.values(), optimizers, strict=True
            ):
                optimizer.zero_grad()
                scaler.scale(model(x).mean() * factor).backward()
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()
    run = ampwatch.open_run(watch.run_folder)
    assert run.steps["scale"].to_pylist()[-1] == 0.0
    assert not events(run, "misuse")
    assert set(column(run, "step")) == set(range(5))
