"""What every test stands on: folders of its own, a strict guard, and nobody's endpoint."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Children of the tests inherit these too: what fails inside the guard fails the test.
os.environ["AMPWATCH_STRICT"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def own_folders(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's configuration and state are the test's own; nothing is sent unless it asks."""
    home = tmp_path_factory.mktemp("home")
    for variable in ("AMPWATCH_DIR", "AMPWATCH", "AMPWATCH_INSECURE", "AMPWATCH_NOTIFY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("AMPWATCH_CONFIG_DIR", str(home / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))
    monkeypatch.setenv("AMPWATCH_ENDPOINT", "off")
    return home
