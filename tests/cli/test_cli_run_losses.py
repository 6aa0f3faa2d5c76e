"""`ampwatch run`: which loss a step is given, held against what the script saw itself."""

from __future__ import annotations

import json
import os

import children
import pytest
from run_parts import script, the_run, watched_as_forks, watched_within

import ampwatch


def test_without_a_scaler_the_optimizer_shows_the_steps(tmp_path):
    text = """
    _, model, optimizer = parts()
    del _
    for step in range(7):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(torch.randn(4, 8)).float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    """
    under = watched_within(tmp_path, script(tmp_path, text).name)
    assert under.returncode == 0, under.stderr
    run = the_run(tmp_path)
    assert run.steps["scale"].to_pylist() == [None] * 7
    assert "first" in run.layers["layer"].to_pylist()


@pytest.mark.slow_compile
def test_a_script_that_compiles_and_has_no_scaler_is_watched_from_its_first_loss(tmp_path):
    text = """
    _, model, optimizer = parts()
    del _
    model.compile(backend="eager")
    for step in range(4):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
    """
    under = watched_within(tmp_path, script(tmp_path, text).name)
    assert under.returncode == 0, under.stderr
    run = the_run(tmp_path)
    assert len(run.steps) == 4
    assert None not in run.steps["loss"].to_pylist()


def test_without_a_scaler_the_loss_is_what_went_backward_in_the_step(tmp_path):
    text = """
    _, model, optimizer = parts()
    del _
    told = []
    for step in range(6):
        optimizer.zero_grad()
        losses = [model(torch.randn(4, 8)).square().mean() / 2 for _ in range(2)]
        for loss in losses:
            loss.backward()
        told.append(float(sum(loss.detach() for loss in losses)))
        losses[0].detach().mul_(7)  # ours is the value that went backward
        optimizer.step()
    print(told)
    """
    under = watched_within(tmp_path, script(tmp_path, text).name)
    assert under.returncode == 0, under.stderr
    told = [float(value) for value in under.stdout.strip(" []\n").split(",")]
    assert the_run(tmp_path).steps["loss"].to_pylist() == pytest.approx(told, rel=1e-6)


def test_a_closure_is_told_by_its_last_evaluation(tmp_path):
    text = """
    _, model, _ = parts()
    del _
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    x, seen = torch.randn(4, 8), []
    def closure():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        seen.append(loss.item())
        return loss
    optimizer.step(closure)
    assert len(seen) > 1
    print(seen[-1])
    """
    under = watched_within(tmp_path, script(tmp_path, text).name)
    assert under.returncode == 0, under.stderr
    assert the_run(tmp_path).steps["loss"].to_pylist() == pytest.approx([float(under.stdout)])


@pytest.mark.slow_starts
def test_a_shell_script_starts_a_training_whose_scaler_nobody_uses(tmp_path):
    """What it starts besides says nothing; the losses are those of a training without a scaler."""
    path = script(tmp_path, """
        import subprocess
        scaler, model, optimizer = parts()
        for _ in range(5):
            optimizer.zero_grad()
            loss = model(torch.ones(2, 8)).square().mean()
            loss.backward()
            optimizer.step()
            print(loss.item())
        child = [sys.executable, "-c", "import torch"]
        assert subprocess.run(child, capture_output=True).stderr == b""
    """)  # fmt: skip
    shell = tmp_path / "go.sh"
    python = children.python(children.forking(os.environ))
    shell.write_text(f"#!/bin/sh\nexec {python} {path.name}\n")
    shell.chmod(0o755)
    under = watched_as_forks(tmp_path, "go.sh")
    assert under.returncode == 0, under.stderr
    run = the_run(tmp_path)
    assert run.steps["loss"].to_pylist() == [float(line) for line in under.stdout.split()]
    assert run.steps["scale"].to_pylist() == [None] * 5


def test_the_first_loss_is_itself_where_the_model_first_runs_within_the_call_of_scale(tmp_path):
    """`scaler.scale` is looked up before the watch begins, and called after."""
    text = """
    import json
    scaler, model, optimizer = parts(2.0**16)
    told = []
    def loss():
        with torch.autocast("cpu", torch.float16):
            value = model(torch.randn(4, 8)).float().square().mean()
        told.append(value.item())
        return value
    for _ in range(4):
        optimizer.zero_grad()
        scaler.scale(loss()).backward()
        scaler.step(optimizer)
        scaler.update()
    print(json.dumps(told))
    """
    under = watched_within(tmp_path, script(tmp_path, text).name)
    assert under.returncode == 0, under.stderr
    assert the_run(tmp_path).steps["loss"].to_pylist() == json.loads(under.stdout)


