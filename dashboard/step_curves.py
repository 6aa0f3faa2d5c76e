"""A run's curves by step, of one rank or of several: few points of all rows, and the last rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from bounded_history import EXACT_WIDTH, BoundedHistory, KeptPast, RowPlaces, with_neighbours
from numpy.typing import NDArray

from ampwatch.report import thinning
from ampwatch.report.overview_chart import (
    CLIP_SHARE,
    CLIPPED,
    LINES,
    SCALE,
    TIME,
    is_told_at_skips,
    rank_column,
)
from ampwatch.report.thinning import Floats, NotFinite, Rug, Steps, Stretches
from ampwatch.rows import Table
from ampwatch.store import Reading, Run

FINE = 1000  # stretches of steps, whose extremes make a line across a screen
_QUICK = ("step", "optimizer", "scale", "skipped")  # which compress well: read in no time
_TOLD_AFTER = "scale_after"  # all that some foreign logs tell
_READ = (*_QUICK, "time_ns", "autocast_dtype", *LINES)
_PORTION_ROWS = 1 << 17  # read at once
_MOST_WAITING_ROWS = 1 << 16  # of a rank, until other ranks have come as far
_PATIENCE_NS = 10 * 10**9  # a rank that is later than this is not waited for
_SEGMENT = 1 << 48  # more steps than there are between a restart and the next
_LAST = 1 << 62  # a key after all others

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
    began_ns: int = 0  # when the first step ended that tells
    repeats: int = 0  # rows of steps that an earlier attempt had taken as well
    other_steps: int = 0  # which other optimizers alone have made
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
        if self.past is None:
            step, values = self.step, self.columns[column]
        else:
            step, values = self.past.points[column].step, self.past.points[column].values
        if span is None:
            return step, values
        inside = with_neighbours((step >= span[0]) & (step <= span[1]))
        return step[inside], values[inside]

    @property
    def logged(self) -> Steps | None:
        """All steps of the curves in order, if their scale is logged at skipped ones alone."""
        if SCALE not in self.present:
            return None
        step, values = self.points(SCALE)
        skips = self.skips if self.past is None else self.past.ticks.first
        if not is_told_at_skips(step[np.isfinite(values)], skips):
            return None
        return np.unique(np.concatenate([self.points(name)[0] for name in self.columns]))

    def within(self, span: Span | None, fine: int = FINE) -> StepCurves:
        """These curves, or those of the span read from the log, if these are too coarse for it."""
        if span is None or self.past is None or self.zoom is None:
            return self
        width = max(1.0, (span[1] - span[0] + 1) / thinning.RUG_CELLS)
        widest = max(points.width for points in self.past.points.values())
        is_fine = widest <= EXACT_WIDTH or widest * fine <= span[1] - span[0]
        return self if is_fine and self.past.tick_width <= width else self.zoom(span)

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
        if self.past is None:
            return len(np.unique(self.skips) if self.starts else self.skips)
        return self.past.skip_count

    @property
    def step_count(self) -> int:
        """How many steps the run has, one that was taken again counted once."""
        return len(self) - self.repeats + self.other_steps

    def rug(self, first: int, last: int) -> Rug:
        """The skipped steps in a range of steps, as ticks for the chart."""
        if self.past is not None and self.past.tick_width > 1:
            return thinning.merged_ticks(self.past.ticks, first, last)
        skips = self.skips if self.past is None else self.past.ticks.first
        skips = np.unique(skips) if self.starts else skips
        low, high = np.searchsorted(skips, first), np.searchsorted(skips, last, side="right")
        return thinning.merged(skips[low:high], first, last)


class StepCurvesReader:
    """Reads the step curves of one rank, or of several, as they grow: `read` takes new rows.

    Of several ranks they are one set. Another rank's columns bear its number (`loss@1`) and lie on
    the steps of the lowest rank. Where ranks train together most of them are the same on all ranks,
    and are not there a second time.
    """

    def __init__(
        self,
        ranks: tuple[int, ...] = (),
        *,
        epoch: int = 0,
        quick: bool = False,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Of the lowest rank, if none is named; `epoch` is that of the first rows.

        `quick` takes the scale and the skips alone: of a long run they are there at once.
        """
        self._now_ns, self._epoch = now_ns, epoch - (2 if quick else 1)
        self._is_near = False  # only the rows of a span are taken
        self._lowest, *self._others = [_RankRows(rank, quick=quick) for rank in ranks or (None,)]
        self._begin()

    @property
    def curves(self) -> StepCurves:
        """The curves of all rows read so far; later rows do not change them."""
        return self._curves

    @property
    def waits(self) -> bool:
        """Whether rows of the lowest rank are held back until other ranks have come as far."""
        return len(self._lowest.keys) > 0

    def read(self, run: Run) -> StepCurves:
        """Read new rows of all ranks, as far as every rank has come that still writes."""
        rows_before, epoch_before = len(self._history), self._epoch
        is_over = self._is_near or run.clean_end
        is_over = is_over or self._now_ns() - run.last_time_ns > _PATIENCE_NS
        while True:
            more, holds = self._read_portions(run)
            if not holds:
                for rows in (self._lowest, *self._others):
                    rows.begin_anew()
                self._begin()
                continue
            end = self._rows_reached() if more or not is_over else len(self._lowest.keys)
            if end or not self._others:
                self._join(end)
            if not end and not more:
                break
        if len(self._history) != rows_before or self._epoch != epoch_before:
            self._curves = self._snapshot()
        return self._curves

    def zoomed(self, run: Run, span: Span) -> StepCurves:
        """The curves around a span of steps, every row of it, read from the log."""
        near = StepCurvesReader(epoch=self._epoch)
        near._is_near = True
        near._lowest, near._others = self._lowest.near(span), [r.near(span) for r in self._others]
        near._differs = self._differs
        for column in self._differs:
            near._history.fork(column, like=column.partition("@")[0])
        return replace(near.read(run), present=self._curves.present)

    # --- within ----------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._epoch += 1
        self._history = BoundedHistory((SCALE, *LINES, TIME))
        self._last_key = -1
        self._differs: frozenset[str] = frozenset()
        self._curves = self._snapshot()

    def _read_portions(self, run: Run) -> tuple[bool, bool]:
        """Read a portion of each rank's rows; whether there may be more, and whether all hold."""
        every = (self._lowest, *self._others)
        for rows in every:
            rows.may_have_more = len(rows.keys) <= _MOST_WAITING_ROWS and rows.read_portion(run)
        is_late = any(len(rows.keys) and rows.keys[0] <= self._last_key for rows in self._others)
        holds = not is_late and not any(rows.is_overtaken for rows in every)
        return any(rows.may_have_more for rows in every), holds

    def _rows_reached(self) -> int:
        """How many rows of the lowest rank all others have reached, but those long silent."""
        end = len(self._lowest.keys)
        for rows in self._others:
            silent_ns = self._lowest.last_step_ns - rows.last_step_ns
            if rows.may_have_more or silent_ns <= _PATIENCE_NS:
                reached = np.searchsorted(self._lowest.keys, rows.last_key, side="right")
                end = min(end, int(reached))
        return end

    def _join(self, end: int) -> None:
        """Add the first rows of the lowest rank that wait, and those of others at their steps."""
        last_key = int(self._lowest.keys[end - 1]) if self._others else _LAST
        keys, added, skips = self._lowest.take(last_key)
        self._last_key, lowest = last_key, dict(added)
        for rows in self._others:
            their_keys, theirs, their_skips = rows.take(last_key)
            skips = np.union1d(skips, their_skips)
            at, there = _matching_rows(keys, their_keys)
            for name in (SCALE, *LINES):
                values = np.full(len(keys), np.nan, np.float32)
                values[there] = theirs[name][at[there]]
                self._add_rank_values(
                    added, rank_column(name, rows.rank or 0), lowest[name], values, there
                )
        self._history.add(keys % _SEGMENT - 1, added, skips % _SEGMENT - 1)

    def _add_rank_values(
        self, added: dict[str, Floats], column: str, mine: Floats, theirs: Floats, there: Any
    ) -> None:
        """Add another rank's values, once they differ from those of the lowest rank."""
        if column not in self._history.columns:
            if np.array_equal(mine, theirs, equal_nan=True):
                return
            self._history.fork(column, like=column.partition("@")[0])
        added[column] = theirs
        is_same = np.array_equal(mine[there], theirs[there], equal_nan=True)
        if column not in self._differs and not is_same:
            self._differs |= {column}  # a column more to be shown: who has the others lacks it
            self._epoch += 1

    def _snapshot(self) -> StepCurves:
        history, lowest, every = self._history, self._lowest, (self._lowest, *self._others)
        odd = {name: places.stretches for name, places in lowest.odd.items() if places}
        for rows in self._others:
            columns = {rank_column(name, rows.rank or 0): p for name, p in rows.odd.items() if p}
            odd |= {c: places.stretches for c, places in columns.items() if c in self._differs}
        drawn = {SCALE, *LINES, TIME, *self._differs}
        return StepCurves(
            epoch=self._epoch,
            step=history.step.values,
            columns={n: column.values for n, column in history.columns.items() if n in drawn},
            skips=history.skips.values,
            present=(history.present & drawn) | odd.keys(),
            starts=history.starts,
            clips=any(rows.clips for rows in every),
            autocast_dtype=lowest.autocast_dtype,
            last_step_ns=max(rows.last_step_ns for rows in every),
            stepped=frozenset({SCALE, *(rank_column(SCALE, r.rank or 0) for r in self._others)}),
            broken=dict(lowest.broken),
            odd=odd,
            newest=dict(history.latest),
            past=history.past,
            began_ns=lowest.began_ns,
            repeats=history.repeats,
            other_steps=lowest.other_steps,
        )


