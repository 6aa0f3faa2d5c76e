"""The desk: follows every run that a recorder files, in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from ampwatch.alerts.follower import Follower
from ampwatch.alerts.post import Post
from ampwatch.errors import AmpwatchError
from ampwatch.store import open_run

LOOK_EVERY_S = 1.0
# A trainer that is alive says so every second, rows or not; its machine may be slow to say so.
LOST_AFTER_S = 60.0


class Desk:
    """Posts what is news of the runs it is woken for, and of those whose trainer is gone."""

    def __init__(self, post: Post, on_note: Callable[[str], None]) -> None:
        self._post, self._on_note = post, on_note
        self._alive: frozenset[str] = frozenset()
        self._woken: set[Path] = set()
        self._followers: dict[Path, Follower] = {}
        self._open: dict[Path, float] = {}  # not over yet, and when rows came last
        self._unreadable: set[Path] = set()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="ampwatch-alerts", daemon=True)
        self._thread.start()

    def wake(self, folder: Path) -> None:
        """Rows have come for a run; returns at once."""
        with self._lock:
            self._woken.add(folder)

    def hear(self, alive: frozenset[str]) -> None:
        """Take note of the ids of the runs whose trainers were heard of lately."""
        self._alive = alive

    def close(self) -> None:
        """Take a last look and end."""
        self._closing.set()
        self._thread.join()

    def _work(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._closing.wait(LOOK_EVERY_S)
            with self._lock:
                woken, self._woken = self._woken, set()
            for folder in woken:
                self._open[folder] = time.monotonic()
                self._try(folder)
            for folder in self._lost():
                self._try(folder, is_lost=True)

    def _lost(self) -> list[Path]:
        """Runs not over of which nothing was heard for long."""
        before_s = time.monotonic() - LOST_AFTER_S
        silent = [folder for folder, heard_s in self._open.items() if heard_s < before_s]
        return [folder for folder in silent if not self._is_heard(folder)]

    def _is_heard(self, folder: Path) -> bool:
        follower = self._followers.get(folder)
        return follower is not None and follower.run.info.id in self._alive

    def _try(self, folder: Path, *, is_lost: bool = False) -> None:
        try:
            self._look(folder, is_lost=is_lost)
        except AmpwatchError as problem:
            self._open.pop(folder, None)
            if folder not in self._unreadable:
                self._unreadable.add(folder)
                self._on_note(f"No alerts of {folder.name}: {problem}")

    def _look(self, folder: Path, *, is_lost: bool) -> None:
        follower = self._followers.get(folder)
        if follower is None:
            follower = self._followers[folder] = Follower(open_run(folder))
        follower.run.refresh()
        is_over = is_lost or follower.run.clean_end
        for letter in follower.news(follower.look(), is_over=is_over):
            self._post.put(letter)
        if is_over:
            self._open.pop(folder, None)
            follower.release()
