"""The wrappers of several ranks, two real ones over gloo, against what is promised of each."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import children
import pytest
import torch
from wrapper_parts import SPOILT, STEPS, culprits
from wrapper_rank_cells import RANK_WRAPPERS

import ampwatch
from ampwatch.diagnosis import Action

no_fsdp2 = pytest.mark.skip(reason="this torch's fully_shard needs the GPU that it was built for")
every_wrapper = pytest.mark.parametrize(
    "wrapper",
    [pytest.param(one, id=one.name, marks=[] if one.runs else no_fsdp2) for one in RANK_WRAPPERS],
)
pytestmark = [
    pytest.mark.slow_ranks,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed"),
    pytest.mark.skipif(sys.platform == "win32", reason="gloo meets in a file here"),
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Every wrapper, trained once by two processes, watched and unwatched."""
    folder = tmp_path_factory.mktemp("ranks")
    script = Path(__file__).with_name("ranks_wrappers.py")
    paths = [str(Path(ampwatch.__file__).parents[1]), str(script.parent)]
    environment = {**os.environ, "AMPWATCH_STRICT": "1", "PYTHONPATH": os.pathsep.join(paths),
                   "XDG_STATE_HOME": str(folder)}  # fmt: skip
    done = children.run(script, folder / "meet", folder, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


def told(trained, wrapper, rank, table="steps"):
    run = ampwatch.open_run(trained / wrapper.name)
    return [row for row in run.read(table).to_pylist() if row["rank"] == rank]


def twins(trained, wrapper):
    for rank in (0, 1):
        yield rank, *torch.load(trained / f"{wrapper.name}-{rank}.pt", weights_only=False)


@every_wrapper
def test_attach_changes_no_bit_of_any_rank(wrapper, trained):
    for rank, truth, ends in twins(trained, wrapper):
        assert all(torch.equal(a, b) for a, b in zip(ends.weights, truth.weights, strict=True))
        assert (ends.scaler, ends.hooks) == (truth.scaler, truth.hooks)
        assert torch.equal(ends.random, truth.random)
        rows = told(trained, wrapper, rank)
        assert [row["step"] for row in rows if row["skipped"]] == [SPOILT]
        assert len(rows) == STEPS


@every_wrapper
def test_data_types_are_told_of_each_layer_that_can_be_seen(wrapper, trained):
    for rank in (0, 1):
        layers = told(trained, wrapper, rank, "layers")
        last = {row["layer"]: row["output_dtype"] for row in layers if row["step"] == STEPS - 1}
        assert {name: last[name] for name in wrapper.dtypes} == dict(wrapper.dtypes)


@every_wrapper
def test_norms_are_the_truth_or_marked_as_a_shards(wrapper, trained):
    for rank, truth, _ in twins(trained, wrapper):
        rows = [row for row in told(trained, wrapper, rank) if row["step"] != SPOILT]
        column = "grad_norm_shard" if wrapper.sharded else "grad_norm"
        assert [row[column] for row in rows] == pytest.approx(
            [truth.norms[row["step"], 0] for row in rows], rel=1e-5
        )
        if wrapper.sharded:
            assert {row["grad_norm"] for row in rows} == {None}
        else:
            assert "grad_norm_shard" not in rows[0]
        layers = {(row["step"], row["layer"]): row["grad_norm"]
                  for row in told(trained, wrapper, rank, "layers")}  # fmt: skip
        good = {key: None if wrapper.sharded else pytest.approx(norm, rel=1e-5)
                for key, norm in truth.layer_norms.items() if key[0] != SPOILT}  # fmt: skip
        assert {key: layers[key] for key in good} == good


def test_the_shards_norms_add_up_to_that_of_the_same_training_unsharded(trained):
    by_name = {wrapper.name: wrapper for wrapper in RANK_WRAPPERS}
    whole = told(trained, by_name["DistributedDataParallel"], 0)[0]["grad_norm"]
    for wrapper in RANK_WRAPPERS:
        if wrapper.sharded and wrapper.runs:
            parts = [told(trained, wrapper, rank)[0]["grad_norm_shard"] for rank in (0, 1)]
            assert sum(part**2 for part in parts) ** 0.5 == pytest.approx(whole, rel=1e-4)


@every_wrapper
def test_the_layer_that_overflows_is_named_by_each_rank(wrapper, trained):
    run = ampwatch.open_run(trained / wrapper.name)
    assert [culprits(run, rank) for rank in (0, 1)] == [{SPOILT: wrapper.culprit}] * 2


@every_wrapper
def test_a_rate_that_is_too_high_is_to_be_lowered_and_one_that_is_not_is_not(wrapper, trained):
    well, high = (
        ampwatch.diagnose(ampwatch.open_run(trained / f"{wrapper.name} {word}")).learning_rate
        for word in ("well", "too high")
    )
    assert well.action is not Action.LOWER
    assert high.action is Action.LOWER
    assert high.recommended < high.current
