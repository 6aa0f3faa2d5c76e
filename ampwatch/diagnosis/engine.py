"""The engine: holds what is known of a run, takes in what is new, gives a diagnosis at any time.

Blocks whose rows can hardly change any more are folded once and for all. Smaller blocks after them
are folded on a copy that is kept, and what is left on a copy of that, so that a look folds anew
only the last few rows. A row that comes late all the same, among rows already folded, takes the
engine back to the state before them, if need be to the beginning. So what it says after some rows
is what it would say had it read those rows at once, whatever their batches were.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

import numpy as np

from ampwatch.diagnosis.block_cutting import BLOCK_ROWS, Cutter, Lane, tables_of
from ampwatch.diagnosis.blocks import DEVICE_COLUMNS
from ampwatch.diagnosis.case import Case, RecordFacts, new_case
from ampwatch.diagnosis.causes import advise, judge, link
from ampwatch.diagnosis.device_history import DeviceHistory
from ampwatch.diagnosis.enough_to_judge import little_seen
from ampwatch.diagnosis.findings import Diagnosis, RunFacts
from ampwatch.diagnosis.rules import RULES
from ampwatch.diagnosis.signals import Record, Rows, RowsInMemory
from ampwatch.rows import Table
from ampwatch.store import Reading, Run

# Rows behind a block before it is folded for good: a ring of 64 steps is written after an overflow,
# and rows wait a quarter of a second in the trainer.
_SETTLED_ROWS = 512
# A rank that lags is waited for, but not for ever: what waits is folded again at each look.
_PATIENCE_ROWS = 16 * BLOCK_ROWS
# Each row that comes too late costs a new beginning, so the next time is waited twice as long.
_MORE_PATIENCE = 2
# After the last settled block come blocks of so much less, which wait for so much less.
_PARTS = 4
# Of a rank's devices the last few rows are not final, because a clock may be set back a little.
_OPEN_DEVICE_ROWS = 64


@dataclass(slots=True)
class _Progress:
    """What was folded so far, and where the next block begins."""

    case: Case
    cutter: Cutter

    def copy(self) -> _Progress:
        return _Progress(self.case.copy(), self.cutter.copy())

    def fold_next(self) -> bool:
        """Fold the next whole block; False if there is none."""
        block = self.cutter.next_whole()
        if block is not None:
            self.case.fold(block)
        return block is not None

    def fold_settled(self, rows: int, patience: int) -> bool:
        """Fold the blocks whose rows can hardly change any more; False if there are none."""
        folded = False
        while self.cutter.is_settled(rows, patience) and self.fold_next():
            folded = True
        return folded


class _Cards:
    """The rows of all ranks' devices. They stand by the clock, so no block of steps takes them."""

    def __init__(self) -> None:
        self.settled = DeviceHistory()
        self._lanes: dict[int, Lane] = {}

    def show(self, ranks: Sequence[int], rows: Rows) -> bool:
        """Take up the table as it is now; False if a row has come among those that were folded."""
        for rank in ranks:
            lane = self._lanes.setdefault(rank, Lane("time_ns"))
            first = lane.needed
            shown = rows.read(Table.DEVICES, DEVICE_COLUMNS, rank, first)
            if rows.is_overtaken or not lane.show(shown, first):
                return False
            if (final := len(lane.steps) - _OPEN_DEVICE_ROWS) > 0:
                self.settled = self.settled.fold(rank, lane.take(final))
        return True

    def history(self) -> DeviceHistory:
        """What all rows say."""
        history = self.settled
        for rank, lane in self._lanes.items():
            if count := len(lane.steps):
                history = history.fold(rank, lane.next_rows(count))
        return history


