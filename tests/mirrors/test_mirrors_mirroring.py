"""What is handed on of a run, once and in order, whatever the client does."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from alert_parts import wait_for
from mirror_parts import Kept, logged, skips, write
from written_runs import fresh_id, more, step_columns, write_run

from ampwatch import store
from ampwatch.follow import State, follow
from ampwatch.mirrors import MirrorWorker
from ampwatch.mirrors.updates import Selection, UpdateReader
from ampwatch.rows import Table


@pytest.fixture
def notes():
    return []


@pytest.fixture
def worker(notes):
    """Makes workers, which are closed in the end."""
    workers = []

    def make(mirror, **options):
        workers.append(MirrorWorker(mirror, notes.append, every_s=0.02, **options))
        return workers[-1]

    yield make
    for one in workers:
        one.close(wait_s=0.0)


def whole(path, **options):
    """All that is handed on of a run as it stands."""
    reader, mirror = UpdateReader(path, Selection(**options)), Kept()
    reader.update(follow(path), 0.0)
    while (update := reader.next()) is not None:
        mirror.take(update)
        reader.taken()
    return mirror


def same(found, wanted):
    """Step for step; nan equals itself."""
    assert [step for step, _ in found] == [step for step, _ in wanted]
    return np.array_equal([v for _, v in found], [v for _, v in wanted], equal_nan=True)


@pytest.mark.parametrize("most", [1, 7, 4096])
def test_every_row_is_handed_on_once_whatever_the_portions(tmp_path, monkeypatch, most):
    monkeypatch.setattr("ampwatch.mirrors.updates.MOST_ROWS", most)
    path = write_run(tmp_path, accepted=40, skipped=5)
    mirror = whole(path)
    for name in ("scale", "loss", "lr", "grad_norm"):
        assert same(mirror.curve(name), logged(path, name))
    assert mirror.curve("skipped") == skips(path)
    assert max(len(points.steps) for points in mirror.points) <= most
    assert mirror.updates[-1].is_over


def test_rows_that_come_while_it_follows_are_handed_on_and_it_ends_with_the_run(tmp_path, worker):
    path, mirror = write_run(tmp_path, ended=False), Kept()
    one = worker(mirror)
    one.follow(path)
    wait_for(lambda: mirror.curve("loss"))
    more(path, accepted=3, skipped=2)
    wait_for(lambda: len(mirror.curve("loss")) == 105)
    store.compact(path)
    more(path, accepted=4, first=105, ended=True)
    wait_for(lambda: mirror.updates[-1].is_over)
    one.close()
    assert same(mirror.curve("loss"), logged(path, "loss"))
    assert mirror.curve("skipped") == skips(path)
    assert (mirror.closed, one.lost_rows, one.failures) == (1, 0, 0)


def test_closing_sends_what_was_logged_last(tmp_path, worker):
    path, mirror = write_run(tmp_path, ended=False), Kept()
    one = MirrorWorker(mirror, print, every_s=3600.0)
    one.follow(path)
    wait_for(lambda: mirror.updates)
    more(path, accepted=3)
    one.close()
    assert len(mirror.curve("loss")) == 103
    assert one.lost_rows == 0


def test_thinning_keeps_each_nth_step_and_every_skip(tmp_path):
    path = write_run(tmp_path, accepted=33, skipped=4)
    steps = [step for step, _ in whole(path, thin=10).curve("scale")]
    assert steps == [0, 10, 20, 30, 33, 34, 35, 36]
    assert whole(path, thin=10).curve("skipped")[-1] == (36, 4)


def test_what_is_absent_is_left_out(tmp_path):
    path = write_run(tmp_path, accepted=2, ended=False)
    more(path, accepted=3, first=2, loss=[1.0, None, float("nan")], lr=[None] * 3)
    mirror = whole(path)
    assert [step for step, _ in mirror.curve("loss")] == [0, 1, 2, 4]
    assert [step for step, _ in mirror.curve("lr")] == [0, 1]
    assert mirror.curve("step_time_ms") == []


def test_memory_stands_at_the_step_that_was_under_way(tmp_path):
    path = write_run(tmp_path, accepted=20)
    times = [value for _, value in logged(path, "time_ns")]
    at = [times[4] - 1, times[4], times[9] + 1, times[-1] + 10**9]
    samples = {"device": ["cuda:0", "cuda:1", "cuda:0", "cuda:0"], "peak_bytes": [5, 7, 9, 11]}
    write(path, Table.DEVICES, {"time_ns": at, **samples})
    assert whole(path).curve("memory_peak_bytes") == [(4, 7.0), (10, 9.0)]


def test_optimizers_do_not_mix(tmp_path):
    path = store.create_run(tmp_path, store.RunInfo(id=fresh_id("gan"), name="gan"))
    columns = step_columns(4, 0, 0) | {"step": [0, 0, 1, 1], "optimizer": [3, 8, 3, 8]}
    columns |= {"loss": [1.0, 2.0, 3.0, 4.0], "skipped": [False, True, False, True]}
    write(path, Table.STEPS, columns)
    mirror = whole(path)
    assert mirror.curve("loss") == [(0, 1.0), (1, 3.0)]
    assert mirror.curve("loss", "ampwatch/optimizer-1/") == [(0, 2.0), (1, 4.0)]
    assert mirror.curve("skipped") == [(0, 0), (1, 0)]
    assert mirror.curve("skipped", "ampwatch/optimizer-1/") == [(0, 1), (1, 2)]


def test_of_several_ranks_one_or_all_are_shown_and_the_findings_are_the_whole_runs(tmp_path):
    path = write_run(tmp_path, skipped=30, world_size=2)
    more(path, accepted=5, first=0, rank=1, ended=True)
    assert {points.rank for points in whole(path).points} == {0, 1}
    own = whole(path, rank=1)
    assert {points.rank for points in own.points} == {1}
    assert "AMP103" in {finding.code for finding in own.updates[-1].diagnosis.findings}


def test_each_finding_is_fresh_once_and_the_last_diagnosis_is_the_runs(tmp_path, worker):
    path, mirror = write_run(tmp_path, ended=False), Kept()
    one = worker(mirror)
    one.follow(path)
    wait_for(lambda: mirror.updates)
    more(path, skipped=20)
    wait_for(lambda: any(update.fresh for update in mirror.updates))
    more(path, skipped=20, first=120, ended=True)
    wait_for(lambda: mirror.updates[-1].is_over)
    fresh = [(f.code, f.severity) for update in mirror.updates for f in update.fresh]
    assert "AMP103" in {code for code, _ in fresh}
    assert len(set(fresh)) == len(fresh)
    standing = mirror.updates[-1].diagnosis.findings
    assert [f.code for f in standing] == [
        f.code for f in whole(path).updates[-1].diagnosis.findings
    ]


def test_a_client_that_raises_is_said_once_counted_and_loses_nothing(tmp_path, worker, notes):
    path = write_run(tmp_path, skipped=3)
    mirror = Kept(ConnectionError("no way to https://me:s3cret@host/x"))
    one = worker(mirror)
    one.follow(path)
    wait_for(lambda: mirror.asked >= 3)
    assert one.failures >= 2
    mirror.trouble = None
    wait_for(lambda: mirror.updates and mirror.updates[-1].is_over)
    one.close()
    assert mirror.curve("skipped") == skips(path)
    assert one.lost_rows == 0
    [note] = notes
    assert "the test did not accept" in note
    assert "ConnectionError" in note
    assert "s3cret" not in note


def test_findings_that_a_client_does_not_take_repeat_no_row(tmp_path, worker):
    class FussyAboutFindings(Kept):
        def take(self, update):
            self.updates.append(update)
            if update.diagnosis is not None and len(self.updates) < 4:
                raise ConnectionError("no alerts today")

    path, mirror = write_run(tmp_path, skipped=3), FussyAboutFindings()
    one = worker(mirror)
    one.follow(path)
    wait_for(lambda: len(mirror.updates) >= 4)
    one.close()
    assert one.failures >= 2
    assert mirror.curve("skipped") == skips(path)


def test_what_never_arrived_is_counted_in_the_end(tmp_path, worker, notes):
    one = worker(Kept(ValueError("never")))
    one.follow(write_run(tmp_path, accepted=50))
    wait_for(lambda: one.failures)
    one.close()
    assert one.lost_rows == 50
    assert "50 rows did not arrive" in notes[-1]


def test_a_client_that_hangs_is_left_behind(tmp_path, worker, notes):
    hanging, begun = threading.Event(), threading.Event()

    class Hanging(Kept):
        def take(self, update):
            begun.set()
            hanging.wait(30)

    one = worker(Hanging())
    one.follow(write_run(tmp_path, accepted=50))
    assert begun.wait(30)
    one.close(wait_s=0.05)
    assert one.lost_rows == 50
    assert len(notes) == 1
    hanging.set()


def test_a_run_that_is_removed_is_said_once_and_stops_nothing(tmp_path, worker, notes):
    mirror = Kept()
    one = worker(mirror)
    (tmp_path / "bad").mkdir()
    one.thread.wake(tmp_path / "bad")
    one.thread.wake(tmp_path / "bad")
    one.follow(write_run(tmp_path))
    wait_for(lambda: mirror.updates and mirror.updates[-1].is_over)
    assert len(notes) == 1
    assert "bad cannot be mirrored" in notes[0]


def test_a_place_that_has_the_past_is_shown_this_attempt_only_with_all_skips_counted(
    tmp_path, worker
):
    class Resumed(Kept):
        shows_past = False

    path, mirror = write_run(tmp_path, accepted=10, skipped=3, ended=False), Resumed()
    began_ns = time.time_ns()
    more(path, accepted=2, skipped=1, first=13, ended=True)
    worker(mirror).follow(path, 0, began_ns)
    wait_for(lambda: mirror.updates and mirror.updates[-1].is_over)
    assert mirror.curve("skipped") == [(13, 3), (14, 3), (15, 4)]


def test_with_the_last_run_that_it_follows_its_thread_ends(tmp_path, worker):
    mirror = Kept()
    one = worker(mirror)
    one.follow(write_run(tmp_path))
    wait_for(lambda: not one.thread.is_at_work)
    assert mirror.closed == 1
    assert mirror.updates[-1].is_over


def test_a_run_that_nobody_writes_any_more_is_over_and_lost(tmp_path, worker, monkeypatch):
    monkeypatch.setattr("ampwatch.follow.liveness.GRACE_S", 0.0)
    mirror = Kept()
    one = worker(mirror)
    one.follow(write_run(tmp_path, ended=False))
    wait_for(lambda: not one.thread.is_at_work)
    last = mirror.updates[-1]
    assert (last.state, last.is_over, one.lost_rows) == (State.LOST, True, 0)
    assert "AMP902" in {finding.code for finding in last.diagnosis.findings}
    assert len(mirror.curve("loss")) == 100


def test_a_run_that_ended_and_goes_on_is_not_shown_twice(tmp_path, worker):
    path, mirror = write_run(tmp_path), Kept()
    one = worker(mirror)
    one.thread.wake(path)
    wait_for(lambda: mirror.updates and mirror.updates[-1].is_over)
    write(
        path, Table.EVENTS, {"step": [100], "time_ns": [1], "kind": ["started"], "detail": ["{}"]}
    )
    more(path, accepted=5)
    one.thread.wake(path)
    wait_for(lambda: len(mirror.curve("loss")) >= 105)
    assert [step for step, _ in mirror.curve("loss")] == list(range(105))
    assert not mirror.updates[-1].is_over
