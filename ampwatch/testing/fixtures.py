"""The pytest plug-in: the fixture `ampwatch_run`, which gives a test a folder for its runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ampwatch import testing


@pytest.fixture
def ampwatch_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in which every training that this test attaches leaves its run.

    Pass it to `ampwatch.assert_healthy`. The trainings of child processes write there, too.
    """
    from ampwatch.store import default_log_dir

    folder = tmp_path / "ampwatch-runs"
    folder.mkdir(exist_ok=True)
    monkeypatch.setattr(testing, "project_runs", default_log_dir().absolute())
    monkeypatch.setenv("AMPWATCH_DIR", str(folder))
    if "AMPWATCH_ENDPOINT" not in os.environ:
        monkeypatch.setenv("AMPWATCH_ENDPOINT", "off")
    yield folder
    testing.close_watches(folder)
