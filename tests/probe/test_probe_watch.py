"""How long a watch lives, and what it leaves when it ends."""

from __future__ import annotations

import copy
import gc
import io
import os
import threading
import time
import weakref

import children
import pytest
import torch
from torch import nn
from torch.optim.optimizer import _global_optimizer_pre_hooks

import ampwatch
from ampwatch.errors import AmpwatchWarning

LOOP = """
import sys, torch, ampwatch
def train(steps):
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    ampwatch.attach(scaler, model, log_dir=sys.argv[1], run="r")
    for _ in range(steps):
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(3, 4)).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
    return model, optimizer, scaler
"""


def parts():
    model = nn.Linear(4, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu")


def step(model, optimizer, scaler):
    optimizer.zero_grad()
    scaler.scale(model(torch.ones(3, 4)).square().mean()).backward()
    scaler.step(optimizer)
    scaler.update()


def no_courier_is_left():
    return not any(thread.name == "ampwatch-courier" for thread in threading.enumerate())


def wait_until(condition):
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert condition()


@pytest.mark.parametrize("end", ["kept = train(30)", "train(30)"])
def test_a_watch_that_nobody_keeps_loses_nothing(tmp_path, end):
    script = f"{LOOP}\n{end}\n"
    assert children.run("-c", script, tmp_path, env=os.environ).returncode == 0
    run = ampwatch.open_run(tmp_path / "r")
    assert run.steps["step"].to_pylist() == list(range(30))
    assert run.clean_end


def test_a_model_that_the_user_lets_go_is_freed_and_its_run_complete(tmp_path):
    model, optimizer, scaler = parts()
    folder = ampwatch.attach(scaler, model, log_dir=tmp_path, run="r").run_folder
    for _ in range(12):
        step(model, optimizer, scaler)
    gone = weakref.ref(model)
    del model, optimizer, scaler
    gc.collect()
    wait_until(lambda: gc.collect() >= 0 and gone() is None)
    wait_until(no_courier_is_left)
    run = ampwatch.open_run(folder)
    assert run.steps.num_rows == 12
    assert run.clean_end


def test_close_gives_everything_back(tmp_path):
    model, optimizer, scaler = parts()
    hooks_before = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    watch = ampwatch.attach(scaler, model, log_dir=tmp_path)
    step(model, optimizer, scaler)
    watch.close()
    watch.close()
    assert type(scaler) is torch.amp.GradScaler
    assert [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()] == (
        hooks_before
    )
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    assert not _global_optimizer_pre_hooks
    assert no_courier_is_left()
    step(model, optimizer, scaler)
    assert ampwatch.open_run(watch.run_folder).steps.num_rows == 1


def test_close_leaves_a_class_that_somebody_else_has_put_on_the_scaler(tmp_path):
    model, optimizer, scaler = parts()
    watch = ampwatch.attach(scaler, model, log_dir=tmp_path)

    class Theirs(type(scaler)):
        pass

    scaler.__class__ = Theirs
    watch.close()
    assert type(scaler) is Theirs
    step(model, optimizer, scaler)


def test_a_subclass_keeps_its_type_and_its_own_methods(tmp_path):
    class Mine(torch.amp.GradScaler):
        updates = 0

        def update(self, new_scale=None):
            self.updates += 1
            super().update(new_scale)

    model, optimizer, _ = parts()
    scaler = Mine("cpu")
    with ampwatch.attach(scaler, model, log_dir=tmp_path) as watch:
        assert isinstance(scaler, Mine)
        step(model, optimizer, scaler)
    assert type(scaler) is Mine
    assert scaler.updates == 1
    assert ampwatch.open_run(watch.run_folder).steps.num_rows == 1


def test_a_watched_model_is_copied_and_saved_without_the_watch(tmp_path):
    model, optimizer, scaler = parts()
    with ampwatch.attach(scaler, model, log_dir=tmp_path) as watch:
        step(model, optimizer, scaler)
        twin = copy.deepcopy(model)
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=False)
        for other in (twin, loaded):
            other(torch.ones(1, 4)).sum().backward()
        step(model, optimizer, scaler)
    assert ampwatch.open_run(watch.run_folder).steps.num_rows == 2


