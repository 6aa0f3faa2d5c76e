"""Publishes the runs of a recorder as they end, in a process of its own.

The recorder sends the process a line of JSON for each run with new rows, and gets one back for each
result. So neither encoding runs nor an unreachable place keeps the recorder from receiving. If the
process dies it is started again, and scans the whole folder first, so no run is missed.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from ampwatch.fleet.place import Place

# The starter's import path, so that both import the same ampwatch.
_PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv[2])
from ampwatch.fleet import background_publisher, background_publisher_child
background_publisher_child.main(background_publisher.PublisherOrders.from_text(sys.argv[1]))
"""
_TELL_EVERY_S = 0.5
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0  # between a process that died and the next


@dataclass(frozen=True, slots=True)
class PublisherOrders:
    """What the process that publishes in the background is to do."""

    directory: str
    place: str
    live_every_s: float | None = None  # how often to publish live runs; None: never

    def to_text(self) -> str:
        """The orders as text, for one argument of the background process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> PublisherOrders:
        """The orders that the background process was started with."""
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True)
class PublisherReport:
    """What the background process reports: a sentence for the user, the count of published runs."""

    sentence: str
    published: int
    waiting: int = 0  # runs that are over and not yet in the place

    def to_line(self) -> bytes:
        """The report as one line of JSON, with its newline."""
        return json.dumps(asdict(self)).encode() + b"\n"


class BackgroundPublisher:
    """Publishes a recorder's runs as they end, in a background process that it keeps alive."""

    def __init__(
        self,
        directory: Path,
        place: str,
        *,
        live_every_s: float | None = None,
        on_note: Callable[[str], None],
    ) -> None:
        with Place(place).trouble("written"):  # PlaceError now, not in the process
            pass
        self.published = self.waiting = 0
        self._orders = PublisherOrders(str(directory.absolute()), place, live_every_s)
        self._on_note = on_note
        self._woken: set[str] = set()
        self._lock = threading.Lock()
        self._stirred = threading.Event()
        self._is_closing = False
        self._before = 0  # published by processes that died
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._work, name="ampwatch-publisher", daemon=True)
        self._thread.start()

    @property
    def process_id(self) -> int | None:
        """The id of the background process that publishes at present."""
        return None if self._process is None else self._process.pid

    def wake(self, folder: Path) -> None:
        """Note that a recorder's run has new rows; never waits."""
        with self._lock:
            self._woken.add(str(folder.absolute()))

    def close(self, wait_s: float) -> bool:
        """Publish the ended runs within this time, then stop; whether all were published."""
        self._is_closing = True
        self._stirred.set()
        self._thread.join(wait_s)
        if not self._thread.is_alive():
            return not self.waiting
        if self._process is not None:
            self._process.kill()
        self._thread.join()
        return False

    # --- its thread ------------------------------------------------------------------------------

    def _work(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            self._before = self.published
            reason = self._run_process()
            if self._is_closing:
                return
            self._on_note(
                f"The process that publishes ended by itself ({reason}). It is started again; runs "
                "are received as before."
            )
            self._stirred.wait(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _run_process(self) -> str:
        """Run the background process until it ends; say how it ended."""
        try:
            self._process = process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, self._orders.to_text(), json.dumps(sys.path)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            return error.strerror or str(error)
        listener = threading.Thread(target=self._listen, args=(process,), daemon=True)
        listener.start()
        while process.poll() is None:
            is_last = self._is_closing
            if not self._tell(process) or is_last:
                break
            self._stirred.wait(_TELL_EVERY_S)
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        code = process.wait()
        listener.join()
        return f"exit status {code}" if code >= 0 else f"signal {-code}"

    def _tell(self, process: subprocess.Popen[bytes]) -> bool:
        """Tell the background process which runs have new rows; False if it does not listen."""
        with self._lock:
            woken, self._woken = self._woken, set()
        assert process.stdin is not None
        try:
            process.stdin.write(b"".join(json.dumps(one).encode() + b"\n" for one in woken))
            process.stdin.flush()
        except OSError:
            return False
        return True

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if not line.endswith(b"\n"):  # a process that is killed may leave half a line
                break
            told = PublisherReport(**json.loads(line))
            self.published = self._before + told.published
            self.waiting = told.waiting
            if told.sentence:
                self._on_note(told.sentence)
        process.stdout.close()
