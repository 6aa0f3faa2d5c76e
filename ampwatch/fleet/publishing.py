"""Publishes runs: rows first, each table's in one transaction, and the runs' own rows last.

    publish -> workers: write_share (rows into files, many runs per file) -> commit -> runs visible

If the publisher is killed at any point, a run in the place is either as it was before or complete.
No row of `runs` names what a killed publisher left behind, so nobody reads it. Publishing again
continues: it skips runs that are already published and have nothing new. Runs are compared by id
and, rank by rank, by the numbers of their batches. So a copy that lacks batches never replaces one
that has them, and two publishers with different ranks of one run together publish all of it.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import math
import os
import platform
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from ampwatch.diagnosis.earlier_runs import signature_of
from ampwatch.errors import AmpwatchError, PlaceError, RunError
from ampwatch.fleet.place import Added, Place, commit_in_turn, fresh_token
from ampwatch.fleet.row_tables import (
    DAY,
    FILE_SCHEMAS,
    TABLE_SCHEMAS,
    RowFile,
    layer_facts,
    published_rows,
    time_of,
    with_places,
)
from ampwatch.fleet.runs_delta_table import (
    DETAILS,
    RUNS,
    RUNS_SCHEMA,
    Detail,
    Part,
    PublishedRun,
    RankNote,
    RunTable,
    of_rows,
    read_detail,
)
from ampwatch.fleet.workers import LocalWorkers, Workers
from ampwatch.follow.liveness import State, at_a_glance
from ampwatch.ranges import Ranges
from ampwatch.rows import TABLES, Table
from ampwatch.store import RUN_FILE, Run, open_run, read_info
from ampwatch.store.compaction import ROW_GROUP_ROWS, damage_of
from ampwatch.store.layout import rank_folder, ranks_in
from ampwatch.store.rank_log import RankLog
from ampwatch.store.tags import RunTags, read_tags

# As much as a cut can cost, and about as much log as makes a batch.
_SHARE_RUNS, _SHARE_BYTES = 200, 384 << 20
# Files of this size are read at full speed by any engine; a publisher holds one batch in memory.
_BATCH_BYTES = 64 << 20
_HELD_ROWS = 1 << 18  # of a run: of the widest table 90 MB
_READ_AT_ONCE = 1 << 15  # rows between two places at which a reader of a long run may stop

Progress = Callable[[int, int], None]


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


def publish(
    run: str | Path | Iterable[Path],
    place: str | Place,
    *,
    live: bool = False,
    workers: int = 1,
    progress: Progress | None = None,
) -> Outcome:
    """Publish a run's folder, or every run in a folder, to a place; raises PlaceError.

    `live`: also runs that go on, as far as they are. `workers`: processes that read and encode many
    runs; they are started afresh, so a script that asks for more than one needs its `__main__`
    guard. `progress` gets the runs done and all.
    """
    place = place if isinstance(place, Place) else Place(place)
    return publish_folders(
        _folders(run), place, LocalWorkers(workers), live=live, progress=progress
    )


def publish_folders(
    folders: Sequence[Path],
    place: Place,
    workers: Workers,
    *,
    live: bool = False,
    progress: Progress | None = None,
) -> Outcome:
    """Publish the runs in these folders, by workers of any kind; raises PlaceError."""
    published = {row.id: row for row in of_rows(_prepared(place).rows())}
    job = PublishingJob(place.address, published, live=live)
    outcome, done = Outcome(), 0
    for share, batches in workers.as_done(write_share, job, _shares(folders, workers.count)):
        for batch in batches:
            commit(place, batch)
            outcome.add(batch.outcome)
        done += len(share)
        if progress:
            progress(done, len(folders))
    return outcome


def _folders(run: str | Path | Iterable[Path]) -> list[Path]:
    """The folders of the runs to publish, those of one day together."""
    if not isinstance(run, str | Path):
        return list(run)
    folder = Path(run)
    if os.path.lexists(folder / RUN_FILE):
        return [folder]
    folders = runs_in(folder)
    if not folders:
        raise RunError(f"{run} holds no run to publish.", path=run)
    return folders


def runs_in(folder: Path) -> list[Path]:
    """The folders in this folder that may be runs to publish, the oldest first."""
    folders = [path for path in folder.iterdir() if path.is_dir() and _may_be_run(path)]
    return sorted(folders, key=lambda path: (_started_ns(path), path.name))


def _may_be_run(path: Path) -> bool:
    is_hidden = path.name.startswith(".")
    return not is_hidden and (os.path.lexists(path / RUN_FILE) or bool(ranks_in(path)))


def _started_ns(path: Path) -> int:
    try:
        return read_info(path).started_ns
    except AmpwatchError:  # said when its turn comes
        return 0


def _shares(folders: Sequence[Path], workers: int) -> list[list[Path]]:
    """The runs to publish in shares of about equal size, each for one worker at a time."""
    weights = [max(1 / _SHARE_RUNS, bytes_in(folder) / _SHARE_BYTES) for folder in folders]
    total = sum(weights)
    count = math.ceil(total)
    count = math.ceil(count / workers) * workers if count > 1 else 1
    shares: list[list[Path]] = [[] for _ in range(count)]
    before = 0.0
    for folder, weight in zip(folders, weights, strict=True):
        shares[min(int(before / total * count), count - 1)].append(folder)
        before += weight
    return [share for share in shares if share]


def _prepared(place: Place) -> RunTable:
    """Prepare a place for publishing: create missing tables; PlaceError if it is something else."""
    if place.table(RUNS) is None:
        others = place.names() - {table.value for table in TABLES} - {RUNS, DETAILS}
        if others:
            raise PlaceError(
                f"{place.address} holds something else ({min(others)}): choose a place of its own, "
                "such as a new prefix in the same bucket.",
                place=place.address,
            )
        for table in TABLES:
            place.create(table.value, TABLE_SCHEMAS[table], [DAY])
        place.create(RUNS, RUNS_SCHEMA, [])
    return RunTable.open(place)


# --- what a worker does ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PublishingJob:
    """What every publishing worker needs to know."""

    place: str
    published: Mapping[str, PublishedRun]  # by id
    live: bool = False


@dataclass(slots=True)
class Written:
    """Files that a worker has written to the place, and of which runs; nothing is visible yet."""

    outcome: Outcome
    files: dict[Table, list[Added]]
    runs: dict[str, tuple[PublishedRun, Detail]]  # by id: the row of `runs` to be, and its detail


def write_share(job: PublishingJob, folders: Sequence[Path]) -> list[Written]:
    """Write a share of runs to the place, as a worker; usually one file per table and day.

    What it writes is invisible until the commit.
    """
    done = []
    batch = _FileBatch(Place(job.place))
    for folder in folders:
        try:
            _add_run(batch, folder, job)
        except PlaceError:
            raise
        except (AmpwatchError, OSError) as problem:
            batch.outcome.skipped[folder.name] = str(problem)
        if batch.is_full:
            done.append(batch.written())
            batch = _FileBatch(batch.place)
    return [*done, batch.written()]


def _add_run(batch: _FileBatch, folder: Path, job: PublishingJob) -> None:
    """Add a run's unpublished rows to the batch of files."""
    run = open_run(folder)
    state = at_a_glance(run)
    if state is State.LIVE and not job.live:
        batch.outcome.live.append(folder.name)
        return
    logs = [log for log in run.logs if isinstance(log, RankLog)]
    stamp = _stamp(run, logs, state)
    there = job.published.get(run.info.id)
    if there is not None and there.stamp == stamp:
        batch.outcome.unchanged.append(folder.name)
        return
    before = read_detail(batch.place, there) if there is not None else None
    fresh = [log for log in logs if has_unpublished(log, before)]
    is_over = state is not State.LIVE
    if before is not None and not fresh:
        has_ended = before.state == State.LIVE.value and is_over  # it was published live
        has_news = there is None or _are_new_tags(read_tags(folder), _noted_on(there, before))
        if not has_ended and not has_news:
            batch.outcome.unchanged.append(folder.name)
            return
    planned = [(log, unpublished_rows_of(log, before, is_over=is_over)) for log in fresh]
    batch.add(run, folder.name, state, stamp, planned)
    batch.outcome.bytes_read += bytes_in(folder)
    batch.outcome.published.append(folder.name)


