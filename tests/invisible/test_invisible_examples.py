"""Every example ends, after 200 steps, exactly as it would without the watch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import ampwatch

HERE = Path(__file__).parent
STEPS = 200


def start(mode: str, folder: Path, watch: str) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "AMPWATCH": watch,
        "AMPWATCH_ENDPOINT": "off",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(HERE.parents[1]),
    }
    folder.mkdir()
    command = [sys.executable, str(HERE / "run_examples.py"), mode, str(folder), str(STEPS)]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(child: subprocess.Popen[str]) -> dict[str, dict[str, str]]:
    output, errors = child.communicate(timeout=150)
    assert child.returncode == 0, errors
    return json.loads(output.splitlines()[-1])


def test_examples_end_bit_for_bit_as_without_the_watch(tmp_path: Path) -> None:
    bare, off = start("bare", tmp_path / "bare", "1"), start("watched", tmp_path / "off", "0")
    alone, switched_off = finish(bare), finish(off)
    watched = finish(start("watched", tmp_path / "on", "1"))
    assert set(alone) == set(watched) >= {"minimal", "gan", "save_and_resume"}
    for example, digest in alone.items():
        assert unequal(digest, watched[example]) == [], example
        assert unequal(digest, switched_off[example]) == [], example
    assert not list((tmp_path / "off").glob("*/run.json"))
    runs = [ampwatch.open_run(path.parent) for path in (tmp_path / "on").glob("*/run.json")]
    assert len(runs) == len(alone) + 2  # the recipe makes three
    assert all(len(set(run.steps["step"].to_pylist())) == STEPS for run in runs)


def unequal(one: dict[str, str], other: dict[str, str]) -> list[str]:
    return [place for place in one | other if one.get(place) != other.get(place)]
