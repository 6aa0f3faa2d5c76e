"""Advice on the loss scaler's settings, followed in the same training."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import ampwatch
from ampwatch.report.scaler_settings import _costs, scaler_settings, worthwhile_settings


def scaler_arithmetic(limits, scale, interval):
    """GradScaler's own arithmetic, on losses whose gradients overflow above these scales."""
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=interval)
    weight = nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    skips = 0
    for limit in limits:
        scaled = scaler.scale(weight)
        overflows = scaler.get_scale() > limit
        scaled.backward()
        if overflows:
            weight.grad.fill_(torch.inf)
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        skips += scaler.get_scale() < before
        optimizer.zero_grad()
    return skips


@settings(max_examples=settings().max_examples // 2)
@given(st.lists(st.integers(2, 12), min_size=1, max_size=25), st.integers(0, 14), st.integers(1, 9))
def test_the_counted_skips_are_those_of_gradscaler(octaves, start, interval):
    limits = 2.0 ** np.array(octaves, float)
    assert _costs(limits, 2.0**start, interval) == scaler_arithmetic(limits, 2.0**start, interval)


def train(folder, init_scale, interval):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale, growth_interval=interval)
    with ampwatch.attach(
        scaler, model, optimizer=optimizer, log_dir=folder, endpoint="off", layer_every=10
    ) as watch:
        for _ in range(120):
            x = torch.randn(32, 8)
            with torch.autocast("cpu", torch.float16):
                out = model(x)
            loss = ((out.float() - x.sum(1, keepdim=True)) ** 2).mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        path = watch.run_folder
    return ampwatch.open_run(path)


def skips_of(run):
    return sum(bool(one) for one in run.steps["skipped"].to_pylist())


@pytest.mark.slow_trainings
def test_a_training_with_the_advised_settings_skips_fewer_steps(tmp_path):
    run = train(tmp_path / "before", 2.0**30, 4)
    said = ampwatch.diagnose(run)
    advice = worthwhile_settings(run, said)
    assert advice is not None
    again = train(tmp_path / "after", advice.init_scale, advice.growth_interval)
    saved = skips_of(run) - skips_of(again)
    assert saved >= 20
    assert saved == pytest.approx(advice.saved, abs=0.2 * advice.saved)
    assert f"saves about {advice.saved} of {advice.skips} skipped steps" in advice.text
    assert worthwhile_settings(again, ampwatch.diagnose(again)) is None
    planned = ampwatch.plan(run)
    assert planned.to_json()["scaler"] == {
        "init_scale": advice.init_scale, "growth_interval": advice.growth_interval, "restore": True,
    }  # fmt: skip
    assert advice.text in planned.because


def test_a_scale_below_the_minimum_would_lose_gradients(tmp_path):
    run = train(tmp_path, 2.0**30, 4)
    advice = scaler_settings(run, ampwatch.diagnose(run))
    lows = run.read("layers", columns=("scale_low",)).column("scale_low").to_pylist()
    known = sorted(low for low in lows if low)
    if not known:
        assert advice.minimum is None
        return
    assert advice.minimum >= known[len(known) // 2]
    assert advice.minimum <= advice.init_scale


def test_a_run_without_a_scaler_gets_no_advice(tmp_path):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ampwatch.attach(
        None, model, optimizer=optimizer, log_dir=tmp_path, endpoint="off"
    ) as watch:
        for _ in range(3):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        path = watch.run_folder
    run = ampwatch.open_run(path)
    assert scaler_settings(run, ampwatch.diagnose(run)) is None
