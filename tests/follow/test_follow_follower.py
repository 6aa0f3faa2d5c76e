"""One follower a run: who looks at it shares its engine, and a look costs what is new."""

from __future__ import annotations

import contextlib
import gc

import pytest
from alert_parts import wait_for
from mirror_parts import Kept
from written_runs import more, write_run

import ampwatch
from ampwatch import open_run, store
from ampwatch.alerts import alert_session
from ampwatch.diagnosis import diagnose
from ampwatch.errors import RunError
from ampwatch.follow import FollowThread, State, follow
from ampwatch.mirrors import MirrorWorker


@pytest.fixture
def engines(monkeypatch):
    """Every engine that is made, and how many rows of steps it was fed last."""
    from ampwatch.diagnosis import Engine

    made = []

    class Counted(Engine):
        def __init__(self):
            super().__init__()
            made.append(self)

    monkeypatch.setattr("ampwatch.follow.follower.Engine", Counted)
    return made


class Alerts:
    def __init__(self):
        self.titles = []

    def put(self, alert):
        self.titles.append(alert.title)


def test_two_mirrors_an_alert_and_a_watch_share_one_engine(tmp_path, engines, monkeypatch):
    monkeypatch.setattr("ampwatch.alerts.alert_sender.LOOK_EVERY_S", 0.02)
    path, alerts, found = write_run(tmp_path, ended=False), Alerts(), []
    mirrors = [Kept(), Kept()]
    with contextlib.closing(store.RankWriter(path, 0)) as writer:
        workers = [MirrorWorker(one, print, every_s=0.02) for one in mirrors]
        for worker in workers:
            worker.follow(path)
        session = alert_session(alerts, print)
        session.wake(path)
        watch = ampwatch.watch_run(path, found.append, every_s=0.02)
        wait_for(lambda: all(len(one.curve("loss")) == 100 for one in mirrors))
        more(path, skipped=30, writer=writer)
        wait_for(lambda: alerts.titles and found and all(fresh(one) for one in mirrors))
        assert len(engines) == 1
        more(path, accepted=1, first=130, ended=True, writer=writer)
    wait_for(lambda: watch.is_over and not any(worker.thread.is_at_work for worker in workers))
    assert len(engines) == 1
    session.close()


def fresh(mirror):
    return [f for update in mirror.updates for f in update.fresh]


def test_the_follower_of_a_run_is_one_whatever_its_path_is_called(tmp_path):
    path = write_run(tmp_path)
    (tmp_path / "link").symlink_to(path)
    held = follow(path)
    assert follow(str(tmp_path / "link")) is held
    assert follow(write_run(tmp_path, "other")) is not held


def test_a_follower_that_nobody_holds_is_let_go(tmp_path):
    path = write_run(tmp_path)
    first = id(follow(path)._run)
    gc.collect()
    second = follow(path)
    assert second is follow(path)
    assert id(second._run) != first or second.update().is_over


def test_a_look_is_what_the_run_says_and_costs_a_judgement_only_when_rows_came(tmp_path, engines):
    path = write_run(tmp_path, ended=False)
    follower = follow(path)
    first = follower.update()
    again = follower.update()
    assert again.judged is first.judged
    more(path, skipped=30)
    grown = follower.update()
    assert grown.rows > first.rows
    assert grown.judged == diagnose(open_run(path))
    assert len(engines) == 1


def test_a_look_of_somebody_else_will_do_if_it_is_young_enough(tmp_path):
    path = write_run(tmp_path, ended=False)
    follower = follow(path)
    seen = follower.update()
    more(path, skipped=30)
    assert follower.update(max_age_s=3600.0) is seen
    assert follower.update().rows > seen.rows


def test_while_a_run_is_live_its_missing_end_mark_is_no_finding(tmp_path, monkeypatch):
    path = write_run(tmp_path, ended=False)
    follower = follow(path)
    assert "AMP902" not in codes(follower.update())
    monkeypatch.setattr("ampwatch.follow.liveness.GRACE_S", 0.0)
    lost = follower.update()
    assert (lost.state, "AMP902" in codes(lost)) == (State.LOST, True)


def test_headlines_that_others_have_replaced_are_remembered(tmp_path):
    path = write_run(tmp_path, ended=False)
    follower = follow(path)
    with contextlib.closing(store.RankWriter(path, 0)) as writer:
        assert follower.update().earlier == ()
        more(path, skipped=30, writer=writer)
        failing = follower.update()
        head = failing.diagnosis.headline
        assert failing.earlier == ()
        assert head is not None
        more(path, accepted=4000, first=130, writer=writer)
        healed = follower.update()
        assert [finding.code for finding in healed.earlier] == [head.code]
        assert healed.diagnosis.headline is None or healed.diagnosis.headline.code != head.code
        more(path, skipped=60, first=4130, writer=writer)
        again = follower.update()
    assert again.diagnosis.headline.code == head.code
    assert head.code not in [finding.code for finding in again.earlier]


def codes(look):
    return {finding.code for finding in look.diagnosis.findings}


def test_of_a_run_that_is_over_the_last_look_is_kept_and_it_may_go_on(tmp_path, engines):
    path = write_run(tmp_path)
    follower = follow(path)
    over = follower.update()
    assert over.is_over
    assert follower._engine is None
    assert follower.update().judged is over.judged
    more(path, skipped=30)
    assert follower.update().judged == diagnose(open_run(path))
    assert len(engines) == 2


def test_a_run_that_cannot_be_read_now_is_said_once_and_tried_again(tmp_path):
    troubles, looks = [], []

    def visit(folder, follower):
        if len(looks) < 3:
            looks.append(None)
            raise RunError("not now", path=folder)
        looks.append(follower.update())
        return True

    thread = FollowThread(
        visit, lambda *trouble: troubles.append(trouble), every_s=0.02, name="test"
    )
    path = write_run(tmp_path)
    thread.follow(path)
    wait_for(lambda: not thread.is_at_work)
    assert [folder for folder, _ in troubles] == [path]
    assert looks[-1].is_over


def test_rows_that_come_while_a_run_is_given_up_bring_it_back(tmp_path):
    seen = []

    def visit(folder, follower):
        seen.append(follower.update().rows)
        if len(seen) == 1:  # it was over as we looked, and goes on before we say so
            more(folder, accepted=3)
            thread.wake(folder)
        return True

    thread = FollowThread(visit, print, every_s=0.02, name="test")
    thread.follow(write_run(tmp_path))
    wait_for(lambda: len(seen) == 2)
    thread.close()
    assert seen[1] > seen[0]
