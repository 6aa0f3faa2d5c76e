"""What arrives, filed: a recording in this process, real sockets, real files, real trainers."""

import os
import secrets
import shutil
import signal

import psutil
import pytest
import zmq
from recorder_parts import (
    RECORDER,
    TRAINER,
    Here,
    Trainer,
    batches_in,
    child,
    eventually,
    free_endpoint,
    heard,
    index_records,
    needs_signals,
    record_of,
    tell,
    until_acknowledged,
)

from ampwatch import feed, store
from ampwatch.codec import encode
from ampwatch.errors import RunError
from ampwatch.rows import FORMAT, Table


@needs_signals
def test_a_copy_made_late_and_by_two_recorders_equals_the_trainers_log(tmp_path, copies):
    endpoint = free_endpoint()
    with child(TRAINER, tmp_path / "log", endpoint, 500, 300, 0.005) as trainer:
        assert heard(trainer) == "first"
        with child(RECORDER, endpoint, copies) as first:
            assert heard(first) == "ready"
            tell(trainer)
            eventually(lambda: index_records(copies / "run") > 550)
            first.send_signal(signal.SIGKILL)
            first.wait()
        filed_before = index_records(copies / "run")
        assert heard(trainer) == "second"
        with child(RECORDER, endpoint, copies) as second:
            assert heard(second) == "ready"
            eventually(lambda: index_records(copies / "run") >= 800)
            tell(trainer)
            assert heard(trainer) == "True"
            tell(second)
            second.wait()
    assert 550 < filed_before < 801
    original = batches_in(tmp_path / "log" / "run")
    assert len(original) == 801
    assert batches_in(copies / "run") == original
    assert store.open_run(copies / "run").steps.equals(store.open_run(tmp_path / "log/run").steps)
    assert store.read_copies(copies / "run")[0].ended_at == 801


@needs_signals
def test_a_stopped_recorder_costs_the_trainer_bounded_memory_and_no_rows(tmp_path, copies):
    endpoint = free_endpoint()
    with child(RECORDER, endpoint, copies) as recorder:
        assert heard(recorder) == "ready"
        trainer = Trainer(tmp_path / "log", endpoint)
        eventually(lambda: trainer.sender.stats.connected, trainer.sender.poll)
        trainer.steps(range(10))
        until_acknowledged(trainer.sender, 10)
        recorder.send_signal(signal.SIGSTOP)
        detail = secrets.token_hex(50_000)
        batch = encode(
            Table.EVENTS,
            {"step": [1], "time_ns": [1], "kind": ["misuse"], "detail": [detail]},
        )
        before = psutil.Process().memory_info().rss
        for _ in range(1000):  # 100 MB
            trainer.sender.send(trainer.log.append(batch), batch)
            trainer.sender.poll()
        assert trainer.sender.stats.bytes_outstanding <= 16 << 20
        assert psutil.Process().memory_info().rss - before < 50 << 20
        assert trainer.sender.stats.skipped > 500
        recorder.send_signal(signal.SIGCONT)
        until_acknowledged(trainer.sender, 1010)
        assert trainer.close()
        tell(recorder)
        recorder.wait()
    steps = store.open_run(copies / "run")
    assert steps.events.num_rows == 1000


@needs_signals
def test_a_killed_trainer_leaves_a_copy_that_says_it_did_not_end(tmp_path, copies):
    with Here(copies) as recorder:
        with child(TRAINER, tmp_path / "log", recorder.endpoint, 100, 0, 0) as trainer:
            assert heard(trainer) == "first"
            eventually(lambda: record_of(recorder) and record_of(recorder).filed > 50)
            trainer.send_signal(signal.SIGKILL)
            trainer.wait()
        assert not record_of(recorder).has_ended
        assert record_of(recorder).head >= record_of(recorder).filed
    copy, original = batches_in(copies / "run"), batches_in(tmp_path / "log" / "run")
    assert copy == {number: original[number] for number in copy}
    assert store.read_copies(copies / "run")[0].ended_at is None
    assert not store.open_run(copies / "run").clean_end
    [note] = store.open_run(copies / "run").notes
    assert note.startswith(f"Rank 0: this copy stops before batch {len(copy)}, without an end mark")


