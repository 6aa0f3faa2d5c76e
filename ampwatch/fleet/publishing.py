"""Publish runs: rows first, each table's in one transaction, and the runs' own rows last.

Killed at any point, a run is in the place as it was before or whole. What a killed publisher left
is named by no row of `runs`, so nobody reads it, and publishing again starts where it stopped: runs
that are there already, with nothing new, are passed over. Runs are told apart by their id and, rank
by rank, by the numbers of the batches that are held, so a copy that lacks some never replaces one
that has them, and two publishers of one run, each with other ranks of it, together publish all.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import os
import platform
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from ampwatch.errors import AmpwatchError, PlaceError, RunError
from ampwatch.fleet.details import Detail, RankNote
from ampwatch.fleet.place import Added, Place, retried
from ampwatch.fleet.published_run import read_detail
from ampwatch.fleet.row_files import Part, RowFile
from ampwatch.fleet.run_table import PublishedRun, RunTable, fresh_token, of_rows
from ampwatch.fleet.tables import (
    DAY,
    FILE_SCHEMAS,
    RUNS,
    RUNS_SCHEMA,
    TABLE_SCHEMAS,
    layer_facts,
    published,
    with_places,
)
from ampwatch.fleet.workers import in_order
from ampwatch.follow.liveness import State, at_a_glance
from ampwatch.ranges import Ranges
from ampwatch.rows import TABLES, Table
from ampwatch.store import RUN_FILE, Run, open_run, read_info
from ampwatch.store.compaction import ROW_GROUP_ROWS, damage_of
from ampwatch.store.layout import rank_folder, ranks_in
from ampwatch.store.rank_log import RankLog
from ampwatch.store.tags import RunTags, read_tags

DETAILS = "details"
# Files of this size are read at full speed by any engine; a publisher holds one batch in memory.
_BATCH_BYTES = 64 << 20
# As much as a cut can cost, and about as much log as makes a batch.
_SHARE_RUNS, _SHARE_BYTES = 200, 384 << 20
_HELD_ROWS = 1 << 20
_READ_AT_ONCE = 1 << 15  # rows between two places at which a reader of a long run may stop
_TRIES = 60  # to be the one who commits to `runs`, which takes a tenth of a second

Progress = Callable[[int, int], None]


@dataclass(slots=True)
class Outcome:
    """What a call of `publish` did."""

    published: list[str] = field(default_factory=list)  # names of runs
    unchanged: list[str] = field(default_factory=list)
    live: list[str] = field(default_factory=list)  # passed over because they go on
    skipped: dict[str, str] = field(default_factory=dict)  # name -> why it cannot be published
    bytes_read: int = 0
    bytes_written: int = 0

    def add(self, other: Outcome) -> None:
        """What another call did, too."""
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
    """Publish a run's folder, or every run in a folder; raises PlaceError.

    `live`: also runs that go on, as far as they are. `workers`: processes that read and encode many
    runs; they are started afresh, so a script that asks for more than one needs its `__main__`
    guard. `progress` gets the runs done and all.
    """
    place = place if isinstance(place, Place) else Place(place)
    folders = _folders(run)
    table = _prepared(place)
    job = Job(place.address, {row.id: row for row in of_rows(table.rows())}, live=live)
    shares = _shares(folders)
    outcome, done = Outcome(), 0
    for share, written in in_order(write_share, job, shares, workers):
        for one in written:
            _commit(place, one)
            outcome.add(one.outcome)
        done += len(share)
        if progress:
            progress(done, len(folders))
    return outcome


def _folders(run: str | Path | Iterable[Path]) -> list[Path]:
    """The runs, oldest first, so that those of a day come together."""
    if not isinstance(run, str | Path):
        return list(run)
    folder = Path(run)
    if os.path.lexists(folder / RUN_FILE):
        return [folder]
    found = [path for path in folder.iterdir() if path.is_dir() and _may_be_run(path)]
    if not found:
        raise RunError(f"{run} holds no run to publish.", path=run)
    return sorted(found, key=lambda path: (_started_ns(path), path.name))


def _may_be_run(path: Path) -> bool:
    is_hidden = path.name.startswith(".")
    return not is_hidden and (os.path.lexists(path / RUN_FILE) or bool(ranks_in(path)))


def _started_ns(path: Path) -> int:
    try:
        return read_info(path).started_ns
    except AmpwatchError:  # said when its turn comes
        return 0


def _shares(folders: Sequence[Path]) -> list[list[Path]]:
    """Runs that are written together, in files of a good size."""
    shares: list[list[Path]] = []
    total = 0
    for folder in folders:
        if not shares or len(shares[-1]) >= _SHARE_RUNS or total >= _SHARE_BYTES:
            shares.append([])
            total = 0
        shares[-1].append(folder)
        total += _bytes_in(folder)
    return shares


def _bytes_in(folder: Path) -> int:
    """What a run's files hold, without looking into files of other kinds."""
    found = 0
    for rank in ranks_in(folder):
        with os.scandir(rank_folder(folder, rank)) as entries:
            found += sum(one.stat(follow_symlinks=False).st_size for one in entries)
    return found


