"""Scales that stand where one does not expect them, and those that only look so."""

from __future__ import annotations

import numpy as np
import pytest
from hand_built import (
    DEFAULTS,
    HandBuiltRun,
    Info,
    event_table,
    layer_table,
    scaled_run,
    step_table,
)

from ampwatch.diagnosis import diagnose


def found(run):
    """{code: severity} of a run."""
    return {f.code: f.severity.value for f in diagnose(run).findings}


def falling(count, first=4.0, last=1.0):
    return np.linspace(first, last, count).tolist()


def test_a_scale_that_nothing_ever_stops_is_a_runaway():
    run = scaled_run([False] * 60, growth_interval=1)
    assert found(run) == {"AMP106": "warning"}
    assert diagnose(run).learning_rate.action.value != "lower"


def test_a_high_scale_that_overflows_now_and_then_is_no_runaway():
    tooth = [False] * 10 + [True]
    assert "AMP106" not in found(scaled_run(tooth * 20, start=2.0**40, growth_interval=10))


def losing(steps, share=0.9):
    return layer_table([{"step": s, "layer": "up", "underflow_share": share} for s in steps])


def test_a_scale_that_cannot_grow_while_gradients_are_lost_is_a_warning():
    run = scaled_run([False] * 300, layers=losing(range(30, 300, 30)))
    assert found(run)["AMP107"] == "warning"


@pytest.mark.parametrize(("start", "value"), [(1.0, 16), (2.0**10, 16), (2.0**16, 24)])
def test_a_scale_that_starts_too_low_is_given_a_value_and_why(start, value):
    run = scaled_run([False] * 300, start=start, layers=losing(range(30, 300, 30)))
    for told in diagnose(run).findings:
        assert told.code in {"AMP107", "AMP201"}
        if told.code == "AMP107":
            assert f"GradScaler(init_scale=2.0**{value})" in told.action
            assert ("PyTorch's own default" in told.action) == (value == 16)


def test_a_scale_that_has_no_need_to_grow_is_no_finding():
    assert found(scaled_run([False] * 300, layers=losing(range(30, 300, 30), share=0.1))) == {}


def test_a_scale_that_grew_may_still_lose_gradients_but_not_for_want_of_growth():
    run = scaled_run([False] * 300, growth_interval=100, layers=losing(range(30, 300, 30)))
    assert "AMP107" not in found(run)


def test_a_low_scale_at_which_the_run_learns_is_by_design():
    run = scaled_run([False] * 300, start=0.125, loss=falling(300))
    assert found(run) == {"AMP109": "info"}
    assert diagnose(run).verdict.value == "healthy"


@pytest.mark.parametrize("loss", [[None] * 300, falling(300, 1.0, 4.0)])
def test_a_low_scale_without_a_falling_loss_is_not_called_healthy_by_design(loss):
    assert "AMP109" not in found(scaled_run([False] * 300, start=0.125, loss=loss))


def test_a_scale_below_one_after_a_fall_is_no_design():
    run = scaled_run([False] * 100 + [True] * 20 + [False] * 100, loss=falling(220))
    assert "AMP109" not in found(run)


def epochs(count, length=50):
    """A scaler made anew each epoch: down from 2^16 to 2^9 each time."""
    search = [65536.0 / 2**i for i in range(7)]
    scale = (search + [512.0] * length) * count
    after = ([*search[1:], 512.0] + [512.0] * length) * count
    skipped = ([True] * 7 + [False] * length) * count
    steps = step_table(scale=scale, scale_after=after, skipped=skipped)
    return HandBuiltRun(steps, info=Info(scaler=DEFAULTS))


def test_a_scaler_made_anew_each_epoch_is_named_and_one_reset_is_not():
    assert found(epochs(6))["AMP416"] == "error"
    assert "AMP416" not in found(epochs(3))
    assert found(epochs(3))["AMP108"] == "warning"


def test_the_new_scaler_explains_the_resets():
    findings = {f.code: f for f in diagnose(epochs(6)).findings}
    assert findings["AMP108"].because_of == "AMP416"
    assert diagnose(epochs(6)).learning_rate.action.value == "not-the-cause"


def with_new_scalers(steps, init_scale):
    """A steady run at 2^12 whose loop makes new scalers; their searches are not in the record."""
    detail = {"init_scale": init_scale, "backoff_factor": 0.5}
    events = event_table([(step, "scaler-replaced", detail) for step in steps])
    return scaled_run([False] * 200, start=2.0**12, events=events)


@pytest.mark.parametrize(
    ("steps", "init_scale", "severity"),
    [
        ([50], 2.0**16, None),  # a resume, or a second phase
        ([50, 100], 2.0**12, "info"),  # phases, which cost nothing
        ([50, 100], 2.0**16, "error"),
        ([50, 100, 150], 2.0**12, "error"),
    ],
)
def test_scalers_made_anew_are_counted_where_they_are_seen(steps, init_scale, severity):
    assert found(with_new_scalers(steps, init_scale)).get("AMP416") == severity


def test_the_skips_of_a_new_scaler_that_nobody_saw_are_told():
    findings = diagnose(with_new_scalers([50, 100], 2.0**16)).findings
    assert "skipped 8 steps" in next(f.cause for f in findings if f.code == "AMP416")


def test_a_scale_that_grows_sixteenfold_needs_more_skips_to_come_back_and_is_a_saw_all_the_same():
    scaler = {**DEFAULTS, "init_scale": 256.0, "growth_factor": 16.0, "growth_interval": 10}
    tooth_scale = [256.0] * 10 + [4096.0, 2048.0, 1024.0, 512.0]
    tooth_skips = [False] * 10 + [True] * 4
    scale = tooth_scale * 20
    steps = step_table(scale=scale, scale_after=[*scale[1:], 256.0], skipped=tooth_skips * 20)
    # A saw, and at four steps of fourteen one that is worth a longer interval.
    assert found(HandBuiltRun(steps, info=Info(scaler=scaler))) == {"AMP102": "warning"}
