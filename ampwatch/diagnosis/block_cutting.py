"""Cuts the tables of a run into blocks: how far each table has come, and where the next block ends.

The steps of the lowest rank are the spine, in the order in which they were written. A block is up
to `BLOCK_ROWS` of its rows, ends where a step ends, and ends early where steps begin anew (a
restart). From the other tables and ranks a block takes the rows up to its last step that no earlier
block has taken. The same rows make the same blocks, in whatever batches they arrived.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from ampwatch.diagnosis.blocks import (
    EVENT_COLUMNS,
    LAYER_COLUMNS,
    METRIC_COLUMNS,
    OTHER_RANK_COLUMNS,
    STEP_COLUMNS,
    Block,
    block_of,
)
from ampwatch.diagnosis.column_arrays import Integers, numbers, steps_of
from ampwatch.diagnosis.record import RecordRows
from ampwatch.rows import Table

BLOCK_ROWS = 2048
# Rows of other tables that a restart left behind: steps that its attempt had begun and not closed.
_LEFT_BEHIND_STEPS = 100
_NONE: Integers = np.zeros(0, np.int64)

# A table, of which `Table.STEPS` is the spine, or another rank's steps.
Key: TypeAlias = "Table | int"
Shown: TypeAlias = "tuple[int, pa.Table]"  # the number of its first row, and the rows


def tables_of(rows: RecordRows, ranks: Sequence[int], cutter: BlockCutter) -> dict[Key, Shown]:
    """Read the rows of each table that no block has taken yet, and the last row one took."""
    spine, *others = sorted(ranks) or (0,)

    def shown(key: Key, table: Table, columns: Sequence[str], rank: int | None) -> Shown:
        left = cutter.uncut.get(key)
        first = 0 if left is None else left.needed
        return first, rows.read(table, columns, rank, first)

    made: dict[Key, Shown] = {
        Table.STEPS: shown(Table.STEPS, Table.STEPS, STEP_COLUMNS, spine),
        Table.LAYERS: shown(Table.LAYERS, Table.LAYERS, LAYER_COLUMNS, None),
        Table.EVENTS: shown(Table.EVENTS, Table.EVENTS, EVENT_COLUMNS, None),
        Table.EXTRAS: shown(Table.EXTRAS, Table.EXTRAS, METRIC_COLUMNS, spine),
    }
    for rank in others:
        made[rank] = shown(rank, Table.STEPS, OTHER_RANK_COLUMNS, rank)
    return made


@dataclass(slots=True)
class UncutRows:
    """The rows of one table (of one rank or of all) that no block has taken yet."""

    key: str = "step"  # the column by which they are ordered
    taken: int = 0
    restarts: int = 0
    last_step: int | None = None
    limit: int | None = None  # the last step that what was taken may hold
    rows: pa.Table | None = None  # as shown, from row number `first` on
    first: int = 0
    steps: Integers = field(default_factory=lambda: _NONE)  # of the rows not taken yet
    anew: Integers = field(default_factory=lambda: _NONE)  # where among them steps begin anew

    @property
    def needed(self) -> int:
        """The number of the last row that a block took: the table is read again from there."""
        return max(0, self.taken - 1)

    def show(self, rows: pa.Table, first: int = 0) -> bool:
        """Take up the table's new rows, read from row number `first` on.

        False if a row has appeared among those that blocks have already taken.
        """
        if first + rows.num_rows < self.taken:
            return False
        known = self.taken - self.needed
        steps = steps_of(rows, self.key, self.needed - first)
        if known and self.last_step != steps[0]:
            return False
        self.rows, self.first = rows, first
        self.steps = steps = steps[known:]
        if not len(steps):
            self.anew = _NONE
            return True
        before = steps[0] if self.last_step is None else self.last_step
        self.anew = np.flatnonzero(np.diff(steps, prepend=before) < 0)
        return self.limit is None or bool(steps[0] < before or steps[0] > self.limit)

    def reach(self, limit: int, restarts: int) -> int:
        """How many of the uncut rows belong to steps up to `limit`, within so many restarts."""
        begin, allowed = 0, restarts - self.restarts
        for end in [*self.anew.tolist(), len(self.steps)][: allowed + 1]:
            found = begin + int(np.searchsorted(self.steps[begin:end], limit, side="right"))
            if found < end:
                return found
            begin = end
        return begin

    def first_rows(self, count: int) -> Integers:
        """Where each step begins among the next rows: every optimizer writes its own row."""
        step = self.steps[:count]
        if not len(step):
            return _NONE
        again = step[1:] == step[:-1]
        if not again.any():
            return np.arange(len(step))
        optimizer = numbers(self.next_rows(count), "optimizer")
        # nan compares false: rows without an optimizer's number part by their step alone.
        again &= optimizer[1:] > optimizer[:-1]
        return np.concatenate(([0], np.flatnonzero(~again) + 1))

    def next_rows(self, count: int) -> pa.Table:
        """The next `count` rows that no block has taken, without taking them."""
        assert self.rows is not None
        return self.rows.slice(self.taken - self.first, count)

    def take(self, count: int, limit: int | None = None) -> pa.Table:
        """Take the next `count` rows for a block."""
        taken, self.limit = self.next_rows(count), limit
        if count:
            self.last_step = int(self.steps[count - 1])
            self.steps = self.steps[count:]
            later = self.anew >= count
            self.restarts += int((~later).sum())
            self.anew = self.anew[later] - count
            self.taken += count
        return taken


@dataclass(slots=True)
class BlockCutter:
    """Cuts the tables of a run into blocks; remembers how far it has come in each."""

    block_rows: int = BLOCK_ROWS
    entries: int = 0
    uncut: dict[Key, UncutRows] = field(default_factory=dict)

    @property
    def spine(self) -> UncutRows:
        """The steps of the lowest rank, which decide where a block ends."""
        return self.uncut[Table.STEPS]

    def copy(self) -> BlockCutter:
        """An independent copy: cutting blocks from one does not move the other."""
        return replace(self, uncut={key: replace(left) for key, left in self.uncut.items()})

    def show(self, tables: Mapping[Key, Shown]) -> bool:
        """Give each table its new rows; False if some appeared among rows of earlier blocks."""
        if self.entries and tables.keys() - self.uncut.keys():
            return False  # a new rank, whose rows may belong to blocks that were taken
        uncut = [(self.uncut.setdefault(key, UncutRows()), shown) for key, shown in tables.items()]
        return all(left.show(rows, first) for left, (first, rows) in uncut)

    def next_whole(self) -> Block | None:
        """The next block whose end is known; None if there is none yet."""
        end = self._end()
        if end is None:
            return None
        last = int(self.spine.steps[end - 1])
        anew = int(self.spine.steps[end]) < last
        return self._block(end, last + _LEFT_BEHIND_STEPS * anew)

    def rest(self) -> Block:
        """One last block of all rows that are left."""
        return self._block(len(self.spine.steps), None)

    def is_settled(self, rows: int, patience: int) -> bool:
        """Whether the next block lies so far back that no late row is expected in it."""
        waiting = len(self.spine.steps)
        if waiting < self.block_rows + rows:
            return False
        newest = int(self.spine.steps[: self.block_rows].max()) + rows // 2
        others = [left.steps for key, left in self.uncut.items() if not isinstance(key, Table)]
        return waiting > patience or all(len(steps) and steps[-1] >= newest for steps in others)

    def _end(self) -> int | None:
        """The row at which the next block ends: before a restart, or when full; None if unknown."""
        spine = self.spine
        anew = spine.anew[spine.anew > 0]
        if len(anew) and anew[0] <= self.block_rows:
            return int(anew[0])
        if len(spine.steps) <= self.block_rows:
            return None
        fitting = spine.first_rows(self.block_rows + 1)[1:]
        if len(fitting):
            return int(fitting[-1])
        firsts = spine.first_rows(len(spine.steps))[1:]  # one step with more rows than a block
        return int(firsts[0]) if len(firsts) else None

    def _block(self, end: int, limit: int | None) -> Block:
        spine = self.spine
        begins_anew, firsts = 0 in spine.anew, spine.first_rows(end)
        rows = spine.take(end, limit)
        parts: dict[Key, pa.Table] = {}
        for key, left in self.uncut.items():
            if left is not spine:
                count = len(left.steps) if limit is None else left.reach(limit, spine.restarts)
                parts[key] = left.take(count, limit)
        start, self.entries = self.entries, self.entries + len(firsts)
        return block_of(
            rows,
            firsts,
            start,
            restart=begins_anew,
            layers=parts.pop(Table.LAYERS),
            events=parts.pop(Table.EVENTS),
            metrics=parts.pop(Table.EXTRAS),
            others={int(key): table for key, table in parts.items()},
            next_row=spine.next_rows(0 if 0 in spine.anew else 1),
        )
