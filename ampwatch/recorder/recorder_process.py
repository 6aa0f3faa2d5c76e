"""The recorder's process: how its starter holds it, and what runs in it.

In it runs a recording, until its starter ends or asks it to. The starter holds the other end of
stdin, which closes when that process ends, however it ends. It writes nothing there but
instructions for trainers, a line each. Messages go to stdout from a thread of their own, so that a
starter that is stopped, or slow to draw, never keeps rows waiting.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import partial
from io import FileIO

from ampwatch import feed
from ampwatch.errors import AmpwatchError, EndpointTakenError, FeedError, reason_of
from ampwatch.recorder.rank_copies import allow_more_files
from ampwatch.recorder.recorder_messages import (
    Asked,
    Failed,
    Listening,
    Message,
    Orders,
    RankReport,
    RecorderStats,
    from_line,
    to_line,
)
from ampwatch.recorder.recording_loop import Recording
from ampwatch.retry import retry

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

    def __init__(self, orders: Orders, environ: Mapping[str, str]) -> None:
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


# --- what runs in it ------------------------------------------------------------------------------

_LAST_PATIENCE_S = 15.0  # for a recording that hangs, perhaps on a disk that is away
_REPORT_PATIENCE_S = 2.0
_MOST_WAITING = 100_000
_MOST_ASKED = 100  # instructions that wait to be passed on
_BIND_EVERY_S = 0.05


def main(orders_text: str) -> None:
    """What the recorder's process does: record as ordered, until its starter ends or asks it to."""
    orders = Orders.from_text(orders_text)
    is_over = threading.Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the starter's
    signal.signal(signal.SIGTERM, lambda *_: is_over.set())
    allow_more_files()
    reporter = Reporter(_own_stdout())
    asked: deque[Asked] = deque(maxlen=_MOST_ASKED)
    threading.Thread(target=_heed_the_starter, args=(is_over, asked), daemon=True).start()
    starter = os.getppid()

    def is_to_end() -> bool:
        return is_over.is_set() or os.getppid() != starter

    try:
        recording = _listening(orders, reporter, is_to_end)
        reporter.report(Listening(recording.endpoint, recording.fell_back))
        recording.run(is_to_end, asked)
    except AmpwatchError as error:
        reporter.report(Failed(type(error).__name__, str(error)))
    finally:
        reporter.close()


def _listening(orders: Orders, reporter: Reporter, is_over: Callable[[], bool]) -> Recording:
    """A recording that has its port; if the port is taken, wait for it a little."""
    insecure = feed.Security(own=None)  # the starter has warned of what that means
    keys = insecure if orders.insecure else feed.find_security(orders.endpoint)
    at = partial(
        Recording, orders.endpoint, orders.directory, reporter.report, keys=keys,
        beside=orders.beside,
    )  # fmt: skip
    try_port = partial(_unless_taken, at)
    found = retry(try_port, orders.port_wait_s, every_s=_BIND_EVERY_S, stop=is_over)
    return found or at(fallback=orders.fallback)


def _unless_taken(at: Callable[[], Recording]) -> Recording | None:
    try:
        return at()
    except EndpointTakenError:
        return None


def _own_stdout() -> int:
    """Where the process sends messages; what a library prints goes to stderr from now on."""
    ours = os.dup(1)
    os.dup2(2, 1)
    return ours


def _heed_the_starter(is_over: threading.Event, asked: deque[Asked]) -> None:
    # Until the pipe's end. Not by sys.stdin: its lock, held while this waits, aborts the process
    # when the main thread ends it.
    for line in FileIO(0, closefd=False):
        if line.endswith(b"\n"):  # a starter that is killed may leave half a line
            asked.append(Asked.from_line(line))
    is_over.set()
    time.sleep(_LAST_PATIENCE_S)
    os._exit(1)


class Reporter:
    """Sends messages to the starter; of those it has not read yet, only the newest of a kind."""

    def __init__(self, out: int) -> None:
        self._out = out
        self._lock = threading.Lock()
        self._waiting: dict[Hashable, Message] = {}
        self._has_news = threading.Event()
        self._is_closing = False
        self._thread = threading.Thread(target=self._work, name="ampwatch-report", daemon=True)
        self._thread.start()

    def report(self, message: Message) -> None:
        """Have a message sent; never waits."""
        with self._lock:
            if len(self._waiting) < _MOST_WAITING:
                self._waiting[_slot(message)] = message
        self._has_news.set()

    def close(self) -> None:
        """Send what is left, if anybody still reads."""
        self._is_closing = True
        self._has_news.set()
        self._thread.join(_REPORT_PATIENCE_S)

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
    """The slot of a message: those of one slot replace each other until they are sent."""
    if isinstance(message, RankReport):
        return (message.run_id, message.record.rank)
    return RecorderStats if isinstance(message, RecorderStats) else message
