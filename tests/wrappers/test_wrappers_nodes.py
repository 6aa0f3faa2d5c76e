"""Ranks on several machines, ranks that come late, and trainings that meet under one name."""

from __future__ import annotations

import os
from pathlib import Path
from subprocess import PIPE

import children
import pytest
import torch
from test_wrappers_dying_ranks import free_port

import ampwatch
from ampwatch.recorder import Recorder

SCRIPT = Path(__file__).with_name("late_rank.py")
STEPS = 40

pytestmark = [
    pytest.mark.slow_ranks,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed"),
]


def environment(folder, **more):
    """A machine's own: its folder of runs, and what it knows of other runs."""
    return {
        **os.environ, "PYTHONPATH": str(Path(ampwatch.__file__).parents[1]),
        "AMPWATCH_DIR": str(folder), "XDG_STATE_HOME": str(folder / ".state"),
        "OMP_NUM_THREADS": "1", "AMPWATCH_STRICT": "1", **more,
    }  # fmt: skip


def started(*words, env):
    return children.start(*words, env=env, stderr=PIPE)


def finish(*running):
    try:
        said = [child.communicate(timeout=150)[1] for child in running]
    finally:
        for child in running:
            child.kill()
    assert [child.returncode for child in running] == [0] * len(running), said
    return said


def test_two_machines_without_a_shared_disk_are_one_run_and_a_recorder_has_all_of_it(
    tmp_path, monkeypatch
):
    """A static rendezvous by --master-addr: its id is "none"."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))  # the user's keys, on both
    address = ["--nnodes=2", "--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    head = tmp_path / "head"
    with Recorder("tcp://127.0.0.1:*", head) as recorder:
        finish(*(
            started(
                "-m", "torch.distributed.run", "--nproc-per-node=1", *address,
                f"--node-rank={node}", "--", SCRIPT, STEPS,
                env=children.forking(
                    environment(tmp_path / f"node-{node}", AMPWATCH_ENDPOINT=recorder.endpoint)
                ),
            )
            for node in (0, 1)
        ))  # fmt: skip
    parts = [ampwatch.list_runs(tmp_path / f"node-{node}")[0] for node in (0, 1)]
    assert [part.ranks for part in parts] == [(0,), (1,)]
    assert len({(part.id, part.path.name) for part in parts}) == 1
    (whole,) = ampwatch.list_runs(head)
    run = ampwatch.open_run(whole.path)
    assert (run.info.id, run.ranks, run.clean_end) == (parts[0].id, (0, 1), True)
    assert run.steps.num_rows == 2 * STEPS
    assert ampwatch.diagnose(run).findings == ()


def test_a_rank_that_joins_late_is_in_the_run_and_accuses_nobody(tmp_path):
    launch = {"WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "late", "AMPWATCH_ENDPOINT": "off"}
    finish(started(SCRIPT, STEPS, "r", env=environment(tmp_path, RANK="0", **launch)))
    finish(started(SCRIPT, STEPS, "r", env=environment(tmp_path, RANK="1", **launch)))
    (only,) = ampwatch.list_runs(tmp_path)
    run = ampwatch.open_run(only.path)
    assert (run.ranks, run.steps.num_rows) == ((0, 1), 2 * STEPS)
    diagnosis = ampwatch.diagnose(run)
    assert [f.code for f in diagnosis.findings if f.code.startswith("AMP60")] == []
    assert diagnosis.verdict.value == "incomplete"  # nothing wrong, in so few steps


def test_two_trainings_of_one_name_at_once_are_two_runs(tmp_path):
    both = [
        started(SCRIPT, STEPS, "same", env=environment(tmp_path, AMPWATCH_ENDPOINT="off"))
        for _ in range(2)
    ]
    finish(*both)
    found = {run.path.name: ampwatch.open_run(run.path) for run in ampwatch.list_runs(tmp_path)}
    assert found.keys() == {"same", "same-2"}
    assert {run.steps.num_rows for run in found.values()} == {STEPS}
    assert all(run.clean_end for run in found.values())
