"""What runs in the recorder's process: a recording, until its starter is gone or says so.

The starter holds the other end of stdin and never writes: it closes when that process ends, however
it ends. What is told goes to stdout, by a thread of its own: a starter that is stopped, or slow to
draw, never keeps rows waiting.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Hashable
from functools import partial

from ampwatch import feed
from ampwatch.errors import AmpwatchError, EndpointTakenError
from ampwatch.recorder.messages import (
    Counted,
    Failed,
    Listening,
    Message,
    Orders,
    RankTold,
    to_line,
)
from ampwatch.recorder.open_files import allow_more_files
from ampwatch.recorder.recording import Recording

_LAST_PATIENCE_S = 15.0  # for a recording that hangs, in a disk that is away perhaps
_TELL_PATIENCE_S = 2.0
_MOST_WAITING = 100_000
_BIND_EVERY_S = 0.05


def main(orders: Orders) -> None:
    """Record as ordered."""
    is_over = threading.Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the starter's
    signal.signal(signal.SIGTERM, lambda *_: is_over.set())
    allow_more_files()
    teller = Teller(_own_stdout())
    threading.Thread(target=_end_with_the_starter, args=(is_over,), daemon=True).start()
    starter = os.getppid()
    try:
        _record(orders, teller, lambda: is_over.is_set() or os.getppid() != starter)
    except AmpwatchError as error:
        teller.tell(Failed(type(error).__name__, str(error)))
    finally:
        teller.close()


def _record(orders: Orders, teller: Teller, is_over: Callable[[], bool]) -> None:
    recording = _listening(orders, teller, is_over)
    teller.tell(Listening(recording.endpoint, recording.fell_back))
    recording.run(is_over)


def _listening(orders: Orders, teller: Teller, is_over: Callable[[], bool]) -> Recording:
    """A recording that has its port; a taken one is waited for a little."""
    insecure = feed.Security(own=None)  # what that gives up was said by the starter
    keys = insecure if orders.insecure else feed.find_security(orders.endpoint)
    at = partial(Recording, orders.endpoint, orders.directory, teller.tell, keys=keys)
    until_s = time.monotonic() + orders.port_wait_s
    while time.monotonic() < until_s and not is_over():
        if (recording := _with_free_port(at)) is not None:
            return recording
        time.sleep(_BIND_EVERY_S)
    return at(fallback=orders.fallback)


def _with_free_port(at: Callable[[], Recording]) -> Recording | None:
    try:
        return at()
    except EndpointTakenError:
        return None


def _own_stdout() -> int:
    """Where to tell; what a library prints goes to stderr from now on."""
    ours = os.dup(1)
    os.dup2(2, 1)
    return ours


def _end_with_the_starter(is_over: threading.Event) -> None:
    os.read(sys.stdin.fileno(), 1)  # nothing is ever sent: this returns at the pipe's end
    is_over.set()
    time.sleep(_LAST_PATIENCE_S)
    os._exit(1)


class Teller:
    """Writes messages to the starter; of what it has not read yet, only the newest of a kind."""

    def __init__(self, out: int) -> None:
        self._out = out
        self._lock = threading.Lock()
        self._waiting: dict[Hashable, Message] = {}
        self._has_news = threading.Event()
        self._is_closing = False
        self._thread = threading.Thread(target=self._work, name="ampwatch-tell", daemon=True)
        self._thread.start()

    def tell(self, message: Message) -> None:
        """Have it told; never waits."""
        with self._lock:
            if len(self._waiting) < _MOST_WAITING:
                self._waiting[_slot(message)] = message
        self._has_news.set()

    def close(self) -> None:
        """Tell what is left, if anybody still listens."""
        self._is_closing = True
        self._has_news.set()
        self._thread.join(_TELL_PATIENCE_S)

    def _work(self) -> None:
        is_last = False
        while not is_last:
            self._has_news.wait()
            self._has_news.clear()
            is_last = self._is_closing
            with self._lock:
                messages, self._waiting = self._waiting, {}
            try:
                for message in messages.values():
                    _write(self._out, to_line(message))
            except OSError:
                return  # the starter is gone, and stdin says so too


def _write(out: int, line: bytes) -> None:
    rest = memoryview(line)
    while rest:
        rest = rest[os.write(out, rest) :]


def _slot(message: Message) -> Hashable:
    """What a newer message takes the place of."""
    if isinstance(message, RankTold):
        return (message.run_id, message.record.rank)
    return Counted if isinstance(message, Counted) else message
