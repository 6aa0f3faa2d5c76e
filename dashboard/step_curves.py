"""A run's curves by step: its last rows as they are, few points of all before them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from bounded_history import EXACT_WIDTH, HELD_ROWS, BoundedHistory, KeptPast, RowPlaces
from numpy.typing import NDArray

from ampwatch.report import thinning
from ampwatch.report.overview_chart import CLIP_SHARE, CLIPPED, LINES, SCALE, TIME
from ampwatch.report.thinning import Floats, NotFinite, Rug, Steps, Stretches
from ampwatch.rows import Table
from ampwatch.store import Reading, Run

FINE = 1000  # stretches of steps, whose extremes make a line across a screen
_QUICK = ("step", "optimizer", "scale", "skipped")  # which compress well: read in no time
_TOLD_AFTER = "scale_after"  # all that some foreign logs tell
_READ = (*_QUICK, "time_ns", "autocast_dtype", *LINES)
_PORTION_ROWS = 1 << 18  # read at once

Span: TypeAlias = "tuple[int, int]"


@dataclass(frozen=True, slots=True)
class NumberAge:
    """When a column of the curves last held a number: at which step, None if at the newest."""

    step: int | None
    is_broken: bool  # whether what came since was not finite, rather than not logged


@dataclass(frozen=True, slots=True)
class StepCurves:
    """A run's curves by step, as they stood at one moment; nan where absent or not finite."""

    epoch: int  # another one where rows seen before no longer hold
    step: Steps  # of the rows that are held: all of them, or the last ones
    columns: dict[str, Floats]
    skips: Steps  # the steps among them that any optimizer skipped
    present: frozenset[str]  # the columns in which anything was logged
    starts: tuple[int, ...]  # rows where steps begin anew, after a restart
    clips: bool = False  # whether any gradient was changed between its norm and its use
    autocast_dtype: str | None = None
    last_step_ns: int = 0  # when the newest step ended
    hole: float = 0.0  # so many steps without a row are usual
    stepped: frozenset[str] = frozenset({SCALE})  # the columns drawn as stairs
    broken: Mapping[str, int] = field(default_factory=dict)  # a column's last row with inf or nan
    odd: Mapping[str, Stretches] = field(default_factory=dict)  # where a column has inf or nan
    # A column's last number, the row and the step of it.
    newest: Mapping[str, tuple[float, int, int]] = field(default_factory=dict)
    past: KeptPast | None = None
    zoom: Callable[[Span], StepCurves] | None = None  # reads the rows of a span from the log

    def __len__(self) -> int:
        return self.first_row + len(self.step)

    @property
    def first_row(self) -> int:
        """The number of the first row that the curves hold."""
        return 0 if self.past is None else self.past.rows

    @property
    def ends(self) -> Span:
        """The lowest and the highest step of the curves; 0 and 0 if they are empty."""
        if self.past is not None:
            return self.past.ends
        if not len(self.step):
            return 0, 0
        return int(self.step.min()), int(self.step.max())

    def since(self, row: int) -> slice:
        """The held rows of the curves from this row number on, as a slice."""
        return slice(max(0, row - self.first_row), None)

    def rows_within(self, first: int, last: int, start: int = 0) -> NDArray[np.intp] | slice:
        """The held rows from number `start` on, of steps first to last, and one more each side."""
        begin = max(0, start - self.first_row)
        begun = [at - self.first_row for at in self.starts if at > self.first_row]
        slices = []  # of each pass over the steps
        for low, high in pairwise([0, *begun, len(self.step)]):
            steps = self.step[low:high]
            left = low + max(0, int(np.searchsorted(steps, first)) - 1)
            right = low + min(high - low, int(np.searchsorted(steps, last, side="right")) + 1)
            slices.append(slice(max(left, begin), max(right, begin)))
        if len(slices) == 1:
            return slices[0]
        return np.concatenate([np.arange(part.start, part.stop) for part in slices])

    def points(self, column: str, span: Span | None = None) -> tuple[Steps, Floats]:
        """A column's points in a span, nan where absent; of rows not held, those that are kept."""
        if self.past is None or (span is not None and self._holds(span)):
            rows = slice(None) if span is None else self.rows_within(*span)
            return self.step[rows], self.columns[column][rows]
        points = self.past.points[column]
        step, values = points.step, points.values
        if span is None:
            return step, values
        inside = with_neighbours((step >= span[0]) & (step <= span[1]))
        return step[inside], values[inside]

    def within(self, span: Span | None, fine: int = FINE) -> StepCurves:
        """These curves, or those of the span read from the log, if these are too coarse for it."""
        if span is None or self.past is None or self.zoom is None or self._holds(span):
            return self
        width = max(1.0, (span[1] - span[0] + 1) / thinning.RUG_CELLS)
        widest = max(points.width for points in self.past.points.values())
        is_fine = widest <= EXACT_WIDTH or widest * fine <= span[1] - span[0]
        return self if is_fine and self.past.tick_width <= width else self.zoom(span)

    def _holds(self, span: Span) -> bool:
        """Whether the curves hold all rows of the span."""
        one_pass = not any(at > 0 for at in self.starts)
        return one_pass and len(self.step) > 0 and int(self.step[0]) < span[0]

    def latest(self, column: str) -> tuple[float | None, int]:
        """The last number of a column, and how many rows came after it."""
        if column not in self.newest:
            return None, len(self)
        value, row, _ = self.newest[column]
        return value, len(self) - 1 - row

    def age(self, column: str) -> NumberAge:
        """When a column of the curves last held a number."""
        _, row, step = self.newest.get(column, (None, len(self) - 1, 0))
        if row == len(self) - 1:
            return NumberAge(None, is_broken=False)
        return NumberAge(step, is_broken=self.broken.get(column, -1) > row)

    @property
    def skip_count(self) -> int:
        """How many steps of the curves were skipped."""
        return len(self.skips) if self.past is None else self.past.skip_count

    def rug(self, first: int, last: int) -> Rug:
        """The skipped steps in a range of steps, as ticks for the chart."""
        skips = self.skips
        if self.past is not None and not self._holds((first, last)):
            if self.past.tick_width > 1:
                return thinning.merged_ticks(self.past.ticks, first, last)
            skips = self.past.ticks.first
        skips = np.unique(skips) if self.starts else skips
        low, high = np.searchsorted(skips, first), np.searchsorted(skips, last, side="right")
        return thinning.merged(skips[low:high], first, last)


