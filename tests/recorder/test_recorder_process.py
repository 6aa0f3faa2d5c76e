"""The recorder as others hold it: its process, killed, stopped and started again."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from recorder_parts import (
    ANY_PORT,
    Here,
    Trainer,
    batches_in,
    child,
    eventually,
    heard,
    needs_signals,
    record_of,
    tell,
    until_acknowledged,
)

from ampwatch import feed, store
from ampwatch.errors import FeedError, RunError
from ampwatch.recorder import Recorder
from ampwatch.recorder.recorder import RecorderOrders, RecorderProcess


def test_what_a_caller_raises_when_rows_come_is_noted_and_recording_goes_on(tmp_path, copies):
    def broken(folder):
        raise KeyError(folder.name)

    with Recorder(ANY_PORT, copies, on_rows=broken, on_note=broken) as recorder:
        trainer = Trainer(tmp_path / "log", recorder.endpoint).steps(range(5))
        until_acknowledged(trainer.sender, 5)
        eventually(lambda: len(recorder.notes) == 2)
        trainer.steps(range(5, 10))
        until_acknowledged(trainer.sender, 10)
        assert trainer.close()
        assert recorder.is_running
    assert recorder.notes[0] == "on_rows raised KeyError: 'run'; recording goes on."
    assert recorder.notes[1].startswith("on_note raised AttributeError")
    assert store.open_run(copies / "run").steps.num_rows == 10


def test_what_is_acknowledged_is_in_the_files_when_the_recorder_stops(tmp_path, copies):
    recorder = Recorder(ANY_PORT, copies).start()
    trainer = Trainer(tmp_path / "log", recorder.endpoint)
    eventually(lambda: record_of(recorder), trainer.sender.poll)
    for number in range(200):
        trainer.step(number)
    recorder.stop()
    assert not recorder.is_running
    trainer.sender.poll()
    acknowledged = trainer.sender.stats.acknowledged
    trainer.sender.close(timeout_s=0.0)
    assert set(range(acknowledged)) <= set(batches_in(copies / "run"))


def test_a_taken_port_is_said(copies, monkeypatch):
    monkeypatch.setattr("ampwatch.recorder.recorder._PORT_WAIT_S", 0.05)
    with Here(copies) as first, pytest.raises(FeedError, match="is taken"):
        Recorder(first.endpoint, copies).start()


def test_a_process_that_finds_its_port_taken_ends_by_itself_though_its_starter_waits(copies):
    with Here(copies) as first:
        orders = RecorderOrders(
            first.endpoint, copies, insecure=False, fallback=False, port_wait_s=0.0
        )
        process = RecorderProcess(orders, os.environ)
        try:
            (said,) = process.messages()  # its end of the pipe is open until here
            assert process.wait() == "exit status 0"
        finally:
            process.kill()
    assert "is taken" in said.sentence


def test_a_free_port_is_taken_where_that_is_wanted_and_trainers_find_it(
    copies, tmp_path, monkeypatch
):
    monkeypatch.setattr("ampwatch.recorder.recorder._PORT_WAIT_S", 0.05)
    with Here(copies) as first:
        with Recorder(first.endpoint, tmp_path / "second", fallback=True) as second:
            assert second.endpoint != first.endpoint
            assert second.endpoint in second.notes[0]
            assert feed.resolve_endpoint() == second.endpoint


def test_a_directory_that_cannot_be_made_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="record into a folder"):
        Recorder(ANY_PORT, tmp_path / "file" / "copies").start()


def test_a_recorder_that_was_never_started_stops():
    recorder = Recorder(ANY_PORT)
    recorder.stop()
    assert recorder.runs == {}
    assert recorder.stats.frames == 0


@pytest.mark.slow_kills
@needs_signals
def test_a_process_killed_ten_times_under_load_is_started_again_and_nothing_is_lost(
    tmp_path, copies, monkeypatch
):
    monkeypatch.setattr("ampwatch.recorder.recorder._LONGEST_PAUSE_S", 0.1)
    with Recorder(ANY_PORT, copies) as recorder:
        endpoint = recorder.endpoint
        trainers = [Trainer(tmp_path / "log", endpoint, run * 16) for run in ("ab", "cd")]
        written = 0

        def step():
            nonlocal written
            for trainer in trainers:
                trainer.step(written)
            written += 1
            time.sleep(0.015)

        for _ in range(10):
            eventually(lambda: recorder.process_id is not None, step)
            killed = recorder.process_id
            os.kill(killed, signal.SIGKILL)
            eventually(lambda killed=killed: recorder.process_id not in {None, killed}, step)
        for trainer in trainers:
            until_acknowledged(trainer.sender, written)
            assert trainer.close()
        eventually(lambda: [run.has_ended for run in recorder.runs.values()] == [True, True])
        assert recorder.endpoint == endpoint
        runs = dict(recorder.runs)
    assert len(recorder.notes) == 1
    assert "ended by itself (SIGKILL)" in recorder.notes[0]
    for trainer in trainers:
        copy = store.open_run(runs[trainer.info.id].folder)
        assert copy.steps["step"].to_pylist() == list(range(written))
        assert copy.notes == ()


FLOOD = """
import secrets, sys, zmq
from ampwatch import feed
from ampwatch.feed.frames import Frame, Kind, pack
context, peers = zmq.Context(), []
for _ in range(30):
    peer = context.socket(zmq.DEALER)
    peer.linger, peer.sndhwm, peer.sndbuf, peer.heartbeat_ivl = 0, 4, 4096, 1
    feed.find_security(sys.argv[1]).configure_trainer(peer)
    peer.connect(sys.argv[1])
    run = secrets.token_hex(16)
    hello = feed.Hello(run, 0, "{}", 1, "0").to_bytes()
    peers.append((peer, pack(Frame(Kind.HELLO, run, 0, value=5, payload=hello))))
