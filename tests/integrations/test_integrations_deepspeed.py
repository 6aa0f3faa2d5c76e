"""DeepSpeed's own engine on a CPU, against what it says of itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

import ampwatch
from ampwatch.diagnosis import Verdict

pytest.importorskip("deepspeed", reason="DeepSpeed is not installed")
pytestmark = [pytest.mark.slow_frameworks, pytest.mark.filterwarnings("ignore")]

HERE = Path(__file__).parent
CASES = ("fp16-2", "fp16-2-parts", "fp16-0", "bf16-0", "bf16-1", "bf16-3", "healthy", "silent")


def ended(folder, *command):
    """A process with what DeepSpeed asks of the environment has ended well."""
    environment = {
        **os.environ, "DS_ACCELERATOR": "cpu", "DS_BUILD_OPS": "0", "RANK": "0", "LOCAL_RANK": "0",
        "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(20_000 + os.getpid() % 9_999),
        "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), *sys.path]),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, *command, HERE / "deepspeed_trainings.py", folder],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The runs of all cases, and what the engine told of each."""
    folder = tmp_path_factory.mktemp("deepspeed")
    ended(folder)
    told = json.loads((folder / "told.json").read_text())
    return {name: (ampwatch.open_run(folder / name), told[name]) for name in CASES}


@pytest.mark.parametrize("case", CASES)
def test_the_engine_trains_to_the_same_bit_and_each_step_is_as_it_says(trained, case):
    run, engine = trained[case]
    assert engine["same"]
    rows = run.steps.to_pylist()
    assert [row["step"] for row in rows] == list(range(len(engine["told"])))
    for row, (loss, norm, skipped, scale) in zip(rows, engine["told"], strict=True):
        assert (row["loss"], row["grad_norm"]) == pytest.approx((loss, norm), rel=1e-6, nan_ok=True)
        assert (row["skipped"], row["stepped"], row["scale"]) == (skipped, not skipped, scale)
        assert row["lr"] == 1e-3
    assert any(row["skipped"] for row in rows) == (case != "healthy")
    assert run.clean_end


def test_the_scale_falls_after_a_skip_as_the_engine_lowers_it(trained):
    rows = trained["fp16-2"][0].steps.to_pylist()
    assert all(a["scale_after"] == b["scale"] for a, b in pairwise(rows))
    assert all(row["scale_after"] < row["scale"] for row in rows if row["skipped"])


def test_a_healthy_engine_has_no_finding_and_its_weights_are_known_to_be_copies(trained):
    diagnosis = ampwatch.diagnose(trained["healthy"][0])
    assert diagnosis.verdict is Verdict.HEALTHY
    assert diagnosis.findings == ()


def test_a_bf16_engine_that_skips_every_step_in_silence_is_a_silent_skip(trained):
    run, _ = trained["silent"]
    assert all(run.steps["skipped"].to_pylist())
    diagnosis = ampwatch.diagnose(run)
    assert diagnosis.verdict is Verdict.FAILING
    found = {one.code: one for one in diagnosis.findings}
    assert "no loss scale that falls" in found["AMP417"].cause
    assert "AMP212" not in found


def test_ampwatch_run_finds_the_engine_of_a_script(tmp_path):
    (tmp_path / "only.txt").write_text("fp16-2")
    ended(tmp_path, "-m", "ampwatch", "run", "--name", "it", "-o", tmp_path / "runs")
    run, told = ampwatch.open_run(tmp_path / "runs" / "it"), tmp_path / "told.json"
    engine = json.loads(told.read_text())["fp16-2"]["told"]
    assert run.steps["skipped"].to_pylist() == [row[2] for row in engine]
    assert run.steps["scale"].to_pylist() == [row[3] for row in engine]