def _stamp(run: Run, logs: Sequence[RankLog], state: State) -> str:
    """The stamp of a run's state, independent of its folder and of compaction."""
    tags = read_tags(run.path)
    held = [(log.rank, list(log.held)) for log in logs]
    facts = [run.info.to_json(), state.value, held, tags.tags, tags.note, *tags.muted]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


class _FileBatch:
    """Files with the rows of runs that become visible together: one per table and day."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.outcome = Outcome()
        self._open: dict[tuple[Table, str], RowFile] = {}
        self._files: dict[Table, list[Added]] = {}
        self._runs: dict[str, tuple[PublishedRun, Detail]] = {}
        self._parts: dict[str, list[Part]] = {}  # by run

    @property
    def is_full(self) -> bool:
        """Whether the worker's files are large enough to be written."""
        held = sum(file.size for file in self._open.values())
        return held + self.outcome.bytes_written >= _BATCH_BYTES

    def add(self, run: Run, name: str, state: State, stamp: str, planned: Planned) -> None:
        """Encode a run's new rows into the files; if a log is damaged, RunError, no rows added."""
        edition = fresh_token()
        day = time_of(run.info.started_ns).date().isoformat()
        for rank, table, rows in _checked(planned, run.info.id, edition):
            file = self._file(table, day)
            file.add(table.value, rank, rows, run.info.id, edition)
            if file.size >= _BATCH_BYTES:  # of a long run, which need not fit into memory
                self._put(table, day)
        notes = tuple(_rank_note_of(run, log, edition) for log, _ in planned)
        kept = tuple(part for _, plan in planned for part in plan.kept)
        row = _row_of(run, name, state, stamp, notes)
        detail = Detail(run.info.to_json(), state.value, notes, kept, run.files.muted())
        self._runs[run.info.id] = row, detail

    def _file(self, table: Table, day: str) -> RowFile:
        if (table, day) not in self._open:
            path = f"{table.value}/{DAY}={day}/part-{fresh_token()}.parquet"
            self._open[table, day] = RowFile(path, FILE_SCHEMAS[table])
        return self._open[table, day]

    def _put(self, table: Table, day: str) -> None:
        """Write one of the files to the place."""
        file = self._open.pop((table, day))
        data, parts = file.finish()
        self.place.put(file.path, data)
        self.outcome.bytes_written += len(data)
        within = file.path.partition("/")[2]
        added = Added(within, len(data), file.stats, {DAY: day})
        self._files.setdefault(table, []).append(added)
        for part, run_id in zip(parts, file.run_ids, strict=True):
            self._parts.setdefault(run_id, []).append(part)

    def written(self) -> Written:
        """Write all files to the place; nothing is visible by that."""
        for table, day in list(self._open):
            self._put(table, day)
        for run_id, (row, detail) in self._runs.items():
            parts = (*detail.parts, *self._parts.get(run_id, ()))
            self._runs[run_id] = row, replace(detail, parts=parts)
        return Written(self.outcome, self._files, self._runs)


