"""The table `runs` of a place, one row per run, and each run's detail, which its row points to.

A run is published once its row exists. The files of `runs` are few and short: a commit that
replaces a row, or finds many small files, rewrites their rows into one file. A run's detail is what
it takes to read the run: its run.json, each rank's log, where its rows are. It is one range of an
object beside the tables, so that `runs` itself stays short enough to be read whole.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from ampwatch.diagnosis.case import NATIVE
from ampwatch.diagnosis.findings import CUT_OFF, ENDED
from ampwatch.errors import NotInPlaceError, PlaceError
from ampwatch.fleet.place import Added, Extent, Place
from ampwatch.follow import State
from ampwatch.ranges import Range

if TYPE_CHECKING:
    from deltalake import DeltaTable

# Files up to this size, some hundred runs, become one at each commit; larger ones when those that
# they are merged with are a quarter of them, so that a row is written anew a few times in all.
_SMALL_BYTES = 64 << 10
_MERGED_WITH = 4

# Opening a Delta table takes 12 to 30 requests. Beside it stands which files it had at which
# version; that holds if its log, which one request lists, has no later commit.
DETAILS = "details"
NOTE = f"{DETAILS}/runs.json"
_MOST_BYTES = 256 << 20  # of a detail; of a run of 10 million steps and 1,024 ranks these are 60 MB

RUNS = "runs"
_TIME = pa.timestamp("us", "UTC")
_TYPES = {
    "str": pa.string(),
    "int": pa.int64(),
    "float": pa.float64(),
    "dt.datetime": _TIME,
    "tuple[str, ...]": pa.list_(pa.string()),
    "Mapping[str, Any]": pa.string(),  # as JSON
}
_OF_32_BITS = {"ranks", "world_size"}


def schema_of(row: type) -> pa.Schema:
    """The schema of a table whose rows are objects of this dataclass, a column a field."""
    types = {one.name: _TYPES[str(one.type).removesuffix(" | None")] for one in fields(row)}
    return pa.schema(types | dict.fromkeys(_OF_32_BITS & types.keys(), pa.int32()))


@dataclass(frozen=True, slots=True)
class PublishedRun:
    """A row of the table `runs`: one published run."""

    id: str
    name: str  # of its folder, when it was published
    source: str
    host: str
    started: dt.datetime | None
    last_time: dt.datetime | None
    state: str  # live, ended or lost, when it was published
    steps: int
    ranks: int
    world_size: int
    config: str  # as JSON
    tags: tuple[str, ...]
    note: str
    editions: tuple[str, ...]  # that make up its rows
    published: dt.datetime
    publisher: str  # the host that published it
    ampwatch: str  # the version that published it
    stamp: str  # tells one state of a run from another
    signature: str | None  # what the run is made of; None where it does not tell
    # Where its detail is: a range of an object beside the tables.
    detail_path: str
    detail_offset: int
    detail_length: int
    detail_crc: int

    @property
    def detail(self) -> Extent:
        """Where the run's detail is."""
        return Extent(self.detail_path, self.detail_offset, self.detail_length)

    @property
    def state_words(self) -> str:
        """How the run stood when it was published; logs of other tools have no end mark to miss."""
        if self.state != State.LOST.value:
            return self.state
        return CUT_OFF if self.source == NATIVE else ENDED


RUNS_SCHEMA = schema_of(PublishedRun)


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
        rows = pa.concat_tables([RUNS_SCHEMA.empty_table(), *map(self._rows_of, self._files)])
        order = pc.sort_indices(rows, sort_keys=[("started", "descending"), ("name", "ascending")])
        return rows.take(order)

    def replace(self, fresh: pa.Table) -> bool:
        """Replace the rows of `runs` with these ids; False if another writer committed first."""
        ids = fresh.column("id").combine_chunks()
        old = [file for file in self._files if pc.any(self._is_one_of(file, ids)).as_py()]
        old += _to_merge([file for file in self._files if file not in old])
        others = [self._rows_of(file).filter(pc.invert(self._is_one_of(file, ids))) for file in old]
        merged = pa.concat_tables([*others, fresh]).sort_by("started")
        added = self.place.put_rows(RUNS, merged, ["id", "name"], None)
        assert self._table is not None, "opened to read"
        if not self.place.commit(self._table, RUNS_SCHEMA, [added], old, alone=True):
            return False
        files = [*(file for file in self._files if file not in old), added]
        _note_files(self.place, self._table.version() + 1, files)
        return True

    def _is_one_of(self, file: Added, ids: pa.Array) -> pa.ChunkedArray:
        """Of each row of a file of `runs`, whether it has one of these ids."""
        return pc.is_in(self._rows_of(file).column("id"), value_set=ids)

    def _rows_of(self, file: Added) -> pa.Table:
        if file.path not in self._rows:
            data = self.place.get(f"{RUNS}/{file.path}", 0, file.size)
            try:
                rows = parquet.read_table(pa.BufferReader(data), schema=RUNS_SCHEMA)
            except (pa.ArrowException, OSError, ValueError) as problem:
                raise PlaceError(
                    f"{RUNS}/{file.path} in {self.place.address} is damaged: restore an earlier "
                    "version of the table.", place=self.place.address,
                ) from problem  # fmt: skip
            self._rows[file.path] = rows
        return self._rows[file.path]


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
            f"{place.address} has no run {name!r}. `ampwatch list {place.address}` lists "
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


