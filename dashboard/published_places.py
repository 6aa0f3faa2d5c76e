"""The places of published runs that this dashboard shows: their runs and verdicts, last known.

A place may be slow: it is read in the background, and the last known state is shown meanwhile.
One that cannot be reached says so, keeps its runs on the page, and is asked again.
"""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import server_options
import streamlit as st

from ampwatch.diagnosis import RULES
from ampwatch.errors import AmpwatchError
from ampwatch.fleet import PublishedRun, list_published
from ampwatch.fleet.summary import settings_of
from ampwatch.fleet.verdicts import RunVerdict, read_verdicts
from ampwatch.follow import ListEntry
from ampwatch.follow.list_entry import MODEL_SETTINGS
from ampwatch.store import RunSummary

EVERY_S = 30.0  # a place is asked
_FIRST_PATIENCE_S = 3.0  # that a page waits for what has never been read
_NAMES = {rule.code: f"{rule.code} {rule.name}" for rule in RULES}


@dataclass(frozen=True, slots=True)
class PlaceState:
    """The last known state of a place: its published runs and their verdicts."""

    address: str
    runs: tuple[RunSummary, ...] = ()
    verdicts: tuple[RunVerdict, ...] = ()
    trouble: str = ""
    entries: Mapping[str, ListEntry] = field(default_factory=dict)  # of the judged runs, by id
    times_read: int = 0


class _Place:
    """One place: read by one thread at a time, at limited intervals."""

    def __init__(self, address: str) -> None:
        self._lock = threading.Lock()
        self._asked_s = -EVERY_S
        self._first = threading.Event()
        self.last = PlaceState(address)

    def state(self) -> PlaceState:
        if time.monotonic() - self._asked_s > EVERY_S and self._lock.acquire(blocking=False):
            self._asked_s = time.monotonic()
            threading.Thread(target=self._read_place, name="ampwatch-place", daemon=True).start()
        self._first.wait(0.0 if self.last.times_read else _FIRST_PATIENCE_S)
        return self.last

    def _read_place(self) -> None:
        address = self.last.address
        try:
            runs = _summaries(address, list_published(address))
            verdicts = tuple(read_verdicts(address))
            entries = {one.run_id: verdict_entry(one) for one in verdicts}
            self.last = PlaceState(address, runs, verdicts, "", entries, self.last.times_read + 1)
        except AmpwatchError as problem:
            times_read = self.last.times_read + 1
            self.last = replace(self.last, trouble=str(problem), times_read=times_read)
        finally:
            self._asked_s = time.monotonic()
            self._first.set()
            self._lock.release()


def place_states() -> tuple[PlaceState, ...]:
    """The last known state of each place; the first request waits a moment for it."""
    return tuple(place.state() for place in _places())


def times_read() -> int:
    """How often places of published runs were read: grows with each reading."""
    return sum(place.last.times_read for place in _places())


def published_entry(path: str, run_id: str) -> ListEntry | None:
    """The runs table's entry of a published run; None if nobody judged it."""
    folded = path.rpartition("#")[0]
    found = (place.last for place in _places() if str(Path(place.last.address)) == folded)
    return next((one.entries.get(run_id) for one in found), None)


def verdict_entry(verdict: RunVerdict) -> ListEntry:
    """A published run's verdict as an entry of the runs table."""
    settings = settings_of(verdict.config)
    head = verdict.codes[0] if verdict.codes else ""
    return ListEntry(
        verdict=verdict.verdict,
        words=verdict.verdict,
        finding=_NAMES.get(head, head),
        steps=verdict.steps,
        last_step=max(0, verdict.steps - 1),
        skipped=0,
        final_scale=None,
        highest_rate=verdict.learning_rate.get("current"),
        model=next((settings[name] for name in MODEL_SETTINGS if name in settings), ""),
        course="",
    )


@st.cache_resource(show_spinner=False)
def _places() -> list[_Place]:
    return [_Place(address) for address in server_options.shown_places()]


def _summaries(address: str, found: list[PublishedRun]) -> tuple[RunSummary, ...]:
    names = Counter(run.name for run in found)
    return tuple(_summary(address, run, names[run.name] > 1) for run in found)


def _summary(address: str, run: PublishedRun, is_one_of_several: bool) -> RunSummary:  # noqa: FBT001
    name = run.id[:8] if is_one_of_several else run.name
    return RunSummary(
        path=Path(f"{address}#{name}"),
        name=run.name,
        id=run.id,
        source=run.source,
        host=run.host,
        started_ns=_ns(run.started),
        last_time_ns=_ns(run.last_time),
        ranks=tuple(range(run.ranks)),
        steps=run.steps,
        ended=run.state == "ended",
        added_ns=_ns(run.started),
        tags=run.tags,
        note=run.note,
        stamp=run.stamp,
    )


def _ns(time_: dt.datetime | None) -> int:
    return 0 if time_ is None else max(0, int(time_.timestamp() * 1e9))
