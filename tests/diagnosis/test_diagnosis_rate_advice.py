"""What the advice says of a rate that is too high, case by case, with its arithmetic."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
from rate_shapes import action, course, diverging, falling, look

from ampwatch.diagnosis.learning_rate import (
    Group,
    RateState,
    Setup,
    advise,
    fold,
    judge_rate,
    rows_of,
)
from ampwatch.diagnosis.learning_rate.judgement import TABLE, alignment_after
from ampwatch.diagnosis.several_runs import ForSeveralRuns, advise_together

ADAM = Setup(groups=(Group(base=0.1, adaptive=True),))


def plain(rows, momentum=1.0):
    """The same rows with a gradient norm that an SGD's updates are proportional to."""
    moved = rows.of("update_norm") / rows.of("lr") / momentum
    return with_columns(rows, grad_norm=moved, applied_norm=moved)


def with_columns(rows, **columns):
    names = {name: rows.of(name) for name in NAMES}
    return rows_of(**{**names, **columns})


NAMES = (
    "step", "skipped", "loss", "loss_bad", "lr", "lr_base", "grad_norm", "applied_norm",
    "update_norm", "param_norm", "max_ratio", "input_amax", "act_amax", "forward_bad",
    "micro_batches", "scale", "alignment",
)  # fmt: skip


def first_updates(rows):
    """log2 of the first two updates over the weights, their middle."""
    return float(np.log2(rows.of("update_norm") / rows.of("param_norm"))[:2].mean())


def test_an_early_divergence_lowers_the_rate_by_the_formula():
    rows = diverging(ratio=0.5)
    advice = look(rows, ADAM)
    assert advice.action.value == "lower"
    x = 1.5 + 0.75 * first_updates(rows)
    assert advice.factor == pytest.approx(2 ** -(x + 2.5))
    assert advice.recommended == pytest.approx(0.1 * advice.factor)
    assert advice.low == pytest.approx(0.1 * 2 ** -(x + 1.6))
    assert 0.09 < advice.high < 0.1  # the rate that failed bounds the interval and is not in it
    assert "change the weights by about 54 % per step" in advice.because
    assert f"so the peak is about {2**x:.2g} times too high." in advice.because
    parts = f"by {2**x:.2g}, and by a safety factor of 5.7."
    assert f"Divide by {1 / advice.factor:.2g}: {parts}" in advice.because
    assert advice.confidence == 0.9


def test_a_proof_says_what_its_number_is_held_against():
    assert " is too much)" in look(diverging(ratio=0.5), ADAM).because
    rows = course(np.full(300, 2.3), noise=0.02, ratio=0.05, lr=0.1)
    grown = with_columns(rows, param_norm=np.linspace(10, 60, 300))
    told = "weight norm, nothing learnt of about 59.7 near step 297 (10 before)"
    assert told in look(grown, ADAM).because


@pytest.mark.parametrize("zeros", [1, 3])
def test_a_schedule_that_starts_at_a_rate_of_zero_is_judged_by_its_first_update(zeros):
    """As transformers' schedules do: the first step moves nothing, and is no missing update."""
    rate = np.where(np.arange(300) < zeros, 0.0, 0.1)
    rows = course(np.full(300, 2.3), noise=0.02, ratio=0.05 * (rate > 0), lr=rate, base=0.1)
    grown = with_columns(rows, param_norm=np.linspace(10, 60, 300))
    advice = look(grown, ADAM)
    assert advice.action.value == "lower"
    assert "early updates would change the weights by" in advice.because


def test_so_small_an_update_that_the_formula_finds_nothing_still_gets_a_cut():
    advice = look(diverging(ratio=0.02), ADAM)
    assert advice.factor == pytest.approx(2**-3)
    assert (
        "the least that is assumed of a learning rate that failed is 1.4 times too high"
        in advice.because
    )


def test_a_plain_optimizer_is_known_by_what_it_does_and_has_its_own_offset():
    rows = plain(diverging(ratio=0.5))
    advice = look(rows)
    assert advice.action.value == "lower"
    assert advice.factor == pytest.approx(2 ** -(2.8 + 0.75 * first_updates(rows) + 2.5))


def test_momentum_is_judged_by_what_its_updates_grow_to():
    calm = Setup(groups=(Group(base=0.1, adaptive=False),))
    gathering = Setup(groups=(Group(base=0.1, adaptive=False, momentum=0.9),))
    rows = plain(diverging(ratio=0.5))
    share = math.log2(look(rows, calm).factor / look(rows, gathering).factor)
    # The first update is a tenth of the steady one, the second 0.19 of it.
    assert share == pytest.approx(-0.75 * (math.log2(0.1) + math.log2(0.19)) / 2)


def test_a_mean_of_squares_that_begins_at_zero_is_judged_in_its_steady_state():
    steady = Setup(groups=(Group(base=0.1, adaptive=True),))
    begins = Setup(groups=(Group(base=0.1, adaptive=True, square_decay=0.99),))
    rows = diverging(ratio=4.0)
    share = math.log2(look(rows, begins).factor / look(rows, steady).factor)
    assert share == pytest.approx(-0.75 * (math.log2(0.01) + math.log2(0.0199)) / 4)


