"""`ampwatch run`: which trainings a script holds, one run each, and what remains of those over."""

from __future__ import annotations

import json

from run_parts import script, the_run, watched_within, without_ours

import ampwatch


def test_each_of_two_scalers_is_watched_with_its_own_model(tmp_path):
    text = """
    one, two = parts(2.0**10), parts(2.0**40)
    for _ in range(5):
        train(1, *one)
        train(1, *two)
    """
    under = watched_within(tmp_path, script(tmp_path, text).name)
    assert under.returncode == 0, under.stderr
    runs = [the_run(tmp_path, "it"), the_run(tmp_path, "it-2")]
    firsts = {run.steps["scale"].to_pylist()[0] for run in runs}
    assert firsts == {2.0**10, 2.0**40}
    assert [len(run.steps) for run in runs] == [5, 5]


def test_a_gan_with_one_scaler_is_one_run_with_both_its_models(tmp_path):
    text = """
    class Judge(Net): pass
    scaler, maker, first = parts(2.0**10)
    judge = Judge()
    second = torch.optim.SGD(judge.parameters(), lr=0.1)
    for _ in range(4):
        for model, optimizer in ((maker, first), (judge, second)):
            loss = model(torch.randn(4, 8)).square().mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
        scaler.update()
    """
    under = watched_within(tmp_path, script(tmp_path, text).name)
    assert under.returncode == 0, under.stderr
    run = the_run(tmp_path)
    assert len(run.steps) == 8
    assert {"Net.first", "Judge.first"} <= set(run.layers["layer"].to_pylist())


def test_a_second_optimizer_of_the_same_model_steps_the_same_run(tmp_path):
    """Unfreezing: nothing is wrong with it, and nothing is said of it."""
    text = """
    scaler, model, optimizer = parts(2.0**10)
    model.first.requires_grad_(False)
    train(4, scaler, model, torch.optim.SGD(model.last.parameters(), lr=0.1))
    model.first.requires_grad_(True)
    train(4, scaler, model, torch.optim.SGD(model.parameters(), lr=0.01))
    """
    under = watched_within(tmp_path, script(tmp_path, text).name)
    assert under.returncode == 0, under.stderr
    assert [run.name for run in ampwatch.list_runs(tmp_path / "ampwatch-runs")] == ["it"]
    run = the_run(tmp_path)
    assert run.steps["lr"].to_pylist() == [0.1] * 4 + [0.01] * 4
    assert None not in run.steps["loss"].to_pylist()
    assert not [f.code for f in ampwatch.diagnose(run).findings if f.code.startswith("AMP4")]


def test_without_a_scaler_too_a_second_optimizer_steps_the_same_run(tmp_path):
    text = """
    _, model, _ = parts()
    del _
    for rate in (0.1, 0.01):
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(4, 8)).square().mean().backward()
            optimizer.step()
    """
    under = watched_within(tmp_path, script(tmp_path, text).name)
    assert under.returncode == 0, under.stderr
    assert [run.name for run in ampwatch.list_runs(tmp_path / "ampwatch-runs")] == ["it"]
    assert the_run(tmp_path).steps["lr"].to_pylist() == [0.1] * 3 + [0.01] * 3
    assert None not in the_run(tmp_path).steps["grad_norm"].to_pylist()


def test_what_the_watched_scaler_steps_is_its_run_whatever_model_it_trains(tmp_path):
    text = """
    scaler, model, optimizer = parts(2.0**10)
    train(3, scaler, model, optimizer)
    other = Net()
    train(3, scaler, other, torch.optim.SGD(other.parameters(), lr=0.3))
    """
    under = watched_within(tmp_path, script(tmp_path, text).name)
    assert under.returncode == 0, under.stderr
    assert [run.name for run in ampwatch.list_runs(tmp_path / "ampwatch-runs")] == ["it"]
    assert the_run(tmp_path).steps["lr"].to_pylist() == [0.1] * 3 + [0.3] * 3


