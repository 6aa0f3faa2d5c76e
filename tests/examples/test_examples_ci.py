"""examples/ci/ampwatch.yml is a valid GitHub workflow, and its shell steps do what they say.

Each step's script runs in bash as a runner starts it, one after the other, around real trainings.
What GitHub itself does is played: the expressions' values, and `gh`, which writes down its words.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import children
import pytest

ROOT = Path(__file__).parents[2]
WORKFLOW = ROOT / "examples" / "ci" / "ampwatch.yml"
pytestmark = pytest.mark.slow_starts

TRAINING = """
import os, torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=float(os.environ["RATE"]), momentum=0.9)
scaler = torch.amp.GradScaler("cpu")
for step in range(120):
    inputs = torch.randn(64, 32)
    labels = inputs.reshape(64, 4, 8).sum(2).argmax(1)
    with torch.autocast("cpu", torch.float16):
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
GH = '#!/bin/sh\nprintf "%s\\n" "$@" > commented.txt\ncp comment.md commented.md\n'


def read_workflow():
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load(WORKFLOW.read_text("utf-8"))


def steps():
    return read_workflow()["jobs"]["training"]["steps"]


def evaluated(text: str, values: dict[str, str]) -> str:
    """A text with its expressions replaced; a KeyError names one that the test does not know."""
    return re.sub(r"\$\{\{ (.+?) \}\}", lambda match: values[match[1]], str(text))


@pytest.fixture
def runner(tmp_path):
    """A checked-out repository, in which the workflow's shell steps are run for an event."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, text in (
        ("ampwatch", f'#!/bin/sh\nexec {children.python()} -m ampwatch "$@"\n'),
        ("gh", GH),
    ):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    repository = tmp_path / "repository"
    repository.mkdir()
    subprocess.run(["git", "init", "-q", str(repository)], check=True)
    (repository / "train.py").write_text(TRAINING)
    environment = {
        **children.forking(os.environ), "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        "GITHUB_OUTPUT": str(tmp_path / "output.txt"), "PYTHONWARNINGS": "ignore",
    }  # fmt: skip

    def run(event: str, number: int, rate: float, *, has_good: bool) -> dict[str, int]:
        """The exit code of each shell step up to the first that fails."""
        output = Path(environment["GITHUB_OUTPUT"])
        output.write_text("")
        values = {
            "github.run_id": str(number), "github.run_attempt": "1", "github.token": "token",
            "github.event.pull_request.number": "7",
            "steps.good.outputs.cache-matched-key && '--baseline good' || ''":
                "--baseline good" if has_good else "",
        }  # fmt: skip
        job = {n: evaluated(v, values) for n, v in workflow["jobs"]["training"]["env"].items()}
        codes = {}
        for step in steps():
            is_due = step.get("if") in {None, f"github.event_name == '{event}'"}
            if "run" not in step or step["name"] == "Install" or not is_due:
                continue
            told = dict(line.split("=") for line in output.read_text().splitlines())
            values |= {f"steps.judge.outputs.{name}": value for name, value in told.items()}
            own = {name: evaluated(value, values) for name, value in step.get("env", {}).items()}
            done = subprocess.run(
                ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
                cwd=repository, env={**environment, **job, **own, "RATE": str(rate)},
                capture_output=True, text=True, check=False, timeout=120,
            )  # fmt: skip
            codes[step["name"]] = done.returncode
            if done.returncode:
                run.errors = done.stderr
                break
        return codes

    workflow = read_workflow()
    run.repository, run.errors = repository, ""
    return run


def test_the_workflow_is_one_by_the_schema_of_github():
    pytest.importorskip("check_jsonschema", reason="check-jsonschema, which has the schema")
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows",
         str(WORKFLOW)], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    broken = WORKFLOW.read_text("utf-8").replace("runs-on:", "runs-at:")
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows",
         "-"], capture_output=True, text=True, check=False, input=broken,
    )  # fmt: skip
    assert done.returncode == 1


def test_the_page_names_the_lines_to_change():
    marked = [line for line in WORKFLOW.read_text("utf-8").splitlines() if "# <-" in line]
    assert len(marked) == 2


def test_the_main_branch_leaves_a_good_run_and_a_pull_request_is_held_against_it(runner):
    codes = runner("push", 1, 0.05, has_good=False)
    assert codes == dict.fromkeys(
        ["Train", "Judge", "Fail if the training is not healthy", "Tag the run as good"], 0
    ), runner.errors
    assert not (runner.repository / "commented.md").exists()

    codes = runner("pull_request", 2, 0.045, has_good=True)
    assert codes["Fail if the training is not healthy"] == 0, runner.errors
    comment = (runner.repository / "commented.md").read_text("utf-8")
    assert comment.startswith("## Training\n~~~~\nHEALTHY   ci-2-1")
    assert "As good as ci-1-1." in " ".join(comment.split())
    words = (runner.repository / "commented.txt").read_text("utf-8").split()
    assert words[:3] == ["pr", "comment", "7"]

    codes = runner("pull_request", 3, 30.0, has_good=True)
    assert codes["Fail if the training is not healthy"] == 1
    comment = (runner.repository / "commented.md").read_text("utf-8")
    assert comment.startswith("## Training\n~~~~\nFAILING   ci-3-1")
    assert comment.endswith("~~~~\n")
    assert "Not as good as ci-1-1." in " ".join(comment.split())
    log = json.loads((runner.repository / "ampwatch.sarif").read_text("utf-8"))
    errors = [one for one in log["runs"][0]["results"] if one["level"] == "error"]
    assert {one["baselineState"] for one in errors} == {"new"}
    uris = {one["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for one in errors}
    assert uris == {"train.py"}
    assert "<failure" in (runner.repository / "ampwatch.xml").read_text("utf-8")
