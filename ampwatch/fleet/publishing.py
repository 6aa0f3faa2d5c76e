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
import platform
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from ampwatch.errors import AmpwatchError, PlaceError, RunError
from ampwatch.fleet.details import Detail, RankNote
from ampwatch.fleet.place import Added, Place, retried
from ampwatch.fleet.published_run import read_detail
from ampwatch.fleet.row_files import RowFile
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
from ampwatch.follow.liveness import State, at_a_glance
from ampwatch.ranges import Ranges
from ampwatch.rows import TABLES, Table
from ampwatch.store import Run, list_runs, open_run
from ampwatch.store.compaction import ROW_GROUP_ROWS, damage_of
from ampwatch.store.rank_log import RankLog

DETAILS = "details"
# Files of this size are read at full speed by any engine; a publisher holds one batch in memory.
_BATCH_BYTES = 64 << 20
_BATCH_RUNS = 500  # lose at most so many runs' work to a cut
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


def publish(
    run: str | Path | Iterable[Path],
    place: str | Place,
    *,
    live: bool = False,
    progress: Progress | None = None,
) -> Outcome:
    """Publish a run's folder, or every run in a folder; raises PlaceError.

    `live`: also runs that go on, as far as they are. `progress` gets the runs done and all.
    """
    place = place if isinstance(place, Place) else Place(place)
    folders = _folders(run)
    outcome = Outcome()
    table = _prepared(place)
    known = {row.id: row for row in of_rows(table.rows())}
    batch = _Batch(place)
    for done, folder in enumerate(folders):
        if progress:
            progress(done, len(folders))
        try:
            _add(batch, folder, known, outcome, live=live)
        except PlaceError:
            raise
        except (AmpwatchError, OSError) as problem:
            outcome.skipped[folder.name] = str(problem)
        if batch.is_full:
            batch = _committed(batch, outcome)
    _committed(batch, outcome)
    if progress:
        progress(len(folders), len(folders))
    return outcome


def _folders(run: str | Path | Iterable[Path]) -> list[Path]:
    """The runs, oldest first, so that those of a day come together."""
    if not isinstance(run, str | Path):
        return list(run)
    found = [summary.path for summary in reversed(list_runs(run))]
    if not found:
        raise RunError(f"{run} holds no run to publish.", path=run)
    return found


def _prepared(place: Place) -> RunTable:
    """The place's tables, made if there are none; refused if it holds something else."""
    there = place.table(RUNS)
    if there is None:
        others = place.names() - {table.value for table in TABLES} - {RUNS, DETAILS}
        if others:
            raise PlaceError(
                f"{place.address} holds something else ({min(others)}): choose a place of its own, "
                "such as a new prefix in the same bucket.",
                place=place.address,
            )
        for table in TABLES:
            place.create(table.value, TABLE_SCHEMAS[table], [DAY])
        there = place.create(RUNS, RUNS_SCHEMA, [])
    return RunTable(place, there)


def _add(
    batch: _Batch, folder: Path, known: dict[str, PublishedRun], outcome: Outcome, *, live: bool
) -> None:
    """Add to the batch what is new of a run."""
    run = open_run(folder)
    state = at_a_glance(run)
    if state is State.LIVE and not live:
        outcome.live.append(folder.name)
        return
    logs = [log for log in run.logs if isinstance(log, RankLog)]
    stamp = _stamp(run, logs, state)
    there = known.get(run.info.id)
    if there is not None and there.stamp == stamp:
        outcome.unchanged.append(folder.name)
        return
    before = read_detail(batch.place, there) if there is not None else None
    fresh = [log for log in logs if _has_more(log, before)]
    if before is not None and not fresh and not _tells_more(state, before):
        outcome.unchanged.append(folder.name)
        return
    for log in fresh:
        log.verify()
        if damage := damage_of(log):
            raise RunError(f"Not published, because that would hide what is lost. {damage[0]}")
    batch.add(run, folder.name, state, stamp, fresh)
    outcome.bytes_read += sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())


def _has_more(log: RankLog, before: Detail | None) -> bool:
    """Whether a rank's log has batches that are not in the place."""
    notes = before.ranks if before else ()
    held = next((Ranges(note.held) for note in notes if note.rank == log.rank), None)
    return held is None or bool(list(log.held.without(held)))


def _tells_more(state: State, before: Detail) -> bool:
    """Whether it is known by now how a run ended that was published while it went on."""
    return before.state == State.LIVE.value and state is not State.LIVE


def _stamp(run: Run, logs: Sequence[RankLog], state: State) -> str:
    """Tells one state of a run from another, wherever it lies and whether or not compacted."""
    facts = [run.info.to_json(), state.value, [(log.rank, list(log.held)) for log in logs]]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


# --- a batch of runs ------------------------------------------------------------------------------


@dataclass(slots=True)
class _Ready:
    """A run whose rows are in the batch."""

    row: PublishedRun
    detail: Detail


