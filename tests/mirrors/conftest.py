"""What the mirrors' tests share."""

from __future__ import annotations

import os
from pathlib import Path

import children
import pytest
from mirror_parts import train, weights

import ampwatch


@pytest.fixture(scope="session")
def bare_weights(tmp_path_factory):
    """What the training ends with when nothing is mirrored."""
    return weights(train(tmp_path_factory.mktemp("bare"), AMPWATCH_ENDPOINT="off"))


@pytest.fixture
def run_python(tmp_path):
    """Run some Python in a process of its own, where clients may leave threads and settings."""

    def run(code, *arguments, errors=False, given=None):
        environment = {**os.environ, "PYTHONPATH": str(Path(ampwatch.__file__).parents[1])}
        child = children.run("-c", code, *arguments, given=given, cwd=tmp_path, env=environment)
        assert child.returncode == 0, child.stderr
        return child.stderr if errors else child.stdout

    return run


@pytest.fixture(autouse=True)
def _patience(monkeypatch):
    """Runs that are written by hand are not given up between two strokes."""
    monkeypatch.setattr("ampwatch.follow.liveness.GRACE_S", 600.0)
