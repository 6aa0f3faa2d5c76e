"""Commits written rows to a place's tables, then makes their runs visible.

What another publisher committed meanwhile is merged: for each rank, the copy with more rows counts.
"""

from __future__ import annotations

import datetime as dt
import zlib
from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa

from ampwatch.errors import PlaceError
from ampwatch.fleet.place import Place, retried
from ampwatch.fleet.published_facts import is_retold
from ampwatch.fleet.publishing_worker import Written, WrittenRun
from ampwatch.fleet.row_tables import DAY, TABLE_SCHEMAS
from ampwatch.fleet.run_details import Detail, read_detail
from ampwatch.fleet.runs_delta_table import (
    RUNS_SCHEMA,
    PublishedRun,
    RunTable,
    fresh_token,
    of_rows,
)
from ampwatch.follow.liveness import State
from ampwatch.ranges import Ranges
from ampwatch.store.tags import RunTags

DETAILS = "details"
_TRIES = 60  # to be the one who commits to `runs`, which takes a tenth of a second


def commit(place: Place, written: Written) -> None:
    """Commit written rows, one transaction per table, then make their runs visible."""
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
    place: Place, table: RunTable, ready: Mapping[str, WrittenRun]
) -> tuple[list[PublishedRun], bytes]:
    """The rows of `runs` to commit and their details, merged with what others committed."""
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
                editions=detail.editions,
                ranks=len(detail.ranks),
                tags=told.tags,
                note=told.note,
                steps=max(one.row.steps, there.steps if there else 0),
                signature=one.row.signature or (there.signature if there else None),
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
    """The details to commit for a run: for each rank those of the copy with more rows.

    None if the place already has all new rows.
    """
    kept = {note.rank: (note, old) for note in old.ranks}
    for note in new.ranks:
        known = kept.get(note.rank)
        if known is None or list(Ranges(note.held).without(Ranges(known[0].held))):
            kept[note.rank] = (note, new)
    is_later = old.state == State.LIVE.value != new.state
    is_same = all(source is old for _, source in kept.values())
    if is_same and not is_later and not is_retold(told, there):
        return None
    parts = tuple(
        part
        for rank, (_, source) in sorted(kept.items())
        for part in source.parts
        if part.rank == rank
    )
    return replace(new, ranks=tuple(note for _, (note, _) in sorted(kept.items())), parts=parts)
