"""What metrics beside the loss say: overfitting, a goal that is lost, an adversary, a reason."""

from __future__ import annotations

import numpy as np
import pytest
from hand_built import HandBuiltRun, Info, event_table, extra_table, step_table

from ampwatch.diagnosis import Action, Verdict, diagnose
from ampwatch.diagnosis.engine import Engine
from ampwatch.diagnosis.findings import State


def falling(count=300, seed=0, low=0.1):
    random = np.random.default_rng(seed)
    return low + 2 * np.exp(-np.arange(count) / (count / 6)) + 0.01 * random.standard_normal(count)


def logged(loss, metrics, **columns):
    """A text log's record with metrics, each a list that ends with the record."""
    last = len(loss) - 1
    every = {
        name: {round(at * last / (len(told) - 1)): value for at, value in enumerate(told)}
        for name, told in metrics.items()
    }
    run = HandBuiltRun(step_table(loss=list(loss), **columns), extras=extra_table(every))
    run.info = Info(source="generic")
    return run


def codes(told):
    return {f.code: f.severity.value for f in told.findings if f.severity.value != "info"}


def test_a_validation_loss_that_rises_while_training_falls_is_overfitting():
    val = [*np.linspace(2.0, 0.8, 10), *np.linspace(0.8, 2.4, 30)]
    told = diagnose(logged(falling(), {"val_loss": val}))
    assert told.outcome.state is State.OVERFITS
    assert told.verdict is Verdict.WARNING
    assert codes(told) == {"AMP310": "warning"}
    assert told.learning_rate.action in {Action.KEEP, Action.NOT_THE_CAUSE}
    assert "0.8" in told.outcome.words
    assert "val_loss" in told.outcome.words


def test_validation_losses_that_level_off_are_healthy_however_they_wander():
    for seed in range(60):
        random = np.random.default_rng(seed)
        noise = np.cumsum(random.standard_normal(40)) * 0.004 + 0.02 * random.standard_normal(40)
        val = 0.6 + 1.5 * np.exp(-np.arange(40) / 5) + noise
        told = diagnose(logged(falling(seed=seed), {"val_loss": val}))
        assert told.verdict is Verdict.HEALTHY, seed


def turned(count, rise, noise, seed):
    """A validation loss that comes down, and climbs by this share in the last two thirds."""
    random, at = np.random.default_rng(seed), np.arange(count) / count
    level = (0.6 + 0.8 * np.exp(-at / 0.08)) * (1 + rise * np.clip((at - 0.35) / 0.55, 0, 1))
    return level * np.exp(noise * random.standard_normal(count))


@pytest.mark.parametrize(
    ("count", "rise", "least", "most"),
    [
        (12, 0.0, 0, 0), (40, 0.0, 0, 0), (200, 0.0, 0, 0),
        (12, 0.1, 0, 1), (40, 0.1, 0, 5), (200, 0.1, 0, 5),  # a tenth is no overfitting
        (12, 0.5, 18, 20), (20, 0.3, 18, 20), (40, 0.2, 16, 20), (200, 0.2, 16, 20),
    ],
)  # fmt: skip
def test_how_often_a_rising_validation_loss_is_told(count, rise, least, most):
    told = 0
    for seed in range(20):
        val = turned(count, rise, 0.02, seed)
        told += "AMP310" in codes(diagnose(logged(falling(seed=seed), {"val_loss": val})))
    assert least <= told <= most


def test_a_reward_that_is_lost_for_good_fails_and_one_that_just_fell_is_a_warning():
    loss = 0.02 * np.random.default_rng(0).standard_normal(300)
    won = [*np.linspace(0, 300, 100), *(300 + 10 * np.random.default_rng(1).standard_normal(80))]
    lost = [*won, *np.linspace(250, 20, 5), *([20.0, 25.0] * 60)]
    told = diagnose(logged(loss, {"ep_rew_mean": lost}))
    assert told.outcome.state is State.GOAL_LOST
    assert told.verdict is Verdict.FAILING
    assert told.learning_rate.action is Action.UNKNOWN
    just = [*won, *np.linspace(250, 20, 5), *([20.0, 25.0] * 20)]
    told = diagnose(logged(loss, {"ep_rew_mean": just}))
    assert (told.outcome.state, told.verdict) == (State.GOAL_FALLS, Verdict.WARNING)


