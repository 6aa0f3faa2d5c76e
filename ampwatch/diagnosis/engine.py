"""The engine: holds what is known of a run, takes in what is new, gives a diagnosis at any time.

Blocks whose rows can hardly change any more are folded once and for all. On a copy of that stand
the blocks after them, and on a copy of that smaller blocks yet, so that a look folds anew only the
last few rows. A row that comes late all the same, among rows already folded, takes the engine back
to the state before them, if need be to the beginning. So what it says after some rows is what it
would say had it read those rows at once, whatever their batches were.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone

import numpy as np

from ampwatch.diagnosis.blocks import (
    EVENT_COLUMNS,
    LAYER_COLUMNS,
    OTHER_RANK_COLUMNS,
    STEP_COLUMNS,
)
from ampwatch.diagnosis.case import Case, RecordFacts
from ampwatch.diagnosis.causes import advise, judge, link
from ampwatch.diagnosis.device_lanes import DeviceLanes
from ampwatch.diagnosis.enough_to_judge import little_seen
from ampwatch.diagnosis.findings import Diagnosis, RunFacts
from ampwatch.diagnosis.lanes import BLOCK_ROWS, Cutter, Lane
from ampwatch.diagnosis.rules import RULES
from ampwatch.diagnosis.signals import Record
from ampwatch.diagnosis.state import State, new_state
from ampwatch.rows import Table

# Rows behind a block before it is folded for good: a ring of 64 steps is written after an overflow,
# and rows wait a quarter of a second in the trainer.
_SETTLED_ROWS = 512
# A rank that lags is waited for, but not for ever: what waits is folded again at each look.
_PATIENCE_ROWS = 16 * BLOCK_ROWS
# Each row that comes too late costs a new beginning, so the next time is waited twice as long.
_MORE_PATIENCE = 2
# The last whole block's rows are cut into so many parts, and wait for so much less.
_PARTS = 4


@dataclass(slots=True)
class _Progress:
    """What was folded so far, and where the next block begins."""

    state: State
    cutter: Cutter

    def copy(self) -> _Progress:
        return _Progress(self.state.copy(), self.cutter.copy())

    def fold_next(self) -> bool:
        """Fold the next whole block; False if there is none."""
        block = self.cutter.next_whole()
        if block is None:
            return False
        self.state.fold(block)
        return True


class Engine:
    """Diagnoses a run as it grows: `feed` it the run whenever there is more, `look` at any time."""

    def __init__(self, *, block_rows: int = BLOCK_ROWS, settled_rows: int = _SETTLED_ROWS) -> None:
        self._block_rows = block_rows
        self._settled_rows = settled_rows
        self._facts: RecordFacts | None = None
        self._case: Case | None = None  # of the rows fed last, once somebody looked
        self._patience_rows = _PATIENCE_ROWS
        self._spine_rank = 0
        # Settled blocks; on a copy all whole blocks; on a copy of that the parts of the next one.
        self._tiers: list[_Progress] = []
        self._devices = DeviceLanes()

    def feed(self, run: Record) -> Engine:
        """Take in what is new in a run; always the same run."""
        spine = min(run.ranks, default=0)
        if spine != self._spine_rank or not self._tiers or not self._show(run):
            if self._tiers:
                self._settled_rows *= _MORE_PATIENCE
                self._patience_rows *= _MORE_PATIENCE
            self._spine_rank = spine
            begin = _Progress(new_state(run.info), Cutter(block_rows=self._block_rows))
            self._tiers = [begin]
            assert self._show(run), "nothing was taken, so nothing can be late"
        if not self._devices.show(run):
            self._devices = DeviceLanes()
            self._devices.show(run)
        self._case = None
        self._facts = RecordFacts(
            id=run.info.id,
            source=run.info.source,
            started_ns=run.info.started_ns,
            ranks=tuple(run.ranks),
            notes=tuple(run.notes),
            marks=run.info.marks,
            clean_end=run.clean_end,
            last_time_ns=run.last_time_ns,
        )
        self._fold_settled(self._tiers[0], self._settled_rows)
        return self

    def look(self) -> Diagnosis:
        """What is wrong with the run, since when, why, and what to do about it."""
        return conclude(self.case())

    def case(self) -> Case:
        """What the rules are given, as the run stands now."""
        if self._facts is None:
            raise RuntimeError("The engine has no run yet: call feed(run) before look().")
        if self._case is None:
            last = self._caught_up().copy()
            while last.fold_next():
                pass
            last.state.fold(last.cutter.rest())
            last.state.devices = self._devices.course()
            last.state.finish()
            self._case = Case.of(self._facts, last.state)
        return self._case

    # --- within ----------------------------------------------------------------------------------

    def _show(self, run: Record) -> bool:
        """Show every lane its table; False if rows came among those that were folded for good."""
        cutter, spine = self._tiers[0].cutter, self._spine_rank
        fine = cutter.spine.show(run.read(Table.STEPS, columns=STEP_COLUMNS, rank=spine))
        fine &= cutter.layers.show(run.read(Table.LAYERS, columns=LAYER_COLUMNS))
        fine &= cutter.events.show(run.read(Table.EVENTS, columns=EVENT_COLUMNS))
        for rank in run.ranks:
            if rank != spine:
                if rank not in cutter.others:
                    fine &= not cutter.entries  # it may belong to blocks that were folded
                    cutter.others[rank] = Lane()
                rows = run.read(Table.STEPS, columns=OTHER_RANK_COLUMNS, rank=rank)
                fine &= cutter.others[rank].show(rows)
        for at, tier in enumerate(self._tiers[1:], start=1):
            if not tier.cutter.follow(cutter):
                del self._tiers[at:]  # it is made again from the one before it
                break
        return fine

    def _caught_up(self) -> _Progress:
        """The state nearest to the record's end that the next look may start from, too."""
        settled, *later = self._tiers
        if later and later[0].cutter.entries < settled.cutter.entries:
            later = []  # so much came at once that it was overtaken
        whole = later[0] if later else settled.copy()
        grown = False
        while whole.fold_next():
            grown = True
        if grown or len(later) < 2:
            parts = whole.copy()
            parts.cutter.block_rows = max(1, self._block_rows // _PARTS)
        else:
            parts = later[1]
        self._fold_settled(parts, self._settled_rows // _PARTS)
        self._tiers = [settled, whole, parts]
        return parts

    def _fold_settled(self, tier: _Progress, rows: int) -> None:
        while tier.cutter.is_settled(rows, self._patience_rows) and tier.fold_next():
            pass


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
    record, scale, numbers = case.record, case.scale, case.numbers
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
        overflows=max(case.ledger.overflows, numbers.skipped_steps),
        skipped=numbers.skipped_steps,
    )


def _iso(time_ns: int | None) -> str | None:
    """A moment as ISO 8601 in UTC, to the second."""
    if not time_ns or time_ns < 0:
        return None
    moment = datetime.fromtimestamp(time_ns // 1_000_000_000, tz=timezone.utc)
    return moment.isoformat().replace("+00:00", "Z")
