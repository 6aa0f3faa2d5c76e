"""Trials of benchmarks/chaos.py, and their processes: a forked child does some, and is watched.

The child says what it is about to try before it does, so that a crash or a hang has a name. It
stands at the head of a process group and inherits whatever its own children leave behind, so
nothing outlives it.

A trial is a function that does one harmful thing and looks at what is left. It returns if all is
well; it raises `Lost`, `Changed` or `Hung` for what must never be, and whatever else leaves it is
a foreign exception of ours. All that is random in it comes from its seed.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import faulthandler
import json
import os
import random
import resource
import select
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

MOST_BYTES = 1 << 30
MOST_GROWN_BYTES = 600 << 20  # by one hostile file; caught or not, a small machine would be full
_CAP_BYTES = 3 << 30  # room to see how much would be taken; an allocation that fails hides it
_STACK_WAIT_S = 1.0
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_HERE = str(Path(__file__).parent)


# --- what a trial is ------------------------------------------------------------------------------


class Outcome(str, enum.Enum):
    """How a trial may end."""

    OK = "ok"
    LOST = "lost"
    RAISED = "raised"
    HUNG = "hung"
    CHANGED = "changed"
    TOO_LARGE = "too large"


class Lost(Exception):  # noqa: N818 - an outcome
    """Rows that were acknowledged are not there, or rows are that nobody wrote."""


class Changed(Exception):  # noqa: N818 - an outcome
    """A training did not end as it does without us."""


class Hung(Exception):  # noqa: N818 - an outcome
    """Something did not answer, or did not end."""


@dataclass(frozen=True, slots=True)
class Record:
    """One trial, when it is over."""

    kind: str
    seed: int
    outcome: Outcome
    tried: str = ""
    detail: str = ""
    kills: int = 0
    inputs: int = 0
    left_behind: int = 0


@dataclass(slots=True)
class Trial:
    """One trial while it goes on."""

    chance: random.Random
    folder: Path  # of its own, empty
    material: Path  # what the driver has made for all; never changed
    say: Callable[[str], None]  # what is tried next, told before it is: it may be the last word
    kills: int = 0
    inputs: int = 0
    left_behind: int = 0  # folders that a killed program left and its successor did not tidy up


@dataclass(frozen=True, slots=True)
class Kind:
    """A sort of trial, and what it may take."""

    name: str
    work: Callable[[Trial], None]
    a_child: int  # trials in one process
    limit_s: float  # of one trial, on a machine that others use too
    share: float  # of the time, against the others'
    capped: bool  # whether a trial may not take much memory


KINDS: dict[str, Kind] = {}


def kind(
    name: str, *, a_child: int = 1, limit_s: float = 120.0, share: float = 1.0, capped: bool = False
) -> Callable[[Callable[[Trial], None]], Callable[[Trial], None]]:
    """Put a function on the list."""

    def listed(work: Callable[[Trial], None]) -> Callable[[Trial], None]:
        assert name not in KINDS
        KINDS[name] = Kind(name, work, a_child, limit_s, share, capped)
        return work

    return listed


@contextlib.contextmanager
def lost_if_raised(words: str, *kinds: type[Exception]) -> Iterator[None]:
    """What must be readable is not: that is a loss, whichever sentence says so."""
    try:
        yield
    except kinds as problem:
        raise Lost(f"{words}: {type(problem).__name__}: {problem}") from problem


# --- a child that does some of them --------------------------------------------------------------


class Batch:
    """Some trials of one kind, with seeds that follow each other, in a process of their own."""

    def __init__(self, kind: Kind, seed: int, count: int, folder: Path, material: Path) -> None:
        self.kind, self.folder = kind, folder
        self.records: list[Record] = []
        self.peak_bytes = 0
        self.began_s = self._seen_s = time.monotonic()
        self._seed, self._tried, self._rest = seed, "", b""
        folder.mkdir()
        reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(reading)
            _forked(kind, range(seed, seed + count), folder, material, writing)
        os.close(writing)
        self.pipe = reading

    def is_over(self) -> bool:
        """Take in what the child has said; whether it is gone. A child that hangs is ended."""
        while select.select([self.pipe], [], [], 0)[0]:
            data = os.read(self.pipe, 1 << 16)
            if not data:
                self._bury()
                return True
            self._hear(data)
        if time.monotonic() - self._seen_s > self.kind.limit_s:
            self._end_hung()
            return True
        return False

    def end(self) -> None:
        """Take the child and all it has started away; idempotent."""
        for process in _descendants(self.pid):
            _kill(process.pid)
        _kill(self.pid)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        with contextlib.suppress(OSError):
            os.close(self.pipe)
        release_mounts(self.folder)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _hear(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            told = json.loads(line)
            if "begins" in told:
                self._seed, self._tried, self._seen_s = told["begins"], "", time.monotonic()
            elif "tries" in told:
                self._tried = told["tries"]
            elif "peak_bytes" in told:
                self.peak_bytes = max(self.peak_bytes, told["peak_bytes"])
            else:
                self.records.append(Record(**{**told, "outcome": Outcome(told["outcome"])}))

    def _bury(self) -> None:
        _, status = os.waitpid(self.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        if code:
            how = f"died by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            words = _last_line(self.folder / "said.txt")
            self._fail(Outcome.RAISED, f"the process {how}. {words}".strip())
        self.end()

    def _end_hung(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGUSR1)  # faulthandler writes where it stands
        time.sleep(_STACK_WAIT_S)
        self._fail(Outcome.HUNG, f"after {self.kind.limit_s:g} s {_where(self.folder)}")
        self.end()

    def _fail(self, outcome: Outcome, detail: str) -> None:
        self.records.append(Record(self.kind.name, self._seed, outcome, self._tried, detail))


# --- in the child --------------------------------------------------------------------------------


def _forked(kind: Kind, seeds: range, folder: Path, material: Path, pipe: int) -> None:
    """The child's whole life."""
    code = 70
    try:
        _settle(kind, folder)
        for seed in seeds:
            _tell(pipe, {"begins": seed})
            _tell(pipe, asdict(_tried(kind, seed, folder, material, pipe)))
            _tell(pipe, {"peak_bytes": _peak_bytes()})
        code = 0
    finally:
        os._exit(code)