def test_a_reward_of_noise_or_one_that_wanders_is_never_a_goal_that_was_lost():
    bad = 0
    for seed in range(200):
        random = np.random.default_rng(seed)
        made = [
            random.standard_normal(150),
            random.standard_t(1.5, 150),
            np.convolve(random.standard_normal(160), np.ones(10) / 10, "valid"),
        ][seed % 3]
        told = diagnose(logged(falling(seed=seed), {"reward": 5 + made}))
        assert told.verdict is not Verdict.FAILING, seed
        bad += told.verdict is not Verdict.HEALTHY
    assert bad <= 2


def test_a_discriminator_that_is_always_right_has_won_and_a_balance_is_none():
    part = np.random.default_rng(3).standard_normal(300)
    d, g = 0.6 + 0.03 * part, 1.5 + 0.1 * part
    assert diagnose(logged(g, {"loss_D": d})).verdict is Verdict.HEALTHY
    d[120:], g[120:] = 1e-4, np.linspace(3, 25, 180)
    told = diagnose(logged(g, {"loss_D": d}))
    assert told.outcome.state is State.ADVERSARY_WON
    assert codes(told)["AMP312"] == "error"
    d[250] = 0.6  # a batch that it tells apart less well is no return
    assert abs(diagnose(logged(g, {"loss_D": d})).outcome.since_step - 120) <= 2


@pytest.mark.parametrize("name", ["seq_len", "horizon", "num_frames"])
def test_what_grows_with_the_size_of_its_task_is_no_trouble(name):
    size = np.repeat([4, 8, 16], 100)
    loss = size / 4 * (0.5 + np.tile(0.4 * np.exp(-np.arange(100) / 20), 3))
    loss = loss * (1 + 0.02 * np.random.default_rng(0).standard_normal(300))
    told = diagnose(logged(loss, {name: size}))
    assert told.verdict is Verdict.HEALTHY
    assert told.learning_rate.action is Action.KEEP
    assert diagnose(logged(loss, {})).verdict is not Verdict.HEALTHY


def test_a_loss_that_grows_with_its_reward_is_no_trouble():
    loss = 1e-3 + np.linspace(0, 0.005, 200) ** 1.2
    reward = np.linspace(0.3, 1.1, 200) + 0.02 * np.random.default_rng(0).standard_normal(200)
    assert diagnose(logged(loss, {"reward": reward})).verdict is Verdict.HEALTHY


def test_it_does_not_depend_on_how_the_rows_were_cut():
    val = [*np.linspace(2.0, 0.8, 10), *np.linspace(0.8, 2.4, 30)]
    acc = np.linspace(0, 1, 3000)
    run = logged(falling(3000), {"val_loss": val, "acc": acc})
    small = Engine(block_rows=64, settled_rows=64).feed(run).diagnosis().to_json()
    assert small == diagnose(run).to_json()


def test_no_rate_is_raised_beside_an_adversary_however_short_the_steps():
    columns = {"update_alignment": 0.99, "update_norm": 0.01, "lr": 1e-3, "lr_base": 1e-3}
    loss = falling(500, low=2.0) / 20 + 2.0
    adam = (0, "optimizer", {"optimizer": 0, "class": "Adam", "groups": [{"betas": [0.9, 0.99]}]})
    for metrics, actions in (
        ({"val_loss": [2.1, 2.05, 2.0]}, {Action.RAISE}),
        ({"d_loss": [0.7, 0.68, 0.7]}, {Action.KEEP, Action.UNKNOWN}),
    ):
        run = logged(loss, metrics, **{name: [value] * 500 for name, value in columns.items()})
        run.events = event_table([adam])
        told = diagnose(run)
        assert told.learning_rate.action in actions, told.learning_rate
        assert ("AMP305" in {f.code for f in told.findings}) == (Action.RAISE in actions)


@pytest.mark.parametrize(
    ("wer", "expected"),
    [([1.0] * 8, {"AMP313": "warning"}), ([*np.linspace(1.0, 0.4, 8)], {}), ([0.999, 1.0], {})],
)
def test_a_share_of_errors_that_stays_at_one_is_no_learning(wer, expected):
    told = diagnose(logged(falling(low=0.5), {"eval_wer": wer}))
    assert codes(told) == expected


