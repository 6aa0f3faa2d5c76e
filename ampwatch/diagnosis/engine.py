"""The engine: reads what is new in a run, and gives its diagnosis at any time.

Blocks in which no late row is expected are folded for good. Smaller blocks after them are folded
into a copy that is kept, and the rest into a copy of that, so that each look folds only the last
few rows again. If a row still appears among those already folded, the engine goes back to the state
before them, at worst to the beginning. So the diagnosis after some rows is the same as if the
engine had read all of them at once, in whatever batches they arrived.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ampwatch.diagnosis.blocks import BLOCK_ROWS, DEVICE_COLUMNS, Block, BlockCutter, UncutRows
from ampwatch.diagnosis.case import Case, new_case
from ampwatch.diagnosis.device_history import DeviceHistory
from ampwatch.diagnosis.findings import Diagnosis
from ampwatch.diagnosis.record import Record, RecordFacts, RecordRows, RowsInMemory
from ampwatch.diagnosis.verdict import conclude
from ampwatch.rows import Table
from ampwatch.store import Reading, Run

# Rows behind a block before it is folded for good: a ring of 64 steps is written after an overflow,
# and rows wait a quarter of a second in the trainer.
_SETTLED_ROWS = 512
# A rank that lags is waited for, but not for ever: what waits is folded again at each look.
_PATIENCE_ROWS = 4 * BLOCK_ROWS
# Each row that comes too late costs a new beginning, so the next time is waited twice as long.
_MORE_PATIENCE = 2
# After the last settled block come blocks of so much less, which wait for so much less: a look
# folds only what is left after them.
_SMALLER, _SOONER = 16, 4
# Of a rank's devices the last few rows are not final, because a clock may be set back a little.
_OPEN_DEVICE_ROWS = 64


@dataclass(slots=True)
class _Progress:
    """What the engine has folded so far, and where the next block begins."""

    case: Case
    cutter: BlockCutter

    def copy(self, block_rows: int) -> _Progress:
        """An independent copy, which goes on in blocks of so many rows."""
        return _Progress(self.case.copy(), self.cutter.copy(block_rows))

    def fold(self, blocks: Iterator[Block]) -> bool:
        """Fold these blocks of the cutter into the case; False if there are none."""
        before = self.cutter.entries
        for block in blocks:
            self.case.fold(block)
        return self.cutter.entries > before


class _DeviceRows:
    """The device rows of all ranks: ordered by time and not by steps, so outside the blocks."""

    def __init__(self) -> None:
        self.settled = DeviceHistory()
        self._uncut: dict[int, UncutRows] = {}

    def read(self, ranks: Sequence[int], rows: RecordRows) -> bool:
        """Read the new device rows for the engine; False if one appeared among those folded."""
        for rank in ranks:
            uncut = self._uncut.setdefault(rank, UncutRows("time_ns"))
            first = uncut.needed
            new = rows.read(Table.DEVICES, DEVICE_COLUMNS, rank, first)
            if rows.is_overtaken or not uncut.add(new, first):
                return False
            if (final := len(uncut.steps) - _OPEN_DEVICE_ROWS) > 0:
                self.settled = self.settled.fold(rank, uncut.take_rows(final))
        return True

    def history(self) -> DeviceHistory:
        """The device history of all rows that the engine has read so far."""
        history = self.settled
        for rank, uncut in self._uncut.items():
            if count := len(uncut.steps):
                history = history.fold(rank, uncut.next_rows(count))
        return history


class Engine:
    """Diagnoses a run as it grows: `feed` it whenever there is more, `look` at any time."""

    def __init__(self, *, block_rows: int = BLOCK_ROWS, settled_rows: int = _SETTLED_ROWS) -> None:
        self._block_rows = block_rows
        self._settled_rows = settled_rows
        self._patience_rows = _PATIENCE_ROWS
        self._facts: RecordFacts | None = None
        self._case: Case | None = None  # of the rows fed last, once somebody looked
        self._settled: _Progress | None = None
        self._recent: _Progress | None = None  # a copy of it, some smaller blocks further
        self._devices = _DeviceRows()
        self._run: Record | None = None
        self._rows: RecordRows | None = None
        self._device_rows: RecordRows | None = None

    def feed(self, run: Record) -> Engine:
        """Read what is new in the run; an engine is always fed the same run."""
        if run is not self._run or self._rows is None or self._device_rows is None:
            self._run = run
            self._rows = _reader_of(run, in_portions=self._settled is None)
            self._device_rows = _reader_of(run)
        is_first = self._settled is None
        while not self._take_in(run, self._rows):
            self._settled_rows *= _MORE_PATIENCE
            self._patience_rows *= _MORE_PATIENCE
            self._settled = self._recent = None
            # A log whose tables do not keep step is read at once: then no row can be late.
            self._rows, is_first = _reader_of(run, in_portions=not is_first), True
        if not self._devices.read(run.ranks, self._device_rows):
            self._devices, self._device_rows = _DeviceRows(), _reader_of(run)
            self._devices.read(run.ranks, self._device_rows)
        self._case, self._facts = None, RecordFacts.of(run)
        return self

    def _take_in(self, run: Record, rows: RecordRows) -> bool:
        """Fold settled blocks for good; False if a row has appeared among those folded before."""
        for _ in rows.portions():
            if self._settled is None:
                self._settled = _Progress(new_case(run), BlockCutter(self._block_rows))
            cutter = self._settled.cutter
            tables = cutter.read(rows, run.ranks)
            if rows.is_overtaken or not cutter.add(tables):
                return False
            settled = cutter.settled(self._settled_rows, self._patience_rows)
            if self._settled.fold(settled) or (
                self._recent is not None and not self._recent.cutter.add(tables)
            ):
                self._recent = None
        return True

    def diagnosis(self) -> Diagnosis:
        """The diagnosis as the run stands now: what is wrong, since when, why, and what to do."""
        return conclude(self.case())

    def case(self) -> Case:
        """The case as the run stands now: what the rules are given."""
        if self._facts is None or self._settled is None:
            raise RuntimeError("The engine has no run yet: call feed(run) before diagnosis().")
        if self._case is None:
            if self._recent is None:
                self._recent = self._settled.copy(max(1, self._block_rows // _SMALLER))
            recent = self._recent.cutter
            self._recent.fold(recent.settled(self._settled_rows // _SOONER, self._patience_rows))
            # What a block costs hardly depends on its rows, so the last ones are one.
            last = self._recent.copy(self._block_rows)
            last.fold(last.cutter.rest())
            last.case.devices = self._devices.history()
            last.case.record = self._facts
            last.case.finish()
            self._case = last.case
        return self._case


def _reader_of(run: Record, *, in_portions: bool = True) -> RecordRows:
    """A reader for the engine of a run's rows: from the log in portions, or from memory."""
    if not isinstance(run, Run):
        return RowsInMemory(run)
    return Reading(run) if in_portions else Reading(run, portion_rows=None)


def diagnose(run: Record) -> Diagnosis:
    """Diagnose a run: what is wrong, since when, why, and what to do about it."""
    return Engine().feed(run).diagnosis()
