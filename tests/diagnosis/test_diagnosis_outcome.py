"""The outcome of a record, and what always holds between outcome, verdict and advice."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hand_built import HandBuiltRun, Info, extra_table, scaled_run, step_table
from hypothesis import given, settings
from hypothesis import strategies as st

from ampwatch.diagnosis import Action, Severity, Verdict, diagnose
from ampwatch.diagnosis.findings import State
from ampwatch.diagnosis.verdict import _named_by_cause

NAN = math.nan


def logged(loss, **columns):
    """A text log's record: the loss of each line, and what else is given."""
    run = HandBuiltRun(step_table(loss=list(loss), **columns))
    run.info = Info(source="generic")
    return run


def state_of(run):
    return diagnose(run).outcome.state


def fell(count=120, noise=0.02, seed=0):
    random = np.random.default_rng(seed)
    return 2 + 3 * np.exp(-np.arange(count) / 20) + noise * random.standard_normal(count)


def test_a_loss_that_falls_is_learning_and_two_lines_are_too_little():
    assert state_of(logged(fell())) is State.LEARNING
    assert state_of(logged([3.0, 2.0])) is State.TOO_LITTLE
    assert diagnose(logged([3.0, 2.0])).verdict is Verdict.INCOMPLETE


def test_a_loss_that_leaps_above_where_it_began_fails_though_no_rule_knows_why():
    loss = fell()
    loss[80:] = 9.0
    told = diagnose(logged(loss, lr=[1e-3] * len(loss)))
    assert told.verdict is Verdict.FAILING
    assert told.outcome.state is State.WORSE
    assert told.outcome.since_step == 80
    assert told.learning_rate.action not in {Action.KEEP, Action.RAISE}


def test_a_loss_that_rose_from_its_first_step_on_sends_nobody_to_what_changed_there():
    """The sum that it is grows, as with a queue that is never trimmed."""
    count = np.arange(400)
    loss = 3.7 + np.log1p(count) * 0.72 + 0.03 * np.random.default_rng(0).standard_normal(400)
    told = diagnose(logged(loss, grad_norm=np.geomspace(4.0, 0.5, 400).tolist()))
    assert told.verdict is Verdict.WARNING
    assert (told.headline.code, told.headline.first_step) == ("AMP307", 0)
    assert told.headline.action.startswith("Check what the loss is made of")


def test_gradients_that_stayed_make_it_another_level_and_never_healthy():
    loss = fell()
    loss[80:] += 2.0
    told = diagnose(logged(loss, grad_norm=[1.0] * len(loss)))
    assert told.outcome.state is State.ANOTHER_LEVEL
    assert told.verdict is Verdict.WARNING


def test_a_restart_of_the_schedule_explains_a_rise_below_where_the_loss_began():
    loss = fell(200)
    loss[150:] += np.linspace(1.5, 1.0, 50)
    lr = [
        *np.geomspace(1e-3, 1e-4, 75),
        *np.geomspace(1e-3, 1e-4, 75),
        *np.geomspace(1e-3, 4e-4, 50),
    ]
    assert state_of(logged(loss, lr=lr)) is State.LEARNING
    assert state_of(logged(loss, lr=[1e-4] * 200)) is not State.LEARNING


def test_a_schedule_that_was_lost_is_told_with_the_learning_rate_before():
    loss = fell(200)
    loss[150:] += np.linspace(1.5, 1.0, 50)
    lr = [*np.geomspace(1e-3, 1e-4, 150), *[1e-3] * 50]
    told = diagnose(logged(loss, lr=lr))
    assert told.outcome.state is State.RATE_LEAPT
    assert (told.verdict, told.headline.code) == (Verdict.WARNING, "AMP306")
    advice = told.learning_rate
    assert (advice.action, advice.current) == (Action.LOWER, 1e-3)
    assert 1e-4 <= advice.recommended <= 1.3e-4


def cosine(turns, count=600):
    """A learning rate that comes down and goes up again, so many times each."""
    return 1e-6 + 1e-3 * (1 + np.cos(np.pi * np.linspace(0, turns, count))) / 2


def follows(lr, seed=0):
    """A loss that falls, and is higher where the learning rate is."""
    random = np.random.default_rng(seed)
    fall = 3 * np.exp(-np.arange(len(lr)) / len(lr) * 12)
    return 1.5 + fall + 500 * lr + 0.02 * random.standard_normal(len(lr))


