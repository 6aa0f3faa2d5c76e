"""Delayed scales, on stand-ins that mirror Transformer Engine's source: it needs a GPU itself."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import children
import pytest
import torch
from delayed_scales_ranks import Net
from delayed_scaling import DelayedScaling, Linear, fp8_autocast

import ampwatch
from ampwatch.diagnosis import diagnose
from ampwatch.probe.formats.library_formats import DelayedRoom

END = {"input": 464.0, "weight": 464.0, "grad": 61440.0}
TINY = {"input": 2.0**-10, "weight": 2.0**-10, "grad": 2.0**-17}


def trained(folder, *, growth=1.0, steps=10, recipe=None):
    """Steps whose inputs grow by a factor each time; the run and its model."""
    torch.manual_seed(0)
    model = Net(recipe or DelayedScaling())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    with ampwatch.attach(
        None, model, optimizer=optimizer, run="run", log_dir=folder, endpoint="off"
    ) as watch:
        for step in range(steps):
            x = growth**step * torch.randn(64, 32)
            with fp8_autocast(model):
                loss = model(x).square().mean()
            watch.log(loss=loss)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return ampwatch.open_run(folder / "run"), model


def rows_of(run, layer):
    return [row for row in run.layers.to_pylist() if row["layer"] == layer]


def codes(run):
    return {f.code for f in diagnose(run).findings if f.code.startswith("AMP7")}


def test_staleness_and_shares_are_those_of_the_scales_that_were_in_use(tmp_path):
    run, model = trained(tmp_path, growth=1.5)
    layer = model.blocks[1]
    rows = rows_of(run, "blocks.1")
    assert rows[0]["input_format"] == "float8_e4m3fn/tensorwise/delayed"
    assert len(rows) == len(layer.passes) == 10
    for row, done in zip(rows, layer.passes, strict=True):
        assert row["amax_staleness"] == pytest.approx(max(done.used), rel=1e-5)
        for role, tensor, scale in done.operands:
            assert row[f"{role}_scale"] == pytest.approx(scale)
            if row is rows[0] and role == "input":
                continue  # before its first pass the layer does not say that it will cast
            scaled = (tensor * scale).abs()
            cut = (scaled > END[role]).float().mean().item()
            flushed = (scaled <= TINY[role]).float().mean().item()
            assert row[f"{role}_saturated_share"] == pytest.approx(cut, abs=1e-3)
            assert row[f"{role}_flushed_share"] == pytest.approx(flushed, abs=1e-3)


def test_a_scale_that_lags_behind_growing_values_is_stale_and_cuts_them_off(tmp_path):
    run, _ = trained(tmp_path, growth=3.0)
    found = {f.code: f for f in diagnose(run).findings}
    assert "AMP703" in found
    assert found["AMP701"].layer.startswith("blocks.")


def test_a_scale_that_keeps_up_is_no_finding(tmp_path):
    assert codes(trained(tmp_path, growth=1.0)[0]) == set()


def test_maxima_of_other_ranks_are_seen_to_be_too_small_for_the_operands_here(tmp_path):
    """A reduction over the wrong ranks leaves theirs as the newest maximum."""

    class Reduced(Linear):
        def cast(self, key, at, tensor, dtype, role):
            given = super().cast(key, at, tensor, dtype, role)
            self.fp8_meta[key].amax_history[0, at] /= 8
            return given

    torch.manual_seed(0)
    model = Net(DelayedScaling())
    model.blocks[1] = Reduced(32, 32, DelayedScaling())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    with ampwatch.attach(
        None, model, optimizer=optimizer, run="run", log_dir=tmp_path, endpoint="off"
    ):
        for _ in range(10):
            with fp8_autocast(model):
                loss = model(torch.randn(64, 32)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    rows = rows_of(ampwatch.open_run(tmp_path / "run"), "blocks.1")
    for row, done in list(zip(rows, model.blocks[1].passes, strict=True))[1:]:
        assert row["amax_staleness"] == pytest.approx(max(done.used), rel=1e-5)
    assert rows[-1]["amax_staleness"] > 5


def resumed(folder, *, kept):
    """Twelve steps, and twelve more from their checkpoint; the run."""
    data = torch.Generator().manual_seed(1)
    state: dict[str, Any] = {}
    for attempt in range(2):
        torch.manual_seed(0)
        model = Net(DelayedScaling())
        if state:
            model.load_state_dict({name: one for name, one in state.items() if kept(name)},
                                  strict=False)  # fmt: skip
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        with ampwatch.attach(
            None, model, optimizer=optimizer, run="run", log_dir=folder, endpoint="off",
            start_step=12 * attempt, resume=attempt > 0,
        ) as watch:  # fmt: skip
            for _ in range(12):
                with fp8_autocast(model):
                    loss = model(torch.randn(64, 32, generator=data)).square().mean()
                watch.log(loss=loss)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        state = model.state_dict()
    return ampwatch.open_run(folder / "run")


def test_scales_that_a_checkpoint_lost_are_told_with_the_step_and_the_keys(tmp_path):
    run = resumed(tmp_path, kept=lambda name: not name.endswith("_extra_state"))
    (one,) = [f for f in diagnose(run).findings if f.code == "AMP703"]
    assert (one.first_step, one.severity.value) == (12, "warning")
    assert "2 layers of 2 started again" in one.summary
    assert "_extra_state" in one.action
    first = [row for row in rows_of(run, "blocks.0") if row["step"] == 12]
    assert [first[0][f"{role}_scale"] for role in ("input", "weight", "grad")] == [1.0] * 3


def test_scales_that_a_checkpoint_kept_are_no_finding(tmp_path):
    assert codes(resumed(tmp_path, kept=lambda _name: True)) == set()


def test_a_newest_maximum_that_is_nan_is_seen_before_and_after_the_scales_are_renewed():
    layer = Linear(32, 32, DelayedScaling())
    layer.passes.append(None)
    backward = layer.fp8_meta["scaling_bwd"]
    room = DelayedRoom(layer.fp8_meta)
    backward.amax_history[0, 0] = math.nan
    assert room.backward().isnan()
    backward.renew()
    assert room.backward().isnan()
    assert backward.scale[0] == 1.0  # frozen


def test_training_is_the_same_to_the_bit_with_and_without_the_watch(tmp_path, monkeypatch):
    _, watched = trained(tmp_path / "on", growth=1.5)
    monkeypatch.setenv("AMPWATCH", "0")
    with pytest.raises(ampwatch.AmpwatchError):
        trained(tmp_path / "off", growth=1.5)
    monkeypatch.setattr(ampwatch, "open_run", lambda _path: None)
    _, alone = trained(tmp_path / "off", growth=1.5)
    for one, other in zip(watched.parameters(), alone.parameters(), strict=True):
        assert torch.equal(one, other)
    assert torch.equal(watched.blocks[0].fp8_meta["scaling_fwd"].scale,
                       alone.blocks[0].fp8_meta["scaling_fwd"].scale)  # fmt: skip


# --- several ranks --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def on_two_ranks(tmp_path_factory):
    """Two processes over gloo, the second with inputs five times larger; a run by name."""
    folder = tmp_path_factory.mktemp("ranks")
    script = Path(__file__).with_name("delayed_scales_ranks.py")
    environment = {**os.environ, "PYTHONPATH": str(script.parents[1])}
    done = children.run(script, folder / "meet", folder, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return lambda name: ampwatch.open_run(folder / name)


@pytest.mark.slow_ranks
def test_ranks_that_do_not_reduce_their_maxima_are_told_as_information(on_two_ranks):
    run = on_two_ranks("own")
    (one,) = [f for f in diagnose(run).findings if f.code.startswith("AMP7")]
    assert (one.code, one.severity.value) == ("AMP703", "info")
    small, large = scales_by_rank(run, one.layer)
    assert small[-1][0] > 2 * large[-1][0]  # of its inputs
    assert small[-1][1] == large[-1][1]  # the weights are the same
    assert "reduce_amax=True" in one.action


@pytest.mark.slow_ranks
def test_ranks_that_reduce_their_maxima_have_the_same_scales_and_no_finding(on_two_ranks):
    run = on_two_ranks("reduced")
    one, other = scales_by_rank(run, "blocks.1")
    assert one == other
    assert len(one) == 10
    assert codes(run) == set()


def scales_by_rank(run, layer):
    """Scales of input and weight at each sampled step, of both ranks."""
    rows = rows_of(run, layer)
    return [
        [(row["input_scale"], row["weight_scale"]) for row in rows if row["rank"] == rank]
        for rank in range(2)
    ]
