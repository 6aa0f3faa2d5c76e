"""What live, ended and lost mean, for hand-written runs and for a process that is really killed."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import time
from pathlib import Path
from subprocess import PIPE

import children
import pytest
from alert_parts import COLLAPSING, wait_for
from written_runs import more, write_run

import ampwatch
from ampwatch import store
from ampwatch.follow import FollowThread, Liveness, State, at_a_glance, follow


def state_of(path, liveness=None):
    """How the run at `path` stands now."""
    return (liveness or Liveness()).refresh(store.open_run(path))[0]


@pytest.fixture
def _impatient(monkeypatch):
    monkeypatch.setattr("ampwatch.follow.liveness.GRACE_S", 0.0)


def test_a_run_with_its_end_marks_has_ended(tmp_path):
    assert state_of(write_run(tmp_path)) is State.ENDED


@pytest.mark.usefixtures("_impatient")
def test_a_run_is_live_while_its_writer_holds_it_and_lost_when_it_lets_go(tmp_path):
    path, liveness = write_run(tmp_path, ended=False), Liveness()  # its rows are an hour old
    with contextlib.closing(store.RankWriter(path, 0)):
        assert state_of(path, liveness) is State.LIVE
    assert state_of(path, liveness) is State.LOST


@pytest.mark.usefixtures("_impatient")
def test_where_no_lock_was_seen_a_run_is_lost_when_no_row_came_for_a_minute(tmp_path):
    assert state_of(write_run(tmp_path, "new", ended=False, age_s=5.0)) is State.LIVE
    assert state_of(write_run(tmp_path, "old", ended=False)) is State.LOST


@pytest.mark.usefixtures("_impatient")
def test_a_quiet_trainer_that_is_heard_of_or_is_this_process_is_not_lost(tmp_path):
    path = write_run(tmp_path, ended=False)
    heard, own = Liveness(), Liveness()
    heard.hear()
    own.began_ns = 1
    assert (state_of(path, heard), state_of(path, own)) == (State.LIVE, State.LIVE)


def test_a_run_that_was_left_long_ago_on_this_machine_never_looks_live(tmp_path):
    here = {"host": platform.node(), "ended": False}
    assert state_of(write_run(tmp_path, "old", **here)) is State.LOST
    assert state_of(write_run(tmp_path, "new", age_s=5.0, **here)) is State.LIVE
    imported = write_run(tmp_path, "imported", source="fairseq", age_s=5.0, ended=False)
    assert state_of(imported) is State.LOST  # the importer has let go of it
    resumed, liveness = write_run(tmp_path, "resumed", **here), Liveness()
    assert state_of(resumed, liveness) is State.LOST
    with contextlib.closing(store.RankWriter(resumed, 0)):
        assert state_of(resumed, liveness) is State.LIVE


def test_a_run_that_has_just_been_let_go_gets_some_seconds(tmp_path):
    path, liveness = write_run(tmp_path, ended=False), Liveness()
    with contextlib.closing(store.RankWriter(path, 0)):
        state_of(path, liveness)
    assert state_of(path, liveness) is State.LIVE


@pytest.mark.usefixtures("_impatient")
def test_a_run_goes_on_after_its_end_if_it_is_resumed(tmp_path):
    path, liveness = write_run(tmp_path), Liveness()
    liveness.began_ns = time.time_ns()
    with contextlib.closing(store.RankWriter(path, 0)):
        assert state_of(path, liveness) is State.LIVE
    more(path, accepted=3, ended=True)
    assert state_of(path, liveness) is State.ENDED


def test_a_run_that_waits_for_a_rank_has_not_ended_unless_it_is_long_quiet(tmp_path):
    fresh = write_run(tmp_path, "fresh", world_size=2, age_s=1.0)
    old = write_run(tmp_path, "old", world_size=2)
    assert (state_of(fresh), state_of(old)) == (State.LIVE, State.ENDED)


def test_in_a_list_a_run_is_live_if_it_is_held_or_was_heard_of_just_now(tmp_path):
    old = write_run(tmp_path, "old", ended=False)
    assert at_a_glance(store.summarize(old)) is State.LOST
    with contextlib.closing(store.RankWriter(old, 0)):
        assert at_a_glance(store.summarize(old)) is State.LIVE
    assert (
        at_a_glance(store.summarize(write_run(tmp_path, "new", ended=False, age_s=1.0)))
        is State.LIVE
    )
    assert at_a_glance(store.summarize(write_run(tmp_path, "ended", age_s=1.0))) is not State.LIVE


def test_a_run_that_is_removed_is_said(tmp_path):
    path = write_run(tmp_path)
    follower = follow(path)
    (path / "run.json").unlink()
    with pytest.raises(ampwatch.errors.NotARunError, match="is gone"):
        follower.update()


def test_a_training_that_is_killed_ends_those_who_follow_it_from_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setattr("ampwatch.follow.liveness.GRACE_S", 0.5)  # no test waits for three seconds
    environment = {
        **os.environ, "PYTHONPATH": str(Path(ampwatch.__file__).parents[1]),
        "AMPWATCH_DIR": str(tmp_path / "runs"), "AMPWATCH_ENDPOINT": "off",
    }  # fmt: skip
    child = children.start("-c", COLLAPSING, env=environment, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    assert child.stdout.readline() == "trained\n", child.communicate()[1]
    path, found, visited = tmp_path / "runs" / "collapse", [], []

    def visit(_folder, follower):
        visited.append(follower)
        return follower.update().is_over

    watch = ampwatch.watch_run(path, found.append, every_s=0.1)
    mirror = ampwatch.mirror(path, to=f"tensorboard:{tmp_path / 'tb'}", every_s=0.1)
    third = FollowThread(visit, print, every_s=0.1, name="third")
    third.follow(path)
    wait_for(lambda: found and visited)
    assert not watch.is_over
    assert not mirror.is_over
    child.send_signal(signal.SIGTERM if os.name == "nt" else signal.SIGKILL)
    child.communicate()
    wait_for(lambda: watch.is_over and mirror.is_over and not third.is_at_work)
    assert "AMP209" in {finding.code for finding in found}
    assert visited[-1].state() is State.LOST
