"""The recorder as others hold it: starts its process, listens to it, and restarts it if it dies.

What the process is told and says is a line of JSON each. Of that it makes the status: what a
recorder knows of the runs it hears, as snapshots that are safe to keep.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from ampwatch import errors, feed
from ampwatch.errors import AmpwatchError, FeedError, RunError, reason_of

_NOTES_KEPT = 200
_END_PATIENCE_S = 20.0
# The process of a recorder that was killed a moment ago ends within a quarter of a second.
_PORT_WAIT_S = 0.75
_PORT_WAIT_AGAIN_S = 10.0
# After so many processes in a row that each listened for less than a second, it gives up.
_QUICK_S = 1.0
_MOST_QUICK_ENDS = 20
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0

T = TypeVar("T")


class Recorder:
    """Receives the feed at `endpoint` and files it under `directory`, in a process of its own.

    `on_rows` is called with a run's folder when rows have come for it, `on_note` with each sentence
    that the user should see, both in a thread of the recorder's. If either raises, that is noted
    and recording goes on. With `fallback`, a port that is taken is replaced by a free one, which
    trainers started later find by themselves. Runs whose own logs are in the folders `beside` are
    watched there and not copied.
    """

    def __init__(
        self,
        endpoint: str = feed.DEFAULT_ENDPOINT,
        directory: Path | str = "ampwatch-runs",
        *,
        insecure: bool = False,
        fallback: bool = False,
        beside: Sequence[Path] = (),
        on_rows: Callable[[Path], None] | None = None,
        on_note: Callable[[str], None] | None = None,
    ) -> None:
        self._orders = RecorderOrders(
            feed.check_endpoint(endpoint), Path(directory), insecure, fallback, _PORT_WAIT_S,
            beside=tuple(beside),
        )  # fmt: skip
        self._on_rows, self._on_note = on_rows, on_note
        self._notes: deque[str] = deque(maxlen=_NOTES_KEPT)
        self._noted: set[str] = set()
        self._status = RecorderStatus()
        self._instructed = 0  # the number of the last instruction
        self._numbering = threading.Lock()
        self._environ: dict[str, str] = {}
        self._failure: str | None = None
        self._listening_since_s: float | None = None
        self._process: RecorderProcess | None = None
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._starting = threading.Lock()  # no process is started after the stop

    # --- its state, for anybody ------------------------------------------------------------------

    @property
    def endpoint(self) -> str:
        """Where it listens; before the start, where it was told to."""
        return self._orders.endpoint

    @property
    def is_running(self) -> bool:
        """Whether it records, or is about to."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def process_id(self) -> int | None:
        """The id of the process that records at present."""
        process = self._process
        return None if process is None else process.id

    @property
    def notes(self) -> tuple[str, ...]:
        """The latest sentences that the user should see, oldest first."""
        return tuple(self._notes)

    @property
    def runs(self) -> dict[str, RecordedRun]:
        """The runs heard of since the start, by id, as of a moment ago."""
        return self._status.runs

    @property
    def stats(self) -> RecorderStats:
        """The counts since the start, as of a moment ago."""
        return self._status.stats

    # --- start and stop --------------------------------------------------------------------------

    def start(self) -> Recorder:
        """Take the port and begin; FeedError or RunError if that is impossible."""
        if self._thread is not None:
            return self
        directory = self._orders.directory
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(
                f"{directory} cannot be created ({error.strerror}): record into a folder that you "
                "can write to.",
                path=directory,
            ) from error
        process = self._first_process()
        self._thread = threading.Thread(
            target=self._keep_recording, args=(process,), name="ampwatch-recorder", daemon=True
        )
        self._thread.start()
        atexit.register(self.stop)
        return self

    def instruct(self, run_id: str, instruction: feed.Instruction) -> int | None:
        """Pass on what a page asks of a run's trainer; None if it is not connected here.

        Returns the instruction's number, which the trainer's own rows repeat with the outcome.
        """
        process, run = self._process, self.runs.get(run_id)
        first = None if run is None else run.ranks[0]  # of several ranks it tells the others
        if process is None or first is None or first.rank != 0 or not first.is_alive:
            return None
        with self._numbering:
            self._instructed = max(self._instructed + 1, time.time_ns())
            number = self._instructed
        asked = Asked(run_id, 0, number, instruction)
        return number if process.instruct(asked) else None

    def stop(self) -> None:
        """Stop; what was acknowledged is in the folder, trainers keep the rest in their logs."""
        atexit.unregister(self.stop)
        self._stopping.set()
        with self._starting:
            process = self._process
        if process is not None:
            process.ask_to_end()
        if self._thread is not None:
            self._thread.join(_END_PATIENCE_S)
            if process is not None and self._thread.is_alive():
                process.kill()
                self._thread.join()
            feed.withdraw()

    def __enter__(self) -> Recorder:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _first_process(self) -> RecorderProcess:
        """The first process, once it listens."""
        wanted = self._orders.endpoint
        keys = feed.find_security(wanted, insecure=self._orders.insecure)
        self._environ = dict(os.environ)
        beside = tuple(folder.absolute() for folder in self._orders.beside)
        orders = replace(self._orders, insecure=keys.own is None, beside=beside)
        process = RecorderProcess(orders, self._environ)
        self._process = process
        try:
            first = next(process.messages(), None)
        except BaseException:
            process.kill()
            process.wait()
            raise
        if not isinstance(first, Listening):
            self._process = None
            raise _error_of(first, process.wait())
        # Later processes take the same port or none: trainers know no other.
        self._orders = replace(
            orders, endpoint=first.endpoint, fallback=False, port_wait_s=_PORT_WAIT_AGAIN_S
        )
        self._announce(wanted, first)
        return process

    def _announce(self, wanted: str, listening: Listening) -> None:
        reachable = feed.reachable_form(listening.endpoint)
        if reachable == feed.DEFAULT_ENDPOINT:
            return
        is_announced = feed.announce(reachable)
        if listening.fell_back:
            how = (
                "your trainers on this machine find it if they start from now on"
                if is_announced
                else f"start trainers with AMPWATCH_ENDPOINT={reachable}"
            )
            self._note(f"{wanted} is taken, so this recorder listens on {reachable}; {how}.")

    # --- its thread ------------------------------------------------------------------------------

    def _keep_recording(self, process: RecorderProcess | None) -> None:
        quick_ends = 0
        self._listening_since_s = time.monotonic()
        while True:
            reason = self._handle_messages(process)
            if self._stopping.is_set():
                return
            quick_ends = quick_ends + 1 if self._was_quick() else 0
            if quick_ends >= _MOST_QUICK_ENDS:
                self._note(
                    f"The recorder's process ended {quick_ends} times, each within a second of "
                    f"its start ({reason}): nothing is recorded any more. Trainers keep their own "
                    "logs; start the recorder again once the cause is gone."
                )
                return
            self._note(
                f"The recorder's process ended by itself ({reason}). It is restarted and recording "
                "goes on: trainers send again what was not filed."
            )
            self._stopping.wait(min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**quick_ends))
            process = self._next_process()

    def _was_quick(self) -> bool:
        """Whether the last process never listened, or not for long."""
        since_s, self._listening_since_s = self._listening_since_s, None
        return since_s is None or time.monotonic() - since_s < _QUICK_S

    def _handle_messages(self, process: RecorderProcess | None) -> str:
        """Take a process's messages until it has ended; returns how it ended."""
        self._failure = None
        if process is None:
            return "it cannot be started"
        for message in process.messages():
            self._handle_message(message)
        reason = process.wait()
        self._process = None
        self._status.new_process()
        return self._failure or reason

    def _next_process(self) -> RecorderProcess | None:
        with self._starting:
            if self._stopping.is_set():
                return None
            try:
                self._process = RecorderProcess(self._orders, self._environ)
            except FeedError:
                return None
            return self._process

    def _handle_message(self, message: Message) -> None:
        if isinstance(message, Noted):
            self._note(message.sentence)
        elif isinstance(message, NewRows):
            trouble = _trouble_in(self._on_rows, message.folder)
            if trouble:
                self._note(f"on_rows raised {trouble}; recording goes on.")
        elif isinstance(message, Failed):
            self._failure = message.sentence
        elif isinstance(message, Listening):
            self._listening_since_s = time.monotonic()
        else:
            self._status.take(message)

    # --- notes -----------------------------------------------------------------------------------

    def _note(self, sentence: str) -> None:
        """Note a sentence once, however often its cause comes back."""
        if sentence in self._noted:
            return
        if len(self._noted) < _NOTES_KEPT:
            self._noted.add(sentence)
        self._notes.append(sentence)
        trouble = _trouble_in(self._on_note, sentence)
        if trouble:
            self._notes.append(f"on_note raised {trouble}; recording goes on.")


