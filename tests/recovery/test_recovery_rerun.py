"""A real run is trained again by its own command: its rate is changed, its files are not."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from proving_commands import OVERFLOWS, prove, ran

import ampwatch
from ampwatch import store
from ampwatch.cli.prove import with_option
from ampwatch.recovery.proof import is_doubtful, kept_proof

pytestmark = pytest.mark.skipif(os.name != "posix", reason="ends processes by their group")

# A rate of 0.1 trains; 3 blows up within twenty steps.
SCRIPT = """
import os, pathlib, shutil, sys, torch, ampwatch
torch.manual_seed(0)
os.mkdir("made-anew")  # fails where it is there, as it is by the time of the reruns
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
    # The script removes `old` by itself; the reruns must not.
    ran(folder, "train.py").check_returncode()
    (folder / "old").mkdir()
    (folder / "old" / "precious.txt").write_text("kept")
    return folder, folder / "own-runs" / "toy"


def files_of(folder):
    return {
        path.relative_to(folder): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file() and not path.is_relative_to(folder / ".state")
    }


def said_by(done):
    return " ".join(done.stderr.split())


@pytest.mark.slow_trainings
def test_a_rate_that_holds_is_found_and_the_users_files_stay_as_they_are(trained, tmp_path):
    folder, run = trained
    before = files_of(folder)
    done = prove(folder, run, "-o", tmp_path, "--budget", "5m", "--steps", "120", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    low, high = told["interval"]
    # Of those that hold, the one that learns most: the script logs no loss, it went backward.
    proved = told["proved"]["value"]
    holding = [one for one in told["tries"] if one["value"] <= low]
    ends = {one["value"]: list(one["loss_at"].values())[-1] for one in holding}
    assert proved == min(ends, key=ends.__getitem__)
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
    assert kept_proof(run).proved.value == proved
    shown = ran(folder, "-m", "ampwatch", "report", run)
    words = " ".join(shown.stdout.split())
    assert "Remedy: tested. The learning rate held in a rerun of" in words
    assert f"peak learning rate of {proved:.3g} instead of" in words


@pytest.mark.slow_trainings
def test_a_rate_is_proved_only_by_reruns_that_last_beyond_the_top_of_the_warm_up(tmp_path):
    """It fails early in a warm-up of 150 steps: 1.5 times as many end before the top."""
    (tmp_path / "train.py").write_text(SCRIPT.replace("(step + 1) / 10", "(step + 1) / 150"))
    ran(tmp_path, "train.py").check_returncode()
    run = tmp_path / "own-runs" / "toy"
    done = prove(tmp_path, run, "-o", tmp_path / "short", "--budget", "5m", "--steps", "100")
    assert done.returncode == 3, done.stderr
    short = kept_proof(run)
    assert short.proved is None
    assert short.best.change == "lr"
    assert "Not proved: a learning rate of" in done.stdout
    assert f"`--steps {short.needs_steps}`" in " ".join(done.stdout.split())
    planned = json.loads(ran(tmp_path, "-m", "ampwatch", "plan", run, "--json").stdout)
    assert "as estimated" in planned["because"]

    done = prove(tmp_path, run, "-o", tmp_path / "long", "--budget", "5m")
    assert done.returncode == 0, done.stderr
    proof = kept_proof(run)
    assert proof.steps == short.needs_steps > 150
    assert proof.proved.steps > 150
    highest = max(store.open_run(proof.proved.run).read("steps", columns=("lr",))["lr"].to_pylist())
    assert highest == pytest.approx(proof.proved.rate)


@pytest.mark.slow_trainings
def test_a_script_that_sets_its_rate_itself_is_noticed_and_given_it_by_its_argument(tmp_path):
    script = SCRIPT.replace("lr=3.0", "lr=float(sys.argv[2])").replace(
        "optimizer.zero_grad();",
        "optimizer.param_groups[0]['lr'] = float(sys.argv[2]); optimizer.zero_grad();",
    ).replace("plan.step()", "pass").replace("plan =", "unused = 0 #")  # fmt: skip
    (tmp_path / "train.py").write_text(script)
    ran(tmp_path, "train.py", "--lr", "3").check_returncode()
    run = tmp_path / "own-runs" / "toy"
    asked = (run, "--steps", "60", "--budget", "2m", "--set", "lr=0.05")
    done = prove(tmp_path, *asked)
    assert done.returncode == 2
    assert "name the argument that holds it" in said_by(done)


def test_the_scripts_own_option_is_set_in_either_form():
    assert with_option(["t.py", "--lr", "3", "-x"], "--lr", "0.5") == ["t.py", "-x", "--lr", "0.5"]
    assert with_option(["t.py", "--lr=3"], "--lr", "0.5") == ["t.py", "--lr", "0.5"]
    assert with_option(["t.py"], None, "0.5") == ["t.py"]


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
    assert says in said_by(done)
    assert "Give the command" in said_by(done)


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
    assert "No problems found in 200 steps. There is nothing to prove." in said_by(done)


# --- bad circumstances ----------------------------------------------------------------------------


def failing_run(folder, script, *arguments):
    """A run whose loss scale collapses, and whose command runs this script."""
    from written_runs import write_run

    path = write_run(folder / "own-runs", accepted=60, skipped=60)
    (folder / "train.py").write_text(script)
    told = json.loads((path / "run.json").read_text())
    told |= {
        "command": ["train.py", *arguments],
        "origin": {"script": str(folder / "train.py"), "folder": str(folder)},
    }
    (path / "run.json").write_text(json.dumps(told))
    return path


RATE = ("--set", "lr=0.001")


@pytest.mark.parametrize(
    ("script", "budget", "says"),
    [
        ("answer = input('Which data? ')", "60s", "A rerun cannot answer what the script asks for"),
        ("import time; time.sleep(600)", "3s", "If it takes long to start, give it more"),
        ("open('nowhere/data.bin')", "60s", "No such file or directory: 'nowhere/data.bin'"),
        ("print('all done')", "60s", "trained no step that could be watched. It printed last: all"),
    ],
)
def test_a_script_that_does_not_get_to_its_first_step_is_said(tmp_path, script, budget, says):
    done = prove(tmp_path, failing_run(tmp_path, script), *RATE, "--budget", budget)
    assert done.returncode == 2
    assert says in said_by(done)


TRAINING = """
import os, sys, torch, ampwatch
ALSO_FIRST
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
at = 0
if "--resume" in sys.argv:
    state = torch.load(sys.argv[sys.argv.index("--resume") + 1], weights_only=True)
    model.load_state_dict(state["model"]); optimizer.load_state_dict(state["optimizer"])
    at = state["at"]
with ampwatch.attach(None, model, optimizer=optimizer, run="toy", start_step=at, log_dir="own-runs"
                     ) as watch:
    for step in range(at, 150):
        if step == 20:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                        "at": step}, "saved.pt")
            watch.saved("saved.pt")
        if "--breaks" in sys.argv and step == 40:
            for group in optimizer.param_groups: group["lr"] *= 1e6
        ALSO_EACH
        torch.manual_seed(step)
        x = torch.randn(8, 4)
        optimizer.zero_grad(); ((model(x) - x.sum(1, keepdim=True)) ** 2).mean().backward()
        optimizer.step()
"""


def training(first="torch.manual_seed(0)", each="pass"):
    return TRAINING.replace("ALSO_FIRST", first).replace("ALSO_EACH", each)


def trained_in(folder, script, *arguments):
    """The run of this script, trained in this folder."""
    (folder / "train.py").write_text(script)
    ran(folder, "train.py", *arguments)
    return folder / "own-runs" / "toy"


@pytest.mark.slow_starts
def test_a_rerun_that_dies_of_something_else_shows_nothing(tmp_path):
    run = trained_in(tmp_path, training())
    (tmp_path / "train.py").write_text(
        training(each="assert step < 10, 'the disk has no room left'")
    )
    done = prove(tmp_path, run, "--set", "lr=0.005", "--steps", "60", "--budget", "2m")
    assert done.returncode == 2
    assert "ended with 1 at step" in said_by(done)
    assert "for another reason than what was changed, so it shows nothing" in said_by(done)
    assert "the disk has no room left" in said_by(done)
    assert kept_proof(run) is None


@pytest.mark.slow_starts
def test_a_training_that_is_not_deterministic_is_noticed_and_what_holds_is_tried_twice(tmp_path):
    # Another seed each time, and the same ones whenever this test runs.
    seed = "log = open('starts', 'a'); log.write('x'); torch.manual_seed(log.tell())"
    run = trained_in(tmp_path, training(first=seed))
    asked = ("--set", "lr=0.01", "--steps", "40", "--budget", "3m")
    done = prove(tmp_path, run, *asked)
    assert done.returncode == 0, done.stderr
    proof = kept_proof(run)
    assert [(one.value, one.is_stable) for one in proof.tries[:2]] == [(0.01, True), (0.01, True)]
    assert "The training is not deterministic" in " ".join(done.stdout.split())


@pytest.mark.slow_starts
def test_reruns_begin_at_the_last_clean_checkpoint_where_the_script_can_resume(tmp_path):
    run = trained_in(tmp_path, training(), "--breaks")
    asked = (run, "--steps", "60", "--budget", "2m", "--resume-flag", "--resume")
    done = prove(tmp_path, *asked, "--set", "lr=0.000001")
    assert "The reruns begin at step 20, from saved.pt." in said_by(done)
    proof = kept_proof(run)
    assert proof is not None, done.stderr
    rates = store.open_run(proof.tries[0].run).read("steps", columns=("step", "lr")).to_pylist()
    assert rates[0]["step"] == 20
    # The saved optimizer's rate is multiplied too.
    assert rates[0]["lr"] == pytest.approx(0.01 * proof.tries[0].value / proof.base, rel=1e-6)


def test_where_no_clean_checkpoint_is_recorded_it_is_said(tmp_path):
    run = failing_run(tmp_path, "raise SystemExit(4)")
    done = prove(tmp_path, run, *RATE, "--resume-flag", "--resume", "--budget", "60s")
    assert "No clean checkpoint before the trouble is recorded with its file" in said_by(done)
    assert "ended with 4 before its first step" in said_by(done)


# --- other causes than the rate -------------------------------------------------------------------


@pytest.fixture(scope="module")
def overflowed(tmp_path_factory):
    """The run of a training whose layer `wide` overflows half precision."""
    folder = tmp_path_factory.mktemp("overflows")
    (folder / "train.py").write_text(OVERFLOWS)
    ran(folder, "-m", "ampwatch", "run", "--name", "toy", "train.py").check_returncode()
    return folder, folder / "ampwatch-runs" / "toy"


@pytest.mark.slow_trainings
def test_the_cure_that_the_findings_rule_declares_is_proved_and_then_planned(overflowed, tmp_path):
    folder, run = overflowed
    before = files_of(folder)
    done = prove(folder, run, "-o", tmp_path, "--budget", "3m", "--json", fresh=True)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["proved"] == {
        "change": "float32", "value": "wide", "steps": 60, "verdict": told["proved"]["verdict"],
    }  # fmt: skip
    assert told["interval"] == [None, None]
    assert [one["change"] for one in told["tries"]] == ["nothing", "float32"]
    after = files_of(folder)
    assert after.pop((run / "proved.json").relative_to(folder))
    assert after == before
    planned = ran(folder, "-m", "ampwatch", "plan", run, "--json")
    assert planned.returncode == 10
    assert json.loads(planned.stdout)["keep_in_float32"] == ["wide"]


@pytest.mark.slow_trainings
def test_one_thing_is_switched_at_a_time_and_what_helps_is_named(overflowed, tmp_path):
    folder, run = overflowed
    done = prove(folder, run, "-o", tmp_path, "--budget", "5m", "--bisect")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    held = {line.split("  ")[0] for line in lines if "  yes  " in line}
    assert held == {"autocast off", "wide in float32", "autocast to bfloat16"}
    assert any(line.startswith("loss scaler off") and "  no  " in line for line in lines)
    assert "has nothing that this is about: torch.compile off" in said_by(done)
    assert lines[-1].startswith(
        "Proved: the trouble is gone for 60 steps with each of autocast off; "
    )


# --- where no cure helps --------------------------------------------------------------------------

TOO_HIGH = {
    "net": "net/post-norm", "optimizer": "adamw", "schedule": "constant", "precision": "fp16",
    "steps": 131, "seed": 1, "at": 0, "severity": 0.0, "clip": 0.3,
}  # fmt: skip


@pytest.mark.slow_trainings
@pytest.mark.timeout(600)
def test_the_rate_is_tried_where_no_cure_brings_the_training_to_learn(tmp_path):
    """Its rate is four times too high; what the record shows first is a layer's overflow."""
    script = Path(ampwatch.__file__).parents[1] / "benchmarks" / "prove_training.py"
    ran(tmp_path, script, json.dumps(TOO_HIGH), "--lr", "0.3").check_returncode()
    run = tmp_path / "ampwatch-runs" / "run"
    done = prove(tmp_path, run, "-o", tmp_path / "reruns", "--steps", "100", "--budget", "8m")
    assert done.returncode == 0, done.stderr
    proof = kept_proof(run)
    assert [one.change for one in proof.tries[:3]] == ["nothing", "float32", "lr"]
    # Whether it holds in float32 is another on each processor: with it the loss stands high on all.
    assert not proof.tries[1].is_stable or is_doubtful(proof.tries[1])
    assert proof.proved.change == "lr"
    learnt = proof.proved.loss_at
    assert learnt["80"] < 0.75 * learnt["0"]
    said = " ".join(done.stdout.split())
    assert "the learning rate was tried as well" in said
    assert ("the loss stood above where it began" in said) == proof.tries[1].is_stable
    planned = json.loads(ran(tmp_path, "-m", "ampwatch", "plan", run, "--json").stdout)
    assert planned["action"] == "restart"
    assert planned["learning_rate"]["groups"] == [pytest.approx(proof.proved.value)]


@pytest.mark.slow_trainings
def test_a_cure_with_which_the_program_crashes_is_left_out_and_the_next_one_tried(tmp_path):
    computed = "self.wide(20 * self.first(x))"
    assert OVERFLOWS.count(computed) == 1
    crashes = OVERFLOWS.replace(computed, "self.half_of(x)").replace(
        "    def forward(self, x):\n",
        "    def half_of(self, x):\n"
        f"        wide = {computed}\n"
        "        assert wide.dtype != torch.float32, 'made for half precision'\n"
        "        return wide\n"
        "    def forward(self, x):\n",
    )
    (tmp_path / "train.py").write_text(crashes)
    ran(tmp_path, "-m", "ampwatch", "run", "--name", "toy", "train.py").check_returncode()
    done = prove(tmp_path, tmp_path / "ampwatch-runs" / "toy", "--budget", "4m", "--json")
    assert "made for half precision" in done.stderr
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["proved"]["change"] == "bfloat16"
    assert [one["change"] for one in told["tries"]] == ["nothing", "bfloat16"]
