"""Work distributed over processes on this machine."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from types import ModuleType
from typing import TypeVar

J = TypeVar("J")
S = TypeVar("S")
R = TypeVar("R")

_AHEAD = 2  # shares a worker has waiting, so that it never waits itself


def in_order(
    work: Callable[[J, S], R], job: J, shares: Sequence[S], workers: int
) -> Iterator[tuple[S, R]]:
    """Each share with the result of `work`, in order; in this process if one is enough."""
    workers = min(workers, len(shares))
    if workers < 2:
        yield from ((share, work(job, share)) for share in shares)
        return
    # Started afresh: threads of the libraries that speak to object stores do not survive a fork.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, context, initializer=_begin, initargs=(os.getpid(),))
    try:
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
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _without_main() -> Iterator[None]:
    """Workers started in this context do not run the caller's script, so it needs no guard."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _begin(parent: int) -> None:
    """Ignore Ctrl-C, which the parent handles, and end when the parent is killed."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
