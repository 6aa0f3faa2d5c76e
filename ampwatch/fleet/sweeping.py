"""Deletes what no run of a place needs: rows and details of old editions, and of killed publishers.

A file that no run's detail names is removed from its table in a transaction, and deleted after it
has been out of the table for the safe age; until then, readers of an earlier version still work.
Files of a killed publisher are in no table, and are deleted when they are that old. The files of a
working publisher are younger.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

import pyarrow as pa

from ampwatch.errors import PlaceError
from ampwatch.fleet.place import Added, Listed, Place
from ampwatch.fleet.row_tables import DAY, TABLE_SCHEMAS
from ampwatch.fleet.runs_delta_table import (
    DETAILS,
    NOTE,
    RUNS,
    Detail,
    PublishedRun,
    list_published,
    read_detail,
)
from ampwatch.rows import TABLES, Table

SAFE_AGE = dt.timedelta(days=7)
LEAST_AGE = dt.timedelta(hours=1)


@dataclass(slots=True)
class Swept:
    """What a sweep deleted, or with a dry run would delete."""

    deleted: int = 0
    deleted_bytes: int = 0
    retired: int = 0  # files that left their tables and are deleted by a later sweep
    retired_bytes: int = 0


def sweep(
    place: Place | str, *, older_than: dt.timedelta = SAFE_AGE, dry_run: bool = False
) -> Swept:
    """Delete from a place what no run needs and what is older than the safe age.

    If it cannot be sure what runs need, it raises PlaceError and deletes nothing.
    """
    if older_than < LEAST_AGE:
        raise PlaceError(
            f"{older_than} is not a safe age: files so new may belong to a run that is "
            "being published. Give an hour or more."
        )
    place = place if isinstance(place, Place) else Place(place)
    runs = list_published(place)
    used = {part.path for detail in _details(place, runs) for part in detail.parts}
    swept = Swept()
    for table in TABLES:
        _retire(place, table, used, older_than, swept, dry_run=dry_run)
    names = (RUNS, *(table.value for table in TABLES))
    gone = [one for name in names for one in _out_of_table(place, name, used, older_than)]
    named = {run.detail_path for run in runs} | {NOTE}
    limit = dt.datetime.now(dt.timezone.utc) - older_than
    gone += [
        one for one in place.listed(f"{DETAILS}/") if one.path not in named and one.modified < limit
    ]
    swept.deleted, swept.deleted_bytes = len(gone), sum(one.size for one in gone)
    if not dry_run:
        place.delete([one.path for one in gone])
    return swept


def _details(place: Place, runs: Iterable[PublishedRun]) -> Iterator[Detail]:
    """The details of all runs, to know what they need; one object holds those of many."""
    by_object = sorted(runs, key=lambda run: run.detail_path)
    for _, group in groupby(by_object, key=lambda run: run.detail_path):
        together = list(group)
        place.fetch_ahead(run.detail for run in together)
        for run in together:
            yield read_detail(place, run)


def _retire(
    place: Place,
    table: Table,
    used: set[str],
    older_than: dt.timedelta,
    swept: Swept,
    *,
    dry_run: bool,
) -> None:
    """Take files that no run needs out of a table; a later sweep deletes them."""
    opened = place.table(table.value)
    if opened is None:
        return
    with place.trouble("read"):
        files = pa.table(opened.get_add_actions(flatten=True))
    limit_ms = (time.time() - older_than.total_seconds()) * 1e3
    modified = files.column("modification_time").cast(pa.int64()).to_pylist()
    paths, sizes = (files.column(name).to_pylist() for name in ("path", "size_bytes"))
    old = [
        Added(path, size, partition={DAY: path.partition("/")[0].removeprefix(f"{DAY}=")})
        for path, size, at_ms in zip(paths, sizes, modified, strict=True)
        if f"{table.value}/{path}" not in used and at_ms < limit_ms
    ]
    swept.retired += len(old)
    swept.retired_bytes += sum(one.size for one in old)
    if old and not dry_run:
        place.commit(opened, TABLE_SCHEMAS[table], [], old)


def _out_of_table(
    place: Place, name: str, used: set[str], older_than: dt.timedelta
) -> list[Listed]:
    """Files to delete: they have been in no version of a table for the safe age."""
    table = place.table(name)
    if table is None:
        return []
    hours = int(older_than.total_seconds() // 3600)
    with place.trouble("read"):
        found = table.vacuum(
            retention_hours=hours, dry_run=True, enforce_retention_duration=False, full=True
        )
    out = {f"{name}/{path}" for path in found} - used
    return [one for one in place.listed(f"{name}/") if one.path in out]
