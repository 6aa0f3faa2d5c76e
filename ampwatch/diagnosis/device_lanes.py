"""How far each rank's rows of devices have been folded, and into what.

They stand by the clock, so no block of steps takes them: the last few of a rank wait, because a
clock may be set back a little, and all others are folded once and for all.
"""

from __future__ import annotations

import pyarrow as pa

from ampwatch.diagnosis.blocks import DEVICE_COLUMNS, device_rows
from ampwatch.diagnosis.device_course import DeviceCourse
from ampwatch.diagnosis.signals import Record
from ampwatch.rows import Table

SETTLED_ROWS = 64


class DeviceLanes:
    """The rows of all ranks' devices: `show` them whenever there are more, `course` at any time."""

    def __init__(self) -> None:
        self.settled = DeviceCourse()
        self._lanes: dict[int, _Lane] = {}

    def show(self, run: Record) -> bool:
        """Take up the table as it is now; False if a row has come among those that were folded."""
        for rank in run.ranks:
            lane = self._lanes.setdefault(rank, _Lane())
            if not lane.show(run.read(Table.DEVICES, columns=DEVICE_COLUMNS, rank=rank)):
                return False
            settled = lane.take(SETTLED_ROWS)
            if settled.num_rows:
                self.settled = self.settled.fold(rank, device_rows(settled))
        return True

    def course(self) -> DeviceCourse:
        """What all rows say."""
        course = self.settled
        for rank, lane in self._lanes.items():
            if lane.waiting.num_rows:
                course = course.fold(rank, device_rows(lane.waiting))
        return course


class _Lane:
    """One rank's rows."""

    def __init__(self) -> None:
        self.waiting: pa.Table = pa.table({})
        self._taken = 0
        self._last_time_ns: int | None = None

    def show(self, rows: pa.Table) -> bool:
        if rows.num_rows < self._taken:
            return False
        if self._taken and _time_of(rows, self._taken - 1) != self._last_time_ns:
            return False
        self.waiting = rows.slice(self._taken)
        return True

    def take(self, keep: int) -> pa.Table:
        """The next rows, but for the last few."""
        count = max(0, self.waiting.num_rows - keep)
        taken, self.waiting = self.waiting.slice(0, count), self.waiting.slice(count)
        if count:
            self._last_time_ns = _time_of(taken, count - 1)
            self._taken += count
        return taken


def _time_of(rows: pa.Table, at: int) -> int | None:
    time_ns: int | None = rows.column("time_ns")[at].as_py()
    return time_ns
