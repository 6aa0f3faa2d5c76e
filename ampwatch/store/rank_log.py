"""Read one rank's log: the compacted base, if there is one, and the live batches after it.

Rows come in the log's order and are never read before their bytes are verified. `refresh` reads
only the index records that are new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import pyarrow as pa

from ampwatch.errors import FutureRunError, RunError
from ampwatch.files import version_of
from ampwatch.ranges import Ranges
from ampwatch.rows import SCHEMAS, TABLES, EventKind, Table
from ampwatch.store import locks
from ampwatch.store.compacted_log import CompactedLog
from ampwatch.store.layout import BASE_FILE, asides_in
from ampwatch.store.live_log import LiveLog
from ampwatch.store.run_info import CopyNote, what_lacks

_NEWEST_ROWS = 64  # of a foreign log some may tell no time
_LOAD_TRIES = 20

T = TypeVar("T")


class RankRows(Protocol):
    """One rank's rows in the order of its log: of a `RankLog`, or of a run that was published."""

    @property
    def rank(self) -> int:
        """Whose rows they are."""

    @property
    def cuts(self) -> int:
        """Grows when damage was found: positions of rows read before no longer hold."""

    @property
    def ended(self) -> bool:
        """Whether the newest attempt wrote its end mark."""

    @property
    def marks(self) -> tuple[tuple[int, str], ...]:
        """The events that start and end attempts, as (sequence, kind)."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences: what was cut off."""

    @property
    def last_time_ns(self) -> int:
        """The latest time in the newest rows."""

    def refresh(self) -> bool:
        """Take in what was appended; True if there is more."""

    def rows(self, table: Table) -> int:
        """How many rows of a table are known."""

    def read(
        self, table: Table, names: Sequence[str], start: int = 0, stop: int | None = None
    ) -> pa.Table:
        """The columns `names` of the rows from `start` on, or up to `stop`."""

    def row_ends(self, table: Table | None = None) -> np.ndarray:
        """How many rows of a table, or of all, stand before each of some places in the log."""

    def attempts(self, table: Table, start: int, stop: int) -> np.ndarray:
        """The attempt, from 0, that each row from `start` to `stop` belongs to."""

    def verify(self) -> None:
        """Check every byte that was not checked yet; what is found shows in `notes`."""