def _prepared(place: Place) -> RunTable:
    """The place's tables, made if there are none; refused if it holds something else."""
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
class Job:
    """What a worker must know."""

    place: str
    known: Mapping[str, PublishedRun]  # by id
    live: bool = False


@dataclass(slots=True)
class Written:
    """Files that are in the place and that nobody sees yet."""

    outcome: Outcome
    added: dict[Table, list[Added]] = field(default_factory=dict)
    ready: dict[str, Ready] = field(default_factory=dict)


@dataclass(slots=True)
class Ready:
    """A run whose rows were written."""

    row: PublishedRun
    detail: Detail


def write_share(job: Job, folders: Sequence[Path]) -> list[Written]:
    """Write the files of some runs; usually one file a table and day."""
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
    """Add to the batch what is new of a run."""
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
    is_told = there is None or _is_retold(read_tags(folder), there)
    if before is not None and not fresh and not is_told and not _tells_more(state, before):
        batch.outcome.unchanged.append(folder.name)
        return
    batch.add(run, folder.name, state, stamp, fresh)
    batch.outcome.bytes_read += _bytes_in(folder)
    batch.outcome.published.append(folder.name)


def _has_more(log: RankLog, before: Detail | None) -> bool:
    """Whether a rank's log has batches that are not in the place."""
    notes = before.ranks if before else ()
    held = next((Ranges(note.held) for note in notes if note.rank == log.rank), None)
    return held is None or bool(list(log.held.without(held)))


def _tells_more(state: State, before: Detail) -> bool:
    """Whether it is known by now how a run ended that was published while it went on."""
    return before.state == State.LIVE.value and state is not State.LIVE


def _is_retold(told: RunTags, there: PublishedRun) -> bool:
    """Whether its tags are others by now; a copy that has none takes none away."""
    return told != RunTags() and (told.tags, told.note) != (there.tags, there.note)


def _stamp(run: Run, logs: Sequence[RankLog], state: State) -> str:
    """Tells one state of a run from another, wherever it lies and whether or not compacted."""
    told = read_tags(run.path)
    held = [(log.rank, list(log.held)) for log in logs]
    facts = [run.info.to_json(), state.value, held, told.tags, told.note]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


