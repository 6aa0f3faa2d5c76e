"""`ampwatch run`: real scripts in real processes, held against the same script run alone."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

import pytest
from run_parts import (
    ROOT,
    alone,
    environment,
    ran,
    script,
    the_run,
    watched,
    watched_as_forks,
    watched_within,
    without_ours,
)

import ampwatch

SAYS = """
    scaler, model, optimizer = parts()
    train(60, scaler, model, optimizer)
    print(sys.argv, __name__, __file__, sys.modules["__main__"].__dict__.get("__spec__"))
    print(scaler.get_scale(), [float(p.detach().sum()).hex() for p in model.parameters()])
    print([p for p in sys.path if "ampwatch" in p])
"""


def test_a_script_cannot_tell_and_its_every_step_is_logged(tmp_path):
    path = script(tmp_path, SAYS + "    sys.exit(3)\n")
    bare = ran(tmp_path, path.name, "--lr", "1", "-m", "x", "--run", "y")
    under = watched(tmp_path, path.name, "--lr", "1", "-m", "x", "--run", "y")
    assert under.stdout == bare.stdout
    assert under.returncode == bare.returncode == 3
    assert without_ours(under.stderr) == bare.stderr == ""
    run = the_run(tmp_path)
    assert len(run.steps) == 60
    skips = run.steps["skipped"].to_pylist()
    assert skips[0]  # the search from 2^60 is seen from its first step
    assert 2.0 ** (60 - sum(skips)) == run.steps["scale_after"].to_pylist()[-1]
    assert {"(root)", "first", "last"} == set(run.layers["layer"].to_pylist())
    assert run.clean_end


@pytest.mark.slow_starts
def test_a_module_keeps_its_package_and_name(tmp_path):
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("")
    script(tmp_path / "pack", SAYS)
    bare = alone(tmp_path, "-m", "pack.train", "--lr", "1")
    under = watched_as_forks(tmp_path, "-m", "pack.train", "--lr", "1")
    assert without_ours(under.stderr) == bare.stderr
    untold = re.compile(r"ModuleSpec\(.*?\)\)?")
    assert untold.sub("", under.stdout) == untold.sub("", bare.stdout)
    assert len(the_run(tmp_path).steps) == 60


@pytest.mark.slow_starts
@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX")
def test_a_signal_reaches_the_script_and_ends_it_as_ever(tmp_path):
    path = script(
        tmp_path,
        'held = parts()\ntrain(3, *held)\nprint("ready", flush=True)\ntrain(10**9, *held)',
    )
    command = [sys.executable, "-m", "ampwatch", "run", "--name", "it", path.name]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.PIPE, text=True,
        stderr=subprocess.DEVNULL,
    ) as child:  # fmt: skip
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        while not len(the_run(tmp_path).steps):
            time.sleep(0.1)
        child.send_signal(signal.SIGTERM)
        assert child.wait(60) == -signal.SIGTERM
    assert not the_run(tmp_path).clean_end


@pytest.mark.slow_starts
def test_torch_may_be_looked_for_and_come_late_and_workers_may_be_spawned(tmp_path):
    """In fresh processes: what hears of torch waits for its import."""
    text = """
    def main():
        from torch.utils.data import DataLoader, TensorDataset
        data = TensorDataset(torch.randn(8, 8))
        assert len(list(DataLoader(data, num_workers=1, multiprocessing_context="spawn"))) == 8
        train(5, *parts(2.0**10))
    if __name__ == "__main__":
        main()
    """
    script(tmp_path, text)
    late = tmp_path / "late.py"
    late.write_text("""
import importlib.util
if __name__ == "__main__":
    assert importlib.util.find_spec("torch") is not None
    import train
    train.main()
""")
    under = watched(tmp_path, "late.py")
    assert under.returncode == 0, under.stderr
    assert under.stderr.count("watching") == 1
    assert len(the_run(tmp_path).steps) == 5


@pytest.mark.slow_ranks
@pytest.mark.timeout(170)
def test_a_launchers_ranks_are_one_run(tmp_path):
    text = """
    import torch.distributed as dist
    dist.init_process_group("gloo")
    scaler, model, optimizer = parts(2.0**10)
    train(5, scaler, nn.parallel.DistributedDataParallel(model), optimizer)
    dist.destroy_process_group()
    """
    path = script(tmp_path, text)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    under = watched_as_forks(tmp_path, *launch, path.name)
    assert under.returncode == 0, under.stderr
    assert "nothing was watched" not in under.stderr  # the launcher trains nothing, and is silent
    run = the_run(tmp_path)
    assert list(run.ranks) == [0, 1]
    assert len(run.steps) == 10
    assert "first" in run.layers["layer"].to_pylist()


def test_the_users_own_sitecustomize_is_read(tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import builtins\nbuiltins.mine = 7\n")
    (tmp_path / "t.py").write_text("import sitecustomize\nprint(mine, sitecustomize.__file__)\n")
    paths = os.pathsep.join([str(tmp_path / "site"), str(ROOT)])
    bare = ran(tmp_path, "t.py", PYTHONPATH=paths)
    under = watched(tmp_path, "t.py", PYTHONPATH=paths)
    assert bare.stdout.startswith("7 ")
    assert under.stdout == bare.stdout


def test_a_missing_script_is_one_sentence(tmp_path):
    under = watched(tmp_path, "tarin.py")
    assert under.returncode == 2
    assert under.stderr.count("\n") == 1
    assert "There is no script or command 'tarin.py'" in under.stderr


@pytest.mark.slow_starts
def test_switched_off_the_script_runs_alone(tmp_path):
    path = script(tmp_path, "train(3, *parts())\n")
    under = watched_as_forks(tmp_path, path.name, AMPWATCH="0")
    assert (under.returncode, under.stderr) == (0, "")
    assert not (tmp_path / "ampwatch-runs").exists()


@pytest.mark.slow_compile
def test_a_script_that_compiles_gets_no_warning_and_no_graph_more(tmp_path):
    text = """
    import warnings
    from torch._dynamo.utils import counters
    warnings.filterwarnings("error", message=".*global hooks")
    scaler, plain, optimizer = parts(2.0**10)
    graphs = []
    def backend(graph, _inputs):
        graphs.append(graph)
        return graph.forward
    model = torch.compile(plain, backend=backend)
    model.eval()
    with torch.no_grad():
        model(torch.randn(4, 8))
    model.train()
    train(5, scaler, model, optimizer)
    print(len(graphs), sum(counters["graph_break"].values()), scaler.get_scale())
    """
    path = script(tmp_path, text)
    bare = alone(tmp_path, path.name)
    under = watched_as_forks(tmp_path, path.name)
    assert bare.returncode == 0, bare.stderr
    assert (without_ours(under.stderr), under.stdout) == (bare.stderr, bare.stdout)
    run = the_run(tmp_path)
    assert len(run.steps) == 5
    assert None not in run.steps["loss"].to_pylist()
    assert None not in run.steps["grad_norm"].to_pylist()


def test_torch_may_be_there_before_the_script(tmp_path):
    path = script(tmp_path, "train(3, *parts(2.0**10))\n")
    under = watched_within(tmp_path, path.name, AMPWATCH_RUN_OPTIONS="{}")
    assert under.returncode == 0, under.stderr
    assert len(ampwatch.list_runs(tmp_path / "ampwatch-runs")) == 1