@needs_signals
def test_a_copy_of_a_trainer_long_silent_is_let_go_though_the_recorder_lives(
    tmp_path, copies, monkeypatch
):
    with Here(copies) as recorder:
        with child(TRAINER, tmp_path / "log", recorder.endpoint, 10, 0, 0) as trainer:
            assert heard(trainer) == "first"
            eventually(lambda: record_of(recorder) and record_of(recorder).filed == 10)
            assert store.is_written(copies / "run")
            assert store.open_run(copies / "run").notes == ()
        monkeypatch.setattr("ampwatch.recorder.recorder_process._CLOSE_S", 0.0)
        eventually(lambda: not store.is_written(copies / "run"))
        assert "stops before batch 10" in store.open_run(copies / "run").notes[0]


@pytest.mark.skipif(os.name == "nt", reason="files that are open cannot be deleted there")
@pytest.mark.parametrize("part", ["", "rank-0"])
@pytest.mark.parametrize("take_away", [shutil.rmtree, lambda at: at.rename(at.parent / "moved")])
def test_a_copy_whose_files_are_taken_away_is_made_anew(tmp_path, copies, part, take_away):
    with Here(copies) as recorder:
        trainer = Trainer(tmp_path / "log", recorder.endpoint).steps(range(20))
        until_acknowledged(trainer.sender, 20)
        take_away(copies / "run" / part)
        trainer.steps(range(20, 25))
        eventually(lambda: index_records(copies / "run") == 25, trainer.sender.poll)
        until_acknowledged(trainer.sender, 25)
        assert trainer.close()
        assert "was deleted or moved while it was recorded" in recorder.notes[0]
        assert len(recorder.notes) == 1
    copy = store.open_run(copies / "run")
    assert copy.steps.equals(store.open_run(trainer.folder).steps)
    assert copy.notes == ()


@pytest.mark.skipif(os.name == "nt", reason="files that are open cannot be deleted there")
def test_a_copy_that_is_deleted_while_its_trainer_is_idle_is_made_anew(tmp_path, copies):
    with Here(copies) as recorder:
        trainer = Trainer(tmp_path / "log", recorder.endpoint).steps(range(20))
        until_acknowledged(trainer.sender, 20)
        shutil.rmtree(copies / "run")
        eventually(lambda: index_records(copies / "run") == 20, trainer.sender.poll)
        assert trainer.close()
        assert "is copied again" in recorder.notes[0]


def test_a_run_that_the_trainer_writes_here_is_watched_and_not_written(tmp_path):
    woken = []
    with Here(tmp_path / "log", on_rows=woken.append) as recorder:
        trainer = Trainer(tmp_path / "log", recorder.endpoint).steps(range(5))
        eventually(lambda: record_of(recorder), trainer.sender.poll)
        woken.clear()
        trainer.step(5)
        eventually(lambda: woken, trainer.sender.poll)
        assert not record_of(recorder).is_copy
        assert record_of(recorder).is_alive
        assert trainer.close()
        eventually(lambda: record_of(recorder).has_ended)
    assert set(woken) == {trainer.folder}
    assert not (trainer.folder / store.COPY_FILE).exists()
    assert len(batches_in(trainer.folder)) == 6


def test_a_copy_that_the_trainer_takes_over_is_watched_from_then_on(tmp_path, copies, monkeypatch):
    monkeypatch.setattr("ampwatch.recorder.recorder_process._RETRY_S", 0.0)
    with Here(copies) as recorder:
        trainer = Trainer(tmp_path / "log", recorder.endpoint).steps(range(5))
        until_acknowledged(trainer.sender, 5)
        trainer.sender.close(timeout_s=0.0)
        trainer.log.close()
    woken = []
    with Here(copies, on_rows=woken.append) as recorder:
        resumed = Trainer(copies, recorder.endpoint).steps(range(5, 8))
        assert resumed.folder == copies / "run"
        eventually(
            lambda: (record := record_of(recorder)) is not None and not record.is_copy,
            resumed.sender.poll,
        )
        woken.clear()
        resumed.step(8)
        eventually(lambda: woken, resumed.sender.poll)
        assert resumed.close()
    assert store.open_run(copies / "run").steps["step"].to_pylist() == list(range(9))


