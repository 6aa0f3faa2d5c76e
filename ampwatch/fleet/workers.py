"""Workers that do shares of work: processes of this machine, or the machines of a Ray cluster.

Who gives work needs to know only the protocol `Workers`. The nodes of a cluster read the place
themselves, so they need ampwatch with its extra `fleet`, of the same version, and credentials of
their own: none goes through the cluster, whose pages show what is sent. No other file imports ray.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType, ModuleType
from typing import Any, Protocol, TypeVar

from ampwatch.errors import AmpwatchError
from ampwatch.printable_text import printable

J = TypeVar("J")
S = TypeVar("S")
R = TypeVar("R")

_AHEAD = 2  # shares a worker has waiting, so that it never waits itself
_LOOK_S = 1.0  # between two looks whether Ctrl-C was pressed
_LOSSES = 3  # of workers: then something in a share kills them
_LESS_URGENT = 5  # than other work, in the words of nice(2)
_LOCAL_OBJECTS_BYTES = 128 << 20  # what passes through a cluster of this machine is short


class Workers(Protocol):
    """Workers of any kind: processes of this machine, or a cluster."""

    @property
    def count(self) -> int:
        """How many shares the workers do at a time."""
        ...

    def as_done(
        self, work: Callable[[J, S], R], job: J, shares: Sequence[S]
    ) -> Iterator[tuple[S, R]]:
        """Each share with what a worker's `work` returns for it, in the order they are done."""
        ...


@dataclass(frozen=True, slots=True)
class LocalWorkers:
    """Worker processes of this machine; a killed one is replaced, and its shares done again.

    If one worker is enough, this process does the work; unless the work is to be done in the
    background, then it is done in a process that yields to others. `given_up` ends it early.
    """

    count: int
    in_background: bool = False
    given_up: threading.Event = field(default_factory=threading.Event)

    def as_done(
        self, work: Callable[[J, S], R], job: J, shares: Sequence[S]
    ) -> Iterator[tuple[S, R]]:
        """Each share with what a process' `work` returns for it, in the order they are done."""
        if min(self.count, len(shares)) < 2 and not self.in_background:
            yield from ((share, work(job, share)) for share in shares)
            return
        left = list(shares)
        for _ in range(_LOSSES):
            with suppress(BrokenProcessPool):
                for share, result in self._as_done(work, job, tuple(left)):
                    left.remove(share)
                    yield share, result
                return
        raise AmpwatchError(
            f"A process that works on runs was killed {_LOSSES} times, perhaps because the machine "
            "has too little memory: try again with --workers 1."
        )

    def _as_done(
        self, work: Callable[[J, S], R], job: J, shares: Sequence[S]
    ) -> Iterator[tuple[S, R]]:
        waiting: dict[Future[R], S] = {}
        coming = deque(shares)
        count = max(1, min(self.count, len(shares)))
        with _ctrl_c_noted() as is_stopped, _pool(count, in_background=self.in_background) as pool:
            while waiting or coming:
                while coming and len(waiting) < count * _AHEAD:
                    share = coming.popleft()
                    with _without_main():
                        waiting[pool.submit(work, job, share)] = share
                for done in wait(waiting, _LOOK_S, FIRST_COMPLETED).done:
                    yield waiting.pop(done), done.result()
                if is_stopped() or self.given_up.is_set():
                    raise KeyboardInterrupt


