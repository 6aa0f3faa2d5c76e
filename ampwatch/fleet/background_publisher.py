"""Publishes the runs of a recorder as they end, in a thread beside it.

Rows are read and encoded in a worker process that yields to others, and the recorder receives in a
process of its own. So neither encoding runs nor an unreachable place keeps it from receiving. In
the first round every run in the folder counts as one with new rows; those that are already
published are skipped. So no run is missed, whatever happened before.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path

from ampwatch.errors import AmpwatchError
from ampwatch.fleet.place import Place
from ampwatch.fleet.publishing import Outcome, publish_folders, runs_in
from ampwatch.fleet.workers import LocalWorkers
from ampwatch.follow.liveness import State, at_a_glance
from ampwatch.retry import Retry
from ampwatch.store import open_run

_LOOK_EVERY_S = 2.0
_FIRST_RETRY_S, _LONGEST_RETRY_S = 2.0, 300.0
_GIVE_UP_WAIT_S = 5.0  # until the worker process has ended
_NAMED = 3  # runs named in one sentence


class BackgroundRounds:
    """Publishes in rounds: those of a recorder's runs that have ended, and if asked the live ones.

    `live_every_s` is how often live runs are published; None: never.
    """

    def __init__(
        self,
        directory: Path,
        place: str,
        live_every_s: float | None = None,
        *,
        on_note: Callable[[str], None],
        workers: LocalWorkers | None = None,
    ) -> None:
        self.published = 0
        self.waiting = 0  # runs that are over, while the place does not take them
        self._directory, self._place, self._live_every_s = directory, Place(place), live_every_s
        self._on_note = on_note
        self._workers = workers or LocalWorkers(1)
        with self._place.trouble("written"):  # PlaceError now, not in a round
            pass
        self._woken: set[Path] = set()  # since the last round
        self._lock = threading.Lock()
        self._open: set[Path] = set()  # to be published when they end
        self._has_begun = self._is_in_trouble = False
        self._retry = Retry(_FIRST_RETRY_S, _LONGEST_RETRY_S)
        self._live_s = time.monotonic()
        self._skipped: set[tuple[str, str]] = set()  # name and reason of each that was noted

    def wake(self, folder: Path) -> None:
        """Note for the next round that a run has new rows; never waits."""
        with self._lock:
            self._woken.add(folder.absolute())

    def publish_round(self, *, is_last: bool = False) -> None:
        """Make one round of publishing. The last one also retries now what was postponed."""
        fresh = self._take_woken()
        if self._retry.due_in_s and not is_last:
            return
        # A run that just got rows goes on, in all likelihood: it is looked at in the next round.
        over, live = self._by_state(self._open if is_last else self._open - fresh)
        live |= fresh & self._open
        if over and not self._publish(over, live=False):
            return
        if self._live_every_s is None or not live:
            return
        if is_last or time.monotonic() - self._live_s >= self._live_every_s:
            self._live_s = time.monotonic()
            self._publish(live, live=True)

    def _take_woken(self) -> set[Path]:
        with self._lock:
            woken, self._woken = self._woken, set()
        if not self._has_begun:
            self._has_begun = True
            with contextlib.suppress(OSError):
                self._open |= set(runs_in(self._directory.absolute()))
            woken -= self._open
        self._open |= woken
        return woken

    def _by_state(self, folders: set[Path]) -> tuple[set[Path], set[Path]]:
        """The recorder's runs that have ended, and those still live; deleted ones are forgotten."""
        states = {folder: _state(folder) for folder in folders}
        self._open -= {folder for folder, state in states.items() if state is None}
        live = {folder for folder, state in states.items() if state is State.LIVE}
        return {folder for folder, state in states.items() if state} - live, live

    def _publish(self, folders: set[Path], *, live: bool) -> bool:
        """Publish these runs of the recorder; whether the place took them."""
        try:
            outcome = publish_folders(sorted(folders), self._place, self._workers, live=live)
        except Exception as problem:  # noqa: BLE001  a defect must not end it for good, or recording
            self._retry.note(failed=True)
            self.waiting = len(folders)
            self._note_trouble(problem)
            return False
        self._retry.note(failed=False)
        self._is_in_trouble, self.waiting = False, 0
        if not live:
            self._open -= {folder for folder in folders if folder.name not in outcome.live}
            self._note_published(outcome)
        for reason in outcome.skipped.items():
            if reason not in self._skipped:
                self._skipped.add(reason)
                self._on_note("Not published: {}: {}".format(*reason))
        return True

    def _note_trouble(self, problem: Exception) -> None:
        if not self._is_in_trouble:
            trouble = str(problem)
            if not isinstance(problem, AmpwatchError):
                trouble = f"Publishing failed by itself ({type(problem).__name__}: {problem})."
            runs = "1 run waits" if self.waiting == 1 else f"{self.waiting:,} runs wait"
            self._on_note(f"{trouble} It is tried again; {runs} in {self._directory.absolute()}.")
        self._is_in_trouble = True

    def _note_published(self, outcome: Outcome) -> None:
        names = outcome.published
        self.published += len(names)
        if names:
            named = ", ".join(names) if len(names) <= _NAMED else f"{len(names):,} runs"
            self._on_note(f"Published to {self._place.address}: {named}.")


class BackgroundPublisher(BackgroundRounds):
    """A thread that makes rounds until it is closed; its work is done in a process of its own."""

    def __init__(
        self,
        directory: Path,
        place: str,
        live_every_s: float | None = None,
        *,
        on_note: Callable[[str], None],
    ) -> None:
        workers = LocalWorkers(1, in_background=True)
        super().__init__(directory, place, live_every_s, on_note=on_note, workers=workers)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="ampwatch-publisher", daemon=True)
        self._thread.start()

    def close(self, wait_s: float) -> bool:
        """Publish the ended runs within this time, then stop; whether all were published."""
        self._closing.set()
        self._thread.join(wait_s)
        if not self._thread.is_alive():
            return not self.waiting
        self._workers.given_up.set()
        self._thread.join(_GIVE_UP_WAIT_S)
        return False

    def _work(self) -> None:
        with contextlib.suppress(KeyboardInterrupt):  # it was given up
            while not self._closing.is_set():
                self.publish_round()
                self._closing.wait(_LOOK_EVERY_S)
            self.publish_round(is_last=True)


def _state(folder: Path) -> State | None:
    """The state of a recorder's run; None if it was deleted."""
    try:
        return at_a_glance(open_run(folder))
    except (AmpwatchError, OSError):  # publishing says why it cannot be read
        return State.LOST if folder.is_dir() else None
