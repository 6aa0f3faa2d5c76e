"""What is usual, and that an outlier cannot move it."""

import math

import numpy as np
import pytest

from ampwatch.guarding.guard_settings import AMONG, STANDING, StandingFault
from ampwatch.guarding.outlying_steps import (
    SETTLED,
    START,
    WINDOW,
    JudgedStep,
    Measured,
    UsualLosses,
    UsualRates,
    UsualSteps,
    usual_inputs,
    usual_norms,
)


def learnt(norms):
    made = usual_norms()
    for norm in norms:
        made.take(float(norm))
    return made


def lognormal(count, deviation, seed=0):
    """Norms whose logarithm to base two is normal, of which healthy trainings' are examples."""
    return 2.0 ** np.random.default_rng(seed).normal(0.0, deviation, count)


def falling(count, noise=0.1, seed=0, floor=0.5):
    """Losses that fall from 2.5 to a floor, with noise in proportion."""
    random = np.random.default_rng(seed)
    course = floor + (2.5 - floor) * np.exp(-np.arange(count) / 60)
    return course * np.exp(random.normal(0.0, noise, count))


def outliers(usual, values):
    """How many of these are above the limit, each of which is taken nevertheless."""
    found = 0
    for one in values:
        found += one > usual.limit
        usual.take(float(one))
    return found


def test_nothing_is_an_outlier_in_the_first_steps():
    assert learnt([1.0] * (START - 1)).limit == math.inf
    assert learnt([1.0] * START).limit < 1e6


def test_with_few_steps_known_only_far_larger_ones_are():
    early, late = learnt([1.0] * (SETTLED - 8)), learnt([1.0] * SETTLED)
    assert early.limit == pytest.approx(late.limit**2)


def test_gradients_that_are_not_finite_need_no_start():
    assert JudgedStep(Measured(math.nan, is_finite=False), UsualSteps()).is_outlying
    assert JudgedStep(Measured(math.inf, is_finite=False), UsualSteps()).is_outlying


@pytest.mark.parametrize("deviation", [0.05, 0.3, 1.0, 1.5])
def test_a_healthy_course_of_norms_has_no_outlier(deviation):
    assert outliers(usual_norms(), lognormal(20_000, deviation)) == 0


@pytest.mark.parametrize("deviation", [0.05, 0.3, 1.0])
def test_a_norm_two_hundred_times_the_usual_is_one(deviation):
    assert learnt(lognormal(300, deviation)).limit < 200.0


def test_two_outliers_in_the_window_do_not_hide_a_third():
    clean, poisoned = lognormal(100, 0.2), lognormal(100, 0.2)
    poisoned[[20, 70]] = 1e5, 1e9
    assert learnt(poisoned).limit == pytest.approx(learnt(clean).limit, rel=0.1)
    assert learnt(poisoned).limit < 50.0


def test_norms_that_are_large_now_and_then_are_usual():
    norms = lognormal(400, 0.1)
    norms[::20] *= 30
    assert learnt(norms).limit > 31.0


def test_a_course_that_rises_slowly_takes_the_limit_along():
    norms = lognormal(3000, 0.3) * 1.003 ** np.arange(3000)
    assert outliers(usual_norms(), norms) == 0


def test_a_new_level_is_usual_after_a_window():
    usual = learnt([1.0] * 200)
    assert usual.limit < 20.0
    for _ in range(WINDOW):
        usual.take(20.0)
    assert usual.limit > 20.0


def test_zero_and_not_finite_norms_teach_nothing():
    usual = learnt([1.0] * 100)
    limit = usual.limit
    for norm in (0.0, math.nan, math.inf) * 50:
        usual.take(norm)
    assert usual.limit == limit


# --- losses ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.1, 0.3])
@pytest.mark.parametrize("floor", [1e-6, 0.5, 2.4])
def test_a_loss_that_falls_has_no_outlier(noise, floor):
    assert outliers(UsualLosses(), falling(5000, noise, floor=floor)) == 0


@pytest.mark.parametrize("noise", [0.02, 0.1])
def test_a_loss_as_at_the_beginning_is_one_once_something_was_learnt(noise):
    usual = UsualLosses()
    outliers(usual, falling(300, noise))
    assert 0.6 < usual.limit < 2.5


def test_single_batches_far_above_a_loss_near_zero_unlearn_nothing():
    losses = falling(2000, floor=1e-5)
    losses[300::50] = np.random.default_rng(1).uniform(0.01, 0.5, len(losses[300::50]))
    assert outliers(UsualLosses(), losses) == 0


def test_losses_may_be_negative():
    usual = UsualLosses()
    assert outliers(usual, falling(400) - 3.0) == 0
    assert -2.5 < usual.limit < -0.5


def test_where_a_training_was_resumed_a_loss_must_be_a_quarter_above():
    usual = UsualLosses()
    assert outliers(usual, np.full(300, 2.0)) == 0
    assert usual.limit == pytest.approx(2.5)


def test_a_loss_that_is_zero_says_nothing():
    usual = UsualLosses()
    outliers(usual, np.zeros(300))
    assert usual.limit == math.inf


# --- inputs and rates -----------------------------------------------------------------------------


@pytest.mark.parametrize("deviation", [0.0, 0.1, 1.0])
def test_inputs_of_the_usual_scale_are_no_outliers_and_a_wrong_scale_is(deviation):
    usual = usual_inputs()
    assert outliers(usual, lognormal(5000, deviation)) == 0
    assert usual.limit < 255.0


def seen(rate, usual, peak=math.nan):
    return JudgedStep(Measured(1.0, is_finite=True, rate=rate, peak=peak), usual)


def rates(values):
    usual = UsualSteps()
    for one in values:
        assert not seen(one, usual).is_outlying
        usual.take(Measured(1.0, is_finite=True, rate=one))
    return usual


def test_a_warm_up_from_nothing_and_a_constant_rate_leap_nowhere():
    rates([0.1 * step / 500 for step in range(500)] + [0.1] * 100)


def test_a_rate_ten_times_above_all_before_leaps():
    assert seen(1.0, rates([0.1] * 50)).is_outlying
    assert "The learning rate was 1, usually 0.1" in seen(1.0, rates([0.1] * 50)).words


def test_a_restart_of_the_schedule_is_no_leap():
    cycle = [0.1 * (1 + math.cos(math.pi * step / 100)) / 2 for step in range(100)]
    rates(cycle * 3)


def test_a_rate_up_to_the_schedules_peak_is_no_leap():
    usual = rates([0.001] * 100)  # of a resumed training, at the end of a cycle
    assert not seen(0.1, usual, peak=0.1).is_outlying
    assert seen(1.0, usual, peak=0.1).is_outlying


def test_a_rate_that_nobody_reads_says_nothing():
    usual = UsualRates()
    for rate in (math.nan, 0.0, math.inf) * 20:
        usual.take(rate)
    assert usual.limit == math.inf


# --- a fault that stands --------------------------------------------------------------------------


def stands(steps):
    fault = StandingFault()
    for step in steps:
        fault.see(step)
    return fault.count


def test_steps_in_a_row_that_are_not_finite_are_a_standing_fault():
    assert stands(range(STANDING - 1)) == 0
    assert stands(range(STANDING)) == 1
    assert stands(range(STANDING + 9)) == 10


def test_every_fourth_step_is_one_too_and_every_tenth_is_none():
    assert stands(range(0, 4 * STANDING, 4)) == 1
    assert stands(range(0, 1000, 10)) == 0


def test_after_a_calm_time_it_is_over():
    assert stands([*range(STANDING), 2 * AMONG + STANDING]) == 0
