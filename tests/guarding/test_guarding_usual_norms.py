"""What is usual, and that an outlier cannot move it."""

import math

import numpy as np
import pytest

from ampwatch.guarding.usual_norms import WARM_UP, WINDOW, Seen, UsualNorms


def learnt(norms):
    made = UsualNorms()
    for norm in norms:
        made.take(float(norm))
    return made


def lognormal(count, deviation, seed=0):
    """Norms whose logarithm to base two is normal, of which healthy trainings' are examples."""
    return 2.0 ** np.random.default_rng(seed).normal(0.0, deviation, count)


def outlying(usual, norm):
    return Seen(norm, math.isfinite(norm), usual).is_outlying


def test_nothing_is_an_outlier_before_the_warm_up_is_over():
    assert not outlying(learnt([1.0] * (WARM_UP - 1)), 1e6)
    assert outlying(learnt([1.0] * WARM_UP), 1e6)


def test_gradients_that_are_not_finite_need_no_warm_up():
    assert outlying(UsualNorms(), math.nan)
    assert outlying(UsualNorms(), math.inf)


@pytest.mark.parametrize("deviation", [0.05, 0.3, 1.0, 1.5])
def test_a_healthy_course_has_no_outlier(deviation):
    usual, found = UsualNorms(), 0
    for norm in lognormal(20_000, deviation):
        found += outlying(usual, norm)
        usual.take(float(norm))
    assert found == 0


@pytest.mark.parametrize("deviation", [0.05, 0.3, 1.0])
def test_a_norm_two_hundred_times_the_usual_is_one(deviation):
    assert outlying(learnt(lognormal(300, deviation)), 200.0)


def test_two_outliers_in_the_window_do_not_hide_a_third():
    clean, poisoned = lognormal(100, 0.2), lognormal(100, 0.2)
    poisoned[[20, 70]] = 1e5, 1e9
    assert learnt(poisoned).limit == pytest.approx(learnt(clean).limit, rel=0.1)
    assert outlying(learnt(poisoned), 50.0)


def test_norms_that_are_large_now_and_then_are_usual():
    norms = lognormal(400, 0.1)
    norms[::20] *= 30
    assert not outlying(learnt(norms), 31.0)


def test_a_course_that_rises_slowly_takes_the_limit_along():
    usual, found = UsualNorms(), 0
    for step, norm in enumerate(lognormal(3000, 0.3)):
        found += outlying(usual, norm * 1.003**step)
        usual.take(float(norm * 1.003**step))
    assert found == 0


def test_a_new_level_is_usual_after_a_window():
    usual = learnt([1.0] * 200)
    assert outlying(usual, 20.0)
    for _ in range(WINDOW):
        usual.take(20.0)
    assert not outlying(usual, 20.0)


def test_zero_and_not_finite_norms_teach_nothing():
    usual = learnt([1.0] * 100)
    limit = usual.limit
    for norm in (0.0, math.nan, math.inf) * 50:
        usual.take(norm)
    assert usual.limit == limit
