"""A rank is killed: what the others leave is read, and the dead one is named."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from subprocess import PIPE

import children
import pytest

import ampwatch

WORLD, LAST_STEP = 3, 30

pytestmark = [
    pytest.mark.slow_kills,
    pytest.mark.skipif(sys.platform == "win32", reason="kills by a POSIX signal"),
]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def train_until_one_dies(folder, dies):
    """Three processes with the environment that torchrun gives; it would end the others itself."""
    script = Path(__file__).with_name("dying_rank.py")
    paths = [str(Path(ampwatch.__file__).parents[1]), str(script.parent)]
    shared = {**os.environ, "DIES": str(dies), "WORLD_SIZE": str(WORLD),
              "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
              "TORCHELASTIC_RUN_ID": f"killed-{dies}",
              "PYTHONPATH": os.pathsep.join(paths)}  # fmt: skip
    ranks = [
        children.start(
            script, folder, LAST_STEP,
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}, stderr=PIPE,
        )
        for rank in range(WORLD)
    ]  # fmt: skip
    try:
        said = [rank.communicate(timeout=150)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert all(rank.returncode for rank in ranks), said


@pytest.mark.parametrize("dies", [0, WORLD - 1])
def test_the_run_of_the_survivors_is_readable_and_the_dead_rank_is_named(tmp_path, dies):
    train_until_one_dies(tmp_path, dies)
    run = ampwatch.open_run(tmp_path / "r")
    last = dict.fromkeys(range(WORLD), 0)
    for row in run.steps.to_pylist():
        last[row["rank"]] = max(last[row["rank"]], row["step"])
    assert all(last[rank] >= LAST_STEP for rank in range(WORLD) if rank != dies)
    found = {f.code: f.ranks for f in ampwatch.diagnose(run).findings}
    said = [e for e in run.events.to_pylist() if e["kind"] == "exception"]
    assert found.get("AMP603") == (dies,), said
