"""The list of runs: those in the folders on this disk, and those that arrive by the feed."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import address
import streamlit as st
from chart_points import Bases
from open_runs import Look, OpenRuns

from ampwatch import store
from ampwatch.errors import AmpwatchError
from ampwatch.feed import DEFAULT_ENDPOINT
from ampwatch.follow import is_cut_off, seems_live
from ampwatch.recorder import Recorder

FRESH_S = 0.5

if TYPE_CHECKING:
    from run_entries import RunEntries  # which imports this file


@dataclass(frozen=True, slots=True)
class Choice:
    """A run that can be chosen."""

    path: str
    name: str  # in the page's address
    label: str
    live: bool
    last_time_ns: int = 0
    ranks: tuple[int, ...] = ()
    cut_off: bool = False


def folders() -> list[Path]:
    """The folders given to `ampwatch dashboard`, else the usual one."""
    given = os.environ.get("AMPWATCH_DASHBOARD_DIRS")
    return [Path(text) for text in given.split(os.pathsep)] if given else [store.default_log_dir()]


@dataclass(frozen=True, slots=True)
class Feed:
    """The recorder of this server, or why there is none."""

    recorder: Recorder | None
    absence: str = ""

    @property
    def state(self) -> str:
        """Where trainers reach it, or why they cannot."""
        if self.recorder is None:
            return self.absence
        if not self.recorder.is_running:
            return "No feed: its process ended again and again."
        return f"feed on {self.recorder.endpoint.removeprefix('tcp://')}"

    @property
    def notes(self) -> tuple[str, ...]:
        """The recorder's messages, the newest last."""
        return self.recorder.notes if self.recorder else ()


@st.cache_resource(show_spinner=False)
def feed() -> Feed:
    """The recorder, started once; a port that is taken is left alone."""
    endpoint = os.environ.get("AMPWATCH_ENDPOINT") or DEFAULT_ENDPOINT
    if endpoint == "off":
        return Feed(None, "The feed is off; runs on this disk are shown.")
    try:
        started = Recorder(endpoint, folders()[0], fallback=True).start()
    except AmpwatchError as error:
        return Feed(None, f"No feed: {error}")
    return Feed(started)


@dataclass(frozen=True, slots=True)
class RunList:
    """The runs, live ones first, then the newest; and what cannot be read."""

    choices: tuple[Choice, ...]
    problems: tuple[str, ...]

    @property
    def counts(self) -> str:
        """How many go on and how many do not."""
        live = sum(choice.live for choice in self.choices)
        cut = sum(choice.cut_off for choice in self.choices)
        ended = f"{live} live, {len(self.choices) - live - cut} finished"
        return f"{ended}, {cut} cut off" if cut else ended

    def chosen(self, name: str | None) -> Choice | None:
        """The run of that name, if there is one; without a name, the first."""
        return next((one for one in self.choices if name in {None, one.name}), None)


def current() -> RunList:
    """The runs in the folders, at most half a second old; shared by all tabs."""
    return _all_folders().look()


def chosen(name: str | None) -> Choice | None:
    """The run that the address names, if there is one; without a name, the first."""
    return current().chosen(name)


def look_again() -> None:
    """Read the folders anew: there is a new run."""
    _all_folders.clear()


class _Folders:
    """Reads the folders for all tabs."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._seen: RunList | None = None
        self._seen_at = 0.0
        self._lines: dict[Path, tuple[object, store.RunSummary]] = {}

    def look(self) -> RunList:
        with self._lock:
            if self._seen is None or time.monotonic() - self._seen_at > FRESH_S:
                self._seen = _listed(self._line)
                self._seen_at = time.monotonic()
            return self._seen

    def _line(self, path: Path) -> store.RunSummary:
        """A run's summary, made anew only if one of its files has changed."""
        stamp = _stamp(path)
        kept = self._lines.get(path)
        if kept is None or kept[0] != stamp:
            kept = self._lines[path] = (stamp, store.summarize(path))
        return kept[1]


def _stamp(path: Path) -> tuple[tuple[str, int, int], ...]:
    """Size and time of each of a run's files, to notice changes."""
    found = []
    try:
        for folder in (path, *(one for one in path.iterdir() if one.is_dir())):
            for file in sorted(folder.iterdir()):
                about = file.lstat()  # a dangling link is a file too
                found.append((str(file), about.st_mtime_ns, about.st_size))
    except OSError:
        return ()  # it changes as we read; the summary says what is wrong, if anything
    return tuple(sorted(found))


@st.cache_resource(show_spinner=False)
def _all_folders() -> _Folders:
    return _Folders()


def _listed(line: Callable[[Path], store.RunSummary]) -> RunList:
    given = os.environ.get("AMPWATCH_DASHBOARD_DIRS")
    found = (
        [run for folder in folders() for run in store.list_runs(folder, line=line)]
        if given
        else store.list_runs(line=line)
    )
    readable = _without_copies([run for run in found if run.problem is None])
    names = Counter(run.path.name for run in readable)
    made = [
        Choice(
            str(run.path),
            _name(run, names),
            _label(run),
            seems_live(run),
            run.last_time_ns,
            run.ranks,
            is_cut_off(run),
        )
        for run in readable
    ]
    made.sort(key=lambda choice: not choice.live)
    problems = [run.problem for run in found if run.problem is not None]
    return RunList(tuple(made), (*_unreadable(), *problems))


def _unreadable() -> Iterator[str]:
    """Folders without permission to read: they would look empty."""
    for folder in folders():
        if folder.is_dir() and not os.access(folder, os.R_OK | os.X_OK):
            yield f"{folder} cannot be read: its permissions do not allow it."


def _name(run: store.RunSummary, names: Counter[str]) -> str:
    """The folder's name, with a part of the id if another folder has the same."""
    return run.path.name if names[run.path.name] == 1 else f"{run.path.name}~{run.id[:6]}"


def _without_copies(found: list[store.RunSummary]) -> list[store.RunSummary]:
    """The runs without a recorder's copies of runs that are here too."""
    copies = [run for run in found if store.read_copies(run.path)]
    own = {run.id for run in found if run not in copies}
    return [run for run in found if run not in copies or run.id not in own]


def _label(run: store.RunSummary) -> str:
    name = (
        run.path.name if len(run.path.name) < 36 else f"{run.path.name[:20]}…{run.path.name[-14:]}"
    )
    # A label is Markdown to Streamlit, and a name is data.
    escaped = "".join(f"\\{c}" if c in r"\`*_{}[]()#+-.!|~:$<>" else c for c in name)
    if seems_live(run):
        return f"● {escaped} live"
    return f"{escaped} · cut off" if is_cut_off(run) else escaped


@st.cache_resource(show_spinner=False)
def open_runs() -> OpenRuns:
    """The open runs, shared by all tabs."""
    return OpenRuns()


def look(path: str) -> Look:
    """A run as it stands, of the rank that the address names."""
    return open_runs().look(path, address.read().rank)


@st.cache_resource(show_spinner=False)
def bases() -> Bases:
    """The thinned points in use, shared by all tabs."""
    return Bases()


@st.cache_resource(show_spinner=False)
def entries() -> RunEntries:
    """The entries of the table of runs, shared by all tabs."""
    from run_entries import RunEntries

    return RunEntries()
