"""How far one rank's log was handed on; the log itself is the queue, so nothing is held here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ampwatch.mirrors.readings import Curve, Flags, Integers, Points
from ampwatch.rows import Table
from ampwatch.store import Run
from ampwatch.store.columns import integers, joined, raw, valid

_PLAIN = ("scale", "loss", "lr", "grad_norm", "grad_norm_applied", "step_time_ms")
_COLUMNS = ("step", "time_ns", "skipped", "optimizer", "scale_after", *_PLAIN)


@dataclass(frozen=True, slots=True)
class Part:
    """Which of a run's rows are shown."""

    thin: int = 1  # 10: each tenth step, and every skipped one
    rank: int | None = None  # this one's only
    began_ns: int = 0  # when the attempt began that is followed
    shows_past: bool = True  # attempts before it, too


class Cursor:
    """Reads a rank's rows on from where it stopped, and counts its skips."""

    def __init__(self, rank: int, part: Part) -> None:
        self._rank, self._part = rank, part
        self._steps_read = self._samples_read = 0
        self._skipped: dict[int, int] = {}  # by optimizer, in the order of first sight

    def waiting(self, run: Run) -> int:
        """How many rows of steps were not read yet."""
        return max(0, run.rows_logged(Table.STEPS, self._rank) - self._steps_read)

    def read(self, run: Run, most: int) -> tuple[Points, ...]:
        """The next rows, at most so many; an item an optimizer."""
        rows = run.logged(Table.STEPS, _COLUMNS, self._rank, self._steps_read, most)
        self._steps_read += rows.num_rows
        rows = rows.filter(rows.column("step").is_valid())
        if not rows.num_rows:
            return ()
        steps = integers(rows.column("step"))
        times_ns = integers(rows.column("time_ns"), null=run.info.started_ns)
        peaks = self._peaks(run, times_ns, most)
        every = Points(
            self._rank, 0, steps, times_ns, {**_curves(rows), "memory_peak_bytes": peaks}
        )
        skips = integers(rows.column("skipped").cast(pa.int8()), null=0) > 0
        numbers = integers(rows.column("optimizer"))
        parts = [self._of(n, every, skips, numbers == n) for n in np.unique(numbers).tolist()]
        return tuple(part for part in parts if len(part.steps))

    def _of(self, number: int, every: Points, skips: Flags, mine: Flags) -> Points:
        """One optimizer's rows, those that are shown, with its skips counted."""
        counts = np.zeros(len(mine))
        counts[mine] = self._skipped.setdefault(number, 0) + np.cumsum(skips[mine])
        self._skipped[number] = int(counts.max())
        place = list(self._skipped).index(number)
        curves = {**every.curves, "skipped": Curve(counts, np.ones(len(mine), np.bool_))}
        shown = mine & self._shown(every, skips)
        return Points(
            every.rank, place, every.steps[shown], every.times_ns[shown],
            {name: curve.at(shown) for name, curve in curves.items()},
        )  # fmt: skip

    def _shown(self, every: Points, skips: Flags) -> Flags:
        shown = np.ones(len(skips), np.bool_)
        if self._part.thin > 1:
            shown &= (every.steps % self._part.thin == 0) | skips
        if not self._part.shows_past:
            shown &= every.times_ns >= self._part.began_ns
        return shown

    def _peaks(self, run: Run, times_ns: Integers, most: int) -> Curve:
        """Each sample of the devices at the step then under way."""
        names = ("time_ns", "peak_bytes")
        samples = run.logged(Table.DEVICES, names, self._rank, self._samples_read, most)
        ends = np.maximum.accumulate(times_ns)
        sampled = integers(samples.column("time_ns"))
        due = int(np.searchsorted(np.maximum.accumulate(sampled), ends[-1], side="right"))
        self._samples_read += due
        values = integers(samples.column("peak_bytes"))[:due]
        places = np.minimum(np.searchsorted(ends, sampled[:due]), len(ends) - 1)
        peaks = np.full(len(ends), -1, np.int64)
        np.maximum.at(peaks, places, values)
        return Curve(peaks.astype(np.float64), peaks >= 0)


def _curves(rows: pa.Table) -> dict[str, Curve]:
    """The plain columns. A foreign log may know only the scale after each step."""
    found = {name: _curve(rows, name) for name in _PLAIN}
    after, scale = _curve(rows, "scale_after"), found["scale"]
    values = np.where(scale.there, scale.values, after.values)
    found["scale"] = Curve(values, scale.there | after.there)
    return found


def _curve(rows: pa.Table, name: str) -> Curve:
    array = joined(rows.column(name))
    return Curve(raw(array).astype(np.float64), valid(array))