def _settle(kind: Kind, folder: Path) -> None:
    """Own group, environment, output and limits; whoever started us takes us along."""
    os.setsid()
    die_with_parent()
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    said = os.open(folder / "said.txt", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, place in ((nothing, 0), (said, 1), (said, 2)):
        os.dup2(number, place)
    sys.stdout = os.fdopen(1, "w", 1, closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, closefd=False)
    faulthandler.enable((folder / "stack.txt").open("w"))
    faulthandler.register(signal.SIGUSR1, (folder / "stack.txt").open("a"))
    own_environment(folder)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    forget_peak()
    if kind.capped:
        own = psutil.Process().memory_info()
        most = own.vms + _CAP_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def own_environment(folder: Path) -> None:
    """A home, keys and state of one's own; none of the user's settings."""
    for name in [name for name in os.environ if name.startswith(("AMPWATCH", "XDG_"))]:
        del os.environ[name]
    home = folder / "home"
    os.environ.update(
        HOME=str(home), AMPWATCH_CONFIG_DIR=str(home / "config"),
        XDG_STATE_HOME=str(home / "state"), AMPWATCH_ENDPOINT="off",
    )  # fmt: skip
    home.mkdir(exist_ok=True)


def die_with_parent() -> None:
    """Be killed when the process that forked us ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _tell(pipe: int, message: dict[str, object]) -> None:
    data = json.dumps(message, default=str).encode() + b"\n"
    while data:
        data = data[os.write(pipe, data) :]


def _tried(kind: Kind, seed: int, folder: Path, material: Path, pipe: int) -> Record:
    """One trial, from an empty folder to its record."""
    own = folder / "trial"
    own.mkdir()
    last = ""

    def say(words: str) -> None:
        nonlocal last
        last = words
        _tell(pipe, {"tries": words})

    threads_raised: list[BaseException | None] = []
    threading.excepthook = lambda told: threads_raised.append(told.exc_value)
    trial = Trial(random.Random(f"{kind.name} {seed}"), own, material, say)
    forget_peak()
    before = _peak_bytes()
    outcome, detail = _outcome(kind.work, trial, threads_raised)
    grown = _peak_bytes() - before
    if kind.capped and outcome is Outcome.OK and grown > MOST_GROWN_BYTES:
        outcome, detail = Outcome.TOO_LARGE, f"it took {grown / 1e6:.0f} MB for a while"
    if kind.a_child == 1:
        end_descendants()
        release_mounts(own)
    shutil.rmtree(own, ignore_errors=True)
    return Record(
        kind.name, seed, outcome, last, detail, trial.kills, trial.inputs, trial.left_behind
    )


def _outcome(
    work: Callable[[Trial], None], trial: Trial, threads_raised: list[BaseException | None]
) -> tuple[Outcome, str]:
    try:
        work(trial)
        if threads_raised:
            return Outcome.RAISED, f"in a thread: {_place(threads_raised[0])}"
    except Lost as problem:
        return Outcome.LOST, str(problem)
    except Changed as problem:
        return Outcome.CHANGED, str(problem)
    except Hung as problem:
        return Outcome.HUNG, str(problem)
    except MemoryError as problem:
        return Outcome.TOO_LARGE, _place(problem)
    except Exception as problem:
        return Outcome.RAISED, _place(problem)
    return Outcome.OK, ""


def _place(problem: BaseException | None) -> str:
    """What was raised and the last lines of ours that it came through."""
    if problem is None:
        return "an exception that is gone"
    frames = traceback.extract_tb(problem.__traceback__)
    ours = [f"{Path(f.filename).name}:{f.lineno}" for f in frames if "ampwatch/" in f.filename]
    theirs = [f"{Path(f.filename).name}:{f.lineno}" for f in frames]
    words = " ".join(str(problem).split())[:160]
    return f"{type(problem).__name__} at {' < '.join((ours or theirs)[:-4:-1])}: {words}"


def forget_peak() -> None:
    """The most memory that was taken counts from here."""
    Path("/proc/self/clear_refs").write_text("5")


def _peak_bytes() -> int:
    """The most that this process, or a child of it, had resident."""
    status = Path("/proc/self/status").read_text()
    own = int(status.split("VmHWM:")[1].split()[0])
    return 1024 * max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)


# --- processes and mounts ------------------------------------------------------------------------


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def end_descendants(known: frozenset[int] = frozenset()) -> int:
    """Kill and bury what this process has started, or inherited; how many there were."""
    ended = 0
    for process in _descendants(os.getpid()):
        if process.pid not in known and not _of(known, process):
            _kill(process.pid)
            ended += 1
    for child in psutil.Process().children():
        if child.pid not in known:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child.pid, 0)
    return ended


def _of(known: frozenset[int], process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return any(parent.pid in known for parent in process.parents())
    return True


def inherit_orphans() -> None:
    """Whatever our children leave behind becomes ours, to be ended."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def release_mounts(folder: Path) -> None:
    """Unmount what a trial has mounted below its folder."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        place = line.split()[1]
        if place.startswith(f"{folder}/"):
            ctypes.CDLL(None).umount2(os.fsencode(place), 2)  # lazily: somebody may hold it


def total_bytes() -> int:
    """What this process and all below it take together, shared pages counted once."""
    total = 0
    for process in [psutil.Process(), *_descendants(os.getpid())]:
        with contextlib.suppress(psutil.Error, OSError):
            total += process.memory_full_info().pss
    return total


def _last_line(path: Path) -> str:
    with contextlib.suppress(OSError):
        lines = path.read_text(errors="replace").strip().splitlines()
        return lines[-1][:200] if lines else ""
    return ""


def _where(folder: Path) -> str:
    """Where a child stood when it was asked: the innermost lines of ours."""
    with contextlib.suppress(OSError):
        text = (folder / "stack.txt").read_text(errors="replace")
        part = text.rpartition("most recent call first")[2].splitlines()[1:]
        lines = [line.split('"')[1:] for line in part if 'File "' in line]
        found = [f"{Path(name).name}{rest.split(' in ')[0]}" for name, rest in lines]
        return "in " + " < ".join(found[:5]).replace(", line ", ":") if found else ""
    return ""
