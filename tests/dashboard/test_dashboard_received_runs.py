"""Runs that come over the feed are kept if that is asked for, and else shown for a while."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import received_runs
import server_options
from written_runs import write_run

from ampwatch import store
from ampwatch.environment import state_folder
from ampwatch.errors import AmpwatchError


@pytest.fixture
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv(server_options.KEEP_RECEIVED, raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("endpoint", "setting", "kept"),
    [
        ("tcp://127.0.0.1:5797", None, False),
        ("tcp://0.0.0.0:5797", None, True),
        ("tcp://127.0.0.1:5797", "1", True),
        ("tcp://0.0.0.0:5797", "0", False),
    ],
)
def test_they_are_kept_if_that_is_asked_for(state, monkeypatch, endpoint, setting, kept):
    if setting is not None:
        monkeypatch.setenv(server_options.KEEP_RECEIVED, setting)
    assert server_options.keeps_received_runs(endpoint) == kept


HOLDING = """
import sys, os
sys.path.insert(0, sys.argv[1])
import received_runs
print(received_runs.temporary_folder(), flush=True)
sys.stdin.read()
if sys.argv[2] == "killed":
    os._exit(9)
"""


def held(ending):
    """A process that holds a folder for received runs, and the folder."""
    dashboard = Path(received_runs.__file__).parent
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDING, dashboard, ending],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(os.environ),
    )  # fmt: skip
    return child, Path(child.stdout.readline().strip())


def test_their_folder_ends_with_its_process_and_what_a_killed_one_left_goes_later(state):
    (ending, ended), (going, left), (living, stays) = held("ends"), held("killed"), held("ends")
    assert all(folder.is_dir() for folder in (ended, left, stays))
    ending.communicate()
    going.communicate()
    assert (ended.exists(), left.exists()) == (False, True)
    for folder in (left, stays):
        os.utime(folder, (0, 0))
    received_runs._remove_left_folders(state_folder() / "received")
    assert (left.exists(), stays.exists()) == (False, True)
    living.communicate()


def test_one_is_kept_under_a_name_that_is_free(state, tmp_path):
    got = write_run(tmp_path / "got", "run")
    write_run(tmp_path / "own", "run")
    rows = store.open_run(got).steps.num_rows
    kept = received_runs.keep_run(got, tmp_path / "own")
    assert kept == tmp_path / "own" / "run-2"
    assert store.open_run(kept).steps.num_rows == rows
    assert not got.exists()


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_keeps_the_run_where_it_is(state, tmp_path):
    got = write_run(tmp_path / "got", "run")
    (tmp_path / "own").mkdir(mode=0o500)
    with pytest.raises(AmpwatchError, match="cannot be kept"):
        received_runs.keep_run(got, tmp_path / "own")
    assert (got / "run.json").exists()
