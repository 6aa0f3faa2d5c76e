"""Reads what is new in a run, in portions; the log itself is the queue, so little is kept here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from ampwatch.codec.columns import integers, joined, raw, valid
from ampwatch.follow import Follower, Look, NewFindings, State
from ampwatch.mirrors.readings import Curve, Flags, Integers, Points, Update
from ampwatch.rows import Table
from ampwatch.store import Run

MOST_ROWS = 4096  # rows of a rank in one update, which a client gets at once

_PLAIN = ("scale", "loss", "lr", "grad_norm", "grad_norm_applied", "step_time_ms")
_COLUMNS = ("step", "time_ns", "skipped", "optimizer", "scale_after", *_PLAIN)


@dataclass(frozen=True, slots=True)
class Selection:
    """Which of a run's rows are mirrored; findings are always those of the whole run."""

    thin: int = 1  # 10: every tenth step, and every skipped one
    rank: int | None = None  # only this rank's
    began_ns: int = 0  # start of the followed attempt
    shows_past: bool = True  # earlier attempts as well


class RankReader:
    """Reads a rank's rows from where it stopped, and counts its skips."""

    def __init__(self, rank: int, selection: Selection) -> None:
        self._rank, self._selection = rank, selection
        self._steps_read = self._samples_read = 0
        self._skipped: dict[int, int] = {}  # by optimizer, in order of appearance

    def waiting(self, run: Run) -> int:
        """How many step rows have not been read yet."""
        return max(0, run.rows_logged(Table.STEPS, self._rank) - self._steps_read)

    def read(self, run: Run, most: int) -> tuple[Points, ...]:
        """The next rows, at most so many; one item for each optimizer."""
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
        """One optimizer's mirrored rows, with its skips counted."""
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
        if self._selection.thin > 1:
            shown &= (every.steps % self._selection.thin == 0) | skips
        if not self._selection.shows_past:
            shown &= every.times_ns >= self._selection.began_ns
        return shown

    def _peaks(self, run: Run, times_ns: Integers, most: int) -> Curve:
        """Each device sample, at the step that was running then."""
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


class UpdateReader:
    """A run as one mirror gets it. An update is repeated until `taken` confirms it."""

    def __init__(self, folder: Path, selection: Selection) -> None:
        self._place = str(folder)
        self._selection = selection
        self._follower: Follower | None = None
        self._look: Look | None = None
        self._readers: dict[int, RankReader] = {}
        self._new = NewFindings()
        self._pending: Update | None = None
        self._shown: tuple[int, bool] | None = None  # the rows so far, and whether the run was over

    def look(self, follower: Follower, max_age_s: float) -> None:
        """Read what was logged since the last look; RunError if the run cannot be read."""
        self._look, self._follower = follower.look(max_age_s), follower

    def next(self) -> Update | None:
        """The next update; None if there is none."""
        if self._pending is None and self._follower is not None and self._look is not None:
            with self._follower.reading() as run:
                self._pending = self._update(run, self._look)
        return self._pending

    def taken(self) -> None:
        """Confirm that the update has arrived."""
        update, self._pending = self._pending, None
        if update is not None and update.diagnosis is not None and self._look is not None:
            self._shown = (self._look.rows, update.is_over)
            if update.is_over:
                self._follower = None

    @property
    def is_done(self) -> bool:
        """Whether the run is over and everything has arrived."""
        return self._look is not None and self._shown == (self._look.rows, True)

    @property
    def is_behind(self) -> bool:
        """Whether an update did not arrive."""
        return self._pending is not None

    @property
    def waiting_rows(self) -> int:
        """How many rows did not arrive."""
        pending = self._pending.row_count if self._pending else 0
        if self._follower is None:
            return pending
        with self._follower.reading() as run:
            return pending + self._waiting(run)

    # --- within ----------------------------------------------------------------------------------

    def _update(self, run: Run, look: Look) -> Update | None:
        points = self._points(run)
        if points or self._waiting(
            run
        ):  # findings come separately, so that a failing one repeats no rows
            return Update(run.info, self._place, points)
        # If one rank is mirrored, it ends with that rank.
        state = State.ENDED if self._selection.rank in look.ended_ranks else look.state
        is_over = state is not State.LIVE
        if self._shown == (look.rows, is_over):
            return None
        diagnosis = look.judged if is_over else look.diagnosis
        return Update(run.info, self._place, (), diagnosis, self._new.of(diagnosis), state)

    def _points(self, run: Run) -> tuple[Points, ...]:
        """The next rows to mirror, without those that are thinned out."""
        for rank in run.ranks:
            if self._selection.rank in (None, rank):
                self._readers.setdefault(rank, RankReader(rank, self._selection))
        while True:
            before = self._waiting(run)
            found = [p for reader in self._readers.values() for p in reader.read(run, MOST_ROWS)]
            if found or not 0 < self._waiting(run) < before:
                return tuple(found)

    def _waiting(self, run: Run) -> int:
        return sum(reader.waiting(run) for reader in self._readers.values())


def _curves(rows: pa.Table) -> dict[str, Curve]:
    """The plain columns. An imported log may have only the scale after each step."""
    found = {name: _curve(rows, name) for name in _PLAIN}
    after, scale = _curve(rows, "scale_after"), found["scale"]
    values = np.where(scale.there, scale.values, after.values)
    found["scale"] = Curve(values, scale.there | after.there)
    return found


def _curve(rows: pa.Table, name: str) -> Curve:
    array = joined(rows.column(name))
    return Curve(raw(array).astype(np.float64), valid(array))
