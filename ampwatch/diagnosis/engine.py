"""The engine: holds what is known of a run, takes in what is new, gives a diagnosis at any time.

Blocks whose rows can hardly change any more are folded once and for all; the rest is folded afresh
at each look, onto a copy. A row that comes late all the same, into a block already folded, makes
the engine begin anew. So what it says after some rows is what it would say had it read those rows
at once, whatever their batches were.
"""

from __future__ import annotations

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


class Engine:
    """Diagnoses a run as it grows: `feed` it the run whenever there is more, `look` at any time."""

    def __init__(self, *, block_rows: int = BLOCK_ROWS, settled_rows: int = _SETTLED_ROWS) -> None:
        self._block_rows = block_rows
        self._settled_rows = settled_rows
        self._facts: RecordFacts | None = None
        self._spine_rank = 0
        self._cutter = Cutter(block_rows=block_rows)
        self._state: State | None = None

    def feed(self, run: Record) -> Engine:
        """Take in what is new in a run; always the same run."""
        spine = min(run.ranks, default=0)
        if self._state is None or spine != self._spine_rank or not self._show(run):
            self._spine_rank = spine
            self._cutter = Cutter(block_rows=self._block_rows)
            self._state = new_state(run.info)
            assert self._show(run), "nothing was taken, so nothing can be late"
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
        self._fold_settled(self._state)
        return self

    def look(self) -> Diagnosis:
        """What is wrong with the run, since when, why, and what to do about it."""
        return conclude(self.case())

    def case(self) -> Case:
        """What the rules are given, as the run stands now."""
        if self._facts is None or self._state is None:
            raise RuntimeError("The engine has no run yet: call feed(run) before look().")
        state, cutter = self._state.copy(), self._cutter.copy()
        while (block := cutter.next_whole()) is not None:
            state.fold(block)
        state.fold(cutter.rest())
        state.finish()
        return Case(self._facts, state)

    # --- within ----------------------------------------------------------------------------------

    def _show(self, run: Record) -> bool:
        """Show every lane its table; False if rows came among those that were folded."""
        cutter, spine = self._cutter, self._spine_rank
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
        return fine

    def _fold_settled(self, state: State) -> None:
        cutter = self._cutter
        while cutter.is_settled(self._settled_rows, _PATIENCE_ROWS):
            block = cutter.next_whole()
            if block is None:
                return
            state.fold(block)


def diagnose(run: Record) -> Diagnosis:
    """What is wrong with a run, since when, why, and what to do about it."""
    return Engine().feed(run).look()


def conclude(case: Case) -> Diagnosis:
    """Findings, verdict and advice of a case."""
    findings = link([finding for rule in RULES for finding in rule.findings(case)])
    verdict = judge(case, findings)
    return Diagnosis(_facts(case), verdict, findings, advise(case, verdict, findings))


def _facts(case: Case) -> RunFacts:
    record, scale, numbers = case.record, case.scale, case.numbers
    return RunFacts(
        id=record.id,
        source=record.source,
        ranks=record.ranks,
        steps=scale.steps if case.is_foreign else numbers.steps,
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
