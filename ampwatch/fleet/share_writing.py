"""Write the rows of some runs to a place, many runs per file; invisible until the commit."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa

from ampwatch.errors import AmpwatchError, PlaceError, RunError
from ampwatch.fleet.details import Detail
from ampwatch.fleet.place import Added, Place
from ampwatch.fleet.published_facts import is_retold, note_of, row_of, time_of
from ampwatch.fleet.published_run import read_detail
from ampwatch.fleet.row_files import Part, RowFile
from ampwatch.fleet.runs_delta_table import PublishedRun, fresh_token
from ampwatch.fleet.segments import Continuation, continuation
from ampwatch.fleet.tables import DAY, FILE_SCHEMAS, layer_facts, published, with_places
from ampwatch.follow.liveness import State, at_a_glance
from ampwatch.ranges import Ranges
from ampwatch.rows import TABLES, Table
from ampwatch.store import Run, open_run
from ampwatch.store.compaction import ROW_GROUP_ROWS, damage_of
from ampwatch.store.layout import rank_folder, ranks_in
from ampwatch.store.rank_log import RankLog
from ampwatch.store.tags import read_tags

# Files of this size are read at full speed by any engine; a publisher holds one batch in memory.
_BATCH_BYTES = 64 << 20
_HELD_ROWS = 1 << 18  # of a run: of the widest table 90 MB


@dataclass(slots=True)
class Outcome:
    """The result of a call of `publish`."""

    published: list[str] = field(default_factory=list)  # names of runs
    unchanged: list[str] = field(default_factory=list)
    live: list[str] = field(default_factory=list)  # skipped because they are live
    skipped: dict[str, str] = field(default_factory=dict)  # name -> why it cannot be published
    bytes_read: int = 0
    bytes_written: int = 0

    def add(self, other: Outcome) -> None:
        """Add the result of another call."""
        self.published += other.published
        self.unchanged += other.unchanged
        self.live += other.live
        self.skipped |= other.skipped
        self.bytes_read += other.bytes_read
        self.bytes_written += other.bytes_written


@dataclass(frozen=True, slots=True)
class Job:
    """The parameters of a worker."""

    place: str
    known: Mapping[str, PublishedRun]  # by id
    live: bool = False


@dataclass(slots=True)
class Written:
    """Files that are in the place but not visible yet."""

    outcome: Outcome
    added: dict[Table, list[Added]] = field(default_factory=dict)
    ready: dict[str, Ready] = field(default_factory=dict)


@dataclass(slots=True)
class Ready:
    """A run whose rows were written."""

    row: PublishedRun
    detail: Detail


def write_share(job: Job, folders: Sequence[Path]) -> list[Written]:
    """Write the files of some runs; usually one per table and day."""
    done = []
    batch = _Batch(Place(job.place))
    for folder in folders:
        try:
            _add(batch, folder, job)
        except PlaceError:
            raise
        except (AmpwatchError, OSError) as problem:
            batch.outcome.skipped[folder.name] = str(problem)
        if batch.is_full:
            done.append(batch.written())
            batch = _Batch(batch.place)
    return [*done, batch.written()]


def _add(batch: _Batch, folder: Path, job: Job) -> None:
    """Add a run's new rows to the batch."""
    run = open_run(folder)
    state = at_a_glance(run)
    if state is State.LIVE and not job.live:
        batch.outcome.live.append(folder.name)
        return
    logs = [log for log in run.logs if isinstance(log, RankLog)]
    stamp = _stamp(run, logs, state)
    there = job.known.get(run.info.id)
    if there is not None and there.stamp == stamp:
        batch.outcome.unchanged.append(folder.name)
        return
    before = read_detail(batch.place, there) if there is not None else None
    fresh = [log for log in logs if _has_more(log, before)]
    is_told = there is None or is_retold(read_tags(folder), there)
    if before is not None and not fresh and not is_told and not _tells_more(state, before):
        batch.outcome.unchanged.append(folder.name)
        return
    is_over = state is not State.LIVE
    planned = [(log, continuation(log, before, is_over=is_over)) for log in fresh]
    batch.add(run, folder.name, state, stamp, planned)
    batch.outcome.bytes_read += bytes_in(folder)
    batch.outcome.published.append(folder.name)


def _has_more(log: RankLog, before: Detail | None) -> bool:
    """Whether a rank's log has batches that are not in the place."""
    notes = before.ranks if before else ()
    held = next((Ranges(note.held) for note in notes if note.rank == log.rank), None)
    return held is None or bool(list(log.held.without(held)))


def _tells_more(state: State, before: Detail) -> bool:
    """Whether a run that was published live has ended since."""
    return before.state == State.LIVE.value and state is not State.LIVE