def test_a_training_without_a_scaler_beside_one_with_a_scaler_is_a_run_of_its_own(tmp_path):
    text = """
    scaler, model, optimizer = parts(2.0**10)
    train(3, scaler, model, optimizer)
    other = Net()
    second = torch.optim.SGD(other.parameters(), lr=0.3)
    for _ in range(3):
        second.zero_grad()
        other(torch.randn(4, 8)).square().mean().backward()
        second.step()
    """
    under = watched_within(tmp_path, script(tmp_path, text).name)
    assert under.returncode == 0, under.stderr
    assert the_run(tmp_path).steps["lr"].to_pylist() == [0.1] * 3
    second = the_run(tmp_path, "it-2").steps
    assert second["lr"].to_pylist() == [0.3] * 3
    assert None not in second["loss"].to_pylist()


def test_a_new_scaler_each_epoch_is_one_run(tmp_path):
    text = """
    _, model, optimizer = parts()
    for _ in range(3):
        train(2, torch.amp.GradScaler("cpu", init_scale=2.0**10), model, optimizer)
    """
    under = watched_within(tmp_path, script(tmp_path, text).name)
    assert under.returncode == 0, under.stderr
    assert [run.name for run in ampwatch.list_runs(tmp_path / "ampwatch-runs")] == ["it"]
    assert len(the_run(tmp_path).steps) == 6


def test_a_scaler_made_after_the_model_has_run_is_watched_from_its_first_step(tmp_path):
    text = """
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(4, 8))
    train(5, torch.amp.GradScaler("cpu", init_scale=2.0**10), model, optimizer)
    """
    under = watched_within(tmp_path, script(tmp_path, text).name)
    assert under.returncode == 0, under.stderr
    steps = the_run(tmp_path, "it-2").steps
    assert steps["scale"].to_pylist() == [2.0**10] * 5
    assert all(loss is None or loss < 100 for loss in steps["loss"].to_pylist())


def test_a_watch_that_the_script_began_itself_is_the_only_one(tmp_path):
    text = """
    import ampwatch
    scaler, model, optimizer = parts(2.0**10)
    ampwatch.attach(scaler, model, run="own")
    train(3, scaler, model, optimizer)
    """
    under = watched_within(tmp_path, script(tmp_path, text).name)
    assert (under.returncode, without_ours(under.stderr)) == (0, "")
    assert under.stderr.count("watching") == 1
    assert [run.name for run in ampwatch.list_runs(tmp_path / "ampwatch-runs")] == ["own"]


SWEEP = """
    import gc, json, os, threading, time, weakref
    from torch.optim.optimizer import _global_optimizer_pre_hooks as global_hooks
    seen, told = [], []
    def trial():
        scaler, model, optimizer = parts(2.0**10)
        train(3, scaler, model, optimizer)
        seen.append([weakref.ref(one) for one in (scaler, model, optimizer)])
    for number in range(12):
        trial()
        gc.collect()
        patience = time.monotonic() + 20
        while threading.active_count() > 1 and time.monotonic() < patience:
            time.sleep(0.01)  # what writes the end of its run goes on for a moment
        alive = [sum(one() is not None for one in kind) for kind in zip(*seen)]
        hooks = len(global_hooks)
        held = len(os.listdir("/proc/self/fd"))
        told.append([alive, threading.active_count(), held, hooks])
    print(json.dumps(told))
"""


def test_a_sweep_leaves_nothing_of_the_trials_that_are_over(tmp_path):
    """Models, scalers and optimizers are gone, and so are our threads, descriptors and hooks."""
    under = watched_within(tmp_path, script(tmp_path, SWEEP).name)
    assert under.returncode == 0, under.stderr
    told = json.loads(under.stdout)
    assert [alive for alive, *_ in told] == [[0, 0, 0]] * 12
    assert told == [told[0]] * 12
    assert told[0][1] == 1
    runs = ampwatch.list_runs(tmp_path / "ampwatch-runs")
    assert len(runs) == 12
    assert all(ampwatch.open_run(run.path).clean_end for run in runs)
