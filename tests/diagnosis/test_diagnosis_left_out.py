"""A loop that guards itself against numbers that are not finite: its steps without a step.

The records are as the probe writes them: such a step has a row without an optimizer, `update_seen`
false, and an overflow event that is marked `guarded`.
"""

from __future__ import annotations

import math

import pytest
from hand_built import HandBuiltRun, event_table, layer_table, step_table

from ampwatch.diagnosis import diagnose

NAN = math.nan
NAMED = {"direction": "forward", "layer": "blocks.2.up", "exact": True, "value": "inf"}


def guarded_run(
    steps, left_out, *, detail=NAMED, scaler=True, ended=True, losses=None, raised=None
):
    """A healthy run whose loop leaves these steps out; `ended` by itself, or `raised` there."""
    out = set(left_out)

    def unless(value):
        return [None if s in out else value for s in range(steps)]

    columns = {
        "loss": losses or [None if s in out else 2.0 * 0.99**s for s in range(steps)],
        "update_seen": [False if s in out else (True if scaler else None) for s in range(steps)],
        "stepped": unless(True),
        "optimizer": unless(0),
        "lr": unless(0.1),
        "grad_norm": unless(1.0),
        "update_norm": unless(0.01),
        "param_norm": unless(10.0),
        "input_finite": [True] * steps,
        "input_amax": [3.0] * steps,
    }
    if scaler:
        columns |= {"scale": [1024.0] * steps, "skipped": unless(False), "found_inf": unless(False)}
    events = []
    if detail is not None:
        told = {"guarded": True, "optimizers": [], **detail}
        events = [(s, "overflow", told) for s in sorted(out)]
    if raised is not None:
        events.append((raised, "exception", {"type": "FloatingPointError", "message": "nan"}))
    if ended:
        events.append((steps, "ended", {"steps": steps}))
    layers = [
        {"step": s, "layer": "(root)", "act_finite": s not in out or detail is None}
        for s in range(steps)
        if s in out or s < 10 or s % 50 == 0
    ]
    return HandBuiltRun(
        step_table(**columns),
        events=event_table(events),
        layers=layer_table(layers),
        clean_end=ended,
    )


def found(run):
    """{code: severity} of a run."""
    return {f.code: f.severity.value for f in diagnose(run).findings}


def finding(run, code):
    return next(f for f in diagnose(run).findings if f.code == code)


@pytest.mark.parametrize("scaler", [True, False])
def test_a_loop_that_stops_at_a_forward_pass_that_is_not_finite_has_failed(scaler):
    run = guarded_run(61, [60], scaler=scaler)
    diagnosis = diagnose(run)
    assert diagnosis.verdict.value == "failing"
    assert (diagnosis.headline.code, diagnosis.headline.layer) == ("AMP203", "blocks.2.up")
    assert (
        "The training loop stopped at step 60: the forward pass was not finite and no step followed"
        in diagnosis.headline.cause
    )
    assert finding(run, "AMP212").because_of == "AMP203"
    assert set(found(run)) == {"AMP203", "AMP212"}
    assert diagnosis.learning_rate.action.value == "not-the-cause"


def test_a_loop_that_leaves_out_every_step_to_its_end_has_failed():
    run = guarded_run(120, range(60, 120))
    assert diagnose(run).headline.code == "AMP203"
    assert diagnose(run).verdict.value == "failing"
    assert "From step 60 to its end the training loop made no step" in finding(run, "AMP203").cause
    assert found(run) == {"AMP203": "error", "AMP212": "warning"}


def test_a_loop_that_never_made_a_step_has_failed_and_not_its_scale():
    run = guarded_run(30, range(30))
    assert diagnose(run).headline.code == "AMP203"
    assert set(found(run)) == {"AMP203", "AMP212"}
    assert diagnose(run).learning_rate.action.value == "not-the-cause"


