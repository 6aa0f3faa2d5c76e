import pytest


@pytest.fixture(autouse=True)
def own_folders(tmp_path, monkeypatch):
    """The user's configuration and state are the test's own; what is told is told at once."""
    monkeypatch.setenv("AMPWATCH_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("AMPWATCH_ENDPOINT", "AMPWATCH_INSECURE", "AMPWATCH_RECORDER_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("ampwatch.recorder.recorder_process._REPORT_EVERY_S", 0.0)


@pytest.fixture
def copies(tmp_path):
    return tmp_path / "copies"