def test_a_reward_below_that_of_the_untrained_policy_ever_since_is_lost():
    random = np.random.default_rng(0)
    at_once = [13.7, 15.6, 11.3, *(9.35 + 0.1 * random.standard_normal(347))]
    learns = [13.7, 15.6, 11.3, *(9.3 + 30 * np.linspace(0, 1, 347) ** 3)]
    harder = 20 - 7 * np.linspace(0, 1, 350) + random.standard_normal(350)  # tasks, slowly
    noise = 10 + 3 * random.standard_normal(350)
    for reward, is_lost in ((at_once, True), (learns, False), (harder, False), (noise, False)):
        told = diagnose(logged(falling(), {"episode_return": reward}))
        assert (told.outcome.state is State.GOAL_LOST) == is_lost


def test_a_reward_that_has_just_been_won_and_falls_at_once_below_all_it_was_is_lost():
    won = [40.0, 110.0, 165.0, 190.0, 215.0, 225.0]
    lost = [*won, -12.0, -60.0, -66.0, -68.0, -65.0, -75.0, -60.0]
    back = [*won, -12.0, 150.0, 210.0, 230.0, 225.0, 235.0, 228.0]
    slow = [*won, *np.linspace(200.0, -60.0, 7).tolist()]  # as an exploration that is raised
    for reward, is_lost in ((lost, True), (back, False), (slow, False)):
        told = diagnose(logged(falling(), {"ep_rew_mean": reward}))
        assert (told.outcome.state is State.GOAL_LOST) == is_lost


def test_a_reward_of_few_values_that_stood_and_is_gone_fails_and_a_lucky_one_does_not():
    loss = 0.02 * np.random.default_rng(0).standard_normal(90)
    won = [31.0, 214.0, 702.0, 1330.0, 1810.0, 1140.0]
    lost = diagnose(logged(loss, {"ep_rew_mean": [*won, 62.0, 14.0, 13.0]}))
    assert (lost.verdict, codes(lost)) == (Verdict.FAILING, {"AMP311": "error"})
    for seed in range(200):
        lucky = np.random.default_rng(seed).exponential(10, 8 + seed % 4)
        lucky[4] *= 1 + seed % 30
        told = diagnose(logged(loss, {"ep_rew_mean": lucky}))
        assert "AMP311" not in codes(told), seed


def test_a_loss_that_hardly_falls_is_learning_if_its_score_grows():
    random = np.random.default_rng(0)
    loss = 0.4465 + 0.016 * np.exp(-np.arange(61) / 4) + 0.002 * random.standard_normal(61)
    steps = [1000 * n for n in range(1, 62)]
    auc = 0.808 - 0.012 * np.exp(-np.arange(15) / 5) + 0.0002 * random.standard_normal(15)
    scores = {"val_auc": dict(zip(steps[::4], auc.tolist(), strict=False))}
    for told, expected in (({}, {"AMP309": "warning"}), (scores, {})):
        rows = step_table(step=steps, loss=list(loss), lr=[1e-3] * 61)
        run = HandBuiltRun(rows, extras=extra_table(told))
        run.info = Info(source="generic")
        assert codes(diagnose(run)) == expected


def adversaries(won=None, *, generator=1.0, noise=0.15, level=0.69, seed=0):
    """Losses of a discriminator, and of its generator; from an entry on it may have won."""
    random = np.random.default_rng(seed)
    loss = level * np.exp(noise * random.standard_normal(60))
    adversarial = generator * np.exp(noise * random.standard_normal(60))
    if won is not None:
        loss[won:] *= 1e-4
        adversarial[won:] = generator * 9
    return {"d_loss": loss, "adv_loss": adversarial}


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        (adversaries(), {}),
        (adversaries(won=40), {"AMP312": "error"}),
        (adversaries(won=4), {"AMP312": "error"}),  # in the first fifth
        ({"d_loss": adversaries(won=4)["d_loss"]}, {}),  # no generator's loss rose with it
        (adversaries(noise=1e-3), {"AMP309": "warning"}),  # it guesses: ln 2
        (adversaries(noise=1e-3, level=2.0), {"AMP309": "warning"}),  # of a hinge
        (adversaries(noise=1e-3) | {"val_score": 1 - np.exp(-np.arange(1, 13) / 4)}, {}),
    ],
)
def test_a_discriminator_is_judged_by_what_a_guess_costs_and_by_what_else_is_recorded(
    metrics, expected
):
    told = diagnose(logged(falling(), metrics))
    assert codes(told) == expected
    assert (told.verdict is Verdict.HEALTHY) == (not expected)


