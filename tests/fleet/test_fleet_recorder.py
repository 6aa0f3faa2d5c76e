"""A recorder publishes what has ended, and goes on receiving whatever the place does."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE

import children
import deltalake
import eager_publisher
import pyarrow as pa
import pytest
import s3_server
from relay import Relay
from stuck_run import StuckRun
from written_runs import event_columns, fresh_id, more, step_columns, write_run

import ampwatch
from ampwatch import cli, codec, feed, open_run, store
from ampwatch.fleet import Place, background_publisher, list_published, publish
from ampwatch.fleet.background_publisher import BackgroundPublisher, BackgroundRounds
from ampwatch.fleet.publishing import FROM_THE_START, unpublished_rows_of
from ampwatch.fleet.runs_delta_table import read_detail
from ampwatch.report import to_json
from ampwatch.rows import FORMAT, Table
from ampwatch.store.rank_log import RankLog

ROOT = Path(ampwatch.__file__).parents[1]
PATIENCE_S = 120.0


def until(condition) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, "nothing came of it"
        time.sleep(0.01)


def names_in(place: str) -> set[str]:
    return {run.name for run in list_published(place)}


def train(log_dir: Path, endpoint: str, name: str) -> bool:
    """A rank with a log of its own sends a run; whether all of it was acknowledged."""
    info = store.RunInfo(id=fresh_id(name), name=name)
    log = store.RankWriter(store.create_run(log_dir, info), 0)
    hello = feed.Hello(info.id, 0, info.to_json(), FORMAT, "0")
    sender = feed.Sender(endpoint, hello, log)
    now = time.time_ns()
    for batch in (
        codec.encode(Table.STEPS, step_columns(50, 0, now)),
        codec.encode(Table.EVENTS, event_columns([(0, "started", {}), (50, "ended", {})], now)),
    ):
        sender.send(log.append(batch), batch)
    until(lambda: sender.poll() or sender.stats.acknowledged >= 2)
    log.close()
    return sender.close()


@pytest.mark.slow_kills
def test_a_recorder_receives_while_the_place_is_away_and_publishes_when_it_is_back(
    s3, s3_place, tmp_path
):
    relay = Relay(s3.port)
    relay.cut()
    environment = {**os.environ, **s3_server.environment(relay.port), "PYTHONPATH": str(ROOT)}
    words = ["record", "--bind", f"ipc://{tmp_path}/feed", "-o", str(tmp_path / "filed")]
    child = children.start(
        eager_publisher.__file__, *words, "--publish", s3_place,
        stderr=PIPE, env=children.forking(environment),
    )  # fmt: skip
    assert child.stderr is not None
    try:
        assert "Recording from" in child.stderr.readline()
        train(tmp_path / "logs", f"ipc://{tmp_path}/feed", "first")
        trouble = child.stderr.readline()
        train(tmp_path / "logs", f"ipc://{tmp_path}/feed", "while-away")
        relay.mend()
        said = child.stderr.readline()
        until(lambda: names_in(s3_place) == {"first", "while-away"})
        child.send_signal(signal.SIGINT)
        _, rest = child.communicate(timeout=PATIENCE_S)
    finally:
        child.kill()
        child.communicate()
    assert "cannot be reached" in trouble
    assert "It is tried again; 1 run waits" in trouble
    assert said.startswith(f"Published to {s3_place}: ")
    assert f"2 runs published to {s3_place}." in rest
    assert child.returncode == 0
    for name in ("first", "while-away"):
        assert open_run(f"{s3_place}#{name}").steps.num_rows == 50


def killed_worker() -> int:
    """The id of the process that publishes, which is killed as soon as it is there."""
    until(multiprocessing.active_children)
    (worker,) = multiprocessing.active_children()
    os.kill(worker.pid, signal.SIGKILL)
    return worker.pid


def test_a_process_that_publishes_and_is_killed_is_replaced_and_loses_nothing(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(background_publisher, "_LOOK_EVERY_S", 0.05)
    write_run(tmp_path / "runs", "early")
    place, said = str(tmp_path / "place"), []
    publisher = BackgroundPublisher(tmp_path / "runs", place, on_note=said.append)
    first = killed_worker()
    until(lambda: publisher.published == 1)
    assert first != os.getpid()
    publisher.wake(write_run(tmp_path / "runs", "late"))
    until(lambda: publisher.published == 2)
    assert publisher.close(PATIENCE_S)
    assert names_in(place) == {"early", "late"}
    assert said == [f"Published to {place}: early.", f"Published to {place}: late."]
    assert not multiprocessing.active_children()


def test_what_cannot_be_published_in_time_is_given_up(tmp_path):
    path = write_run(tmp_path / "runs", "stuck")
    place, said = str(tmp_path / "place"), []
    publish(path, place)
    more(path, 20, first=100, ended=True)
    stuck = StuckRun(place, "stuck")
    publisher = BackgroundPublisher(tmp_path / "runs", place, on_note=said.append)
    until(multiprocessing.active_children)
    assert not publisher.close(0.1)
    until(lambda: not multiprocessing.active_children())  # a busy machine takes its time
    assert said == []
    stuck.come_loose()


def test_a_defect_is_said_and_publishing_is_tried_again(tmp_path, monkeypatch):
    write_run(tmp_path / "runs", "early")
    said: list = []
    looks = rounds(tmp_path, said)
    with monkeypatch.context() as broken:
        broken.setattr(background_publisher, "publish_folders", lambda *_, **__: 1 // 0)
        looks.publish_round()
    assert looks.waiting == 1
    assert "failed by itself (ZeroDivisionError" in said[0]
    assert "It is tried again; 1 run waits in" in said[0]
    looks.publish_round(is_last=True)
    assert (looks.published, looks.waiting) == (1, 0)


def rounds(tmp_path: Path, said: list, live_every_s: float | None = None) -> BackgroundRounds:
    place = str(tmp_path / "place")
    return BackgroundRounds(tmp_path / "runs", place, live_every_s, on_note=said.append)


def test_a_run_that_goes_on_is_left_until_it_has_ended(tmp_path):
    write_run(tmp_path / "runs", "over")
    path = write_run(tmp_path / "runs", "live", accepted=30, ended=False)
    said: list = []
    looks = rounds(tmp_path, said)
    writer = store.RankWriter(path, 0)
    try:
        looks.publish_round()
        assert names_in(str(tmp_path / "place")) == {"over"}
        more(path, 20, first=30, ended=True, writer=writer)
        looks.wake(path)
    finally:
        writer.close()
    looks.publish_round()  # just woken: in the next round
    looks.publish_round()
    assert names_in(str(tmp_path / "place")) == {"over", "live"}
    assert looks.published == 2
    assert [sentence.rpartition(": ")[2] for sentence in said] == ["over.", "live."]


def test_a_run_that_goes_on_is_published_as_far_as_it_is_when_asked_for(tmp_path):
    path = write_run(tmp_path / "runs", "live", accepted=30, ended=False)
    looks = rounds(tmp_path, [], live_every_s=0.0)
    writer = store.RankWriter(path, 0)
    try:
        looks.publish_round()
        (run,) = list_published(str(tmp_path / "place"))
        assert (run.steps, run.state) == (30, "live")
        more(path, 20, first=30, writer=writer)
        looks.wake(path)
        looks.publish_round()
        (run,) = list_published(str(tmp_path / "place"))
        assert (run.steps, run.state) == (50, "live")
    finally:
        writer.close()


def test_a_run_that_cannot_be_published_is_said_once_and_keeps_no_other_back(tmp_path):
    path = write_run(tmp_path / "runs", "broken")
    (path / "run.json").write_text("{")
    write_run(tmp_path / "runs", "fine")
    said: list = []
    looks = rounds(tmp_path, said)
    for _ in range(3):
        looks.wake(path)
        looks.publish_round()  # just woken: in the next round
        looks.publish_round()
    assert names_in(str(tmp_path / "place")) == {"fine"}
    assert sum("Not published: broken:" in sentence for sentence in said) == 1


def test_a_deleted_run_is_forgotten(tmp_path):
    (tmp_path / "runs").mkdir()
    said: list = []
    looks = rounds(tmp_path, said)
    looks.wake(tmp_path / "runs" / "gone")
    looks.publish_round()
    looks.publish_round()
    assert not said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--publish-live", "5m"], "needs --publish PLACE"),
        (["--publish", "place", "--publish-live", "often"], "give a number and s, m or h"),
        (["--publish", "ftp://there/x"], "use s3://, gs://, az:// or a folder's path"),
    ],
)
def test_options_that_make_no_sense_are_said(words, said, capsys):
    assert cli.run(["record", "--bind", "tcp://127.0.0.1:*", *words]) == 2
    assert said in capsys.readouterr().err


def rows_of_each_commit(place: str) -> list[int]:
    """How many steps each commit added, in order."""
    table = deltalake.DeltaTable(f"{place}/steps")
    files = pa.table(table.get_add_actions(flatten=True)).sort_by("modification_time")
    return files.column("num_records").to_pylist()


def test_of_a_run_that_goes_on_only_the_new_rows_are_written(tmp_path):
    path = write_run(tmp_path / "runs", "live", accepted=400, ended=False)
    place = str(tmp_path / "place")
    writer = store.RankWriter(path, 0)
    try:
        publish(path, place, live=True)
        for number in range(3):
            more(path, 30, first=400 + 30 * number, writer=writer)
            publish(path, place, live=True)
        (run,) = list_published(place)
        assert rows_of_each_commit(place) == [400, 30, 60, 30]  # the second 30 with the first
        assert len(run.editions) == 3
        assert run.steps == 490
        assert_same(path, f"{place}#live")
        more(path, 10, first=490, ended=True, writer=writer)
    finally:
        writer.close()
    publish(path, place)
    (run,) = list_published(place)
    assert (len(run.editions), run.steps, run.state) == (1, 500, "ended")
    assert_same(path, f"{place}#live")


def test_a_published_beginning_that_is_another_is_written_anew(tmp_path):
    """A copy that lacked a batch in between got it later: its rows stand elsewhere by now."""
    place = str(tmp_path / "place")
    path = write_run(tmp_path / "runs", "late", accepted=100, ended=False)
    writer = store.RankWriter(path, 0)
    try:
        publish(path, place, live=True)
        (row,) = list_published(place)
        detail = read_detail(Place(place), row)
        more(path, 50, first=100, writer=writer)
        log = RankLog(path / "rank-0", 0)
        holes = replace(detail.ranks[0], held=((0, 1), (2, 3)))
        with_holes = replace(detail, ranks=(holes,))
        assert unpublished_rows_of(log, with_holes, is_over=False) == FROM_THE_START
        fewer = replace(detail.parts[0], rows=detail.parts[0].rows - 1)
        other = replace(detail, parts=(fewer, *detail.parts[1:]))
        assert unpublished_rows_of(log, other, is_over=False) == FROM_THE_START
        assert unpublished_rows_of(log, detail, is_over=False).starts[Table.STEPS] == 100
    finally:
        writer.close()


def assert_same(path: Path, published: str) -> None:
    local, there = open_run(path), open_run(published)
    for table in ("steps", "events", "layers", "devices"):
        assert there.read(table).equals(local.read(table)), table
    assert to_json(ampwatch.diagnose(there)) == to_json(ampwatch.diagnose(local))
