"""Several ranks: those that disagree, fall silent or do the same work, and healthy ones."""

from __future__ import annotations

import numpy as np
from hand_built import DEFAULTS, HandBuiltRun, Info, step_table

from ampwatch.diagnosis import diagnose

SECOND = 1_000_000_000


def found(run):
    """{code: severity} of a run."""
    return {f.code: f.severity.value for f in diagnose(run).findings}


def two(count=200, *, other_loss=1.0, other_scale=None, other_skips=(), other_count=None, **rest):
    """Two ranks whose losses wander; the second one's as told."""
    loss = np.random.default_rng(0).normal(2.0, 0.1, count).tolist()
    there = other_count or count
    scale = other_scale or [65536.0] * there
    columns = {
        "step": [*range(count), *range(there)],
        "rank": [0] * count + [1] * there,
        "loss": [*loss, *(value * other_loss for value in loss[:there])],
        "scale": [65536.0] * count + scale,
        "scale_after": [65536.0] * count + scale,
        "skipped": [False] * count + [step in other_skips for step in range(there)],
        "time_ns": [SECOND * (1 + step) for step in (*range(count), *range(there))],
    }
    return HandBuiltRun(step_table(**columns), info=Info(scaler=DEFAULTS), **rest)


def test_ranks_that_agree_are_healthy():
    assert found(two(other_loss=1.01)) == {}


def test_a_scale_that_differs_between_ranks_is_an_error():
    run = two(other_loss=1.01, other_scale=[65536.0] * 100 + [32768.0] * 100)
    (one,) = [f for f in diagnose(run).findings if f.code == "AMP601"]
    assert (one.severity.value, one.first_step, one.ranks) == ("error", 100, (1,))


def test_a_step_that_only_one_rank_skips_parts_them():
    assert found(two(other_loss=1.01, other_skips={50, 51, 52}))["AMP601"] == "error"


def test_a_rank_that_stops_while_the_other_goes_on_is_silent():
    run = two(other_loss=1.01, other_count=100, clean_end=False)
    (one,) = [f for f in diagnose(run).findings if f.code == "AMP603"]
    assert (one.first_step, one.ranks) == (99, (1,))


def test_a_rank_that_lags_a_little_is_not_silent():
    assert "AMP603" not in found(two(other_loss=1.01, other_count=150, clean_end=False))


def test_ranks_with_the_very_same_losses_see_the_same_data():
    assert found(two()) == {"AMP605": "warning"}


def test_a_constant_loss_says_nothing_of_the_data():
    run = two()
    at = run.steps.schema.get_field_index("loss")
    run.steps = run.steps.set_column(at, "loss", [[1.0] * run.steps.num_rows])
    assert "AMP605" not in found(run)
