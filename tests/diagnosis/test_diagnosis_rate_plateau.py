"""A loss that stands far above its best: however it came there, and however it sinks since."""

from __future__ import annotations

import numpy as np
import pytest
from hand_built import HandBuiltRun, Info, step_table
from rate_shapes import course, falling

from ampwatch.diagnosis import diagnose
from ampwatch.diagnosis.learning_rate import RateState, Setup, fold
from ampwatch.diagnosis.learning_rate.trouble import OnsetSign, find_onset

SEEDS = range(3)


def onset_of(rows):
    return find_onset(fold(RateState(), rows, Setup()))


def crept_up(good=2000, climb=1500, flat=1500, top=6.0):
    """Learns, climbs far more slowly than its recent past is long, and stays there."""
    return np.concatenate(
        [falling(good, 3.0, 1.0), np.linspace(1.0, top, climb), np.full(flat, top)]
    )


def found(loss, **columns):
    count = len(loss)
    given = {"loss": loss, "skipped": [False] * count, "optimizer": [0] * count, **columns}
    rows = {name: np.asarray(values).tolist() for name, values in given.items()}
    seen = diagnose(HandBuiltRun(step_table(**rows), info=Info(scaler={})))
    return {finding.code: finding.severity.value for finding in seen.findings}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_noisy_plateau_that_sinks_a_little_is_no_descent(seed):
    rng = np.random.default_rng(seed)
    plateau = np.linspace(40.0, 36.0, 2500) * np.exp(0.2 * rng.standard_normal(2500))
    onset = onset_of(course(np.concatenate([falling(2000, 3.0, 1.0), plateau]), noise=0.05))
    assert onset is not None
    assert not onset.descending


@pytest.mark.parametrize("seed", SEEDS)
def test_a_loss_that_has_come_down_half_of_its_climb_is_on_its_way(seed):
    loss = np.concatenate([falling(2000, 3.0, 1.0), falling(400, 9.0, 3.0, speed=2.0)])
    onset = onset_of(course(loss, noise=0.1, seed=seed))
    assert onset is not None
    assert onset.descending


@pytest.mark.parametrize("seed", SEEDS)
def test_a_climb_that_takes_its_recent_past_along_is_an_onset(seed):
    onset = onset_of(course(crept_up(), noise=0.3, seed=seed))
    assert onset is not None
    assert 2000 <= onset.row <= 3500


@pytest.mark.parametrize("seed", SEEDS)
def test_a_climb_of_the_first_steps_stands_in_a_long_run_too(seed):
    loss = np.concatenate([np.geomspace(3.0, 30.0, 30), np.linspace(30.0, 24.0, 5000)])
    onset = onset_of(course(loss, noise=1.0, seed=seed))
    assert onset is not None
    assert onset.row < 60
    assert not onset.descending


@pytest.mark.parametrize("seed", SEEDS)
def test_a_loss_that_wanders_alone_says_nothing(seed):
    rng = np.random.default_rng(seed)
    step = np.arange(6000)
    wandering = 3.0 + np.sin(step / 700 + seed) + 0.3 * rng.standard_normal(6000)
    assert "AMP307" not in found(wandering)


def test_a_slow_climb_is_an_error_and_another_level_where_the_gradients_stayed():
    rng = np.random.default_rng(0)
    loss = crept_up() + 0.2 * rng.standard_normal(5000)
    calm = np.exp(0.2 * rng.standard_normal(5000))
    grown = calm * np.concatenate([np.ones(2000), np.geomspace(1, 16, 1500), np.full(1500, 16.0)])
    lr = np.full(5000, 1e-3)
    assert found(loss, grad_norm=grown, lr=lr).get("AMP307") == "error"
    assert found(loss, lr=lr).get("AMP307") == "error"
    assert found(loss, grad_norm=calm, lr=lr).get("AMP307") == "warning"


def test_an_update_norm_without_weights_or_gradients_is_no_proof_of_other_data():
    loss = np.concatenate([np.geomspace(3.0, 30.0, 30), np.linspace(30.0, 26.0, 4000)])
    loss += np.random.default_rng(1).standard_normal(len(loss))
    assert found(loss, update_norm=np.full(len(loss), 0.5)).get("AMP307") == "warning"


def test_a_reward_without_gradients_says_nothing():
    loss = crept_up() - 4.0 + 0.2 * np.random.default_rng(2).standard_normal(5000)
    assert "AMP307" not in found(loss)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_loss_that_hardly_fell_hides_no_rise_that_came_after_it(seed):
    """The rate was raised late: the first losses are no measure of what it did."""
    loss = np.concatenate([falling(700, 3.0, 2.4), np.linspace(2.6, 9.0, 100), np.full(500, 9.0)])
    onset = onset_of(course(loss, noise=0.05, seed=seed))
    assert onset is not None
    assert onset.sign is OnsetSign.SHIFT
    assert 690 <= onset.row <= 760
