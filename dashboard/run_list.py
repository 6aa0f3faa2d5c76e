"""The list of runs that the dashboard offers: in folders, received by the feed, published.

What each run came to, its entry, is made in the background and kept until the run's files change.
"""

from __future__ import annotations

import enum
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import published_places
import server_options
import streamlit as st
from received_runs import server_feed

from ampwatch import store
from ampwatch.errors import AmpwatchError
from ampwatch.follow import (
    Follower,
    KeptEntries,
    ListEntry,
    State,
    as_it_stands,
    at_a_glance,
    entry_of,
    follow,
)
from ampwatch.store import open_run

FRESH_S = 0.5
_REST = 20  # times as long as a look took, before the next: of 100,000 runs one takes seconds
_BUDGET_S = 1.0  # at one look for runs that were never seen; the others come with the next looks


class Origin(enum.Enum):
    """Where a listed run is from."""

    HERE = "here"  # in the folders that are shown
    ELSEWHERE = "elsewhere"  # in another folder of this disk, where its trainer noted it
    RECEIVED = "received"  # over the feed, from a trainer whose log is not seen here
    PUBLISHED = "published"  # in a place, to which somebody published it


@dataclass(frozen=True, slots=True)
class ListedRun:
    """A run in the list, which can be chosen."""

    run: store.RunSummary
    name: str  # in the page's address
    title: str  # as its owner named it
    origin: Origin = Origin.HERE
    live: bool = False
    cut_off: bool = False

    @property
    def path(self) -> str:
        """The folder of the listed run."""
        return str(self.run.path)

    @property
    def place(self) -> str:
        """Where the listed run is, in a word or two; empty for one of the folders shown."""
        match self.origin:
            case Origin.ELSEWHERE:
                return self.run.path.parent.name
            case Origin.RECEIVED:
                return f"from {self.run.host}" if self.run.host else "received"
            case Origin.PUBLISHED:
                return "published"
        return ""

    @property
    def full_title(self) -> str:
        """The one name of the listed run on all pages: its title, and where it is if elsewhere."""
        return f"{self.title} · {self.place}" if self.place else self.title

    @property
    def last_activity_ns(self) -> int:
        """When the listed run was last written, or brought in from another tool's log."""
        is_own = self.run.source == store.OWN_SOURCE
        return max(self.run.last_time_ns, 0 if is_own else self.run.added_ns)


@dataclass(frozen=True, slots=True)
class RunList:
    """The list of runs: this dashboard's folders first, then by last activity."""

    choices: tuple[ListedRun, ...]
    problems: tuple[str, ...]

    def from_origin(self, origin: Origin) -> list[ListedRun]:
        """The listed runs of an origin."""
        return [choice for choice in self.choices if choice.origin is origin]

    def find(self, name: str | None) -> ListedRun | None:
        """The listed run of this name, if there is one; without a name, the first.

        A link may be older than another run with the same folder name: then the first of them,
        which is one of this folder if any is.
        """
        named = next((one for one in self.choices if name in {None, one.name}), None)
        return named or next((one for one in self.choices if Path(one.path).name == name), None)


_ORDER = {origin: number for number, origin in enumerate(Origin)}


def _order(choice: ListedRun) -> tuple[int, bool, bool, int]:
    """The order of the list: pinned runs, then newest activity: a run that just died is on top.

    Live runs all act now; among them the newest comes first, and none changes its place.
    """
    activity_ns = choice.run.added_ns if choice.live else choice.last_activity_ns
    return _ORDER[choice.origin], not choice.run.is_pinned, not choice.live, -activity_ns


def current_list() -> RunList:
    """The list of runs as it is now, at most half a second old; shared by all tabs."""
    return _list_reader().current()


def find_run(name: str | None) -> ListedRun | None:
    """The listed run of this name, if there is one; without a name, the first."""
    return current_list().find(name)


def was_listed(name: str) -> bool:
    """Whether a run of this name was listed while this server ran."""
    return name in _list_reader().seen_names


def read_again() -> None:
    """Have the list of runs read anew: a run was added, changed or deleted."""
    _list_reader().read_again()