class _RankRows:
    """One rank's rows as they are read from the log; they wait here until they are taken."""

    def __init__(self, rank: int | None, *, quick: bool = False) -> None:
        self.rank = rank  # the lowest if none
        self.may_have_more = True
        self._lines = () if quick else LINES
        self._names = _QUICK if quick else _READ
        self.began_ns = 0  # of the first row that tells
        self._span: Span | None = None  # the only steps to take, and a row at each side of them
        self._ranges: list[tuple[int, int]] | None = None  # the rows of the log that hold them
        self._reading: Reading | None = None  # of a log that is not in order
        self._at_once = False
        self._clear()

    def _clear(self) -> None:
        # Of the rows that wait: their steps, made to rise where a restart has taken the rank back.
        self.keys: Steps = np.zeros(0, np.int64)
        self.last_key = self._last_of_first = -1  # of all that were read, of the first optimizer
        self.is_overtaken = self._came_late = False  # rows that were read no longer hold
        self._columns = {name: np.zeros(0, np.float32) for name in (SCALE, *self._lines, TIME)}
        self._skips: Steps = np.zeros(0, np.int64)
        self._read = self._rows = self._passes = self.other_steps = 0
        self._last_step: int | None = None
        self._optimizer: int | None = None
        self._places = RowPlaces()
        self.clips, self.last_step_ns = False, 0
        self.autocast_dtype: str | None = None
        self.broken: dict[str, int] = {}
        self.odd = {name: NotFinite() for name in self._lines}

    def near(self, span: Span) -> _RankRows:
        """The rank's rows of a span of steps alone, from the log."""
        rows = _RankRows(self.rank)
        rows._span, rows._optimizer, rows.began_ns = span, self._optimizer, self.began_ns
        if self._reading is None or self._reading.is_as_logged:
            rows._ranges = self._places.ranges_of(*span)
        return rows

    def begin_anew(self) -> None:
        """Read all rows once more; where some came late, all at once: then none can be late."""
        self._at_once |= self._came_late
        if self._reading is not None:
            portion_rows = None if self._at_once else _PORTION_ROWS
            self._reading = Reading(self._reading.run, portion_rows)
        self._clear()

    def take(self, last_key: int) -> tuple[Steps, dict[str, Floats], Steps]:
        """The rows that wait, up to a key: their keys, their columns and the keys of the skips."""
        count, skip_count = (
            int(np.searchsorted(keys, last_key, side="right")) for keys in (self.keys, self._skips)
        )
        taken = (
            self.keys[:count],
            {name: values[:count] for name, values in self._columns.items()},
            self._skips[:skip_count],
        )
        self.keys, self._skips = self.keys[count:], self._skips[skip_count:]
        self._columns = {name: values[count:] for name, values in self._columns.items()}
        return taken

    def read_portion(self, run: Run) -> bool:
        """Read a portion of the rank's rows; whether there may be more."""
        rank = min(run.ranks, default=0) if self.rank is None else self.rank
        if self._ranges is not None:
            return self._read_ranges(run, rank, self._ranges)
        start = max(0, self._read - 1)  # the last row that was read, to see whether it stands
        rows = self._next_rows(run, rank, start)
        self._came_late = rows is None
        if rows is None or (
            self._read and (not rows.num_rows or rows.column("step")[0].as_py() != self._last_step)
        ):
            self.is_overtaken = True
            return True
        if start + rows.num_rows <= self._read:
            return False
        self._add(rows.slice(self._read - start))
        self._read = start + rows.num_rows
        self._last_step = rows.column("step")[-1].as_py()
        return True

    # --- within ----------------------------------------------------------------------------------

    def _read_ranges(self, run: Run, rank: int, ranges: list[tuple[int, int]]) -> bool:
        if not ranges:
            return False
        start, stop = ranges[0]
        most = min(_PORTION_ROWS, stop - start)
        self._add(run.logged(Table.STEPS, self._wanted(run), rank, start, most))
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
            rows = run.logged(Table.STEPS, names, rank, start, _PORTION_ROWS)
            if np.all(np.diff(_steps_of(rows)) >= 0):
                return rows
        if self._reading is None or self._reading.run is not run:
            self._reading = Reading(run, _PORTION_ROWS)
        next(self._reading.portions())
        rows = self._reading.read(Table.STEPS, names, rank, start)
        return None if self._reading.is_overtaken else rows.slice(0, _PORTION_ROWS)

    def _add(self, rows: pa.Table) -> None:
        """Have the next rows of the log wait, those of the first optimizer, and all skips."""
        step = _steps_of(rows)
        if not len(step):
            return
        self._places.add(step)
        before = step[0] if self.last_key < 0 else self.last_key % _SEGMENT - 1
        passes = self._passes + np.cumsum(np.diff(step, prepend=before) < 0)
        keys = step + 1 + passes * _SEGMENT
        self._passes, self.last_key = int(passes[-1]), int(keys[-1])
        skipped = rows.column("skipped").fill_null(False).to_numpy()  # noqa: FBT003
        self._skips = np.concatenate([self._skips, np.unique(keys[skipped])])
        mine = self._of_first_optimizer(rows)
        if not isinstance(mine, slice):
            others = np.setdiff1d(keys[~mine], [*keys[mine], self._last_of_first])
            self.other_steps += len(others)
        self._last_of_first = int(keys[mine][-1]) if len(keys[mine]) else self._last_of_first
        if self._span is not None:
            at = np.arange(len(step))[mine]
            mine = at[with_neighbours((step[at] >= self._span[0]) & (step[at] <= self._span[1]))]
        columns = _curve_columns(rows, mine, self._lines)
        if self._lines:
            self.autocast_dtype = rows.column("autocast_dtype")[-1].as_py()
            self.last_step_ns = rows.column("time_ns")[-1].as_py() or 0
            columns[TIME] = self._seconds(rows)[mine]
            norm = columns["grad_norm"]
            moved = np.abs(columns[CLIPPED] - norm) > CLIP_SHARE * norm
            self.clips = self.clips or bool(moved.any())
            self._note_not_finite(rows, step[mine], mine)
        self._rows += len(step[mine])
        self.keys = np.concatenate([self.keys, keys[mine]])
        self._columns = {
            name: np.concatenate([self._columns[name], new]) for name, new in columns.items()
        }

    def _note_not_finite(self, rows: pa.Table, step: Steps, mine: NDArray[Any] | slice) -> None:
        """Note for each column the rows in which it is inf or nan."""
        for name in self._lines:
            logged = np.asarray(rows.column(name).is_valid())[mine]
            values = np.asarray(rows.column(name).to_numpy(), np.float64)[mine]
            self.odd[name].add(step[logged], values[logged])
            at = np.flatnonzero(logged & ~np.isfinite(values))
            if len(at):
                self.broken[name] = self._rows + int(at[-1])

    def _seconds(self, rows: Any) -> Floats:
        """When each step ended, in seconds since the first row with a time; nan without one."""
        time_ns = np.asarray(rows.column("time_ns").fill_null(0).to_numpy(), np.int64)
        timed = time_ns > 0
        if not self.began_ns and timed.any():
            self.began_ns = int(time_ns[timed][0])
        return np.where(timed, (time_ns - self.began_ns) / 1e9, np.nan).astype(np.float32)

    def _of_first_optimizer(self, rows: Any) -> NDArray[Any] | slice:
        """The rows of the first optimizer: several (a GAN) have losses of different kinds."""
        optimizer = rows.column("optimizer")
        if self._optimizer is None:
            numbers = optimizer.drop_null()
            if not len(numbers):
                return slice(None)
            self._optimizer = numbers[0].as_py()
        mine = np.asarray(optimizer.fill_null(self._optimizer).to_numpy() == self._optimizer)
        return slice(None) if mine.all() else mine


def _curve_columns(
    rows: Any, mine: NDArray[Any] | slice, lines: tuple[str, ...]
) -> dict[str, Floats]:
    """The columns of the curves: the scale as its power of two, nan for what is not finite."""
    columns = {name: _single(rows, name)[mine] for name in lines}
    scale = _scales_by_step(rows)[mine]
    with np.errstate(divide="ignore", invalid="ignore"):
        columns[SCALE] = np.log2(scale).astype(np.float32)
    for values in columns.values():
        values[~np.isfinite(values)] = np.nan
    return columns


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


def _steps_of(rows: pa.Table) -> Steps:
    return np.asarray(rows.column("step").fill_null(-1).to_numpy(), np.int64)


def _matching_rows(keys: Steps, theirs: Steps) -> tuple[Any, Any]:
    """For each step its row among another rank's rows, and whether it is there at all."""
    at = np.searchsorted(theirs, keys)
    there = at < len(theirs)
    there[there] = theirs[at[there]] == keys[there]
    return at, there
