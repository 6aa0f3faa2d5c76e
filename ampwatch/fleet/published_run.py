"""A published run, read like one on disk; only the requested columns are fetched."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa

from ampwatch.errors import PlaceError
from ampwatch.fleet.details import Detail, RankNote, unpacked
from ampwatch.fleet.place import Place
from ampwatch.fleet.row_files import Fetch, Part, read_part
from ampwatch.fleet.runs_delta_table import PublishedRun, find_published
from ampwatch.fleet.tables import published_names, stored
from ampwatch.rows import SCHEMAS, EventKind, Table
from ampwatch.store.public_rows import ATTEMPT
from ampwatch.store.run import Run
from ampwatch.store.run_info import RunInfo


class Source(Protocol):
    """What published bytes are read from: a place, or what reads it for many runs at once."""

    @property
    def address(self) -> str:
        """How the place is shown."""
        ...

    def get(self, path: str, start: int, length: int) -> bytes:
        """A range of an object."""
        ...


def open_published(address: str) -> Run:
    """Open `PLACE#NAME`; the name may be the beginning of the run's id."""
    place_text, _, name = address.rpartition("#")
    place = Place(place_text)
    return open_row(place, find_published(place, name))


def open_row(source: Source, row: PublishedRun, detail: Detail | None = None) -> Run:
    """Open a run that a row of `runs` names; its detail, if it was read already."""
    files = PublishedFiles(source, detail or read_detail(source, row))
    return Run(Path(f"{source.address}#{row.name}"), files)


def read_detail(source: Source, row: PublishedRun) -> Detail:
    """What it takes to read a run, in one request."""
    data = source.get(row.detail_path, row.detail_offset, row.detail_length)
    return detail_in(data, row, source)


def detail_in(data: bytes, row: PublishedRun, place: Source) -> Detail:
    """The detail in the bytes that its row names; PlaceError if they are others."""
    if zlib.crc32(data) != row.detail_crc:
        raise PlaceError(
            f"What was published of {row.name} is damaged: publish the run again from its folder.",
            place=place.address,
        )
    return unpacked(data, row.name)


class PublishedFiles:
    """The files of a published run; see `store.RunFiles`."""

    def __init__(self, source: Source, detail: Detail) -> None:
        self._source = source
        self._detail = detail
        self._notes = {note.rank: note for note in self._detail.ranks}

    def info(self) -> RunInfo:
        """Its run.json, as it was published."""
        return RunInfo.from_json(self._detail.info)

    def ranks(self) -> tuple[int, ...]:
        """The ranks that were published."""
        return tuple(sorted(self._notes))

    def log(self, rank: int) -> PublishedLog:
        """A rank's rows."""
        parts = [part for part in self._detail.parts if part.rank == rank]
        return PublishedLog(self._source, self._notes[rank], parts)

    def lacks(self, rank: int) -> tuple[str, ...]:
        """What was missing from the log when it was published."""
        return self._notes[rank].lacks

    def is_there(self) -> bool:
        """Always true: a missing run is noticed when it is read."""
        return True

    def grows(self) -> bool:
        """Never: a later publication is another state, to be opened anew."""
        return False

    def is_written(self) -> bool:
        """Never: trainers do not write to a place."""
        return False

    def is_abandoned(self, host: str) -> bool:  # noqa: ARG002
        """Whether the run was known to be lost when it was published."""
        return self._detail.state == "lost"


class PublishedLog:
    """One rank's rows, in the order of its log; see `store.RankRows`."""

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
        """Does nothing; open the run anew to see what was published since."""
        return False

    def rows(self, table: Table) -> int:
        """How many rows of a table there are."""
        return sum(part.rows for part in self._parts[table])

    def read(
        self, table: Table, names: Sequence[str], start: int = 0, stop: int | None = None
    ) -> pa.Table:
        """The columns `names` of the rows from `start` on, or up to `stop`."""
        schema = pa.schema([SCHEMAS[table].field(name) for name in names])
        pieces = [pa.Table.from_batches([], schema)]
        for rows, first, last in self._stretches(table, published_names(names), start, stop):
            pieces.append(stored(table, rows.slice(first, last - first), names))
        return pa.concat_tables(pieces)

    def row_ends(self, table: Table | None = None) -> np.ndarray:
        """Row counts, of one table or all, at some positions in the log."""
        if table is not None:
            return np.array(self._row_ends[table.value], np.int64)
        ends: np.ndarray = sum((self.row_ends(one) for one in Table), np.zeros(1, np.int64))
        return ends

    def attempts(self, table: Table, start: int, stop: int) -> np.ndarray:
        """The attempt, from 0, that each row from `start` to `stop` belongs to."""
        begun = sum(kind == EventKind.STARTED.value for _, kind in self.marks)
        if begun < 2:
            return np.zeros(stop - start, dtype=np.int64)
        found = [
            rows.column(ATTEMPT).slice(first, last - first).to_numpy()
            for rows, first, last in self._stretches(table, [ATTEMPT], start, stop)
        ]
        return np.concatenate([np.zeros(0, np.int64), *found]).astype(np.int64)

    def verify(self) -> None:
        """Every part is checked when it is fetched."""

    def _stretches(
        self, table: Table, names: Sequence[str], start: int, stop: int | None
    ) -> list[tuple[pa.Table, int, int]]:
        """The parts that hold these rows, and which rows of each are requested."""
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
