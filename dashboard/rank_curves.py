"""The curves of several ranks as one set: the lowest rank's, and those of others that differ.

Another rank's columns bear its number (`loss@1`) and lie on the steps of the lowest rank. Where
ranks train together most of them are the same on all ranks, and are not there a second time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from bounded_history import HELD_ROWS, BoundedHistory
from numpy.typing import NDArray
from step_curves import Span, StepCurves, StepCurvesReader

from ampwatch.report.overview_chart import LINES, SCALE, TIME
from ampwatch.report.thinning import Floats, Steps
from ampwatch.store import Run

MOST = 8  # ranks over one another
_PATIENCE_NS = 10 * 10**9  # a rank that is later than this is not waited for
_SEGMENT = 1 << 48  # more steps than there are between a restart and the next
_NAMES = (SCALE, *LINES)  # that are compared; the time is the lowest rank's


def rank_column(name: str, rank: int) -> str:
    """The name of the column that holds a rank's values, such as `loss@1`."""
    return f"{name}@{rank}"


class RankCurvesReader:
    """Reads the curves of several ranks as they grow, and joins them on the lowest rank's steps.

    Of each rank no more rows are taken than its curves holds, until they are joined.
    """

    def __init__(
        self, ranks: tuple[int, ...], *, epoch: int = 0, now_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._ranks, self._now_ns = ranks, now_ns
        self._epoch = epoch - 1
        self._is_near = False  # only the rows of a span are taken
        self._begin({rank: StepCurvesReader(rank=rank, keeps_past=False) for rank in ranks})

    @property
    def curves(self) -> StepCurves:
        """The joined curves of the ranks read so far; later rows do not change them."""
        return self._curves

    @property
    def waits(self) -> bool:
        """Whether rows of the lowest rank are held back until other ranks have come as far."""
        return self._rows < len(self._numbers[self._ranks[0]].curves)

    def read(self, run: Run) -> StepCurves:
        """Read new rows of all ranks, as far as every rank has come that still writes."""
        before = self._rows
        is_over = self._is_near or run.clean_end
        is_over = is_over or self._now_ns() - run.last_time_ns > _PATIENCE_NS
        while True:
            more = self._read_portions(run)
            spine, *others = (numbers.snapshot() for numbers in self._numbers.values())
            theirs = dict(zip(self._ranks[1:], others, strict=True))
            if not self._continues(spine, theirs):
                for numbers in self._numbers.values():
                    numbers.begin_anew()
                self._begin(self._numbers)
                before = -1
                continue
            end = len(spine)
            if more or not is_over:
                end = _rows_reached(spine, theirs, self._rows)
            if end > self._rows:
                self._join(spine, theirs, end)
            elif not more:
                break
        if self._rows != before:
            self._curves = self._snapshot(spine, theirs)
        return self._curves

    def zoomed(self, run: Run, span: Span) -> StepCurves:
        """The joined curves of the ranks around a span of steps, every row of it."""
        found = RankCurvesReader(self._ranks, epoch=self._epoch)
        found._is_near = True
        found._begin(
            {rank: numbers.reader_of_span(span) for rank, numbers in self._numbers.items()}
        )
        return replace(found.read(run), present=self._curves.present)

    # --- within ----------------------------------------------------------------------------------

    def _begin(self, numbers: dict[int, StepCurvesReader]) -> None:
        self._epoch += 1
        self._numbers = numbers
        self._history = BoundedHistory((*_NAMES, TIME))
        self._rows, self._last_key, self._last_step = 0, -1, -1
        self._taken = dict.fromkeys(self._ranks[1:], 0)
        self._differs: frozenset[str] = frozenset()
        several = [one.curves for one in numbers.values()]
        self._epochs = tuple(curves.epoch for curves in several)
        self._curves = several[0]

    def _read_portions(self, run: Run) -> bool:
        """Read a portion of each rank's rows; whether there may be more."""
        more = False
        for rank, numbers in self._numbers.items():
            joined = self._taken.get(rank, self._rows)
            if numbers.rows - joined <= HELD_ROWS // 2:
                more = numbers.read_portion(run) or more
        return more

    def _continues(self, spine: StepCurves, others: dict[int, StepCurves]) -> bool:
        """Whether each rank's rows go on from those already joined."""
        return self._epochs == _epochs(spine, others) and not any(
            (_rising_steps(curves, self._taken[rank]) <= self._last_key).any()
            for rank, curves in others.items()
        )

    def _join(self, spine: StepCurves, others: dict[int, StepCurves], end: int) -> None:
        keys = _rising_steps(spine, self._rows)[: end - self._rows]
        new = slice(self._rows - spine.first_row, end - spine.first_row)
        mine = {name: values[new] for name, values in spine.columns.items()}
        added = dict(mine)
        self._last_key = int(keys.max())
        for rank, curves in others.items():
            theirs = _rising_steps(curves, self._taken[rank])
            at, there = _matching_rows(keys, theirs)
            at += self._taken[rank] - curves.first_row
            self._taken[rank] += int(np.searchsorted(theirs, self._last_key, side="right"))
            for name in _NAMES:
                values = np.full(len(keys), np.nan, np.float32)
                values[there] = curves.columns[name][at[there]]
                self._add_rank_values(added, rank_column(name, rank), mine[name], values, there)
        step = spine.step[new]
        self._history.add(step, added, self._skipped(step, (spine, *others.values())))
        self._rows = end

    def _add_rank_values(
        self, added: dict[str, Floats], column: str, mine: Floats, theirs: Floats, there: Any
    ) -> None:
        """Add another rank's values, once they differ from those of the lowest rank."""
        lowest = column.partition("@")[0]
        if column not in self._history.columns:
            if _same(mine, theirs):
                return
            self._history.fork(column, like=lowest)
        added[column] = theirs
        if column not in self._differs and not _same(mine[there], theirs[there]):
            self._differs |= {column}  # a column more to be shown: who has the others lacks it
            self._epoch += 1

    def _skipped(self, step: Steps, several: Sequence[StepCurves]) -> Steps:
        """The new steps that any rank skipped, up to the last step of all ranks."""
        every = np.unique(np.concatenate([curves.skips for curves in several]))
        found = []
        for one_pass in np.split(step, np.flatnonzero(np.diff(step) < 0) + 1):
            begin = min(self._last_step + 1, int(one_pass[0]))  # after a restart: its first
            self._last_step = int(one_pass[-1])
            low, high = np.searchsorted(every, [begin, self._last_step + 1])
            found.append(every[low:high])
        return np.concatenate(found)

    def _snapshot(self, spine: StepCurves, others: dict[int, StepCurves]) -> StepCurves:
        history, several = self._history, (spine, *others.values())
        shown_names = (*_NAMES, TIME, *self._differs)
        shown = {n: c.values for n, c in history.columns.items() if n in shown_names}
        return replace(
            spine,
            epoch=self._epoch,
            step=history.step.values,
            columns=shown,
            skips=history.skips.values,
            present=spine.present | self._differs,
            stepped=frozenset({SCALE, *(rank_column(SCALE, rank) for rank in others)}),
            starts=history.starts,
            clips=any(curves.clips for curves in several),
            last_step_ns=max(curves.last_step_ns for curves in several),
            newest=dict(history.latest),
            past=history.past,
        )


def _epochs(spine: StepCurves, others: dict[int, StepCurves]) -> tuple[int, ...]:
    return spine.epoch, *(curves.epoch for curves in others.values())


def _rising_steps(curves: StepCurves, start: int = 0) -> NDArray[np.int64]:
    """The steps from a row on, made to rise where a restart has taken the rank back."""
    rows = np.arange(start, len(curves))
    passes = np.searchsorted(curves.starts, rows, side="right")
    return curves.step[curves.since(start)] + passes * _SEGMENT


def _matching_rows(keys: NDArray[np.int64], theirs: NDArray[np.int64]) -> tuple[Any, Any]:
    """For each step its row among another rank's rows, and whether it is there at all."""
    at = np.searchsorted(theirs, keys)
    there = at < len(theirs)
    there[there] = theirs[at[there]] == keys[there]
    return at, there


def _rows_reached(spine: StepCurves, others: dict[int, StepCurves], start: int) -> int:
    """How many rows of the lowest rank all others have reached, but those long silent."""
    keys, end = _rising_steps(spine, start), len(spine)
    for curves in others.values():
        if spine.last_step_ns - curves.last_step_ns > _PATIENCE_NS:
            continue
        last = int(_rising_steps(curves, len(curves) - 1)[0]) if len(curves) else -1
        end = min(end, start + int(np.searchsorted(keys, last, side="right")))
    return end


def _same(one: NDArray[np.float32], other: NDArray[np.float32]) -> bool:
    return np.array_equal(one, other, equal_nan=True)