class _Batch:
    """Runs that become visible together, in few files: one a table and day."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._files: dict[tuple[Table, str], RowFile] = {}
        self._owners: dict[RowFile, list[str]] = {}
        self.ready: dict[str, _Ready] = {}
        self._token = fresh_token()

    @property
    def is_full(self) -> bool:
        """Whether to publish what is in it."""
        total = sum(file.size for file in self._files.values())
        return len(self.ready) >= _BATCH_RUNS or total >= _BATCH_BYTES

    def add(self, run: Run, name: str, state: State, stamp: str, logs: Sequence[RankLog]) -> None:
        """Encode what is new of a run."""
        edition = fresh_token()
        day = _time(run.info.started_ns).date().isoformat()
        for log in logs:
            self._add_rank(run.info.id, edition, day, log)
        notes = tuple(_note(run, log, edition) for log in logs)
        detail = Detail(run.info.to_json(), state.value, notes, ())
        self.ready[run.info.id] = _Ready(_row(run, name, state, stamp, edition), detail)

    def _add_rank(self, run_id: str, edition: str, day: str, log: RankLog) -> None:
        facts = layer_facts(log)
        for table in TABLES:
            total = log.rows(table)
            for start in range(0, total, ROW_GROUP_ROWS):
                rows = with_places(log, table, start, min(total, start + ROW_GROUP_ROWS))
                file = self._file(table, day)
                file.add(table.value, log.rank, published(table, rows, run_id, edition, facts))
                self._owners[file].append(run_id)

    def _file(self, table: Table, day: str) -> RowFile:
        if (table, day) not in self._files:
            path = f"{table.value}/{DAY}={day}/part-{self._token}.parquet"
            file = RowFile(path, FILE_SCHEMAS[table])
            self._files[table, day] = file
            self._owners[file] = []
        return self._files[table, day]

    def write_rows(self) -> int:
        """Write the files and make them part of their tables; returns their bytes."""
        written = 0
        added: dict[Table, list[Added]] = {}
        for (table, day), file in self._files.items():
            data, parts = file.finish()
            self.place.put(file.path, data)
            written += len(data)
            within = file.path.partition("/")[2]
            added.setdefault(table, []).append(Added(within, len(data), file.stats, {DAY: day}))
            for part, run_id in zip(parts, self._owners[file], strict=True):
                ready = self.ready[run_id]
                ready.detail = replace(ready.detail, parts=(*ready.detail.parts, part))
        for table, files in added.items():
            opened = self.place.create(table.value, TABLE_SCHEMAS[table], [DAY])
            self.place.commit(opened, TABLE_SCHEMAS[table], files)
        return written

    def write_runs(self) -> int:
        """Make the runs visible; returns the bytes of what describes them."""
        written = 0

        def try_once() -> bool:
            nonlocal written
            table = RunTable.open(self.place)
            rows, data = self._merged(table)
            written = len(data)
            if not rows:
                return True
            self.place.put(rows[0].detail_path, data)
            fresh = pa.Table.from_pylist(
                [{name: getattr(row, name) for name in RUNS_SCHEMA.names} for row in rows],
                schema=RUNS_SCHEMA,
            )
            return table.replace(fresh)

        if not retried(try_once, _TRIES):
            raise PlaceError(
                f"{self.place.address} is being written by many at once: run the same command "
                "again; it goes on where it stopped.",
                place=self.place.address,
            )
        return written

    def _merged(self, table: RunTable) -> tuple[list[PublishedRun], bytes]:
        """The rows to commit, and their details one after the other."""
        known = {row.id: row for row in of_rows(table.rows())}
        path = f"{DETAILS}/{fresh_token()}"
        rows, data = [], bytearray()
        for run_id, ready in self.ready.items():
            there = known.get(run_id)
            before = read_detail(self.place, there) if there is not None else None
            detail = _joined(ready.detail, before) if before else ready.detail
            if detail is None:
                continue  # another publisher was first, with the same or more
            packed = detail.packed()
            rows.append(
                replace(
                    ready.row,
                    editions=tuple(sorted({note.edition for note in detail.ranks})),
                    ranks=len(detail.ranks),
                    steps=max(ready.row.steps, there.steps if there else 0),
                    detail_path=path,
                    detail_offset=len(data),
                    detail_length=len(packed),
                    detail_crc=zlib.crc32(packed),
                )
            )
            data += packed
        return rows, bytes(data)


def _committed(batch: _Batch, outcome: Outcome) -> _Batch:
    """Publish a batch; returns the next, empty one."""
    if batch.ready:
        outcome.bytes_written += batch.write_rows() + batch.write_runs()
        outcome.published += [ready.row.name for ready in batch.ready.values()]
    return _Batch(batch.place)


def _joined(new: Detail, old: Detail) -> Detail | None:
    """Each rank from whoever holds more of it; None if the place has all that is new."""
    kept = {note.rank: (note, old) for note in old.ranks}
    for note in new.ranks:
        there = kept.get(note.rank)
        if there is None or list(Ranges(note.held).without(Ranges(there[0].held))):
            kept[note.rank] = (note, new)
    is_later = old.state == State.LIVE.value != new.state
    if all(source is old for _, source in kept.values()) and not is_later:
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


def _row(run: Run, name: str, state: State, stamp: str, edition: str) -> PublishedRun:
    from ampwatch import __version__

    info = run.info
    return PublishedRun(
        id=info.id,
        name=name,
        source=info.source,
        host=info.host,
        started=_time(info.started_ns),
        last_time=_time(run.last_time_ns),
        state=state.value,
        steps=_steps(run),
        ranks=len(run.ranks),
        world_size=info.world_size,
        config=json.dumps(json.loads(info.to_json())["config"]),
        editions=(edition,),
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
