"""The entries of the runs table: made in the background, kept until the run's files change."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import published_places
import streamlit as st
from run_list import ListedRun, Origin

from ampwatch.errors import AmpwatchError
from ampwatch.follow import Follower, KeptEntries, ListEntry, as_it_stands, entry_of, follow
from ampwatch.store import open_run

REMAKE_S = 5.0  # a live run's entry is made anew after so long
_SAVE_EVERY = 20
_NOTHING = ListEntry("incomplete", "incomplete", "", 0, 0, 0, None, None, "", "")


@dataclass(frozen=True, slots=True)
class MadeEntry:
    """A made entry of the runs table, and of what it was made."""

    stamp: str
    at_s: float
    entry: ListEntry | None  # of a published run that nobody judged
    problem: str = ""
    follower: Follower | None = None  # of a live run, whose engine goes on


class RunEntries:
    """The entries of the runs table; those that are missing or old are made one by one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: dict[str, MadeEntry] = {}
        self._on_disk = KeptEntries()
        self._wanted: list[ListedRun] = []
        self._is_working = False
        self._workers = ThreadPoolExecutor(1, thread_name_prefix="ampwatch-entries")
        self._made_count = 0

    @property
    def version(self) -> int:
        """A number that grows with each entry that is made."""
        return self._made_count + published_places.times_read()

    def entry_of(self, choice: ListedRun) -> MadeEntry | None:
        """The run's entry as last made; None if there is none yet."""
        if choice.origin is Origin.PUBLISHED:
            # What `ampwatch fleet` found: to judge it here would fetch all of it.
            entry = published_places.published_entry(choice.path, choice.run.id)
            return MadeEntry(choice.run.stamp, 0.0, entry)
        made = self._made.get(choice.path)
        if made is None and not choice.live:
            kept = self._on_disk.of(choice.run)
            if kept is not None:
                made = self._made[choice.path] = MadeEntry(choice.run.stamp, time.monotonic(), kept)
        return made

    def request(self, choices: Sequence[ListedRun]) -> None:
        """Have these runs' entries made in the background, in this order, unless up to date."""
        with self._lock:
            due = {choice.path: choice for choice in choices if self._is_due(choice)}
            self._wanted = list(due.values())[::-1]
            if self._wanted and not self._is_working:
                self._is_working = True
                self._workers.submit(self._work)

    def forget_others(self, paths: set[str]) -> None:
        """Forget the entries of all runs but these."""
        with self._lock:
            for path in set(self._made) - paths:
                del self._made[path]

    def _is_due(self, choice: ListedRun) -> bool:
        if choice.origin is Origin.PUBLISHED:
            return False
        made = self.entry_of(choice)
        if made is None:
            return True
        is_rested = not choice.live or time.monotonic() - made.at_s >= REMAKE_S
        return made.stamp != choice.run.stamp and is_rested

    def _work(self) -> None:
        count = 0
        while (choice := self._next()) is not None:
            made = _make_entry(choice)
            with self._lock:
                self._made[choice.path] = made
                self._made_count += 1
            if not choice.live and not made.problem and made.entry is not None:
                self._on_disk.add(choice.run, made.entry)
            count += 1
            if count % _SAVE_EVERY == 0:
                self._on_disk.save()
        self._on_disk.save()

    def _next(self) -> ListedRun | None:
        with self._lock:
            if self._wanted:
                return self._wanted.pop()
            self._is_working = False
            return None


@st.cache_resource(show_spinner=False)
def all_entries() -> RunEntries:
    """The entries of the runs table, shared by all tabs."""
    return RunEntries()


def _make_entry(choice: ListedRun) -> MadeEntry:
    began_s = time.monotonic()
    try:
        follower, run = follow(choice.path), open_run(choice.path)
        followed = follower.update()
        # Of a run that is over, the first update of a follower may take it for one that is quiet.
        judged = followed.diagnosis if choice.live else as_it_stands(run, followed.judged)
        entry = entry_of(run, judged)
    except (AmpwatchError, OSError) as problem:
        return MadeEntry(choice.run.stamp, began_s, _NOTHING, str(problem))
    return MadeEntry(choice.run.stamp, began_s, entry, follower=follower if choice.live else None)