def test_no_balance_of_adversaries_is_a_guess_or_won_however_noisy():
    for seed in range(40):
        noise = np.random.default_rng(seed).uniform(0.03, 0.6)
        metrics = adversaries(noise=noise, level=(0.25, 0.7, 1.4, 2.0)[seed % 4], seed=seed)
        assert codes(diagnose(logged(falling(seed=seed), metrics))) == {}


@pytest.mark.parametrize(
    ("metrics", "is_told"),
    [
        ({}, True),
        ({"val_auc": [0.742, 0.751, 0.755, 0.757, 0.758, 0.7588, 0.7593, 0.7594, 0.761]}, False),
        ({"val_loss": [0.139, 0.137, 0.136, 0.1358, 0.1355, 0.1354, 0.1353, 0.1352]}, False),
        ({"val_loss": [0.139, 0.1385, 0.138, 0.1375, 0.137, 0.1364, 0.136, 0.1355]}, True),  # slow
        ({"val_auc": [0.502, 0.497, 0.505, 0.499, 0.501, 0.508, 0.498, 0.503, 0.506]}, True),
        ({"val_loss": [0.694, 0.693, 0.694, 0.693, 0.692, 0.693, 0.693, 0.692]}, True),
    ],
)
def test_a_loss_that_hardly_falls_is_nearly_learnt_if_a_metric_gets_ever_better_by_less(
    metrics, is_told
):
    loss = [0.141, *(0.1358 + 0.0035 * np.exp(-np.arange(11) / 4))]
    told = diagnose(logged(loss, metrics, step=list(range(0, 48_000, 4000))))
    assert ("AMP309" in codes(told)) == is_told


def test_a_loss_that_is_printed_too_coarsely_to_show_a_fall_is_not_told_to_stand():
    for loss, is_told in (([0.14] * 12, False), ([0.6931] * 12, True), ([2.3] * 12, True)):
        told = diagnose(logged(loss, {}, step=list(range(0, 12_000, 1000))))
        assert ("AMP309" in codes(told)) == is_told


@pytest.mark.parametrize(
    ("proxy", "measured", "expected"),
    [
        (9.0, 0.29, {"AMP311": "error"}),  # the proxy rises, what it stands for is lost
        (9.0, 0.66, {}),
        (0.0, 0.29, {}),  # a figure that wanders, and nothing beside it
    ],
)
def test_a_proxy_that_rises_while_what_it_stands_for_is_lost_is_told(proxy, measured, expected):
    random, at = np.random.default_rng(0), np.linspace(0, 1, 40)
    rose = 0.49 + 0.17 * np.minimum(at / 0.45, 1) - (0.66 - measured) * np.maximum(at - 0.5, 0) * 2
    metrics = {
        "reward": proxy * np.sqrt(np.linspace(0, 1, 300)) + 0.2 * random.standard_normal(300),
        "eval_win_rate": rose + 0.012 * random.standard_normal(40),
        "kl": np.concatenate([np.linspace(0, 6, 120), np.linspace(6, 120, 180)]),
    }
    loss = 0.02 * random.standard_normal(300)
    told = diagnose(logged(loss, metrics, lr=[1e-6] * 300))
    assert codes(told) == expected
    assert told.learning_rate.action is not Action.LOWER
    if expected:
        assert told.outcome.words.endswith("while reward rose: it is a proxy of what is meant.")


def test_a_score_lost_behind_growing_gradients_asks_for_a_lower_learning_rate():
    count = 400
    at = np.arange(count) / count
    loss = 7 - 3.8 * np.minimum(at / 0.4, 1) + 2.8 * np.maximum(at - 0.45, 0) ** 1.2
    loss += 0.05 * np.random.default_rng(0).standard_normal(count)
    norm = 0.8 * np.exp(2.7 * np.maximum(at - 0.2, 0))
    top1 = [3, 11, 23, 34, 43, 47, 47, 45, 41, 36, 30, 24, 19, 14]
    told = diagnose(logged(loss, {"val/top1": top1}, grad_norm=list(norm), lr=[3e-3] * count))
    assert told.verdict is Verdict.FAILING
    assert told.learning_rate.action is Action.LOWER


