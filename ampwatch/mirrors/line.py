"""One mirror at work, in a thread of its own: what fails or hangs there reaches nobody else."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ampwatch.diagnosis.words import count_text
from ampwatch.errors import AmpwatchError
from ampwatch.mirrors.clients import reason
from ampwatch.mirrors.cursor import Part
from ampwatch.mirrors.readings import Bulletin, Mirror
from ampwatch.mirrors.source import Source

EVERY_S = 5.0
LONGEST_RETRY_S = 60.0
LAST_TRY_S = 2.0  # at the end, for a client that failed last time


class Line:
    """Hands to a mirror what is new of runs, until they end or it is closed.

    What the mirror raises is counted, told `on_note` once, and tried again later: the runs' logs
    keep what waits. `close` sends the rest, and says how many rows did not arrive.
    """

    def __init__(
        self,
        mirror: Mirror,
        on_note: Callable[[str], None],
        *,
        every_s: float = EVERY_S,
        thin: int = 1,
    ) -> None:
        self.failures = 0
        self.lost_rows = 0  # known once it is closed
        self._mirror, self._on_note = mirror, on_note
        self._every_s, self._thin = every_s, thin
        self._sources: dict[Path, Source] = {}
        self._followed: set[Path] = set()  # to be looked at in each round
        self._woken: set[Path] = set()  # in the next one only
        self._unreadable: set[Path] = set()
        self._failed_in_a_row, self._not_before_s = 0, 0.0
        self._lock = threading.Lock()
        self._stirred = threading.Event()  # do not wait for the next round
        self._is_closing = self._was_closed = False
        self._is_open_ended = False  # more runs may come
        self._thread = threading.Thread(target=self._work, name="ampwatch-mirror", daemon=True)
        self._thread.start()

    @property
    def is_at_work(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive()

    def follow(self, folder: Path, rank: int | None = None, began_ns: int = 0) -> None:
        """Mirror a run until it ends; `began_ns` is when this process began to write it."""
        part = Part(self._thin, rank, began_ns, self._mirror.shows_past)
        with self._lock:
            self._sources[folder] = Source(folder, part)
            self._followed.add(folder)
        self._stirred.set()

    def wake(self, folder: Path) -> None:
        """Rows have come for a run; returns at once."""
        with self._lock:
            self._sources.setdefault(folder, Source(folder, Part(self._thin)))
            self._woken.add(folder)
            self._is_open_ended = True

    def end(self) -> None:
        """Have it send what there is and end; returns at once."""
        self._is_closing = True
        self._stirred.set()

    def close(self, wait_s: float | None = None) -> None:
        """Send what there is and end; a mirror that hangs is left behind after `wait_s`."""
        self.end()
        if self._was_closed or self._thread is threading.current_thread():
            return
        self._was_closed = True
        if wait_s is not None and self._failed_in_a_row:
            wait_s = min(wait_s, LAST_TRY_S)
        self._thread.join(wait_s)
        sources = self._sources.values()
        self.lost_rows = sum(source.waiting_rows for source in sources)
        if self._thread.is_alive() or any(source.is_behind for source in sources):
            self._on_note(
                f"{self._mirror.label} has not taken everything: "
                f"{count_text(self.lost_rows, 'row')} did not arrive. The run's own log has them."
            )

    # --- the thread ------------------------------------------------------------------------------

    def _work(self) -> None:
        is_last = False
        while not is_last:
            self._stirred.wait(self._every_s)
            self._stirred.clear()
            is_last = self._is_closing
            self._round(is_last=is_last)
            is_last = is_last or self._is_done
        self._try(self._mirror.close)

    @property
    def _is_done(self) -> bool:
        """Whether all that it followed has ended and arrived."""
        with self._lock:
            is_idle = not self._followed and not self._woken
            return bool(self._sources) and is_idle and not self._is_open_ended

    def _round(self, *, is_last: bool) -> None:
        with self._lock:
            due, self._woken = self._followed | self._woken, set()
        for folder in sorted(due):
            if is_last or time.monotonic() >= self._not_before_s:
                self._bring(self._sources[folder])
            else:
                self._keep(folder)

    def _bring(self, source: Source) -> None:
        """Hand on all that is new, or up to where the mirror fails."""
        try:
            source.look()
            while (bulletin := source.next()) is not None:
                if not self._hand(bulletin):
                    self._keep(source.folder)
                    return
                source.taken()
        except AmpwatchError as problem:
            self._give_up(source.folder, problem)
        if source.is_over:
            self._followed.discard(source.folder)

    def _keep(self, folder: Path) -> None:
        with self._lock:
            self._woken.add(folder)

    def _give_up(self, folder: Path, problem: AmpwatchError) -> None:
        self._followed.discard(folder)
        if folder not in self._unreadable:
            self._unreadable.add(folder)
            self._on_note(f"{folder.name} is no longer mirrored: {problem}")

    # --- the client ------------------------------------------------------------------------------

    def _hand(self, bulletin: Bulletin) -> bool:
        """Whether the mirror took it."""
        if self._try(lambda: self._mirror.take(bulletin)):
            self._failed_in_a_row = 0
            return True
        pause_s = min(self._every_s * 2.0**self._failed_in_a_row, LONGEST_RETRY_S)
        self._failed_in_a_row = min(self._failed_in_a_row + 1, 16)
        self._not_before_s = time.monotonic() + pause_s
        return False

    def _try(self, act: Callable[[], None]) -> bool:
        try:
            act()
        except Exception as error:  # noqa: BLE001  clients of others; nobody else may suffer
            self.failures += 1
            if self.failures == 1:
                self._on_note(
                    f"{self._mirror.label} did not take what ampwatch has for it "
                    f"({reason(error)}). It is tried again; nothing else is touched by it."
                )
            return False
        return True


def close_lines(lines: Sequence[Line], wait_s: float | None) -> None:
    """Close all of them, in `wait_s` together."""
    for line in lines:
        line.end()
    until_s = None if wait_s is None else time.monotonic() + wait_s
    for line in lines:
        line.close(None if until_s is None else max(0.0, until_s - time.monotonic()))
