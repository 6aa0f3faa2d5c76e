"""Losses of steps that accumulate over a changing number of micro-batches."""

from __future__ import annotations

import numpy as np
import pytest
from hand_built import HandBuiltRun, step_table

from ampwatch.diagnosis import diagnose
from ampwatch.diagnosis.learning_rate import RateState, comparable, fold, rows_of


def growing(count, most):
    """As YOLOv5's warm-up does it: from 1 to so many, over the first two thirds."""
    return np.round(np.interp(np.arange(count), [0, 2 * count // 3], [1, most]))


def partial(count, most):
    """Every tenth step ends an epoch, with a few micro-batches left."""
    return np.where(np.arange(count) % 10 == 9, 3.0, most)


def run_of(loss, micro_batches):
    count = len(loss)
    noise = np.exp(0.03 * np.random.default_rng(0).standard_normal((3, count)))
    return HandBuiltRun(
        step_table(
            loss=(loss * noise[0]).tolist(),
            micro_batches=micro_batches.astype(int).tolist(),
            grad_norm=(micro_batches * noise[1]).tolist(),
            update_norm=(0.4 * noise[2]).tolist(),
            param_norm=[10.0] * count,
            max_update_ratio=[0.4] * count,
            scale=[1024.0] * count,
            skipped=[False] * count,
            optimizer=[0] * count,
            lr=[0.1] * count,
        )
    )


def state_of(loss, micro_batches):
    return fold(
        RateState(), rows_of(step=np.arange(len(loss)), loss=loss, micro_batches=micro_batches)
    )


@pytest.mark.parametrize("counts", [growing, partial])
@pytest.mark.parametrize("steps", [90, 400, 6000])
def test_a_loss_that_falls_a_micro_batch_is_healthy_however_its_sums_rise(counts, steps):
    falling = 2.07 + 0.42 * np.exp(-3 * np.arange(steps) / steps)
    micro = counts(steps, 4)
    diagnosis = diagnose(run_of(falling * micro, micro))
    assert diagnosis.verdict.value == "healthy"
    assert diagnosis.findings == ()


@pytest.mark.parametrize("divided", [False, True])
@pytest.mark.parametrize("steps", [300, 450])
def test_a_loss_that_diverges_is_found_whatever_its_number_of_micro_batches(divided, steps):
    at = np.arange(steps)
    loss = 2.0 * np.exp(np.where(at < steps // 3, -0.5, 3.0) * (at - steps // 3) / steps)
    micro = growing(steps, 4)
    found = {f.code for f in diagnose(run_of(loss * (1 if divided else micro), micro)).findings}
    assert {"AMP301", "AMP307"} <= found


def test_divided_losses_add_up_and_are_left_as_they_are():
    loss, micro = np.linspace(2.5, 2.4, 300), growing(300, 8)
    state = state_of(loss, micro)
    assert comparable(state) is state


def test_a_number_that_never_changes_leaves_all_as_it_is():
    state = state_of(np.linspace(10, 8, 300), np.full(300, 4.0))
    assert comparable(state) is state


def test_sums_are_divided_in_every_part_of_the_history():
    steps = 40_000
    loss, micro = np.linspace(2.5, 2.0, steps), growing(steps, 16)
    made = comparable(state_of(loss * micro, micro))
    for rows in (made.head, made.tail, made.points.rows):
        assert rows.of("loss").max() <= 2.6
        assert rows.of("loss").min() >= 1.9


def test_what_is_neither_compares_only_steps_of_the_usual_number():
    micro = growing(300, 4)
    made = comparable(state_of(2.5 * np.sqrt(micro), micro))
    known = np.isfinite(made.head.of("loss"))
    assert set(micro[known]) == {4.0}