def _error_of(first: Message | None, ending: str) -> AmpwatchError:
    """The error that kept the recorder's first process from listening."""
    if isinstance(first, Failed):
        kind: type[AmpwatchError] = getattr(errors, first.error, FeedError)
        return kind(first.sentence)
    return FeedError(
        f"The recorder's process ended before it could listen ({ending}): its own message is "
        "printed above."
    )


def _trouble_in(callback: Callable[[T], None] | None, value: T) -> str | None:
    """What a function given to the recorder raised, in words; None if nothing."""
    if callback is None:
        return None
    try:
        callback(value)
    except Exception as error:  # noqa: BLE001  theirs may raise anything; rows must go on coming
        return f"{type(error).__name__}: {error}"
    return None


# --- what it knows of the runs --------------------------------------------------------------------

ALIVE_S = 5.0  # a trainer gives a sign of life each second


@dataclass(frozen=True, slots=True)
class RankRecord:
    """One rank as the recorder knows it."""

    rank: int
    filed: int  # every number below it is in the folder, or known to be lost
    head: int  # the next number the trainer will write
    gaps: tuple[tuple[int, int], ...]  # first and after of what will never come
    bad_frames: int
    is_copy: bool  # written here by the recorder, not by the trainer itself
    is_blocked: bool  # cannot be filed at present
    is_alive: bool  # heard of lately, and not ended
    has_ended: bool


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A run that sends, or has sent, to this recorder."""

    id: str
    name: str
    folder: Path
    ranks: tuple[RankRecord, ...]

    @property
    def has_ended(self) -> bool:
        """Whether every rank heard of has sent its end mark."""
        return all(record.has_ended for record in self.ranks)


@dataclass(frozen=True, slots=True)
class RecorderStats:
    """What the recorder has met, over all runs."""

    frames: int = 0
    rows: int = 0
    bytes: int = 0
    bad_frames: int = 0
    ignored_frames: int = 0  # older than the last request
    requests: int = 0  # for rows, at hellos and after losses under way
    gaps: int = 0  # numbers that will never come
    denied_keys: tuple[str, ...] = ()

    def __add__(self, other: RecorderStats) -> RecorderStats:
        both = {name: getattr(self, name) + getattr(other, name) for name in self.__slots__}
        return RecorderStats(**both | {"denied_keys": tuple(dict.fromkeys(both["denied_keys"]))})


@dataclass(frozen=True, slots=True)
class RankReport:
    """How a rank stands, and to which run it belongs."""

    run_id: str
    run_name: str
    folder: Path
    record: RankRecord


class RecorderStatus:
    """What the recorder's process, and those before it, have reported; one thread writes it."""

    def __init__(self) -> None:
        # By run and rank: the newest report, and the number of the process that made it.
        self._ranks: dict[tuple[str, int], tuple[RankReport, int]] = {}
        self._before, self._latest = RecorderStats(), RecorderStats()
        self._process = 0
        self._since_s = time.monotonic()

    def new_process(self) -> None:
        """Another process reports from now on, and counts from zero."""
        self._before, self._latest = self._before + self._latest, RecorderStats()
        self._process += 1
        self._since_s = time.monotonic()

    def take(self, report: RankReport | RecorderStats) -> None:
        """Note how a rank or the counts stand."""
        if isinstance(report, RecorderStats):
            self._latest = report
        else:
            self._ranks[report.run_id, report.record.rank] = (report, self._process)

    @property
    def runs(self) -> dict[str, RecordedRun]:
        """The runs heard of, by id."""
        runs: dict[str, RecordedRun] = {}
        reports = self._ranks.copy().values()
        for rank, process in sorted(reports, key=lambda report: report[0].record.rank):
            before = runs[rank.run_id].ranks if rank.run_id in runs else ()
            records = (*before, self._as_of_now(rank.record, process))
            runs[rank.run_id] = RecordedRun(rank.run_id, rank.run_name, rank.folder, records)
        return runs

    @property
    def stats(self) -> RecorderStats:
        """The counts of all recorder processes, those that ended included."""
        gaps = [gap for rank, _ in self._ranks.copy().values() for gap in rank.record.gaps]
        lost = sum(after - first for first, after in gaps)
        return replace(self._before + self._latest, gaps=lost)

    def _as_of_now(self, record: RankRecord, process: int) -> RankRecord:
        """A rank that the present process has not heard of for some time is not alive."""
        is_news = process == self._process or time.monotonic() - self._since_s < ALIVE_S
        return record if is_news else replace(record, is_alive=False)


