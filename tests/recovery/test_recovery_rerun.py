"""A real run is trained again by its own command: its rate is changed, its files are not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ampwatch import store
from ampwatch.cli.prove import with_option
from ampwatch.recovery.proof import kept_proof

pytestmark = pytest.mark.skipif(os.name != "posix", reason="ends processes by their group")

# A rate of 0.1 trains; 3 blows up within twenty steps.
SCRIPT = """
import pathlib, shutil, sys, torch, ampwatch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=3.0, momentum=0.9)
plan = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))
shutil.rmtree("old", ignore_errors=True)
with ampwatch.attach(None, model, optimizer=optimizer, log_dir="own-runs", run="toy"):
    for step in range(160):
        x = torch.randn(16, 8)
        loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step(); plan.step()
        if step % 50 == 0:
            torch.save(model.state_dict(), "model.pt")
            with open("log.txt", "a") as log: log.write(f"{step}\\n")
            assert pathlib.Path("log.txt").read_text().endswith(f"{step}\\n")
pathlib.Path("done.txt").write_text("done")
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder in which a training failed, with its files; and its run."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "old").mkdir()
    (folder / "old" / "precious.txt").write_text("kept")
    (folder / "train.py").write_text(SCRIPT)
    environment = environment_of(folder)
    # The script removes `old` by itself; the reruns must not.
    subprocess.run(
        [sys.executable, "train.py"], cwd=folder, env=environment, check=True, timeout=300
    )
    (folder / "old").mkdir()
    (folder / "old" / "precious.txt").write_text("kept")
    return folder, folder / "own-runs" / "toy"


def environment_of(folder):
    return os.environ | {"AMPWATCH_ENDPOINT": "off", "XDG_STATE_HOME": str(folder / ".state")}


def files_of(folder):
    return {
        path.relative_to(folder): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file() and not path.is_relative_to(folder / ".state")
    }


def prove(folder, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "ampwatch", "prove", *map(str, arguments)],
        cwd=folder, env=environment_of(folder), capture_output=True, text=True, timeout=500,
    )  # fmt: skip


@pytest.mark.slow_trainings
def test_a_rate_that_holds_is_found_and_the_users_files_stay_as_they_are(trained, tmp_path):
    folder, run = trained
    before = files_of(folder)
    done = prove(folder, run, "--dir", tmp_path, "--budget", "5m", "--steps", "120", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    low, high = told["interval"]
    assert told["proved"]["value"] == low
    assert 0.05 < low < high <= 3.0
    assert high / low <= 2.01 or len(told["tries"]) == 8
    for one in told["tries"]:
        again = store.open_run(one["run"])
        assert tmp_path in Path(one["run"]).parents
        rates = again.read("steps", columns=("step", "lr")).to_pylist()
        assert rates[0]["lr"] == pytest.approx(one["value"] / 10, rel=1e-6)
        assert rates[12]["lr"] == pytest.approx(one["value"], rel=1e-6)
    after = files_of(folder)
    assert after.pop((run / "proved.json").relative_to(folder))
    assert after == before
    written = {path.name for path in tmp_path.rglob("outputs/**/*") if path.is_file()}
    assert {"model.pt", "log.txt"} <= written
    assert kept_proof(run).proved.value == low
    shown = subprocess.run(
        [sys.executable, "-m", "ampwatch", "report", str(run)],
        cwd=folder, env=environment_of(folder), capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert f"Proved: a learning rate of {low:.3g} held for" in " ".join(shown.stdout.split())


@pytest.mark.slow_trainings
def test_a_script_that_sets_its_rate_itself_is_noticed_and_given_it_by_its_argument(tmp_path):
    script = SCRIPT.replace("lr=3.0", "lr=float(sys.argv[2])").replace(
        "optimizer.zero_grad();",
        "optimizer.param_groups[0]['lr'] = float(sys.argv[2]); optimizer.zero_grad();",
    ).replace("plan.step()", "pass").replace("plan =", "unused = 0 #")  # fmt: skip
    (tmp_path / "train.py").write_text(script)
    subprocess.run(
        [sys.executable, "train.py", "--lr", "3"],
        cwd=tmp_path, env=environment_of(tmp_path), check=True, timeout=300,
    )  # fmt: skip
    run = tmp_path / "own-runs" / "toy"
    asked = (run, "--steps", "60", "--budget", "2m", "--set", "lr=0.05")
    done = prove(tmp_path, *asked)
    assert done.returncode == 2
    assert "name the argument that holds it" in " ".join(done.stderr.split())


def test_the_scripts_own_option_is_set_in_either_form():
    assert with_option(["t.py", "--lr", "3", "-x"], "--lr", 0.5) == ["t.py", "-x", "--lr", "0.5"]
    assert with_option(["t.py", "--lr=3"], "--lr", 0.5) == ["t.py", "--lr", "0.5"]
    assert with_option(["t.py"], None, 0.5) == ["t.py"]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"origin": {}}, "does not record which script"),
        ({"world_size": 4}, "had 4 ranks"),
        ({"command": ["train.py", "--api-key", "***"]}, "held a secret"),
        ({"origin": {"script": "/nowhere/train.py", "folder": "/"}}, "is gone"),
    ],
)
def test_what_cannot_be_started_again_is_said(tmp_path, changed, says):
    from written_runs import write_run

    path = write_run(tmp_path, accepted=60, skipped=60)
    told = json.loads((path / "run.json").read_text())
    script = tmp_path / "train.py"
    script.write_text("")
    told |= {"command": ["train.py"], "origin": {"script": str(script), "folder": str(tmp_path)}}
    (path / "run.json").write_text(json.dumps(told | changed))
    done = prove(tmp_path, path)
    assert done.returncode == 2
    assert says in " ".join(done.stderr.split())
    assert "Give the command" in " ".join(done.stderr.split())


def test_a_healthy_run_is_not_trained_again(tmp_path):
    from written_runs import write_run

    path = write_run(tmp_path, accepted=200)
    script = tmp_path / "train.py"
    script.write_text("")
    told = json.loads((path / "run.json").read_text())
    told |= {"command": ["train.py"], "origin": {"script": str(script), "folder": str(tmp_path)}}
    (path / "run.json").write_text(json.dumps(told))
    done = prove(tmp_path, path)
    assert done.returncode == 2
    assert "A lower rate is not what this run needs" in " ".join(done.stderr.split())