class StepCurvesReader:
    """Reads one rank's step curves as they grow: `read` takes new rows, `curves` holds all."""

    waits = False  # no row is held back

    def __init__(
        self,
        *,
        rank: int | None = None,
        epoch: int = 0,
        quick: bool = False,
        keeps_past: bool = True,
    ) -> None:
        """Of the lowest rank, if no other is named; `epoch` is that of the first rows.

        `quick` takes the scale and the skips alone: of a long run they are there at once.
        """
        self._rank, self._keeps_past = rank, keeps_past
        self._began_ns = 0  # of the first row that tells
        self._portion_rows = _PORTION_ROWS if keeps_past else HELD_ROWS // 2
        self._ranges: list[tuple[int, int]] | None = None  # the only rows to take, of the log
        self._only: Span | None = None  # the only steps to take, and a row at each side of them
        self._lines = () if quick else LINES
        self._names = _QUICK if quick else _READ
        self._epoch = epoch - (2 if quick else 1)
        self._reading: Reading | None = None  # of a log that is not in order
        self._at_once = False
        self._taken = 0  # rows
        self._last_step: int | None = None
        self._begin()

    @property
    def curves(self) -> StepCurves:
        """The curves of all rows read so far; later rows do not change them."""
        return self._curves

    def read(self, run: Run) -> StepCurves:
        """Read the new rows of the run into the curves; if older rows changed, read all anew."""
        before = self._taken
        while self.read_portion(run):
            pass
        if self._taken != before:
            self._curves = self._snapshot()
        return self._curves

    def read_portion(self, run: Run) -> bool:
        """Read a portion of the run's rows into the curves; whether there may be more."""
        rank = min(run.ranks, default=0) if self._rank is None else self._rank
        if self._ranges is not None:
            return self._take_ranges(run, rank, self._ranges)
        start = max(0, self._taken - 1)  # the last row that was taken, to see whether it stands
        rows = self._next_rows(run, rank, start)
        if rows is None or (
            self._taken and (not rows.num_rows or rows.column("step")[0].as_py() != self._last_step)
        ):
            self.begin_anew(at_once=rows is None)
            return True
        if start + rows.num_rows <= self._taken:
            return False
        self._add(rows.slice(self._taken - start))
        self._taken = start + rows.num_rows
        self._last_step = rows.column("step")[-1].as_py()
        return True

    def begin_anew(self, *, at_once: bool = False) -> None:
        """Read all rows once more; where some came late, all at once: then none can be late."""
        self._at_once |= at_once
        if self._reading is not None:
            portion_rows = None if self._at_once else self._portion_rows
            self._reading = Reading(self._reading.run, portion_rows)
        self._begin()

    @property
    def rows(self) -> int:
        """How many rows the curves have by now."""
        return len(self._history)

    def reader_of_span(self, span: Span) -> StepCurvesReader:
        """A reader of the curves of a span of steps alone, from the log."""
        found = StepCurvesReader(rank=self._rank, epoch=self._epoch, keeps_past=self._keeps_past)
        found._optimizer, found._began_ns = self._optimizer, self._began_ns
        if self._reading is None or self._reading.is_as_logged:
            found._ranges = self._places.ranges_of(*span)
        if found._ranges is None or sum(b - a for a, b in found._ranges) > 2 * HELD_ROWS:
            found._only = span
        return found

    def zoomed(self, run: Run, span: Span) -> StepCurves:
        """The curves around a span of steps, every row of it, read from the log."""
        return replace(self.reader_of_span(span).read(run), present=self._curves.present)

    def snapshot(self) -> StepCurves:
        """The curves of all rows read so far, made anew."""
        self._curves = self._snapshot()
        return self._curves

    # --- within ----------------------------------------------------------------------------------

    def _take_ranges(self, run: Run, rank: int, ranges: list[tuple[int, int]]) -> bool:
        if not ranges:
            return False
        start, stop = ranges[0]
        most = min(self._portion_rows, stop - start)
        self._add(run.logged(Table.STEPS, self._wanted(run), rank, start, most))
        self._taken += most
        ranges[:1] = [(start + most, stop)] if start + most < stop else []
        return True

    def _wanted(self, run: Run) -> tuple[str, ...]:
        return self._names if run.info.source == "ampwatch" else (*self._names, _TOLD_AFTER)

    def _next_rows(self, run: Run, rank: int, start: int) -> pa.Table | None:
        """Rows of the run from `start` on, as logged; None if a row came among those already read.

        A run that was resumed, or filed as its batches arrived, may not be in order.
        """
        names = self._wanted(run)
        if self._reading is None:
            rows = run.logged(Table.STEPS, names, rank, start, self._portion_rows)
            if np.all(np.diff(rows.column("step").fill_null(-1).to_numpy()) >= 0):
                return rows
        if self._reading is None or self._reading.run is not run:
            self._reading = Reading(run, self._portion_rows)
        next(self._reading.portions())
        rows = self._reading.read(Table.STEPS, names, rank, start)
        if self._reading.is_overtaken:
            return None
        return rows.slice(0, self._portion_rows)

    def _begin(self) -> None:
        self._epoch += 1
        self._taken = 0
        self._last_step = None
        self._optimizer: int | None = None
        self._history = BoundedHistory((SCALE, *LINES, TIME), keeps_past=self._keeps_past)
        self._places = RowPlaces()
        self._clips, self._autocast_dtype = False, None
        self._broken: dict[str, int] = {}
        self._odd = {name: NotFinite() for name in self._lines}
        self._last_step_ns = 0
        self._curves = self._snapshot()

    def _add(self, rows: Any) -> None:
        step = rows.column("step").fill_null(-1).to_numpy()
        if self._only is not None:
            near = with_neighbours((step >= self._only[0]) & (step <= self._only[1]))
            rows, step = rows.filter(near), step[near]
        if not len(step):
            return
        self._places.add(step)
        skipped = rows.column("skipped").fill_null(False).to_numpy()  # noqa: FBT003
        mine = self._of_first_optimizer(rows)
        columns = _curve_columns(rows, mine, self._lines)
        if self._lines:
            self._autocast_dtype = rows.column("autocast_dtype")[-1].as_py()
            self._last_step_ns = rows.column("time_ns")[-1].as_py() or 0
            columns[TIME] = self._seconds(rows)[mine]
            before, after = columns["grad_norm"], columns[CLIPPED]
            moved = np.abs(after - before) > CLIP_SHARE * before
            self._clips = self._clips or bool(moved.any())
            self._note_not_finite(rows, mine)
        self._history.add(step[mine], columns, np.unique(step[skipped]))

    def _note_not_finite(self, rows: Any, mine: NDArray[np.bool_] | slice) -> None:
        """Note for each column the rows in which it is inf or nan."""
        step = rows.column("step").fill_null(-1).to_numpy()[mine]
        for name in self._lines:
            told = np.asarray(rows.column(name).is_valid())[mine]
            finite = np.isfinite(np.asarray(rows.column(name).to_numpy(), np.float64)[mine])
            self._odd[name].add(step[told], finite[told])
            at = np.flatnonzero(told & ~finite)
            if len(at):
                self._broken[name] = len(self._history) + int(at[-1])

    def _seconds(self, rows: Any) -> Floats:
        """When each step ended, in seconds since the first row with a time; nan without one."""
        time_ns = np.asarray(rows.column("time_ns").fill_null(0).to_numpy(), np.int64)
        told = time_ns > 0
        if not self._began_ns and told.any():
            self._began_ns = int(time_ns[told][0])
        return np.where(told, (time_ns - self._began_ns) / 1e9, np.nan).astype(np.float32)

    def _of_first_optimizer(self, rows: Any) -> NDArray[np.bool_] | slice:
        """The rows of the first optimizer: several (a GAN) have losses of different kinds."""
        optimizer = rows.column("optimizer")
        if self._optimizer is None:
            known = optimizer.drop_null()
            if not len(known):
                return slice(None)
            self._optimizer = known[0].as_py()
        mine = np.asarray(optimizer.fill_null(self._optimizer).to_numpy() == self._optimizer)
        return slice(None) if mine.all() else mine

    def _snapshot(self) -> StepCurves:
        history = self._history
        odd = {name: found.stretches for name, found in self._odd.items() if found}
        return StepCurves(
            epoch=self._epoch,
            step=history.step.values,
            columns={name: column.values for name, column in history.columns.items()},
            skips=history.skips.values,
            present=history.present | odd.keys(),
            starts=history.starts,
            clips=self._clips,
            autocast_dtype=self._autocast_dtype,
            last_step_ns=self._last_step_ns,
            broken=dict(self._broken),
            odd=odd,
            newest=dict(history.latest),
            past=history.past,
        )