def test_a_scaler_that_overrides_scale_is_heard_too_and_called_once(tmp_path):
    text = """
    import json
    calls = []
    class Own(torch.amp.GradScaler):
        def scale(self, outputs):
            calls.append(1)
            return super().scale(outputs)
    _, model, optimizer = parts()
    del _
    scaler = Own("cpu", init_scale=2.0**16)
    told = []
    def loss():
        value = model(torch.randn(4, 8)).square().mean()
        told.append(value.item())
        return value
    for _ in range(3):
        optimizer.zero_grad()
        scaler.scale(loss()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert len(calls) == 3
    print(json.dumps(told))
    """
    under = watched_within(tmp_path, script(tmp_path, text).name)
    assert under.returncode == 0, under.stderr
    assert the_run(tmp_path).steps["loss"].to_pylist() == json.loads(under.stdout)


def test_each_of_two_trainings_without_a_scaler_has_its_own_losses(tmp_path):
    text = """
    import json
    made = []
    for _ in range(2):
        model = Net()
        made.append((model, torch.optim.SGD(model.parameters(), lr=0.1), []))
        model(torch.randn(4, 8))  # each is watched from here on
    for _ in range(4):
        for model, optimizer, told in made:
            optimizer.zero_grad()
            loss = model(torch.randn(4, 8)).square().mean()
            told.append(loss.item())
            loss.backward()
            optimizer.step()
    print(json.dumps([told for *_, told in made]))
    """
    under = watched_within(tmp_path, script(tmp_path, text).name)
    assert under.returncode == 0, under.stderr
    runs = [the_run(tmp_path), the_run(tmp_path, "it-2")]
    assert [run.steps["loss"].to_pylist() for run in runs] == json.loads(under.stdout)


def test_a_loss_of_a_subclass_of_tensor_is_a_loss(tmp_path):
    """fastai's losses are; each of its operations calls back into the subclass."""
    text = """
    import json
    class Named(torch.Tensor):
        pass
    _, model, optimizer = parts()
    del _
    told = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8)).square().mean().as_subclass(Named)
        told.append(loss.item())
        loss.backward()
        optimizer.step()
    print(json.dumps(told))
    """
    under = watched_within(tmp_path, script(tmp_path, text).name)
    assert under.returncode == 0, under.stderr
    assert the_run(tmp_path).steps["loss"].to_pylist() == json.loads(under.stdout)


STAND_IN = """
    import json
    class Plain:  # fastai's optimizers are none of torch's
        def __init__(self, parameters):
            self.parameters = list(parameters)
        def step(self):
            for parameter in self.parameters:
                parameter.data.add_(parameter.grad.data, alpha=-0.1)
        def zero_grad(self):
            for parameter in self.parameters:
                parameter.grad = None
    class StandIn:
        def __init__(self, model):
            self.param_groups = [{"params": list(model.parameters()), "lr": 0.1}]
        def step(self, *_, **__):
            self.skipped = False
    model, scaler = Net(), torch.amp.GradScaler("cpu", init_scale=2.0**10)
    optimizer = MAKE
    stand_in, told = StandIn(model), []
    for _ in range(12):
        before = [p.detach().clone() for p in model.parameters()]
        loss = model(torch.randn(4, 8)).square().mean()
        scaler.scale(loss).backward()
        stand_in.skipped = True
        scaler.step(stand_in)
        if not stand_in.skipped:
            optimizer.step()
        scaler.update()
        optimizer.zero_grad()
        moved = [a.detach() - b for a, b in zip(model.parameters(), before)]
        told.append([loss.item(), float(torch.cat([m.flatten() for m in moved]).norm())])
    print(json.dumps(told))
"""


@pytest.mark.parametrize(
    "make", ["Plain(model.parameters())", "torch.optim.SGD(model.parameters(), lr=0.1)"]
)
def test_what_moves_the_weights_after_a_stand_in_has_stepped_is_its_step(tmp_path, make):
    """fastai's loop: the scaler steps a callback, the learner the optimizer, then it updates."""
    path = script(tmp_path, STAND_IN.replace("MAKE", make))
    under = watched_within(tmp_path, path.name)
    assert under.returncode == 0, under.stderr
    run = the_run(tmp_path)
    losses, moves = zip(*json.loads(under.stdout), strict=True)
    assert run.steps["loss"].to_pylist() == pytest.approx(list(losses), rel=1e-6)
    assert run.steps["update_norm"].to_pylist() == pytest.approx(list(moves), rel=1e-4)
    assert "AMP404" not in {f.code for f in ampwatch.diagnose(run).findings}
