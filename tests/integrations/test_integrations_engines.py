"""Megatron-core's, torchtitan's and verl's own code on a CPU, against what it says of itself."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest

import ampwatch

pytestmark = [pytest.mark.slow_frameworks, pytest.mark.filterwarnings("ignore")]

HERE = Path(__file__).parent
RUN = ("-m", "ampwatch", "run", "--name", "it", "-o")
TWO_RANKS = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone")
BAD = 5  # the step in which Megatron's loss is not finite


def ended(folder, library, *command):
    """The trainings of a library's file have ended well."""
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    environment = {
        **os.environ, "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(20_000 + os.getpid() % 9_999),
        "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), *sys.path]),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *command, HERE / f"{library}_trainings.py", folder],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """All cases of a library: its runs, and what it said of each step; trained once."""
    known = {}

    def of(library, told_in):
        if library not in known:
            folder = tmp_path_factory.mktemp(library)
            ended(folder, library)
            told = json.loads((folder / told_in).read_text())
            known[library] = {n: (ampwatch.open_run(folder / n), told[n]) for n in told}
        return known[library]

    return of


# -- Megatron-core ---------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["fp16", "fp16-distributed", "bf16", "bf16-distributed", "fp32"])
def test_megatron_trains_to_the_same_bit_and_each_step_is_as_it_says(trained, case):
    run, said = trained("megatron", "told.json")[case]
    assert said["same"]
    rows = run.steps.to_pylist()
    assert [row["step"] for row in rows] == list(range(len(said["told"])))
    for row, (loss, norm, success, scale, after) in zip(rows, said["told"], strict=True):
        assert row["loss"] == pytest.approx(loss, rel=1e-6, nan_ok=True)
        assert row["grad_norm"] == pytest.approx(norm, nan_ok=True)
        assert (row["skipped"], row["stepped"]) == (not success, success)
        scales = (scale, after) if "fp16" in case else (None, None)
        assert (row["scale"], row["scale_after"]) == scales
        assert row["lrs"] == pytest.approx([1e-3 * (row["step"] + 1) / part for part in (1, 2)])
    layers = {row["layer"]: row for row in run.layers.to_pylist()}
    kind = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}[case.split("-")[0]]
    assert layers["decoder.layers.0.mlp.linear_fc1"]["output_dtype"] == kind
    assert run.clean_end


def test_megatrons_skip_lowers_the_scale_and_its_nan_in_bf16_is_seen(trained):
    runs = trained("megatron", "told.json")
    rows = runs["fp16"][0].steps.to_pylist()
    assert [row["step"] for row in rows if row["skipped"]] == [BAD]
    assert rows[BAD]["scale_after"] == rows[BAD]["scale"] / 2
    assert all(a["scale_after"] == b["scale"] for a, b in pairwise(rows))
    assert math.isnan(runs["bf16"][0].steps["grad_norm"].to_pylist()[BAD])
    assert "AMP207" in {one.code for one in ampwatch.diagnose(runs["bf16"][0]).findings}


def test_ampwatch_run_finds_megatrons_optimizer_and_model_on_two_ranks(tmp_path):
    (tmp_path / "only.txt").write_text("fp16-distributed")
    ended(tmp_path, "megatron", *RUN, tmp_path / "runs", *TWO_RANKS)
    run = ampwatch.open_run(tmp_path / "runs" / "it")
    said = json.loads((tmp_path / "told.json").read_text())["fp16-distributed"]["told"]
    for rank in (0, 1):
        rows = [row for row in run.steps.to_pylist() if row["rank"] == rank]
        assert [row["skipped"] for row in rows] == [not one[2] for one in said]
        assert [row["scale"] for row in rows] == [one[3] for one in said]
    assert "decoder.layers.0.mlp.linear_fc1" in run.layers["layer"].to_pylist()


# -- torchtitan ------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["clipped", "broken"])
def test_torchtitan_trains_to_the_same_bit_and_each_step_is_as_it_says(trained, case):
    run, said = trained("torchtitan", "told-0.json")[case]
    assert said["same"]
    rows = run.steps.to_pylist()
    for row, (loss, norm, rate) in zip(rows, said["told"], strict=case == "clipped"):
        assert (row["loss"], row["grad_norm"]) == pytest.approx((loss, norm), rel=1e-6)
        assert row["grad_norm_applied"] == pytest.approx(
            min(norm, 0.5 if case == "clipped" else norm)
        )
        assert (row["lr"], row["stepped"]) == (pytest.approx(rate), True)
    layers = {row["layer"]: row for row in run.layers.to_pylist()}
    assert layers["layers.0.feed_forward.w2"]["output_dtype"] == "bfloat16"
    if case == "broken":  # it raises after the step, with or without ampwatch
        assert "Loss is not finite" in said["failed"]
        assert len(rows) == 3
        assert math.isnan(rows[-1]["loss"])
        assert math.isnan(rows[-1]["grad_norm"])


def test_ampwatch_run_watches_two_ranks_of_torchtitan_with_the_norm_of_both(tmp_path):
    (tmp_path / "only.txt").write_text("clipped")
    ended(tmp_path, "torchtitan", *RUN, tmp_path / "runs", *TWO_RANKS)
    rows = ampwatch.open_run(tmp_path / "runs" / "it").steps.to_pylist()
    said = json.loads((tmp_path / "told-0.json").read_text())["clipped"]["told"]
    assert len(rows) == 2 * len(said)
    for step, (loss, norm, _) in enumerate(said):
        both = [row for row in rows if row["step"] == step]
        assert [row["grad_norm"] for row in both] == pytest.approx([norm] * 2)
        assert sum(row["loss"] for row in both) / 2 == pytest.approx(loss)


# -- verl ------------------------------------------------------------------------------------------


def test_plain_attach_watches_the_scaler_of_verls_fsdp_actor(trained):
    """Its loss is the last micro-batch's: what the others leave, FSDP keeps apart until then."""
    run, said = trained("verl", "told.json")["it"]
    assert said["same"]
    rows = run.steps.to_pylist()
    assert [row["step"] for row in rows if row["skipped"]] == [4]
    assert rows[4]["scale_after"] == rows[4]["scale"] / 2
    for row, (loss, norm, scale) in zip(rows, said["told"], strict=True):
        assert row["scale"] == scale
        assert row["grad_norm"] == pytest.approx(norm, rel=1e-5, nan_ok=True)
        assert row["loss"] == pytest.approx(loss, nan_ok=True)
