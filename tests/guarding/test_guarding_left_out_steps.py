"""An outlying step is left out as if its batch had not been drawn."""

import math

import pytest
import torch
from guarded_training import OPTIMIZERS, DecaysAlways, Training, same

BAD = {80, 91}


@pytest.mark.parametrize(("closure", "bad"), [(False, (80, 91)), (True, (24, 33))])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_weights_and_state_are_those_of_a_training_that_never_drew_the_batch(
    tmp_path, name, closure, bad
):
    steps = bad[-1] + 5
    guarded = Training(name).attach(tmp_path, dry_run=False)
    guarded.steps(steps, bad, closure=closure)
    never = Training(name).steps(steps, leave_out=bad, closure=closure)
    taken = Training(name).steps(steps, bad, closure=closure)
    assert same(guarded.state(), never.state())
    assert not same(guarded.state(), taken.state())
    _, told = guarded.close()
    assert [(step, one["decided"], one.get("done")) for step, one in told] == [
        (0, "begin", None), *((step, "leave-out", True) for step in bad),
    ]  # fmt: skip
    seen = told[1][1]["seen"]
    assert seen["grad_norm"] > seen["limit"] > seen["usual"] > 0


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_gradients_that_are_not_finite_are_left_out_from_the_first_step_on(tmp_path, name):
    guarded = Training(name).attach(tmp_path, dry_run=False)
    guarded.steps(12, {0, 7}, factor=math.nan)
    assert same(guarded.state(), Training(name).steps(12, leave_out={0, 7}).state())
    _, told = guarded.close()
    assert [step for step, one in told if one["decided"] == "leave-out"] == [0, 7]


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_healthy_training_is_not_touched(tmp_path, dry_run):
    guarded = Training().attach(tmp_path, dry_run=dry_run, stop=True).steps(160)
    assert same(guarded.state(), Training().steps(160).state())
    assert [one["decided"] for _, one in guarded.close()[1]] == ["begin"]


def test_a_dry_run_tells_and_changes_nothing(tmp_path):
    asked = []
    guarded = Training().attach(tmp_path, on_action=asked.append).steps(100, BAD)
    assert same(guarded.state(), Training().steps(100, BAD).state())
    told = [(step, one) for step, one in guarded.close()[1] if one["decided"] == "leave-out"]
    assert [(step, one["done"]) for step, one in told] == [(80, False), (91, False)]
    assert "dry run" in told[0][1]["told"]
    assert asked == []


def test_no_more_steps_than_the_cap_allows_are_left_out_and_that_is_said(tmp_path):
    bad = set(range(80, 120, 4))
    guarded = Training().attach(tmp_path, dry_run=False, most=(2, 1000))
    guarded.steps(130, bad)
    assert same(guarded.state(), Training().steps(130, bad, leave_out={80, 84}).state())
    _, told = guarded.close()
    passed = [one for _, one in told if one.get("why") == "capped"]
    assert [one["let_pass"] for one in passed][:2] == [1, 2]
    assert all(one["done"] is False for one in passed)


def test_the_cap_gives_way_again_after_its_steps(tmp_path):
    guarded = Training().attach(tmp_path, dry_run=False, most=(1, 30))
    guarded.steps(130, {80, 85, 115})
    left = Training().steps(130, {85}, leave_out={80, 115})
    assert same(guarded.state(), left.state())
    guarded.close()


def test_the_users_callback_may_forbid_it_and_one_that_fails_allows_nothing(tmp_path):
    asked = []

    def no(proposed):
        asked.append((proposed.action, proposed.step))
        if len(asked) == 1:
            return False
        raise OSError("no")

    guarded = Training().attach(tmp_path, dry_run=False, on_action=no)
    with pytest.warns(UserWarning, match="on_action raised OSError"):
        guarded.steps(100, BAD)
    assert same(guarded.state(), Training().steps(100, BAD).state())
    assert asked == [("leave-out", 80), ("leave-out", 91)]
    assert [one["why"] for _, one in guarded.close()[1][1:]] == ["vetoed", "vetoed"]


def test_only_gradients_that_are_not_finite_where_that_is_asked_for(tmp_path):
    guarded = Training().attach(tmp_path, skip="non-finite", dry_run=False).steps(100, BAD)
    assert same(guarded.state(), Training().steps(100, BAD).state())
    guarded.close()


def test_an_optimizer_that_moves_without_gradients_is_found_out_and_let_be(tmp_path):
    def make(parameters):
        return DecaysAlways(parameters, 0.05)

    guarded = Training(make).attach(tmp_path, dry_run=False).steps(100, BAD)
    _, told = guarded.close()
    assert [step for step, one in told if one["decided"] == "leave-out"] == [80]
    assert "moves weights" in told[-1][1]["told"]


def test_an_optimizer_that_evaluates_several_times_in_a_step_is_found_out_too(tmp_path):
    def make(parameters):
        return torch.optim.LBFGS(parameters, lr=0.05, max_iter=3)

    guarded = Training(make).attach(tmp_path, dry_run=False).steps(100, BAD, closure=True)
    _, told = guarded.close()
    assert "is not guarded any more" in told[-1][1]["told"]


def test_the_gradients_are_there_again_after_the_step(tmp_path):
    guarded = Training().attach(tmp_path, dry_run=False).steps(80)
    guarded.one(torch.randn(16, 6), 1e4, closure=False)
    assert all(p.grad is not None for p in guarded.model.parameters())
    assert [step for step, _ in guarded.close()[1]] == [0, 80]


def test_outliers_at_the_very_start_are_taken_and_do_not_raise_the_limit(tmp_path):
    guarded = Training().attach(tmp_path, dry_run=False).steps(100, {5, 12, 20, 90})
    assert same(guarded.state(), Training().steps(100, {5, 12}, leave_out={20, 90}).state())
    guarded.close()


def test_a_scaler_keeps_its_skips_and_the_guard_takes_the_finite_outliers(tmp_path):
    def scaler():
        return torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1000)

    guarded = Training(scaler=scaler()).attach(tmp_path, dry_run=False)
    guarded.steps(80).steps(1, {0}, factor=math.inf).steps(20, {10})
    other = Training(scaler=scaler())
    other.steps(80).steps(1, {0}, factor=math.inf).steps(20, leave_out={10})
    assert same(guarded.state(), other.state())
    run, told = guarded.close()
    assert [step for step, one in told if one["decided"] == "leave-out"] == [91]
    skipped = run.steps.column("skipped").to_pylist()
    assert [step for step, one in enumerate(skipped) if one] == [80]
