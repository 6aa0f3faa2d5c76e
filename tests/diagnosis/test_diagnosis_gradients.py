"""Gradients that are all exactly zero: why, as far as the record tells, or why that is no fault."""

from __future__ import annotations

import numpy as np
import pytest
from hand_built import HandBuiltRun, Info, layer_table, scaled_run, step_table

from ampwatch.diagnosis import Severity, diagnose

COUNT = 120
NOISE = np.random.default_rng(0).normal(2.0, 0.1, COUNT)


def with_norms(norm, loss=NOISE, *, share=None, **columns):
    """A run of accepted steps with these gradient norms and losses; a layer's underflow share."""
    rows = [{"step": s, "layer": "head", "underflow_share": share, "trainable": True}
            for s in range(0, COUNT, 5)]  # fmt: skip
    scale = {"scale": [2.0**10] * COUNT, "scale_after": [2.0**10] * COUNT}
    told = {"grad_norm": norm, "loss": loss, "skipped": [False] * COUNT, "lr": [0.1] * COUNT}
    told |= {"update_norm": [1e-3] * COUNT, "param_norm": [10.0] * COUNT}
    table = step_table(**{n: list(v) for n, v in (scale | told | columns).items()})
    return HandBuiltRun(table, layers=layer_table(rows))


def none_of(run):
    """The finding that there are no gradients, or nothing."""
    diagnosis = diagnose(run)
    assert diagnosis.learning_rate.action.value != "lower"
    return next((f for f in diagnosis.findings if f.code == "AMP410"), None)


ZERO = [0.0] * COUNT
LATE = [1.0] * 60 + [0.0] * 60


@pytest.mark.parametrize(
    ("run", "severity", "first", "word"),
    [
        (with_norms(ZERO), "error", 0, "varies with the batches"),
        (with_norms(ZERO, [0.5] * COUNT), "error", 0, "to the last bit"),
        (with_norms(ZERO, [0.0] * COUNT), "warning", 0, "multiplied by 0"),
        (with_norms(ZERO, share=1.0), "error", 0, "They are lost in half precision"),
        (with_norms([1.0] * COUNT, grad_norm_applied=ZERO), "error", 0, "when the optimizer steps"),
        (with_norms(LATE), "error", 60, "varies with the batches"),
        (with_norms(LATE, [2.0] * 60 + [0.0] * 60), "warning", 60, "multiplied by 0"),
    ],
)
def test_a_run_without_any_gradient_is_told_with_what_the_record_shows(run, severity, first, word):
    one = none_of(run)
    assert (one.severity.value, one.first_step) == (severity, first)
    assert word in one.cause
    assert diagnose(run).verdict.value == {"error": "failing", "warning": "warning"}[severity]


FALLING = np.linspace(2.0, 0.01, 60).tolist() + [0.0] * 60


@pytest.mark.parametrize(
    ("norm", "loss"),
    [
        (LATE, FALLING),
        (LATE, [value + 0.7 for value in FALLING]),
        ([1.0, 0.0] * 30 + [0.0] * 60, [1.0, 0.0] * 30 + [0.0] * 60),
        ([1.0] * 3 + [0.0] * 117, [1.0] * 3 + [0.0] * 117),
    ],
)
def test_a_loss_that_has_come_down_to_where_nothing_is_left_is_no_fault(norm, loss):
    run = with_norms(norm, loss)
    assert none_of(run).severity.value == "info"
    assert diagnose(run).verdict.value == "healthy"


@pytest.mark.parametrize(
    "norm", [[1.0] * 105 + [0.0] * 15, [0.0] * 119 + [1.0], [None] * COUNT, [1.0] * COUNT]
)
def test_a_few_zeros_or_zeros_that_ended_or_nothing_told_are_no_finding(norm):
    assert none_of(with_norms(norm)) is None


def test_zeros_of_one_of_two_optimizers_are_not_the_models():
    loss = np.repeat(NOISE, 2)
    table = step_table(
        step=np.repeat(np.arange(COUNT), 2), rank=[0] * 2 * COUNT, optimizer=[0, 1] * COUNT,
        grad_norm=[0.0, 1.0] * COUNT, loss=loss, skipped=[False] * 2 * COUNT,
    )  # fmt: skip
    assert none_of(HandBuiltRun(table)) is None


def test_underflow_is_why_and_not_beside():
    found = {f.code: f for f in diagnose(with_norms(ZERO, share=1.0)).findings}
    assert found["AMP410"].because_of in {"AMP107", "AMP201"}
    assert "AMP109" not in found


def descent(*, scale, noise=0.01, size=1.2e-8, steps=3000):
    """A table of a descent whose gradients are float16 at this loss scale, every tenth step."""
    rng = np.random.default_rng(3)
    curvature, w = np.exp(rng.standard_normal(400)), rng.standard_normal(400)
    told = {"grad_norm": [], "loss": []}
    for step in range(steps):
        loss = 0.5 * (curvature * w**2).mean() * (1 + noise * rng.standard_normal())
        gradient = size * curvature * w * (1 + noise * rng.standard_normal(400))
        gradient = (scale * gradient).astype(np.float16).astype(float) / scale
        if step % 10 == 0:
            told["grad_norm"].append(float(np.sqrt((gradient**2).sum())))
            told["loss"].append(float(loss))
        w -= 2e-3 / size * gradient
    return table_of(**told, scale=[scale] * len(told["loss"]))


