"""The one follower of a run in this process: reads its rows, judges them, knows its state."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from ampwatch.diagnosis import Diagnosis, Engine, ForSeveralRuns, conclude
from ampwatch.follow.current_diagnosis import with_state
from ampwatch.follow.liveness import Liveness, State, ended_ranks
from ampwatch.store import Run, RunInfo, open_run


@dataclass(frozen=True, slots=True)
class FollowedRun:
    """A followed run as it stood at one moment, and what was found in it."""

    info: RunInfo
    state: State
    ended_ranks: tuple[int, ...]
    rows: int  # logged so far, of all tables: another number means that there is more
    silent_s: float  # how long ago the run grew
    judged: Diagnosis  # as of a run that is over
    established_scale: float | None
    notes: tuple[str, ...]  # the record's: what was cut off, what is missing
    for_several: ForSeveralRuns  # what it adds to an advice on several runs

    @property
    def is_over(self) -> bool:
        """Whether the followed run has ended or is lost."""
        return self.state is not State.LIVE

    @property
    def diagnosis(self) -> Diagnosis:
        """The followed run's diagnosis by its state: live, ended or lost."""
        return with_state(self.state, self.judged)


class Follower:
    """Holds an open run and its engine; any thread may ask. An update costs what is new.

    Who reads the run's rows does not wait for who judges them. Of a run that is over only the last
    update is kept; if it goes on one day, it is read anew.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()  # one thread judges
        self.liveness = Liveness()
        self._run = open_run(path)
        self.run_id = self._run.info.id
        self._engine: Engine | None = None
        self.last: FollowedRun | None = None
        self._updated_s = 0.0

    @contextlib.contextmanager
    def reading(self) -> Iterator[Run]:
        """The followed run, locked while its rows are read."""
        run = self._run
        with run.lock:
            yield run

    def state(self) -> State:
        """The followed run's state, without a diagnosis; NotARunError if the run is gone."""
        return self.refresh()[0]

    def refresh(self) -> tuple[State, int]:
        """Read what was logged; the followed run's state, and how many rows it has."""
        run = self._run
        with run.lock:
            return self.liveness.refresh(run)

    def update(self, max_age_s: float = 0.0) -> FollowedRun:
        """The followed run and its diagnosis; another's update may be as old as `max_age_s`."""
        with self._lock:
            if self.last is None or time.monotonic() - self._updated_s >= max_age_s:
                self.last = self._updated(self.last)
                self._updated_s = time.monotonic()
            return self.last

    # --- within, under the lock ------------------------------------------------------------------

    def _updated(self, seen: FollowedRun | None) -> FollowedRun:
        state, rows = self.refresh()
        silent_s = self.liveness.silent_s
        if seen is None or rows != seen.rows:
            seen = self._judge(state, rows, silent_s)
        seen = replace(seen, state=state, silent_s=silent_s)
        if seen.is_over and self._engine is not None:
            self._engine = None
            if self._run.files.grows():  # to open a published one again would fetch it again
                self._run = open_run(self.path)
        return seen

    def _judge(self, state: State, rows: int, silent_s: float) -> FollowedRun:
        self._engine = self._engine or Engine()
        run, case = self._run, self._engine.feed(self._run).case()
        scale, judged = case.scale.level, conclude(case)
        ended = ended_ranks(run, self.liveness.began_ns)
        pa.default_memory_pool().release_unused()  # what growing left behind; in days it adds up
        told = ForSeveralRuns.of(case, judged)
        return FollowedRun(run.info, state, ended, rows, silent_s, judged, scale, run.notes, told)


_FOLLOWERS: weakref.WeakValueDictionary[str, Follower] = weakref.WeakValueDictionary()
_FOLLOWERS_LOCK = threading.Lock()


def follow(path: str | Path) -> Follower:
    """The follower of the run at `path`, one for all in this process."""
    key = os.path.realpath(path)
    found = _FOLLOWERS.get(key) or Follower(Path(path))
    with _FOLLOWERS_LOCK:  # not held while a run is opened: its disk may hang
        return _FOLLOWERS.setdefault(key, found)