@pytest.mark.parametrize("count", [1, 10])
def test_a_loop_that_left_out_a_few_of_a_thousand_steps_and_went_on_is_healthy(count):
    run = guarded_run(1000, range(100, 800, 700 // count)[:count])
    assert diagnose(run).verdict.value == "healthy"
    assert found(run) == {"AMP203": "info", "AMP212": "info"}
    assert "stopped" not in finding(run, "AMP203").cause


def test_more_than_one_step_in_a_hundred_left_out_is_a_warning():
    run = guarded_run(1000, range(100, 800, 50))
    assert diagnose(run).verdict.value == "warning"
    assert found(run)["AMP212"] == "warning"


@pytest.mark.parametrize(
    ("detail", "code"),
    [
        ({"direction": "forward", "exact": False}, "AMP203"),
        ({}, "AMP203"),  # no sample told more
        ({"direction": "input"}, "AMP209"),
        ({"direction": "weights", "layer": "blocks.2.up", "exact": True}, "AMP207"),
        ({"direction": "loss", "value": "nan"}, "AMP204"),
    ],
)
def test_what_the_event_traces_it_to_is_the_headline(detail, code):
    run = guarded_run(61, [60], detail=detail)
    assert diagnose(run).headline.code == code
    assert diagnose(run).verdict.value == "failing"
    assert "The training loop stopped at step 60" in finding(run, code).cause
    assert finding(run, "AMP212").because_of == code


def test_a_logged_loss_that_is_nan_and_no_step_is_a_loss_that_is_not_finite():
    losses = [1.0] * 60 + [NAN]
    run = guarded_run(61, [60], detail=None, losses=losses)
    assert diagnose(run).headline.code == "AMP204"
    assert "stopped at step 60: the loss was not finite" in finding(run, "AMP204").cause
    assert finding(run, "AMP212").because_of == "AMP204"
    assert "AMP402" not in found(run)


def test_the_exception_of_a_guard_follows_from_what_it_guards_against():
    run = guarded_run(61, [60], ended=False, raised=60)
    assert diagnose(run).headline.code == "AMP203"
    assert "stopped at step 60" in finding(run, "AMP203").cause
    assert finding(run, "AMP902").because_of == "AMP212"


def test_an_end_long_after_a_step_left_out_has_another_cause():
    run = guarded_run(500, [60], ended=False)
    assert finding(run, "AMP902").because_of is None


def test_while_a_run_goes_on_its_loop_has_not_stopped():
    run = guarded_run(61, [60], ended=False)
    assert "stopped" not in finding(run, "AMP203").cause
    assert "Since step 60 the training loop has made no step" in finding(run, "AMP203").cause


def test_a_rate_that_drove_the_weights_out_is_the_cause_of_the_stop():
    run = guarded_run(61, [60])
    move = [0.01] * 50 + [6.0 * 1.3**s for s in range(10)] + [None]
    norms = [1.0] * 50 + [2.0**s for s in range(10)] + [None]
    loss = [2.0 * 0.99**s for s in range(50)] + [1.3 * 1.4**s for s in range(10)] + [None]
    names = run.steps.column_names
    for name, values in (("update_norm", move), ("grad_norm", norms), ("loss", loss)):
        column = step_table(**{name: values})[name]
        run.steps = run.steps.set_column(names.index(name), name, column)
    diagnosis = diagnose(run)
    assert diagnosis.headline.code == "AMP301"
    assert finding(run, "AMP203").because_of == "AMP301"
    assert diagnosis.learning_rate.action.value == "lower"


def test_steps_whose_update_is_missing_are_not_left_out_by_the_loop():
    steps = step_table(
        loss=[1.0] * 30, scale=[4.0] * 30, update_seen=[False] * 30, optimizer=[0] * 30,
        stepped=[True] * 30, skipped=[False] * 30,
    )  # fmt: skip
    assert found(HandBuiltRun(steps)) == {"AMP402": "error"}