class _ListReader:
    """Reads the folders of runs for all tabs; the more runs, the more seldom."""

    def __init__(self) -> None:
        self._lock = Lock()
        given = server_options.are_folders_given() or server_options.shown_places()
        received = server_feed().received
        also = [] if received is None else [received]
        self._catalogue = store.Catalogue(
            server_options.shown_folders() if given else None, also=also
        )
        self._seen: RunList | None = None
        self._choices: dict[str, ListedRun] = {}
        self.seen_names: set[str] = set()
        self._due_s = self._thorough_due_s = 0.0

    def read_again(self) -> None:
        self._due_s = self._thorough_due_s = 0.0

    def current(self) -> RunList:
        seen = self._seen
        if not self._lock.acquire(blocking=seen is None):
            assert seen is not None
            return seen  # another tab is at it
        try:
            seen = self._seen
            if seen is None or time.monotonic() > self._due_s:
                now = self._read_list()
                self._seen = seen = now if now != seen else seen  # what was made of it still holds
            return seen
        finally:
            self._lock.release()

    def _read_list(self) -> RunList:
        began_s = time.monotonic()
        thorough = began_s > self._thorough_due_s
        found = self._catalogue.runs(thorough=thorough, budget_s=_BUDGET_S)
        seen = self._listed(found, thorough=thorough)
        now_s = time.monotonic()
        rest_s = max(FRESH_S, _REST * (now_s - began_s))
        if self._catalogue.unread:  # seen for the first time: read on, look at the others later
            self._thorough_due_s, self._due_s = now_s + rest_s, now_s + FRESH_S
            return seen
        self._due_s = now_s + rest_s
        if thorough:
            self._thorough_due_s, self._due_s = now_s + rest_s, now_s + FRESH_S
        return seen

    def _listed(self, found: list[store.RunSummary], *, thorough: bool) -> RunList:
        readable = _without_copies([run for run in found if run.problem is None])
        names = Counter(run.path.name for run in readable)
        own = {os.path.realpath(folder) for folder in server_options.shown_folders()}
        twins = [run for run in readable if names[run.path.name] > 1 and _is_own(run, own)]
        own_names = Counter(text for run in twins for text in (run.path.name, str(run.path)))
        before, self._choices = self._choices, {}
        for run in readable:
            known = before.get(str(run.path))
            is_same = known is not None and known.run is run and not known.live
            if known is None or thorough or not is_same or names[run.path.name] > 1:
                known = _choice(run, own, _name(run, names, own_names))
            self._choices[str(run.path)] = known
        published = [] if not server_options.shown_places() else _published_runs(set(self._choices))
        made = sorted(self._choices.values(), key=_order)
        made += published
        self.seen_names |= {choice.name for choice in made}
        problems = [run.problem for run in found if run.problem is not None]
        problems += [one.trouble for one in published_places.place_states() if one.trouble]
        return RunList(tuple(made), (*self._unread(), *_unreadable_folders(), *problems))

    def _unread(self) -> Iterator[str]:
        if self._catalogue.unread:
            yield f"{self._catalogue.unread:,} more runs are being read for the first time."


@st.cache_resource(show_spinner=False)
def _list_reader() -> _ListReader:
    return _ListReader()


def _unreadable_folders() -> Iterator[str]:
    """A sentence for each folder of runs without permission to read: it would look empty."""
    for folder in server_options.shown_folders():
        if folder.is_dir() and not os.access(folder, os.R_OK | os.X_OK):
            yield f"{folder} cannot be read: its permissions do not allow it."


def _is_own(run: store.RunSummary, own: set[str]) -> bool:
    """Whether a run was written into the folders that are shown, and not received."""
    if run.is_copy:
        return False
    return os.path.realpath(run.path.parent) in own or os.path.realpath(run.path) in own


def _choice(run: store.RunSummary, own: set[str], name: str) -> ListedRun:
    state = at_a_glance(run)
    is_own = _is_own(run, own)
    return ListedRun(
        run,
        name,
        _title(run),
        Origin.RECEIVED if run.is_copy else Origin.HERE if is_own else Origin.ELSEWHERE,
        live=state is State.LIVE,
        cut_off=state is State.LOST and run.source == store.OWN_SOURCE,
    )


def _published_runs(taken: set[str]) -> list[ListedRun]:
    """The published runs for the list, the newest of each place first, under names of their own."""
    found = [run for place in published_places.place_states() for run in place.runs]
    names = Counter(_name_in_place(run) for run in found)
    names.update(Path(path).name for path in taken)
    return [
        ListedRun(
            run,
            name if names[name] == 1 else f"{name}~{run.id[:6]}",
            run.name,
            Origin.PUBLISHED,
            cut_off=not run.ended and run.source == store.OWN_SOURCE,
        )
        for run in found
        for name in (_name_in_place(run),)
    ]


def _name_in_place(run: store.RunSummary) -> str:
    return run.path.name.rpartition("#")[2]


def _name(run: store.RunSummary, names: Counter[str], own_names: Counter[str]) -> str:
    """The name of a listed run: its folder's, with a part of its id if another has the same.

    One of the folders shown keeps its name, whatever runs of other places are called.
    """
    name = run.path.name
    is_only = names[name] == 1 or (own_names[name] == 1 and own_names[str(run.path)] == 1)
    return name if is_only else f"{name}~{run.id[:6]}"


def _title(run: store.RunSummary) -> str:
    """The title of a listed run: the name that its owner gave, and the number of a repeated one."""
    if run.title:
        return run.title
    folder, safe = run.path.name, store.safe_name(run.name)
    if folder == safe:
        return run.name
    number = folder.removeprefix(f"{safe}-")
    return f"{run.name} ({number})" if number.isdecimal() else folder


def _without_copies(found: list[store.RunSummary]) -> list[store.RunSummary]:
    """The runs for the list without a recorder's copies of runs that are listed themselves."""
    own = {run.id for run in found if not run.is_copy}
    return [run for run in found if not run.is_copy or run.id not in own]


def name_of(path: str) -> str:
    """The name by which the page's address knows the run at this path."""
    return next((one.name for one in current_list().choices if one.path == path), Path(path).name)


# --- what each run came to ------------------------------------------------------------------------


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