def test_a_reward_lost_behind_ever_larger_steps_of_the_policy_asks_for_a_lower_learning_rate():
    loss = 0.02 * np.random.default_rng(0).standard_normal(300)
    random = np.random.default_rng(1)
    reward = [*np.linspace(60, 3000, 40), *(3000 + 90 * random.standard_normal(40)), *([70.0] * 40)]
    calm = 0.012 + 0.002 * random.standard_normal(120)
    leaps = calm * np.exp(5 * np.exp(-(((np.arange(120) - 80) / 4) ** 2)))
    for told, action in ((calm, Action.UNKNOWN), (leaps, Action.LOWER)):
        found = diagnose(logged(loss, {"ep_rew_mean": reward, "approx_kl": told}, lr=[3e-4] * 300))
        assert codes(found) == {"AMP311": "error"}
        assert found.learning_rate.action is action
    assert "approx_kl" in found.learning_rate.because
    (cause,) = found.causes
    assert "approx_kl" in str(cause)


def test_a_loss_that_grows_with_its_reward_is_no_trouble_in_few_lines_either():
    loss, steps = [8.0, 12.0, 17.0, 21.0, 24.0, 29.0, 33.0, 38.0, 41.0, 44.0], range(10)
    for reward, expected in (
        ([22.0, 30, 45, 66, 90, 130, 170, 160, 210, 262], set()),
        ([22.0, 20, 23, 21] * 2 + [22.0, 20], {"AMP307"}),
    ):  # fmt: skip
        rows = step_table(step=[2048 * n for n in steps], loss=loss)
        told = {"ep_rew_mean": {2048 * n: reward[n] for n in steps}}
        run = HandBuiltRun(rows, extras=extra_table(told))
        run.info = Info(source="generic")
        assert set(codes(diagnose(run))) == expected


def lost_reward(seed=1, first=60.0):
    """A reward that is won and lost again, its values a few steps apart; it falls at 80 of 120."""
    random = np.random.default_rng(seed)
    return [
        *np.linspace(first, 3000, 40), *(3000 + 90 * random.standard_normal(40)), *([70.0] * 40),
    ]  # fmt: skip


def test_single_large_values_of_a_noisy_size_say_nothing_of_why_a_reward_was_lost():
    loss, lowered = 0.02 * np.random.default_rng(0).standard_normal(300), 0
    for seed in range(40):
        random = np.random.default_rng(seed)
        told = 0.01 * np.abs(random.standard_t(3, 120))  # one in sixty is five times the usual
        found = diagnose(logged(loss, {"reward": lost_reward(seed), "ppo_kl": told}))
        assert found.outcome.state is State.GOAL_LOST
        lowered += found.learning_rate.action is not Action.UNKNOWN
    assert lowered <= 2


@pytest.mark.parametrize(("gap", "kl", "cause", "action"), [
    (False, False, None, Action.UNKNOWN),
    (False, True, "the learning rate", Action.LOWER),
    (True, False, "a difference between rollout and training", Action.UNKNOWN),
    # The policy's steps follow from the gap.
    (True, True, "a difference between rollout and training", Action.UNKNOWN),
])  # fmt: skip
def test_rollout_and_training_that_grow_apart_are_told_before_the_learning_rate(
    gap, kl, cause, action
):
    loss, random = 0.02 * np.random.default_rng(0).standard_normal(300), np.random.default_rng(2)
    leap = 30 * np.exp(-(((np.arange(120) - 80) / 6) ** 2))
    calm = 1 + 0.2 * random.standard_normal(120)
    metrics = {
        "critic/rewards/mean": lost_reward(),
        "training/rollout_probs_diff_mean": 3e-3 * (calm + gap * leap),
        "actor/ppo_kl": 2e-4 * (calm + kl * leap),
    }
    found = diagnose(logged(loss, metrics, lr=[1e-6] * 300))
    assert codes(found) == {"AMP311": "error"}
    assert found.learning_rate.action is action
    named = [one for one in found.causes if one.probability >= 0.6]
    assert [one.cause for one in named] == ([] if cause is None else [cause])
    if gap:
        assert "training/rollout_probs_diff_mean" in found.learning_rate.because


