"""A run for a reader that takes each row once: in portions, and what was taken is not held.

The log is the memory. A long log is shown as if it grew, some rows of every rank at a time, so
that whoever reads it on holds the rows it has not taken and no more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from ampwatch.rows import Table
from ampwatch.store.public_rows import View, publish, stored_for
from ampwatch.store.rank_log import RankRows
from ampwatch.store.run import Run

PORTION_ROWS = 1 << 17  # of all tables of a rank: a compacted log is read by as many
_ALL = 1 << 62
_LEAST_STEPS = 1024  # in a portion, however many layers each has


class Reading:
    """How far a run was shown: in canonical order, and all its tables equally far.

    A row may come late, among rows that were taken already. Then `is_overtaken`: what was taken no
    longer holds, and only a reading begun anew, in one portion, has every row in its place.
    """

    def __init__(self, run: Run, portion_rows: int | None = PORTION_ROWS) -> None:
        self.run = run
        self.is_overtaken = False
        self._portion_rows = portion_rows
        self._steps: dict[int, int] = {}  # rows of steps that were shown, by rank
        self._batches: dict[int, int] = {}  # that are shown, of each rank that has more
        self._views: dict[tuple[Table, tuple[str, ...], int | None], View] = {}
        self._cuts = run.cuts

    @property
    def is_as_logged(self) -> bool:
        """Whether a rank's rows are in the order of its log, so that they can be found there."""
        return all(v.is_as_logged for (_, _, rank), v in self._views.items() if rank is not None)

    def portions(self) -> Iterator[None]:
        """Show more of the run as it was last refreshed, until all is shown."""
        while True:
            with self.run.lock:
                self._show_more()
            yield
            if not self._batches or self.is_overtaken:
                break
        self._portion_rows = self._portion_rows or PORTION_ROWS

    def read(
        self, table: Table, columns: Sequence[str], rank: int | None = None, start: int = 0
    ) -> pa.Table:
        """The rows shown by now, from number `start` on; those before are forgotten."""
        with self.run.lock:
            return self._read(table, columns, rank, start)

    def _read(self, table: Table, columns: Sequence[str], rank: int | None, start: int) -> pa.Table:
        names = stored_for(table, columns)
        key = (table, tuple(names), rank)
        view = self._views.setdefault(key, View(table, names))
        view.forget(start)
        logs = [log for log in self.run.logs if rank in (None, log.rank)]
        rows = view.update(logs, {log.rank: self._stop(log, table) for log in logs})
        if (behind := start - view.forgotten) > 0:  # a reader that goes on where another stopped
            rows = rows.slice(behind)
        self.is_overtaken |= view.is_overtaken or self.run.cuts != self._cuts
        return publish(table, rows, columns, self.run.layer_facts(table, columns))

    def _stop(self, log: RankRows, table: Table) -> int:
        """How many rows of a table are shown."""
        if log.rank not in self._batches:
            return log.rows(table)
        return min(log.rows(table), int(log.row_ends(table)[self._batches[log.rank] - 1]))

    def _show_more(self) -> None:
        """Ranks go on by as many steps each, lest one be taken for late."""
        self._batches = {}
        more = min((self._steps_of_a_portion(log) for log in self.run.logs), default=_ALL)
        for log in self.run.logs:
            known, shown = log.rows(Table.STEPS), self._steps.get(log.rank, 0)
            if known - shown > more:
                ends = log.row_ends(Table.STEPS)
                reached = ends[min(int(np.searchsorted(ends, shown + more)), len(ends) - 1)]
                # With the batches of other tables that were filed after those steps.
                batches = int(np.searchsorted(ends, reached, side="right"))
                if batches < len(ends):
                    self._batches[log.rank] = batches
                    known = min(known, int(ends[batches - 1]))
            self._steps[log.rank] = known

    def _steps_of_a_portion(self, log: RankRows) -> int:
        known, shown = log.rows(Table.STEPS), self._steps.get(log.rank, 0)
        if self._portion_rows is None or known == shown:
            return _ALL
        steps, all_tables = log.row_ends(Table.STEPS), log.row_ends()
        before = np.searchsorted(steps, shown) if shown else 0
        there = int(all_tables[before]) if shown else 0
        end = min(len(steps) - 1, int(np.searchsorted(all_tables, there + self._portion_rows)))
        return max(_LEAST_STEPS, int(steps[end]) - shown)
