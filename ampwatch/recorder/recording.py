"""The recording itself, without the process it lives in: a port, and what comes there filed."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from ampwatch import feed
from ampwatch.recorder.compactor import Compactor
from ampwatch.recorder.filing import Filing
from ampwatch.recorder.messages import Counted, Message, Noted, Woken

_IDLE_S = 0.25
_TELL_EVERY_S = 0.5  # how the ranks and the counts stand


class Recording:
    """Receives the feed at `endpoint` and files it under `directory`, in the thread that runs it.

    `tell` is called with what the views should know: it must not wait, since rows would.
    """

    def __init__(
        self,
        endpoint: str,
        directory: Path,
        tell: Callable[[Message], None],
        *,
        keys: feed.Security,
        fallback: bool = False,
        limits: feed.Limits | None = None,
    ) -> None:
        self._tell = tell
        self._compactor = Compactor(self._note)
        self._receiver = feed.Receiver(endpoint, keys=keys, limits=limits, fallback=fallback)
        self._filing = Filing(self._receiver, directory, self._compactor, self._note)
        self._told_s = 0.0
        self._counted = Counted()

    @property
    def endpoint(self) -> str:
        """Where it listens."""
        return self._receiver.endpoint

    @property
    def fell_back(self) -> bool:
        """Whether it listens on a free port because the one asked for was taken."""
        return self._receiver.fell_back

    def run(self, is_over: Callable[[], bool]) -> None:
        """Take what arrives until it is over; what was acknowledged by then is in the folder."""
        try:
            while not is_over():
                for arrival in self._receiver.receive(_IDLE_S):
                    self._filing.take(arrival)
                self._filing.tend()
                for folder in self._filing.woken():
                    self._tell(Woken(folder))
                if time.monotonic() - self._told_s > _TELL_EVERY_S:
                    self._tell_state()
        finally:
            self._receiver.close()
            self._filing.close()
            self._tell_state()
            self._compactor.finish()

    def _tell_state(self) -> None:
        self._told_s = time.monotonic()
        for rank in self._filing.news():
            self._tell(rank)
        counts = self._receiver.counts
        counted = Counted(
            frames=counts.frames,
            rows=counts.rows,
            bytes=counts.bytes,
            bad_frames=counts.bad,
            ignored_frames=counts.ignored,
            requests=counts.requests,
            denied_keys=tuple(counts.denied),
        )
        if counted != self._counted:
            self._counted = counted
            self._tell(counted)

    def _note(self, sentence: str) -> None:
        self._tell(Noted(sentence))
