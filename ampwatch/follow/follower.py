"""The one follower of a run in this process: reads its rows, judges them, knows its state.

A `FollowThread` has followers look at runs again and again until each is over. `NewFindings` says
what was not reported before.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from ampwatch.diagnosis import (
    Diagnosis,
    Engine,
    Finding,
    ForSeveralRuns,
    Severity,
    conclude,
    with_muted,
)
from ampwatch.diagnosis.scale_history import EstablishedScale
from ampwatch.errors import AmpwatchError, NotARunError
from ampwatch.follow.liveness import Liveness, State, ended_ranks, with_state
from ampwatch.store import Run, RunInfo, open_run

_MOST_EARLIER = 3  # headlines that are remembered


@dataclass(frozen=True, slots=True)
class FollowedRun:
    """A followed run as it stood at one moment, and what was found in it."""

    info: RunInfo
    state: State
    ended_ranks: tuple[int, ...]
    rows: int  # logged so far, of all tables: another number means that there is more
    silent_s: float  # how long ago the run grew
    judged: Diagnosis  # as of a run that is over
    established_scale: EstablishedScale | None
    notes: tuple[str, ...]  # the record's: what was cut off, what is missing
    for_several: ForSeveralRuns  # what it adds to an advice on several runs
    muted: tuple[tuple[str, str], ...] = ()  # codes of findings, each with the reason
    earlier: tuple[Finding, ...] = ()  # headlines that others replaced while it was followed

    @property
    def is_over(self) -> bool:
        """Whether the followed run has ended or is lost."""
        return self.state is not State.LIVE

    @property
    def diagnosis(self) -> Diagnosis:
        """The followed run's diagnosis by its state: live, ended or lost."""
        return with_muted(with_state(self.state, self.judged), dict(self.muted))


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

    def update(
        self, max_age_s: float = 0.0, *, as_read: tuple[State, int] | None = None
    ) -> FollowedRun:
        """The followed run and its diagnosis; another's update may be as old as `max_age_s`.

        `as_read` is what `refresh` has just told: the rows that somebody has read are judged.
        """
        with self._lock:
            if self.last is None or time.monotonic() - self._updated_s >= max_age_s:
                self.last = self._updated(self.last, as_read or self.refresh())
                self._updated_s = time.monotonic()
            return self.last

    # --- within, under the lock ------------------------------------------------------------------

    def _updated(self, last: FollowedRun | None, now: tuple[State, int]) -> FollowedRun:
        state, rows = now
        silent_s = self.liveness.silent_s
        if last is None or rows != last.rows:
            judged = self._judge(state, rows, silent_s)
            last = judged if last is None else replace(judged, earlier=_earlier(last, judged))
        muted = self._run.files.muted()
        followed = replace(last, state=state, silent_s=silent_s, muted=muted)
        if followed.is_over and self._engine is not None:
            self._engine = None
            if self._run.files.grows():  # to open a published one again would fetch it again
                self._run = open_run(self.path)
        return followed

    def _judge(self, state: State, rows: int, silent_s: float) -> FollowedRun:
        self._engine = self._engine or Engine()
        run, case = self._run, self._engine.feed(self._run).case()
        scale, judged = case.scale.established, conclude(case)
        ended = ended_ranks(run, self.liveness.began_ns)
        pa.default_memory_pool().release_unused()  # what growing left behind; in days it adds up
        several = ForSeveralRuns.of(case, judged)
        return FollowedRun(
            run.info, state, ended, rows, silent_s, judged, scale, run.notes, several
        )


def _earlier(before: FollowedRun, now: FollowedRun) -> tuple[Finding, ...]:
    """The headlines that others have replaced, each code once, the latest last."""
    heads = [followed.diagnosis.headline for followed in (before, now)]
    gone = {finding.code: finding for finding in (*before.earlier, heads[0]) if finding is not None}
    if heads[1] is not None:
        gone.pop(heads[1].code, None)
    return tuple(finding for finding in gone.values() if finding.severity.weight)[-_MOST_EARLIER:]


_FOLLOWERS: weakref.WeakValueDictionary[str, Follower] = weakref.WeakValueDictionary()
_FOLLOWERS_LOCK = threading.Lock()


def follow(path: str | Path) -> Follower:
    """The follower of the run at `path`, one for all in this process."""
    key = os.path.realpath(path)
    follower = _FOLLOWERS.get(key) or Follower(Path(path))
    with _FOLLOWERS_LOCK:  # not held while a run is opened: its disk may hang
        return _FOLLOWERS.setdefault(key, follower)


# --- runs that are looked at again and again ------------------------------------------------------