_Rows: TypeAlias = "tuple[int, Table, pa.Table]"  # of a rank
Planned: TypeAlias = "Sequence[tuple[RankLog, UnpublishedRows]]"


def _checked(planned: Planned, run_id: str, edition: str) -> Iterable[_Rows]:
    """The rows of the logs to publish, after a check that no log is damaged.

    Reading a log checks it, so a short run is simply read before any row is passed on. A long run,
    which must not be held in memory, is checked first.
    """
    rows = sum(log.rows(table) - plan.starts[table] for log, plan in planned for table in TABLES)
    encoded: Iterable[_Rows] = _encoded(planned, run_id, edition)
    if rows <= _HELD_ROWS:
        for log, plan in planned:
            if plan.is_from_the_start:
                log.hold()
        encoded = list(encoded)
    else:
        for log, _ in planned:
            log.verify()
    for log, _ in planned:
        if damage := damage_of(log):
            raise RunError(f"Not published: that would hide that rows were lost. {damage[0]}")
    return encoded


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
    size = 0
    for rank in ranks_in(folder):
        with os.scandir(rank_folder(folder, rank)) as entries:
            size += sum(entry.stat(follow_symlinks=False).st_size for entry in entries)
    return size


# --- which rows the place lacks -------------------------------------------------------------------

# Each publication of a rank's rows is a segment, with an edition of its own. A run that is
# published every few minutes must still be readable with few requests, so a segment is rewritten
# together with the new rows once these are as many, unless it fills a row group. Each row is thus
# written a few times in all, and when the run ends its short segments become one.


