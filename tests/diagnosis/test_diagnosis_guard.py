"""AMP904: what a guard did, and whether it hides a fault."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hand_built import HandBuiltRun, event_table, step_table

from ampwatch.diagnosis import diagnose
from ampwatch.diagnosis.engine import Engine

STEPS = 400


def guarded(events, *, bad=(), norm=50.0, ranks=1):
    """A bf16 run whose weights did not move in the `bad` steps, whose norm was this."""
    steps = range(STEPS)
    return HandBuiltRun(
        step_table(
            loss=[2.0 * 0.99**s for s in steps],
            stepped=[True] * STEPS,
            optimizer=[0] * STEPS,
            lr=[0.1] * STEPS,
            grad_norm=[norm if s in bad else 1.0 for s in steps],
            update_norm=[0.0 if s in bad else 0.01 for s in steps],
            param_norm=[10.0] * STEPS,
        ),
        events=event_table([*events, (STEPS, "ended", {"steps": STEPS})]),
    )


def left(step, **more):
    told = {"action": "leave-out", "decided": "leave-out", "done": True, "told": "left out"}
    return step, "guard", {**told, **more}


def capped(step, count):
    return left(step, decided="nothing", done=False, why="capped", let_pass=count)


def findings(run):
    return {one.code: one for one in diagnose(run).findings}


@pytest.mark.parametrize("norm", [50.0, math.nan])
def test_one_step_left_out_is_information_and_no_other_finding_blames_the_loop(norm):
    found = findings(guarded([left(100)], bad={100}, norm=norm))
    assert set(found) == {"AMP904"}
    assert found["AMP904"].severity.value == "info"
    assert found["AMP904"].summary == "The guard left out 1 step."


@pytest.mark.parametrize("norm", [50.0, math.nan])
def test_the_same_steps_without_a_guard_are_the_loops_own(norm):
    found = findings(guarded([], bad={100}, norm=norm))
    assert "AMP904" not in found
    assert "AMP212" in found


def test_outlying_steps_beyond_the_cap_are_a_fault_that_the_guard_hides():
    events = [left(100), left(110), left(120), capped(130, 1), capped(150, 2), capped(170, 4)]
    found = findings(guarded(events, bad={100, 110, 120}))["AMP904"]
    assert found.severity.value == "warning"
    assert "At least 4 more outlying steps were taken" in found.cause


def test_many_steps_left_out_are_a_warning_too():
    bad = range(100, 160, 10)
    assert findings(guarded(map(left, bad), bad=set(bad)))["AMP904"].severity.value == "warning"


def test_a_dry_run_harms_nothing_and_says_what_would_have_been_done():
    found = findings(guarded([left(100, done=False), left(101, done=False), capped(102, 1)]))
    assert found["AMP904"].severity.value == "info"
    assert found["AMP904"].summary == "A guard would have acted 2 times (dry run)."


def test_a_training_that_the_guard_stopped_has_failed():
    stop = {"action": "stop", "decided": "stop", "done": True}
    diagnosis = diagnose(guarded([left(100), (399, "guard", stop)], bad={100, 399}))
    assert diagnosis.verdict.value == "failing"
    assert diagnosis.headline.code == "AMP904"
    assert "stopped the training at step 399" in diagnosis.headline.summary


def test_a_lowered_rate_is_told_with_its_step():
    lower = {"action": "lower-rate", "decided": "lower-rate", "done": True}
    found = findings(guarded([left(100), left(103), (110, "guard", lower)], bad={100, 103}))
    assert found["AMP904"].severity.value == "warning"
    assert "at step 110" in found["AMP904"].cause


def test_steps_that_are_not_finite_as_a_rule_are_an_error_and_all_are_counted():
    events = [left(step) for step in range(100, 115)]
    events += [left(114 + 2**n, standing=2**n) for n in range(8)]
    found = findings(guarded(events, bad=set(range(100, 243)), norm=math.nan))["AMP904"]
    assert found.severity.value == "error"
    assert found.summary == "The guard left out 143 steps."
    assert "the training stands still" in found.cause


def test_a_guard_that_only_began_is_no_finding():
    assert not findings(guarded([(0, "guard", {"decided": "begin", "told": "on"})]))


@pytest.mark.parametrize("detail", [{}, {"done": 1, "action": []}, {"let_pass": "x", "why": {}}])
def test_a_detail_may_be_anything(detail):
    diagnose(guarded([(5, "guard", detail), capped(6, "many"), capped(7, -3)]))


def with_bad_batches(bad, *, inputs=False, left_out=None, norm=50.0):
    """Batches whose loss, or also whose input, is far above those before; a guard saw them."""
    chance = np.random.default_rng(0)
    factors = 1.0 + 0.02 * chance.standard_normal(STEPS)
    run = guarded(map(left, bad if left_out is None else left_out), bad=set(bad), norm=norm)
    run.steps = step_table(
        **{name: run.steps[name].to_pylist() for name in run.steps.schema.names if name != "loss"}
        | {
            "loss": [2.0 * f * (100.0 if s in bad else 1.0) for s, f in enumerate(factors)],
            "input_amax": [300.0 if inputs and s in bad else 3.0 for s in range(STEPS)],
        }
    )
    return run


@pytest.mark.parametrize("inputs", [False, True])
def test_of_bad_batches_that_the_guard_left_out_nothing_is_left_to_clip(inputs):
    found = findings(with_bad_batches([100, 200, 300], inputs=inputs))["AMP206"]
    assert found.severity.value == "info"
    assert found.summary == "3 batches stood out from those before."
    assert found.action.startswith("Left out by the guard")


@pytest.mark.parametrize(
    ("bad", "of"),
    [
        ([100, 200, 300], {"inputs": False}),
        ([100, 200], {"inputs": True, "norm": 1.0}),  # of which the loss alone would not warn
    ],
)
@pytest.mark.parametrize("is_one_left_out", [True, False])
def test_one_that_was_taken_is_to_be_clipped_as_without_a_guard(bad, of, is_one_left_out):
    left_out = bad[:is_one_left_out]
    found = findings(with_bad_batches(bad, left_out=left_out, **of))["AMP206"]
    assert found.severity.value == "warning"
    assert "Limit such inputs" in found.action


@pytest.mark.parametrize("inputs", [False, True])
def test_what_a_guard_left_out_is_known_in_whatever_portions_the_rows_came(inputs):
    run = with_bad_batches([100, 200, 300], inputs=inputs)
    told = [
        Engine(block_rows=rows, settled_rows=8).feed(run).diagnosis().findings
        for rows in (3, 7, 5000)
    ]
    assert told[0] == told[1] == told[2]