class Engine:
    """Diagnoses a run as it grows: `feed` it the run whenever there is more, `look` at any time."""

    def __init__(self, *, block_rows: int = BLOCK_ROWS, settled_rows: int = _SETTLED_ROWS) -> None:
        self._block_rows = block_rows
        self._settled_rows = settled_rows
        self._patience_rows = _PATIENCE_ROWS
        self._facts: RecordFacts | None = None
        self._case: Case | None = None  # of the rows fed last, once somebody looked
        self._settled: _Progress | None = None
        self._recent: _Progress | None = None  # a copy of it, some smaller blocks further
        self._cards = _Cards()
        self._run: Record | None = None
        self._rows: Rows | None = None
        self._device_rows: Rows | None = None

    def feed(self, run: Record) -> Engine:
        """Take in what is new in a run; always the same run."""
        if run is not self._run or self._rows is None or self._device_rows is None:
            self._run = run
            self._rows = _rows_of(run, in_portions=self._settled is None)
            self._device_rows = _rows_of(run)
        is_first = self._settled is None
        while not self._take_in(run, self._rows):
            self._settled_rows *= _MORE_PATIENCE
            self._patience_rows *= _MORE_PATIENCE
            self._settled = self._recent = None
            # A log whose tables do not keep step is read at once: then no row can be late.
            self._rows, is_first = _rows_of(run, in_portions=not is_first), True
        if not self._cards.show(run.ranks, self._device_rows):
            self._cards, self._device_rows = _Cards(), _rows_of(run)
            self._cards.show(run.ranks, self._device_rows)
        self._case, self._facts = None, RecordFacts.of(run)
        return self

    def _take_in(self, run: Record, rows: Rows) -> bool:
        """Fold for good what is settled; False if a row has come among those folded before."""
        for _ in rows.portions():
            if self._settled is None:
                self._settled = _Progress(new_case(run), Cutter(self._block_rows))
            tables = tables_of(rows, run.ranks, self._settled.cutter)
            if rows.is_overtaken or not self._settled.cutter.show(tables):
                return False
            if self._recent is not None and not self._recent.cutter.show(tables):
                self._recent = None
            if self._settled.fold_settled(self._settled_rows, self._patience_rows):
                self._recent = None
        return True

    def look(self) -> Diagnosis:
        """What is wrong with the run, since when, why, and what to do about it."""
        return conclude(self.case())

    def case(self) -> Case:
        """What the rules are given, as the run stands now."""
        if self._facts is None or self._settled is None:
            raise RuntimeError("The engine has no run yet: call feed(run) before look().")
        if self._case is None:
            if self._recent is None:
                self._recent = self._settled.copy()
                self._recent.cutter.block_rows = max(1, self._block_rows // _PARTS)
            self._recent.fold_settled(self._settled_rows // _PARTS, self._patience_rows)
            last = self._recent.copy()
            # What a block costs hardly depends on its rows, so the last ones are one.
            last.cutter.block_rows = self._block_rows
            while last.fold_next():
                pass
            last.case.fold(last.cutter.rest())
            last.case.devices = self._cards.history()
            last.case.record = self._facts
            last.case.finish()
            self._case = last.case
        return self._case


def _rows_of(run: Record, *, in_portions: bool = True) -> Rows:
    """A run's rows to be read on."""
    if not isinstance(run, Run):
        return RowsInMemory(run)
    return Reading(run) if in_portions else Reading(run, portion_rows=None)


def diagnose(run: Record) -> Diagnosis:
    """What is wrong with a run, since when, why, and what to do about it."""
    return Engine().feed(run).look()


def conclude(case: Case) -> Diagnosis:
    """Findings, verdict and advice of a case."""
    findings = link([finding for rule in RULES for finding in rule.findings(case)])
    verdict = judge(case, findings)
    advice = advise(case, verdict, findings)
    return Diagnosis(_facts(case), verdict, findings, advice, little_seen(case))


def _facts(case: Case) -> RunFacts:
    record, scale, numbers, ledger = case.record, case.scale, case.numbers, case.ledger
    raised = bool(ledger.fatal) and ledger.is_over_by(scale.last_step or 0)
    return RunFacts(
        id=record.id,
        source=record.source,
        ranks=record.ranks,
        steps=numbers.steps if case.observed.loop else scale.steps + scale.steps_before,
        started=_iso(record.started_ns),
        ended=_iso(record.last_time_ns),
        clean_end=record.clean_end,
        first_scale=None if np.isnan(scale.first_scale) else scale.first_scale,
        final_scale=case.final_scale,
        overflows=max(ledger.overflows, numbers.skipped_steps),
        skipped=numbers.skipped_steps,
        exception=ledger.fatal[-1].exception if raised else None,
    )


def _iso(time_ns: int | None) -> str | None:
    """A moment as ISO 8601 in UTC, to the second."""
    if not time_ns or time_ns < 0:
        return None
    moment = datetime.fromtimestamp(time_ns // 1_000_000_000, tz=timezone.utc)
    return moment.isoformat().replace("+00:00", "Z")