@dataclass(frozen=True, slots=True)
class UnpublishedRows:
    """From where to publish a rank's rows, and which published parts before them stay."""

    starts: Mapping[Table, int]
    kept: tuple[Part, ...] = ()

    @property
    def is_from_the_start(self) -> bool:
        """Whether all rows of the log are to be published."""
        return not any(self.starts.values())


FROM_THE_START = UnpublishedRows(dict.fromkeys(TABLES, 0))


def unpublished_rows_of(log: RankLog, before: Detail | None, *, is_over: bool) -> UnpublishedRows:
    """The rows of a rank's log to publish; `before` is what the place already has of the run."""
    parts = [part for part in before.parts if part.rank == log.rank] if before else []
    if before is None or not _holds_the_beginning(log, before, parts):
        return FROM_THE_START
    editions = list(dict.fromkeys(part.edition for part in parts))
    fresh = sum(map(log.rows, TABLES)) - sum(part.rows for part in parts)
    while editions:
        rows = sum(part.rows for part in parts if part.edition == editions[-1])
        if rows >= ROW_GROUP_ROWS or (rows > fresh and not is_over):
            break
        fresh += rows
        editions.pop()
    kept = tuple(part for part in parts if part.edition in editions)
    return UnpublishedRows({table: _rows(kept, table) for table in TABLES}, kept)


def _holds_the_beginning(log: RankLog, before: Detail, parts: list[Part]) -> bool:
    """Whether the published parts are the log's first batches, in the log's current order."""
    held = next((note.held for note in before.ranks if note.rank == log.rank), ())
    mine = list(log.held)
    if len(held) != 1 or not mine or mine[0][0] != held[0][0] or mine[0][1] < held[0][1]:
        return False
    last = held[0][1] - held[0][0] - 1
    return all(int(log.row_ends(table)[last]) == _rows(parts, table) for table in TABLES)


def _rows(parts: list[Part] | tuple[Part, ...], table: Table) -> int:
    return sum(part.rows for part in parts if part.table == table.value)


def has_unpublished(log: RankLog, before: Detail | None) -> bool:
    """Whether a rank's log has batches that are not in the place."""
    notes = before.ranks if before else ()
    held = next((Ranges(note.held) for note in notes if note.rank == log.rank), None)
    return held is None or bool(list(log.held.without(held)))


# --- what is said of a run and its ranks ----------------------------------------------------------


def _rank_note_of(run: Run, log: RankLog, edition: str) -> RankNote:
    """The facts to publish about a rank's log."""
    return RankNote(
        rank=log.rank,
        edition=edition,
        held=tuple(log.held),
        marks=log.marks,
        ended=log.ended,
        last_time_ns=log.last_time_ns,
        notes=log.notes,
        lacks=run.files.lacks(log.rank),
        row_ends=_row_ends(log),
    )


def _row_ends(log: RankLog) -> dict[str, list[int]]:
    """The row numbers to publish at which a reader may stop: ends of batches, evenly spaced."""
    ends = log.row_ends()
    if not len(ends):
        return {table.value: [0] for table in TABLES}
    wanted = np.arange(_READ_AT_ONCE, int(ends[-1]), _READ_AT_ONCE)
    batches = np.unique(np.append(np.searchsorted(ends, wanted), len(ends) - 1))
    return {
        table.value: [min(int(end), log.rows(table)) for end in log.row_ends(table)[batches]]
        for table in TABLES
    }


def _row_of(
    run: Run, name: str, state: State, stamp: str, notes: Sequence[RankNote]
) -> PublishedRun:
    """The facts to publish about a run, as its row in `runs`, without the place of its detail."""
    from ampwatch import __version__

    info, tags, signature = run.info, read_tags(run.path), signature_of(run)
    return PublishedRun(
        id=info.id,
        name=name,
        source=info.source,
        host=info.host,
        started=time_of(info.started_ns),
        last_time=time_of(max([info.started_ns, *(note.last_time_ns for note in notes)])),
        state=state.value,
        steps=_steps(run),
        ranks=len(run.ranks),
        world_size=info.world_size,
        config=json.dumps(json.loads(info.to_json())["config"]),
        tags=tags.tags,
        note=tags.note,
        editions=(),
        published=dt.datetime.now(dt.timezone.utc),
        publisher=platform.node(),
        ampwatch=__version__,
        stamp=stamp,
        signature=signature.text if signature else None,
        detail_path="",
        detail_offset=0,
        detail_length=0,
        detail_crc=0,
    )


