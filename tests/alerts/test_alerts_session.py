"""`watch_run` in the process that trains, and alerts of the runs that a recorder files."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import children
import pytest
from alert_parts import wait_for
from written_runs import more, write_run

import ampwatch
from ampwatch import store
from ampwatch.alerts import alert_session
from ampwatch.diagnosis import Severity
from ampwatch.errors import NotARunError


@pytest.fixture(autouse=True)
def _patience(monkeypatch):
    """Runs that are written by hand are not given up between two strokes."""
    monkeypatch.setattr("ampwatch.follow.liveness.GRACE_S", 600.0)


def test_each_finding_is_given_once_and_the_thread_ends_with_the_run(tmp_path):
    path, found = write_run(tmp_path, ended=False), []
    watch = ampwatch.watch_run(path, found.append, every_s=0.02)
    more(path, skipped=20)
    wait_for(lambda: found)
    more(path, skipped=20, first=120, ended=True)
    wait_for(lambda: watch.is_over)
    told = [(finding.code, finding.severity) for finding in found]
    assert "AMP103" in {code for code, _ in told}
    assert len(set(told)) == len(told)
    assert all(severity is not Severity.INFO for _, severity in told)


def test_closing_takes_a_last_look(tmp_path):
    path, found = write_run(tmp_path, ended=False), []
    with ampwatch.watch_run(path, found.append, every_s=3600.0):
        time.sleep(0.1)
        more(path, skipped=30)
    assert "AMP103" in {finding.code for finding in found}


def test_a_callback_that_raises_is_warned_of_once_and_called_again(tmp_path):
    path, calls = write_run(tmp_path, skipped=40), []

    def raises(finding):
        calls.append(finding)
        raise ValueError("mine")

    with pytest.warns(RuntimeWarning, match="on_finding raised ValueError: mine") as said:
        ampwatch.watch_run(path, raises).close()
    assert len(calls) > 1
    assert len(said) == 1


def test_closing_from_within_the_callback_does_not_wait_for_itself(tmp_path):
    done = threading.Event()

    def close(_):
        watch.close()
        done.set()

    path = write_run(tmp_path, ended=False)
    watch = ampwatch.watch_run(path, close, every_s=0.02)
    more(path, skipped=30)
    assert done.wait(30)
    watch.close()


def test_of_a_run_that_is_resumed_the_end_before_is_no_end(tmp_path):
    class Resumed:
        run_folder, began_ns = write_run(tmp_path), time.time_ns()

    found = []
    watch = ampwatch.watch_run(Resumed, found.append, every_s=0.02)
    time.sleep(0.1)
    more(Resumed.run_folder, skipped=30, ended=True)
    wait_for(lambda: watch.is_over)
    assert "AMP103" in {finding.code for finding in found}


def test_a_path_without_a_run_is_refused_with_a_sentence(tmp_path):
    with pytest.raises(NotARunError):
        ampwatch.watch_run(tmp_path, print)


TRAINING = """
import sys, threading, torch, ampwatch, warnings
warnings.simplefilter("error", RuntimeWarning)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
found, seen = [], threading.Event()
with ampwatch.attach(scaler, model, run="r") as watch:
    def on_finding(finding):
        found.append(finding.code)
        assert threading.current_thread() is not threading.main_thread()
        seen.set()
    ampwatch.mirror(watch, to="tensorboard:curves", every_s=0.05)
    with ampwatch.watch_run(watch, on_finding, every_s=0.05):
        for step in range(60):
            with torch.autocast("cpu", torch.float16):
                loss = model(torch.full((2, 4), float("nan"))).square().mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        assert seen.wait(60)
print(*found)
print(*({"pandas", "streamlit", "plotly", "pyarrow.dataset"} & set(sys.modules)))
"""


@pytest.mark.slow_starts  # a forked child has all loaded that any test needs
def test_in_the_training_process_it_hears_of_the_run_that_goes_on(tmp_path):
    child = children.run("-c", TRAINING, cwd=tmp_path, env=environment_of(tmp_path), fresh=True)
    assert child.returncode == 0, child.stderr
    found, loaded = child.stdout.split("\n")[:2]
    assert "AMP209" in found.split()
    assert list((tmp_path / "curves").iterdir())
    assert loaded == ""  # nor by the mirror


def environment_of(folder):
    return {**os.environ, "PYTHONPATH": str(Path(ampwatch.__file__).parents[1]),
            "AMPWATCH_DIR": str(folder / "runs"), "OMP_NUM_THREADS": "1"}  # fmt: skip


def test_with_the_watch_switched_off_nothing_is_watched(monkeypatch, tmp_path):
    monkeypatch.setenv("AMPWATCH", "0")
    monkeypatch.chdir(tmp_path)
    told, threads = [], threading.active_count()
    with ampwatch.watch_run(ampwatch.attach(None, None), told.append):
        assert threading.active_count() == threads
    assert (told, list(tmp_path.iterdir())) == ([], [])


class Kept:
    """A delivery that keeps what it is given."""

    def __init__(self):
        self.titles = []

    def put(self, alert):
        self.titles.append(alert.title)


@pytest.fixture
def session(monkeypatch):
    monkeypatch.setattr("ampwatch.alerts.alert_sender.LOOK_EVERY_S", 0.02)
    kept, notes = Kept(), []
    made = alert_session(kept, notes.append)
    made.titles, made.notes = kept.titles, notes
    yield made
    made.close()


def test_every_run_is_reported_once(tmp_path, session):
    paths = [write_run(tmp_path, name, skipped=30) for name in ("one", "two")]
    for _ in range(5):
        for path in paths:
            session.wake(path)
        time.sleep(0.05)
    wait_for(lambda: len(session.titles) == 2)
    assert sorted(title.split()[1] for title in session.titles) == ["one", "two"]


def test_a_run_whose_trainer_is_gone_is_reported_lost_once(tmp_path, session, monkeypatch):
    path = write_run(tmp_path, ended=False)
    session.hear(frozenset([store.open_run(path).info.id]))
    monkeypatch.setattr("ampwatch.follow.liveness.GRACE_S", 0.02)
    session.wake(path)
    time.sleep(0.2)
    assert session.titles == []  # it is heard of, rows or not
    session.hear(frozenset())
    monkeypatch.setattr("ampwatch.follow.liveness._HEARD_S", 0.0)  # it was heard of long ago
    wait_for(lambda: session.titles)
    session.close()  # after a last look
    assert session.titles == ["ampwatch: one ended uncleanly after 100 steps"]


def test_a_run_that_ended_well_is_not_reported(tmp_path, session, monkeypatch):
    monkeypatch.setattr("ampwatch.follow.liveness.GRACE_S", 0.0)
    session.wake(write_run(tmp_path))
    session.close()  # after a last look
    assert session.titles == []


def test_a_run_that_cannot_be_read_is_said_once_and_stops_nothing(tmp_path, session):
    (tmp_path / "bad").mkdir()
    good = write_run(tmp_path, skipped=30)
    for _ in range(3):
        session.wake(tmp_path / "bad")
        time.sleep(0.05)
    session.wake(good)
    wait_for(lambda: session.titles)
    assert len(session.notes) == 1
    assert "No alerts of bad" in session.notes[0]
