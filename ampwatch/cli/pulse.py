"""Whether a run still goes on, as far as that can be seen from here."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ampwatch.store import Run

# A trainer on another machine, or a file system without locks, shows itself by its rows alone.
QUIET_S = 60.0
GRACE_S = 3.0  # of watching before any run is given up: clocks differ


class Pulse:
    """Asked again and again while a run is watched."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._since_s = time.monotonic()
        self._moved_s: float | None = None
        self._was_written = False

    def moved(self) -> None:
        """Note that the run has grown."""
        self._moved_s = time.monotonic()

    @property
    def silent_s(self) -> float:
        """How long ago it grew; before it did so under our eyes, what its rows say.

        Rows of a log without times say nothing: then it is how long we have looked.
        """
        if self._moved_s is not None:
            return time.monotonic() - self._moved_s
        if not self._run.last_time_ns:
            return time.monotonic() - self._since_s
        return max(0.0, (time.time_ns() - self._run.last_time_ns) / 1e9)

    def is_lost(self) -> bool:
        """Whether nobody writes it any more, though it has no end mark."""
        from ampwatch.store import is_written

        if is_written(self._run.path):
            self._was_written = True
            return False
        is_early = time.monotonic() - self._since_s < GRACE_S
        is_quiet = self.silent_s > QUIET_S or not self._run.last_time_ns
        return not is_early and (self._was_written or is_quiet)
