"""Real ranks do what a page asked in the same step, or none of them does."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import children
import pytest
import torch
from control_ranks import ASKED_AT, HALVED_AT, STEPS

import ampwatch

pytestmark = [
    pytest.mark.slow_ranks,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed"),
    pytest.mark.skipif(sys.platform == "win32", reason="gloo meets in a file here"),
]


def trained(folder, world, deaf=-1):
    environment = {**os.environ, "AMPWATCH_STRICT": "1", "OMP_NUM_THREADS": "1",
                   "PYTHONPATH": str(Path(ampwatch.__file__).parents[1])}  # fmt: skip
    script = Path(__file__).with_name("control_ranks.py")
    done = children.run(script, world, folder / "meet", folder, deaf, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return ampwatch.open_run(folder / "ranks")


def rates(run, rank):
    return run.read("steps", ["lr"], rank=rank).column("lr").to_pylist()


def answers(run, rank):
    rows = [row for row in run.events.to_pylist() if row["rank"] == rank]
    told = [json.loads(row["detail"]) for row in rows if row["kind"] == "control"]
    return [(one["asked"], one["outcome"]) for one in told if "asked" in one]


def test_all_ranks_change_their_rate_in_the_same_step_and_stay_the_same_model(tmp_path):
    run = trained(tmp_path, 4)
    assert run.ranks == (0, 1, 2, 3)
    first = rates(run, 0)
    changed = min(step for step in range(STEPS) if first[step] not in {0.2, 0.1})
    assert changed > ASKED_AT
    halved = [0.2 * (0.5 if step >= HALVED_AT else 1) for step in range(STEPS)]
    assert first == [rate * (0.25 if n >= changed else 1) for n, rate in enumerate(halved)]
    weights = [torch.load(tmp_path / f"{rank}.pt") for rank in range(4)]
    for rank in range(1, 4):
        assert rates(run, rank) == first
        assert answers(run, rank) == [("learning-rate", "done")]
        assert all(torch.equal(weights[0][name], weights[rank][name]) for name in weights[0])
    assert answers(run, 0) == [("learning-rate", "done"), ("save", "done")]
    assert (tmp_path / "saved.pt").exists()


def test_where_one_rank_does_not_hear_of_it_none_does_it_and_that_is_said(tmp_path):
    run = trained(tmp_path, 2, deaf=1)
    for rank in range(2):
        assert rates(run, rank) == [0.2] * HALVED_AT + [0.1] * (STEPS - HALVED_AT)
    assert ("learning-rate", "refused") in answers(run, 0)
    assert answers(run, 1) == []