# --- its process ----------------------------------------------------------------------------------

# The starter's import path, so that both import the same ampwatch.
_PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv[2])
from ampwatch.recorder import recorder_process
recorder_process.main(sys.argv[1])
"""
# The terminal's Ctrl-C must not reach it: what was sent before is still to be filed.
_OWN_GROUP = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)


class RecorderProcess:
    """One process, from its start to its end. FeedError if it cannot be started."""

    def __init__(self, orders: RecorderOrders, environ: Mapping[str, str]) -> None:
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, orders.to_text(), json.dumps(sys.path)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(environ),
                start_new_session=True, creationflags=_OWN_GROUP,
            )  # fmt: skip
        except OSError as error:
            raise FeedError(
                f"The recorder's process cannot be started ({reason_of(error)})."
            ) from error

    @property
    def id(self) -> int:
        """Its process id."""
        return self._process.pid

    def messages(self) -> Iterator[Message]:
        """What it says, until it has ended."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith(b"\n"):  # a process that is killed may leave half a line
                yield from_line(line)

    def instruct(self, asked: Asked) -> bool:
        """Have it pass an instruction on; False if it has ended."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(asked.to_line())
            self._process.stdin.flush()
        except (OSError, ValueError):  # ValueError: closed by `ask_to_end`
            return False
        return True

    def ask_to_end(self) -> None:
        """Let it file what it has, and end."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def kill(self) -> None:
        """End it now; what it has acknowledged is in the files."""
        self._process.kill()

    def wait(self) -> str:
        """How it ended, in words; call this when it has no more to say."""
        assert self._process.stdout is not None
        self.ask_to_end()
        code = self._process.wait()
        self._process.stdout.close()
        if code >= 0:
            return f"exit status {code}"
        with contextlib.suppress(ValueError):
            return signal.Signals(-code).name
        return f"signal {-code}"