@pytest.mark.parametrize("acc", [None, [*np.linspace(0.1, 0.7, 15), *np.linspace(0.7, 0.62, 15)]])
def test_a_schedule_that_climbs_back_at_its_end_is_told_and_not_the_learning_rate(acc):
    lr = cosine(2)
    run = logged(follows(lr), lr=lr.tolist())
    if acc is not None:  # a score that is still near its best is no excuse
        run.extras = extra_table({"acc": {20 * at: value for at, value in enumerate(acc)}})
    told = diagnose(run)
    assert told.outcome.state is State.RATE_CLIMBS
    assert (told.verdict, told.headline.code) == (Verdict.WARNING, "AMP306")
    assert abs(told.headline.first_step - 300) <= 10
    assert told.learning_rate.action is Action.NOT_THE_CAUSE
    assert "period" in told.headline.action


@pytest.mark.parametrize("turns", [1, 1.2, 3, 4, 5, 6])
def test_a_schedule_that_came_down_again_or_goes_up_and_down_is_no_trouble(turns):
    lr = cosine(turns)
    told = diagnose(logged(follows(lr), lr=lr.tolist()))
    assert told.outcome.state is not State.RATE_CLIMBS
    assert told.verdict is Verdict.HEALTHY


@pytest.mark.parametrize(("loss", "state"), [
    ([2.0, 1.5, 1.2, NAN, NAN], State.NOT_FINITE),
    ([NAN], State.NOT_FINITE),
    ([2.0, 1.5, NAN, 1.2, 1.1], State.LEARNING),
])  # fmt: skip
def test_a_loss_that_ended_not_finite_is_and_one_that_came_back_is_not(loss, state):
    assert state_of(logged(loss)) is state


def test_a_search_is_no_end_of_all_steps_and_fifty_skips_in_a_row_are():
    assert state_of(scaled_run([True] * 12)) is not State.NO_STEPS
    ended = [2.0 - n / 200 for n in range(150)]
    told = diagnose(scaled_run([False] * 100 + [True] * 50, loss=ended))
    assert told.outcome.state is State.NO_STEPS
    assert told.verdict is Verdict.FAILING


def test_gradients_of_zero_in_a_table_are_no_rounding():
    loss = fell(400).tolist()
    norm = [0.5] * 100 + [0.0] * 300
    run = logged(loss, grad_norm=norm)
    run.info = Info(source="csv")
    assert state_of(run) is State.NOTHING_LEARNS


def test_a_scale_that_fell_and_holds_while_the_loss_falls_costs_and_does_not_fail():
    loss = list(np.linspace(3.0, 1.0, 300))
    run = scaled_run([False] * 100 + [True] * 12 + [False] * 188, loss=loss)
    told = diagnose(run)
    assert told.outcome.is_good
    assert told.verdict is Verdict.WARNING


@pytest.mark.parametrize(("loss", "state"), [
    ([2.41, *[2.303, 2.304, 2.302, 2.303] * 4], State.STANDS_STILL),
    ([2.41, *np.linspace(2.3, 2.2, 16)], State.LEARNING),
    ([2.303] * 5, State.FLAT),
])  # fmt: skip
def test_a_loss_that_is_the_same_from_the_first_line_on_is_no_progress(loss, state):
    assert state_of(logged(loss)) is state


def test_a_loss_that_is_the_same_late_in_a_training_may_have_converged():
    late = logged([2.303, 2.304, 2.302, 2.303] * 4, step=list(range(50_000, 51_600, 100)))
    assert state_of(late) is State.FLAT


def test_gradients_that_rose_for_long_before_the_loss_did_point_to_the_learning_rate():
    loss, norm = fell(200), np.ones(200)
    norm[80:] = np.geomspace(1, 20, 120)
    loss[150:] = 9.0
    lr = [1e-3] * 200
    told = diagnose(logged(loss, grad_norm=norm.tolist(), lr=lr)).learning_rate
    assert told.action is Action.LOWER
    assert 0 < told.recommended < 1e-3
    norm[80:150], norm[150:] = 1.0, 20.0  # at once: the data may have changed
    assert not diagnose(logged(loss, grad_norm=norm.tolist(), lr=lr)).outcome.sign


def relapsed(level, *, falls=0.0, seed=0):
    """Forty lines of a loss that is learnt, leaps to this level and stands or falls again."""
    random = np.random.default_rng(seed)
    learnt = 0.1 + 2.2 * np.exp(-np.arange(16) / 3)
    after = level - falls * (1 - np.exp(-np.arange(24) / 5))
    return np.concatenate([learnt, after]) * (1 + 0.01 * random.standard_normal(40))