def test_logging_after_close_is_ignored_with_a_sentence(tmp_path):
    model, _, scaler = parts()
    watch = ampwatch.attach(scaler, model, log_dir=tmp_path)
    watch.close()
    with pytest.warns(AmpwatchWarning, match="attach again"):
        watch.log(loss=1.0)


def test_a_failure_of_ours_is_said_once_and_training_goes_on(tmp_path, monkeypatch):
    monkeypatch.setenv("AMPWATCH_STRICT", "0")
    model, optimizer, scaler = parts()
    watch = ampwatch.attach(scaler, model, log_dir=tmp_path)
    monkeypatch.setattr(watch.loop.turns, "before_step", lambda optimizer: 1 / 0)
    with pytest.warns(AmpwatchWarning, match="ZeroDivisionError"):
        step(model, optimizer, scaler)
    for _ in range(4):
        step(model, optimizer, scaler)  # a second warning would be an error in this suite
    assert scaler._growth_tracker.item() == 5
    watch.close()


def test_a_warning_filter_that_raises_does_not_end_training(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("AMPWATCH_STRICT", "0")
    model, optimizer, scaler = parts()
    watch = ampwatch.attach(scaler, model, log_dir=tmp_path)
    monkeypatch.setattr(watch.loop.turns, "before_step", lambda optimizer: 1 / 0)
    step(model, optimizer, scaler)  # warnings are errors in this suite
    assert "ZeroDivisionError" in capsys.readouterr().err
    watch.close()


def test_two_watches_in_one_process_have_a_run_each(tmp_path):
    first, second = parts(), parts()
    with (
        ampwatch.attach(first[2], first[0], log_dir=tmp_path, run="a") as a,
        ampwatch.attach(second[2], second[0], log_dir=tmp_path, run="b") as b,
    ):
        for _ in range(3):
            step(*first)
        step(*second)
    runs = [ampwatch.open_run(watch.run_folder) for watch in (a, b)]
    assert [run.steps.num_rows for run in runs] == [3, 1]
    assert runs[0].info.id != runs[1].info.id


def test_a_resumed_run_goes_on_in_the_same_folder(tmp_path):
    for start in (0, 5):
        model, optimizer, scaler = parts()
        settings = {"run": "r", "start_step": start, "resume": start > 0}
        with ampwatch.attach(scaler, model, log_dir=tmp_path, **settings) as watch:
            for _ in range(5):
                step(model, optimizer, scaler)
    run = ampwatch.open_run(watch.run_folder)
    assert run.steps["step"].to_pylist() == list(range(10))
    assert run.events["kind"].to_pylist().count("started") == 2


def test_a_watch_let_go_just_before_the_end_is_still_written(tmp_path):
    script = f"{LOOP}\nimport gc\nparts = train(30)\ndel parts\ngc.collect()\n"
    for name in "abc":
        folder = tmp_path / name
        assert children.run("-c", script, folder, env=os.environ).returncode == 0
        run = ampwatch.open_run(folder / "r")
        assert run.steps.num_rows == 30
        assert run.clean_end


def test_two_watches_whose_scalers_step_one_optimizer_both_give_their_scaler_back(tmp_path):
    model, optimizer, first = parts()
    second = torch.amp.GradScaler("cpu")
    watches = [
        ampwatch.attach(scaler, watched, log_dir=tmp_path)
        for scaler, watched in ((first, model), (second, None))
    ]
    for _ in range(3):
        step(model, optimizer, first)
        step(model, optimizer, second)
    for watch in watches:
        watch.close()
    assert type(first) is type(second) is torch.amp.GradScaler
    assert [ampwatch.open_run(watch.run_folder).steps.num_rows for watch in watches] == [3, 3]