def _may_be_id(text: str) -> bool:
    return len(text) >= 6 and all(char in "0123456789abcdef" for char in text)


# --- details --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Part:
    """Where in a Parquet file a row group of a rank is."""

    table: str
    rank: int
    path: str
    rows: int
    offset: int
    length: int
    crc: int
    footer: bytes
    edition: str = ""  # the publication that wrote them

    @property
    def extent(self) -> Extent:
        """The range of bytes in which the row group is."""
        return Extent(self.path, self.offset, self.length)


@dataclass(frozen=True, slots=True)
class RankNote:
    """The note in a run's detail on a rank's log, as it was when it was published."""

    rank: int
    edition: str
    held: tuple[Range, ...]  # numbers of its batches
    marks: tuple[tuple[int, str], ...]
    ended: bool
    last_time_ns: int
    notes: tuple[str, ...]
    lacks: tuple[str, ...]
    row_ends: Mapping[str, Sequence[int]]  # of each table, before some places in the log


@dataclass(frozen=True, slots=True)
class Detail:
    """The detail of a published run: its run.json, a note for each rank, where its rows are."""

    info: str  # the text of its run.json
    state: str  # live, ended or lost, when it was published
    ranks: tuple[RankNote, ...]
    parts: tuple[Part, ...]
    muted: tuple[tuple[str, str], ...] = ()  # codes of findings, each with the reason

    @property
    def editions(self) -> tuple[str, ...]:
        """The editions whose rows are the run's."""
        named = {note.edition for note in self.ranks} | {part.edition for part in self.parts}
        return tuple(sorted(named - {""}))

    def packed(self) -> bytes:
        """The detail as compressed bytes; `detail_of_bytes` reads them."""
        facts = asdict(self)
        for part in facts["parts"]:
            part["footer"] = base64.b64encode(part["footer"]).decode()
        return zlib.compress(json.dumps(facts, separators=(",", ":")).encode(), 6)


def detail_of_bytes(data: bytes, name: str) -> Detail:
    """The detail that `packed` made these bytes of; PlaceError if they are not a detail."""
    try:
        inflater = zlib.decompressobj()
        text = inflater.decompress(data, _MOST_BYTES)
        facts = json.loads(text)
        return Detail(
            info=str(facts["info"]),
            state=str(facts["state"]),
            ranks=tuple(_note(note) for note in facts["ranks"]),
            parts=tuple(_part(part) for part in facts["parts"]),
            muted=tuple((str(code), str(why)) for code, why in facts.get("muted", ())),
        )
    except (zlib.error, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise PlaceError(
            f"What was published of {name} is damaged: publish the run again from its folder."
        ) from problem


def _note(facts: Mapping[str, Any]) -> RankNote:
    values = _known(facts, RankNote)
    values["held"] = tuple((int(first), int(after)) for first, after in facts["held"])
    values["marks"] = tuple((int(number), str(kind)) for number, kind in facts["marks"])
    values["notes"] = tuple(map(str, facts["notes"]))
    values["lacks"] = tuple(map(str, facts["lacks"]))
    return RankNote(**values)


def _part(facts: Mapping[str, Any]) -> Part:
    return Part(**_known(facts, Part) | {"footer": base64.b64decode(facts["footer"])})


def _known(facts: Mapping[str, Any], kind: type[RankNote | Part]) -> dict[str, Any]:
    """The keys of a detail that this version knows; a later version may add others."""
    return {one.name: facts[one.name] for one in fields(kind) if one.name in facts}


def read_detail(place: Place, row: PublishedRun) -> Detail:
    """A run's detail, in one request; PlaceError if it is not the one that the run's row names."""
    data = place.get(*row.detail)
    if zlib.crc32(data) != row.detail_crc:
        raise PlaceError(
            f"What was published of {row.name} is damaged: publish the run again from its folder.",
            place=place.address,
        )
    return detail_of_bytes(data, row.name)
