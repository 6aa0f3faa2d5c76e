"""Shapes that look like trouble and are none: the advice must not be to lower the rate."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest
from rate_shapes import action, course, falling, look

from ampwatch.diagnosis.learning_rate import RateState, Setup, advise, fold, rows_of

CALM = {"keep", "unknown"}
SEEDS = range(20)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_noisy_fine_tune_keeps_its_rate(seed):
    assert action(course(np.full(800, 0.45), noise=0.2, seed=seed)) == "keep"
    noisy = np.abs(np.random.default_rng(seed).gamma(1.0, 0.45, 800))
    assert action(course(noisy, seed=seed)) == "keep"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_lora_that_goes_from_1_25_to_1_17_keeps_its_rate(seed):
    loss = np.linspace(1.25, 1.17, 600)
    first = np.where(np.arange(600) < 5, 50.0, 0.01)  # matrices that begin at zero
    assert action(course(loss, noise=0.08, seed=seed, ratio=5e-3, max_ratio=first)) == "keep"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_curriculum_switch_that_falls_again_keeps_its_rate(seed):
    loss = np.concatenate([falling(300, 4, 1), falling(300, 3.2, 1.5)])
    grad = np.concatenate([np.full(300, 1.0), np.full(300, 2.5)])
    assert action(course(loss, noise=0.05, seed=seed, grad=grad)) == "keep"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_late_curriculum_switch_keeps_its_rate(seed):
    loss = np.concatenate([falling(15_000, 4, 1), falling(3_000, 3.2, 1.5, speed=1.0)])
    assert action(course(loss, noise=0.05, seed=seed)) == "keep"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_resumed_run_flat_at_its_best_keeps_its_rate(seed):
    rows = course(np.full(700, 2.1), noise=0.05, seed=seed, step=np.arange(700) + 90_000)
    assert action(rows, Setup(resumed=True)) == "keep"


@pytest.mark.parametrize("seed", SEEDS)
def test_diffusion_keeps_its_rate(seed):
    rng = np.random.default_rng(seed)
    loss = 0.12 * np.exp(0.6 * rng.standard_normal(3000)) * (1 + np.exp(-np.arange(3000) / 100))
    grad = 0.5 * np.exp(0.5 * rng.standard_normal(3000))
    assert action(course(loss, seed=seed, grad=grad)) == "keep"
    assert action(course(loss[:400], seed=seed, grad=grad[:400])) == "keep"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("loss", [-falling(900, -5, -1), np.linspace(0.5, -40, 900)])
def test_negative_losses_keep_their_rate(loss, seed):
    assert action(course(loss, noise=0.3, seed=seed)) == "keep"


@pytest.mark.parametrize("seed", SEEDS)
def test_signed_losses_around_zero_keep_their_rate(seed):
    assert action(course(np.zeros(900), noise=0.3, seed=seed)) == "keep"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_loss_that_is_zero_for_most_batches_keeps_its_rate(seed):
    margin = falling(900, 1.0, -0.3) + 0.3 * np.random.default_rng(seed).standard_normal(900)
    assert action(course(np.maximum(margin, 0.0), seed=seed, ratio=0.02)) == "keep"
    later = np.concatenate([falling(100, 1.0, 0.0), np.maximum(margin[:-901:-1], 0.0) / 4])
    assert action(course(later, seed=seed, ratio=0.02)) == "keep"


@pytest.mark.parametrize("seed", SEEDS)
def test_one_half_of_an_adversarial_pair_may_rise(seed):
    rising = np.linspace(0.7, 4.0, 800)
    setup = Setup(several_optimizers=True)
    assert action(course(rising, noise=0.2, seed=seed), setup) == "keep"
    late = np.concatenate([np.full(3000, 0.7), np.linspace(0.7, 4.0, 3000)])
    assert action(course(late, noise=0.2, seed=seed), setup) == "keep"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_spike_that_healed_keeps_the_rate(seed):
    loss, ratio = falling(5000, 10, 2.5), np.full(5000, 1e-3)
    loss[3000:3100] += np.linspace(3, 0, 100)
    ratio[2995:3010] *= 10
    skipped = np.zeros(5000)
    skipped[3000:3005] = 1
    rows = course(loss, noise=0.05, seed=seed, ratio=ratio, skipped=skipped)
    assert action(rows) == "keep"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_flat_loss_alone_is_never_too_high_a_rate(seed):
    assert action(course(np.full(400, 6.9), noise=0.02, seed=seed)) == "keep"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_loss_that_stands_high_up_keeps_its_rate_unless_the_weights_ran_away(seed):
    loss = np.concatenate([np.linspace(4.2, 3.4, 40), np.full(360, 3.4)])  # to the unigrams
    slow = np.linspace(10, 15, 400)
    assert action(course(loss, noise=0.05, seed=seed, param_norm=slow)) == "keep"
    still = np.concatenate([loss, np.linspace(3.4, 2.9, 400)])
    doubled = np.minimum(10 + np.arange(800.0), 20)
    assert action(course(still, noise=0.05, seed=seed, param_norm=doubled)) == "keep"
    trebled = np.minimum(10 + np.arange(400.0), 30)
    fast = {"update_norm": 1.5, "max_ratio": 0.3}  # by less, no weights grow by one a step
    rows = course(loss, noise=0.05, seed=seed, param_norm=trebled, **fast)
    assert action(rows) == "lower"


def test_a_loss_that_climbs_with_nothing_else_recorded_leaves_it_open():
    rows = rows_of(step=np.arange(200), loss=np.concatenate([falling(100), np.linspace(1, 4, 100)]))
    advice = look(rows)
    assert advice.action.value == "unknown"
    assert "not recorded" in advice.because


def test_a_healthy_run_with_a_startup_search_keeps_its_rate():
    skipped = np.arange(200) < 20
    assert action(course(falling(200), skipped=skipped)) == "keep"


def test_a_run_that_has_hardly_begun_is_not_judged():
    assert action(course(np.full(3, 2.0), skipped=np.ones(3))) == "unknown"
    assert action(rows_of()) == "unknown"


def wandering(rng, count, memory=0.99):
    """Noise that remembers: what it is at one step it nearly is at the next."""
    kicks = rng.standard_normal(count) * np.sqrt(1 - memory**2)
    return np.fromiter(accumulate(kicks, lambda before, kick: before * memory + kick), float, count)


def long_streams(rng, count):
    """Healthy trainings of this many steps: loss, gradient norm, update ratio."""
    base, flat = falling(count, 10, 2, speed=12), np.ones(count)
    heavy = np.exp(0.3 * rng.standard_t(3, count)).clip(0.1, 10)
    yield "white", base + 0.1 * rng.standard_normal(count), flat, 1e-3
    wander = np.exp(0.5 * wandering(rng, count))
    yield "wandering", base + 0.1 * wandering(rng, count), wander, 1e-3
    yield "heavy tails", base * heavy, heavy**2, 1e-3
    yield "growing gradients", base, np.geomspace(1, 6, count), np.geomspace(1e-2, 1e-4, count)
    loss, grad, ratio = base.copy(), flat.copy(), np.full(count, 1e-3)
    for at in rng.integers(2000, count - 500, 15):
        spike = slice(at, at + int(rng.integers(20, 300)))
        slope = np.linspace(1, 0, spike.stop - spike.start)
        loss[spike] += 4 * slope
        grad[spike] *= 1 + 7 * slope
        ratio[spike] *= 1 + 4 * slope
    yield "spikes that heal", loss, grad, ratio


@pytest.mark.parametrize("seed", range(2))
def test_long_healthy_streams_keep_their_rate_at_every_look(seed):
    count = 40_000
    for name, loss, grad, ratio in long_streams(np.random.default_rng(seed), count):
        rows, state, at = (
            course(loss, noise=0.02, seed=seed, grad=grad, ratio=ratio),
            RateState(),
            0,
        )
        for end in [*range(500, 5000, 750), *range(5000, count + 1, 5000)]:
            state, at = fold(state, rows.part(at, end)), end
            assert advise(state).action.value == "keep", (name, end)
