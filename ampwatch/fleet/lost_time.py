"""Counts a run's lost steps and hours: how many steps were in vain, and how long they took.

A step is lost if it was skipped, or if it came after the first error that still holds at the run's
end. When a run recovers from an error, the engine lowers its severity to info, so such errors do
not count.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ampwatch.diagnosis import Diagnosis, Severity
from ampwatch.diagnosis.column_arrays import Floats, Integers, Mask, flags, numbers, steps_of
from ampwatch.rows import Table
from ampwatch.store import Reading, Run

_COLUMNS = ("step", "skipped", "time_ns", "step_time_ms", "lr")
_MS_PER_HOUR = 3.6e6


@dataclass(frozen=True, slots=True)
class LostTime:
    """A run's lost steps and hours; hours are None where the rows tell no times.

    `highest_rate` is the highest learning rate of the first group; None where the rows tell none.
    """

    steps: int
    lost_hours: float | None
    hours: float | None
    highest_rate: float | None


def lost_time(run: Run, diagnosis: Diagnosis) -> LostTime:
    """Count the lost steps and hours of a run, from its lowest rank's rows, in constant memory."""
    since = first_standing_error(diagnosis)
    count = _LostCount(since)
    reading, taken = Reading(run), 0
    for _ in reading.portions():
        rows = reading.read(Table.STEPS, _COLUMNS, min(run.ranks, default=0), taken)
        taken += rows.num_rows
        if rows.num_rows:
            times = numbers(rows, "time_ns"), numbers(rows, "step_time_ms")
            count.take(steps_of(rows), flags(rows, "skipped") == 1, *times)
            count.take_rates(numbers(rows, "lr"))
            count.tells_skips |= bool((flags(rows, "skipped") >= 0).any())
    skipped = diagnosis.run.skipped
    # Rows that do not say which steps were skipped do not say whether those came before the error.
    steps = skipped + count.after if count.tells_skips else max(skipped, count.after)
    lost_ms, all_ms = (count.lost_ms, count.all_ms) if count.is_timed else (None, None)
    return LostTime(
        steps=min(steps, max(diagnosis.run.steps, skipped)),
        lost_hours=None if lost_ms is None else lost_ms / _MS_PER_HOUR,
        hours=None if all_ms is None else all_ms / _MS_PER_HOUR,
        highest_rate=count.highest_rate if np.isfinite(count.highest_rate) else None,
    )


def first_standing_error(diagnosis: Diagnosis) -> int | None:
    """The step from which on steps are lost: of the first error that holds at the run's end.

    None if there is no such error.
    """
    errors = [one for one in diagnosis.findings if one.severity is Severity.ERROR]
    return min((one.first_step for one in errors if one.first_step is not None), default=None)


class _LostCount:
    """Counts lost steps and their time over rows, in the order of the rows."""

    def __init__(self, since: int | None) -> None:
        self.after = 0  # steps after the error that were not skipped
        self.lost_ms = self.all_ms = 0.0
        self.is_timed = self.tells_skips = False
        self.highest_rate = -np.inf
        self._since = np.inf if since is None else since
        self._last: tuple[int, float] | None = None  # step and time of the row before

    def take_rates(self, rates: Floats) -> None:
        """Keep the highest of these learning rates."""
        highest = float(np.max(rates, initial=-np.inf, where=np.isfinite(rates)))
        self.highest_rate = max(self.highest_rate, highest)

    def take(self, step: Integers, skipped: Mask, time_ns: Floats, step_ms: Floats) -> None:
        """Count rows as lost or not, with their time.

        If a step has several rows, one per optimizer, the times of the first count.
        """
        last_step, last_ns = self._last or (int(step[0]) - 1, np.nan)
        before = np.concatenate([[last_step], step[:-1]])
        first = np.flatnonzero(step != before)
        self._last = int(step[-1]), float(time_ns[-1])
        if not len(first):
            return
        told = np.logical_or.reduceat(skipped, first)
        steps_apart = np.maximum(1, (step - before)[first])
        passed = np.diff(np.concatenate([[last_ns], time_ns]))[first] / 1e6
        lasted = np.where(np.isnan(step_ms[first]), passed, step_ms[first] * steps_apart)
        known = np.isfinite(lasted)
        lasted = np.where(known, np.maximum(lasted, 0.0), 0.0)
        is_after = step[first] >= self._since
        self.is_timed |= bool(known.any())
        self.all_ms += float(lasted.sum())
        self.lost_ms += float(lasted[told | is_after].sum())
        self.after += int(steps_apart[is_after & ~told].sum())
