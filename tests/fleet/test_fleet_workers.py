"""Processes that judge: how they end."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import children
import pytest

import ampwatch

# One share takes ten minutes; when the other one's result has come, an object takes long to end.
LONG_DESTRUCTOR = """
import signal, time
from ampwatch.fleet.workers import LocalWorkers

class Slow:
    def __del__(self):
        print("in a destructor", flush=True)
        time.sleep(600)

for _ in LocalWorkers(2).as_done(signal.sigtimedwait, (), [0.0, 600.0]):
    Slow()
"""


@pytest.mark.slow_kills
@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
def test_ctrl_c_ends_the_work_also_if_python_drops_what_it_raises():
    child = children.start(
        "-c", LONG_DESTRUCTOR, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(ampwatch.__file__).parents[1])},
    )  # fmt: skip
    assert child.stdout.readline() == "in a destructor\n"
    child.send_signal(signal.SIGINT)
    _, told = child.communicate(timeout=60)
    assert "Exception ignored in" in told  # the first one
    assert told.rstrip().endswith("KeyboardInterrupt")
    assert child.returncode != 0
