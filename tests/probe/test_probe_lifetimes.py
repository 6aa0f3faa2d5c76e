"""What the user lets go of dies, and what watched it ends: nothing piles up in a long process."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn, optim
from torch.optim.optimizer import _global_optimizer_pre_hooks

import ampwatch
from ampwatch.errors import AmpwatchWarning
from ampwatch.probe.hooks import remove_what_was_left

STEPS = 4
TRIALS = 4
MOST_DESCRIPTORS = 7  # of one watch
SAMPLE = torch.ones(3, 4)


@dataclass
class Training:
    """The parts of one training; without a scaler it is a plain one."""

    model: nn.Module
    optimizer: optim.Optimizer
    scaler: torch.amp.GradScaler | None

    def steps(self, count=STEPS):
        for _ in range(count):
            self.optimizer.zero_grad()
            loss = self.model(SAMPLE).square().mean()
            if self.scaler is None:
                loss.backward()
                self.optimizer.step()
            else:
                self.scaler.scale(loss).backward()
                self.scaler.step(self.optimizer)
                self.scaler.update()

    def attach(self, folder, name):
        optimizer = self.optimizer if self.scaler is None else None
        settings = {"log_dir": folder, "run": name, "endpoint": "off"}
        return ampwatch.attach(self.scaler, self.model, optimizer=optimizer, **settings)

    def references(self):
        parts = (self.model, self.optimizer, self.scaler, *self.model.parameters())
        return [weakref.ref(part) for part in parts if part is not None]


def net():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def training(model=None, scaler=None, *, scaled=True):
    model = net() if model is None else model
    if scaled and scaler is None:
        scaler = torch.amp.GradScaler("cpu")
    return Training(model, optim.SGD(model.parameters(), lr=0.1), scaler)


def collect(*_):
    gc.collect()


@pytest.fixture(autouse=True)
def _nothing_left_of_others():
    gc.collect()
    remove_what_was_left()


def held():
    """Threads, descriptors, and our hooks on all optimizers."""
    folder = Path("/proc/self/fd")
    descriptors = len(list(folder.iterdir())) if folder.exists() else 0
    return threading.active_count(), descriptors, len(_global_optimizer_pre_hooks)


def hooks_on(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def until(condition):
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert condition()


def assert_nothing_is_held(before):
    until(lambda: held()[:2] == before[:2])


def assert_complete(folder, names, steps=STEPS):
    for name in names:
        # A watch that ends by itself waits for nobody: its log is complete a moment later.
        until(lambda path=folder / name: ampwatch.open_run(path).clean_end)
        run = ampwatch.open_run(folder / name)
        assert run.steps.num_rows == steps, name
        assert run.clean_end, name


@pytest.mark.parametrize("scaled", [True, False])
def test_a_notebooks_cell_run_twenty_times_on_one_model_leaves_one_watch(tmp_path, scaled):
    before, model, hooks = held(), net(), []
    names = [f"cell-{number}" for number in range(20)]
    for name in names:  # the names of the cell's parts are bound anew, as in a notebook
        made = training(model, scaled=scaled)
        watch = made.attach(tmp_path, name)
        made.steps()
        hooks.append((hooks_on(model), len(_global_optimizer_pre_hooks)))
    assert len(set(hooks)) == 1
    until(lambda: threading.active_count() == before[0] + 1)
    assert held()[1] <= before[1] + MOST_DESCRIPTORS
    watch.close()
    assert hooks_on(model) == 0
    assert held() == before
    assert_complete(tmp_path, names)


@pytest.mark.parametrize("kind", ["own scalers", "one scaler", "no scaler"])
def test_a_sweep_of_trials_keeps_nothing_of_those_that_are_over(tmp_path, kind):
    before, gone = held(), []
    shared = torch.amp.GradScaler("cpu") if kind == "one scaler" else None
    names = [f"trial-{number}" for number in range(TRIALS)]
    for name in names:
        made = training(scaler=shared, scaled=kind != "no scaler")
        watch = made.attach(tmp_path, name)
        made.steps()
        gone += [ref for ref in made.references() if ref() is not shared]
        del made
        gc.collect()
        assert watch.closed
        assert_nothing_is_held(before)
        assert [ref() for ref in gone if ref() is not None] == []
    assert_complete(tmp_path, names)
    assert shared is None or type(shared) is torch.amp.GradScaler


def test_a_model_dies_with_its_last_name_though_watch_scaler_and_optimizer_live(tmp_path):
    made = training()
    watch = made.attach(tmp_path, "r")
    made.steps()
    gone, optimizer = weakref.ref(made.model), made.optimizer
    gc.disable()
    try:
        made.model = None
        assert gone() is None
        assert watch.closed
    finally:
        gc.enable()
    assert type(made.scaler) is torch.amp.GradScaler
    optimizer.step()  # its hooks are left to be removed, and do nothing
    until(lambda: ampwatch.open_run(tmp_path / "r").clean_end)
    assert_complete(tmp_path, ["r"])


def test_a_watch_ends_with_its_scaler_and_optimizers_though_the_model_lives(tmp_path):
    before, model = held(), net()
    made = training(model)
    watch = made.attach(tmp_path, "r")
    made.steps()
    made.scaler = None
    assert not watch.closed  # the loop may go on with another scaler
    del made
    assert watch.closed
    assert_nothing_is_held(before)
    model(SAMPLE)  # the hooks that are still there do nothing
    training(model).attach(tmp_path, "next").close()
    assert hooks_on(model) == 0
    assert held() == before
    assert_complete(tmp_path, ["r"])


def test_without_a_scaler_the_next_stages_optimizer_goes_on_with_the_run(tmp_path):
    made = training(scaled=False)
    watch = made.attach(tmp_path, "r")
    made.steps()
    made.optimizer = optim.Adam(made.model.parameters())
    made.steps()
    watch.close()
    assert_complete(tmp_path, ["r"], 2 * STEPS)


def test_a_scaler_that_is_replaced_before_the_first_step_keeps_the_watch(tmp_path):
    made = training()
    watch = made.attach(tmp_path, "r")
    made.scaler = torch.amp.GradScaler("cpu")
    made.steps()
    watch.close()
    assert_complete(tmp_path, ["r"])


def test_one_model_under_two_scalers_that_live_is_watched_twice(tmp_path):
    first, second = training(), None
    second = training(first.model)
    watches = [first.attach(tmp_path, "a"), second.attach(tmp_path, "b")]
    first.steps()
    second.steps()
    assert not any(watch.closed for watch in watches)
    for watch in watches:
        watch.close()
    assert_complete(tmp_path, "ab")


def test_the_same_scaler_again_is_the_same_watch_while_its_model_lives(tmp_path):
    made = training()
    watch = made.attach(tmp_path, "r")
    with pytest.warns(AmpwatchWarning, match="watched already"):
        assert made.attach(tmp_path, "r") is watch
    other = training(scaler=made.scaler)
    with pytest.warns(AmpwatchWarning, match="watched already"):
        assert other.attach(tmp_path, "r") is watch
    watch.close()


def test_a_trial_whose_model_only_waits_for_the_collector_is_over(tmp_path):
    scaler = torch.amp.GradScaler("cpu")
    gc.disable()
    try:
        for name in "ab":
            made = training(scaler=scaler)
            made.model.itself = [made.model]  # a cycle, as many models are in
            watch = made.attach(tmp_path, name)
            made.steps()
            del made
    finally:
        gc.enable()
    watch.close()
    assert_complete(tmp_path, "ab")


def test_parameters_of_optimizers_that_are_gone_are_not_kept_under_a_scaler_alone(tmp_path):
    scaler = torch.amp.GradScaler("cpu")
    watch = ampwatch.attach(scaler, None, log_dir=tmp_path, endpoint="off")
    gone = []
    for _ in range(TRIALS):
        made = training(scaler=scaler)
        made.steps(1)
        gone += made.references()[:2]
        gone += [weakref.ref(p) for p in made.model.parameters()]
    del made
    gc.collect()
    kept = [ref for ref in gone if ref() is not None]
    assert len(kept) <= len(list(net().parameters())), "at most the last trial's"
    watch.close()


def test_a_closed_watch_that_the_user_keeps_holds_no_parameter(tmp_path):
    made = training()
    watch = made.attach(tmp_path, "r")
    made.steps()
    gone = made.references()
    watch.close()
    del made
    gc.collect()
    assert [ref() for ref in gone if ref() is not None] == []


def test_what_the_collector_ends_during_an_optimizers_step_does_not_disturb_it(tmp_path):
    made = training()
    watches = [made.attach(tmp_path, "r")]
    for name in "ab":
        other = training()
        other.model.itself = [other.model]
        watches.append(other.attach(tmp_path, name))
        other.steps()
    del other
    made.steps(1)
    made.optimizer.register_step_pre_hook(collect)
    made.optimizer.register_step_post_hook(collect)
    made.model.register_forward_hook(collect)
    made.steps()
    assert [watch.closed for watch in watches] == [False, True, True]
    watches[0].close()
    assert not _global_optimizer_pre_hooks
    assert_complete(tmp_path, "ab")


def test_closing_a_watch_that_ended_by_itself_waits_for_its_log(tmp_path):
    made = training()
    watch = made.attach(tmp_path, "r")
    made.steps()
    made.model = None
    assert watch.closed
    watch.close()
    assert_complete(tmp_path, ["r"])


def test_who_waits_for_the_end_of_a_log_hears_of_a_watch_that_ended_by_itself(tmp_path):
    heard = threading.Event()
    made = training()
    made.attach(tmp_path, "r").after_close(heard.set)
    made.steps()
    del made
    gc.collect()
    assert heard.wait(20)
    assert_complete(tmp_path, ["r"])


def test_what_a_layer_multiplies_is_told_though_its_model_is_gone_before_it_is_written(tmp_path):
    made = training()
    watch = made.attach(tmp_path, "r")
    made.steps(1)
    made.model = None
    until(lambda: ampwatch.open_run(watch.run_folder).clean_end)
    info = ampwatch.open_run(watch.run_folder).layers.to_pylist()
    assert [row["kind"] for row in info] == ["Sequential", "Linear", "ReLU", "Linear"]
    assert [row["flops"] for row in info] == [None, 2 * 3 * 4 * 8, None, 2 * 3 * 8 * 2]


def test_a_model_that_holds_its_own_watch_is_collected_with_a_step_begun(tmp_path, monkeypatch):
    raised = []
    monkeypatch.setattr("sys.unraisablehook", raised.append)
    gc.disable()  # it comes upon the model first only if nothing has been collected before
    try:
        made = training()
        made.model.circle = [made.attach(tmp_path, "r"), made.model]
        made.scaler.scale(made.model(SAMPLE).sum()).backward()
        made.scaler.step(made.optimizer)
        del made
        gc.collect()
    finally:
        gc.enable()
    assert raised == []
