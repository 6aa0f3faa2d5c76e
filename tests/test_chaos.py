"""benchmarks/chaos.py sees what it is there to see: each way to fail, with its seed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"

# Kinds that fail in every way there is, each in a child that the benchmark's own driver watches.
SCRIPT = """
import json, os, random, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from chaos_trials import Batch, Changed, Hung, Kind, Lost, end_descendants, inherit_orphans

def fine(trial): trial.inputs += 3
def crashes(trial): trial.say("to crash"); os.abort()
def hangs(trial): trial.say("to hang"); time.sleep(60)
def raises(trial): {}["absent"]
def loses(trial): raise Lost("a row")
def changes(trial): raise Changed("a weight")
def waits(trial): raise Hung("no answer")
def swells(trial): bytearray(700 << 20)
def bursts(trial): bytearray(4 << 30)
def second_fails(trial):
    if trial.chance.random() == random.Random("second_fails 8").random(): raise Lost("a row")
def leaves(trial):
    if os.fork() == 0:
        os.setsid()
        time.sleep(60)

inherit_orphans()
works = (fine, crashes, hangs, raises, loses, changes, waits, swells, bursts, second_fails, leaves)
folder, found = Path(sys.argv[2]), {}
for number, work in enumerate(works):
    limit_s = 1.0 if work is hangs else 30.0
    kind = Kind(work.__name__, work, 1, limit_s, 1.0, True)
    count = 3 if work is second_fails else 1
    batch = Batch(kind, 7, count, folder / str(number), folder)
    while not batch.is_over():
        time.sleep(0.01)
    found[work.__name__] = [(r.seed, r.outcome, r.tried, r.detail, r.inputs) for r in batch.records]
found["left"] = end_descendants()
print(json.dumps(found))
"""


@pytest.mark.slow_kills
@pytest.mark.skipif(sys.platform != "linux", reason="the benchmark forks and reads /proc")
def test_chaos_tells_every_way_to_fail_with_the_seed_that_repeats_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, BENCHMARKS, tmp_path]
    told = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert told.returncode == 0, told.stderr
    found = json.loads(told.stdout)
    outcomes = {name: one[0][1] for name, one in found.items() if name != "left"}
    assert outcomes == {
        "fine": "ok", "crashes": "raised", "hangs": "hung", "raises": "raised", "loses": "lost",
        "changes": "changed", "waits": "hung", "swells": "too large", "bursts": "too large",
        "second_fails": "ok", "leaves": "ok",
    }  # fmt: skip
    assert found["fine"] == [[7, "ok", "", "", 3]]
    assert [one[:2] for one in found["second_fails"]] == [[7, "ok"], [8, "lost"], [9, "ok"]]
    assert found["crashes"][0][2] == "to crash"
    assert "SIGABRT" in found["crashes"][0][3]
    assert found["hangs"][0][2] == "to hang"
    assert "KeyError" in found["raises"][0][3]
    assert found["left"] == 0
    assert list(tmp_path.iterdir()) == []
