"""Mistakes in the loop: from the probe's events, and what they leave no ground for."""

from __future__ import annotations

import pytest
from hand_built import HandBuiltRun, event_table, scaled_run, step_table

from ampwatch.diagnosis import diagnose


def found(run):
    """{code: severity} of a run."""
    return {f.code: f.severity.value for f in diagnose(run).findings}


def finding(run, code):
    return next(f for f in diagnose(run).findings if f.code == code)


@pytest.mark.parametrize("code", ["AMP401", "AMP403", "AMP404", "AMP412"])
def test_a_mistake_in_the_loop_is_reported_once_however_often_it_was_seen(code):
    events = event_table([(s, "misuse", {"code": code}) for s in range(3)])
    run = scaled_run([False] * 30, events=events)
    assert finding(run, code).first_step == 0
    assert diagnose(run).learning_rate.action.value == "not-the-cause"


NOT_CLEARED = event_table([(1, "misuse", {"code": "AMP412"})])


@pytest.mark.parametrize(
    ("skipped", "since"),
    [([False] * 120 + [True] * 40, 120), ([True] * 60, 0), ([False] * 30 + [True] * 3, 30)],
    ids=["after training", "from the start", "just now"],
)
def test_gradients_that_nobody_clears_keep_an_inf_from_the_first_skip_on(skipped, since):
    told = finding(scaled_run(skipped, events=NOT_CLEARED), "AMP412").summary
    assert told.endswith(f"steps: an inf has been left in .grad since step {since}.")


@pytest.mark.parametrize(
    "skipped",
    [[False] * 60, [False] * 40 + [True] * 10 + [False] * 30, [False] * 40 + [True]],
    ids=["no skip", "accepted again", "one skip"],
)
def test_gradients_that_are_finite_again_hold_no_inf(skipped):
    told = finding(scaled_run(skipped, events=NOT_CLEARED), "AMP412").summary
    assert told == "The gradients are not cleared between steps."


def test_a_backward_under_autocast_is_information_and_says_nothing_of_the_rate():
    run = scaled_run([False] * 60, events=event_table([(0, "misuse", {"code": "AMP409"})]))
    assert found(run) == {"AMP409": "info"}
    assert diagnose(run).verdict.value == "healthy"
    assert diagnose(run).learning_rate.action.value == "unknown"  # a flat loss, and no updates


def test_a_backward_under_autocast_is_a_warning_beside_a_mixed_dtype_error():
    message = "expected m1 and m2 to have the same dtype, but got: float != c10::Half"
    events = [
        (0, "misuse", {"code": "AMP409"}),
        (0, "exception", {"type": "RuntimeError", "message": message}),
    ]
    run = scaled_run([False] * 3, events=event_table(events), clean_end=False)
    assert found(run) == {"AMP409": "warning", "AMP415": "error", "AMP902": "info"}
    assert diagnose(run).headline.code == "AMP415"


@pytest.mark.parametrize(("seen", "expected"), [(True, {}), (False, {"AMP402": "error"})])
def test_steps_that_no_update_closed_are_a_mistake(seen, expected):
    steps = step_table(loss=[1.0] * 30, scale=[4.0] * 30, update_seen=[seen] * 30)
    assert found(HandBuiltRun(steps)) == expected


def test_steps_past_the_scaler_miss_no_update():
    """As `s.step(o); s.update(); o.step()` leaves them: every second row is of the last call."""
    by_scaler = [s % 2 == 0 for s in range(60)]
    steps = step_table(
        loss=[1.0 if ours else None for ours in by_scaler], scale=[4.0] * 60,
        update_seen=by_scaler, stepped=[True] * 60, optimizer=[0] * 60,
        skipped=[False if ours else None for ours in by_scaler],
    )  # fmt: skip
    run = HandBuiltRun(steps, events=event_table([(1, "misuse", {"code": "AMP404"})]))
    assert found(run) == {"AMP404": "error"}


def test_a_step_that_an_error_cut_short_is_no_missing_update():
    steps = step_table(loss=[1.0] * 30, scale=[4.0] * 30, update_seen=[True] * 29 + [False])
    assert found(HandBuiltRun(steps)) == {}


def test_stepping_twice_without_an_update_raises_in_torch_and_is_named():
    detail = {"type": "RuntimeError", "message": "step() has already", "second_step": True}
    run = scaled_run([False] * 5, events=event_table([(4, "exception", detail)]), clean_end=False)
    assert found(run)["AMP402"] == "error"
    assert finding(run, "AMP902").because_of == "AMP402"


def test_unscaling_again_after_another_backward_is_a_missing_update():
    detail = {"type": "RuntimeError", "message": "has already been called", "second_unscale": True}
    run = scaled_run([False] * 5, events=event_table([(4, "exception", detail)]), clean_end=False)
    assert found(run)["AMP402"] == "error"
    assert "after another backward" in finding(run, "AMP402").cause
    assert diagnose(run).learning_rate.action.value == "not-the-cause"


def test_unscaling_twice_in_a_row_is_not():
    detail = {"type": "RuntimeError", "message": "has already been called", "second_unscale": False}
    run = scaled_run([False] * 5, events=event_table([(4, "exception", detail)]), clean_end=False)
    assert "AMP402" not in found(run)


def test_an_update_that_torch_refuses_is_not_taken_for_missing_gradients():
    message = "No inf checks were recorded prior to update."
    events = [
        (4, "misuse", {"code": "AMP403", "raised": True}),
        (4, "exception", {"type": "AssertionError", "message": message, "fatal": True}),
    ]
    run = scaled_run([False] * 5, events=event_table(events), clean_end=False)
    assert found(run)["AMP403"] == "error"
    assert "AMP410" not in found(run)
    assert finding(run, "AMP902").because_of == "AMP403"


def test_an_update_inside_an_accumulation_is_told_with_its_scales():
    detail = {"code": "AMP403", "scales": [256.0, 512.0], "updates": 3, "unscaled": True}
    seen = finding(scaled_run([False] * 30, events=event_table([(7, "misuse", detail)])), "AMP403")
    assert "3 times" in seen.cause
    assert "256, 512" in seen.cause
    assert (seen.evidence[0].value, seen.evidence[0].against) == (512.0, 256.0)


def overflowing(*mistakes):
    """Twelve overflows that name one layer, ten steps apart."""
    skipped = [s % 10 == 9 for s in range(120)]
    named = {"direction": "backward", "layer": "head", "exact": True}
    events = [(s, "overflow", named) for s, skip in enumerate(skipped) if skip]
    return scaled_run(skipped, start=2.0**30, events=event_table([*events, *mistakes]))


@pytest.mark.parametrize("code", ["AMP403", "AMP412"])
def test_gradients_of_several_steps_leave_no_ground_to_blame_a_layer(code):
    assert "AMP202" not in found(overflowing((5, "misuse", {"code": code})))


@pytest.mark.parametrize(("step", "code"), [(80, "AMP412"), (5, "AMP401")])
def test_a_later_mistake_or_another_one_leaves_the_layer_its_blame(step, code):
    assert found(overflowing((step, "misuse", {"code": code})))["AMP202"] == "warning"
