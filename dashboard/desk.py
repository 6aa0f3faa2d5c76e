"""The runs being looked at: read and diagnosed once for all tabs, however many there are.

A tab asks for a `Look`; who asks first brings it up to date, others shortly after get the same.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from course import Course, Numbers

from ampwatch.diagnosis import Diagnosis, Engine, conclude
from ampwatch.errors import AmpwatchError, RunError
from ampwatch.rows import Table
from ampwatch.store import RUN_FILE, Run, RunInfo, is_written, open_run, summarize

FRESH_S = 0.4  # younger than this, what another tab saw will do
MOST_RUNS = 12  # kept open; the one not looked at for longest is let go
LIVE_S = 10.0  # a run that wrote something this lately, and no end mark, is live
_AT_ONCE_ROWS = 20_000  # more rows than this are diagnosed in the background ...
_MANY_ROWS = 2_000_000  # of more, the scale and the skips are shown while the rest is read
_HEAD_START_S = 1.5  # ... after the first chart: it would wait for its turn otherwise


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the diagnosis said, the established scale and the record's notes, after so many rows."""

    rows: int
    diagnosis: Diagnosis
    level: float | None
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """A run as it stood at one moment; its tables are read under the run's lock."""

    path: str
    info: RunInfo
    ranks: tuple[int, ...]
    course: Course
    ended: bool
    last_time_ns: int
    verdict: Verdict | None  # none while the first diagnosis is made
    _run: Run
    _lock: threading.Lock

    def read(self, table: Table, columns: Sequence[str], rank: int | None = None) -> pa.Table:
        """These columns of a table, as they stand by now."""
        with self._lock:
            return self._run.read(table, columns=columns, rank=rank)

    @property
    def diagnosis(self) -> Diagnosis | None:
        """The diagnosis, if one was made yet."""
        return None if self.verdict is None else self.verdict.diagnosis

    @property
    def is_live(self) -> bool:
        """Whether the run goes on as we look."""
        if self.info.source != "ampwatch":  # the log's own times are of another clock, if any
            return not self.ended and is_written(self._run.path)
        return is_live(self.last_time_ns, ended=self.ended)

    @property
    def is_judged(self) -> bool:
        """Whether the verdict is of all there is."""
        return self.verdict is not None and self.verdict.rows >= len(self.course)


def is_live(last_time_ns: int, *, ended: bool) -> bool:
    """Whether a run that was heard of then goes on now."""
    return not ended and time.time_ns() - last_time_ns < LIVE_S * 1e9


class Desk:
    """Holds the open runs; safe to be asked by many threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._watched: OrderedDict[str, _Watched] = OrderedDict()
        self._workers = ThreadPoolExecutor(2, thread_name_prefix="ampwatch-diagnosis")

    def look(self, path: str) -> Look:
        """The run as it stands; AmpwatchError says why it cannot be read."""
        with self._lock:
            watched = self._watched.get(path)
        if watched is None:
            made = _Watched(open_run(path), path, self._clock, self._workers)
            with self._lock:
                watched = self._watched.setdefault(path, made)
        with self._lock:
            if path in self._watched:
                self._watched.move_to_end(path)
            while len(self._watched) > MOST_RUNS:
                self._watched.popitem(last=False)
        try:
            return watched.look()
        except AmpwatchError:
            with self._lock:  # opened anew at the next look: the disk may be back
                self._watched.pop(path, None)
            raise


class _Watched:
    """One open run."""

    def __init__(
        self, run: Run, path: str, clock: Callable[[], float], workers: ThreadPoolExecutor
    ) -> None:
        self._run, self._path, self._clock, self._workers = run, path, clock, workers
        self._lock = threading.Lock()
        self._numbers, self._quick = Numbers(), Numbers(quick=True)
        self._loading: Future[tuple[Run, Numbers]] | None = None
        self._doctor = _Doctor(Path(path))
        self._pending: Future[None] | None = None
        self._seen: Look | None = None
        self._seen_at = 0.0

    def look(self) -> Look:
        seen = self._seen
        if seen is not None and self._clock() - self._seen_at < FRESH_S:
            return seen
        if not self._lock.acquire(blocking=seen is None):
            assert seen is not None
            return seen  # another tab is at it
        try:
            return self._look()
        finally:
            self._lock.release()

    def _look(self) -> Look:
        seen = self._seen
        if not (self._run.path / RUN_FILE).is_file():
            path = self._run.path
            raise RunError(f"{path} is gone: deleted, or its disk is away.", path=path)
        course = self._read(first=seen is None)
        run = self._run
        if self._loading is None:
            self._diagnose(len(course))
        self._seen = Look(
            path=self._path,
            info=run.info,
            ranks=run.ranks,
            course=course,
            ended=run.clean_end,
            last_time_ns=run.last_time_ns,
            verdict=self._doctor.verdict,
            _run=run,
            _lock=self._lock,
        )
        self._seen_at = self._clock()
        return self._seen

    def _read(self, *, first: bool) -> Course:
        """The course as it stands; of a long run at first only the scale and the skips."""
        if first and summarize(self._run.path).steps > _MANY_ROWS:
            self._quick.take(self._run)
            self._loading = self._workers.submit(_loaded, self._run.path)
        if self._loading is not None:
            if not self._loading.done():
                return self._quick.course
            self._run, self._numbers = self._loading.result()
            self._loading = None
        if self._run.refresh() or first:
            self._numbers.take(self._run)
            if self._run.clean_end:
                self._run = open_run(self._run.path)  # without the columns that are taken by now
        return self._numbers.course

    def _diagnose(self, rows: int) -> None:
        if self._pending is not None:
            if not self._pending.done():
                return
            problem = self._pending.exception()
            self._pending = None
            if problem is not None:
                raise problem
        verdict = self._doctor.verdict
        if rows - (0 if verdict is None else verdict.rows) > _AT_ONCE_ROWS:
            self._pending = self._workers.submit(self._doctor.examine, after_s=_HEAD_START_S)
        else:
            self._doctor.examine()


def _loaded(path: Path) -> tuple[Run, Numbers]:
    """All numbers of a run, through a Run of its own; the first chart is drawn before."""
    time.sleep(_HEAD_START_S)
    run, numbers = open_run(path), Numbers()
    numbers.take(run)
    return (open_run(path) if run.clean_end else run), numbers


class _Doctor:
    """The diagnosis of one run, through a Run of its own: it may work while the other is read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._run = open_run(path)
        self._engine: Engine | None = None
        self.verdict: Verdict | None = None

    def examine(self, after_s: float = 0.0) -> None:
        """Bring the verdict up to date; of a run that has ended, only the verdict is kept."""
        time.sleep(after_s)
        if not self._run.refresh() and self.verdict is not None:
            return
        run, self._engine = self._run, self._engine or Engine()
        case = self._engine.feed(run).case()
        rows = run.read("steps", columns=("step",), rank=min(run.ranks, default=0)).num_rows
        self.verdict = Verdict(rows, conclude(case), case.scale.level, run.notes)
        if run.clean_end:
            self._run, self._engine = open_run(self._path), None