def test_two_ranks_and_two_runs_are_filed_apart_and_compacted_when_all_have_ended(tmp_path, copies):
    with Here(copies) as recorder:
        trainers = [
            Trainer(tmp_path / "log", recorder.endpoint, run_id, rank, world_size=2)
            for run_id in ("ab" * 16, "cd" * 16)
            for rank in (0, 1)
        ]
        for number in range(40):
            for rank, trainer in enumerate(trainers):
                trainer.step(100 * rank + number)
        for trainer in trainers:
            until_acknowledged(trainer.sender, 40)
        assert all(trainer.close() for trainer in trainers)
        eventually(lambda: [run.has_ended for run in recorder.runs.values()] == [True, True])
    assert recorder.notes == ()
    for trainer in trainers[::2]:
        copy = store.open_run(recorder.runs[trainer.info.id].folder)
        assert copy.steps.num_rows == 80
        assert copy.steps.equals(store.open_run(trainer.folder).steps)
        assert all((copy.path / f"rank-{rank}" / "base.json").exists() for rank in (0, 1))
    assert {run.folder.name for run in recorder.runs.values()} == {"run", "run-2"}


def test_a_run_resumed_after_its_copy_was_compacted_is_continued(tmp_path, copies):
    with Here(copies) as recorder:
        for start in (0, 20):
            trainer = Trainer(tmp_path / "log", recorder.endpoint).steps(range(start, start + 20))
            until_acknowledged(trainer.sender, start + 20)
            assert trainer.close()
            eventually(lambda: record_of(recorder).has_ended)
            eventually(lambda: (copies / "run" / "rank-0" / "base.json").exists())
    original = store.open_run(trainer.folder)
    assert store.open_run(copies / "run").steps.equals(original.steps)
    assert original.steps.num_rows == 40


def test_rows_that_cannot_be_filed_are_not_acknowledged_and_come_again(
    tmp_path, copies, monkeypatch
):
    is_full = [False]
    append = store.RankWriter.append

    def full(self, batch, sequence=None):
        if is_full[0] and copies in self._folder.parents and "bad" in str(self._folder):
            raise RunError("No space left on device.")
        return append(self, batch, sequence)

    monkeypatch.setattr(store.RankWriter, "append", full)
    monkeypatch.setattr("ampwatch.recorder.recorder_process._RETRY_S", 0.0)
    with Here(copies) as recorder:
        bad = Trainer(tmp_path / "log", recorder.endpoint, "ab" * 16, name="bad").steps(range(5))
        good = Trainer(tmp_path / "log", recorder.endpoint, "cd" * 16, name="good").steps(range(5))
        until_acknowledged(bad.sender, 5)
        is_full[0] = True
        bad.steps(range(5, 10))
        good.steps(range(5, 10))
        eventually(lambda: record_of(recorder).is_blocked, bad.sender.poll)
        until_acknowledged(good.sender, 10)
        assert bad.sender.stats.acknowledged == 5
        assert "No space left on device" in recorder.notes[0]
        is_full[0] = False
        until_acknowledged(bad.sender, 10)
        assert bad.close()
        assert good.close()
    assert store.open_run(copies / "bad").steps["step"].to_pylist() == list(range(10))


@pytest.mark.parametrize("name", ["../../outside", "/etc/passwd", "a/b", "..", "con", "", "\0x"])
def test_a_run_name_is_never_a_path(name, tmp_path, copies):
    with Here(copies) as recorder:
        trainer = Trainer(tmp_path / "log", recorder.endpoint, name=name).steps(range(3))
        until_acknowledged(trainer.sender, 3)
        assert trainer.close()
        (run,) = recorder.runs.values()
    assert run.folder.parent == copies
    assert store.open_run(run.folder).steps.num_rows == 3


@pytest.mark.parametrize(
    ("info_json", "format_number", "reason"),
    [
        ("{}", FORMAT, "run.json"),
        ("\udcff", FORMAT, "run.json"),
        ("[" * 100_000, FORMAT, "run.json"),
        (store.RunInfo(id="cd" * 16, name="x").to_json(), FORMAT, "of another run"),
        (store.RunInfo(id="ab" * 16, name="x").to_json(), FORMAT + 1, "update ampwatch here"),
    ],
)
def test_a_rank_that_describes_itself_wrongly_is_refused_with_a_sentence(
    info_json, format_number, reason, copies
):
    log = store.RankWriter(copies.parent, 0)
    with Here(copies) as recorder:
        hello = feed.Hello("ab" * 16, 0, info_json, format_number, "0")
        sender = feed.Sender(recorder.endpoint, hello, log)
        eventually(lambda: sender.stats.refused, sender.poll)
        assert reason in sender.stats.refused
        assert sender.close() is False
        assert recorder.runs == {}
        assert len(recorder.notes) == 1
    assert list(copies.iterdir()) == []
    log.close()


