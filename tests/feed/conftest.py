import pytest


@pytest.fixture(autouse=True)
def own_folders(tmp_path, monkeypatch):
    """The user's configuration and state, in a folder of the test's own."""
    monkeypatch.setenv("AMPWATCH_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("AMPWATCH_ENDPOINT", "AMPWATCH_INSECURE", "AMPWATCH_RECORDER_KEY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path
