"""The table `runs` of a place: one row per run. A run is published once its row exists.

Its files are few and short: a commit that replaces a row, or finds many small files, rewrites their
rows into one file.
"""

from __future__ import annotations

import datetime as dt
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from ampwatch.diagnosis.case import NATIVE
from ampwatch.diagnosis.findings import CUT_OFF, ENDED
from ampwatch.errors import NotInPlaceError, PlaceError
from ampwatch.fleet.place import Added, Place
from ampwatch.follow import State

if TYPE_CHECKING:
    from deltalake import DeltaTable

# Files up to this size, some hundred runs, become one at each commit; larger ones when those that
# they are merged with are a quarter of them, so that a row is written anew a few times in all.
_SMALL_BYTES = 64 << 10
_MERGED_WITH = 4

# Opening a Delta table takes 12 to 30 requests. Beside it stands which files it had at which
# version; that holds if its log, which one request lists, has no later commit.
NOTE = "details/runs.json"

RUNS = "runs"
RUNS_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string()),
        pa.field("name", pa.string()),  # of its folder, when it was published
        pa.field("source", pa.string()),
        pa.field("host", pa.string()),
        pa.field("started", pa.timestamp("us", "UTC")),
        pa.field("last_time", pa.timestamp("us", "UTC")),
        pa.field("state", pa.string()),  # live, ended or lost, when it was published
        pa.field("steps", pa.int64()),
        pa.field("ranks", pa.int32()),
        pa.field("world_size", pa.int32()),
        pa.field("config", pa.string()),  # as JSON
        pa.field("tags", pa.list_(pa.string())),
        pa.field("note", pa.string()),
        pa.field("editions", pa.list_(pa.string())),  # that make up its rows
        pa.field("published", pa.timestamp("us", "UTC")),
        pa.field("publisher", pa.string()),  # the host that published it
        pa.field("ampwatch", pa.string()),  # the version that published it
        pa.field("stamp", pa.string()),  # tells one state of a run from another
        pa.field("signature", pa.string()),  # what the run is made of; null where it does not tell
        # Where what it takes to read the run is: a range of an object beside the tables.
        pa.field("detail_path", pa.string()),
        pa.field("detail_offset", pa.int64()),
        pa.field("detail_length", pa.int64()),
        pa.field("detail_crc", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class PublishedRun:
    """A row of the table `runs`: one published run."""

    id: str
    name: str
    source: str
    host: str
    started: dt.datetime | None
    last_time: dt.datetime | None
    state: str
    steps: int
    ranks: int
    world_size: int
    config: str
    tags: tuple[str, ...]
    note: str
    editions: tuple[str, ...]
    published: dt.datetime
    publisher: str
    ampwatch: str
    stamp: str
    signature: str | None
    detail_path: str
    detail_offset: int
    detail_length: int
    detail_crc: int

    @property
    def state_words(self) -> str:
        """How the run stood when it was published; logs of other tools have no end mark to miss."""
        if self.state != State.LOST.value:
            return self.state
        return CUT_OFF if self.source == NATIVE else ENDED


_NAMES = tuple(one.name for one in fields(PublishedRun))
assert tuple(RUNS_SCHEMA.names) == _NAMES


class RunTable:
    """The table `runs` of a place, as of when it was opened."""

    def __init__(self, place: Place, files: Sequence[Added], table: DeltaTable | None = None):
        self.place = place
        self._table = table  # None for those who only read
        self._files = files
        self._rows: dict[str, pa.Table] = {}

    @classmethod
    def open(cls, place: Place) -> RunTable:
        """Open the table `runs` to read; PlaceError if nothing was ever published to the place."""
        files = _noted_files(place)
        return cls.to_write(place) if files is None else cls(place, files)

    @classmethod
    def to_write(cls, place: Place) -> RunTable:
        """Open the table `runs` to read and to replace rows."""
        table = place.table(RUNS)
        if table is None:
            raise PlaceError(
                f"{place.address} holds no runs: nothing was published there. `ampwatch publish "
                f"RUN {place.address}` publishes one.",
                place=place.address,
            )
        with place.trouble("read"):
            actions = pa.table(table.get_add_actions(flatten=True))
        paths, sizes = (actions.column(name).to_pylist() for name in ("path", "size_bytes"))
        return cls(place, [Added(*one) for one in zip(paths, sizes, strict=True)], table)

    def rows(self) -> pa.Table:
        """All rows of `runs`, the newest run first."""
        found = pa.concat_tables([RUNS_SCHEMA.empty_table(), *map(self._rows_of, self._files)])
        order = pc.sort_indices(found, sort_keys=[("started", "descending"), ("name", "ascending")])
        return found.take(order)

    def replace(self, fresh: pa.Table) -> bool:
        """Replace the rows of `runs` with these ids; False if another writer committed first."""
        ids = fresh.column("id").combine_chunks()
        held = {one.path: self._rows_of(one) for one in self._files}
        old = [one for one in self._files if _holds_any(held[one.path], ids)]
        old += _to_merge([one for one in self._files if one not in old])
        kept = [_without(held[one.path], ids) for one in old]
        merged = pa.concat_tables([*kept, fresh]).sort_by("started")
        sink = io.BytesIO()
        parquet.write_table(merged, sink, compression="zstd")
        path = f"part-{fresh_token()}.parquet"
        self.place.put(f"{RUNS}/{path}", sink.getvalue())
        added = Added(path, len(sink.getvalue()), _stats(merged))
        assert self._table is not None, "opened to read"
        if not self.place.commit(self._table, RUNS_SCHEMA, [added], old, alone=True):
            return False
        files = [*(one for one in self._files if one not in old), added]
        _note_files(self.place, self._table.version() + 1, files)
        return True

    def _rows_of(self, one: Added) -> pa.Table:
        if one.path not in self._rows:
            data = self.place.get(f"{RUNS}/{one.path}", 0, one.size)
            try:
                found = parquet.read_table(pa.BufferReader(data), schema=RUNS_SCHEMA)
            except (pa.ArrowException, OSError, ValueError) as problem:
                raise PlaceError(
                    f"{RUNS}/{one.path} in {self.place.address} is damaged: restore an earlier "
                    "version of the table.", place=self.place.address,
                ) from problem  # fmt: skip
            self._rows[one.path] = found
        return self._rows[one.path]


def list_published(place: Place | str) -> list[PublishedRun]:
    """The runs in the table `runs` of a place, the newest first."""
    place = place if isinstance(place, Place) else Place(place)
    return of_rows(RunTable.open(place).rows())


def of_rows(rows: pa.Table) -> list[PublishedRun]:
    """The rows of `runs` as objects."""
    lists = ("editions", "tags")
    return [
        PublishedRun(**row | {name: tuple(row[name]) for name in lists}) for row in rows.to_pylist()
    ]


def find_published(place: Place, name: str) -> PublishedRun:
    """The row of `runs` with that name, or whose id begins so.

    NotInPlaceError if there is none, or several.
    """
    rows = RunTable.open(place).rows()
    wanted = pc.or_(
        pc.equal(rows.column("name"), name),
        pc.starts_with(rows.column("id"), name) if _may_be_id(name) else pa.scalar(value=False),
    )
    found = of_rows(rows.filter(wanted))
    if len(found) == 1:
        return found[0]
    if not found:
        raise NotInPlaceError(
            f"{place.address} has no run {name!r}. `ampwatch runs {place.address}` lists "
            f"{rows.num_rows:,}.",
            place=place.address,
        )
    ids = ", ".join(f"#{run.id[:8]}" for run in found[:5])
    raise NotInPlaceError(
        f"{place.address} has {len(found)} runs named {name!r}: say which by the beginning of its "
        f"id, newest first {ids}.",
        place=place.address,
    )


def _to_merge(files: Sequence[Added]) -> list[Added]:
    """The files of `runs` to merge: small ones, compared with the smaller ones together."""
    found: list[Added] = []
    for one in sorted(files, key=lambda one: one.size):
        if one.size > max(_SMALL_BYTES, _MERGED_WITH * sum(other.size for other in found)):
            break
        found.append(one)
    return found


def _noted_files(place: Place) -> list[Added] | None:
    """The noted list of the files of `runs`, if it is still current."""
    try:
        noted = json.loads(place.get_whole(NOTE) or b"{}")
        version = int(noted["version"])
        files = [Added(str(path), int(size)) for path, size in noted["files"]]
    except (ValueError, KeyError, TypeError):
        return None
    return None if place.has_commit_after(RUNS, version) else files


def _note_files(place: Place, version: int, files: Sequence[Added]) -> None:
    noted = {"version": version, "files": [(one.path, one.size) for one in files]}
    place.put(NOTE, json.dumps(noted).encode())


def fresh_token() -> str:
    """A unique name for a file or an edition."""
    import secrets

    return secrets.token_hex(8)


def _may_be_id(text: str) -> bool:
    return len(text) >= 6 and all(char in "0123456789abcdef" for char in text)


def _holds_any(rows: pa.Table, ids: pa.Array) -> bool:
    return bool(pc.any(pc.is_in(rows.column("id"), value_set=ids)).as_py())


def _without(rows: pa.Table, ids: pa.Array) -> pa.Table:
    return rows.filter(pc.invert(pc.is_in(rows.column("id"), value_set=ids)))


def _stats(rows: pa.Table) -> str:
    bounds = {name: pc.min_max(rows.column(name)).as_py() for name in ("id", "name")}
    return json.dumps(
        {
            "numRecords": rows.num_rows,
            "minValues": {name: bound["min"] for name, bound in bounds.items()},
            "maxValues": {name: bound["max"] for name, bound in bounds.items()},
        }
    )
