"""docs/ci.md does what it says: its training, its test, its commands, by an installed ampwatch."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "ci.md").read_text("utf-8")
pytestmark = pytest.mark.slow_starts

OTHER_TESTS = """
import subprocess, sys
from pathlib import Path
import pytest
import ampwatch
from train import train

def test_what_attach_returned_is_closed_and_judged(ampwatch_run):
    import torch
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu")
    watch = ampwatch.attach(scaler, model)
    for _ in range(3):
        with torch.autocast("cpu", torch.float16):
            loss = model(torch.ones(2, 4)).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    with pytest.raises(AssertionError, match="(?s)INCOMPLETE.*The run is in "):
        ampwatch.assert_healthy(watch)
    assert watch.closed
    assert watch.run_folder.parent == ampwatch_run

def test_a_child_process_writes_there_too(ampwatch_run):
    here = Path(__file__).parent
    subprocess.run([sys.executable, "train.py", "0.05", "child"], cwd=here, check=True)
    ampwatch.assert_healthy(ampwatch_run)
    assert (ampwatch_run / "child" / "run.json").exists()

def test_two_trainings_of_which_one_fails(ampwatch_run):
    train(0.05, name="held")
    ampwatch.assert_healthy("held")
    train(30, steps=60, name="broke")
    with pytest.raises(AssertionError) as failure:
        ampwatch.assert_healthy(ampwatch_run)
    assert "broke " in str(failure.value)
    assert "held" not in str(failure.value)
    ampwatch.assert_healthy(ampwatch.open_run("broke"), baseline=ampwatch_run / "broke")

def test_no_training_is_told(ampwatch_run):
    with pytest.raises(AssertionError, match="No training was watched: call ampwatch.attach"):
        ampwatch.assert_healthy(ampwatch_run)

def test_the_projects_own_runs_are_baselines(ampwatch_run):
    train(0.05, name="now")
    ampwatch.assert_healthy(ampwatch_run, baseline="good")
    with pytest.raises(AssertionError, match="Not as good as short"):
        train(1e-5, name="later")
        ampwatch.assert_healthy(ampwatch_run / "later", baseline="short", fail_on="error")

def test_switched_off_it_asserts_nothing(ampwatch_run, monkeypatch):
    monkeypatch.setenv("AMPWATCH", "0")
    ampwatch.assert_healthy(ampwatch_run)
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder of packages with ampwatch's wheel, whose entry point pytest finds."""
    wheels = pytest.importorskip("hatchling.builders.wheel", reason="no hatchling to build with")
    folder = tmp_path_factory.mktemp("site")
    (built,) = wheels.WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    with zipfile.ZipFile(built) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def project(tmp_path_factory, site):
    """The page's files in a folder, and a function that runs a command there."""
    folder = tmp_path_factory.mktemp("project")
    for name, text in re.findall(r"<!-- file: (\S+) -->\n```python\n(.*?)```", PAGE, re.DOTALL):
        (folder / name).write_text(text, encoding="utf-8")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
    }
    environment |= {"PYTHONPATH": str(site), "PYTHONWARNINGS": "ignore", "COLUMNS": "200"}

    def run(*words: object, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *map(str, words)], cwd=folder, env=environment | more,
            capture_output=True, text=True, check=False, timeout=170,
        )  # fmt: skip

    run.folder = folder
    return run


def test_every_command_of_the_page_works_and_the_test_passes(project):
    commands = "".join(re.findall(r"<!-- run -->\n```bash\n(.*?)```", PAGE, re.DOTALL))
    for line in commands.splitlines():
        program, *words = shlex.split(line)
        done = project(*words) if program == "python" else project("-m", program, *words)
        assert done.returncode == 0, (line, done.stdout, done.stderr)
    for name in ("report.sarif", "report.xml"):
        assert (project.folder / name).stat().st_size > 200


def test_with_a_learning_rate_that_breaks_it_the_test_fails_with_the_letter(project):
    text = (project.folder / "test_train.py").read_text("utf-8")
    broken = text.replace("learning_rate=0.05", "learning_rate=30")
    (project.folder / "test_broken.py").write_text(broken, encoding="utf-8")
    done = project("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_broken.py")
    assert done.returncode == 1, done.stdout + done.stderr
    message = [line[1:].strip() for line in done.stdout.splitlines() if line.startswith("E ")]
    ((shown),) = re.findall(r"<!-- fails -->\n```text\n(.*?)```", PAGE, re.DOTALL)
    first, *others = (line.strip() for line in shown.splitlines() if line)
    assert message[0].startswith(f"AssertionError: {first.split()[0]}")
    assert others[0] in message
    assert any("peak learning rate" in line for line in message)
    assert "assert_healthy(ampwatch_run)" in done.stdout
    assert "health_check" not in done.stdout  # our frames are hidden


def test_the_plug_in_keeps_its_other_promises(project):
    for name, rate in (("good", "0.05"), ("short", "0.05")):
        assert project("train.py", rate, name).returncode == 0
    (project.folder / "test_others.py").write_text(OTHER_TESTS)
    done = project("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_others.py")
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr
    assert "6 passed" in done.stdout


def test_a_project_that_does_not_use_it_pays_nothing(project):
    (project.folder / "test_nothing.py").write_text(
        "import sys\ndef test_nothing():\n"
        "    assert 'ampwatch.testing.fixtures' in sys.modules\n"
        "    loaded = {name.split('.')[0] for name in sys.modules}\n"
        "    assert not loaded & {'torch', 'pyarrow', 'numpy', 'zmq', 'rich', 'IPython'}\n"
        "    ours = {name for name in sys.modules if name.split('.')[0] == 'ampwatch'}\n"
        "    assert len(ours) <= 4, ours\n"
    )
    done = project("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_nothing.py",
                   PYTEST_ADDOPTS="-p no:hypothesispytest")  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_can_be_left_out(project):
    done = project("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:ampwatch",
                   "test_train.py")  # fmt: skip
    assert done.returncode == 1
    assert "fixture 'ampwatch_run' not found" in done.stdout