def test_a_plain_optimizer_that_broke_at_its_first_update_is_cut_deeper():
    setup = Setup(groups=(Group(base=0.1, adaptive=False),))
    rows = plain(diverging(good=1, bad=60, ratio=0.5))
    broke = with_columns(rows, skipped=np.arange(61) > 0)
    learnt = with_columns(rows, skipped=np.arange(61) > 1)
    u = math.log2(rows.ratio[0])
    assert look(broke, setup).factor == pytest.approx(2 ** -(2.8 + 0.75 * u + 0.8 + 2.5))
    assert look(learnt, setup).factor > look(broke, setup).factor


def test_an_optimizer_that_shows_no_family_gets_a_wide_interval():
    rows = diverging(ratio=20.0)
    known, unknown = look(rows, ADAM), look(with_columns(rows, applied_norm=1.0))
    assert width(unknown) > width(known) + 1  # octaves
    assert "what kind of optimizer it is, is not known" in unknown.because
    assert unknown.confidence == 0.6


def width(advice):
    """The interval in octaves."""
    return math.log2(advice.high / advice.low)


def test_no_update_norm_leaves_only_a_blind_and_wide_answer():
    rows = with_columns(diverging(top=20.0, collapse=True), update_norm=np.nan, max_ratio=np.nan)
    advice = look(rows, ADAM)
    assert advice.action.value == "lower"
    assert "By how much the first updates change the weights is not recorded" in advice.because
    assert width(advice) == pytest.approx(5.9)  # the rate that failed bounds it above
    assert advice.confidence == 0.6


def test_fewer_than_ten_accepted_steps_are_half_sure_at_most():
    rows = diverging(good=6, bad=10, ratio=0.5)
    skipped = np.concatenate([np.zeros(8), np.ones(8)])
    advice = look(with_columns(rows, skipped=skipped), ADAM)
    assert advice.action.value == "lower"
    assert advice.confidence <= 0.5


def test_a_loss_that_never_fell_while_the_weights_grew_is_the_rate():
    rows = course(np.full(300, 2.3), noise=0.02, ratio=0.05, lr=0.1)
    grown = with_columns(rows, param_norm=np.linspace(10, 60, 300))
    advice = look(grown, ADAM)
    assert advice.action.value == "lower"
    assert "the loss hardly fell, with weight norm, nothing learnt of" in advice.because
    assert action(rows, ADAM) == "keep"


def test_a_rate_still_rising_is_never_advised_above_what_was_in_force():
    count = np.arange(120)
    rows = diverging(ratio=0.0005, lr=0.1 * (count + 1) / 1000, base=0.1, collapse=True)
    rows = with_columns(rows, max_ratio=0.5)
    advice = look(rows, ADAM)
    assert advice.action.value == "lower"
    onset = judge_rate(fold(RateState(), rows, ADAM)).onset
    assert advice.recommended <= 0.1 * (onset.row + 1) / 1000
    assert "still rising" in advice.because
    assert advice.warmup_steps is None  # some 16,000 steps if it is to rise as slowly


def test_a_warm_up_that_is_a_little_too_steep_may_be_stretched():
    rate = 0.1 * (np.arange(120) + 1) / 150
    rows = with_columns(diverging(ratio=0.0005, lr=rate, base=0.1, collapse=True), max_ratio=0.5)
    advice = look(rows, ADAM)
    assert advice.factor == 0.125
    assert advice.warmup_steps == 1200  # eight times 150
    assert "about 1,200 steps" in advice.because


def test_a_rate_at_which_a_warm_up_failed_is_not_in_the_interval():
    count = np.arange(120)
    rows = diverging(ratio=0.02, lr=0.1 * (count + 1) / 300, base=0.1, collapse=True)
    advice = look(rows, ADAM)
    assert advice.action.value == "lower"
    onset = judge_rate(fold(RateState(), rows, ADAM)).onset
    assert advice.low < advice.high < rows.of("lr")[onset.row]


