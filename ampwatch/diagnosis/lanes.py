"""How far the blocks have got in each table of a run, and where the next one ends.

The steps of the lowest rank are the spine, in the order they were written. A block is up to
`BLOCK_ROWS` of its rows, ends where a step ends, and ends early where steps begin anew (a restart).
What belongs to a block of the other tables and ranks are the rows up to the block's last step that
no earlier block has taken. However the rows arrived, the same rows make the same blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from ampwatch.diagnosis.blocks import Block, block_of
from ampwatch.diagnosis.signals import Integers, numbers, steps_of

BLOCK_ROWS = 2048
# Rows of another lane that a restart left behind: steps that its attempt had begun and not closed.
_LEFT_BEHIND_STEPS = 100
_NOWHERE: Integers = np.zeros(0, np.int64)


class Lane:
    """One table's rows of one rank (or of all), and how far the blocks have taken them."""

    def __init__(self) -> None:
        self.taken = 0
        self.restarts = 0
        self.last_step: int | None = None
        self.limit: int | None = None
        self.rows: pa.Table | None = None  # those not taken yet
        self.steps: Integers = np.zeros(0, np.int64)

    def show(self, rows: pa.Table) -> bool:
        """Take up the table as it is now; False if a row has come among those already taken."""
        if rows.num_rows < self.taken:
            return False
        if self.taken and int(steps_of(rows.slice(0, self.taken).slice(self.taken - 1))[0]) != (
            self.last_step
        ):
            return False
        self.rows = rows.slice(self.taken)
        self.steps = steps_of(self.rows)
        return self._begins_beyond()

    def follow(self, behind: Lane) -> bool:
        """The same, from a lane of this table that has taken less and was shown it already."""
        begin = self.taken - behind.taken
        if begin < 0 or len(behind.steps) < begin or behind.rows is None:
            return False
        if begin and int(behind.steps[begin - 1]) != self.last_step:
            return False
        self.rows, self.steps = behind.rows.slice(begin), behind.steps[begin:]
        return self._begins_beyond()

    def _begins_beyond(self) -> bool:
        """Whether no row that is left belongs to a block already taken."""
        if self.limit is None or not len(self.steps):
            return True
        anew = self.last_step is not None and bool(self.steps[0] < self.last_step)
        return anew or bool(self.steps[0] > self.limit)

    def copy(self) -> Lane:
        """The same place in the same rows."""
        made = Lane()
        made.__dict__.update(self.__dict__)
        return made

    def reach(self, limit: int, restarts: int) -> int:
        """How many rows from here belong to steps up to `limit`, over so many restarts."""
        window = 2 * BLOCK_ROWS
        while True:
            found = self._first_not_ours(self.steps[:window], limit, restarts)
            if found < window or window >= len(self.steps):
                return found
            window *= 4  # what is not needed is not looked at: lanes may be long

    def _first_not_ours(self, steps: Integers, limit: int, restarts: int) -> int:
        if not len(steps):
            return 0
        before = steps[0] if self.last_step is None else self.last_step
        anew = np.flatnonzero(np.diff(steps, prepend=before) < 0)
        allowed = restarts - self.restarts
        stop = int(anew[allowed]) if len(anew) > allowed else len(steps)
        beyond = np.flatnonzero(steps[:stop] > limit)
        return int(beyond[0]) if len(beyond) else stop

    def take(self, count: int, limit: int | None = None) -> pa.Table:
        """The next rows."""
        assert self.rows is not None
        taken, self.rows = self.rows.slice(0, count), self.rows.slice(count)
        self.limit = limit
        if count:
            before = self.steps[0] if self.last_step is None else self.last_step
            self.restarts += int((np.diff(self.steps[:count], prepend=before) < 0).sum())
            self.last_step = int(self.steps[count - 1])
            self.taken += count
            self.steps = self.steps[count:]
        return taken