# --- what its process is told ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RecorderOrders:
    """The arguments of a recorder's process."""

    endpoint: str
    directory: Path
    insecure: bool
    fallback: bool
    port_wait_s: float  # for a port that another recorder's process is about to release
    beside: tuple[Path, ...] = ()  # where runs are read that need no copy

    def to_text(self) -> str:
        """The orders as one argument of a command."""
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_text(cls, text: str) -> RecorderOrders:
        """What `to_text` wrote."""
        fields = json.loads(text)
        folders = {
            "directory": Path(fields["directory"]),
            "beside": tuple(map(Path, fields["beside"])),
        }
        return cls(**fields | folders)


@dataclass(frozen=True, slots=True)
class Asked:
    """An instruction on its way to one rank; all that a recorder's process is ever sent."""

    run_id: str
    rank: int
    number: int
    instruction: feed.Instruction

    def to_line(self) -> bytes:
        """The instruction as a line, its end included."""
        instruction = self.instruction.to_bytes().decode()
        return json.dumps([self.run_id, self.rank, self.number, instruction]).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Asked:
        """What `to_line` wrote."""
        run_id, rank, number, instruction = json.loads(line)
        return cls(run_id, rank, number, feed.Instruction.from_bytes(instruction.encode()))


# --- what its process says ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Listening:
    """It has the port; if not, it says `Failed` instead."""

    endpoint: str
    fell_back: bool


@dataclass(frozen=True, slots=True)
class Failed:
    """It cannot begin, because of one of our errors."""

    error: str  # its name in `ampwatch.errors`
    sentence: str


@dataclass(frozen=True, slots=True)
class Noted:
    """A sentence that the user should see."""

    sentence: str


@dataclass(frozen=True, slots=True)
class NewRows:
    """Rows have come for a run."""

    folder: Path


Message: TypeAlias = Listening | Failed | Noted | NewRows | RankReport | RecorderStats

_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (Listening, Failed, Noted, NewRows, RankReport, RecorderStats)
}


def to_line(message: Message) -> bytes:
    """A message of the recorder's process as a line, its end included."""
    return json.dumps([type(message).__name__, asdict(message)], default=str).encode() + b"\n"


def from_line(line: bytes) -> Message:
    """The message of the recorder's process in a whole line."""
    name, fields = json.loads(line)
    if "folder" in fields:
        fields["folder"] = Path(fields["folder"])
    if "denied_keys" in fields:
        fields["denied_keys"] = tuple(fields["denied_keys"])
    if "record" in fields:
        gaps = tuple((first, after) for first, after in fields["record"]["gaps"])
        fields["record"] = RankRecord(**fields["record"] | {"gaps": gaps})
    message: Message = _KINDS[name](**fields)
    return message
