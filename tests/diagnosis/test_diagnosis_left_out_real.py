"""Real loops that look at their loss first: what stops or skips there is called what it is."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import ampwatch


def trained(folder, *, scaled, on_bad, bad_from=40, bad_until=60):
    """Sixty rounds; in the bad ones the first layer's weights are far too large."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10) if scaled else None
    dtype, factor = (torch.float16, 3e6) if scaled else (torch.bfloat16, 3e38)
    with ampwatch.attach(scaler, model, optimizer=optimizer, run="r", log_dir=folder):
        for number in range(60):
            kept = model[0].weight.detach().clone()
            is_bad = bad_from <= number < bad_until
            if is_bad:
                model[0].weight.data.mul_(factor)
            rows = torch.randn(16, 8)
            with torch.autocast("cpu", dtype):
                loss = nn.functional.mse_loss(model(rows), rows.sum(1, keepdim=True))
            if not math.isfinite(loss.item()):
                model[0].weight.data.copy_(kept)
                if on_bad == "break":
                    break
                continue
            optimizer.zero_grad()
            if scaler is None:
                loss.backward()
                optimizer.step()
            else:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
    return ampwatch.diagnose(ampwatch.open_run(folder / "r"))


@pytest.mark.parametrize("scaled", [True, False])
def test_a_real_loop_that_stops_at_a_nan_loss_has_failed(tmp_path, scaled):
    diagnosis = trained(tmp_path, scaled=scaled, on_bad="break")
    assert diagnosis.verdict.value == "failing"
    assert diagnosis.headline.code == "AMP203"
    assert "The training loop stopped at step 40" in diagnosis.headline.cause
    assert "AMP212" in {finding.code for finding in diagnosis.findings}


@pytest.mark.parametrize("scaled", [True, False])
def test_a_real_loop_that_leaves_every_step_out_to_the_end_has_failed(tmp_path, scaled):
    diagnosis = trained(tmp_path, scaled=scaled, on_bad="continue")
    assert diagnosis.verdict.value == "failing"
    assert (diagnosis.headline.code, diagnosis.headline.layer) == ("AMP203", "0")


def test_a_real_loop_that_left_one_step_out_goes_on_and_says_so(tmp_path):
    diagnosis = trained(tmp_path, scaled=True, on_bad="continue", bad_from=20, bad_until=21)
    found = {finding.code: finding for finding in diagnosis.findings}
    assert diagnosis.verdict.value in ("healthy", "warning")
    assert found["AMP212"].because_of is not None
