"""Runs one mirror in its own thread: failures and hangs there affect nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from ampwatch.alerts.delivery import Retry
from ampwatch.diagnosis.words import count_text
from ampwatch.errors import AmpwatchError
from ampwatch.follow import Follower, FollowThread
from ampwatch.mirrors.places import reason
from ampwatch.mirrors.readings import Mirror
from ampwatch.mirrors.update_reader import Selection, UpdateReader

EVERY_S = 5.0
LONGEST_RETRY_S = 60.0
LAST_TRY_S = 2.0  # time at the end for a client that failed before


class MirrorWorker:
    """Passes updates of runs to a mirror until they are over or it is closed.

    An error of the mirror is counted, reported to `on_note` once, and the update is tried again
    later: the runs' logs keep what is waiting. `close` sends the rest and reports how many rows did
    not arrive.
    """

    def __init__(
        self,
        mirror: Mirror,
        on_note: Callable[[str], None],
        *,
        every_s: float = EVERY_S,
        thin: int = 1,
    ) -> None:
        self.lost_rows = 0  # known after `close`
        self._mirror, self._on_note = mirror, on_note
        self._every_s, self._thin = every_s, thin
        self._readers: dict[Path, UpdateReader] = {}
        self._retry = Retry(every_s, LONGEST_RETRY_S)
        self._was_closed = False
        self.thread = FollowThread(
            self._bring, self._say_unreadable, every_s=every_s, name="ampwatch-mirror",
            at_end=lambda: self._does(mirror.close),
        )  # fmt: skip

    @property
    def failures(self) -> int:
        """How many errors the client has raised."""
        return self._retry.failures

    def follow(self, folder: Path, rank: int | None = None, began_ns: int = 0) -> None:
        """Mirror a run until it is over; `began_ns` is when this process began to write it."""
        selection = Selection(self._thin, rank, began_ns, self._mirror.shows_past)
        self._readers[folder] = UpdateReader(folder, selection)
        self.thread.follow(folder, began_ns)

    def close(self, wait_s: float | None = None) -> None:
        """Send the rest and end; a mirror that hangs is abandoned after `wait_s`."""
        if wait_s is not None and self._retry.failures_in_a_row:
            wait_s = min(wait_s, LAST_TRY_S)
        if self._was_closed or not self.thread.close(wait_s):
            return
        self._was_closed = True
        readers = self._readers.values()
        self.lost_rows = sum(reader.waiting_rows for reader in readers)
        if self.thread.is_at_work or any(reader.is_behind for reader in readers):
            self._on_note(
                f"{self._mirror.label} did not receive everything: "
                f"{count_text(self.lost_rows, 'row')} did not arrive. They are in the run's "
                "own log."
            )

    # --- in the thread ---------------------------------------------------------------------------

    def _bring(self, folder: Path, follower: Follower) -> bool:
        """Send updates until none is left or the mirror fails; whether the run is done."""
        if self._retry.due_in_s and not self.thread.is_closing:
            return False
        reader = self._readers.get(folder)
        if reader is None:
            reader = self._readers[folder] = UpdateReader(folder, Selection(self._thin))
        reader.look(follower, 0.0 if self.thread.is_closing else self._every_s / 10)
        while (update := reader.next()) is not None:
            if not self._does(partial(self._mirror.take, update)):
                return False
            reader.taken()
        return reader.is_done

    def _say_unreadable(self, folder: Path, problem: AmpwatchError) -> None:
        self._on_note(f"{folder.name} cannot be mirrored: {problem}")

    def _does(self, act: Callable[[], None]) -> bool:
        """Whether the client accepted it."""
        trouble = ""
        try:
            act()
        except Exception as error:  # noqa: BLE001  clients of others; nobody else may suffer
            trouble = reason(error)
        if self._retry.note(failed=bool(trouble)):
            self._on_note(
                f"{self._mirror.label} did not accept an update ({trouble}). It is tried again; "
                "the training is not affected."
            )
        return not trouble


def close_workers(workers: Sequence[MirrorWorker], wait_s: float | None) -> None:
    """Close all workers, within `wait_s` together."""
    for worker in workers:
        worker.thread.end()
    until_s = None if wait_s is None else time.monotonic() + wait_s
    for worker in workers:
        worker.close(None if until_s is None else max(0.0, until_s - time.monotonic()))