@dataclass
class Cutter:
    """Where the blocks have got to in every lane of a run."""

    spine: Lane = field(default_factory=Lane)
    layers: Lane = field(default_factory=Lane)
    events: Lane = field(default_factory=Lane)
    others: dict[int, Lane] = field(default_factory=dict)
    entries: int = 0
    block_rows: int = BLOCK_ROWS

    def copy(self) -> Cutter:
        """The same place; taking blocks from the one leaves the other as it is."""
        others = {rank: lane.copy() for rank, lane in self.others.items()}
        return replace(
            self,
            spine=self.spine.copy(),
            layers=self.layers.copy(),
            events=self.events.copy(),
            others=others,
        )

    def follow(self, behind: Cutter) -> bool:
        """Take up what a cutter was shown that has got less far; False if rows came too late."""
        if self.others.keys() != behind.others.keys():
            return False
        pairs = [(lane, behind.others[rank]) for rank, lane in self.others.items()]
        pairs += [(self.spine, behind.spine), (self.layers, behind.layers)]
        pairs += [(self.events, behind.events)]
        return all(lane.follow(other) for lane, other in pairs)

    def next_whole(self) -> Block | None:
        """The next block whose end is known, if there is one."""
        end, firsts = _end_of_block(self.spine, self.block_rows)
        if end is None:
            return None
        last = int(self.spine.steps[end - 1])
        anew = int(self.spine.steps[end]) < last
        return self._block(end, firsts, last + _LEFT_BEHIND_STEPS * anew)

    def rest(self) -> Block:
        """Everything that no whole block holds."""
        return self._block(len(self.spine.steps), _first_rows(self.spine, None), None)

    def is_settled(self, rows: int, patience: int) -> bool:
        """Whether the next whole block is so far behind that late rows are not to be expected."""
        waiting = len(self.spine.steps)
        if waiting < self.block_rows + rows:
            return False
        newest = int(self.spine.steps[: self.block_rows].max()) + rows // 2
        heard = all(
            len(lane.steps) and int(lane.steps[-1]) >= newest for lane in self.others.values()
        )
        return heard or waiting > patience

    def _begins_anew(self) -> bool:
        """Whether the next row is the first after a restart."""
        steps, last = self.spine.steps, self.spine.last_step
        return last is not None and bool(len(steps) and steps[0] < last)

    def _block(self, end: int, firsts: Integers, limit: int | None) -> Block:
        begins_anew = self._begins_anew()
        firsts = firsts[firsts < end]
        rows = self.spine.take(end, limit)
        assert self.spine.rows is not None
        restarts = self.spine.restarts

        def part(lane: Lane) -> pa.Table:
            count = len(lane.steps) if limit is None else lane.reach(limit, restarts)
            return lane.take(count, limit)

        start, self.entries = self.entries, self.entries + len(firsts)
        return block_of(
            rows,
            firsts,
            start,
            restart=begins_anew,
            layers=part(self.layers),
            events=part(self.events),
            others={rank: part(lane) for rank, lane in self.others.items()},
            next_row=self.spine.rows.slice(0, 0 if self._begins_anew() else 1),
        )


def _first_rows(spine: Lane, rows: int | None) -> Integers:
    """Where each step begins: several optimizers write a row each for one step."""
    step = spine.steps[:rows]
    if not len(step):
        return _NOWHERE
    assert spine.rows is not None
    optimizer = numbers(spine.rows.slice(0, len(step)), "optimizer")
    # nan compares false: rows without an optimizer's number part by their step alone.
    again = (step[1:] == step[:-1]) & (optimizer[1:] > optimizer[:-1])
    return np.concatenate(([0], np.flatnonzero(~again) + 1))


def _end_of_block(spine: Lane, block_rows: int) -> tuple[int | None, Integers]:
    """Where the next block ends, if that is known: at a restart, else after `block_rows` rows.

    And where the steps begin in it.
    """
    step = spine.steps[: block_rows + 1]
    anew = np.flatnonzero(step[1:] < step[:-1])
    if not len(anew) and len(step) <= block_rows:
        return None, _NOWHERE
    firsts = _first_rows(spine, len(step))
    if len(anew):
        return int(anew[0]) + 1, firsts
    fitting = firsts[firsts > 0]
    if not len(fitting):  # one step with more rows than a block
        firsts = _first_rows(spine, None)
        return (int(firsts[1]) if len(firsts) > 1 else None), firsts
    return int(fitting[-1]), firsts
