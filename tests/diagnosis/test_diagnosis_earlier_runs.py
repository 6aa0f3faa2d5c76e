"""What earlier runs teach: the highest rate that held, the lowest that failed by itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hand_built import HandBuiltRun, step_table

from ampwatch.diagnosis import diagnose
from ampwatch.diagnosis.earlier_runs import (
    EarlierRun,
    Outcome,
    Signature,
    lesson_of,
    outcome_of,
    rate_told,
    with_lesson,
)
from ampwatch.diagnosis.learning_rate.advice import Action, Advice

SAME = Signature("k", "f", 6.0, 2.0, 5.0)
WIDER = replace(SAME, key="other", width=7.0)
NOW = 100


def ran(name, outcome, rate, steps=1000, *, at=1, signature=SAME):
    return EarlierRun(name, name, at, signature, Outcome(outcome), rate, steps)


def said(*runs):
    found = lesson_of(SAME, runs, run_id="me", started_ns=NOW)
    return found.text if found else None


def test_the_limit_is_told_between_the_rates_that_held_and_those_that_failed():
    runs = [ran("a", "stable", 1e-4), ran("b", "stable", 3e-4), ran("c", "failing", 6e-4, 80)]
    text = "3 earlier runs alike: stable up to 0.0003 (1,000 steps), failing from 0.0006 on."
    assert said(*runs, ran("d", "failing", 1e-3, 70, at=NOW + 1)) == text


def test_runs_that_failed_for_another_reason_are_counted_and_count_against_no_rate():
    text = said(ran("a", "stable", 3e-4), ran("b", "neither", 1e-4))
    assert text == (
        "2 earlier runs alike: stable up to 0.0003 (1,000 steps), none failed by its learning "
        "rate; 1 did not tell."
    )


def test_where_none_held_that_is_said():
    text = said(ran("a", "failing", 0.1), ran("b", "failing", 0.3))
    assert text == "2 earlier runs alike: failing from 0.1 on, none stable."


def test_a_run_that_was_ended_before_another_failed_at_its_rate_proves_nothing():
    runs = [
        ran("a", "stable", 1e-4),
        ran("short", "stable", 1e-3, 50),
        ran("c", "failing", 6e-4, 80),
    ]
    assert "stable up to 0.0001 (1,000 steps), failing from 0.0006 on" in said(*runs)


def test_a_run_that_held_longer_than_another_at_a_lower_rate_contradicts_it():
    text = said(ran("a", "stable", 1e-3), ran("b", "failing", 6e-4, 80))
    assert "stable up to 0.001 (1,000 steps), yet others failed from 0.0006 on" in text


def test_near_runs_are_told_as_such_and_only_where_none_is_alike():
    near = ran("n", "failing", 1e-2, signature=WIDER)
    assert said(near) == (
        "1 earlier run of the same kind at another width, depth or batch: failing from 0.01 on, "
        "none stable."
    )
    assert said(near, ran("a", "stable", 1e-4)).startswith("1 earlier run alike: stable")


@pytest.mark.parametrize(
    "other",
    [
        ran("me", "stable", 1e-3),
        ran("later", "stable", 1e-3, at=NOW),
        ran("undated", "stable", 1e-3, at=0),
        ran("strange", "stable", 1e-3, signature=replace(SAME, key="x", family="y")),
        ran("unknown", "stable", 1e-3, signature=None),
    ],
)
def test_the_run_itself_later_ones_and_strangers_teach_nothing(other):
    assert said(other) is None


@pytest.mark.parametrize(
    ("verdict", "action", "outcome"),
    [
        ("failing", "lower", "failing"),
        ("failing", "not-the-cause", "neither"),
        ("failing", "unknown", "neither"),
        ("warning", "lower", "neither"),
        ("warning", "keep", "stable"),
        ("warning", "not-the-cause", "neither"),
        ("healthy", "keep", "stable"),
        ("healthy", "lower", "neither"),
        ("cut off", "raise", "stable"),
        ("incomplete", "keep", "neither"),
    ],
)
def test_only_a_failure_by_the_rate_counts_as_failing(verdict, action, outcome):
    assert outcome_of(verdict, action).value == outcome


def test_a_run_ended_while_its_rate_rose_proves_what_it_reached():
    assert rate_told(1e-2, 0, 1e-3) == 1e-3
    assert rate_told(1e-2, 1, 1e-3) == 1e-2  # what the first group reached tells not of the second
    assert rate_told(None, None, 1e-3) is None


TOO_HIGH = Advice(
    Action.LOWER, "It diverged.", current=0.1, recommended=0.001, low=0.002, high=0.09,
    factor=0.01, group=0, confidence=0.9, warmup_steps=500,
)  # fmt: skip


def bounded(*runs, advice=TOO_HIGH):
    """This advice beside these earlier runs."""
    told = replace(diagnose(HandBuiltRun(step_table(loss=[1.0] * 30))), learning_rate=advice)
    return with_lesson(told, lesson_of(SAME, runs, run_id="me", started_ns=NOW)).learning_rate


def test_the_interval_ends_below_the_lowest_rate_that_failed_whatever_held():
    runs = [ran("a", "stable", 4e-3), ran("b", "failing", 0.03), ran("c", "failing", 0.05)]
    told = bounded(*runs)
    assert told.high == pytest.approx(0.03 * 2**-0.1)
    assert told.low == TOO_HIGH.low  # what held is no bound: it may have been stopped too soon
    assert told.recommended == TOO_HIGH.recommended
    assert told.because == (
        "It diverged. Earlier runs alike failed at 0.03, which bounds the interval."
    )


def test_the_advised_rate_lies_below_one_that_failed():
    told = bounded(ran("a", "failing", 8e-4, 40))
    assert told.recommended < 8e-4
    assert told.factor == pytest.approx(told.recommended / 0.1)
    assert told.high < 8e-4
    assert told.high / told.low == pytest.approx(45.0)  # where the limit lies is as uncertain
    assert told.warmup_steps is None
    assert "below that, not 0.001" in told.because


@pytest.mark.parametrize(
    "runs",
    [
        [],
        [ran("a", "stable", 0.02)],
        [ran("a", "failing", 0.2)],  # above: nothing new
        [ran("a", "stable", 0.02), ran("b", "failing", 0.01, 80)],  # they contradict each other
        [ran("a", "failing", 0.01, signature=WIDER)],
    ],
)
def test_what_proves_nothing_changes_nothing(runs):
    assert bounded(*runs) is TOO_HIGH


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
    assert bounded(ran("a", "failing", 0.03), advice=advice) is advice
