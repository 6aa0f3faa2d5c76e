"""A recording in this process, trainers with real logs, and both as programs of their own."""

import contextlib
import os
import sys
import threading
import time
from pathlib import Path
from subprocess import PIPE

import children
import pytest
import zmq

from ampwatch import feed, store
from ampwatch.codec import encode
from ampwatch.feed.frames import Frame, Kind, pack, unpack
from ampwatch.recorder.recorder import NewRows, Noted, RecorderStatus
from ampwatch.recorder.recorder_process import Recording
from ampwatch.rows import FORMAT, Table
from ampwatch.store.live_log import RECORD_BYTES

ANY_PORT = "tcp://127.0.0.1:*"
needs_signals = pytest.mark.skipif(os.name == "nt", reason="stops and kills by POSIX signals")


class Here:
    """What runs in a recorder's process, in a thread of this one; asked as a Recorder is."""

    def __init__(
        self, directory, endpoint=ANY_PORT, on_rows=lambda folder: None, limits=None, beside=()
    ):
        self._status = RecorderStatus()
        self._on_rows = on_rows
        self.notes = ()
        keys = feed.find_security(endpoint)
        Path(directory).mkdir(parents=True, exist_ok=True)
        self._recording = Recording(
            endpoint, directory, self._take, keys=keys, limits=limits, beside=beside
        )
        self.endpoint = self._recording.endpoint
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=self._recording.run, args=(self._stopping.is_set,), name="recording"
        )

    @property
    def runs(self):
        return self._status.runs

    @property
    def stats(self):
        return self._status.stats

    def _take(self, message):
        if isinstance(message, Noted):
            self.notes = tuple(dict.fromkeys([*self.notes, message.sentence]))
        elif isinstance(message, NewRows):
            self._on_rows(message.folder)
        else:
            self._status.take(message)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stopping.set()
        self._thread.join()


class Trainer:
    """A rank with a real log, as the courier drives it."""

    def __init__(
        self, log_dir, endpoint, run_id="ab" * 16, rank=0, name="run", world_size=1, **options
    ):
        self.info = store.RunInfo(id=run_id, name=name, world_size=world_size)
        self.folder = store.create_run(Path(log_dir), self.info)
        self.log = store.RankWriter(self.folder, rank)
        hello = feed.Hello(run_id, rank, self.info.to_json(), FORMAT, "0")
        self.sender = feed.Sender(endpoint, hello, self.log, **options)

    def step(self, number):
        batch = encode(Table.STEPS, {"step": [number], "time_ns": [number], "loss": [0.5]})
        self.sender.send(self.log.append(batch), batch)
        self.sender.poll()

    def steps(self, numbers, pause_s=0.0):
        for number in numbers:
            self.step(number)
            time.sleep(pause_s)
        return self

    def idle_until_told(self):
        """Go on polling, as the courier does between steps, until a line comes on stdin."""
        told = threading.Event()
        threading.Thread(target=lambda: (sys.stdin.readline(), told.set()), daemon=True).start()
        eventually(told.is_set, self.sender.poll)

    def close(self):
        confirmed = self.sender.close()
        self.log.close()
        return confirmed


TRAINER = """
import sys
from recorder_parts import Trainer
log_dir, endpoint, first, second, pause_s = sys.argv[1:]
trainer = Trainer(log_dir, endpoint, world_size=2)
trainer.steps(range(int(first)))
print("first", flush=True)
trainer.idle_until_told()
trainer.steps(range(int(first), int(first) + int(second)), float(pause_s))
print("second", flush=True)
trainer.idle_until_told()
trainer.steps([int(first) + int(second)])
print(trainer.close(), flush=True)
"""

RECORDER = """
import sys
from pathlib import Path
from subprocess import PIPE
from recorder_parts import Here
with Here(Path(sys.argv[2]), sys.argv[1]):
    print("ready", flush=True)
    sys.stdin.readline()
"""


@contextlib.contextmanager
def child(script, *arguments):
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = os.environ | {"PYTHONPATH": path}
    process = children.start("-c", script, *arguments, env=environment, stdin=PIPE, stdout=PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def tell(process):
    process.stdin.write("go on\n")
    process.stdin.flush()


def heard(process):
    return process.stdout.readline().strip()


def free_endpoint():
    receiver = feed.Receiver(ANY_PORT)
    receiver.close()
    return receiver.endpoint


def batches_in(run_folder, rank=0):
    """Every batch of a rank that nobody writes at present, by number."""
    writer = store.RankWriter(run_folder, rank)
    found = {}
    while chunk := writer.read_from(len(found), 1 << 20):
        found.update(chunk)
    writer.close()
    return found


def index_records(run_folder, rank=0):
    """How many batches lie there, counted without opening the log."""
    index = run_folder / f"rank-{rank}" / "index"
    return index.stat().st_size // RECORD_BYTES if index.exists() else 0


def until_acknowledged(sender, number):
    eventually(lambda: sender.stats.acknowledged == number, sender.poll)


def eventually(condition, poll=lambda: None):
    while not condition():
        poll()
        time.sleep(0.005)


def record_of(recorder, rank=0, run_id="ab" * 16):
    run = recorder.runs.get(run_id)
    return next((record for record in run.ranks if record.rank == rank), None) if run else None


class Peer:
    """A raw socket that speaks for any number of ranks, as the wire allows and no trainer would."""

    def __init__(self, endpoint):
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.rcvhwm = self._socket.sndhwm = 0  # it waits for nobody
        feed.find_security(endpoint).configure_trainer(self._socket)
        self._socket.connect(endpoint)
        self.tokens = {}  # by run id: what the last request asks rows to bear
        self.filed = {}  # by run id: everything below is filed
        self.refused = {}  # by run id: the sentence

    def hello(self, run_id):
        info = store.RunInfo(id=run_id, name=f"r-{int(run_id, 16)}")
        payload = feed.Hello(run_id, 0, info.to_json(), FORMAT, "0").to_bytes()
        self._send(Frame(Kind.HELLO, run_id, 0, value=0, payload=payload))

    def row(self, run_id, number):
        token = self.tokens[run_id]
        columns = {"step": [number], "time_ns": [number], "loss": [0.5]}
        payload = encode(Table.STEPS, columns).payload
        self._send(Frame(Kind.ROWS, run_id, 0, token, number, table=Table.STEPS, payload=payload))

    def beat(self, run_id, number):
        """Say that everything below this number has been sent."""
        self._send(Frame(Kind.BEAT, run_id, 0, self.tokens[run_id], number, value=number))

    def end(self, run_id, number):
        self._send(Frame(Kind.END, run_id, 0, self.tokens[run_id], number))

    def hear(self):
        """Take all answers that wait."""
        while self._socket.poll(1):
            frame = unpack(self._socket.recv_multipart())
            if frame.kind is Kind.WANT:
                self.tokens[frame.run_id] = frame.token
            if frame.kind in {Kind.WANT, Kind.ACK}:
                self.filed[frame.run_id] = frame.sequence
            if frame.kind is Kind.NO:
                self.refused[frame.run_id] = frame.payload.decode()

    def close(self):
        self._socket.close(0)
        self._context.term()

    def _send(self, frame):
        self._socket.send_multipart(pack(frame))
