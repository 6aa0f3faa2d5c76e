"""A foreign log has one row for many steps: lengths are counted in steps, not in rows."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from diagnosis.hand_built import HandBuiltRun, Info, step_table

from ampwatch.diagnosis import diagnose

SCALER = {"growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 1000}


def sparse(step, *, marks=None, **columns) -> HandBuiltRun:
    rows = step_table(step=step, **columns)
    return HandBuiltRun(rows, info=Info(source="megatron", scaler=SCALER, marks=marks or {}))


def codes(run) -> dict[str, str]:
    return {finding.code: finding.severity.value for finding in diagnose(run).findings}


def test_the_steps_between_rows_count():
    scales = [8.0, 8.0, 8.0]
    assert diagnose(sparse([100, 200, 300], scale_after=scales)).run.steps == 300
    resumed = sparse([5100, 5200, 5300], scale_after=scales)
    assert diagnose(resumed).run.steps == 201  # what came before is not this record's


def test_one_skip_after_each_growth_interval_is_a_sawtooth_though_the_rows_touch():
    step = [1000 * n + k for n in range(30) for k in (0, 1)]
    scale = [None, 65536.0] * 30
    after = [65536.0, 32768.0] * 30
    run = sparse(step, scale=scale, scale_after=after, skipped=[False, True] * 30)
    assert codes(run) == {"AMP102": "info", "AMP901": "info"}
    assert diagnose(run).verdict.value == "healthy"


def test_a_log_with_a_line_for_each_skip_and_each_hundredth_step_has_not_collapsed():
    """Half of its last rows are skips, and one step in a hundred; its rate rose as it began."""
    step = sorted([*range(100, 6001, 100), 301, 302, 303, *range(1001, 6000, 100)])
    skipped = [at % 100 > 0 for at in step]
    noise = dict(zip(range(100, 6001, 100), [0.29, *[0.48, 0.51, 0.36, 1.43] * 15], strict=False))
    loss = [noise.get(at) for at in step]
    rate = [None if at % 100 else 1e-6 * min(at, 2000) / 100 for at in step]
    diagnosis = diagnose(sparse(step, skipped=skipped, loss=loss, lr=rate))
    assert "AMP301" not in {finding.code for finding in diagnosis.findings}
    assert diagnosis.learning_rate.action.value != "lower"


def test_a_log_with_a_line_for_each_skip_tells_that_it_collapsed():
    step = sorted([*range(100, 1201, 100), *range(1200, 1290)])
    skipped = [at > 1200 for at in step]
    loss = [None if at > 1200 else 2.0 + at / 400 for at in step]
    diagnosis = diagnose(sparse(step, skipped=skipped, loss=loss))
    assert diagnosis.verdict.value == "failing"


def test_skips_far_apart_in_steps_are_no_storm():
    step = [1000 * n for n in range(1, 41)]
    skipped = [n % 2 == 0 for n in range(40)]
    run = sparse(step, scale=[64.0] * 40, scale_after=[64.0] * 40, skipped=skipped)
    assert "AMP105" not in codes(run)


def test_a_scale_that_stands_between_two_lines_is_established():
    """Two lines 100 steps apart at one scale; then a fall of nine octaves."""
    after = [2.0**16, 2.0**16] + [2.0 ** (15 - n) for n in range(10)]
    step = [100, 200, *range(201, 211)]
    run = sparse(step, scale_after=after, skipped=[None, None] + [True] * 10)
    told = diagnose(run)
    assert told.headline.code == "AMP103"
    assert told.headline.severity.value == "error"
    assert told.run.first_scale == 2.0**16
    assert told.run.final_scale == 2.0**6


def test_growth_that_nobody_printed_is_no_reset():
    """Back at the initial scale 4,000 steps later: two growths lead there."""
    info = Info(source="apex", scaler={**SCALER, "init_scale": 65536.0})
    rows = step_table(
        step=[0, 1, 4000, 4001],
        scale=[65536.0, 32768.0, None, 65536.0],
        scale_after=[32768.0, 16384.0, 65536.0, 32768.0],
        skipped=[True, True, False, True],
    )
    run = HandBuiltRun(rows, info=info)
    assert "AMP108" not in codes(run)
    soon = dataclasses.replace(run, steps=rows.set_column(0, "step", [[0, 1, 2, 3]]))
    assert codes(soon)["AMP108"] == "warning"


def test_two_skips_a_growth_are_growths_price_where_the_first_does_not_lower_the_scale():
    info = Info(source="megatron", scaler={**SCALER, "hysteresis": 2})
    count = 20_000
    skipped = np.zeros(count, bool)
    skipped[1000::1000] = skipped[1001::1000] = True
    rows = step_table(scale=[64.0] * count, scale_after=[64.0] * count, skipped=skipped)
    assert "AMP105" not in codes(HandBuiltRun(rows, info=info))
    plain = Info(source="megatron", scaler=SCALER)
    assert codes(HandBuiltRun(rows, info=plain))["AMP105"] == "info"


def test_a_norm_that_is_never_finite_is_an_error_without_a_scale():
    run = sparse(range(0, 50, 10), grad_norm=[np.nan] * 5, loss=[2.0, 1.9, 2.1, 2.0, 1.8])
    assert codes(run)["AMP211"] == "error"
    once = sparse(range(0, 50, 10), grad_norm=[np.nan, 1.0, 1.1, 0.9, 1.0], loss=[2.0] * 5)
    assert "AMP211" not in codes(once)


def test_a_rate_that_never_leaves_zero_is_told_and_an_error_from_twenty_lines_on():
    assert codes(sparse(range(0, 50, 10), lr=[0.0] * 5, loss=[2.0] * 5))["AMP308"] == "warning"
    many = sparse(range(0, 200, 10), lr=[0.0] * 20, loss=[2.0] * 20)
    assert codes(many)["AMP308"] == "error"
    warm = sparse(range(0, 50, 10), lr=[0.0, 1e-5, 2e-5, 3e-5, 4e-5], loss=[2.0] * 5)
    assert "AMP308" not in codes(warm)


def test_a_loss_of_zero_beside_a_nan_norm_is_a_nan_that_was_filtered():
    run = sparse(range(0, 50, 10), loss=[0.0] * 5, grad_norm=[np.nan] * 5)
    assert codes(run)["AMP204"] == "error"
    assert "AMP204" not in codes(sparse(range(0, 50, 10), loss=[0.0] * 5, grad_norm=[1.0] * 5))


@pytest.mark.parametrize(("column", "name"), [("loss", "loss"), ("lr", "learning rate")])
def test_what_the_log_does_not_tell_is_listed(column, name):
    told = {"loss": [1.0, 0.9], "lr": [0.1, 0.1], "grad_norm": [1.0, 1.0]}
    del told[column]
    finding = next(f for f in diagnose(sparse([1, 2], **told)).findings if f.code == "AMP901")
    assert f"The log has no {name}:" in finding.cause


def test_marks_are_told_as_sentences():
    run = sparse([1, 2], loss=[1.0, 0.9], marks={"loss": ["averaged"], "x": ["strange"]})
    finding = next(f for f in diagnose(run).findings if f.code == "AMP901")
    assert "The loss is an average" in finding.cause


def test_a_foreign_log_is_not_blamed_for_its_missing_end_mark():
    run = dataclasses.replace(sparse([1, 2], loss=[1.0, 0.9]), clean_end=False)
    assert "AMP902" not in codes(run)