@pytest.mark.parametrize(("level", "named"), [(0.2, True), (0.02, False)])
def test_a_divergence_beyond_verls_limit_from_the_start_is_told_with_its_value_and_step(
    level, named
):
    """It leaps nowhere: only the limit of verl's own text tells it from a usual one."""
    loss = 0.02 * np.random.default_rng(0).standard_normal(300)
    metrics = {"critic/rewards/mean": lost_reward(), "rollout_corr/kl": [level] * 120}
    found = diagnose(logged(loss, metrics, lr=[1e-6] * 300))
    told = "rollout_corr/kl was 0.2 at step 5"
    assert (told in found.learning_rate.because) == named
    causes = [one.cause for one in found.causes if one.probability >= 0.6]
    assert causes == (["a difference between rollout and training"] if named else [])


@pytest.mark.parametrize(("name", "expected"), [
    ("critic/rewards/mean", {"AMP311": "error"}), ("val_recall", {}),
])  # fmt: skip
def test_a_reward_that_sinks_below_half_of_its_first_is_lost_and_a_recall_is_not(name, expected):
    random = np.random.default_rng(3)
    course = [*([1.0] * 60), *np.linspace(1.0, 0.3, 6), *([0.3] * 54)]
    values = np.array(course) + 0.03 * random.standard_normal(120)
    assert codes(diagnose(logged(falling(), {name: values}))) == expected


def test_a_reward_that_wanders_seldom_counts_as_sunk_and_one_that_dips_early_never():
    bad = 0
    for seed in range(200):
        random = np.random.default_rng(seed)
        at = np.arange(150) / 150
        walk = 5 + 0.1 * np.cumsum(random.standard_normal(150))
        dip = 20 - 11 * np.exp(-(((at - 0.15) / 0.1) ** 2)) + 200 * np.maximum(at - 0.4, 0)
        early = diagnose(logged(falling(seed=seed), {"reward": dip + random.standard_normal(150)}))
        assert early.verdict is Verdict.HEALTHY, seed
        told = diagnose(logged(falling(seed=seed), {"reward": walk}))
        bad += told.verdict is not Verdict.HEALTHY
    assert bad <= 6


@pytest.mark.parametrize(
    ("name", "level", "expected"),
    [("auc", 0.78, True), ("val_AUROC", 78.0, True), ("auc", 0.5, False), ("auc_pr", 0.78, False)],
)
def test_a_loss_that_hardly_falls_beside_a_score_above_a_guess_has_learnt(name, level, expected):
    """A click model's loss stands near the entropy of its base rate, warm start or not."""
    random = np.random.default_rng(3)
    loss = 0.27 + 0.004 * random.standard_normal(600)
    score = level + 0.003 * level * random.standard_normal(600)
    told = diagnose(logged(loss, {name: score}, lr=[5e-4] * 600))
    assert ("AMP309" not in codes(told)) is expected


def test_a_validation_loss_at_its_best_explains_harder_data_and_one_that_stands_does_not():
    loss = falling(300, low=2.0)
    loss[180:] += np.linspace(1.2, 1.0, 120)
    falls = 2.1 + 2 * np.exp(-np.arange(60) / 10) - 0.3 * np.arange(60) / 60
    stands = falls + 0.5 * (np.arange(60) > 36)
    told = diagnose(logged(loss, {"val_loss": falls}))
    assert told.outcome.is_explained
    assert told.verdict is Verdict.HEALTHY
    assert diagnose(logged(loss, {"val_loss": stands})).verdict is not Verdict.HEALTHY


@pytest.mark.parametrize("seed", range(3))
def test_a_score_that_rises_explains_a_loss_that_begins_low(seed):
    random, at = np.random.default_rng(seed), np.arange(1500)
    loss = 2.7 + 5.8 * (1 - np.exp(-at / 60)) - 2.5 * (1 - np.exp(-at / 500))
    loss += 0.06 * random.standard_normal(1500)
    norm = (0.4 + 0.4 * at / 1500).tolist()
    top1 = 50 * np.arange(100) / 100 + random.standard_normal(100)
    assert diagnose(logged(loss, {"top1": top1}, grad_norm=norm)).verdict is Verdict.HEALTHY
    assert diagnose(logged(loss, {}, grad_norm=norm)).verdict is not Verdict.HEALTHY


