"""A table to which rows are only added, once per key, by any number of concurrent writers.

A key is a run's id, its stamp and the rules. A writer reads which keys exist, and commits only if
nobody committed since; otherwise it reads again. So two writers that judge the same runs store them
once, and a killed writer leaves only what it committed. Files are immutable, so the keys of each
are read once.
"""

from __future__ import annotations

import datetime as dt
import io
import json
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import parquet

from ampwatch.errors import PlaceError
from ampwatch.fleet.place import Added, Place, retried
from ampwatch.fleet.row_tables import DAY
from ampwatch.fleet.runs_delta_table import fresh_token

if TYPE_CHECKING:
    from deltalake import DeltaTable

Key = tuple[str, str, str]  # run, stamp, rules
KEY_NAMES = ("run_id", "stamp", "rules")
_KEYS = list(KEY_NAMES)
_TRIES = 60  # to be the one who commits
_MANY_FILES = 64  # are made few when there are more


class KeyedTable:
    """A Delta table of a place with keys; in files by `day` if its schema has that column."""

    def __init__(self, place: Place, name: str, schema: pa.Schema) -> None:
        self.place = place
        self.name = name
        self.schema = schema
        self._partition = [DAY] if DAY in schema.names else []
        self._keys: dict[str, frozenset[Key]] = {}  # of each file that was asked

    def keys(self) -> set[Key]:
        """The keys in the table now; none if the place does not have the table."""
        table = self.place.table(self.name)
        return set() if table is None else self._keys_of(table)

    def read(self, columns: Sequence[str]) -> pa.Table:
        """These columns of all rows of the table."""
        table = self.place.table(self.name)
        if table is None:
            return pa.schema([self.schema.field(name) for name in columns]).empty_table()
        with self.place.trouble("read"):
            return table.to_pyarrow_dataset().to_table(columns=list(columns))

    def add(self, keys: Iterable[Key], rows_of: Callable[[set[Key]], pa.Table]) -> set[Key]:
        """Add those rows whose keys are not in the table; return their keys."""
        wanted, added = set(keys), set[Key]()

        def try_once() -> bool:
            table = self.place.create(self.name, self.schema, self._partition)
            added.clear()
            added.update(wanted - self._keys_of(table))
            if not added:
                return True
            files = [self._put(rows) for rows in self._by_day(rows_of(added))]
            return self.place.commit(table, self.schema, files, alone=True)

        if wanted and not retried(try_once, _TRIES):
            raise PlaceError(
                f"{self.place.address} is being written by many at once: run the same command "
                "again; it goes on where it stopped.",
                place=self.place.address,
            )
        return added

    def tidy(self) -> None:
        """Join many small files of the table; give up if another writer commits meanwhile."""
        from deltalake.exceptions import CommitFailedError

        table = self.place.table(self.name)
        if table is None or len(table.file_uris()) <= _MANY_FILES:
            return
        with self.place.trouble("written"):
            try:
                table.optimize.compact()
            except CommitFailedError:  # the next call does it
                return

    def _keys_of(self, table: DeltaTable) -> set[Key]:
        found: dict[str, frozenset[Key]] = {}
        with self.place.trouble("read"):
            for fragment in table.to_pyarrow_dataset().get_fragments():
                path = str(fragment.path)
                found[path] = self._keys.get(path) or _keys_in(fragment.to_table(columns=_KEYS))
        self._keys = found
        return set().union(*found.values())

    def _by_day(self, rows: pa.Table) -> list[tuple[dt.date | None, pa.Table]]:
        if not self._partition:
            return [(None, rows)]
        import pyarrow.compute as pc

        days = sorted(set(rows.column(DAY).to_pylist()))
        return [(day, rows.filter(pc.equal(rows.column(DAY), pa.scalar(day)))) for day in days]

    def _put(self, one: tuple[dt.date | None, pa.Table]) -> Added:
        day, rows = one
        folder = f"{DAY}={day.isoformat()}/" if day else ""
        path = f"{folder}part-{fresh_token()}.parquet"
        rows = rows.drop_columns(self._partition).sort_by("run_id")
        sink = io.BytesIO()
        parquet.write_table(rows, sink, compression="zstd")
        self.place.put(f"{self.name}/{path}", sink.getvalue())
        partition = {DAY: day.isoformat()} if day else {}
        return Added(path, len(sink.getvalue()), _stats(rows), partition)


def _keys_in(rows: pa.Table) -> frozenset[Key]:
    return frozenset(zip(*(rows.column(name).to_pylist() for name in KEY_NAMES), strict=True))


def _stats(rows: pa.Table) -> str:
    ids = rows.column("run_id")
    first, last = (ids[at].as_py() for at in (0, rows.num_rows - 1))
    bounds = {"minValues": {"run_id": first}, "maxValues": {"run_id": last}}
    return json.dumps({"numRecords": rows.num_rows, **bounds})