def _stamp(run: Run, logs: Sequence[RankLog], state: State) -> str:
    """Identifies a state of a run, independent of its folder and of compaction."""
    told = read_tags(run.path)
    held = [(log.rank, list(log.held)) for log in logs]
    facts = [run.info.to_json(), state.value, held, told.tags, told.note]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


class _Batch:
    """Runs that become visible together, in few files: one per table and day."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.outcome = Outcome()
        self._files: dict[tuple[Table, str], RowFile] = {}
        self._owners: dict[RowFile, list[str]] = {}
        self._ready: dict[str, Ready] = {}
        self._added: dict[Table, list[Added]] = {}
        self._parts: dict[str, list[Part]] = {}

    @property
    def is_full(self) -> bool:
        """Whether to write what is in it."""
        held = sum(file.size for file in self._files.values())
        return held + self.outcome.bytes_written >= _BATCH_BYTES

    def add(self, run: Run, name: str, state: State, stamp: str, planned: Planned) -> None:
        """Encode a run's new rows; if a log is damaged, RunError, and nothing is added."""
        edition = fresh_token()
        day = time_of(run.info.started_ns).date().isoformat()
        for rank, table, rows in _checked(planned, run.info.id, edition):
            file = self._file(table, day)
            file.add(table.value, rank, rows, edition)
            self._owners[file].append(run.info.id)
            if file.size >= _BATCH_BYTES:  # of a long run, which need not fit into memory
                self._put(table, day)
        notes = tuple(note_of(run, log, edition) for log, _ in planned)
        kept = tuple(part for _, plan in planned for part in plan.kept)
        row = row_of(run, name, state, stamp, notes)
        self._ready[run.info.id] = Ready(row, Detail(run.info.to_json(), state.value, notes, kept))

    def _file(self, table: Table, day: str) -> RowFile:
        if (table, day) not in self._files:
            path = f"{table.value}/{DAY}={day}/part-{fresh_token()}.parquet"
            file = RowFile(path, FILE_SCHEMAS[table])
            self._files[table, day] = file
            self._owners[file] = []
        return self._files[table, day]

    def _put(self, table: Table, day: str) -> None:
        """Put a file where it belongs."""
        file = self._files.pop((table, day))
        data, found = file.finish()
        self.place.put(file.path, data)
        self.outcome.bytes_written += len(data)
        within = file.path.partition("/")[2]
        added = Added(within, len(data), file.stats, {DAY: day})
        self._added.setdefault(table, []).append(added)
        for part, run_id in zip(found, self._owners.pop(file), strict=True):
            self._parts.setdefault(run_id, []).append(part)

    def written(self) -> Written:
        """Put the files where they belong; nothing is visible by that."""
        for table, day in list(self._files):
            self._put(table, day)
        for run_id, ready in self._ready.items():
            parts = (*ready.detail.parts, *self._parts.get(run_id, ()))
            ready.detail = replace(ready.detail, parts=parts)
        return Written(self.outcome, self._added, self._ready)


_Rows: TypeAlias = "tuple[int, Table, pa.Table]"  # of a rank
Planned: TypeAlias = "Sequence[tuple[RankLog, Continuation]]"


def _checked(planned: Planned, run_id: str, edition: str) -> Iterable[_Rows]:
    """The rows of some logs, after a check that none is damaged.

    Reading a log checks it, so a short run is simply read before any row is passed on. A long run,
    which must not be held in memory, is checked first.
    """
    rows = sum(log.rows(table) - plan.starts[table] for log, plan in planned for table in TABLES)
    found: Iterable[_Rows] = _encoded(planned, run_id, edition)
    if rows <= _HELD_ROWS:
        for log, plan in planned:
            if plan.is_from_the_start:
                log.hold()
        found = list(found)
    else:
        for log, _ in planned:
            log.verify()
    for log, _ in planned:
        if damage := damage_of(log):
            raise RunError(f"Not published, because that would hide what is lost. {damage[0]}")
    return found


def _encoded(planned: Planned, run_id: str, edition: str) -> Iterator[_Rows]:
    for log, plan in planned:
        facts = layer_facts(log)
        for table in TABLES:
            total = log.rows(table)
            for start in range(plan.starts[table], total, ROW_GROUP_ROWS):
                rows = with_places(log, table, start, min(total, start + ROW_GROUP_ROWS))
                yield log.rank, table, published(table, rows, run_id, edition, facts)


def bytes_in(folder: Path) -> int:
    """The size of a run's log files; other files in the folder are not counted."""
    found = 0
    for rank in ranks_in(folder):
        with os.scandir(rank_folder(folder, rank)) as entries:
            found += sum(one.stat(follow_symlinks=False).st_size for one in entries)
    return found