def test_errors_of_all_words_beside_a_loss_that_stands_are_no_progress():
    loss = 2.93 + 0.03 * np.random.default_rng(0).standard_normal(600)
    loss[:3] += 0.2
    told = diagnose(logged(loss, {"val_cer": [1.0] * 16}))
    assert told.outcome.state is State.STANDS_STILL
    assert told.verdict is Verdict.FAILING
    assert diagnose(logged(loss, {"val_cer": [1.0, *[0.9] * 15]})).verdict is not Verdict.FAILING


def test_a_short_reward_below_all_that_it_was_is_lost_though_it_is_negative():
    fell = [-229, -121, -85, -39, -42, -25, -24, -429, -516, -522, -527, -517, -540]
    loss = [12.7, 8.7, 5.3, 4.3, 3.7, 2.4, 31, 38, 54, 39, 36, 30, 29]
    told = diagnose(logged(loss, {"ep_rew_mean": fell}))
    assert told.outcome.state is State.GOAL_LOST
    assert told.verdict is Verdict.FAILING


def test_a_reward_that_wanders_hardly_ever_leaves_all_that_it_was():
    lost = 0
    for seed in range(200):
        random = np.random.default_rng(seed)
        reward = np.cumsum(random.standard_normal(24)) + random.standard_normal(24)
        told = diagnose(logged(falling(seed=seed), {"reward": reward}))
        lost += told.outcome.state is State.GOAL_LOST
    assert lost <= 4


def lifted(name, values, *, at=300, by=1.5):
    """A loss that rises for good at a step, beside a value that the loop logs."""
    loss = falling(600, low=0.5) + by * (np.arange(600) >= at)
    return diagnose(logged(loss, {name: values}))


def changed(told):
    return [f.summary for f in told.findings if f.code == "AMP306"]


@pytest.mark.parametrize("at", [300, 560])
@pytest.mark.parametrize(
    ("since", "moved"),
    [(lambda k: 4.0, "beta went from 0.1 to 4.0"), (lambda k: 0.1 + 0.01 * k, "beta left 0.1")],
)
def test_a_rise_that_follows_a_setting_of_the_loop_is_put_down_to_it(since, moved, at):
    told = lifted("beta", [0.1] * at + [since(k + 1) for k in range(600 - at)], at=at)
    assert changed(told) == [f"The trouble began when {moved}, at step {at}."]
    assert told.headline.code == "AMP306"
    assert told.learning_rate.action is Action.NOT_THE_CAUSE
    assert [cause.code for cause in told.causes] == ["AMP306"]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("beta", [0.1] * 600),
        ("beta", [0.1] * 200 + [4.0] * 400),  # long before
        ("beta", [0.1] * 303 + [4.0] * 297),  # after the loss had risen
        ("beta", [0.1 * (k // 30) for k in range(600)]),  # as often as not
        ("spread", [0.0] * 298 + list(np.random.default_rng(0).random(302))),  # measured
        ("lost_batches", [0] * 298 + list(range(302))),  # a count
        ("kl", [0.0] * 298 + [0.5] * 302),  # its name says that it is measured
        ("epoch", [0] * 298 + [1] * 302),
    ],
)
def test_no_rise_is_put_down_to_what_is_measured_or_changed_at_another_time(name, values):
    assert changed(lifted(name, values)) == []


def test_a_setting_that_changes_without_harm_is_no_finding():
    assert changed(lifted("beta", [0.1] * 300 + [4.0] * 300, by=0.0)) == []


def test_settings_do_not_depend_on_how_the_rows_were_cut():
    loss = falling(600, low=0.5) + 1.5 * (np.arange(600) >= 300)
    for at in range(298, 301):
        run = logged(loss, {"beta": [0.1] * at + [4.0] * (600 - at)})
        told = diagnose(run).to_json()
        for rows in (7, 100, 301):
            assert Engine(block_rows=rows, settled_rows=64).feed(run).diagnosis().to_json() == told