class RankLog:
    """One rank's rows, in the order of its log."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.rank = rank
        self.folder = folder
        self._whole: dict[Table, pa.Table] = {}  # what is held; see `hold`
        self._load()

    # --- what there is ---------------------------------------------------------------------------

    def refresh(self) -> bool:
        """Take in what was appended; True if there is more. After a compaction, read anew."""
        if self._stamp() != self._base_stamp:
            self._load()
            return True
        return self._extend()

    @property
    def generation(self) -> int:
        """Grows by one with each compaction: positions of rows read before still hold."""
        return self._base.generation if self._base else 0

    @property
    def cuts(self) -> int:
        """Grows when damage was found: positions of rows read before no longer hold."""
        return self._live.cuts + len(self._base_damage())

    def rows(self, table: Table) -> int:
        """How many rows of a table are known."""
        return self._base_rows(table) + self._live.rows(table)

    @property
    def records(self) -> np.ndarray:
        """The live batches' records, in the index's order."""
        return self._live.records

    @property
    def ended(self) -> bool:
        """Whether the newest attempt wrote its end mark."""
        in_order = sorted(self._marks, key=lambda mark: mark[0])  # stable within a batch
        return bool(in_order) and in_order[-1][1] == EventKind.ENDED.value

    @property
    def marks(self) -> tuple[tuple[int, str], ...]:
        """The events that start and end attempts, as (sequence, kind)."""
        return tuple(self._marks)

    def read(
        self, table: Table, names: Sequence[str], start: int = 0, stop: int | None = None
    ) -> pa.Table:
        """The columns `names` of the rows from `start` on, or up to `stop`."""
        return self._undisturbed(lambda: self._read(table, names, start, stop))

    def hold(self) -> None:
        """Read every table now and keep it while the log stands still: who needs all reads once."""
        self._whole = {table: self.read(table, SCHEMAS[table].names) for table in TABLES}

    def newest(self, table: Table, names: Sequence[str], most: int) -> pa.Table:
        """The last rows that can be read, at most so many, though the log's end be damaged."""
        rows = self.read(table, names, max(0, self.rows(table) - most))
        if rows.num_rows or not self.rows(table):
            return rows
        self.verify()  # batch by batch back to the last good one would take for ever
        return self.read(table, names, max(0, self.rows(table) - most))

    def verify(self) -> None:
        """Check every byte that was not checked yet; what is found shows in `notes`."""
        self._undisturbed(self._verify)

    def row_ends(self, table: Table | None = None) -> np.ndarray:
        """How many rows of a table, or of all, the first batch holds, the first two, and so on."""
        records = self.records
        if self._base is not None:
            records = np.concatenate([self._base.records, records])
        rows = records["rows"].astype(np.int64)
        if table is not None:
            rows[records["table"] != table.number] = 0
        ends: np.ndarray = np.cumsum(rows)
        return ends

    def attempts(self, table: Table, start: int, stop: int) -> np.ndarray:
        """The attempt, from 0, that each row from `start` to `stop` belongs to."""
        starts = sorted(number for number, kind in self._marks if kind == EventKind.STARTED.value)
        if len(starts) < 2:
            return np.zeros(stop - start, dtype=np.int64)
        return np.searchsorted(starts[1:], self._sequences(table, start, stop), side="right")

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences: what was cut off."""
        damage = {**self._damage, **self._live.notes}.values()
        return self._sentences((*damage, *self._base_damage(), *self._live.leftovers()))

    def lacks(self, note: CopyNote | None) -> tuple[str, ...]:
        """Sentences: which batches are not here, for a copy with what its recorder notes of it."""
        is_over = not locks.is_held(self.folder)
        bodies = list(what_lacks(self.held, note, is_over=is_over))
        if note is None and (asides := asides_in(self.folder)):  # a copy gets its batches again
            bodies.append(
                "its log was damaged when it was continued, so batches may be missing; what it "
                f"held until then is kept in {', '.join(asides)}"
            )
        return self._sentences(bodies)

    @property
    def last_time_ns(self) -> int:
        """The latest time in the newest rows."""
        newest = [0]
        for table in (Table.STEPS, Table.EVENTS, Table.DEVICES):
            times = self.newest(table, ["time_ns"], _NEWEST_ROWS)
            newest += times.column(0).drop_null().to_pylist()  # a foreign log may tell no time
        return max(newest)

    # --- loading ---------------------------------------------------------------------------------

    def _stamp(self) -> tuple[int, int, int] | None:
        """What tells one base.json from another."""
        return version_of(self.folder / BASE_FILE)

    def _undisturbed(self, act: Callable[[], T]) -> T:
        """What `act` returns when no compaction swapped the files under it."""
        for _ in range(_LOAD_TRIES):
            if self._stamp() != self._base_stamp:
                self._load()
            done = act()
            if self._stamp() == self._base_stamp:
                return done
        raise RunError(f"{self.folder} changes too fast to be read.", path=self.folder)

    def _load(self) -> None:
        """Read base and index as they belong together, though a compaction may swap them."""
        for _ in range(_LOAD_TRIES):
            self._base_stamp = self._stamp()
            self._damage: dict[str, str] = {}
            self._base = self._load_base()
            self._start()
            if self._stamp() == self._base_stamp:
                return
        raise RunError(f"{self.folder} changes too fast to be read.", path=self.folder)

    def _load_base(self) -> CompactedLog | None:
        try:
            return CompactedLog.load(self.folder)
        except FutureRunError:
            raise
        except RunError as problem:
            self._damage["base"] = str(problem)
            return None

    def _start(self) -> None:
        self._whole = {}
        self._live = LiveLog(self.folder, self.generation)
        self._marks = list(self._base.marks) if self._base else []
        self._events_seen = self._base_rows(Table.EVENTS)
        # The numbers of the batches that are here; for others to read only.
        self.held = Ranges.of_numbers(self._base.sequences) if self._base else Ranges()
        self._extend()

    def _extend(self) -> bool:
        """Take in the batches that are new, and what they say about attempts and the end."""
        fresh = self._live.extend()
        for sequence in fresh["sequence"].tolist():
            self.held.add(sequence)
        if len(fresh):
            self._whole = {}
            self._read_marks()
        return len(fresh) > 0

    def _read_marks(self) -> None:
        """Where attempts start, and whether the last one ended, from the events that are new."""
        total = self.rows(Table.EVENTS)
        if total <= self._events_seen:
            return
        kinds = self.read(Table.EVENTS, ["kind"], self._events_seen).column("kind").to_pylist()
        numbers = self._sequences(Table.EVENTS, self._events_seen, total).tolist()
        self._events_seen += len(kinds)
        self._marks += [
            (number, kind)
            for number, kind in zip(numbers, kinds, strict=False)
            if kind in (EventKind.STARTED.value, EventKind.ENDED.value)
        ]

    # --- within ----------------------------------------------------------------------------------

    def _read(self, table: Table, names: Sequence[str], start: int, stop: int | None) -> pa.Table:
        base_rows = self._base_rows(table)
        stop = self.rows(table) if stop is None else stop
        if table in self._whole:
            return self._whole[table].select(names).slice(start, max(0, stop - start))
        schema = pa.schema([SCHEMAS[table].field(name) for name in names])
        parts = [pa.Table.from_batches([], schema)]
        if self._base is not None and start < base_rows:
            parts.append(self._base.read(table, names, start, min(stop, base_rows)))
        if stop > base_rows:
            first = max(0, start - base_rows)
            parts.append(self._live.read(table, names, first, stop - base_rows))
        return pa.concat_tables([part.replace_schema_metadata() for part in parts])

    def _sequences(self, table: Table, start: int, stop: int) -> np.ndarray:
        """The sequence number of the batch that each row from `start` to `stop` came in."""
        base_rows = self._base_rows(table)
        parts = []
        if self._base is not None and start < base_rows:
            old = self._base.records
            mine = old[old["table"] == table.number]
            parts.append(_by_row(mine, start, min(stop, base_rows)))
        if stop > base_rows:
            first = max(0, start - base_rows)
            parts.append(_by_row(self._live.batches(table), first, stop - base_rows))
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def _verify(self) -> None:
        for table in TABLES:
            if self._base is not None:
                self._base.verify(table, SCHEMAS[table].names)
            self._live.verify(table)

    def _base_rows(self, table: Table) -> int:
        return self._base.rows(table) if self._base else 0

    def _base_damage(self) -> list[str]:
        base = self._base
        damaged = [table for table in TABLES if base is not None and base.damaged(table)]
        return [
            f"{table.value} is damaged in its compacted part after row {self._base_rows(table)}; "
            f"the rest of that part is left out"
            for table in damaged
        ]

    def _sentences(self, bodies: Iterable[str]) -> tuple[str, ...]:
        return tuple(f"Rank {self.rank}: {body.rstrip('.')}." for body in bodies)


def _by_row(records: np.ndarray, start: int, stop: int) -> np.ndarray:
    """The sequence number of each row of a rank's log, from `start` to `stop` of these batches."""
    ends = np.cumsum(records["rows"].astype(np.int64))
    last = int(ends[-1]) if len(ends) else 0
    places = np.searchsorted(ends, np.arange(start, min(stop, last)), side="right")
    numbers: np.ndarray = records["sequence"].astype(np.int64)[places]
    return numbers
