"""The background process that publishes a recorder's runs, until the recorder ends or stops it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from io import FileIO
from pathlib import Path

from ampwatch.errors import AmpwatchError
from ampwatch.fleet.background_publisher import PublisherOrders, PublisherReport
from ampwatch.fleet.publishing import publish, runs_in
from ampwatch.fleet.publishing_worker import Outcome
from ampwatch.follow.liveness import State, at_a_glance
from ampwatch.retry import Retry
from ampwatch.store import open_run

_LOOK_EVERY_S = 2.0
_FIRST_RETRY_S, _LONGEST_RETRY_S = 2.0, 300.0
_NAMED = 3  # runs named in one sentence
_LESS_URGENT = 5  # than receiving, in the words of nice(2)

Say = Callable[[PublisherReport], None]


def main(orders: PublisherOrders) -> None:
    """Run the background process: publish as ordered until the recorder closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the starter's
    with contextlib.suppress(AttributeError, OSError):
        os.nice(_LESS_URGENT)
    out = os.dup(1)
    os.dup2(2, 1)  # what a library prints goes to stderr from now on
    rounds = BackgroundRounds(orders, lambda told: _write(out, told))
    is_over = threading.Event()
    threading.Thread(target=_heed_the_starter, args=(rounds, is_over), daemon=True).start()
    while not is_over.is_set():
        rounds.look()
        is_over.wait(_LOOK_EVERY_S)
    rounds.look(is_last=True)


def _write(out: int, told: PublisherReport) -> None:
    with contextlib.suppress(OSError):  # the starter is gone, and stdin says so too
        os.write(out, told.to_line())


def _heed_the_starter(rounds: BackgroundRounds, is_over: threading.Event) -> None:
    # Until the pipe's end. Not by sys.stdin: its lock, held while this waits, aborts the process
    # when the main thread ends it.
    for line in FileIO(0, closefd=False):
        if line.endswith(b"\n"):  # a starter that is killed may leave half a line
            rounds.wake(Path(json.loads(line)))
    is_over.set()


class BackgroundRounds:
    """Publishes in the background, in rounds: those of a recorder's runs that have ended.

    In the first round every run in the folder counts as one with new rows; those that are already
    published are skipped.
    """

    def __init__(self, orders: PublisherOrders, say: Say) -> None:
        self._orders = orders
        self._say = say
        self._woken: set[Path] = set()  # since the last round
        self._lock = threading.Lock()
        self._open: set[Path] = set()  # to be published when they end
        self._has_begun = False
        self._retry = Retry(_FIRST_RETRY_S, _LONGEST_RETRY_S)
        self._live_s = time.monotonic()
        self._count = 0
        self._told: set[tuple[str, str]] = set()

    def wake(self, folder: Path) -> None:
        """Note for the next round that a run has new rows; safe from any thread."""
        with self._lock:
            self._woken.add(folder)

    def look(self, *, is_last: bool = False) -> None:
        """Make one round of publishing. The last one also retries now what was postponed."""
        fresh = self._take_woken()
        if self._retry.due_in_s and not is_last:
            return
        # A run that just got rows goes on, in all likelihood: it is looked at in the next round.
        over, live = self._by_state(self._open if is_last else self._open - fresh)
        live |= fresh & self._open
        if over and not self._publish(over, live=False):
            return
        every_s = self._orders.live_every_s
        if every_s is None or not live:
            return
        if is_last or time.monotonic() - self._live_s >= every_s:
            self._live_s = time.monotonic()
            self._publish(live, live=True)

    def _take_woken(self) -> set[Path]:
        with self._lock:
            woken, self._woken = self._woken, set()
        if not self._has_begun:
            self._has_begun = True
            with contextlib.suppress(OSError):
                self._open |= set(runs_in(Path(self._orders.directory)))
            woken -= self._open
        self._open |= woken
        return woken

    def _by_state(self, folders: set[Path]) -> tuple[set[Path], set[Path]]:
        """The recorder's runs that have ended, and those still live; deleted ones are forgotten."""
        found = {folder: _state(folder) for folder in folders}
        self._open -= {folder for folder, state in found.items() if state is None}
        live = {folder for folder, state in found.items() if state is State.LIVE}
        return {folder for folder, state in found.items() if state} - live, live

    def _publish(self, folders: set[Path], *, live: bool) -> bool:
        """Publish these runs of the recorder; whether the place took them."""
        trouble, outcome = "", Outcome()
        try:
            outcome = publish(sorted(folders), self._orders.place, live=live)
        except AmpwatchError as problem:
            trouble = str(problem)
        self._retry.note(failed=bool(trouble))
        if trouble:
            self._tell_trouble(trouble, len(folders))
            return False
        self._told.discard(("", "trouble"))
        names = set(outcome.live)
        if not live:
            self._open -= {folder for folder in folders if folder.name not in names}
        self._tell(outcome, live=live)
        return True

    def _tell_trouble(self, trouble: str, waiting: int) -> None:
        is_new = ("", "trouble") not in self._told
        self._told.add(("", "trouble"))
        runs = "1 run waits" if waiting == 1 else f"{waiting:,} runs wait"
        sentence = f"{trouble} It is tried again; {runs} in {self._orders.directory}."
        self._say(PublisherReport(sentence if is_new else "", self._count, waiting))

    def _tell(self, outcome: Outcome, *, live: bool) -> None:
        if not live:
            self._count += len(outcome.published)
        self._say(PublisherReport(self._sentence(outcome, live=live), self._count))
        for name, reason in outcome.skipped.items():
            if (name, reason) not in self._told:
                self._told.add((name, reason))
                self._say(PublisherReport(f"Not published: {name}: {reason}", self._count))

    def _sentence(self, outcome: Outcome, *, live: bool) -> str:
        names = outcome.published
        if not names or live:  # a live run is published repeatedly
            return ""
        named = ", ".join(names[:_NAMED]) if len(names) <= _NAMED else f"{len(names):,} runs"
        return f"Published to {self._orders.place}: {named}."


def _state(folder: Path) -> State | None:
    """The state of a recorder's run; None if it was deleted."""
    try:
        return at_a_glance(open_run(folder))
    except (AmpwatchError, OSError):  # publishing says why it cannot be read
        return State.LOST if folder.is_dir() else None
