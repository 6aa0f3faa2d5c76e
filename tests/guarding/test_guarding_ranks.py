"""Real ranks leave the same steps out, or none does."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import children
import pytest
import torch
from guarded_ranks import BAD, DIES_AT, STEPS
from guarded_training import guard_events, same

import ampwatch

pytestmark = [
    pytest.mark.slow_ranks,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed"),
    pytest.mark.skipif(sys.platform == "win32", reason="gloo meets in a file here"),
]


def trained(folder, world, case):
    environment = {**os.environ, "AMPWATCH_STRICT": "1", "OMP_NUM_THREADS": "1",
                   "PYTHONPATH": str(Path(ampwatch.__file__).parents[1])}  # fmt: skip
    script = Path(__file__).with_name("guarded_ranks.py")
    done = children.run(script, world, folder / "meet", folder, case, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return ampwatch.open_run(folder / "ranks")


def weights(folder, rank, step=STEPS - 1):
    return torch.load(folder / f"{rank}.{step}.pt")


def left_out(run, rank):
    return [step for step, one in guard_events(run, rank) if one.get("decided") == "leave-out"]


@pytest.mark.parametrize("case", ["ddp", "fsdp"])
def test_ranks_leave_out_the_same_steps_where_gradients_are_reduced(tmp_path, case):
    run = trained(tmp_path, 2, case)
    for rank in range(2):
        assert left_out(run, rank) == list(BAD)
        for step in BAD:
            assert same(weights(tmp_path, rank, step), weights(tmp_path, rank, step - 1))
        assert not same(weights(tmp_path, rank, 100), weights(tmp_path, rank, 99))
    assert same(weights(tmp_path, 0), weights(tmp_path, 1)) == (case == "ddp")  # else shards


def test_four_ranks_leave_out_the_same_steps_and_lower_the_rate_in_the_same(tmp_path):
    run = trained(tmp_path, 4, "lower")
    lowered = [
        [step for step, one in guard_events(run, rank) if one["decided"] == "lower-rate"]
        for rank in range(4)
    ]
    assert len(lowered[0]) == 1
    rates = [run.read("steps", ["lr"], rank=rank).column("lr").to_pylist() for rank in range(4)]
    at = lowered[0][0]
    assert rates[0][at] < 0.3 * rates[0][at - 1]
    for rank in range(4):
        assert left_out(run, rank) == list(BAD)
        assert lowered[rank] == lowered[0]
        assert rates[rank] == rates[0]
        assert same(weights(tmp_path, 0), weights(tmp_path, rank))


def test_a_step_that_one_rank_alone_finds_outlying_is_left_out_by_all(tmp_path):
    run = trained(tmp_path, 2, "parts")
    for rank in range(2):
        assert left_out(run, rank) == list(BAD)
        for step in BAD:
            assert same(weights(tmp_path, rank, step), weights(tmp_path, rank, step - 1))
    told = [one["told"] for _, one in guard_events(run, 1) if one.get("action") == "leave-out"]
    assert ["Another rank's" in words for words in told] == [True, False, True]
    assert "the loss was" in told[1]  # this rank's own: all hear of it


def test_where_one_rank_alone_is_at_its_cap_all_stop_in_the_same_step(tmp_path):
    run = trained(tmp_path, 2, "stops")
    for rank in range(2):
        decided = [(step, one["decided"]) for step, one in guard_events(run, rank)]
        assert decided == [(0, "begin"), (BAD[0], "leave-out"), (BAD[1], "stop")]
        assert same(weights(tmp_path, rank, BAD[1]), weights(tmp_path, rank, BAD[1] - 1))
        assert not (tmp_path / f"{rank}.{BAD[1] + 1}.pt").exists()


def test_where_one_rank_has_no_guard_nothing_is_done_and_that_is_said_once(tmp_path):
    run = trained(tmp_path, 2, "one")
    assert left_out(run, 0) == []
    said = [one["told"] for _, one in guard_events(run, 0) if "from here on" in one["told"]]
    assert len(said) == 1
    assert "not every rank has a guard" in said[0]
    assert not same(weights(tmp_path, 0, BAD[0]), weights(tmp_path, 0, BAD[0] - 1))


def test_where_a_rank_dies_before_the_vote_the_others_go_on_and_do_nothing(tmp_path):
    run = trained(tmp_path, 2, "dies")
    assert left_out(run, 0) == [BAD[0]]
    said = [one["told"] for _, one in guard_events(run, 0) if "from here on" in one["told"]]
    assert len(said) == 1
    assert not (tmp_path / f"1.{DIES_AT}.pt").exists()
    assert not same(weights(tmp_path, 0, DIES_AT), weights(tmp_path, 0, DIES_AT - 1))
