"""How a rerun came out, by its losses beside those of others; pure, over hand-built tries."""

from __future__ import annotations

import pytest

from ampwatch.recovery.proof import (
    STOOD_ABOVE,
    WINDOW,
    Try,
    ceiling,
    failed_rates,
    has_learnt,
    highest_loss,
)


def rerun(rate, last, *, stable=True, first=4.0, **others):
    losses = {} if last is None else {"0": first, "200": last}
    verdict = "healthy" if stable else "failing"
    return Try("lr", rate, 200, verdict, stable, "", losses, "folder", **others)


def test_a_rate_whose_loss_came_back_holds_whatever_its_verdict_says():
    low, high = rerun(0.1, 1.0), rerun(0.2, 1.2, stable=False, highest=4.5)
    assert failed_rates([low, high]) == set()


def test_a_rate_whose_loss_stood_far_above_its_first_failed_though_it_came_back():
    most = 4.0 + STOOD_ABOVE * 3.0
    low = rerun(0.1, 1.0)
    assert ceiling([low], 0.2) == most
    assert failed_rates([low, rerun(0.2, 1.2, highest=most - 0.1)]) == set()
    assert failed_rates([low, rerun(0.2, 1.2, highest=most + 0.1)]) == {0.2}


def test_a_rate_that_learnt_less_than_half_of_a_lower_one_failed_though_it_is_called_healthy():
    assert failed_rates([rerun(0.1, 1.0), rerun(0.2, 2.4)]) == set()
    assert failed_rates([rerun(0.1, 1.0), rerun(0.2, 2.6)]) == {0.2}


def test_a_lower_rate_that_learnt_less_is_not_too_high():
    assert failed_rates([rerun(0.01, 3.9), rerun(0.2, 1.0)]) == set()


def test_a_rerun_that_did_not_come_to_its_end_failed():
    assert failed_rates([rerun(0.1, 1.0), rerun(0.2, 1.0, is_lost=True)]) == {0.2}


@pytest.mark.parametrize("stable", [True, False])
def test_without_a_lower_rate_or_losses_to_compare_with_the_verdict_decides(stable):
    expected = set() if stable else {0.2}
    assert failed_rates([rerun(0.2, 3.0, stable=stable)]) == expected
    assert failed_rates([rerun(0.2, None, stable=stable), rerun(0.1, None)]) == expected
    lost_below = rerun(0.1, 1.0, is_lost=True)
    assert failed_rates([rerun(0.2, 3.0, stable=stable), lost_below]) == expected | {0.1}


def test_a_rate_with_which_the_loss_rose_failed_though_nothing_is_there_to_compare_with():
    assert failed_rates([rerun(0.2, 4.2)]) == {0.2}
    assert failed_rates([rerun(0.2, 4.1)]) == set()


def test_a_leap_of_a_few_steps_is_not_a_height_at_which_the_loss_stood():
    course = dict(enumerate([4.0] * 30 + [900.0] * (WINDOW // 2 - 1) + [3.0] * 30))
    assert highest_loss(course) == 4.0
    course = dict(enumerate([4.0] * 30 + [900.0] * WINDOW + [3.0] * 30))
    assert highest_loss(course) == 900.0
    assert highest_loss(dict.fromkeys(range(WINDOW - 1), 4.0)) is None


def test_where_no_lower_rate_has_learnt_there_is_no_ceiling():
    assert ceiling([], 0.2) is None
    assert ceiling([rerun(0.1, None)], 0.2) is None
    assert ceiling([rerun(0.1, 4.5)], 0.2) is None
    assert ceiling([rerun(0.3, 1.0)], 0.2) is None


def test_a_loss_that_hardly_came_down_has_not_learnt():
    assert has_learnt(rerun(0.1, 3.0))
    assert not has_learnt(rerun(0.1, 3.95))
    assert not has_learnt(rerun(0.1, 40.0))
    assert has_learnt(rerun(0.1, None))  # nobody knows