@pytest.mark.parametrize("seed", range(5))
def test_a_loss_that_leaps_to_where_it_began_and_is_never_learnt_again_asks_for_a_lower_rate(seed):
    def of(loss, **columns):
        return diagnose(logged(loss, lr=[1e-2] * 40, **columns))

    told = of(relapsed(2.3, seed=seed))
    assert told.verdict is Verdict.FAILING
    assert told.learning_rate.action is Action.LOWER
    assert "where it had begun" in told.learning_rate.because
    (cause,) = told.causes
    assert cause.probability == 0.6
    others = (
        of(relapsed(0.6, seed=seed)),  # other data lift it elsewhere
        of(relapsed(9.0, seed=seed)),
        of(relapsed(2.3, falls=1.5, seed=seed)),  # they are learnt
        of(relapsed(2.3, seed=seed), grad_norm=[1.0] * 40),  # or the gradients stayed
    )
    assert all(one.learning_rate.action is not Action.LOWER for one in others)


@pytest.mark.parametrize("beside", [None, "AMP302", "AMP301"])
def test_what_comes_and_goes_beside_a_named_cause_does_not_change_its_name(beside):
    told = diagnose(logged(relapsed(2.3), lr=[1e-2] * 40))
    head = replace(told.findings[0], code="AMP307", severity=Severity.ERROR)
    rest = [replace(head, code=beside, severity=Severity.WARNING)] if beside else []
    named = list(_named_by_cause([head, *rest], told.learning_rate, told.outcome))
    assert (named[0].code, named[0].severity) == ("AMP301", Severity.ERROR)
    assert {one.because_of for one in named[1:]} <= {"AMP301"}
    assert len({one.code for one in named}) == len(named)


def test_a_loss_that_grew_from_line_to_line_until_it_was_nan_ran_away_and_a_leap_did_not():
    climb = [*fell(40, noise=0.3), 14.0, 60.0, 210.0, 1900.0, *[NAN] * 6]
    leap = [*fell(40, noise=0.3), 1.9, 2.1, 2.0, 1900.0, *[NAN] * 6]
    for loss, action in ((climb, Action.LOWER), (leap, Action.UNKNOWN)):
        told = diagnose(logged(loss, lr=[1e-3] * 50))
        assert told.verdict is Verdict.FAILING
        assert told.learning_rate.action is action


def test_numbers_that_are_lost_while_the_loss_is_at_its_best_are_not_the_rates_doing():
    loss = [*fell(200), *[NAN] * 40]
    columns = {"grad_norm": [1.0] * 200 + [NAN] * 40, "lr": [1e-3] * 240}
    told = diagnose(logged(loss, **columns))
    assert told.outcome.came_at_once
    assert told.learning_rate.action is not Action.LOWER
    assert not [one for one in told.findings if one.code in {"AMP301", "AMP302"}]


@pytest.mark.parametrize(("loss", "verdict"), [
    ([1.26, 1.31, math.inf, 1.25], Verdict.WARNING),
    ([1.26, 1.31, 1.25, math.inf], Verdict.FAILING),
    ([1.26, math.inf, NAN, 1.25], Verdict.FAILING),
])  # fmt: skip
def test_one_inf_among_a_few_lines_that_end_finite_is_no_failure(loss, verdict):
    assert diagnose(logged(loss)).verdict is verdict


