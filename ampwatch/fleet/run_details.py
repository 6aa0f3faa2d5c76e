"""A published run's detail, needed to read it: its run.json, each rank's log, where its rows are.

Each run's detail is one range of an object beside the tables, so that `runs` itself stays short
enough to be read whole.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Protocol

from ampwatch.errors import PlaceError
from ampwatch.fleet.row_files import Part
from ampwatch.fleet.runs_delta_table import PublishedRun
from ampwatch.ranges import Range

_MOST_BYTES = 256 << 20  # of a run of 10 million steps and 1,024 ranks these are 60 MB


class Source(Protocol):
    """Where published bytes are read: a place, or what reads a place for many runs at once."""

    @property
    def address(self) -> str:
        """The place's address, as it is shown."""
        ...

    def get(self, path: str, start: int, length: int) -> bytes:
        """A range of an object in the place."""
        ...


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


def read_detail(source: Source, row: PublishedRun) -> Detail:
    """Read a run's detail from the place, in one request."""
    data = source.get(row.detail_path, row.detail_offset, row.detail_length)
    return detail_in(data, row, source)


def detail_in(data: bytes, row: PublishedRun, place: Source) -> Detail:
    """The detail in these bytes; PlaceError if they are not those that the run's row names."""
    if zlib.crc32(data) != row.detail_crc:
        raise PlaceError(
            f"What was published of {row.name} is damaged: publish the run again from its folder.",
            place=place.address,
        )
    return detail_of_bytes(data, row.name)