print("flooding", flush=True)
while True:
    for peer, parts in peers:
        try:
            peer.send_multipart(parts, zmq.NOBLOCK)
        except zmq.Again:
            pass
"""


@pytest.mark.slow_kills
@needs_signals
def test_peers_that_flood_with_hellos_and_are_killed_do_not_end_the_recording(tmp_path, copies):
    """libzmq 4.3.5 aborts where a heartbeat comes with the flood, as these peers' do."""
    with Recorder(ANY_PORT, copies) as recorder:
        flooded = recorder.process_id
        for _ in range(3):
            with child(FLOOD, recorder.endpoint) as flood:
                assert heard(flood) == "flooding"
                time.sleep(0.7)
            if recorder.process_id != flooded:
                break
        trainer = Trainer(tmp_path / "log", recorder.endpoint).steps(range(20))
        until_acknowledged(trainer.sender, 20)
        assert trainer.close()
        assert recorder.is_running
    assert store.open_run(copies / "run").steps.equals(store.open_run(trainer.folder).steps)


HOLDER = """
import sys
from ampwatch.recorder import Recorder
from ampwatch.recorder.recorder import RecorderOrders
from ampwatch.recorder.recorder import RecorderProcess
recorder = Recorder(sys.argv[1], sys.argv[2]).start()
print(recorder.process_id, recorder.endpoint, flush=True)
sys.stdin.readline()
"""


@needs_signals
@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM"])
def test_the_process_ends_with_a_starter_that_is_killed_and_the_port_is_free(name, copies):
    with child(HOLDER, ANY_PORT, copies) as starter:
        process_id, endpoint = heard(starter).split()
        starter.send_signal(getattr(signal, name))
        starter.wait()
        with Recorder(endpoint, copies) as second:
            assert second.endpoint == endpoint
    eventually(lambda: not psutil.pid_exists(int(process_id)))


@needs_signals
def test_a_starter_that_just_ends_takes_the_process_with_it(copies):
    with child(HOLDER, ANY_PORT, copies) as starter:
        process_id, _ = heard(starter).split()
        tell(starter)
        assert starter.wait() == 0
    assert not psutil.pid_exists(int(process_id))


@pytest.mark.skipif(sys.platform != "linux", reason="reads the kernel's list of loaded libraries")
def test_the_process_loads_neither_torch_nor_the_dashboard_and_is_none_of_the_terminals(copies):
    with Recorder(ANY_PORT, copies) as recorder:
        loaded = Path(f"/proc/{recorder.process_id}/maps").read_text()
        assert "libzmq" in loaded
        assert "torch" not in loaded
        assert os.getpgid(recorder.process_id) == recorder.process_id  # Ctrl-C goes elsewhere


@needs_signals
def test_a_process_that_dies_at_once_again_and_again_is_given_up_with_a_sentence(
    copies, monkeypatch
):
    monkeypatch.setattr("ampwatch.recorder.recorder._MOST_QUICK_ENDS", 3)
    with Recorder(ANY_PORT, copies) as recorder:
        monkeypatch.setattr("ampwatch.recorder.recorder._PROGRAM", "raise SystemExit(7)")
        os.kill(recorder.process_id, signal.SIGKILL)
        eventually(lambda: not recorder.is_running)
        assert recorder.process_id is None
    assert "ended 3 times, each within a second of its start (exit status 7)" in recorder.notes[-1]
    assert "nothing is recorded any more" in recorder.notes[-1]


@needs_signals
def test_a_port_that_is_lost_while_the_process_is_down_is_said(copies, monkeypatch):
    monkeypatch.setattr("ampwatch.recorder.recorder._MOST_QUICK_ENDS", 2)
    monkeypatch.setattr("ampwatch.recorder.recorder._PORT_WAIT_AGAIN_S", 0.0)
    with Recorder(ANY_PORT, copies) as recorder:
        with recorder._starting:  # none is started before the port has another owner
            os.kill(recorder.process_id, signal.SIGKILL)
            eventually(lambda: recorder.process_id is None)
            other = feed.Receiver(recorder.endpoint)
        eventually(lambda: not recorder.is_running)
        other.close()
    assert f"{recorder.endpoint} is taken" in recorder.notes[-1]


