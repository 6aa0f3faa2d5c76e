"""Which rows of a run to publish: only those that the place lacks.

Each publication of a rank's rows is a segment, with an edition of its own. A run that is published
every few minutes must still be readable with few requests, so a segment is rewritten together with
the new rows once these are as many, unless it fills a row group. Each row is thus written a few
times in all, and when the run ends its short segments become one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ampwatch.fleet.row_files import Part
from ampwatch.fleet.run_details import Detail
from ampwatch.ranges import Ranges
from ampwatch.rows import TABLES, Table
from ampwatch.store.compaction import ROW_GROUP_ROWS
from ampwatch.store.rank_log import RankLog


@dataclass(frozen=True, slots=True)
class UnpublishedRows:
    """From where to publish a rank's rows, and which published parts before them stay."""

    starts: Mapping[Table, int]
    kept: tuple[Part, ...] = ()

    @property
    def is_from_the_start(self) -> bool:
        """Whether all rows of the log are to be published."""
        return not any(self.starts.values())


FROM_THE_START = UnpublishedRows(dict.fromkeys(TABLES, 0))


def unpublished_rows_of(log: RankLog, before: Detail | None, *, is_over: bool) -> UnpublishedRows:
    """The rows of a rank's log to publish; `before` is what the place already has of the run."""
    parts = [part for part in before.parts if part.rank == log.rank] if before else []
    if before is None or not _holds_the_beginning(log, before, parts):
        return FROM_THE_START
    editions = list(dict.fromkeys(part.edition for part in parts))
    fresh = sum(map(log.rows, TABLES)) - sum(part.rows for part in parts)
    while editions:
        rows = sum(part.rows for part in parts if part.edition == editions[-1])
        if rows >= ROW_GROUP_ROWS or (rows > fresh and not is_over):
            break
        fresh += rows
        editions.pop()
    kept = tuple(part for part in parts if part.edition in editions)
    return UnpublishedRows({table: _rows(kept, table) for table in TABLES}, kept)


def _holds_the_beginning(log: RankLog, before: Detail, parts: list[Part]) -> bool:
    """Whether the published parts are the log's first batches, in the log's current order."""
    held = next((note.held for note in before.ranks if note.rank == log.rank), ())
    mine = list(log.held)
    if len(held) != 1 or not mine or mine[0][0] != held[0][0] or mine[0][1] < held[0][1]:
        return False
    last = held[0][1] - held[0][0] - 1
    return all(int(log.row_ends(table)[last]) == _rows(parts, table) for table in TABLES)


def _rows(parts: list[Part] | tuple[Part, ...], table: Table) -> int:
    return sum(part.rows for part in parts if part.table == table.value)


def has_unpublished(log: RankLog, before: Detail | None) -> bool:
    """Whether a rank's log has batches that are not in the place."""
    notes = before.ranks if before else ()
    held = next((Ranges(note.held) for note in notes if note.rank == log.rank), None)
    return held is None or bool(list(log.held.without(held)))
