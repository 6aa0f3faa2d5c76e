"""Read one rank's log: the compacted base, if there is one, and the live batches after it.

Rows come in the log's order and are never read before their bytes are verified. `refresh` reads
only the index records that are new.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa

from ampwatch.codec import decode_stream, stream_head
from ampwatch.errors import CodecError, FutureRunError, RunError
from ampwatch.rows import SCHEMAS, TABLES, EventKind, Table
from ampwatch.store import locks
from ampwatch.store.base import BASE_FILE, Base
from ampwatch.store.index import (
    HEADER_BYTES,
    INDEX_FILE,
    RECORD,
    RECORD_BYTES,
    Header,
    Held,
    read_header,
    read_records,
)
from ampwatch.store.layout import table_file
from ampwatch.store.payloads import good_payloads, read_region

_NO_RECORDS = np.empty(0, RECORD)
_LOAD_TRIES = 20

T = TypeVar("T")


class RankLog:
    """One rank's rows, in the order of its log."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.rank = rank
        self._folder = folder
        self._load()

    # --- what there is ---------------------------------------------------------------------------

    def refresh(self) -> bool:
        """Take in what was appended; True if there is more. After a compaction, read anew."""
        if _stamp(self._folder) != self._base_stamp:
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
        return sum(note.startswith("live ") for note in self._notes) + len(self._base_damage())

    def rows(self, table: Table) -> int:
        """How many rows of a table are known."""
        live = self._live[table]
        return self._base_rows(table) + int(live["rows"].sum())

    @property
    def records(self) -> np.ndarray:
        """The live batches' records, in the index's order."""
        return self._records

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

    def verify(self) -> None:
        """Check every byte that was not checked yet; what is found shows in `notes`."""
        self._undisturbed(self._verify)

    def sequences(self, table: Table, start: int = 0) -> np.ndarray:
        """The sequence number of the batch that each row from `start` on came in."""
        records = self._live[table]
        numbers = _by_row(records)
        if self._base is not None:
            old = self._base.records
            old_numbers = _by_row(old[old["table"] == table.number])[: self._base_rows(table)]
            numbers = np.concatenate([old_numbers, numbers])
        return numbers[start:]

    def attempts(self, table: Table, start: int = 0) -> np.ndarray:
        """The attempt, from 0, that each row from `start` on belongs to."""
        starts = sorted(number for number, kind in self._marks if kind == EventKind.STARTED.value)
        if len(starts) < 2:
            return np.zeros(self.rows(table) - start, dtype=np.int64)
        return np.searchsorted(starts[1:], self.sequences(table, start), side="right")

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences: what was cut off and what is missing."""
        gaps = [
            f"Rank {self.rank}: batches {first} to {end - 1} are not in this copy."
            for first, end in self._held.gaps
        ]
        found = [*self._notes.values(), *gaps]
        found += [self._sentence(what) for what in (*self._base_damage(), *self._leftovers())]
        return tuple(found)

    @property
    def last_time_ns(self) -> int:
        """The latest time in the newest rows."""
        newest = [0]
        for table in (Table.STEPS, Table.EVENTS, Table.DEVICES):
            rows = self.rows(table)
            times = self.read(table, ["time_ns"], max(0, rows - 1))
            newest += times.column(0).to_pylist()
        return max(newest)

    # --- loading ---------------------------------------------------------------------------------

    def _undisturbed(self, act: Callable[[], T]) -> T:
        """What `act` returns when no compaction swapped the files under it."""
        for _ in range(_LOAD_TRIES):
            if _stamp(self._folder) != self._base_stamp:
                self._load()
            done = act()
            if _stamp(self._folder) == self._base_stamp:
                return done
        raise RunError(f"{self._folder} changes too fast to be read.", path=self._folder)

    def _load(self) -> None:
        """Read base and index as they belong together, though a compaction may swap them."""
        for _ in range(_LOAD_TRIES):
            self._base_stamp = _stamp(self._folder)
            self._notes: dict[str, str] = {}
            self._base = self._load_base()
            self._start()
            if _stamp(self._folder) == self._base_stamp:
                return
        raise RunError(f"{self._folder} changes too fast to be read.", path=self._folder)

    def _load_base(self) -> Base | None:
        try:
            return Base.load(self._folder)
        except FutureRunError:
            raise
        except RunError as problem:
            self._note("base", f"{problem}")
            return None

    def _start(self) -> None:
        self._records = _NO_RECORDS
        self._live = dict.fromkeys(TABLES, _NO_RECORDS)
        self._verified = dict.fromkeys(TABLES, 0)
        self._marks = list(self._base.marks) if self._base else []
        self._events_seen = self._base_rows(Table.EVENTS)
        self._held = Held(self._base.sequences) if self._base else Held()
        self._header = self._read_header()
        self._extend()
        self._read_marks()

    def _read_header(self) -> Header | None:
        path = self._folder / INDEX_FILE
        data = read_region(path, 0, HEADER_BYTES)
        header = read_header(data, path)
        if header is not None and header.generation < self.generation:
            return None  # a killed compaction left it; the base holds all of it
        if header is not None and header.generation > self.generation:
            self._note("base", f"its compacted part ({BASE_FILE}) is missing or an old one")
        if header is None and (data or self._has_streams()) and not self._base:
            what = "is damaged or not ours" if data else "is missing"
            self._note("index", f"its index {what}, so none of its batches can be trusted")
        return header

    def _has_streams(self) -> bool:
        return any(table_file(self._folder, table).exists() for table in TABLES)

    def _extend(self) -> bool:
        """Take in the records that are new, and what they say about attempts and the end."""
        if self._header is None:
            self._header = self._read_header()
        if self._header is None:
            return False
        path = self._folder / INDEX_FILE
        start = HEADER_BYTES + len(self._records) * RECORD_BYTES
        data = read_region(path, start)
        fresh = read_records(data)
        if not len(fresh):
            return False
        self._records = np.concatenate([self._records, fresh])
        for table in TABLES:
            mine = fresh[fresh["table"] == table.number]
            if len(mine) and f"live {table.value}" not in self._notes:
                self._live[table] = np.concatenate([self._live[table], mine])
        for sequence in fresh["sequence"].tolist():
            self._held.add(sequence)
        self._read_marks()
        return True

    def _base_damage(self) -> list[str]:
        base = self._base
        damaged = [table for table in TABLES if base is not None and base.damaged(table)]
        return [
            f"{table.value} is damaged in its compacted part after row {self._base_rows(table)}; "
            f"the rest of that part is left out"
            for table in damaged
        ]

    def _leftovers(self) -> list[str]:
        """What stands after the last good record: normal while a writer is at work."""
        if self._header is None:
            return []
        start = HEADER_BYTES + len(self._records) * RECORD_BYTES
        after = read_region(self._folder / INDEX_FILE, start, start + RECORD_BYTES)
        if len(after) == RECORD_BYTES and not len(read_records(after)):
            known = len(self._records)
            return [f"its index is damaged after {known} batches; what follows is left out"]
        torn = 0 < len(after) < RECORD_BYTES or any(self._unvouched(table) for table in TABLES)
        if torn and not locks.is_held(self._folder):
            return ["its last batch was cut off in mid-write and is left out"]
        return []

    def _unvouched(self, table: Table) -> bool:
        """Whether a table's file goes on after the last batch that the index knows."""
        mine = self._records[self._records["table"] == table.number]
        if self.generation and not len(mine):
            return False  # a killed compaction may have left the stream it compacted
        end = int((mine["offset"] + mine["length"]).max()) if len(mine) else 0
        beyond = read_region(table_file(self._folder, table), end, end + (1 << 16))
        return len(beyond) > (0 if end else len(stream_head(table)))

    def _read_marks(self) -> None:
        """Where attempts start, and whether the last one ended, from the events that are new."""
        total = self.rows(Table.EVENTS)
        if total <= self._events_seen:
            return
        kinds = self.read(Table.EVENTS, ["kind"], self._events_seen).column("kind").to_pylist()
        numbers = self.sequences(Table.EVENTS, self._events_seen).tolist()
        self._events_seen += len(kinds)
        self._marks += [
            (number, kind)
            for number, kind in zip(numbers, kinds, strict=False)
            if kind in (EventKind.STARTED.value, EventKind.ENDED.value)
        ]

    # --- live batches ----------------------------------------------------------------------------

    def _read(self, table: Table, names: Sequence[str], start: int, stop: int | None) -> pa.Table:
        base_rows = self._base_rows(table)
        stop = self.rows(table) if stop is None else stop
        schema = pa.schema([SCHEMAS[table].field(name) for name in names])
        parts = [pa.Table.from_batches([], schema)]
        if self._base is not None and start < base_rows:
            parts.append(self._base.read(table, names, start, min(stop, base_rows)))
        if stop > base_rows:
            first = max(0, start - base_rows)
            parts.append(self._read_live(table, names, first, stop - base_rows))
        return pa.concat_tables([part.replace_schema_metadata() for part in parts])

    def _verify(self) -> None:
        for table in TABLES:
            if self._base is not None:
                self._base.verify(table, SCHEMAS[table].names)
            self._cut_damaged(table)

    def _base_rows(self, table: Table) -> int:
        return self._base.rows(table) if self._base else 0

    def _read_live(self, table: Table, names: Sequence[str], start: int, stop: int) -> pa.Table:
        """Rows `start` to `stop` of the live batches, verified and validated."""
        records = self._live[table]
        ends = np.cumsum(records["rows"].astype(np.int64))
        first = int(np.searchsorted(ends, start, side="right"))
        last = min(len(records), int(np.searchsorted(ends, stop)) + 1)
        pieces, good = good_payloads(self._folder, table, records[first:last])
        if first + good < last:
            self._cut(table, first + good)
        found = self._decode(table, names, pieces)
        if found.num_rows != int(records["rows"][first : first + good].sum()):
            raise self._not_ours(table)
        if first <= self._verified[table]:
            self._verified[table] = max(self._verified[table], first + good)
        skipped = start - (int(ends[first - 1]) if first else 0)
        return found.slice(skipped, max(0, stop - start))

    def _decode(self, table: Table, names: Sequence[str], pieces: list[bytes]) -> pa.Table:
        """The batches' rows; a sound checksum says that bytes are as written, not by whom."""
        schema = pa.schema([SCHEMAS[table].field(name) for name in names])
        try:
            batches = [batch for piece in pieces for batch in decode_stream(table, piece, names)]
            found = pa.Table.from_batches([batch.select(names) for batch in batches], schema)
            found.validate(full=True)
        except (pa.ArrowException, CodecError) as problem:
            raise self._not_ours(table) from problem
        return found

    def _not_ours(self, table: Table) -> RunError:
        path = table_file(self._folder, table)
        return RunError(f"{path} holds rows that ampwatch did not write so.", path=path)

    def _cut_damaged(self, table: Table) -> None:
        start = self._verified[table]
        _, good = good_payloads(self._folder, table, self._live[table][start:])
        self._verified[table] = start + good
        if start + good < len(self._live[table]):
            self._cut(table, start + good)

    def _cut(self, table: Table, good: int) -> None:
        """Stop reading a table at its first damaged batch."""
        lost = self._live[table][good:]
        self._live[table] = self._live[table][:good]
        rows = int(lost["rows"].sum())
        self._note(
            f"live {table.value}",
            f"{table.value} is damaged at batch {int(lost['sequence'][0])}; {rows} rows from there "
            f"on are left out",
        )

    def _note(self, about: str, what: str) -> None:
        self._notes[about] = self._sentence(what)

    def _sentence(self, what: str) -> str:
        return f"Rank {self.rank}: {what.rstrip('.')}."


def _by_row(records: np.ndarray) -> np.ndarray:
    """Each row's sequence number."""
    return np.repeat(records["sequence"].astype(np.int64), records["rows"].astype(np.int64))


def _stamp(folder: Path) -> tuple[int, int, int] | None:
    """What tells one base.json from another."""
    try:
        found = (folder / BASE_FILE).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
