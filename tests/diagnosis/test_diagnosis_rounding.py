"""AMP418 on records built by hand: what the samples must say before it is said."""

from __future__ import annotations

import itertools

import pytest

from ampwatch.diagnosis import Engine, diagnose
from ampwatch.diagnosis.precision_history import RoundingHistory, RoundingSample
from tests.diagnosis.hand_built import HandBuiltRun, step_table

STEPS, EVERY = 400, 20


def run(unmoved, asked, kept, *, steps=STEPS, every=EVERY, **columns):
    """A calm run with a sample now and then; each figure is one number, or made of the step."""

    def column(figure):
        value = figure if callable(figure) else lambda _step: figure
        return [value(step) if step % every == 0 else None for step in range(steps)]

    return HandBuiltRun(
        step_table(
            loss=[2.0 - 0.5 * step / steps for step in range(steps)],
            skipped=[False] * steps,
            unmoved_share=column(unmoved),
            asked_share=column(asked),
            update_kept_share=column(kept),
            **columns,
        )
    )


def found(record):
    return next((f for f in diagnose(record).findings if f.code == "AMP418"), None)


def test_weights_that_stand_still_and_lose_their_updates_are_a_warning():
    finding = found(run(0.97, 0.13, 0.08))
    assert finding.severity.value == "warning"
    assert finding.last_step == 380
    assert finding.because_of is None
    assert [one.signal for one in finding.evidence] == ["unmoved_share", "update_kept_share"]


@pytest.mark.parametrize(
    ("unmoved", "asked", "kept"),
    [
        (0.87, 0.13, 1.0),  # stochastic rounding, Kahan sums
        (0.4, 0.7, 0.45),  # most weights move
        (0.9, 0.13, 0.6),  # most of the update arrives
        (1.0, 0.0, None),  # a rate of zero asks for nothing
        (0.97, None, None),  # an optimizer that nobody here understands
    ],
)
def test_it_is_silent_where_what_is_asked_arrives_or_is_not_known(unmoved, asked, kept):
    assert found(run(unmoved, asked, kept)) is None


def test_noise_around_all_that_was_asked_is_no_loss():
    noisy = [0.2, 2.9, 0.1, 1.4, 0.3, 1.6]
    assert found(run(0.98, 0.05, lambda step: noisy[step // EVERY % 6])) is None


def test_before_the_updates_come_to_a_spacing_nobody_can_tell():
    # A Kahan sum has nothing to give back yet: after 400 steps half a spacing was asked for.
    assert found(run(0.999, 0.001, 0.0)) is None
    assert found(run(0.999, 0.001, 0.0, steps=8000)) is not None


def test_too_few_samples_do_not_tell():
    assert found(run(0.97, 0.13, 0.05, steps=60)) is None


def test_a_rate_that_was_large_enough_at_first_does_not_hide_what_is_lost_later():
    early = STEPS // 3
    lost = run(
        lambda step: 0.1 if step < early else 0.9,
        0.5,
        lambda step: 1.0 if step < early else 0.2,
    )
    assert found(lost).first_step == 140


def test_a_warm_up_from_a_tiny_rate_is_no_loss_once_it_is_over():
    begin = STEPS // 3
    warmed = run(
        lambda step: 0.9 if step < begin else 0.1,
        0.5,
        lambda step: 0.2 if step < begin else 1.0,
    )
    assert found(warmed) is None


def test_it_is_not_the_rate_and_nobody_is_told_to_raise_it():
    diagnosis = diagnose(run(0.97, 0.13, 0.08))
    assert diagnosis.learning_rate.action.value == "not-the-cause"
    assert "AMP305" not in {finding.code for finding in diagnosis.findings}


def test_what_it_says_does_not_depend_on_how_the_rows_were_cut():
    record = run(0.97, lambda step: 0.1 + step / 4000, lambda step: 0.05 + step / 8000)
    whole = diagnose(record)
    cut = Engine(block_rows=37, settled_rows=11).feed(record).diagnosis()
    assert cut == whole


def test_a_long_record_is_remembered_in_bounded_room_and_told_the_same():
    course = RoundingHistory(spacings=2.0)
    for step in range(0, 500_000, 50):
        course = course._with(RoundingSample(step, 0.9, 0.1, 0.2))
    assert len(course.samples) <= 257
    steps = [sample.step for sample in course.samples]
    apart = {late - early for early, late in itertools.pairwise(steps)}
    assert len(apart) == 1
    assert steps[0] == 0


def test_where_steps_begin_anew_what_was_asked_before_does_not_count():
    steps = [*range(200), *range(100, 130)]
    resumed = HandBuiltRun(
        step_table(
            step=steps,
            skipped=[False] * 230,
            loss=[1.0] * 230,
            unmoved_share=[0.99 if at >= 200 else None for at in range(230)],
            asked_share=[0.03 if at >= 200 else None for at in range(230)],
            update_kept_share=[0.0 if at >= 200 else None for at in range(230)],
        )
    )
    assert found(resumed) is None
