"""The server keeps no memory that it has freed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DASHBOARD = Path(__file__).parents[2] / "dashboard"
# Small objects between large ones: where glibc has both in one heap, none of it goes back.
FREES = """
import os, sys
from pathlib import Path
import pyarrow as pa
import open_runs

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

open_runs.give_freed_memory_back()
before = resident()
kept, freed = [], []
for _ in range(1000):
    freed.append(bytearray(100_000))
    kept.append(bytearray(600))
most = resident() - before
del freed
print(most, resident() - before, pa.default_memory_pool().backend_name)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's options, and /proc")
def test_freed_memory_goes_back_to_the_system():
    child = subprocess.run(
        [sys.executable, "-c", FREES], cwd=DASHBOARD, capture_output=True, text=True, timeout=120
    )
    assert child.returncode == 0, child.stderr
    most, left, pool = child.stdout.split()
    assert int(most) > 90e6
    assert int(left) < 10e6
    assert pool == "system"
