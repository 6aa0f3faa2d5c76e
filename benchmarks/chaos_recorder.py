"""The recorder's process under load, killed and flooded: what it acknowledged is filed.

It is `ampwatch record` as a user starts it, so whichever of its processes is killed is one of a
user's. Its senders are the trainers' own, over logs of their own. Everything stays on loopback.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import zmq
from chaos_peers import FLOODS, Peer, hostile_parts
from chaos_trials import Hung, Lost, Trial, die_with_parent, kind, lost_if_raised
from parts.ranks import Rank

from ampwatch import open_run
from ampwatch.codec import encode
from ampwatch.errors import AmpwatchError
from ampwatch.rows import Table
from ampwatch.store import list_runs

_START_S, _PATIENCE_S, _ORPHANS_S = 40.0, 40.0, 15.0
_RANKS = 3
_HERE = Path(__file__).parents[1]


@dataclass(slots=True)
class Recording:
    """`ampwatch record` in a process of its own."""

    endpoint: str
    copies: Path
    errors: Path
    insecure: bool = False
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it says that it records."""
        words = ["record", "--bind", self.endpoint, "-o", str(self.copies)]
        path = os.pathsep.join([str(_HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
        said_before = self.said
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "ampwatch", *words, *["--insecure"] * self.insecure],
                stdout=subprocess.DEVNULL, stderr=errors, preexec_fn=die_with_parent,  # noqa: PLW1509
                env={**os.environ, "PYTHONPATH": path}, cwd=self.copies.parent,
            )  # fmt: skip
        wait(lambda: "Recording from" in self.said[len(said_before) :] or self.died, _START_S)
        if self.died:
            raise Hung(f"the recorder did not start: {self.said[-200:]}")

    @property
    def said(self) -> str:
        return self.errors.read_text(errors="replace") if self.errors.exists() else ""

    @property
    def died(self) -> bool:
        return self.process is None or self.process.poll() is not None

    @property
    def processes(self) -> list[psutil.Process]:
        """Itself and all it has started, itself first."""
        assert self.process is not None
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(self.process.pid)
            return [root, *root.children(recursive=True)]
        return []

    def stop(self) -> None:
        for process in self.processes:
            process.suspend()

    def go_on(self) -> None:
        for process in self.processes:
            process.resume()

    def kill(self, number: int) -> str:
        """Kill it (0) or one of its descendants; what was killed."""
        processes = self.processes
        victim = processes[number % len(processes)]
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.kill()
        if victim.pid != processes[0].pid:
            return "a process of the recorder"
        assert self.process is not None
        self.process.wait()
        wait(lambda: not any(map(_lives, processes)), _ORPHANS_S, "it left a process behind")
        return "the recorder"

    def end(self) -> None:
        """As Ctrl-C would; it must not take long."""
        if self.process is None or self.died:
            return
        processes = self.processes
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise Hung("the recorder did not end when it was asked to") from None
        finally:
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()


def _lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


@contextlib.contextmanager
def recording(folder: Path, *, insecure: bool = False) -> Iterator[Recording]:
    """A recorder on a free port."""
    copies = folder / "copies"
    copies.mkdir(exist_ok=True)
    if insecure:
        os.environ["AMPWATCH_INSECURE"] = "1"
    recorder = Recording(free_endpoint(), copies, folder / "recorder.txt", insecure)
    recorder.start()
    try:
        yield recorder
    finally:
        recorder.go_on()
        recorder.end()


def free_endpoint() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


def wait(condition: Callable[[], object], seconds: float, words: str = "it took too long") -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise Hung(f"{words} ({seconds:g} s)")
        time.sleep(0.01)


def trainer(folder: Path, endpoint: str, rank: int, run_id: str) -> Rank:
    """A rank with a log of its own and the sender that a training drives."""
    return Rank(folder, endpoint, run_id, rank, world_size=_RANKS)


def _step(trainer: Rank) -> None:
    """A row a batch."""
    number = trainer.log.next_sequence
    columns = {"step": [number], "time_ns": [number], "loss": [number / 8]}
    trainer.send(encode(Table.STEPS, columns))


def _acknowledged(trainer: Rank) -> int:
    return trainer.sender.stats.acknowledged


def train(trainers: list[Rank], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for trainer in trainers:
            _step(trainer)
        time.sleep(0.004)


def _copy_of(copies: Path, run_id: str) -> Path | None:
    return next((line.path for line in list_runs(copies) if line.id == run_id), None)


def _refuse_unfiled(copies: Path, run_id: str, acknowledged: dict[int, int]) -> None:
    """Whatever a rank was told to be filed is in the copy, and true."""
    if not any(acknowledged.values()):
        return
    with lost_if_raised("the copy does not open", AmpwatchError):
        path = _copy_of(copies, run_id)
        if path is None:
            raise Lost(f"no copy, and {acknowledged} were acknowledged")
        run = open_run(path)
        for rank, count in acknowledged.items():
            rows = run.read("steps", ["step", "loss"], rank=rank)
            steps = rows["step"].to_pylist()
            if missing := set(range(count)).difference(steps):
                raise Lost(f"rank {rank}: {len(missing)} of {count} acknowledged rows not filed")
            if any(
                loss != step / 8 for step, loss in zip(steps, rows["loss"].to_pylist(), strict=True)
            ):
                raise Lost(f"rank {rank}: a row that was never sent")


def until_all_acknowledged(trainers: list[Rank], recorder: Recording, words: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while sum(trainer.unfiled for trainer in trainers):  # each is polled
        if recorder.died:
            code = recorder.process and recorder.process.returncode
            raise Lost(f"the recorder died with {code} {words}: {_last(recorder.said)}")
        if time.monotonic() > deadline:
            held = [(_acknowledged(t), t.log.next_sequence) for t in trainers]
            raise Hung(f"not all acknowledged in {_PATIENCE_S:g} s {words}: {held}")
        time.sleep(0.005)


def _last(said: str) -> str:
    return said.strip().splitlines()[-1][:200] if said.strip() else ""


def finish(trainers: list[Rank], recorder: Recording, run_id: str) -> None:
    """All ends filed, and the copies equal the logs."""
    heads = {trainer.rank: trainer.log.next_sequence for trainer in trainers}
    for trainer in trainers:
        if not trainer.sender.close(timeout_s=_PATIENCE_S):
            raise Hung(f"rank {trainer.rank}: its end was not confirmed")
        trainer.log.close()
    recorder.end()
    _refuse_unfiled(recorder.copies, run_id, heads)
    copy = open_run(_copy_of(recorder.copies, run_id) or recorder.copies)
    original = open_run(trainers[0].folder)
    if not copy.steps.equals(original.steps):
        raise Lost(f"the copy has {copy.steps.num_rows} rows, the log {original.steps.num_rows}")


# --- kills ---------------------------------------------------------------------------------------


@kind("kill-recorder", share=4.0, limit_s=400.0)
def kill_recorder(trial: Trial) -> None:
    """`ampwatch record`, or a process of its own, killed under load and started again."""
    run_id = secrets.token_hex(16)
    with recording(trial.folder) as recorder:
        log_dir = trial.folder / "runs"
        trainers = [trainer(log_dir, recorder.endpoint, r, run_id) for r in range(_RANKS)]
        for number in range(8):
            # The first kill comes while the ranks introduce themselves, and their folders are made.
            train(trainers, trial.chance.uniform(0.0, 1.0 if number else 0.3))
            what = recorder.kill(trial.chance.randrange(3))
            trial.kills += 1
            trial.say(f"killed {what}, kill {number + 1}")
            acknowledged = {t.rank: _acknowledged(t) for t in trainers}
            _refuse_unfiled(recorder.copies, run_id, acknowledged)
            train(trainers, trial.chance.uniform(0.0, 0.3))
            if recorder.died:
                recorder.start()
        until_all_acknowledged(trainers, recorder, "after the kills")
        finish(trainers, recorder, run_id)


# --- floods --------------------------------------------------------------------------------------


@kind("flood", share=1.5, limit_s=300.0)
def flood_encrypted(trial: Trial) -> None:
    """Peers of the same key flood the recorder with hellos or rows and are killed."""
    _flood(trial, insecure=False)


@kind("flood-insecure", share=1.5, limit_s=300.0)
def flood_insecure(trial: Trial) -> None:
    """The same without encryption."""
    _flood(trial, insecure=True)


def _flood(trial: Trial, *, insecure: bool) -> None:
    run_id = secrets.token_hex(16)
    with recording(trial.folder, insecure=insecure) as recorder:
        trainers = [trainer(trial.folder / "runs", recorder.endpoint, 0, run_id)]
        for number in range(4):
            flood = trial.chance.choice(FLOODS)
            seconds = trial.chance.uniform(0.2, 1.2)
            trial.say(f"flood {number + 1}: {flood.__doc__}, killed after {seconds:.1f} s")
            pid = _forked_flood(flood, recorder.endpoint, trial.chance.randrange(1 << 30))
            train(trainers, seconds)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            trial.kills += 1
            trial.inputs += 1
            train(trainers, 0.2)
            until_all_acknowledged(trainers, recorder, f"after a flood of {flood.__doc__}")
        finish(trainers, recorder, run_id)


def _forked_flood(flood: Callable[[Peer, int], None], endpoint: str, seed: int) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            die_with_parent()
            with contextlib.suppress(zmq.ZMQError):
                flood(Peer(endpoint, f"{seed:032x}"), seed)
            signal.pause()  # what is queued stays under way until we are killed
        finally:
            os._exit(0)
    return pid


# --- hostile peers -------------------------------------------------------------------------------


@kind("hostile-peer", share=1.5, limit_s=300.0)
def hostile_peer(trial: Trial) -> None:
    """A known peer sends damaged hellos, rows, losses and ends beside an honest trainer."""
    run_id = secrets.token_hex(16)
    with recording(trial.folder) as recorder:
        trainers = [trainer(trial.folder / "runs", recorder.endpoint, 0, run_id)]
        for _ in range(3):
            peer = Peer(recorder.endpoint, secrets.token_hex(16))
            peer.meet()
            for number in range(400):
                peer.send_parts(hostile_parts(trial, peer))
                trial.inputs += 1
                if number % 20 == 0:
                    train(trainers, 0.005)
        trial.say("1,200 hostile frames from known peers")
        until_all_acknowledged(trainers, recorder, "after hostile frames")
        finish(trainers, recorder, run_id)
