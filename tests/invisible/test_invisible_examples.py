"""Every example prints and ends, after 60 steps, exactly as it would without the watch."""

from __future__ import annotations

import json
import os
from pathlib import Path
from subprocess import PIPE

import children
import pytest

import ampwatch

HERE = Path(__file__).parent
STEPS = 60  # the layers of the first ten and the 51st are looked at in detail


def start(folder: Path, watch: str) -> children.Running:
    environment = {
        **os.environ,
        "AMPWATCH": watch,
        "AMPWATCH_ENDPOINT": "off",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(HERE.parents[1]),
    }
    folder.mkdir()
    words = HERE / "run_examples.py", folder, STEPS
    return children.start(*words, env=environment, stdout=PIPE, stderr=PIPE)


def finish(child: children.Running) -> dict[str, dict[str, str]]:
    output, errors = child.communicate(timeout=150)
    assert child.returncode == 0, errors
    own = [line for line in errors.splitlines() if "site-packages" not in line]
    assert not any("ampwatch" in line for line in own), errors
    return json.loads(output.splitlines()[-1])


@pytest.mark.slow_trainings
def test_examples_end_bit_for_bit_as_without_the_watch(tmp_path: Path) -> None:
    both = start(tmp_path / "off", "0"), start(tmp_path / "on", "")
    alone, watched = (finish(child) for child in both)
    assert set(alone) == set(watched) >= {"minimal", "gan", "save_and_resume"}
    for example, digest in alone.items():
        assert unequal(digest, watched[example]) == [], example
    assert not list((tmp_path / "off").rglob("run.json"))
    runs = [ampwatch.open_run(path.parent) for path in (tmp_path / "on").glob("*/run.json")]
    assert len(runs) == len(alone) + 2  # the recipe makes three
    assert all(len(set(run.steps["step"].to_pylist())) == STEPS for run in runs)


def unequal(one: dict[str, str], other: dict[str, str]) -> list[str]:
    return [place for place in one | other if one.get(place) != other.get(place)]
