"""Workers that do shares of work: what any kind offers, and processes on this machine."""

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
from dataclasses import dataclass
from types import FrameType, ModuleType
from typing import Any, Protocol, TypeVar

from ampwatch.errors import AmpwatchError

J = TypeVar("J")
S = TypeVar("S")
R = TypeVar("R")

_AHEAD = 2  # shares a worker has waiting, so that it never waits itself
_LOOK_S = 1.0  # between two looks whether Ctrl-C was pressed
LOSSES = 3  # of workers: then something in a share kills them


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
    """Worker processes of this machine; a killed one is replaced, and its shares done again."""

    count: int

    def as_done(
        self, work: Callable[[J, S], R], job: J, shares: Sequence[S]
    ) -> Iterator[tuple[S, R]]:
        """Each share with what a process' `work` returns for it, in the order they are done."""
        if min(self.count, len(shares)) < 2:
            yield from ((share, work(job, share)) for share in shares)
            return
        left = list(shares)
        for _ in range(LOSSES):
            with suppress(BrokenProcessPool):
                for share, result in _as_done(work, job, tuple(left), self.count):
                    left.remove(share)
                    yield share, result
                return
        raise AmpwatchError(
            f"A process that judges was killed {LOSSES} times, perhaps because the machine has too "
            "little memory: try again with --workers 1."
        )


def in_order(
    work: Callable[[J, S], R], job: J, shares: Sequence[S], workers: int
) -> Iterator[tuple[S, R]]:
    """Each share with what a worker's `work` returns for it, in the order of the shares.

    If one worker is enough, this process does the work.
    """
    workers = min(workers, len(shares))
    if workers < 2:
        yield from ((share, work(job, share)) for share in shares)
        return
    with _pool(workers) as pool:
        waiting: deque[tuple[S, Future[R]]] = deque()
        for share in shares:
            if len(waiting) >= workers * _AHEAD:
                first, done = waiting.popleft()
                yield first, done.result()
            with _without_main():
                waiting.append((share, pool.submit(work, job, share)))
        while waiting:
            first, done = waiting.popleft()
            yield first, done.result()


def _as_done(
    work: Callable[[J, S], R], job: J, shares: Sequence[S], workers: int
) -> Iterator[tuple[S, R]]:
    waiting: dict[Future[R], S] = {}
    coming = deque(shares)
    with _ctrl_c_noted() as is_stopped, _pool(min(workers, len(shares))) as pool:
        while waiting or coming:
            while coming and len(waiting) < workers * _AHEAD:
                share = coming.popleft()
                with _without_main():
                    waiting[pool.submit(work, job, share)] = share
            for done in wait(waiting, _LOOK_S, FIRST_COMPLETED).done:
                yield waiting.pop(done), done.result()
            if is_stopped():
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
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Worker processes, which end at once when their results are no longer wanted."""
    # Started afresh: threads of the libraries that speak to object stores do not survive a fork.
    context = multiprocessing.get_context("spawn")
    stop = context.RawValue("b", 0)  # no lock in it, which a worker that is killed might hold
    pool = ProcessPoolExecutor(workers, context, initializer=_begin, initargs=(os.getpid(), stop))
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
    """Start worker processes that do not run the caller's script, so it needs no guard."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _begin(parent: int, stop: Any) -> None:
    """Prepare a worker process: Ctrl-C is its parent's, and it ends when the parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent, stop), daemon=True).start()


def _end_with(parent: int, stop: Any) -> None:
    while os.getppid() == parent and not stop.value:
        time.sleep(0.25)
    os._exit(1)
