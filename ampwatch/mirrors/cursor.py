"""How far one rank's log was handed on; the log itself is the queue, so nothing is held here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ampwatch.mirrors.readings import Points
from ampwatch.rows import Table
from ampwatch.store import Run

_COLUMNS = (
    "step", "time_ns", "skipped", "optimizer", "scale", "scale_after", "loss", "lr", "grad_norm",
    "grad_norm_applied", "step_time_ms",
)  # fmt: skip


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
        self._skipped: dict[int | None, int] = {}  # by optimizer, in the order of first sight

    def waiting(self, run: Run) -> int:
        """How many rows of steps were not read yet."""
        return max(0, run.rows_logged(Table.STEPS, self._rank) - self._steps_read)

    def read(self, run: Run, most: int) -> tuple[Points, ...]:
        """The next rows, at most so many; an item an optimizer."""
        rows = run.logged(Table.STEPS, _COLUMNS, self._rank, self._steps_read, most)
        self._steps_read += rows.num_rows
        rows = _placed(rows, run.info.started_ns)
        if not rows.num_rows:
            return ()
        rows = rows.append_column("memory_peak_bytes", self._peaks(run, rows, most))
        numbers = rows.column("optimizer")
        parts = []
        for number in numbers.unique().to_pylist():
            mine = pc.is_null(numbers) if number is None else pc.equal(numbers, number)
            parts.append(self._points(number, rows.filter(mine)))
        return tuple(part for part in parts if part.rows.num_rows)

    def _points(self, number: int | None, rows: pa.Table) -> Points:
        before = self._skipped.setdefault(number, 0)
        skips = _integers(rows.column("skipped").cast(pa.int8())) > 0
        counts = before + np.cumsum(skips)
        self._skipped[number] = int(counts[-1])
        rows = rows.drop_columns(["skipped", "optimizer"])
        rows = rows.append_column("skipped", pa.array(counts, pa.int64()))
        return Points(self._rank, list(self._skipped).index(number), self._shown(rows, skips))

    def _shown(self, rows: pa.Table, skips: NDArray[np.bool_]) -> pa.Table:
        kept = np.ones(len(skips), np.bool_)
        if self._part.thin > 1:
            kept &= (_integers(rows.column("step")) % self._part.thin == 0) | skips
        if not self._part.shows_past:
            kept &= _integers(rows.column("time_ns")) >= self._part.began_ns
        return rows if kept.all() else rows.filter(pa.array(kept))

    def _peaks(self, run: Run, rows: pa.Table, most: int) -> pa.Array:
        """A column with each sample of the devices at the step then under way."""
        names = ("time_ns", "peak_bytes")
        samples = run.logged(Table.DEVICES, names, self._rank, self._samples_read, most)
        ends = np.maximum.accumulate(_integers(rows.column("time_ns")))
        times = _integers(samples.column("time_ns"))
        due = int(np.searchsorted(np.maximum.accumulate(times), ends[-1], side="right"))
        self._samples_read += due
        known = np.asarray(samples.column("peak_bytes").is_valid().to_numpy(), np.bool_)[:due]
        places = np.minimum(np.searchsorted(ends, times[:due][known]), len(ends) - 1)
        peaks = np.full(len(ends), -1, np.int64)
        np.maximum.at(peaks, places, _integers(samples.column("peak_bytes"))[:due][known])
        return pa.array(peaks, mask=peaks < 0)


def _placed(rows: pa.Table, started_ns: int) -> pa.Table:
    """The rows that have a step. A foreign log may tell no times, and only the scale after each."""
    rows = rows.filter(rows.column("step").is_valid())
    times = rows.column("time_ns").fill_null(started_ns)
    scales = pc.coalesce(rows.column("scale"), rows.column("scale_after"))
    rows = rows.drop_columns(["time_ns", "scale", "scale_after"])
    return rows.append_column("time_ns", times).append_column("scale", scales)


def _integers(column: pa.ChunkedArray) -> NDArray[np.int64]:
    return np.asarray(column.fill_null(0).to_numpy(), np.int64)
