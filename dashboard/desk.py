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
from rank_course import MOST, RankNumbers

from ampwatch.diagnosis import Diagnosis, Engine, Severity, conclude
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
    rank: int | None  # the one looked at; all of them if none
    shown: tuple[int, ...]  # the ranks that the course holds
    course: Course  # that rank's; of all, the lowest one's with what differs on the others
    ended: bool
    last_time_ns: int
    verdict: Verdict | None  # none while the first diagnosis is made
    _is_judged: bool
    _run: Run
    _lock: threading.Lock

    def read(self, table: Table, columns: Sequence[str]) -> pa.Table:
        """These columns of a table, as they stand by now, of the ranks looked at."""
        with self._lock:
            return self._run.read(table, columns=columns, rank=self.rank)

    def read_all(self, table: Table, columns: Sequence[str]) -> pa.Table:
        """The same of all ranks."""
        with self._lock:
            return self._run.read(table, columns=columns)

    @property
    def name(self) -> str:
        """What tells it from a look at another run or rank."""
        return self.path if self.rank is None else f"{self.path} rank {self.rank}"

    @property
    def diagnosis(self) -> Diagnosis | None:
        """The diagnosis, if one was made yet; of a run that goes on, as of one that does."""
        if self.verdict is None:
            return None
        told = self.verdict.diagnosis
        return told.while_running() if self.is_live else told

    @property
    def is_live(self) -> bool:
        """Whether the run goes on as we look."""
        if self.info.source != "ampwatch":  # the log's own times are of another clock, if any
            return not self.ended and is_written(self._run.path)
        return is_live(self.last_time_ns, ended=self.ended)

    @property
    def is_judged(self) -> bool:
        """Whether the verdict is of all there is."""
        return self.verdict is not None and self._is_judged


def is_live(last_time_ns: int, *, ended: bool) -> bool:
    """Whether a run that was heard of then goes on now."""
    return not ended and time.time_ns() - last_time_ns < LIVE_S * 1e9


