"""A training that is stopped leaves a plan; and what `guard` refuses."""

import json
import logging
import math
import os

import pytest
import torch
from guarded_training import Training, guard_events, same

import ampwatch
from ampwatch.errors import GuardError


@pytest.mark.slow_starts
def test_a_training_that_goes_on_being_outlying_is_stopped_with_a_plan(tmp_path):
    guarded = Training().attach(tmp_path, dry_run=False, stop=True, most=(2, 1000))
    with pytest.raises(KeyboardInterrupt):
        guarded.steps(200, {80, 84, 88, 92})
    assert guarded.guard.stopped
    assert same(guarded.state(), Training().steps(88, leave_out={80, 84}).state())
    run, events = guarded.close()
    assert [(step, one["decided"]) for step, one in events][1:] == [
        (80, "leave-out"), (84, "leave-out"), (88, "stop"),
    ]  # fmt: skip
    plan = json.loads((run.path / "plan.json").read_text("utf-8"))
    assert (plan["action"], guarded.guard.exit_code) == ("stop", 11)
    assert "The guard stopped the training at step 88" in plan["because"]


@pytest.mark.slow_starts
def test_it_is_stopped_by_the_trainings_own_function_where_there_is_one(tmp_path):
    guarded = Training().attach(tmp_path, dry_run=False, stop=True, most=(1, 1000))
    ended = []
    guarded.guard.on_stop(lambda: ended.append(len(guarded.losses)))
    guarded.steps(100, {80, 84, 88})
    assert ended == [85]
    guarded.close()


def test_a_dry_run_stops_nothing_and_says_that_it_would(tmp_path):
    guarded = Training().attach(tmp_path, stop=True, most=(1, 1000)).steps(100, {80, 84, 88})
    assert same(guarded.state(), Training().steps(100, {80, 84, 88}).state())
    _, events = guarded.close()
    stops = [one for _, one in events if one["decided"] == "stop"]
    assert [one["done"] for one in stops] == [False]
    assert "would be stopped" in stops[0]["told"]


def test_each_action_is_a_line_in_the_programs_log(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "ampwatch.guard"):
        Training().attach(tmp_path, dry_run=False).steps(90, {80}).close()
    assert [record.name for record in caplog.records] == ["ampwatch.guard"]
    assert caplog.messages[0].startswith("step 80: The gradient norm was")


def test_the_report_says_what_was_done(tmp_path):
    run, _ = Training().attach(tmp_path, dry_run=False).steps(120, {80, 90}).close()
    found = {one.code: one for one in ampwatch.diagnose(run).findings}
    assert found["AMP904"].summary == "The guard left out 2 steps."
    assert "AMP212" not in found
    assert "AMP211" not in found


def test_steps_that_are_not_finite_and_left_out_poison_nothing_in_the_report(tmp_path):
    guarded = Training().attach(tmp_path, dry_run=False).steps(120, {80}, factor=math.nan)
    run, _ = guarded.close()
    found = {one.code: one.severity.value for one in ampwatch.diagnose(run).findings}
    assert "AMP211" not in found
    assert "AMP207" not in found
    assert found["AMP904"] == "info"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"skip": "everything"}, "skip is 'everything'"),
        ({"most": (0, 10)}, "most is"),
        ({"most": 3}, "most is"),
        ({"on_action": "stop"}, "on_action is not a function"),
    ],
)
def test_wrong_arguments_are_refused_with_a_sentence(tmp_path, options, words):
    guarded = Training().attach(tmp_path)
    with pytest.raises(GuardError, match=words):
        ampwatch.guard(guarded.watch, **options)
    guarded.close()


def test_what_is_no_watch_or_has_no_model_is_refused(tmp_path):
    with pytest.raises(GuardError, match=r"what ampwatch\.attach returned"):
        ampwatch.guard(object())
    scaler = torch.amp.GradScaler("cpu")
    watch = ampwatch.attach(scaler, None, log_dir=tmp_path, endpoint="off")
    with pytest.raises(GuardError, match=r"give ampwatch\.attach the model"):
        ampwatch.guard(watch)
    watch.close()


def test_where_nothing_is_watched_nothing_is_guarded(monkeypatch, tmp_path):
    monkeypatch.setitem(os.environ, "AMPWATCH", "0")
    guarded = Training().attach(tmp_path, dry_run=False)
    guarded.guard.on_stop(lambda: None)
    assert guarded.guard.exit_code == 0
    assert same(guarded.steps(90, {80}).state(), Training().steps(90, {80}).state())


def test_a_second_guard_is_the_first_one(tmp_path):
    guarded = Training().attach(tmp_path, dry_run=False)
    with pytest.warns(UserWarning, match="has a guard already"):
        assert ampwatch.guard(guarded.watch) is guarded.guard
    guarded.close()


def test_after_close_nothing_of_the_guard_is_left(tmp_path):
    guarded = Training().attach(tmp_path, dry_run=False).steps(80)
    hooks = guarded.optimizer._optimizer_step_post_hooks
    assert hooks
    run, _ = guarded.close()
    assert not hooks
    guarded.watch = None
    before = guarded.state()
    guarded.steps(1, {0})
    assert not same(before, guarded.state())
    assert len(guard_events(run)) == 1
