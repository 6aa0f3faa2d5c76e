"""How a loss ended: simulated nulls of many laws and lengths, and losses that are plainly worse."""

from __future__ import annotations

import numpy as np
import pytest

from ampwatch.diagnosis.loss_outcome import LossEnd, loss_course

BAD = {LossEnd.WORSE}
TOLD = {*BAD, LossEnd.NOT_BACK, LossEnd.HIGHER}
LENGTHS = (3, 4, 5, 8, 12, 20, 40, 80, 150, 300, 600, 1500)
COURSES = {
    "flat": lambda t: np.full(len(t), 2.3),
    "falling": lambda t: 3 + 5 * np.exp(-8 * t),
    "power law": lambda t: 2.5 * (1 + 500 * t) ** -0.15,
    "nearly nothing": lambda t: 0.05 + 2 * np.exp(-9 * t),
}


def gaussian(random, count, share):
    return 1 + share * random.standard_normal(count)


def student(random, count, share):
    return 1 + share * random.standard_t(3, count)


def lognormal(random, count, share):
    return np.exp(2 * share * random.standard_normal(count))


def pareto(random, count, share):
    return 1 + share * random.pareto(2.0, count)


def correlated(random, count, share):
    steps, level = random.standard_normal(count) * np.sqrt(1 - 0.9**2), 0.0
    noise = np.empty(count)
    for at, step in enumerate(steps):
        level = 0.9 * level + step
        noise[at] = level
    return 1 + share * noise


def epochs(random, count, share):
    period = max(6, count // 7)
    wave = np.sin(2 * np.pi * np.arange(count) / period)
    return 1 + share * wave + share / 4 * random.standard_normal(count)


LAWS = (gaussian, student, lognormal, pareto, correlated, epochs)


def ends(law, count, trials=100):
    random = np.random.default_rng(count)
    for _ in range(trials):
        course = COURSES[random.choice(list(COURSES))]
        share = random.choice([0.01, 0.05, 0.15, 0.3])
        losses = course(np.arange(count) / count) * law(random, count, share)
        yield loss_course(np.abs(losses)).end


@pytest.mark.parametrize("law", LAWS)
def test_noise_of_any_law_and_length_is_hardly_ever_told_and_never_final(law):
    for count in LENGTHS:
        found = list(ends(law, count))
        told, bad = (sum(end in these for end in found) for these in (TOLD, BAD))
        # Of few entries, or of some that wander by a third of the level, a warning may be wrong.
        assert told <= 12
        assert bad <= 4


@pytest.mark.parametrize(("count", "most"), [(5, 28), (8, 16), (12, 10), (20, 6)])
def test_a_few_losses_of_single_samples_are_seldom_told_however_far_they_spread(count, most):
    random = np.random.default_rng(count)
    for spread in (0.5, 1.0, 1.5):
        found = [loss_course(random.lognormal(0.0, spread, count)).end for _ in range(200)]
        assert sum(end in TOLD for end in found) <= most
        assert sum(end in BAD for end in found) <= 6


@pytest.mark.parametrize("count", [6, 10, 20])
def test_a_few_losses_of_which_the_last_two_are_four_times_higher_are_told(count):
    random = np.random.default_rng(0)
    for _ in range(50):
        losses = np.linspace(4, 2, count) * random.lognormal(0.0, 0.05, count)
        losses[-2:] *= 4
        assert loss_course(losses).end in TOLD


def after_noise(count, seed=0):
    random = np.random.default_rng(seed)
    return 2.0 + 3 * np.exp(-np.arange(count) / (count / 6)) + 0.05 * random.standard_normal(count)


def test_a_thousandfold_rise_within_four_lines_is_final():
    assert loss_course(np.array([11.67, 8.85, 8712.0, 15806.0])).end is LossEnd.WORSE


def test_a_leap_in_the_last_line_is_not_back_yet():
    course = loss_course(np.array([0.1499, 0.1472, 0.1486, 0.148, 0.7117]))
    assert course.end is LossEnd.NOT_BACK
    assert course.since == 4


@pytest.mark.parametrize("count", [30, 100, 1000])
def test_a_loss_that_leaps_and_stays_is_worse_and_one_that_comes_back_is_not(count):
    losses = after_noise(count)
    losses[count * 3 // 4 :] += 4.0
    assert loss_course(losses).end is LossEnd.WORSE
    back = after_noise(count)
    back[count // 2 : count * 3 // 4] += 4.0
    assert loss_course(back).end is LossEnd.LEARNING


def test_a_first_excursion_that_is_on_its_way_down_is_not_final():
    losses = after_noise(200)
    losses[150:] += np.linspace(4.0, 1.5, 50)
    assert loss_course(losses).end is LossEnd.NOT_BACK


def test_what_healed_before_is_the_measure_of_what_may_heal():
    losses = after_noise(400)
    losses[150:200] += 3.0
    losses[340:400] += 3.0
    assert loss_course(losses).end not in BAD


def test_losses_that_may_be_negative_are_worse_only_far_outside_all_that_they_were():
    random = np.random.default_rng(0)
    losses = random.standard_normal(200)
    assert loss_course(losses).end not in TOLD
    losses[150:] += 1e4
    assert loss_course(losses).end is LossEnd.WORSE


def test_a_flat_loss_and_two_entries_say_nothing():
    assert loss_course(np.full(50, 2.3)).end is LossEnd.FLAT
    assert loss_course(np.array([2.0, 900.0])).end is LossEnd.TOO_FEW


def test_two_losses_printed_in_turn_are_no_rise_of_one():
    random = np.random.default_rng(0)
    rising = 1.5 + np.arange(400) / 200 + 0.1 * random.standard_normal(400)
    losses = np.where(np.arange(400) % 2, rising, 0.6 + 0.1 * random.standard_normal(400))
    assert loss_course(losses).end not in TOLD


@pytest.mark.parametrize("climb", [1.0, 0.0])
def test_what_a_loss_had_before_it_came_down_does_not_hide_that_it_climbs(climb):
    """It falls for 20 entries, and climbs by a third of its level in the 32 after them, or not."""
    fall = 7.6 * np.exp(-np.arange(20) / 12)
    course = np.interp(np.arange(32), [0, 6, 31], [0.0, climb / 2, climb])
    told = 0
    for seed in range(20):
        losses = 3.05 + np.concatenate([fall - fall[-1], course])
        losses += 0.1 * np.random.default_rng(seed).standard_normal(52)
        told += loss_course(losses).end in {LossEnd.HIGHER, LossEnd.NOT_BACK, LossEnd.WORSE}
    assert told == (20 if climb else 0)
