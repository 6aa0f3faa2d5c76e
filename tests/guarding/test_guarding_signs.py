"""What gradient norms do not show: bad labels, inputs of another scale, a leap of the rate."""

import math

import pytest
from guarded_training import Classes, Training, guard_events, same

import ampwatch
from ampwatch.guarding.guard_settings import STANDING

BAD = {120, 131}


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("what", ["labels", "input", "rate"])
def test_such_a_step_is_left_out_and_its_sign_is_named(tmp_path, what, optimizer):
    guarded = Classes(what, optimizer).attach(tmp_path, dry_run=False).steps(140, BAD)
    assert same(guarded.state(), Classes(what, optimizer).steps(140, leave_out=BAD).state())
    told = [one for _, one in guarded.close()[1] if one["decided"] == "leave-out"]
    key, words = {
        "labels": ("loss", "The loss was"),
        "input": ("input", "The largest input was"),
        "rate": ("lr", "The learning rate was"),
    }[what]
    assert all(one["told"].startswith(words) for one in told)
    assert all(one["seen"][key] > one["seen"][f"{key}_limit"] for one in told)
    assert all(one["seen"]["grad_norm"] < one["seen"]["limit"] for one in told)


def test_a_rate_that_a_page_or_the_guard_itself_raises_is_no_leap(tmp_path):
    guarded = Classes().attach(tmp_path, dry_run=False).steps(60)
    (view,) = guarded.watch.loop.turns.views.values()
    view.multiply_rates(10.0)
    guarded.steps(20)
    assert [one["decided"] for _, one in guarded.close()[1]] == ["begin"]


def test_steps_that_are_not_finite_are_left_out_beyond_any_cap(tmp_path):
    bad = set(range(30, 60))
    guarded = Training().attach(tmp_path, dry_run=False, most=(1, 1000))
    guarded.steps(100, bad, factor=math.nan)
    assert same(guarded.state(), Training().steps(100, leave_out=bad).state())
    run, events = guarded.close()
    told = [one for _, one in events if one["decided"] == "leave-out"]
    assert len(told) == STANDING - 1 + 4  # of the others the first, second, fourth and eighth
    assert "the training stands still" in told[-1]["told"]
    found = {one.code: one for one in ampwatch.diagnose(run).findings}["AMP904"]
    assert found.severity.value == "error"


@pytest.mark.slow_starts
def test_where_they_have_become_the_rule_the_training_is_stopped_if_it_may_be(tmp_path):
    guarded = Training().attach(tmp_path, dry_run=False, stop=True)
    bad = set(range(0, 400, 3))
    with pytest.raises(KeyboardInterrupt):
        guarded.steps(400, bad, factor=math.inf)
    assert same(guarded.state(), Training().steps(46, leave_out=bad).state())
    run, events = guarded.close()
    assert (events[-1][0], events[-1][1]["decided"]) == (45, "stop")
    assert "as in 16 of the last 64 steps" in events[-1][1]["told"]
    assert run.path.joinpath("plan.json").exists()


def test_of_outlying_steps_in_a_row_three_are_left_out_and_the_next_are_a_new_level(tmp_path):
    bad = set(range(80, 86))
    guarded = Training().attach(tmp_path, dry_run=False).steps(100, bad)
    assert same(guarded.state(), Training().steps(100, bad, leave_out={80, 81, 82}).state())
    passed = [one for _, one in guarded.close()[1] if one.get("why") == "row"]
    assert "this may be a new level" in passed[0]["told"]


def test_a_loss_that_nobody_tells_is_a_sign_as_it_goes_backward(tmp_path):
    guarded, told = (
        Classes("labels").attach(tmp_path / name, dry_run=False) for name in ("found", "told")
    )
    watch, guarded.watch = guarded.watch, None
    guarded.steps(140, BAD)
    folder = watch.run_folder
    watch.close()
    told.steps(140, BAD)
    assert same(guarded.state(), told.state())
    assert len(guard_events(ampwatch.open_run(folder))) > 1


def test_a_loss_logged_after_its_step_is_no_sign_and_the_guard_says_what_to_do(tmp_path, recwarn):
    guarded = Classes("labels").attach(tmp_path, dry_run=False)
    watch, guarded.watch = guarded.watch, None
    for step in range(140):
        guarded.steps(1, bad={0} if step in BAD else ())
        watch.log(loss=2.0 if step not in BAD else 200.0)
    assert same(guarded.state(), Classes("labels").steps(140, BAD).state())
    folder = watch.run_folder
    watch.close()
    begun, late = [one for _, one in guard_events(ampwatch.open_run(folder))]
    assert (begun["decided"], late["why"]) == ("begin", "late-loss")
    assert "before optimizer.step()" in late["told"]
    assert "before optimizer.step()" in str(recwarn.pop().message)