@contextmanager
def _ctrl_c_noted() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed: Python drops what it raises in a destructor or a callback."""
    usual, pressed = signal.getsignal(signal.SIGINT), []
    if threading.current_thread() is not threading.main_thread() or not callable(usual):
        yield lambda: False
        return

    def note(number: int, frame: FrameType | None) -> None:
        pressed.append(number)
        usual(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, usual)


@contextmanager
def _pool(workers: int, *, in_background: bool) -> Iterator[ProcessPoolExecutor]:
    """Worker processes, which end at once when their results are no longer wanted."""
    # Started afresh: threads of the libraries that speak to object stores do not survive a fork.
    context = multiprocessing.get_context("spawn")
    stop = context.RawValue("b", 0)  # no lock in it, which a worker that is killed might hold
    begin = (os.getpid(), stop, _LESS_URGENT if in_background else 0)
    pool = ProcessPoolExecutor(workers, context, initializer=_begin, initargs=begin)
    is_done = False
    try:
        yield pool
        is_done = True
    finally:
        if not is_done:
            stop.value = 1
        pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _without_main() -> Iterator[None]:
    """Start worker processes that do not run the caller's script, so it needs no guard.

    Ctrl-C does not reach them either, from their first moment on: they inherit what is blocked.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    before = set[signal.Signals | int]()
    if sys.platform != "win32":
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        if sys.platform != "win32":
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(parent: int, stop: Any, niceness: int) -> None:
    """Prepare a worker process: Ctrl-C is its parent's, and it ends when the parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(AttributeError, OSError):
        os.nice(niceness)
    threading.Thread(target=_end_with, args=(parent, stop), daemon=True).start()


def _end_with(parent: int, stop: Any) -> None:
    while os.getppid() == parent and not stop.value:
        time.sleep(0.25)
    os._exit(1)


# --- a cluster ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RayWorkers:
    """Workers of a Ray cluster: at an address, at that of RAY_ADDRESS, or of this machine alone.

    A share whose worker or machine is lost is done again by another: Ray does that for as many
    times as a share is allowed. `most` is how many shares are worked on at a time; None for as many
    as the cluster has CPUs.
    """

    address: str | None = None
    most: int | None = None

    @property
    def count(self) -> int:
        """How many shares the cluster works on at a time; before it is asked, it may have many."""
        return self.most or os.cpu_count() or 1

    def as_done(
        self, work: Callable[[J, S], R], job: J, shares: Sequence[S]
    ) -> Iterator[tuple[S, R]]:
        """Each share with what `work` returns for it on the cluster, in the order they are done."""
        if not shares:
            return
        with _connected(self.address, self.most) as ray:
            task = ray.remote(num_cpus=1, max_retries=_LOSSES)(work)
            handle = ray.put(job)
            at_once = self.most or _AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))
            coming = deque(shares)
            waiting: dict[Any, S] = {}
            try:
                while coming or waiting:
                    while coming and len(waiting) < at_once:
                        share = coming.popleft()
                        waiting[task.remote(handle, share)] = share
                    (ready,), _ = ray.wait(list(waiting), num_returns=1)
                    yield waiting.pop(ready), _result(ray, ready)
            finally:
                for left in waiting:
                    ray.cancel(left, force=True)


@contextmanager
def _connected(address: str | None, most: int | None) -> Iterator[Any]:
    """Ray, connected to the cluster; afterwards it is as it was found."""
    try:
        import ray
    except ImportError as problem:
        raise AmpwatchError(
            "The engine ray needs Ray, which is not installed: pip install -e '.[fleet-ray]'."
        ) from problem
    if ray.is_initialized():
        yield ray
        return
    where = address or os.environ.get("RAY_ADDRESS")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nobody is told that it is used
    options: dict[str, Any] = {"address": where}
    if where is None:
        options = {
            "num_cpus": most or os.cpu_count() or 1,
            "include_dashboard": False,
            "object_store_memory": _LOCAL_OBJECTS_BYTES,
        }
    try:
        ray.init(log_to_driver=False, logging_level="ERROR", **options)
    except (ray.exceptions.RayError, RuntimeError, ValueError, OSError) as problem:
        raise AmpwatchError(
            f"Ray's cluster at {where or 'this machine'} cannot be used: {_reason(problem)}"
        ) from problem
    try:
        yield ray
    finally:
        ray.shutdown()


def _result(ray: Any, ready: Any) -> Any:
    try:
        return ray.get(ready)
    except ray.exceptions.RayTaskError as problem:
        if isinstance(problem.cause, ImportError):
            raise AmpwatchError(
                f"A node of the cluster lacks a package ({_reason(problem.cause)}): install "
                "'ampwatch[fleet]' on each, of the version that this machine has."
            ) from problem
        raise
    except ray.exceptions.RayError as problem:
        raise AmpwatchError(
            f"The cluster lost what it was judging {_LOSSES + 1} times ({_reason(problem)}); what "
            "was judged before is stored. Look at its nodes, and run the same command again."
        ) from problem


def _reason(problem: BaseException) -> str:
    """The first line of Ray's error message."""
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    return printable(lines[0] if lines else type(problem).__name__)[:300]
