"""What of a run that goes on is to be written: the rows that the place lacks, not all again.

Each publication of a rank's rows is a segment of it, with an edition of its own. So that a run that
is published every few minutes can still be read with a few requests, a segment is written again
together with the new rows once these are as many; one of a full row group never is. A row is thus
written a few times in all, and when the run is over its short segments become one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ampwatch.fleet.details import Detail
from ampwatch.fleet.row_files import Part
from ampwatch.rows import TABLES, Table
from ampwatch.store.compaction import ROW_GROUP_ROWS
from ampwatch.store.rank_log import RankLog


@dataclass(frozen=True, slots=True)
class Continuation:
    """Where to go on with a rank's rows, and what stays as it is before them."""

    starts: Mapping[Table, int]
    kept: tuple[Part, ...] = ()

    @property
    def is_from_the_start(self) -> bool:
        """Whether all of the log is written."""
        return not any(self.starts.values())


FROM_THE_START = Continuation(dict.fromkeys(TABLES, 0))


def continuation(log: RankLog, before: Detail | None, *, is_over: bool) -> Continuation:
    """What of a rank is to be written, `before` being what the place has of the run."""
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
    return Continuation({table: _rows(kept, table) for table in TABLES}, kept)


def _holds_the_beginning(log: RankLog, before: Detail, parts: list[Part]) -> bool:
    """Whether the parts are the log's first batches, in the order in which it has them now."""
    held = next((note.held for note in before.ranks if note.rank == log.rank), ())
    mine = list(log.held)
    if len(held) != 1 or not mine or mine[0][0] != held[0][0] or mine[0][1] < held[0][1]:
        return False
    last = held[0][1] - held[0][0] - 1
    return all(int(log.row_ends(table)[last]) == _rows(parts, table) for table in TABLES)


def _rows(parts: list[Part] | tuple[Part, ...], table: Table) -> int:
    return sum(part.rows for part in parts if part.table == table.value)
