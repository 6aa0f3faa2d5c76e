"""What earlier runs that are alike have shown bounds the advice, and nothing else."""

from __future__ import annotations

import dataclasses

import pytest

from ampwatch.diagnosis.learning_rate.advice import Action, Advice
from ampwatch.diagnosis.learning_rate.earlier_rates import TriedRate, bounded

TOO_HIGH = Advice(
    Action.LOWER, "It diverged.", current=0.1, recommended=0.001, low=0.002, high=0.09,
    factor=0.01, group=0, confidence=0.9, warmup_steps=500,
)  # fmt: skip


def held(rate, steps=1000):
    return TriedRate(rate, steps, held=True)


def failed(rate, steps=1000):
    return TriedRate(rate, steps, held=False)


def test_the_interval_ends_below_a_rate_that_failed_and_begins_near_one_that_held():
    said = bounded(TOO_HIGH, [held(0.003), held(0.004), failed(0.03), failed(0.05)], 200)
    assert said.high == pytest.approx(0.03 * 2**-0.1)
    assert said.low == pytest.approx(0.004 * 2**-0.5)
    assert said.recommended == pytest.approx(0.001)
    assert "held 0.004 for 1,000 steps and failed at 0.03, which bounds" in said.because
    assert said.because.startswith("It diverged. Earlier runs alike")


def test_the_advised_rate_is_not_below_a_quarter_of_one_that_held():
    said = bounded(TOO_HIGH, [held(0.02)], 200)
    assert said.recommended == pytest.approx(0.005)
    assert said.factor == pytest.approx(0.05)
    assert "a quarter of the one that held, not 0.001" in said.because


def test_the_advised_rate_lies_below_one_that_failed():
    said = bounded(TOO_HIGH, [failed(0.0008, 40)], 200)
    assert said.recommended < 0.0008
    assert said.high < 0.0008
    assert said.low < said.high
    assert said.high / said.low == pytest.approx(45.0)  # where the limit lies is as uncertain
    assert said.warmup_steps is None
    assert "below the one that failed, not 0.001" in said.because


def test_rates_that_held_above_the_interval_move_it_up_to_the_rate_that_failed():
    low = dataclasses.replace(TOO_HIGH, low=0.001, high=0.01)
    said = bounded(low, [held(0.05)], 200)
    assert said.low == pytest.approx(0.05 * 2**-0.5)
    assert said.high == pytest.approx(0.1 * 2**-0.1)


@pytest.mark.parametrize(
    "tried",
    [
        [],
        [held(0.02, 150)],  # it ended sooner than this run failed
        [held(0.1), held(0.2)],  # they held where this one failed
        [failed(0.2)],  # above: nothing new
        [held(0.02), failed(0.01)],  # they contradict each other
    ],
)
def test_what_proves_nothing_changes_nothing(tried):
    assert bounded(TOO_HIGH, tried, 200) is TOO_HIGH


@pytest.mark.parametrize(
    "advice",
    [
        Advice(Action.KEEP, "calm", current=0.1, recommended=0.1),
        Advice(Action.RAISE, "slow", current=0.1, recommended=0.2, low=0.2),
        Advice(Action.LOWER, "back", current=0.1, recommended=0.05, low=0.05, leapt_at_step=7),
        Advice(Action.LOWER, "late", current=0.1, recommended=0.07),
        Advice(Action.UNKNOWN, "short"),
    ],
)
def test_only_an_advice_with_an_interval_is_bounded(advice):
    assert bounded(advice, [held(0.02), failed(0.03)], 200) is advice