def test_a_schedule_that_ended_long_before_the_training_is_told():
    lr = [1e-3 * 0.5 ** (n // 10) for n in range(400)]
    loss = 2 + np.exp(-np.arange(400) / 20) + 0.02 * np.random.default_rng(0).standard_normal(400)
    [told] = [one for one in diagnose(logged(loss, lr=lr)).findings if one.code == "AMP308"]
    assert told.severity is Severity.WARNING
    assert "scheduler.step() is called in each step" in told.cause
    assert "never rose" not in told.name.replace("-", " ")  # the label of its lane on the chart
    assert f"to 7.81e-06 at step 70, and is {lr[-1]:.3g} at step 399." in told.summary
    assert diagnose(logged(loss, lr=lr)).learning_rate.current in {None, lr[-1]}
    cosine = [5e-4 * (1 + math.cos(math.pi * n / 399)) for n in range(400)]
    codes = {one.code for one in diagnose(logged(loss, lr=cosine)).findings}
    assert "AMP308" not in codes


def test_the_outcome_stands_in_the_json():
    body = diagnose(logged(fell())).to_json()["outcome"]
    assert set(body) == {"state", "since_step", "rests_on", "words"}
    assert body["state"] == "learning"
    assert body["rests_on"] == ["loss"]


# --- what always holds ----------------------------------------------------------------------------

LOSSES = st.one_of(st.floats(0.01, 100.0), st.just(NAN), st.just(math.inf))


@st.composite
def records(draw):
    count = draw(st.integers(1, 80))
    loss = draw(st.lists(LOSSES, min_size=count, max_size=count))
    if draw(st.booleans()):  # a course, and a change in it
        at = draw(st.integers(0, count))
        loss = fell(count, seed=draw(st.integers(0, 9)))
        loss[at:] *= draw(st.sampled_from([1.0, 1.3, 5.0, 1e4, NAN]))
    columns = {}
    if draw(st.booleans()):
        columns["grad_norm"] = draw(
            st.lists(st.sampled_from([0.0, 0.5, 1.0, 40.0, NAN]), min_size=count, max_size=count)
        )
    if draw(st.booleans()):
        columns["lr"] = [draw(st.sampled_from([1e-4, 0.1]))] * count
    if draw(st.booleans()):
        skipped = draw(st.lists(st.booleans(), min_size=count, max_size=count))
        return scaled_run(skipped, loss=list(loss))
    run = logged(loss, **columns)
    run.info = Info(source=draw(st.sampled_from(["generic", "csv", "ampwatch", "hf-trainer"])))
    return run


@settings(max_examples=150, deadline=None)
@given(records())
def test_a_bad_outcome_is_never_healthy_and_never_keeps_its_learning_rate(run):
    told = diagnose(run)
    if told.outcome.severity is Severity.ERROR:
        assert told.verdict is Verdict.FAILING
    if told.outcome.severity is Severity.WARNING:
        assert told.verdict in {Verdict.FAILING, Verdict.WARNING, Verdict.INCOMPLETE}
    if told.outcome.severity is not Severity.INFO:
        assert told.learning_rate.action not in {Action.KEEP, Action.RAISE}


@settings(max_examples=150, deadline=None)
@given(records())
def test_a_loss_at_its_best_with_its_steps_taken_fails_by_no_symptom(run):
    told = diagnose(run)
    symptoms = {"AMP103", "AMP105", "AMP301", "AMP302", "AMP307"}
    if told.outcome.is_good:
        assert not [
            finding for finding in told.findings
            if finding.code in symptoms and finding.severity is Severity.ERROR
        ]  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(records())
def test_whatever_is_told_as_wrong_names_what_anyone_can_see(run):
    for finding in diagnose(run).findings:
        if finding.severity is not Severity.INFO:
            assert finding.summary
            assert finding.evidence or finding.first_step is not None


def test_a_warm_up_that_broke_down_on_its_way_failed_at_what_it_had_reached():
    chance, count, broke = np.random.default_rng(0), 1500, 374
    lr = np.r_[np.linspace(1e-4, 0.5, 1000), np.linspace(0.5, 0.4, 500)]
    loss, norm = np.array(fell(count)), np.ones(count)
    loss[broke:] = 9 + 0.3 * chance.random(count - broke)
    norm[broke // 2 : broke] = np.geomspace(1, 20, broke - broke // 2)
    norm[broke:] = 20 * np.exp(chance.normal(0, 0.5, count - broke))
    told = diagnose(logged(loss, grad_norm=norm.tolist(), lr=lr.tolist())).learning_rate
    assert (told.action, told.current) == (Action.LOWER, 0.5)
    assert told.recommended == pytest.approx(lr[broke] / 4, rel=0.05)
    assert told.factor == pytest.approx(told.recommended / 0.5)


def test_a_leap_of_the_learning_rate_after_which_the_loss_is_lost_is_failing():
    loss = fell(200)
    loss[120:] += 4.0
    told = diagnose(logged(loss, lr=[*np.geomspace(1e-3, 1e-5, 120), *[2e-3] * 80]))
    assert told.outcome.state is State.LOST_BY_LEAP
    assert (told.verdict, told.headline.code) == (Verdict.FAILING, "AMP306")
    assert (told.learning_rate.action, told.learning_rate.current) == (Action.LOWER, 2e-3)


def hump(count=600, *, top=0.4, end=0.35, noise=0.1, seed=0):
    """A loss that rises to ten times its first, to the top, and comes down to a share of that."""
    at, random = np.arange(count) / count, np.random.default_rng(seed)
    level = np.where(at < top, 0.1 + 0.9 * at / top, 1.0 - (1.0 - end) * (at - top) / (1.0 - top))
    return level * np.exp(noise * random.standard_normal(count))


def test_a_loss_that_rose_slowly_and_came_most_of_the_way_back_by_itself_is_no_trouble():
    for seed in range(5):
        loss = hump(seed=seed)
        assert diagnose(logged(loss, grad_norm=10 * loss)).verdict is Verdict.HEALTHY
        high = hump(end=0.8, seed=seed)
        assert diagnose(logged(high, grad_norm=10 * high)).verdict is not Verdict.HEALTHY
    lowered = np.geomspace(1e-2, 1e-4, 600)  # it came down as the learning rate did
    assert diagnose(logged(loss, grad_norm=10 * loss, lr=lowered)).verdict is not Verdict.HEALTHY


def test_noise_about_a_new_level_seldom_looks_like_a_loss_that_is_coming_back():
    back = 0
    for seed in range(100):
        random = np.random.default_rng(seed)
        level = 0.2 + 0.8 * np.clip(np.arange(400) / 150, 0, 1)
        loss = level * np.exp(0.2 * random.standard_normal(400))
        back += state_of(logged(loss, grad_norm=loss)) is State.FLAT
    assert back <= 5


def filled(seed, *, falls=2.5, norm=0.5):
    """A loss that begins where the task is easy, rises threefold, and falls or stands after."""
    random, at = np.random.default_rng(seed), np.arange(1500)
    rose = 2.7 + 5.8 * (1 - np.exp(-at / 60)) - falls * (1 - np.exp(-np.maximum(at - 120, 0) / 500))
    norms = norm + (0.9 - norm) * np.exp(-at / 50) + 0.03 * random.standard_normal(1500)
    return logged(rose + 0.06 * random.standard_normal(1500), grad_norm=norms.tolist())


def test_a_task_that_grows_harder_at_first_is_no_trouble_while_the_loss_falls_since():
    for seed in range(5):
        assert diagnose(filled(seed)).verdict is Verdict.HEALTHY
        assert diagnose(filled(seed, falls=0.0)).verdict is not Verdict.HEALTHY
        assert diagnose(filled(seed, norm=3.0)).verdict is not Verdict.HEALTHY


def test_a_loss_that_begins_at_nothing_is_no_measure_of_its_rise():
    random, at = np.random.default_rng(0), np.arange(600)
    copied = np.where(at % 60 < 20, 0.01, 0.15)  # as of a target network that is renewed
    loss = np.where(at < 100, 1e-4, copied) * np.exp(0.4 * random.standard_normal(600))
    norm = np.where(at < 100, 0.01, 0.3) * np.exp(0.3 * random.standard_normal(600))
    rows = step_table(
        loss=loss.tolist(), grad_norm=norm.tolist(), update_norm=(norm / 2).tolist(),
        param_norm=[7.0] * 600, lr=[5e-4] * 600,
        skipped=[False] * 600, optimizer=[0] * 600,
    )  # fmt: skip
    told = diagnose(HandBuiltRun(rows, info=Info(scaler={})))
    assert told.verdict is not Verdict.FAILING
    assert told.learning_rate.action is not Action.LOWER


def test_a_text_whose_gradients_are_zero_and_whose_loss_never_moves_fails_after_twenty_lines():
    run = logged([0.6931] * 40, grad_norm=[0.0] * 40, lr=[1e-5] * 40)
    run.info = Info(source="csv")
    assert diagnose(run).verdict is Verdict.FAILING


def of_two(times, count=1200):
    """A critic and an actor in turns; the critic's loss grows so many times, as its norm does."""
    random, at = np.random.default_rng(0), np.arange(count)
    critic = 0.5 * times ** (at / count) * np.exp(0.3 * random.standard_normal(count))
    turns = np.stack([critic, -0.1 * np.sqrt(critic)], axis=1).ravel()
    rows = step_table(
        step=list(range(2 * count)), loss=turns.tolist(), grad_norm=np.abs(turns).tolist(),
        lr=[2e-3] * 2 * count, skipped=[False] * 2 * count, optimizer=[0, 1] * count,
    )  # fmt: skip
    return HandBuiltRun(rows, info=Info(scaler={}))


def test_a_critics_loss_may_grow_with_its_values_and_not_a_millionfold():
    assert diagnose(of_two(1e3)).outcome.state is State.FLAT
    outcome = diagnose(of_two(1e12)).outcome
    assert (outcome.state, outcome.sign) == (State.WORSE, None)
