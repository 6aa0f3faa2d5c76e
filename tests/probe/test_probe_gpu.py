"""On a GPU: no synchronisation of ours, no changed bit, and the same figures a step late."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

import ampwatch
from ampwatch.probe import hooks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device; none is here"),
]


def parts(seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 16)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return model, optimizer, torch.amp.GradScaler("cuda", init_scale=2.0**30)


def step(model, optimizer, scaler, clip=False):
    """One step; returns torch's own figures of it."""
    optimizer.zero_grad()
    with torch.autocast("cuda", torch.float16):
        loss = model(torch.randn(32, 64, device="cuda")).float().square().mean()
    scale = scaler.get_scale()
    scaler.scale(loss).backward()
    norm = None
    if clip:
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    scaler.step(optimizer)
    scaler.update()
    return loss.item(), scale, None if norm is None else norm.item()


@pytest.mark.parametrize("ranks", [1, 2])
def test_nothing_of_ours_waits_for_the_device(tmp_path, monkeypatch, ranks):
    """Inside every call of ours a synchronisation is an error, which strict mode raises."""
    monkeypatch.setenv("WORLD_SIZE", str(ranks))  # of several, each looks at its own gradients
    monkeypatch.setenv("RANK", "0")
    run = hooks.FailureShield.run

    def watched(self, function, *arguments):
        if threading.current_thread() is not threading.main_thread():
            return run(self, function, *arguments)  # the mode is the whole process's
        torch.cuda.set_sync_debug_mode("error")
        try:
            return run(self, function, *arguments)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(hooks.FailureShield, "run", watched)
    model, optimizer, scaler = parts()
    with ampwatch.attach(scaler, model, log_dir=tmp_path, layer_every=5) as watch:
        for number in range(60):
            step(model, optimizer, scaler, clip=number % 3 == 0)
    monkeypatch.undo()
    run = ampwatch.open_run(watch.run_folder)
    assert run.steps.num_rows == 60
    known = set(run.layers["grad_finite_local"].to_pylist())
    assert (True in known, False in known) == ((True, True) if ranks == 2 else (False, False))


def test_training_on_the_gpu_ends_bit_for_bit_as_without_the_watch(tmp_path):
    ends = []
    for watched in (False, True):
        model, optimizer, scaler = parts()
        watch = ampwatch.attach(scaler, model, log_dir=tmp_path) if watched else None
        for number in range(200):
            step(model, optimizer, scaler, clip=number % 2 == 0)
        if watch is not None:
            watch.close()
        ends.append(([p.detach().cpu() for p in model.parameters()], scaler.state_dict()))
    assert all(torch.equal(a, b) for a, b in zip(ends[0][0], ends[1][0], strict=True))
    assert ends[0][1] == ends[1][1]


def test_the_figures_are_torchs_own(tmp_path):
    model, optimizer, scaler = parts()
    with ampwatch.attach(scaler, model, log_dir=tmp_path) as watch:
        truth = [step(model, optimizer, scaler, clip=True) for _ in range(80)]
    steps = ampwatch.open_run(watch.run_folder).steps
    assert steps["loss"].to_pylist() == pytest.approx([loss for loss, _, _ in truth])
    assert steps["scale"].to_pylist() == [scale for _, scale, _ in truth]
    finite = [(row, norm) for row, (_, _, norm) in enumerate(truth) if norm < float("inf")]
    norms = steps["grad_norm"].to_pylist()
    assert [norms[row] for row, _ in finite] == [norm for _, norm in finite]
    assert any(steps["skipped"].to_pylist())
    assert None not in steps["update_norm"].to_pylist()


def test_devices_are_sampled_with_their_card(tmp_path):
    model, optimizer, scaler = parts()
    with ampwatch.attach(scaler, model, log_dir=tmp_path) as watch:
        for _ in range(20):
            step(model, optimizer, scaler)
    rows = ampwatch.open_run(watch.run_folder).devices.to_pylist()
    assert {row["device"] for row in rows} == {"cuda:0"}
    assert rows[-1]["allocated_bytes"] > 0
    assert rows[-1]["total_bytes"] > rows[-1]["allocated_bytes"]
    major, minor = torch.cuda.get_device_capability()
    assert rows[-1]["capability"] == f"{major}.{minor}"
    assert rows[-1]["peak_bytes"] >= rows[-1]["allocated_bytes"]


def test_a_small_network_on_a_card_of_its_own_is_no_trouble_to_its_memory(tmp_path):
    """A minute is too short for any judgement of memory or idleness: all of it is warm-up."""
    model, optimizer, scaler = parts()
    with ampwatch.attach(scaler, model, log_dir=tmp_path) as watch:
        for _ in range(200):
            step(model, optimizer, scaler)
    found = {f.code for f in ampwatch.diagnose(ampwatch.open_run(watch.run_folder)).findings}
    assert not found & {"AMP503", "AMP504", "AMP505", "AMP506", "AMP508", "AMP606"}