def table_of(**columns):
    """A table that a training wrote itself."""
    columns |= {"skipped": [False] * len(columns["loss"])}
    return HandBuiltRun(step_table(**columns), info=Info(source="csv"))


def underflow_of(run):
    """The finding that gradients underflow, or nothing."""
    return next((f for f in diagnose(run).findings if f.code == "AMP201"), None)


@pytest.mark.parametrize(("least", "is_told"), [(1e-2, True), (1e-6, False)])
def test_gradients_of_a_loss_that_is_practically_zero_are_not_lost(least, is_told):
    """They are next to nothing in any format, and rise and fall with each batch."""
    loss = np.geomspace(1.0, least, 1200).tolist()
    rows = [
        row
        for step in range(0, 1200, 60)
        for row in (
            {"step": step, "layer": "up", "underflow_share": 0.9, "scale_low": 2.0**30},
            {"step": step, "layer": "head", "underflow_share": 0.0, "scale_high": 2.0**16},
        )
    ]
    run = scaled_run([False] * 1200, loss=loss, layers=layer_table(rows))
    at = run.steps.schema.get_field_index("grad_norm")
    norm = np.geomspace(0.01, 1.0, 1200).tolist()
    run.steps = run.steps.set_column(at, "grad_norm", [norm])
    told = {f.code for f in diagnose(run).findings if f.severity is not Severity.INFO}
    about_gradients = {"AMP201", "AMP208", "AMP304"}
    assert told & about_gradients == (about_gradients if is_told else set())


def test_norms_of_zero_among_others_that_fp16_hardly_holds_are_underflow():
    diagnosis = diagnose(descent(scale=1.0))
    found = next(f for f in diagnosis.findings if f.code == "AMP201")
    assert diagnosis.verdict.value == "warning"
    assert diagnosis.learning_rate.action.value == "not-the-cause"
    assert "the loss scale is 1" in found.cause
    assert underflow_of(descent(scale=2.0**16)) is None
    assert underflow_of(descent(scale=8.0, size=1.2e-9)) is not None


def test_norms_of_zero_of_a_loss_that_asks_for_nothing_are_no_underflow():
    rng = np.random.default_rng(5)
    met = rng.random(400) < np.linspace(0.0, 0.9, 400)  # a margin that is met; equal advantages
    for left in (0.0, 0.3):
        norm, loss = np.where(met, 0.0, rng.gamma(4, 0.1, 400)), np.where(met, left, 1.0)
        run = table_of(grad_norm=list(norm), loss=list(loss), scale=[1.0] * 400)
        assert underflow_of(run) is None


def test_norms_that_a_text_rounds_to_zero_or_that_are_learnt_are_no_underflow():
    rng = np.random.default_rng(7)
    short, loss = rng.gamma(2, 4e-7, 400).round(6), rng.normal(0.5, 0.01, 400)
    assert 0.1 < (short == 0).mean() < 0.9
    run = table_of(grad_norm=list(short), loss=list(loss), scale=[1.0] * 400)
    assert underflow_of(run) is None
    tiny = np.where(np.arange(400) % 2, 0.0, 3.1e-8)
    loss = np.geomspace(1.0, 1e-9, 400)
    run = table_of(grad_norm=list(tiny), loss=list(loss), scale=[1.0] * 400)
    assert underflow_of(run) is None


def test_a_logs_zeros_may_be_rounded_unless_its_loss_stands_still_as_well():
    info = Info(source="hf-trainer")
    for loss, told in ((NOISE, False), ([0.5] * COUNT, True)):
        run = with_norms(ZERO, loss)
        run.info, run.layers = info, layer_table([])
        assert (none_of(run) is not None) == told


def test_a_model_that_is_frozen_whole_is_told_and_one_whose_head_learns_is_not():
    for update, told in ((0.0, True), (1e-3, False)):
        run = with_norms([None] * COUNT, update_norm=[update] * COUNT)
        rows = [{"step": s, "layer": "body", "trainable": False} for s in range(0, COUNT, 5)]
        run.layers = layer_table(rows)
        assert (none_of(run) is not None) == told


def test_a_norm_that_came_down_to_nothing_has_not_drifted_out_of_its_band():
    norm = np.concatenate([np.geomspace(1.0, 1e-9, 200), np.geomspace(1e-9, 1e-7, 1000)])
    run = scaled_run([False] * 1200, loss=[1.0] * 1200)
    at = run.steps.schema.get_field_index("grad_norm")
    run.steps = run.steps.set_column(at, "grad_norm", [norm.tolist()])
    assert "AMP304" not in {f.code for f in diagnose(run).findings}
