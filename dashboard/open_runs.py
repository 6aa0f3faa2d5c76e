"""The open runs that pages show: each is read and diagnosed once for all tabs.

A tab asks for a `RunSnapshot`. The first that asks brings the run up to date; others that ask
shortly after get the same snapshot.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import address
import pyarrow as pa
import streamlit as st
from layer_worst_values import RunLayers
from step_curves import Span, StepCurves, StepCurvesReader
from user_value_curves import UserValues

from ampwatch.diagnosis import Diagnosis
from ampwatch.diagnosis.earlier_runs import LessonOfEarlierRuns, with_lesson
from ampwatch.diagnosis.scale_history import EstablishedScale
from ampwatch.errors import AmpwatchError
from ampwatch.follow import FollowedRun as Verdict
from ampwatch.follow import Follower, State, follow, lesson_for
from ampwatch.recovery.proof import Proof, kept_proof, with_proof
from ampwatch.report.letter import Letter, begun_as_told, letter_of
from ampwatch.report.overview_chart import ranks_to_draw
from ampwatch.report.settings import whole_settings
from ampwatch.report.timeline import Attempt, attempts_of
from ampwatch.rows import Table
from ampwatch.store import Run, RunInfo

T = TypeVar("T")

# What earlier runs teach, and the numbers of a letter, change as runs grow: they are made anew
# after twenty times as long as that takes.
REST, LONGEST_REST_S = 20, 30.0

FRESH_S = 0.4  # younger than this, what another tab saw will do
MOST_RUNS = 12  # kept open; the one not looked at for longest is let go
_AT_ONCE_ROWS = 20_000  # more rows than this are diagnosed in the background ...
_MANY_ROWS = 2_000_000  # of more, the scale and the skips are shown while the rest is read
_HEAD_START_S = 1.5  # ... after the first chart: it would wait for its turn otherwise


@dataclass(frozen=True, slots=True, eq=False)
class RunSnapshot:
    """An open run as it stood at one moment; its tables are read under the run's lock."""

    path: str
    info: RunInfo
    ranks: tuple[int, ...]
    rank: int | None  # the one looked at; all of them if none
    shown: tuple[int, ...]  # the ranks that the curves are of
    curves: StepCurves  # of that rank; of all: the lowest one, and what differs on the others
    state: State
    last_time_ns: int
    verdict: Verdict | None  # none while the first diagnosis is made
    is_judged: bool  # whether the verdict is of all rows that the run has
    _follower: Follower
    _lesson: KeptValue[LessonOfEarlierRuns | None]
    _letter: KeptValue[Letter]
    layers: RunLayers  # what is kept of the layers' samples
    values: UserValues  # what the user's own code logged
    _made: dict[Hashable, Any] = field(default_factory=dict)

    def read_table(self, table: Table, columns: Sequence[str], rank: int | None = None) -> pa.Table:
        """Read these columns of an open run's table as they stand by now, of the ranks shown."""
        with self._follower.reading() as run:
            return run.read(table, columns=columns, rank=self.rank if rank is None else rank)

    def last_rows(
        self, table: Table, columns: Sequence[str], most: int, *, step: int | None = None
    ) -> pa.Table:
        """The last rows of an open run's table up to a step, or of all: at most `most`."""
        with self._follower.reading() as run:
            return run.last_rows(table, columns, most, step=step, rank=self.rank)

    def settings(self) -> dict[str, str]:
        """Every recorded setting of the open run by its dotted name."""
        with self._follower.reading() as run:
            return whole_settings(run)

    def attempts(self) -> tuple[Attempt, ...]:
        """Each start of the open run, as recorded by the rank shown, else by the lowest."""
        with self._follower.reading() as run:
            rank = min(run.ranks, default=0) if self.rank is None else self.rank
            return attempts_of(run, rank, goes_on=self.is_live)

    def ending(self) -> str:
        """How the latest attempt of the open run ended, in words; empty if it has none."""
        attempts = self.once("attempts", self.attempts)
        return attempts[-1].ending if attempts else ""

    def lesson(self) -> LessonOfEarlierRuns | None:
        """What earlier runs in the open run's folder have shown about its learning rate."""
        with self._follower.reading() as run:
            return self._lesson.get(lambda: lesson_for(run))

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` returns for this snapshot: made for its first tab, then kept."""
        if key not in self._made:
            self._made[key] = make()
        made: T = self._made[key]
        return made

    @property
    def name(self) -> str:
        """A name that tells a snapshot of an open run from those of another run or rank."""
        return self.path if self.rank is None else f"{self.path} rank {self.rank}"

    @property
    def diagnosis(self) -> Diagnosis | None:
        """The open run's diagnosis, if one was made yet; for a live run, of one that goes on."""
        if self.verdict is None:
            return None
        judged = self.verdict.diagnosis
        known: Diagnosis = self.once("diagnosis", lambda: self._with_what_is_known(judged))
        return known

    def _with_what_is_known(self, judged: Diagnosis) -> Diagnosis:
        """The open run's diagnosis with what earlier runs have shown of the rate, and reruns."""
        if judged.learning_rate.has_interval:  # else there is nothing that earlier runs could bound
            judged = with_lesson(judged, self.lesson())
        return with_proof(judged, self.proof())

    def letter(self) -> Letter | None:
        """The open run's letter, as `ampwatch report` prints it; None while it is not judged."""
        diagnosis = self.diagnosis
        if diagnosis is None:
            return None
        with self._follower.reading() as run:
            return self._letter.get(
                lambda: letter_of(run.info.name, run.uncached(), diagnosis), _conclusion(diagnosis)
            )

    def diagnosis_as_told(self) -> Diagnosis | None:
        """The diagnosis whose headline begins where the letter says that it does."""
        return None if self.diagnosis is None else begun_as_told(self.diagnosis, self.letter())

    def proof(self) -> Proof | None:
        """What reruns of the open run have shown."""
        proof: Proof | None = self.once("proof", lambda: kept_proof(Path(self.path)))
        return proof

    @property
    def established_scale(self) -> EstablishedScale | None:
        """The open run's loss scale while training worked, and since when; None if not known."""
        return None if self.verdict is None else self.verdict.established_scale

    @property
    def is_live(self) -> bool:
        """Whether the open run was live at the moment of the snapshot."""
        return self.state is State.LIVE


class KeptValue(Generic[T]):
    """A value of an open run that is made anew when its key changes, else as its cost allows."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._kept: tuple[Hashable, float, T] | None = None  # the key, how long it holds, the value

    def get(self, make: Callable[[], T], key: Hashable = None) -> T:
        """The value as last made for this key; other tabs wait while one makes it."""
        with self._lock:
            now_s = self._clock()
            if self._kept is None or self._kept[0] != key or now_s >= self._kept[1]:
                began_s = time.perf_counter()
                value = make()
                cost_s = time.perf_counter() - began_s
                self._kept = key, now_s + min(REST * cost_s, LONGEST_REST_S), value
            return self._kept[2]


def _conclusion(diagnosis: Diagnosis) -> Hashable:
    """What a letter on a run concludes: when it changes, the letter is written anew."""
    advice = diagnosis.learning_rate
    findings = (
        (one.code, one.severity, one.layer, one.comes_and_goes, one.standing)
        for one in diagnosis.findings
    )
    state = diagnosis.run.state
    return diagnosis.verdict, state, advice.action, advice.recommended, *findings


class OpenRuns:
    """Keeps the runs open that tabs look at; safe to be asked by many threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._open: OrderedDict[tuple[str, int | None], _OpenRun] = OrderedDict()
        self._workers = ThreadPoolExecutor(2, thread_name_prefix="ampwatch-diagnosis")

    def snapshot_of(self, path: str, rank: int | None = None) -> RunSnapshot:
        """The open run as it stands now, of one rank or all; AmpwatchError if unreadable."""
        key = (path, rank)
        with self._lock:
            run = self._open.get(key)
        opened = run or _OpenRun(path, rank, self._clock, self._workers)
        with self._lock:
            run = self._open.setdefault(key, opened)
            self._open.move_to_end(key)
            while len(self._open) > MOST_RUNS:
                self._open.popitem(last=False)
        try:
            return run.snapshot()
        except AmpwatchError:
            with self._lock:  # opened anew at the next look: the disk may be back
                self._open.pop(key, None)
            raise


@st.cache_resource(show_spinner=False)
def all_open_runs() -> OpenRuns:
    """The open runs, shared by all tabs."""
    give_freed_memory_back()
    return OpenRuns()


# An arena a thread, and a heap for large arrays too, keep freed memory; so does Arrow's own pool.
_GLIBC_OPTIONS = {  # by the variable that sets it: mallopt's number of it, and its value
    "MALLOC_ARENA_MAX": (-8, 2),
    "MALLOC_MMAP_THRESHOLD_": (-3, 64 << 10),
    "MALLOC_TRIM_THRESHOLD_": (-1, 128 << 10),
}


def give_freed_memory_back() -> None:
    """Let glibc and Arrow give freed memory back to the system; what their variables say stands."""
    if "ARROW_DEFAULT_MEMORY_POOL" not in os.environ:
        pa.set_memory_pool(pa.system_memory_pool())
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    for variable, option in _GLIBC_OPTIONS.items():
        if mallopt is not None and variable not in os.environ:
            mallopt(*option)


def snapshot(path: str) -> RunSnapshot:
    """The open run at this path as it stands now, of the rank that the address names."""
    return all_open_runs().snapshot_of(path, address.read().rank)


class _OpenRun:
    """A run that is kept open for pages, of which one rank or all are shown."""

    def __init__(
        self, path: str, rank: int | None, clock: Callable[[], float], workers: ThreadPoolExecutor
    ) -> None:
        self._follower, self._path, self._rank = follow(Path(path)), path, rank
        self._judge = _Diagnoser(self._follower, workers)
        self._clock, self._workers = clock, workers
        self._lock = threading.Lock()
        with self._follower.reading() as run:
            self._shown = self._ranks_to_show(run.ranks)
        self._numbers, self._quick = StepCurvesReader(self._shown), StepCurvesReader(quick=True)
        self._taken_rows = -1
        self._layers = RunLayers(self._follower, None)
        self._values = UserValues(self._follower, None)
        self._lesson: KeptValue[LessonOfEarlierRuns | None] = KeptValue(clock)
        self._letter: KeptValue[Letter] = KeptValue(clock)
        self._loading: Future[StepCurvesReader] | None = None
        self._seen: RunSnapshot | None = None
        self._seen_at = 0.0

    def snapshot(self) -> RunSnapshot:
        seen = self._seen
        if seen is not None and self._clock() - self._seen_at < FRESH_S:
            return seen
        if not self._lock.acquire(blocking=seen is None):
            assert seen is not None
            return seen  # another tab is at it
        try:
            return self._new_snapshot()
        finally:
            self._lock.release()

    def _new_snapshot(self) -> RunSnapshot:
        if self._loading is not None and self._loading.done():
            self._numbers, self._loading = self._loading.result(), None
        state, rows = self._follower.refresh()
        with self._follower.reading() as run:
            curves = self._read_curves(run, rows, first=self._seen is None)
        rank = self._rank if self._rank in run.ranks else None
        if rank != self._layers.rank:
            self._layers = RunLayers(self._follower, rank)
            self._values = UserValues(self._follower, rank)
        is_judged = self._loading is None and self._judge.update(state, rows)
        self._seen = RunSnapshot(
            path=self._path,
            info=run.info,
            ranks=run.ranks,
            rank=rank,
            shown=self._shown,
            curves=replace(curves, zoom=partial(self._zoomed_curves, curves)),
            state=state,
            last_time_ns=run.last_time_ns,
            verdict=self._judge.verdict,
            is_judged=is_judged,
            _follower=self._follower,
            _lesson=self._lesson,
            _letter=self._letter,
            layers=self._layers,
            values=self._values,
        )
        self._seen_at = self._clock()
        return self._seen

    def _read_curves(self, run: Run, rows: int, *, first: bool) -> StepCurves:
        """Read the open run's curves; of a long run at first only the scale and the skips."""
        if first and run.rows_logged(Table.STEPS, min(run.ranks, default=0)) > _MANY_ROWS:
            self._quick.read(run)
            self._loading = self._workers.submit(_all_curves, run, self._shown)
        if self._loading is not None:
            return self._quick.curves
        if self._updates_ranks(run) or rows != self._taken_rows or self._numbers.waits:
            self._numbers.read(run)
            self._taken_rows = rows
        return self._numbers.curves

    def _zoomed_curves(self, curves: StepCurves, span: Span) -> StepCurves:
        """The open run's curves in a span of steps, read from the log."""
        with self._lock, self._follower.reading() as run:
            if self._loading is not None or curves.epoch != self._numbers.curves.epoch:
                return curves  # all rows are being read, or reading started again
            return self._numbers.zoomed(run, span)

    def _updates_ranks(self, run: Run) -> bool:
        """Show a rank of the open run that joins late or is in a finding; whether there is one."""
        wanted = self._ranks_to_show(run.ranks)
        if wanted == self._shown:
            return False
        self._shown = wanted
        self._numbers = StepCurvesReader(wanted, epoch=self._numbers.curves.epoch + 1)
        return True

    def _ranks_to_show(self, ranks: tuple[int, ...]) -> tuple[int, ...]:
        """The open run's rank that the reader chose; else the lowest and those in findings."""
        if self._rank in ranks:
            return (self._rank,)
        verdict = self._judge.verdict
        return ranks_to_draw(ranks, None if verdict is None else verdict.diagnosis)


def _all_curves(run: Run, ranks: tuple[int, ...]) -> StepCurvesReader:
    """Read all curves of a long open run, in the background, after its first chart is drawn."""
    time.sleep(_HEAD_START_S)
    numbers = StepCurvesReader(ranks)
    numbers.read(run)
    return numbers


class _Diagnoser:
    """Keeps the verdict on one open run up to date; one thread at a time asks."""

    def __init__(self, follower: Follower, workers: ThreadPoolExecutor) -> None:
        self._follower, self._workers = follower, workers
        self._pending: Future[None] | None = None
        self.verdict = self._follower.last  # another rank may be looked at already

    def update(self, state: State, rows: int) -> bool:
        """Update the open run's verdict, in the background if much is new; whether it is done.

        `rows` is how many the run has by now: those that its curves show are judged.
        """
        if self._pending is not None:
            if not self._pending.done():
                return False
            pending, self._pending = self._pending, None
            pending.result()
        if rows - (0 if self.verdict is None else self.verdict.rows) > _AT_ONCE_ROWS:
            self._pending = self._workers.submit(self._diagnose, after_s=_HEAD_START_S)
            return False
        self.verdict = self._follower.update(as_read=(state, rows))
        return True

    def _diagnose(self, after_s: float = 0.0) -> None:
        time.sleep(after_s)
        self.verdict = self._follower.update()
