"""What a worker does: writes the rows of some runs to a place, many runs per file.

What it writes is invisible until the commit.
"""

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
from ampwatch.fleet.place import Added, Place
from ampwatch.fleet.published_facts import is_retold, rank_note_of, row_of
from ampwatch.fleet.row_files import Part, RowFile
from ampwatch.fleet.row_tables import (
    DAY,
    FILE_SCHEMAS,
    layer_facts,
    published_rows,
    time_of,
    with_places,
)
from ampwatch.fleet.run_details import Detail, read_detail
from ampwatch.fleet.runs_delta_table import PublishedRun, fresh_token
from ampwatch.fleet.unpublished_rows import UnpublishedRows, has_unpublished, unpublished_rows_of
from ampwatch.follow.liveness import State, at_a_glance
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
    """What was published, and what was not and why: the result of `publish`."""

    published: list[str] = field(default_factory=list)  # names of runs
    unchanged: list[str] = field(default_factory=list)
    live: list[str] = field(default_factory=list)  # skipped because they are live
    skipped: dict[str, str] = field(default_factory=dict)  # name -> why it cannot be published
    bytes_read: int = 0
    bytes_written: int = 0

    def add(self, other: Outcome) -> None:
        """Add what a worker published to the result."""
        self.published += other.published
        self.unchanged += other.unchanged
        self.live += other.live
        self.skipped |= other.skipped
        self.bytes_read += other.bytes_read
        self.bytes_written += other.bytes_written


@dataclass(frozen=True, slots=True)
class PublishingJob:
    """What every publishing worker needs to know."""

    place: str
    known: Mapping[str, PublishedRun]  # by id
    live: bool = False


@dataclass(slots=True)
class Written:
    """Files that a worker has written to the place; they are not visible yet."""

    outcome: Outcome
    added: dict[Table, list[Added]] = field(default_factory=dict)
    ready: dict[str, WrittenRun] = field(default_factory=dict)


@dataclass(slots=True)
class WrittenRun:
    """A run whose rows a worker has written."""

    row: PublishedRun
    detail: Detail


def write_share(job: PublishingJob, folders: Sequence[Path]) -> list[Written]:
    """Write a share of runs to the place, as a worker; usually one file per table and day."""
    done = []
    batch = _FileBatch(Place(job.place))
    for folder in folders:
        try:
            _add(batch, folder, job)
        except PlaceError:
            raise
        except (AmpwatchError, OSError) as problem:
            batch.outcome.skipped[folder.name] = str(problem)
        if batch.is_full:
            done.append(batch.written())
            batch = _FileBatch(batch.place)
    return [*done, batch.written()]


def _add(batch: _FileBatch, folder: Path, job: PublishingJob) -> None:
    """Add a run's unpublished rows to the batch of files."""
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
    fresh = [log for log in logs if has_unpublished(log, before)]
    is_told = there is None or is_retold(read_tags(folder), there)
    if before is not None and not fresh and not is_told and not _tells_more(state, before):
        batch.outcome.unchanged.append(folder.name)
        return
    is_over = state is not State.LIVE
    planned = [(log, unpublished_rows_of(log, before, is_over=is_over)) for log in fresh]
    batch.add(run, folder.name, state, stamp, planned)
    batch.outcome.bytes_read += bytes_in(folder)
    batch.outcome.published.append(folder.name)


def _tells_more(state: State, before: Detail) -> bool:
    """Whether a run that was published live has ended since."""
    return before.state == State.LIVE.value and state is not State.LIVE


def _stamp(run: Run, logs: Sequence[RankLog], state: State) -> str:
    """The stamp of a run's state, independent of its folder and of compaction."""
    told = read_tags(run.path)
    held = [(log.rank, list(log.held)) for log in logs]
    facts = [run.info.to_json(), state.value, held, told.tags, told.note]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


class _FileBatch:
    """Files with the rows of runs that become visible together: one per table and day."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.outcome = Outcome()
        self._files: dict[tuple[Table, str], RowFile] = {}
        self._owners: dict[RowFile, list[str]] = {}
        self._ready: dict[str, WrittenRun] = {}
        self._added: dict[Table, list[Added]] = {}
        self._parts: dict[str, list[Part]] = {}

    @property
    def is_full(self) -> bool:
        """Whether the worker's files are large enough to be written."""
        held = sum(file.size for file in self._files.values())
        return held + self.outcome.bytes_written >= _BATCH_BYTES

    def add(self, run: Run, name: str, state: State, stamp: str, planned: Planned) -> None:
        """Encode a run's new rows into the files; if a log is damaged, RunError, no rows added."""
        edition = fresh_token()
        day = time_of(run.info.started_ns).date().isoformat()
        for rank, table, rows in _checked(planned, run.info.id, edition):
            file = self._file(table, day)
            file.add(table.value, rank, rows, edition)
            self._owners[file].append(run.info.id)
            if file.size >= _BATCH_BYTES:  # of a long run, which need not fit into memory
                self._put(table, day)
        notes = tuple(rank_note_of(run, log, edition) for log, _ in planned)
        kept = tuple(part for _, plan in planned for part in plan.kept)
        row = row_of(run, name, state, stamp, notes)
        self._ready[run.info.id] = WrittenRun(
            row, Detail(run.info.to_json(), state.value, notes, kept)
        )

    def _file(self, table: Table, day: str) -> RowFile:
        if (table, day) not in self._files:
            path = f"{table.value}/{DAY}={day}/part-{fresh_token()}.parquet"
            file = RowFile(path, FILE_SCHEMAS[table])
            self._files[table, day] = file
            self._owners[file] = []
        return self._files[table, day]

    def _put(self, table: Table, day: str) -> None:
        """Write one of the files to the place."""
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
        """Write all files to the place; nothing is visible by that."""
        for table, day in list(self._files):
            self._put(table, day)
        for run_id, ready in self._ready.items():
            parts = (*ready.detail.parts, *self._parts.get(run_id, ()))
            ready.detail = replace(ready.detail, parts=parts)
        return Written(self.outcome, self._added, self._ready)


_Rows: TypeAlias = "tuple[int, Table, pa.Table]"  # of a rank
Planned: TypeAlias = "Sequence[tuple[RankLog, UnpublishedRows]]"


def _checked(planned: Planned, run_id: str, edition: str) -> Iterable[_Rows]:
    """The rows of the logs to publish, after a check that no log is damaged.

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
                yield log.rank, table, published_rows(table, rows, run_id, edition, facts)


def bytes_in(folder: Path) -> int:
    """The size of a run's log files, to share the work evenly; other files are not counted."""
    found = 0
    for rank in ranks_in(folder):
        with os.scandir(rank_folder(folder, rank)) as entries:
            found += sum(one.stat(follow_symlinks=False).st_size for one in entries)
    return found