class FollowThread:
    """Calls `visit` with each run's folder and follower in each round, until it is done with it.

    A run that cannot be read is reported to `on_trouble` once and tried again in the next round,
    unless it is gone. The thread ends when all that it follows is done, or when it is closed, after
    one more round; `at_end` is the last thing that it calls.
    """

    def __init__(
        self,
        visit: Callable[[Path, Follower], bool],
        on_trouble: Callable[[Path, AmpwatchError], None],
        *,
        every_s: float,
        name: str,
        at_end: Callable[[], object] = lambda: None,
    ) -> None:
        self.is_closing = False
        self._visit, self._on_trouble, self._at_end = visit, on_trouble, at_end
        self._every_s = every_s
        self._open: dict[Path, Follower | None] = {}  # opened in the thread
        self._began_ns: dict[Path, int] = {}
        self._woken: set[Path] = set()  # since the last round
        self._unreadable: set[Path] = set()
        self._has_followed = self._is_open_ended = False
        self._alive: frozenset[str] = frozenset()
        self._lock = threading.Lock()
        self._stirred = threading.Event()  # do not wait for the next round
        self._thread = threading.Thread(target=self._run_rounds, name=name, daemon=True)
        self._thread.start()

    @property
    def is_at_work(self) -> bool:
        """Whether the thread that follows runs is alive."""
        return self._thread.is_alive()

    def follow(self, folder: Path, began_ns: int = 0) -> None:
        """Follow a run until it is over; `began_ns` is when this process began to write it."""
        with self._lock:
            self._open.setdefault(folder, None)
            self._began_ns[folder] = began_ns
            self._has_followed = True
        self._stirred.set()

    def wake(self, folder: Path) -> None:
        """Follow a run that new rows have come for, in the next round; more runs may come."""
        with self._lock:
            self._open.setdefault(folder, None)
            self._woken.add(folder)
            self._is_open_ended = True

    def hear(self, alive: frozenset[str]) -> None:
        """Note the ids of the followed runs whose trainers were heard of just now."""
        self._alive = alive

    def end(self) -> None:
        """Let the thread look at each run once more and end; returns at once."""
        self.is_closing = True
        self._stirred.set()

    def close(self, wait_s: float | None = None) -> bool:
        """End the thread and wait for it; False from within `visit`, where nothing can wait."""
        self.end()
        if self._thread is threading.current_thread():
            return False
        self._thread.join(wait_s)
        return True

    # --- the thread ------------------------------------------------------------------------------

    def _run_rounds(self) -> None:
        is_last = False
        while not is_last:
            self._stirred.wait(self._every_s)
            self._stirred.clear()
            is_last = self.is_closing  # before the round: what came until then is seen in it
            with self._lock:
                due = sorted(self._open)
                self._woken.clear()
            for folder in due:
                self._visit_run(folder)
            with self._lock:
                is_idle = self._has_followed and not self._open and not self._is_open_ended
            is_last = is_last or is_idle
        self._at_end()

    def _visit_run(self, folder: Path) -> None:
        is_done = False
        try:
            follower = self._follower(folder)
            is_done = self._visit(folder, follower)
        except AmpwatchError as problem:
            is_done = isinstance(problem, NotARunError)
            if folder not in self._unreadable:
                self._unreadable.add(folder)
                self._on_trouble(folder, problem)
        with self._lock:
            if is_done and folder not in self._woken:
                del self._open[folder]

    def _follower(self, folder: Path) -> Follower:
        follower = self._open[folder]
        if follower is None:
            follower = self._open[folder] = follow(folder)
            began_ns = self._began_ns.pop(folder, 0)
            follower.liveness.began_ns = max(follower.liveness.began_ns, began_ns)
        if follower.run_id in self._alive:
            follower.liveness.hear()
        return follower


# --- what was not reported before -----------------------------------------------------------------


class NewFindings:
    """Remembers which of a run's findings were reported: each once, and again when it worsens.

    A finding is known by its code: which layer leads may change from update to update. `reported`
    are those that another process has reported.
    """

    def __init__(
        self,
        *,
        least: Severity = Severity.WARNING,
        reported: Mapping[str, Severity] | None = None,
    ) -> None:
        self._least = least
        self._reported: dict[str, Severity] = dict(reported or {})

    def of(self, diagnosis: Diagnosis) -> tuple[Finding, ...]:
        """The findings that are new or worse, gravest first; they count as reported from now on."""
        fresh = tuple(finding for finding in diagnosis.findings if self._is_new(finding))
        self._reported.update((finding.code, finding.severity) for finding in fresh)
        return fresh

    def _is_new(self, finding: Finding) -> bool:
        known = self._reported.get(finding.code)
        return finding.severity.weight >= self._least.weight and (
            known is None or finding.severity.weight > known.weight
        )