class Desk:
    """Holds the open runs; safe to be asked by many threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._watched: OrderedDict[tuple[str, int | None], _Watched] = OrderedDict()
        self._doctors: dict[str, _Doctor] = {}
        self._workers = ThreadPoolExecutor(2, thread_name_prefix="ampwatch-diagnosis")

    def look(self, path: str, rank: int | None = None) -> Look:
        """The run as it stands, of one rank or of all; AmpwatchError says why it cannot be read."""
        key = (path, rank)
        with self._lock:
            watched = self._watched.get(key)
        if watched is None:
            watched = self._opened(path, rank)
        with self._lock:
            if key in self._watched:
                self._watched.move_to_end(key)
            while len(self._watched) > MOST_RUNS:
                self._forget(next(iter(self._watched)))
        try:
            return watched.look()
        except AmpwatchError:
            with self._lock:  # opened anew at the next look: the disk may be back
                self._forget(key)
            raise

    def _opened(self, path: str, rank: int | None) -> _Watched:
        run, doctor = open_run(path), _Doctor(Path(path), self._workers)
        with self._lock:
            doctor = self._doctors.setdefault(path, doctor)
            made = _Watched(run, path, rank, doctor, self._clock, self._workers)
            return self._watched.setdefault((path, rank), made)

    def _forget(self, key: tuple[str, int | None]) -> None:
        self._watched.pop(key, None)
        if not any(path == key[0] for path, _ in self._watched):
            self._doctors.pop(key[0], None)


class _Watched:
    """One open run, of which one rank or all are looked at."""

    def __init__(
        self, run: Run, path: str, rank: int | None, doctor: _Doctor,
        clock: Callable[[], float], workers: ThreadPoolExecutor,
    ) -> None:  # fmt: skip
        self._run, self._path, self._rank = run, path, rank
        self._doctor, self._clock, self._workers = doctor, clock, workers
        self._lock = threading.Lock()
        self._shown = self._wanted()
        self._numbers, self._quick = _numbers_of(self._shown), Numbers(quick=True)
        self._loading: Future[tuple[Run, Numbers | RankNumbers]] | None = None
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
        is_judged = self._loading is None and self._doctor.examine(len(course))
        self._seen = Look(
            path=self._path,
            info=run.info,
            ranks=run.ranks,
            rank=self._rank if self._rank in run.ranks else None,
            shown=self._shown,
            course=course,
            ended=run.clean_end,
            last_time_ns=run.last_time_ns,
            verdict=self._doctor.verdict,
            _is_judged=is_judged,
            _run=run,
            _lock=self._lock,
        )
        self._seen_at = self._clock()
        return self._seen

    def _read(self, *, first: bool) -> Course:
        """The course as it stands; of a long run at first only the scale and the skips."""
        if first and summarize(self._run.path).steps > _MANY_ROWS:
            self._quick.take(self._run)
            self._loading = self._workers.submit(_loaded, self._run.path, self._shown)
        if self._loading is not None:
            if not self._loading.done():
                return self._quick.course
            self._run, self._numbers = self._loading.result()
            self._loading = None
        has_rows = self._run.refresh() or first or self._numbers.waits
        if self._follows_ranks() or has_rows:
            self._numbers.take(self._run)
            if self._run.clean_end:
                self._run = open_run(self._run.path)  # without the columns that are taken by now
        return self._numbers.course

    def _follows_ranks(self) -> bool:
        """Take up a rank that joins late, or that a finding names; whether there is one."""
        wanted = self._wanted()
        if wanted == self._shown:
            return False
        self._shown = wanted
        self._numbers = _numbers_of(wanted, epoch=self._numbers.course.epoch + 1)
        return True

    def _wanted(self) -> tuple[int, ...]:
        """The rank that is asked for; else the lowest, those that findings name, and the next."""
        ranks = self._run.ranks
        if self._rank in ranks:
            return (self._rank,)
        named = [rank for rank in self._doctor.named_ranks if rank in ranks]
        first = dict.fromkeys([*ranks[:1], *named, *ranks])
        return tuple(sorted(list(first)[:MOST]))


def _numbers_of(ranks: tuple[int, ...], epoch: int = 0) -> Numbers | RankNumbers:
    if len(ranks) > 1:
        return RankNumbers(ranks, epoch=epoch)
    return Numbers(rank=next(iter(ranks), None), epoch=epoch)


def _loaded(path: Path, ranks: tuple[int, ...]) -> tuple[Run, Numbers | RankNumbers]:
    """All numbers of a run, through a Run of its own; the first chart is drawn before."""
    time.sleep(_HEAD_START_S)
    run, numbers = open_run(path), _numbers_of(ranks)
    numbers.take(run)
    return (open_run(path) if run.clean_end else run), numbers


class _Doctor:
    """The diagnosis of one run, through a Run of its own: it may work while the other is read."""

    def __init__(self, path: Path, workers: ThreadPoolExecutor) -> None:
        self._path, self._workers = path, workers
        self._lock = threading.Lock()
        self._run = open_run(path)
        self._engine: Engine | None = None
        self._pending: Future[None] | None = None
        self.verdict: Verdict | None = None

    @property
    def named_ranks(self) -> tuple[int, ...]:
        """The ranks that findings tell from the others."""
        if self.verdict is None:
            return ()
        diagnosis = self.verdict.diagnosis
        return tuple(
            rank
            for finding in diagnosis.findings
            if finding.severity is not Severity.INFO and finding.ranks != diagnosis.run.ranks
            for rank in finding.ranks
        )

    def examine(self, rows: int) -> bool:
        """Bring the verdict up to date, in the background if there is much to read; whether it is.

        `rows` is how many the run has by now.
        """
        with self._lock:
            if self._pending is not None:
                if not self._pending.done():
                    return False
                problem = self._pending.exception()
                self._pending = None
                if problem is not None:
                    raise problem
            if rows - (0 if self.verdict is None else self.verdict.rows) > _AT_ONCE_ROWS:
                self._pending = self._workers.submit(self._judge, after_s=_HEAD_START_S)
                return False
            self._judge()
            return True

    def _judge(self, after_s: float = 0.0) -> None:
        """Judge what is new; of a run that has ended, only the verdict is kept."""
        time.sleep(after_s)
        if not self._run.refresh() and self.verdict is not None:
            return
        run, self._engine = self._run, self._engine or Engine()
        case = self._engine.feed(run).case()
        rows = run.read("steps", columns=("step",), rank=min(run.ranks, default=0)).num_rows
        self.verdict = Verdict(rows, conclude(case), case.scale.level, run.notes)
        pa.default_memory_pool().release_unused()  # what growing left behind; in days it adds up
        if run.clean_end:
            self._run, self._engine = open_run(self._path), None