def with_neighbours(inside: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """These rows of a curve and one more at each side of them."""
    wide = inside.copy()
    wide[1:] |= inside[:-1]
    wide[:-1] |= inside[1:]
    return wide


def _curve_columns(
    rows: Any, mine: NDArray[np.bool_] | slice, lines: tuple[str, ...]
) -> dict[str, Floats]:
    """The columns of the curves: the scale as its power of two, nan for what is not finite."""
    found = {name: _single(rows, name)[mine] for name in lines}
    scale = _scales_by_step(rows)[mine]
    with np.errstate(divide="ignore", invalid="ignore"):
        found[SCALE] = np.log2(scale).astype(np.float32)
    for values in found.values():
        values[~np.isfinite(values)] = np.nan
    return found


def _scales_by_step(rows: Any) -> NDArray[np.float64]:
    """The loss scale of each step; where a foreign log has only the scale after it, that one."""
    scale = np.asarray(rows.column("scale").to_numpy(), np.float64)
    if _TOLD_AFTER not in rows.column_names:
        return scale
    after = np.asarray(rows.column(_TOLD_AFTER).to_numpy(), np.float64)
    return np.where(np.isnan(scale), after, scale)


def _single(rows: Any, name: str) -> Floats:
    with np.errstate(over="ignore"):
        return np.array(rows.column(name).to_numpy(), np.float32)