class Holed:
    """A trainer's log that has lost some of its batches."""

    def __init__(self, log, lacking):
        self._log, self._lacking = log, lacking

    @property
    def next_sequence(self):
        return self._log.next_sequence

    def read_from(self, sequence, max_bytes):
        found = self._log.read_from(sequence, max_bytes)
        return [(number, batch) for number, batch in found if number not in self._lacking]


def test_lost_batches_are_counted_noted_and_not_asked_for_for_ever(tmp_path, copies):
    trainer = Trainer(tmp_path / "log", "tcp://127.0.0.1:9").steps(range(20))
    holed = Holed(trainer.log, {0, 7, 8})
    hello = feed.Hello("ab" * 16, 0, trainer.info.to_json(), FORMAT, "0")
    for _ in range(2):  # the second recorder knows of the loss from the first one's note
        with Here(copies) as recorder:
            sender = feed.Sender(recorder.endpoint, hello, holed)
            until_acknowledged(sender, 20)
            assert recorder.stats.gaps == 3
            assert record_of(recorder).gaps == ((0, 1), (7, 9))
            sender.close(timeout_s=0.0)
    assert recorder.notes == ()
    assert store.read_copies(copies / "run")[0].gaps == ((0, 1), (7, 9))
    copy = store.open_run(copies / "run")
    steps = copy.steps["step"].to_pylist()
    assert steps == [number for number in range(20) if number not in {0, 7, 8}]
    assert [note.partition(" lost")[0] for note in copy.notes[:2]] == [
        "Rank 0: batch 0 is",
        "Rank 0: batches 7 to 8 are",
    ]
    trainer.close()


def test_a_denied_key_is_noted_with_what_of_the_list_cannot_be_read(tmp_path, copies):
    listed = feed.allow_key("0" * 64)
    listed.write_bytes(listed.read_bytes() + b"\xff\n")
    stranger = feed.own_keys(tmp_path / "other")
    with Here(copies) as recorder:
        ours = feed.own_keys()
        context = zmq.Context()
        socket = context.socket(zmq.DEALER)
        socket.linger = 0
        feed.Security(stranger, recorder=ours.public).configure_trainer(socket)
        socket.connect(recorder.endpoint)
        eventually(lambda: recorder.notes)
        assert f"{stranger.public.hex()} asked to connect and was denied" in recorder.notes[0]
        assert str(listed) in recorder.notes[0]
        trainer = Trainer(tmp_path / "log", recorder.endpoint).steps(range(3))
        until_acknowledged(trainer.sender, 3)
        assert trainer.close()
        socket.close()
        context.term()


def test_a_bad_frame_is_noted_with_its_senders_name(tmp_path, copies):
    with Here(copies) as recorder:
        trainer = Trainer(tmp_path / "log", recorder.endpoint).steps(range(3))
        until_acknowledged(trainer.sender, 3)
        damaged = encode(Table.EXTRAS, {"step": [1], "name": ["x"], "value": [1.0]})
        object.__setattr__(damaged, "payload", damaged.payload[:-1])
        trainer.sender.send(3, damaged)
        eventually(lambda: recorder.stats.bad_frames, trainer.sender.poll)
        eventually(lambda: record_of(recorder).bad_frames)
        trainer.sender.close()
        trainer.log.close()
    assert f"run {'ab' * 16}, rank 0 at 127.0.0.1" in "".join(recorder.notes)


def test_a_run_is_compacted_though_a_rank_had_ended_before_the_recorder_was_started_again(
    tmp_path, copies
):
    endpoint = free_endpoint()
    with Here(copies, endpoint) as recorder:
        ranks = [Trainer(tmp_path / "log", endpoint, rank=rank, world_size=2) for rank in (0, 1)]
        for trainer in ranks:
            trainer.steps(range(10))
            until_acknowledged(trainer.sender, 10)
        assert ranks[0].close()
        eventually(lambda: record_of(recorder, 0).has_ended)
    assert not (copies / "run" / "rank-0" / "base.json").exists()
    with Here(copies, endpoint):
        ranks[1].steps(range(10, 20))
        until_acknowledged(ranks[1].sender, 20)
        assert ranks[1].close()
        for rank in (0, 1):
            eventually((copies / "run" / f"rank-{rank}" / "base.json").exists)
    assert store.open_run(copies / "run").steps.num_rows == 30