class _Batch:
    """Runs that become visible together, in few files: one a table and day."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.outcome = Outcome()
        self._files: dict[tuple[Table, str], RowFile] = {}
        self._owners: dict[RowFile, list[str]] = {}
        self._ready: dict[str, Ready] = {}
        self._token = fresh_token()

    @property
    def is_full(self) -> bool:
        """Whether to write what is in it."""
        return sum(file.size for file in self._files.values()) >= _BATCH_BYTES

    def add(self, run: Run, name: str, state: State, stamp: str, logs: Sequence[RankLog]) -> None:
        """Encode what is new of a run; RunError, and nothing is added, if a log is damaged."""
        edition = fresh_token()
        day = _time(run.info.started_ns).date().isoformat()
        for rank, table, rows in _checked(logs, run.info.id, edition):
            file = self._file(table, day)
            file.add(table.value, rank, rows)
            self._owners[file].append(run.info.id)
        notes = tuple(_note(run, log, edition) for log in logs)
        row = _row(run, name, state, stamp, notes)
        self._ready[run.info.id] = Ready(row, Detail(run.info.to_json(), state.value, notes, ()))

    def _file(self, table: Table, day: str) -> RowFile:
        if (table, day) not in self._files:
            path = f"{table.value}/{DAY}={day}/part-{self._token}.parquet"
            file = RowFile(path, FILE_SCHEMAS[table])
            self._files[table, day] = file
            self._owners[file] = []
        return self._files[table, day]

    def written(self) -> Written:
        """Put the files where they belong; nothing is visible by that."""
        added: dict[Table, list[Added]] = {}
        parts: dict[str, list[Part]] = {run_id: [] for run_id in self._ready}
        for (table, day), file in self._files.items():
            data, found = file.finish()
            self.place.put(file.path, data)
            self.outcome.bytes_written += len(data)
            within = file.path.partition("/")[2]
            added.setdefault(table, []).append(Added(within, len(data), file.stats, {DAY: day}))
            for part, run_id in zip(found, self._owners[file], strict=True):
                parts[run_id].append(part)
        for run_id, ready in self._ready.items():
            ready.detail = replace(ready.detail, parts=tuple(parts[run_id]))
        return Written(self.outcome, added, self._ready)


_Rows: TypeAlias = "tuple[int, Table, pa.Table]"  # of a rank


def _checked(logs: Sequence[RankLog], run_id: str, edition: str) -> Iterable[_Rows]:
    """The rows of some logs, once it is known that none is damaged.

    Reading checks what is read, so the rows of a short run are read first; a long one, which is not
    to be held in memory, is checked before.
    """
    rows = sum(log.rows(table) for log in logs for table in TABLES)
    found: Iterable[_Rows] = _encoded(logs, run_id, edition)
    if rows <= _HELD_ROWS:
        found = list(found)
    else:
        for log in logs:
            log.verify()
    for log in logs:
        if damage := damage_of(log):
            raise RunError(f"Not published, because that would hide what is lost. {damage[0]}")
    return found


def _encoded(logs: Sequence[RankLog], run_id: str, edition: str) -> Iterator[_Rows]:
    for log in logs:
        facts = layer_facts(log)
        for table in TABLES:
            total = log.rows(table)
            for start in range(0, total, ROW_GROUP_ROWS):
                rows = with_places(log, table, start, min(total, start + ROW_GROUP_ROWS))
                yield log.rank, table, published(table, rows, run_id, edition, facts)


# --- making runs visible --------------------------------------------------------------------------


def _commit(place: Place, written: Written) -> None:
    """Make rows part of their tables, each in one transaction, and then the runs visible."""
    if not written.ready:
        return
    for table, files in written.added.items():
        opened = place.create(table.value, TABLE_SCHEMAS[table], [DAY])
        place.commit(opened, TABLE_SCHEMAS[table], files)

    def try_once() -> bool:
        table = RunTable.to_write(place)
        rows, data = _merged(place, table, written.ready)
        if not rows:
            return True
        place.put(rows[0].detail_path, data)
        written.outcome.bytes_written += len(data)
        fresh = pa.Table.from_pylist(
            [{name: getattr(row, name) for name in RUNS_SCHEMA.names} for row in rows],
            schema=RUNS_SCHEMA,
        )
        return table.replace(fresh)

    if not retried(try_once, _TRIES):
        raise PlaceError(
            f"{place.address} is being written by many at once: run the same command again; it "
            "goes on where it stopped.",
            place=place.address,
        )


def _merged(
    place: Place, table: RunTable, ready: Mapping[str, Ready]
) -> tuple[list[PublishedRun], bytes]:
    """The rows to commit, and their details one after the other."""
    known = {row.id: row for row in of_rows(table.rows())}
    path = f"{DETAILS}/{fresh_token()}"
    rows, data = [], bytearray()
    for run_id, one in ready.items():
        there = known.get(run_id)
        detail, told = one.detail, RunTags(one.row.tags, one.row.note)
        if there is not None:
            joined = _joined(one.detail, read_detail(place, there), told, there)
            if joined is None:
                continue  # another publisher was first, with the same or more
            detail = joined
            told = told if told != RunTags() else RunTags(there.tags, there.note)
        packed = detail.packed()
        rows.append(
            replace(
                one.row,
                editions=tuple(sorted({note.edition for note in detail.ranks})),
                ranks=len(detail.ranks),
                tags=told.tags,
                note=told.note,
                steps=max(one.row.steps, there.steps if there else 0),
                last_time=_later(one.row.last_time, there.last_time if there else None),
                detail_path=path,
                detail_offset=len(data),
                detail_length=len(packed),
                detail_crc=zlib.crc32(packed),
            )
        )
        data += packed
    return rows, bytes(data)


def _later(one: dt.datetime | None, other: dt.datetime | None) -> dt.datetime | None:
    return max((time for time in (one, other) if time is not None), default=None)


def _joined(new: Detail, old: Detail, told: RunTags, there: PublishedRun) -> Detail | None:
    """Each rank from whoever holds more of it; None if the place has all that is new."""
    kept = {note.rank: (note, old) for note in old.ranks}
    for note in new.ranks:
        known = kept.get(note.rank)
        if known is None or list(Ranges(note.held).without(Ranges(known[0].held))):
            kept[note.rank] = (note, new)
    is_later = old.state == State.LIVE.value != new.state
    is_same = all(source is old for _, source in kept.values())
    if is_same and not is_later and not _is_retold(told, there):
        return None
    parts = tuple(
        part
        for rank, (_, source) in sorted(kept.items())
        for part in source.parts
        if part.rank == rank
    )
    return replace(new, ranks=tuple(note for _, (note, _) in sorted(kept.items())), parts=parts)


# --- one run --------------------------------------------------------------------------------------


def _note(run: Run, log: RankLog, edition: str) -> RankNote:
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
    """Where a reader of a long run may stop: after some batches, about as many rows apart."""
    ends = log.row_ends()
    if not len(ends):
        return {table.value: [0] for table in TABLES}
    wanted = np.arange(_READ_AT_ONCE, int(ends[-1]), _READ_AT_ONCE)
    places = np.unique(np.append(np.searchsorted(ends, wanted), len(ends) - 1))
    return {
        table.value: [min(int(end), log.rows(table)) for end in log.row_ends(table)[places]]
        for table in TABLES
    }


def _row(run: Run, name: str, state: State, stamp: str, notes: Sequence[RankNote]) -> PublishedRun:
    from ampwatch import __version__

    info, told = run.info, read_tags(run.path)
    return PublishedRun(
        id=info.id,
        name=name,
        source=info.source,
        host=info.host,
        started=_time(info.started_ns),
        last_time=_time(max([info.started_ns, *(note.last_time_ns for note in notes)])),
        state=state.value,
        steps=_steps(run),
        ranks=len(run.ranks),
        world_size=info.world_size,
        config=json.dumps(json.loads(info.to_json())["config"]),
        tags=told.tags,
        note=told.note,
        editions=(),
        published=dt.datetime.now(dt.timezone.utc),
        publisher=platform.node(),
        ampwatch=__version__,
        stamp=stamp,
        detail_path="",
        detail_offset=0,
        detail_length=0,
        detail_crc=0,
    )


def _steps(run: Run) -> int:
    """From the first to the last logged, of the first rank, as the list of a folder has it."""
    log = next(iter(run.logs), None)
    if log is None or not log.rows(Table.STEPS):
        return 0
    rows = log.rows(Table.STEPS)
    first = log.read(Table.STEPS, ["step"], 0, 1).column(0)[0].as_py()
    last = log.read(Table.STEPS, ["step"], rows - 1, rows).column(0)[0].as_py()
    return (last or 0) - (first or 0) + 1


def _time(time_ns: int) -> dt.datetime:
    # 9999 is the last year that tables know.
    seconds = min(time_ns // 1000 / 1e6, 253_402_300_799.0)
    return dt.datetime.fromtimestamp(seconds, dt.timezone.utc)