# Rates of a run of so many steps whose trouble begins after so many; the base is 0.1.
RISING = {
    "flat": lambda steps, _: np.full(steps, 0.1),
    "warm-up": lambda steps, _: 0.1 * (np.arange(steps) + 1) / steps,
    "long warm-up": lambda steps, _: 0.1 * (np.arange(steps) + 1) / (10 * steps),
    "warm-up by epochs": lambda steps, _: 0.1 * (1 + np.arange(steps) // 20) / (1 + steps // 20),
    "exponential": lambda steps, _: 0.1 * np.geomspace(1e-3, 1, steps),
    "leap": lambda steps, good: np.where(np.arange(steps) < good - 3, 0.03, 0.1),
    "leap early": lambda steps, good: np.where(np.arange(steps) < good // 2, 0.03, 0.1),
}
DECAYING = {
    "cosine": lambda steps, _: 0.05 * (1 + np.cos(np.pi * np.arange(steps) / steps)),
    "steps": lambda steps, good: np.where(np.arange(steps) < good // 2, 0.1, 0.05),
    "warm restarts": lambda steps, _: 0.1 * (1 - (np.arange(steps) % 40) / 40) + 1e-4,
    "one cycle": lambda steps, good: np.interp(
        np.arange(steps), [0, good // 2, steps], [0.001, 0.1, 0.0001]
    ),
}


@pytest.mark.parametrize("told", ["a scheduler's base", "no base"])
@pytest.mark.parametrize("shape", [*RISING, *DECAYING])
def test_no_interval_and_no_advice_holds_a_rate_that_failed(shape, told):
    """Whatever the schedule, the optimizer and the size of the updates."""
    lowered = 0
    sizes = itertools.product([20, 60, 400], [0.0005, 0.02, 0.5, 8.0], [False, True])
    for good, ratio, collapse in sizes:
        rate = {**RISING, **DECAYING}[shape](good + 60, good)
        base = 0.1 if told == "a scheduler's base" else rate
        rows = diverging(good, ratio=ratio, lr=rate, base=base, collapse=collapse)
        for setup in (ADAM, Setup()):
            state = fold(RateState(), rows, setup)
            judgement = judge_rate(state)
            advice, onset = advise(state, judgement), judgement.onset
            if advice.action.value != "lower":
                continue
            lowered += 1
            # A base rate: what was in force is a share of it where the rate decays.
            failed = rate[onset.row] if shape in RISING else rate[: onset.row + 1].max()
            assert advice.recommended < min(failed, advice.current)
            if advice.has_interval:
                assert 0 < advice.low < advice.high < min(failed, advice.current)
                assert advice.recommended <= advice.high
    assert lowered > 20


def test_a_warm_up_that_never_learnt_failed_at_all_it_had_tried():
    """Its base was never in force: the highest rate that was bounds the interval."""
    grown, rate = np.geomspace(10, 60, 300), 0.1 * (np.arange(300) + 1) / 1000
    rows = course(np.full(300, 2.3), noise=0.02, ratio=0.05, lr=rate, base=0.1, param_norm=grown)
    advice = look(rows, ADAM)
    assert advice.action.value == "lower"
    assert "the loss hardly fell" in advice.because
    assert advice.recommended < advice.high < 0.03  # where the warm-up was when the record ends


def test_a_rate_at_which_it_failed_after_a_decay_has_not_worked():
    """It had trained for long at what then failed: that is no floor of the advice."""
    rate = np.where(np.arange(460) < 200, 0.1, 0.05)
    advice = look(diverging(400, ratio=0.5, lr=rate, base=0.1), ADAM)
    assert advice.action.value == "lower"
    assert advice.recommended < 0.05
    assert "had worked" not in advice.because


def test_a_schedule_that_begins_anew_has_not_leapt():
    """Warm restarts come back to rates that they had before, and go down again."""
    rate = 0.1 * (1 - (np.arange(130) % 40) / 40) + 1e-4
    for base in (0.1, rate):
        assert look(diverging(70, ratio=0.5, lr=rate, base=base), ADAM).leapt_at_step is None


def test_a_rate_that_had_trained_for_long_is_the_floor_of_the_interval():
    rate = np.where(np.arange(420) < 300, 0.02, 0.1)
    rows = diverging(good=360, ratio=4.0, lr=rate, base=0.1)
    advice = look(rows, ADAM)
    assert advice.action.value == "lower"
    assert advice.low == pytest.approx(0.02)
    short = look(diverging(good=60, ratio=4.0, lr=rate[280:400], base=0.1), ADAM)
    assert short.low < 0.02  # twenty steps at it have shown nothing


def little_learnt(**rest):
    """Learns, but most of the loss is left, with first updates of half the weights."""
    early = np.where(np.arange(160) < 5, 0.5, 0.01)
    return course(falling(160, 2.3, 1.5, speed=2), noise=0.03, **{"ratio": early, **rest})


def test_little_learnt_under_updates_over_the_limit_and_weights_that_ran_away_is_the_rate():
    grown = np.geomspace(10, 50, 160)
    ratio = np.where(np.arange(160) < 5, 0.5, 0.01)
    rows = with_columns(little_learnt(), param_norm=grown, update_norm=grown * ratio)
    advice = look(rows, ADAM)
    assert advice.action.value == "lower"
    assert "weight norm, nothing learnt of about 49" in advice.because
    assert advice.factor < 0.125


def test_a_rate_under_which_a_run_still_learns_is_taken_to_be_a_little_too_high():
    grown = np.geomspace(10, 50, 160)
    ratio = np.where(np.arange(160) < 5, 8.0, 0.01)
    advice = look(with_columns(little_learnt(), param_norm=grown, update_norm=grown * ratio), ADAM)
    assert advice.factor == 2.0**-4.0  # 1.5 octaves and the margin of 2.5
    assert 0.9 * advice.current < advice.high < advice.current
    assert "because the run still learns, 2.8 times is assumed" in advice.because


def test_little_learnt_alone_or_with_one_of_the_two_signs_does_not_lower_the_rate():
    assert action(little_learnt(), ADAM) == "unknown"  # weights as they were, large updates
    doubled = np.geomspace(10, 20, 160)
    small = {"param_norm": doubled, "update_norm": 0.01 * doubled, "max_ratio": 0.03}
    assert action(with_columns(little_learnt(), **small), ADAM) == "keep"  # borne elsewhere
    grown = np.geomspace(10, 50, 160)
    much = course(falling(160, 2.3, 0.9), noise=0.03)
    ratio = np.where(np.arange(160) < 5, 0.5, 0.01)
    much = with_columns(much, param_norm=grown, update_norm=grown * ratio)
    assert action(much, ADAM) == "keep"  # much was learnt


def gone(**columns):
    """A loss that left its band for good, in a record without updates."""
    loss = np.concatenate([falling(2000, 3.0, 1.0), np.linspace(1.0, 4.0, 1500), np.full(500, 4.0)])
    rows = course(loss, noise=0.05)
    absent = dict.fromkeys(("update_norm", "param_norm", "max_ratio", "input_amax"), np.nan)
    return with_columns(rows, **absent, **columns)


def test_a_loss_that_has_gone_keeps_its_rate_only_where_the_updates_were_seen():
    assert look(gone(grad_norm=np.nan)).action.value == "unknown"
    told = look(gone())
    assert told.action.value == "unknown"
    assert "which would decide it, are not recorded" in told.because
    seen = course(gone().of("loss"), ratio=1e-4)
    assert action(seen) == "keep"


def test_a_healthy_verdict_is_no_proof_of_a_rate_whose_loss_stands_above_its_best():
    loss = 2.0 + np.sin(np.arange(3000) / 400)
    rows = rows_of(step=np.arange(3000), loss=loss, lr=1e-3)
    told = look(rows)
    assert told.action.value == "unknown"
    assert action(course(loss, noise=0.02)) == "keep"  # its updates were seen, and small


def test_gradients_that_had_grown_while_the_loss_fell_did_not_bring_the_collapse():
    count = np.arange(160)
    grown = np.where(count > 40, 5.0, 1.0)
    rows = course(falling(160), noise=0.02, grad=grown, skipped=count > 60)
    assert action(rows, ADAM) == "not-the-cause"
    climbing = falling(160) + np.where(count > 45, 1.0, 0.0)
    assert action(course(climbing, noise=0.02, grad=grown, skipped=count > 60), ADAM) == "lower"


@pytest.mark.parametrize(
    "schedule",
    [
        lambda t: 0.05 * (1 + np.cos(np.pi * t / 1000)),  # cosine
        lambda t: np.where(t < 50, 0.1, 0.01),  # step decay
        lambda t: 0.1 * np.minimum((t + 1) / 20, 1 - (t - 20) / 2000),  # OneCycle's two halves
    ],
    ids=["cosine", "step decay", "OneCycle"],
)
def test_the_advice_speaks_of_the_peak_whatever_the_schedule(schedule):
    rate = schedule(np.arange(120.0))
    rows = diverging(lr=rate, base=0.1)
    # The updates follow the rate, so that the same updates at the base rate come out.
    rows = with_columns(rows, update_norm=rows.of("update_norm") * rate / 0.1)
    flat = look(diverging(), ADAM)
    advice = look(rows, ADAM)
    assert advice.current == 0.1
    assert advice.recommended == pytest.approx(flat.recommended, rel=0.1)
    assert advice.warmup_steps is None


def test_the_decay_of_the_weights_is_no_part_of_the_update():
    decoupled = Setup(groups=(Group(base=0.1, weight_decay=4.0, decoupled=True, adaptive=True),))
    within, without = (look(diverging(ratio=0.5), setup) for setup in (decoupled, ADAM))
    assert within.factor > without.factor


def test_a_leading_group_of_a_higher_rate_is_judged_by_its_own_rate():
    setup = Setup(groups=(Group(base=0.1, adaptive=True), Group(base=1.0)), lead_group=1)
    rows = diverging(ratio=0.5)  # whose rate is the first group's
    alone, led = look(rows, ADAM), look(rows, setup)
    assert led.factor == pytest.approx(alone.factor)
    assert led.current == 1.0


def test_several_groups_get_one_factor_and_the_group_that_leads():
    setup = Setup(groups=(Group(base=0.1), Group(base=0.02, adaptive=True)), lead_group=1)
    advice = look(diverging(), setup)
    assert (advice.group, advice.current) == (1, 0.02)
    assert advice.recommended == pytest.approx(0.02 * advice.factor)
    assert "computed for group 1" in advice.because


def test_a_leading_groups_rate_is_not_the_first_of_a_warmup_that_the_loop_makes():
    began = Setup(groups=(Group(base=0.001, adaptive=True), Group(base=0.002)), lead_group=1)
    assert look(diverging(), began).current == pytest.approx(0.2)  # the rows' 0.1, twice


def test_accumulation_and_a_batch_ramp_are_named():
    ramp = np.where(np.arange(120) < 40, 2.0, 8.0)
    because = look(with_columns(diverging(), micro_batches=ramp), ADAM).because
    assert "8 micro-batches" in because
    assert "from 2 to 8 micro-batches" in because


def test_clipping_that_always_binds_is_named_with_its_norm():
    advice = look(with_columns(diverging(), applied_norm=0.5), ADAM)
    assert advice.clip == 0.5
    assert "Clipping to 0.5 was active" in advice.because


def test_trouble_at_a_rate_that_the_estimate_clears_is_not_blamed_on_it():
    grad = np.concatenate([np.full(60, 1e-3), np.geomspace(1e-3, 0.1, 60)])
    rows = with_columns(diverging(ratio=1e-6), grad_norm=grad, applied_norm=grad)
    advice = look(rows, ADAM)
    assert advice.action.value == "keep"
    assert "first updates / weights of about 1" in advice.because
    assert "is small)" in advice.because


def test_more_than_64_times_too_high_says_to_apply_it_again():
    setup = Setup(groups=(Group(adaptive=False),))
    advice = look(plain(diverging(ratio=60.0, collapse=True)), setup)
    assert advice.action.value == "lower"
    assert advice.factor < 1 / 64
    assert "apply the advice to the new log" in advice.because
    assert advice.confidence == 0.6


def test_the_restart_stands_before_the_drift_and_at_a_saved_step():
    setup = dataclasses.replace(ADAM, saved_steps=(10, 40, 90, 110))
    advice = look(diverging(), setup)
    assert 40 <= advice.restart_from_step <= 62
    assert advice.restart_checkpoint_step == 40
    assert look(diverging(), ADAM).restart_checkpoint_step is None


def test_the_restart_stands_before_an_update_that_left_little_of_the_weights():
    rows = diverging(collapse=True)
    assert look(rows, ADAM).restart_from_step > 40
    harmful = np.where(np.arange(120) == 7, 0.5, rows.ratio)
    rows = with_columns(rows, update_norm=10 * harmful)
    assert look(rows, ADAM).restart_from_step == 7


def late(count=20_000, bad=1500, top=4.5, **rest):
    loss = np.concatenate([falling(count - bad, 10, 2.7), np.linspace(2.7, top, bad)])
    grow = np.concatenate([np.ones(count - bad), np.geomspace(1, 8, bad)])
    return course(loss, noise=0.05, grad=grow, ratio=1e-3 * grow, lr=3e-4, **rest)


def test_a_late_climb_lowers_the_rate_a_little_and_restarts_before_the_drift():
    advice = look(late())
    assert advice.action.value == "lower"
    assert advice.factor == 0.7
    assert not advice.has_interval  # what large runs did says nothing of this one's limit
    assert "large runs used 0.5 to 0.9" in advice.because
    assert 17_000 < advice.restart_from_step < 19_300


def test_a_late_climb_of_a_long_run_is_seen_through_the_cells():
    rows = late(count=200_000, bad=20_000)
    advice = look(rows)
    assert advice.action.value == "lower"
    assert 170_000 < advice.restart_from_step < 195_000


def test_a_late_collapse_is_first_a_restart_and_on_a_repeat_a_small_cut():
    skipped = np.arange(20_000) > 19_900
    rows = late(skipped=skipped)
    first = look(rows, Setup(saved_steps=(5_000, 15_000, 19_500)))
    assert first.action.value == "keep"
    assert first.restart_checkpoint_step == 15_000
    assert "at the same learning rate" in first.because
    again = look(rows, Setup(restarts=1))
    assert (again.action.value, again.factor) == ("lower", 0.7)


def test_a_late_spike_on_its_way_down_keeps_the_rate():
    loss = np.concatenate([falling(10_000, 10, 2.7), np.linspace(6, 3.5, 150)])
    grow = np.concatenate([np.ones(10_000), np.full(150, 6.0)])
    advice = look(course(loss, noise=0.03, grad=grow))
    assert advice.action.value == "keep"
    assert "coming down" in advice.because


def test_a_resumed_run_is_held_against_its_own_past_only():
    step = np.arange(1500) + 70_000
    loss = np.concatenate([np.full(1000, 2.1), np.linspace(2.1, 6, 500)])
    grow = np.concatenate([np.ones(1000), np.geomspace(1, 10, 500)])
    rows = course(loss, noise=0.03, grad=grow, ratio=1e-3 * grow, step=step)
    advice = look(rows, Setup(resumed=True))
    assert (advice.action.value, advice.factor) == ("lower", 0.7)
    assert 70_900 < advice.restart_from_step < 71_200


def test_a_collapse_with_everything_in_band_is_not_the_rate():
    skipped = np.arange(400) > 380
    advice = look(course(falling(400), skipped=skipped))
    assert advice.action.value == "not-the-cause"
    assert "an operation that overflows" in advice.because


def test_an_update_of_which_the_loss_fell_did_not_bring_the_collapse():
    skipped = np.arange(400) > 380
    advice = look(course(falling(400), skipped=skipped, noise=0.02, ratio=0.05))
    assert advice.action.value == "not-the-cause"
    climbing = falling(400) + np.where(np.arange(400) > 340, 0.5, 0.0)
    driven = np.where(np.arange(400) > 335, 0.2, 0.05)
    assert action(course(climbing, skipped=skipped, noise=0.02, ratio=driven)) == "lower"


def test_a_collapse_before_the_first_update_is_not_the_rate():
    rows = course(np.full(40, np.nan), skipped=1.0, forward_bad=1.0)
    advice = look(rows)
    assert advice.action.value == "not-the-cause"
    assert "no update had been made" in advice.because


def test_a_batch_far_off_after_ordinary_updates_is_the_data():
    amax = np.where(np.arange(400) < 390, 3.0, 400.0)
    loss = np.where(np.arange(400) < 390, 1.0, 90.0)
    rows = course(loss, noise=0.01, input_amax=amax, skipped=np.arange(400) >= 390)
    advice = look(rows)
    assert advice.action.value == "not-the-cause"
    assert "the cause is the data" in advice.because


PLAIN_ADAM = Setup(groups=(Group(base=1e-3, adaptive=True, fade=0.9),))


def short_steps(cosine, setup=PLAIN_ADAM, **columns):
    """A healthy run whose updates go along each other this far."""
    loss = columns.pop("loss", falling(400, 2.3, 2.25))
    return look(course(loss, alignment=cosine, update_norm=0.01, **columns), setup)


@pytest.mark.parametrize(
    ("cosine", "expected"), [(0.99, "raise"), (0.96, "keep"), (0.9, "keep"), (0.5, "keep")]
)
def test_a_rate_that_could_rise_says_so_only_where_doubling_was_stable(cosine, expected):
    advice = short_steps(cosine)
    assert advice.action.value == expected
    if expected == "raise":
        assert advice.factor == 2.0
        assert advice.recommended == pytest.approx(2e-3)


def test_what_momentum_alone_makes_alike_is_no_reason_to_raise():
    plain_sgd = Setup(groups=(Group(base=1e-3, adaptive=False, fade=0.0),))
    assert short_steps(0.9).action.value == "keep"
    assert short_steps(0.9, plain_sgd).action.value == "raise"


def test_without_the_optimizers_momentum_nothing_is_said_of_raising():
    nesterov = Setup(groups=(Group(base=1e-3, adaptive=False),))
    assert short_steps(0.99, Setup()).action.value == "keep"
    assert short_steps(0.99, nesterov).action.value == "keep"


def test_a_run_that_learns_well_keeps_its_rate_however_short_its_steps():
    assert short_steps(0.99, loss=falling(400)).action.value == "keep"


def test_two_optimizers_are_not_told_to_raise():
    two = dataclasses.replace(PLAIN_ADAM, several_optimizers=True)
    assert short_steps(0.99, two).action.value == "keep"


def test_weight_decay_that_makes_the_updates_alike_is_no_reason_to_raise():
    decaying = Setup(groups=(dataclasses.replace(PLAIN_ADAM.groups[0], weight_decay=0.3),))
    assert short_steps(0.99, decaying).action.value == "keep"  # 0.3 of 10 against 0.01 over 1e-3


def gradients_and_updates(rng, curvature, momentum, rate, steps=200):
    """Noisy gradient descent on a bowl, whole: each step's gradient and update."""
    weights, moving, made = np.ones(64), np.zeros(64), []
    for _ in range(steps):
        gradient = curvature * weights + 0.3 * rng.standard_normal(64)
        moving = momentum * moving + gradient
        made.append((gradient, -rate * moving))
        weights = weights - rate * moving
    return made


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("rate", [1e-3, 0.3])
def test_the_next_gradient_is_read_off_two_updates_in_a_row(momentum, rate):
    made = gradients_and_updates(np.random.default_rng(0), np.linspace(0.1, 1, 64), momentum, rate)
    norms = [np.linalg.norm(update) for _, update in made]
    cosines = [math.nan] + [
        later @ sooner / np.linalg.norm(later) / np.linalg.norm(sooner)
        for (_, sooner), (_, later) in itertools.pairwise(made)
    ]
    truth = [
        gradient @ update / abs(own @ update)
        for (own, update), (gradient, _) in itertools.pairwise(made)
    ]
    rows = rows_of(step=np.arange(200), update_norm=norms, alignment=cosines, lr=rate)
    seen = alignment_after(rows, Group(fade=momentum))
    assert seen[2:] == pytest.approx(truth[1:], rel=1e-6)


def together(*rates, worked=()):
    failed = [fold(RateState(), diverging(ratio=5 * r, lr=r), ADAM_ONLY) for r in rates]
    fine = [fold(RateState(), course(falling(300), lr=rate), ADAM_ONLY) for rate in worked]
    return advise_together([contribution(state) for state in (*failed, *fine)])


def contribution(state):
    return ForSeveralRuns(state, "Adam", advise(state), fails=False)


ADAM_ONLY = Setup(groups=(Group(adaptive=True),))


def test_several_runs_of_one_model_give_one_advice_between_what_worked_and_what_failed():
    advice = together(0.1, worked=[0.03])
    assert advice.action.value == "lower"
    assert 0.03 <= advice.recommended < 0.1
    assert advice.low == pytest.approx(0.03)
    assert 0.09 < advice.high < 0.1
    assert advice.because.startswith("2 runs together: 0.1 failed, 0.03 worked.")
    assert "what has worked" in advice.because


def test_a_warm_up_among_several_runs_bounds_them_by_what_it_had_reached():
    rate = 0.1 * (np.arange(120) + 1) / 300
    rows = diverging(ratio=0.02, lr=rate, base=0.1, collapse=True)
    one = fold(RateState(), rows, ADAM)
    other = fold(RateState(), diverging(ratio=0.5, lr=0.4), ADAM_ONLY)
    at = judge_rate(one).onset.row
    advice = advise_together([contribution(other), contribution(one)])
    assert advice.low < advice.high < rate[at]
    assert advice.recommended < rate[at]


def test_several_failed_runs_are_told_from_the_lowest_of_them():
    advice = together(0.4, 0.1, 1.6)
    assert advice.current == 0.1
    assert advice.recommended < 0.1
    assert "3 runs together: 0.1 failed." in advice.because


def test_where_no_run_failed_by_its_rate_the_last_one_speaks():
    assert together(worked=[0.1, 0.03]).current == 0.03


@pytest.mark.parametrize("blocks", [1, 7, 64, 500, 4096])
def test_the_state_is_the_same_however_the_rows_were_batched(blocks):
    rows = late(count=10_000, bad=1_000)
    whole, state = fold(RateState(), rows), RateState()
    for begin in range(0, len(rows), blocks):
        state = fold(state, rows.part(begin, begin + blocks))
    for name in ("head", "tail", "pending"):
        np.testing.assert_array_equal(getattr(state, name).values, getattr(whole, name).values)
    np.testing.assert_array_equal(state.cells.sums.values, whole.cells.sums.values)
    assert (state.rows, state.accepted, state.cells.sums.width) == (10_000, 10_000, 2)


def test_the_state_does_not_grow_with_the_run():
    short, long = (fold(RateState(), course(np.ones(n))) for n in (20_000, 300_000))
    assert size(long) <= size(short) + 16 * 17 * 8


def size(state):
    parts = (state.head, state.tail, state.pending)
    return sum(part.values.nbytes for part in (*parts, state.cells.sums, state.cells.known))


def test_whatever_the_numbers_there_is_an_answer():
    rng = np.random.default_rng(0)
    odd = np.array([np.nan, np.inf, -np.inf, 0.0, 1e-320, -1.0, 1e300, 1.0])
    for _ in range(200):
        count = int(rng.integers(0, 120))
        rows = rows_of(**{name: rng.choice(odd, count) for name in NAMES})
        assert look(rows).action.value in {"lower", "keep", "unknown", "not-the-cause", "raise"}


def leaping(count, *, first=7.9, last=17.9, update=6.2):
    """A short record whose loss leaps to and fro too much for a band, and stands high at its end.

    Of the weights, the first update changes one layer's by more than they are.
    """
    loss = last * np.resize([0.2, 1.8, 1.0], count)
    loss[0] = first
    ratio = np.where(np.arange(count) == 0, 1.2, 0.05)
    rows = course(loss, ratio=ratio, lr=0.5)
    return with_columns(rows, max_ratio=np.where(np.arange(count) == 0, update, 0.1))


@pytest.mark.parametrize("count", [24, 51, 79])
def test_a_loss_that_doubled_after_an_update_beyond_the_weights_needs_no_long_record(count):
    advice = look(leaping(count), ADAM)
    assert advice.action.value == "lower"
    assert "the loss is twice its first value" in advice.because
    assert "largest layer's update / weights of about 6.2 near step 0" in advice.because


@pytest.mark.parametrize(("count", "last"), [(17, 3e4), (12, 40.0)])
def test_the_higher_the_loss_has_leapt_the_shorter_a_record_tells(count, last):
    assert look(leaping(count, last=last), ADAM).action.value == "lower"


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (leaping(51, update=0.2), "the loss is twice its first value, and 51 steps do not"),
        (leaping(40, last=9.0), "the update of step 0 was 6.2 times as large as its weights"),
        (leaping(14), "In 14 steps the loss has not come down, and the update of step 0 was 6.2"),
    ],
)
def test_one_such_fact_leaves_the_rate_of_a_short_record_open(rows, told):
    rows = with_columns(rows, update_norm=0.01 * rows.of("param_norm"))
    advice = look(rows, ADAM)
    assert advice.action.value == "unknown"
    assert told in advice.because


def test_a_record_without_progress_keeps_its_rate_only_where_its_updates_are_seen_small():
    rows = course(np.full(30, 2.3), noise=0.1)
    advice = look(rows, ADAM)
    assert advice.action.value == "keep"
    assert advice.because.endswith("but in 30 steps the loss has not come down.")
    assert advice.confidence == 0.5
    assert action(with_columns(rows, max_ratio=0.5), ADAM) == "unknown"
    for count in (30, 400):
        rows = course(np.full(count, 2.3), noise=0.1)
        assert action(with_columns(rows, max_ratio=np.nan, update_norm=np.nan), ADAM) == "unknown"


def test_a_short_record_whose_loss_has_come_down_keeps_the_rate():
    rows = course(falling(40), noise=0.1)
    rows = with_columns(rows, max_ratio=np.full(40, 3.0))
    assert look(rows, ADAM).because == "The log shows no problem with this learning rate."


def test_two_optimizers_of_which_one_update_left_nothing_are_told_to_lower():
    """Their losses alternate, so that no course of them tells; the updates do."""
    count = np.arange(120)
    loss = np.where(count % 2 == 0, 0.9, 3.0)
    ratio = np.where(count < 4, 98.0, 0.3)
    rows = course(loss, noise=0.05, ratio=ratio, lr=10.0)
    both = Setup(groups=(Group(base=10.0, adaptive=False),), several_optimizers=True)
    advice = look(rows, both)
    assert advice.action.value == "lower"


def test_losses_of_two_optimizers_are_no_descent_when_taken_together():
    """One stands at 100, the other at 0: of an odd number of rows the median is either."""
    count = np.arange(250)
    loss = np.where(count == 0, 1.4, np.where(count % 2 == 1, 1e-3, 100.0))
    ratio = np.where(count < 2, 500.0, 0.0)
    both = Setup(groups=(Group(base=10.0, adaptive=False),), several_optimizers=True)
    advice = look(course(loss, noise=0.0, ratio=ratio, lr=10.0), both)
    assert advice.action.value == "lower"
    assert "larger than the weights that it changed" in advice.because
    assert action(course(loss, noise=0.05), both) == "keep"


def test_a_run_that_goes_on_from_a_checkpoint_may_not_climb_from_where_it_began():
    resumed = Setup(groups=(Group(base=0.1, adaptive=True),), resumed=True)
    loss = np.concatenate([np.full(5, 0.8), np.linspace(1.5, 4.0, 155)])
    assert action(course(loss, noise=0.03, ratio=0.4, lr=0.1), resumed) == "lower"
    assert action(course(loss, noise=0.03, lr=0.1), resumed) != "lower"  # its updates are small
    assert action(course(np.full(160, 0.8), noise=0.03, ratio=0.4, lr=0.1), resumed) == "keep"


def test_the_table_says_how_likely_the_rate_is_and_what_each_sign_adds():
    seen = judge_rate(fold(RateState(), diverging(ratio=0.5), ADAM)).attribution
    assert seen.cause.value == "the learning rate"
    assert seen.chance > 0.9
    groups = [row.group for row in seen.table]
    assert len(groups) == len(set(groups))  # of a group the strongest alone
    assert any("is too much): +" in str(row) for row in seen.table)
    assert f"{100 * min(seen.chance, 0.99):.0f} % likely" in seen.told


def test_what_is_not_recorded_has_no_row_in_the_table():
    rows = with_columns(diverging(ratio=0.5), max_ratio=np.nan, input_amax=np.nan)
    seen = judge_rate(fold(RateState(), rows, ADAM)).attribution
    assert not {"largest layer's update / weights", "input maximum"} & {
        row.entry.name for row in seen.table
    }


def test_every_sign_has_a_name_of_its_own():
    assert len({entry.name for entry in TABLE}) == len(TABLE)


def test_matrices_born_at_zero_are_no_update_beyond_the_weights():
    rows = course(np.full(30, 2.3), noise=0.1, ratio=1e-3)
    rows = with_columns(rows, max_ratio=np.full(30, 50.0))
    assert action(rows, ADAM) == "keep"


def test_losing_the_last_steps_never_makes_a_healthy_run_look_ill():
    rows = course(falling(1200, 10, 2), noise=0.05)
    for end in range(2, 1200, 13):
        assert action(rows.part(0, end)) == "keep"


def test_gradients_and_activations_that_follow_the_input_are_the_datas():
    growth = np.concatenate([np.ones(60), np.geomspace(1.0, 300.0, 60)])
    loss = np.concatenate([falling(60, 2.3, 1.2), np.linspace(1.3, 9.0, 60)])
    rows = {"grad": growth, "act_amax": 5.0 * growth, "ratio": 1e-3 * growth}
    assert action(course(loss, **rows)) == "lower"
    advice = look(course(loss, **rows, input_amax=3.0 * growth))
    assert advice.action.value == "not-the-cause"
    assert "input maximum" in advice.because


def test_a_summed_loss_that_leaps_with_the_batch_and_then_falls_is_no_trouble():
    larger = np.arange(160) >= 80
    loss = falling(160, 60.0, 20.0) * np.where(larger, 100.0, 1.0)
    ratio = np.where(larger, 0.03, 0.006)
    rows = course(loss, ratio=ratio, grad=np.where(larger, 1400.0, 17.0))
    assert action(rows) == "lower"
    assert action(rows, Setup(larger_batches=(80,))) == "keep"


@pytest.mark.parametrize("seed", range(3))
def test_an_operation_that_overflows_in_a_calm_run_is_not_the_rates_doing(seed):
    """A loss that hardly moves may stand above its first value and its best: that is its noise."""
    loss = np.full(101, 4.6)
    loss[0], loss[97:100], loss[100] = 4.49, 4.75, np.nan
    ratio, lr = np.geomspace(1e-2, 4e-4, 101), np.geomspace(3e-4, 2e-5, 101)
    rows = course(loss, noise=0.05, seed=seed, ratio=ratio, lr=lr, base=3e-4)
    bad, seen = np.arange(101) == 100, np.arange(101) % 10 == 0
    rows = with_columns(rows, forward_bad=bad, act_amax=np.where(seen, 2.8, np.nan))
    stopped = dataclasses.replace(ADAM, stopped=True)
    assert look(rows, stopped).action.value == "not-the-cause"