def _steps(run: Run) -> int:
    """The steps to publish: from the first to the last logged one of the first rank."""
    log = next(iter(run.logs), None)
    if log is None or not log.rows(Table.STEPS):
        return 0
    rows = log.rows(Table.STEPS)
    first = log.read(Table.STEPS, ["step"], 0, 1).column(0)[0].as_py()
    last = log.read(Table.STEPS, ["step"], rows - 1, rows).column(0)[0].as_py()
    return (last or 0) - (first or 0) + 1


def _noted_on(row: PublishedRun, detail: Detail) -> RunTags:
    """What its readers noted on a published run."""
    return RunTags(row.tags, row.note, muted=detail.muted)


def _are_new_tags(tags: RunTags, there: RunTags) -> bool:
    """Whether tags, note or mutes differ from the published ones; a run without any keeps them."""
    told = (tags.tags, tags.note, tags.muted)
    return tags != RunTags() and told != (there.tags, there.note, there.muted)


# --- the commit -----------------------------------------------------------------------------------


def commit(place: Place, written: Written) -> None:
    """Commit written rows, one transaction per table, then make their runs visible."""
    if not written.runs:
        return
    for table, files in written.files.items():
        opened = place.create(table.value, TABLE_SCHEMAS[table], [DAY])
        place.commit(opened, TABLE_SCHEMAS[table], files)

    def try_once() -> bool:
        table = RunTable.to_write(place)
        rows, data = _merged(place, table, written.runs)
        if not rows:
            return True
        place.put(rows[0].detail_path, data)
        written.outcome.bytes_written += len(data)
        fresh = pa.Table.from_pylist(
            [{name: getattr(row, name) for name in RUNS_SCHEMA.names} for row in rows],
            schema=RUNS_SCHEMA,
        )
        return table.replace(fresh)

    commit_in_turn(place, try_once)


def _merged(
    place: Place, table: RunTable, runs: Mapping[str, tuple[PublishedRun, Detail]]
) -> tuple[list[PublishedRun], bytes]:
    """The rows of `runs` to commit and their details, merged with what others committed."""
    published = {row.id: row for row in of_rows(table.rows())}
    path = f"{DETAILS}/{fresh_token()}"
    rows, data = [], bytearray()
    for run_id, (row, detail) in runs.items():
        there, joined = published.get(run_id), detail
        if there is not None:
            old = read_detail(place, there)
            merged = _joined(detail, old, _noted_on(row, detail), _noted_on(there, old))
            if merged is None:
                continue  # another publisher was first, with the same or more
            joined = merged
        packed = joined.packed()
        rows.append(
            replace(
                row if there is None else _merged_row(row, there),
                editions=joined.editions,
                ranks=len(joined.ranks),
                detail_path=path,
                detail_offset=len(data),
                detail_length=len(packed),
                detail_crc=zlib.crc32(packed),
            )
        )
        data += packed
    return rows, bytes(data)


def _merged_row(row: PublishedRun, there: PublishedRun) -> PublishedRun:
    """A row of `runs` with what the published one says that it does not."""
    times = [time for time in (row.last_time, there.last_time) if time is not None]
    tags = row if row.tags or row.note else there
    return replace(
        row,
        tags=tags.tags,
        note=tags.note,
        steps=max(row.steps, there.steps),
        signature=row.signature or there.signature,
        last_time=max(times, default=None),
    )


def _joined(new: Detail, old: Detail, tags: RunTags, there: RunTags) -> Detail | None:
    """The details to commit for a run: for each rank those of the copy with more rows.

    None if the place already has all new rows.
    """
    best = {note.rank: (note, old) for note in old.ranks}
    for note in new.ranks:
        before = best.get(note.rank)
        if before is None or list(Ranges(note.held).without(Ranges(before[0].held))):
            best[note.rank] = (note, new)
    has_ended = old.state == State.LIVE.value != new.state
    is_same = all(detail is old for _, detail in best.values())
    if is_same and not has_ended and not _are_new_tags(tags, there):
        return None
    parts = tuple(
        part
        for rank, (_, detail) in sorted(best.items())
        for part in detail.parts
        if part.rank == rank
    )
    ranks = tuple(note for _, (note, _) in sorted(best.items()))
    muted = there.muted if tags == RunTags() else tags.muted
    return replace(new, ranks=ranks, parts=parts, muted=muted)
