"""Reads a published run like one on disk; only the requested columns are fetched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from ampwatch.diagnosis.column_arrays import integers
from ampwatch.fleet.place import Place
from ampwatch.fleet.row_files import Fetch, Part, read_part
from ampwatch.fleet.row_tables import published_names, stored_rows
from ampwatch.fleet.run_details import Detail, RankNote, Source, read_detail
from ampwatch.fleet.runs_delta_table import PublishedRun, find_published
from ampwatch.rows import SCHEMAS, EventKind, Table
from ampwatch.store.public_rows import ATTEMPT
from ampwatch.store.run import Run
from ampwatch.store.run_info import RunInfo


def open_published(address: str) -> Run:
    """Open the published run `PLACE#NAME`; the name may be the beginning of the run's id."""
    place_text, _, name = address.rpartition("#")
    place = Place(place_text)
    return open_row(place, find_published(place, name))


def open_row(source: Source, row: PublishedRun, detail: Detail | None = None) -> Run:
    """Open the published run of a row of `runs`; its detail is read unless given."""
    files = PublishedFiles(source, detail or read_detail(source, row))
    return Run(Path(f"{source.address}#{row.name}"), files)


class PublishedFiles:
    """The files of a published run, for its reader; see `store.RunFiles`."""

    def __init__(self, source: Source, detail: Detail) -> None:
        self._source = source
        self._detail = detail
        self._notes = {note.rank: note for note in self._detail.ranks}

    def info(self) -> RunInfo:
        """The published run's run.json."""
        return RunInfo.from_json(self._detail.info)

    def ranks(self) -> tuple[int, ...]:
        """The ranks of the run that were published."""
        return tuple(sorted(self._notes))

    def log(self, rank: int) -> PublishedLog:
        """The published rows of a rank."""
        parts = [part for part in self._detail.parts if part.rank == rank]
        return PublishedLog(self._source, self._notes[rank], parts)

    def lacks(self, rank: int) -> tuple[str, ...]:
        """What the rank's log lacked when it was published."""
        return self._notes[rank].lacks

    def is_there(self) -> bool:
        """Always true: that a published run was deleted shows when it is read."""
        return True

    def grows(self) -> bool:
        """Always false: a later publication is another state of the run, to be opened anew."""
        return False

    def is_written(self) -> bool:
        """Always false: no trainer writes to a published run."""
        return False

    def is_abandoned(self, host: str) -> bool:  # noqa: ARG002
        """Whether the run was known to be lost when it was published."""
        return self._detail.state == "lost"


class PublishedLog:
    """The published rows of one rank, in the order of its log; see `store.RankRows`."""

    cuts = 0

    def __init__(self, source: Source, note: RankNote, parts: Sequence[Part]) -> None:
        self.rank = note.rank
        self.ended = note.ended
        self.marks = note.marks
        self.notes = note.notes
        self.last_time_ns = note.last_time_ns
        self._source = source
        self._row_ends = note.row_ends
        self._parts: Mapping[Table, list[Part]] = {
            table: [part for part in parts if part.table == table.value] for table in Table
        }
        self._whole: dict[Part, bytes] = {}

    def refresh(self) -> bool:
        """Do nothing: to see what was published since, open the run anew."""
        return False

    def rows(self, table: Table) -> int:
        """How many published rows of a table there are."""
        return sum(part.rows for part in self._parts[table])

    def read(
        self, table: Table, names: Sequence[str], start: int = 0, stop: int | None = None
    ) -> pa.Table:
        """The columns `names` of the published rows from `start` on, or up to `stop`."""
        schema = pa.schema([SCHEMAS[table].field(name) for name in names])
        pieces = [pa.Table.from_batches([], schema)]
        for rows, first, last in self._stretches(table, published_names(names), start, stop):
            pieces.append(stored_rows(table, rows.slice(first, last - first), names))
        return pa.concat_tables(pieces)

    def row_ends(self, table: Table | None = None) -> np.ndarray:
        """The published row counts, of one table or all, at some positions in the log."""
        if table is not None:
            return np.array(self._row_ends[table.value], np.int64)
        ends: np.ndarray = sum((self.row_ends(one) for one in Table), np.zeros(1, np.int64))
        return ends

    def attempts(self, table: Table, start: int, stop: int) -> np.ndarray:
        """The attempt, from 0, that each published row from `start` to `stop` belongs to."""
        begun = sum(kind == EventKind.STARTED.value for _, kind in self.marks)
        if begun < 2:
            return np.zeros(stop - start, dtype=np.int64)
        found = [
            integers(rows.slice(first, last - first), ATTEMPT)
            for rows, first, last in self._stretches(table, [ATTEMPT], start, stop)
        ]
        return np.concatenate([np.zeros(0, np.int64), *found])

    def verify(self) -> None:
        """Do nothing: every published part is checked when it is fetched."""

    def _stretches(
        self, table: Table, names: Sequence[str], start: int, stop: int | None
    ) -> list[tuple[pa.Table, int, int]]:
        """The published parts that hold these rows, and which rows of each are requested."""
        stop = self.rows(table) if stop is None else stop
        found, before = [], 0
        for part in self._parts[table]:
            first, last = max(0, start - before), min(part.rows, stop - before)
            if first < last:
                rows = read_part(part, list(dict.fromkeys(names)), self._fetch(part), self._whole)
                found.append((rows, first, last))
            before += part.rows
        return found

    def _fetch(self, part: Part) -> Fetch:
        return lambda offset, length: self._source.get(part.path, offset, length)