def test_rows_are_filed_though_whoever_hears_of_them_hangs(tmp_path, copies):
    released = threading.Event()
    with Recorder(ANY_PORT, copies, on_rows=lambda folder: released.wait()) as recorder:
        trainer = Trainer(tmp_path / "log", recorder.endpoint)
        for number in range(300):
            trainer.step(number)
        until_acknowledged(trainer.sender, 300)
        assert trainer.close()
        released.set()
    assert store.open_run(copies / "run").steps.equals(store.open_run(trainer.folder).steps)
    assert recorder.stats.rows == 300


@needs_signals
def test_the_counts_of_all_processes_add_up(tmp_path, copies):
    with Recorder(ANY_PORT, copies) as recorder:
        trainer = Trainer(tmp_path / "log", recorder.endpoint).steps(range(20))
        until_acknowledged(trainer.sender, 20)
        eventually(lambda: recorder.stats.rows == 20)
        killed = recorder.process_id
        os.kill(killed, signal.SIGKILL)
        eventually(lambda: recorder.process_id not in {None, killed})
        assert record_of(recorder).filed == 20
        trainer.steps(range(20, 30))
        until_acknowledged(trainer.sender, 30)
        assert trainer.close()
    assert recorder.stats.rows == 30
    assert record_of(recorder).filed == 30


@needs_signals
def test_ctrl_c_in_the_terminal_ends_the_command_politely_and_loses_nothing(tmp_path, copies):
    """The terminal signals the whole process group, as here."""
    command = subprocess.Popen(
        [sys.executable, "-m", "ampwatch", "record", "--bind", ANY_PORT, "-o", copies],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    with command:
        endpoint = re.search(r"tcp://\S+", command.stderr.readline())[0]
        trainer = Trainer(tmp_path / "log", endpoint).steps(range(10))
        until_acknowledged(trainer.sender, 10)
        trainer.steps(range(10, 200))
        os.killpg(command.pid, signal.SIGINT)
        trainer.steps(range(200, 250))
        _, said = command.communicate(timeout=60)
        trainer.sender.poll()
        acknowledged = trainer.sender.stats.acknowledged
        trainer.sender.close(timeout_s=0.0)  # to nobody
        trainer.log.close()
    assert command.returncode == 0
    assert said.endswith(" rows of 1 run received; all of them are on disk.\n")
    assert "ended by itself" not in said
    assert set(range(acknowledged)) <= set(batches_in(copies / "run"))


@needs_signals
def test_the_command_ends_with_an_error_when_its_process_is_given_up(copies):
    program = """
import sys
from ampwatch.recorder import recorder
recorder._MOST_QUICK_ENDS = 1
start = recorder.RecorderProcess.__init__
def last(self, *rest):
    start(self, *rest)
    recorder._PROGRAM = "raise SystemExit(7)"
recorder.RecorderProcess.__init__ = last
from ampwatch.cli import main
sys.argv = ["ampwatch", "record", "--bind", "tcp://127.0.0.1:*", "-o", sys.argv[1]]
main()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program, copies],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stderr=subprocess.PIPE, text=True,
    ) as command:  # fmt: skip
        command.stderr.readline()
        [process] = psutil.Process(command.pid).children()
        process.kill()
        _, said = command.communicate(timeout=60)
    assert command.returncode == 2
    assert "nothing is recorded any more" in said


def test_an_instruction_goes_through_the_process_to_the_one_rank_that_is_connected(
    tmp_path, copies
):
    taken = []
    with Recorder(ANY_PORT, copies) as recorder:
        asked = feed.Instruction(feed.Key.RATE, 0.5)
        assert recorder.instruct("ab" * 16, asked) is None  # nobody is there yet
        trainer = Trainer(tmp_path / "log", recorder.endpoint, on_instruction=taken.append)
        trainer.steps(range(5))
        eventually(lambda: "ab" * 16 in recorder.runs, trainer.sender.poll)
        numbers = [recorder.instruct("ab" * 16, asked) for _ in range(3)]
        eventually(lambda: len(taken) == 3, trainer.sender.poll)
        assert [one.number for one in taken] == numbers == sorted(set(numbers))
        assert trainer.close()
        eventually(lambda: recorder.runs["ab" * 16].has_ended)
        assert recorder.instruct("ab" * 16, asked) is None


def test_of_several_ranks_the_first_is_asked_alone(tmp_path, copies):
    taken = [[], []]
    with Recorder(ANY_PORT, copies) as recorder:
        trainers = [
            Trainer(tmp_path / "log", recorder.endpoint, rank=rank, world_size=2,
                    on_instruction=taken[rank].append).steps(range(3))
            for rank in range(2)
        ]  # fmt: skip
        for trainer in trainers:
            until_acknowledged(trainer.sender, 3)
        eventually(lambda: [len(run.ranks) for run in recorder.runs.values()] == [2])
        assert recorder.instruct("ab" * 16, feed.Instruction(feed.Key.STOP)) is not None
        eventually(lambda: taken[0], lambda: [trainer.sender.poll() for trainer in trainers])
        assert all(trainer.close() for trainer in trainers)
    assert len(taken[0]) == 1
    assert taken[1] == []
