"""A process killed at a random moment: its log opens, and what it had acknowledged is there.

`python tests/store/test_store_kills.py --kills 100` does it more often.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from subprocess import PIPE

sys.path.insert(0, str(Path(__file__).parents[1]))  # where it is run as a program

import children
import pytest
from store_samples import create_run, info

from ampwatch.codec import decode
from ampwatch.rows import Table
from ampwatch.store import RankWriter, open_run

CHILD = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from store_samples import event, layers, steps
from ampwatch.store import RankWriter
writer = RankWriter(Path(sys.argv[2]), 0)
step = int(sys.argv[3])
print("ready", flush=True)
while True:
    writer.append(steps(step, 1 + step % 70))
    if step % 3 == 0:
        writer.append(layers(step, 40))
    step += 1 + step % 70
    print(step, flush=True)
"""


def kill_once(run: Path, first_step: int, delay_s: float) -> int:
    """Write from `first_step` on until killed; return the first step not acknowledged."""
    here = Path(__file__).parent
    child = children.start("-c", CHILD, here, run, first_step, env=os.environ, stdout=PIPE)
    assert child.stdout.readline() == "ready\n"
    time.sleep(delay_s)
    child.kill()
    printed, _ = child.communicate()
    whole_lines = printed[: printed.rfind("\n") + 1].split()
    return int(whole_lines[-1]) if whole_lines else first_step


def check_all_there(run: Path, acknowledged: int) -> int:
    """Every acknowledged step is there once and in order; the next step that is not."""
    found = open_run(run).read("steps", ["step", "loss"])
    steps = found.column("step").to_pylist()
    assert steps == list(range(len(steps)))
    assert len(steps) >= acknowledged
    assert found.column("loss").to_pylist() == [step / 8 for step in steps]
    return len(steps)


def kill_often(folder: Path, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    run = create_run(folder, info())
    next_step = 0
    for _ in range(kills):
        acknowledged = kill_once(run, next_step, chance.random() * 0.05)
        next_step = check_all_there(run, acknowledged)
    writer = RankWriter(run, 0)
    for number, batch in writer.read_from(0, 1 << 30):
        assert decode(batch.table, batch.payload).num_rows == batch.row_count, number
    writer.close()
    assert next_step > kills
    assert open_run(run).notes == ()
    assert open_run(run).read(Table.LAYERS, ["step"]).num_rows > 0


@pytest.mark.parametrize("kills", [3, pytest.param(25, marks=pytest.mark.slow_kills)])
def test_killed_again_and_again_a_log_keeps_all_that_was_acknowledged(
    tmp_path: Path, kills: int
) -> None:
    kill_often(tmp_path, kills, seed=1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=100)
    with tempfile.TemporaryDirectory() as folder:
        kill_often(Path(folder), parser.parse_args().kills, seed=2)
    print("nothing acknowledged was lost")
