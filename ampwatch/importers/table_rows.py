"""The rows of a table by column: counted, sorted, merged to one row a step, added many at once.

`counted_rows` makes them from a table's blocks. A row is plain if `take_stats` would only append
it: its step rises, and neither its scale nor a counter implies a skipped step. A single halving
between neighbouring steps means that the row itself was skipped; it is added in bulk too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from ampwatch.codec import numpy_type
from ampwatch.importers.row_writer import STEP_COLUMNS, Row
from ampwatch.importers.run_state import MOST_STEPS, REMEMBERED_STEPS, RunState
from ampwatch.importers.scale_arithmetic import (
    SAME_SCALE,
    Flags,
    Floats,
    octaves_between_arrays,
    without_rounding,
)
from ampwatch.importers.statements import Stats
from ampwatch.importers.tables.cells import Block, Cells, joined
from ampwatch.importers.tables.column_names import EPOCHS, SKIP_COUNT, SKIP_FLAGS
from ampwatch.metric_names import is_metric
from ampwatch.rows import SCHEMAS, Mark, Table

Say = Callable[[str], None]
# A late row of a shuffled table is almost alone; late rows of a resumed run are together.
_LATE_TOGETHER = 8
_MOST_SORTED_ROWS = 4 << 20


@dataclass(frozen=True, slots=True)
class TableRows:
    """Some rows of a table, by our columns, and which of their steps were skipped."""

    step: npt.NDArray[np.int64]
    is_numbered: npt.NDArray[np.bool_]
    values: Mapping[str, Cells]
    skipped: Cells  # whether this step was skipped: 0 or 1
    skips: Cells  # counted since the row before, or since the run began
    is_total: bool = False  # what `skips` counts
    metrics: Mapping[str, Cells] = field(default_factory=dict)  # by the table's own names
    is_redrawn: bool = False  # a bar's lines: drawn again at the same step, the later values hold

    def __len__(self) -> int:
        return len(self.step)

    def at(self, rows: npt.NDArray[np.intp] | slice) -> TableRows:
        """These of the table's rows, in this order."""
        return self.each(lambda cells: cells.at(rows), self.step[rows], self.is_numbered[rows])

    def each(
        self,
        change: Callable[[Cells], Cells],
        step: npt.NDArray[np.int64],
        is_numbered: npt.NDArray[np.bool_],
    ) -> TableRows:
        """The table's rows with these steps, and each column changed alike."""
        values, metrics = (
            {name: change(cells) for name, cells in columns.items()}
            for columns in (self.values, self.metrics)
        )
        return replace(
            self, step=step, is_numbered=is_numbered, values=values, metrics=metrics,
            skipped=change(self.skipped), skips=change(self.skips),
        )  # fmt: skip

    @property
    def of_steps(self) -> npt.NDArray[np.bool_]:
        """Which rows tell more of a step than metrics."""
        presence = [cells.present for cells in (*self.values.values(), self.skipped, self.skips)]
        return np.asarray(np.logical_or.reduce(presence))

    def stats(self, at: int) -> Stats:
        """One row of the table as a statement of statistics."""
        skips = int(self.skips.values[at]) if self.skips.present[at] else None
        return Stats(
            step=int(self.step[at]) if self.is_numbered[at] else None,
            values={n: c.values[at].item() for n, c in self.values.items() if c.present[at]},
            total_skips=skips if self.is_total else None,
            window_skips=None if self.is_total else skips,
            is_skipped=bool(self.skipped.values[at]) if self.skipped.present[at] else None,
            is_redrawn=self.is_redrawn,
        )


# --- rows that belong together -------------------------------------------------------------------


def sorted_by_step(parts: Iterable[TableRows], say: Say) -> Iterator[TableRows]:
    """The table's rows in the order of their steps, if they are shuffled or newest first.

    The rows of a resumed run stay as they are. A shuffled table is collected, up to some million
    rows; any other passes part by part.
    """
    rest = iter(parts)
    for part in rest:
        if not _is_shuffled(part):
            yield part
            continue
        gathered = [part]
        while sum(map(len, gathered)) < _MOST_SORTED_ROWS:
            more = next(rest, None)
            if more is None:
                break
            gathered.append(more)
        whole = _joined(gathered)
        if _is_shuffled(whole):
            say("The rows are not in the order of their steps; they were sorted.")
            whole = whole.at(np.argsort(whole.step, kind="stable"))
        yield whole


def _is_shuffled(rows: TableRows) -> bool:
    """Whether the table's steps fall although none occurs twice: a resumed run repeats steps."""
    step = rows.step
    if not rows.is_numbered.all() or len(step) < 2:
        return False
    falls = int((np.diff(step) < 0).sum())
    late = int((step < np.maximum.accumulate(step)).sum())
    if not falls or falls * _LATE_TOGETHER < late:
        return False
    return not any(_has_repeats(step[cells.present]) for cells in rows.values.values())


def _has_repeats(step: npt.NDArray[np.int64]) -> bool:
    apart = step[np.diff(step, prepend=step[:1] - 1) != 0]
    return len(np.unique(apart)) < len(apart)


def merged_by_step(parts: Iterable[TableRows]) -> Iterator[TableRows]:
    """The table's rows merged to one a step, with the scale after it; the last two wait."""
    held: TableRows | None = None
    for part in parts:
        rows = part if held is None else _joined([held, part])
        if not len(rows):
            continue
        rows = _with_scale_after(_merged(rows))
        end = max(0, len(rows) - 2)  # later rows may add to the last step, and so to the one before
        yield rows.at(slice(0, end))
        held = rows.at(slice(end, None))
    if held is not None:
        yield held


def _joined(parts: list[TableRows]) -> TableRows:
    return TableRows(
        np.concatenate([part.step for part in parts]),
        np.concatenate([part.is_numbered for part in parts]),
        _joined_columns([(part.values, len(part)) for part in parts]),
        joined([part.skipped for part in parts]),
        joined([part.skips for part in parts]),
        parts[-1].is_total,
        _joined_columns([(part.metrics, len(part)) for part in parts]),
    )


def _joined_columns(parts: Sequence[tuple[Mapping[str, Cells], int]]) -> dict[str, Cells]:
    names = dict.fromkeys(name for columns, _ in parts for name in columns)
    return {
        name: joined([columns.get(name) or Cells.absent(count) for columns, count in parts])
        for name in names
    }


def _merged(rows: TableRows) -> TableRows:
    """Consecutive table rows of one step as one row, with the first value of each column."""
    same = (np.diff(rows.step) == 0) & rows.is_numbered[1:] & rows.is_numbered[:-1]
    if not same.any():
        return rows
    starts = np.flatnonzero(np.concatenate(([True], ~same)))

    def first(cells: Cells) -> Cells:
        places = np.where(cells.present, np.arange(len(rows)), len(rows))
        at = np.minimum.reduceat(places, starts)
        return cells.at(np.where(at < len(rows), at, starts))

    return rows.each(first, rows.step[starts], rows.is_numbered[starts])


def _with_scale_after(rows: TableRows) -> TableRows:
    """The table's rows, each with the scale that the next row's step began with.

    A scale that fell between two steps means that the first was skipped, not the second.
    """
    scale = rows.values.get("scale")
    if scale is None or len(rows) < 2:
        return rows
    after = rows.values.get("scale_after") or Cells.absent(len(rows))
    numbered = rows.is_numbered
    follows = ~numbered[:-1] | (np.diff(rows.step) == 1)
    follows &= numbered[:-1] == numbered[1:]
    lacks = follows & scale.present[:-1] & scale.present[1:] & ~after.present[:-1]
    values, told = after.values.copy(), after.present.copy()
    values[:-1][lacks] = scale.values[1:][lacks]
    told[:-1] |= lacks
    both = {**rows.values, "scale_after": Cells(values, told)}
    return replace(rows, values=both)


# --- what the counting columns count --------------------------------------------------------------

# What the counting columns of a table count: steps, batches of an epoch, skipped steps.
#
# Their names do not show it; the numbers do: a step that is a fraction, a flag above 1, a counter
# that falls.

_COUNTED = (*SKIP_FLAGS, "step")
_A_FEW = 3  # enough rows, or epochs, to exclude chance


def counted_rows(
    blocks: Iterable[Block], names: Callable[[], Mapping[str, str]], say: Say
) -> Iterator[TableRows]:
    """The rows of a table's blocks, with steps and skips read as their columns count them.

    Rows that hold none of our columns are left out; names may be added from block to block.
    """
    counters: CountingColumns | None = None
    for block in blocks:
        of = names()
        cells = {column: block.cells(name) for column, name in of.items()}
        if counters is None:
            counters = CountingColumns.of(cells, of, say)
        yield counters.rows(cells, block.count)


@dataclass(slots=True)
class CountingColumns:
    """What a table's first rows show about its counting columns, and the counts so far."""

    counts_steps: bool
    period: int = 0  # steps in an epoch, if the counter restarts with each
    is_total: bool = True  # a counter of skips counts all of them, until it falls
    counts_skips: bool = False  # the flag of a skip is a counter
    figures: dict[str, bool] = field(default_factory=dict)  # other columns, as far as judged
    _epoch: int = 0
    _last: int = -1

    @classmethod
    def of(cls, cells: Mapping[str, Cells], names: Mapping[str, str], say: Say) -> CountingColumns:
        """Judge the counting columns; report if the step column counts no steps or restarts."""
        step = cells.get("step")
        if step is None:
            return cls(counts_steps=False)
        if names["step"].lower() in EPOCHS and _no_step_each(step):
            return cls(counts_steps=False)
        why = _no_counter(step, cells)
        if why is not None:
            say(
                f"The column {names['step']!r} does not count steps ({why}): the rows keep "
                "their order."
            )
            return cls(counts_steps=False)
        period = _period(step)
        if period:
            say(
                f"The column {names['step']!r} restarts after {period} steps: the counts are "
                "added up."
            )
        return cls(counts_steps=True, period=period)

    def rows(self, cells: Mapping[str, Cells], count: int) -> TableRows:
        """A block's rows with steps and skips counted; empty rows are left out."""
        step, nothing = cells.get("step"), Cells.absent(count)
        if step is None or not self.counts_steps:
            step = nothing
        ours = [name for name in cells if name in STEP_COLUMNS]
        values = {name: _fitting(name, cells[name]) for name in ours if name not in _COUNTED}
        metrics = {
            name: cells[name] for name in cells
            if name not in (*ours, SKIP_COUNT) and self._is_figure(name, cells[name])
        }  # fmt: skip
        flag, skips = self._skips(cells, nothing)
        self.is_total = self.is_total and not _falls(skips, step)
        presence = [column.present for column in (*values.values(), *metrics.values(), flag, skips)]
        with np.errstate(invalid="ignore"):
            beyond = step.present & (np.abs(step.values) >= MOST_STEPS)
        mask = np.logical_or.reduce(presence) & ~beyond
        numbered = step.present & np.isfinite(step.values)
        whole = np.where(numbered & mask, step.values, 0.0).astype(np.int64)
        if self.period:
            whole = self._counted_on(whole, numbered)
        rows = TableRows(whole, numbered, values, flag, skips, self.is_total, metrics)
        return rows if mask.all() else rows.at(np.flatnonzero(mask))

    def _is_figure(self, name: str, column: Cells) -> bool:
        """Whether a column measures something, as its name says or some fraction in it."""
        if name not in self.figures and column.present.any():
            values = column.values[column.present]
            self.figures[name] = is_metric(name) or bool((values != np.trunc(values)).any())
        return self.figures.get(name, False)

    def _counted_on(
        self, step: npt.NDArray[np.int64], numbered: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.int64]:
        steps = step[numbered]
        if not len(steps):
            return step
        epochs = self._epoch + np.cumsum(np.diff(steps, prepend=self._last) < 0)
        self._epoch, self._last = int(epochs[-1]), int(steps[-1])
        step[numbered] = steps + epochs * self.period
        return step

    def _skips(self, cells: Mapping[str, Cells], nothing: Cells) -> tuple[Cells, Cells]:
        """Which steps were skipped, and how many: a flag above 1 is a counter of skips."""
        flag = nothing
        for name in SKIP_FLAGS:
            column = cells.get(name)
            if column is not None:
                column = column.where(~np.isnan(column.values))
                values = np.where(flag.present, flag.values, column.values)
                flag = Cells(values, flag.present | column.present)
        count = cells.get(SKIP_COUNT, nothing)
        beyond = bool((flag.values[flag.present] > 1).any())
        self.counts_skips |= beyond or _outlasts(flag, cells)
        if self.counts_skips:
            count = count if count.present.any() else flag
            flag = nothing
        with np.errstate(invalid="ignore"):
            count = count.where((count.values >= 0) & (count.values < MOST_STEPS))
        return flag, count


def _no_step_each(epoch: Cells) -> bool:
    """Whether some epochs of a table are fractions, or have several rows."""
    epochs = epoch.values[epoch.present]
    return bool((epochs != np.floor(epochs)).any() or (np.diff(epochs) == 0).any())


def _no_counter(step: Cells, cells: Mapping[str, Cells]) -> str | None:
    """Why a table's step column does not count steps; None if it does."""
    steps = step.values[step.present & ~np.isnan(step.values)]
    if not len(steps):
        return None
    if np.mean(np.abs(steps) >= MOST_STEPS) > 0.5:
        return "its numbers are too large"
    steps = steps[np.isfinite(steps)]
    if np.mean(steps != np.floor(steps)) > 0.5:
        return "it holds fractions"
    others = (column for name, column in cells.items() if name != "step")
    if len(steps) >= _A_FEW and (steps == steps[0]).all() and any(map(_varies, others)):
        return "it is the same in every row"
    return None


def _varies(column: Cells) -> bool:
    return len(np.unique(column.values[column.present])) >= _A_FEW


def _period(step: Cells) -> int:
    """After how many steps a step column restarts at its first number, regularly; else 0.

    A resumed run starts at a checkpoint, and never so regularly.
    """
    steps = step.values[step.present & np.isfinite(step.values)]
    begins = np.flatnonzero(np.diff(steps) < 0) + 1
    if len(begins) < _A_FEW or (steps[begins] != steps[0]).any():
        return 0
    lengths = np.diff(begins, prepend=0)
    strides = np.diff(steps)
    strides = strides[strides > 0]
    if (lengths != lengths[0]).any() or not len(strides):
        return 0
    return int(steps.max() - steps[0] + np.median(strides))


def _outlasts(flag: Cells, cells: Mapping[str, Cells]) -> bool:
    """Whether a skip flag stays 1 while steps cannot all be skipped: then it counts skips."""
    up = flag.present & (flag.values == 1)
    values = flag.values[flag.present]
    if up.sum() < _A_FEW or (np.diff(values) < 0).any() or values[0] == 1:
        return False
    scale = cells.get("scale_after", cells.get("scale"))
    if scale is not None and scale.present[up].all():
        return not (np.diff(scale.values[up]) < 0).any()
    norm = cells.get("grad_norm")
    return norm is not None and bool(norm.present[up].all() and np.isfinite(norm.values[up]).all())


def _falls(skips: Cells, step: Cells) -> bool:
    """Whether a counter of skips falls within an attempt: then it counts since the row before."""
    falls = np.diff(skips.values[skips.present]) < 0
    begins = np.diff(step.values[skips.present]) < 0  # nan where there are no steps
    return bool((falls & ~begins).any())


def _fitting(name: str, column: Cells) -> Cells:
    """The cells of a block's column, without those that do not fit the type of our column."""
    kind = numpy_type(SCHEMAS[Table.STEPS].field(name).type)
    if kind.kind == "b":
        return column.where(~np.isnan(column.values))
    if kind.kind != "i":
        return column
    limits = np.iinfo(kind)
    with np.errstate(invalid="ignore"):
        fits = (column.values >= limits.min) & (column.values < float(limits.max))
    fitting = column.where(fits)
    return Cells(np.where(fitting.present, np.trunc(column.values), 0.0), fitting.present)


# --- many rows at once ----------------------------------------------------------------------------

SHORT = 8  # fewer rows than this are added faster singly


@dataclass(frozen=True, slots=True)
class BulkPlan:
    """Which table rows from `begin` on can be added in bulk, and the scale after each."""

    begin: int
    scale_after: Cells  # with rounded scales replaced by the known ones
    scale: Floats  # after the row; nan where none is known
    total: Floats  # last printed counter of skips; nan if none
    odd: npt.NDArray[np.intp]  # indices of rows that are not plain, from `begin`
    is_halved: Flags  # the row itself was skipped: its scale has halved


def plan_of(state: RunState, rows: TableRows, where: slice) -> BulkPlan:
    """Find out which of these table rows can be added in bulk, given the state before them."""
    part = rows.at(where)
    known = math.nan if state.now.scale is None else state.now.scale
    after, scale = _scales(part, known)
    before = np.concatenate(([known], scale[:-1]))
    flagged = part.skipped.present
    fell = octaves_between_arrays(scale, before)
    norm = part.values.get("grad_norm")
    bad_norm = np.zeros(len(part), np.bool_)
    if norm is not None:
        bad_norm = norm.present & ~np.isfinite(norm.values)
    has_scale = after.present | _told(part, "scale")
    first_overflow = bad_norm & has_scale & _is_unknown_before(part, state)
    implies = (fell > 0) & has_scale | first_overflow
    halved = (fell == 1) & after.present & ~flagged & _is_next(state, part) & ~first_overflow
    total, quiet = _counted(state, part)
    plain = _in_place(state, part) & (flagged | ~implies | halved) & quiet
    return BulkPlan(where.start, after, scale, total, np.flatnonzero(~plain), halved)


def add_plain_rows(state: RunState, rows: TableRows, plan: BulkPlan, at: int) -> int:
    """Add the plain table rows from `at` on in bulk; return the index of the next other row."""
    odd = int(np.searchsorted(plan.odd, at - plan.begin))
    stop = plan.begin + (int(plan.odd[odd]) if odd < len(plan.odd) else len(plan.scale))
    if stop - at < SHORT:
        return at
    _add_plain(state, rows, plan, slice(at, stop))
    return stop


def plan_holds(state: RunState, rows: TableRows, plan: BulkPlan, at: int) -> bool:
    """Whether the state before this table row is what the bulk plan assumed."""
    if at == plan.begin:
        return True
    now, last = state.now, at - 1
    if rows.is_numbered[last]:
        placed = now.counter == now.last_step == int(rows.step[last])
    else:
        placed = now.counter is None
    stands = [math.nan if one is None else one for one in (now.scale, now.total_skips)]
    meant = [plan.scale[last - plan.begin], plan.total[last - plan.begin]]
    return placed and np.array_equal(stands, meant, equal_nan=True)


# --- what a row is -------------------------------------------------------------------------------


def _scales(rows: TableRows, known: float) -> tuple[Cells, Floats]:
    """The scale after each row to add in bulk, with and without values of earlier rows."""
    after = rows.values.get("scale_after") or Cells.absent(len(rows))
    before = rows.values.get("scale") or Cells.absent(len(rows))
    present = after.present | before.present
    printed = np.where(after.present, after.values, before.values)
    last = np.maximum.accumulate(np.where(present, np.arange(len(rows)), -1))
    scale = np.where(last >= 0, printed[np.maximum(last, 0)], known)
    previous = np.concatenate(([known], scale[:-1]))
    changed = (scale != previous) & ~(np.isnan(scale) & np.isnan(previous))
    with np.errstate(all="ignore"):
        near = changed & after.present & (np.abs(scale / previous - 1) < SAME_SCALE)
    if near.any():
        changed |= present & ~after.present
        scale = without_rounding(scale, after.present, np.flatnonzero(changed), known)
    return Cells(np.where(after.present, scale, after.values), after.present), scale


def _told(rows: TableRows, name: str) -> Flags:
    cells = rows.values.get(name)
    return np.zeros(len(rows), np.bool_) if cells is None else cells.present


def _is_unknown_before(rows: TableRows, state: RunState) -> Flags:
    """Which rows to add in bulk have no known scale before them."""
    if state.now.scale is not None:
        return np.zeros(len(rows), np.bool_)
    present = _told(rows, "scale") | _told(rows, "scale_after")
    count: Flags = np.cumsum(present) - present == 0
    return count


def _in_place(state: RunState, rows: TableRows) -> Flags:
    """Which rows can be added in bulk by their steps: each above the last, or none has a step."""
    now, numbered = state.now, rows.is_numbered
    before = np.concatenate(([now.counter is not None], numbered[:-1]))
    last = now.last_step if now.counter is None else max(now.counter, now.last_step)
    in_place: Flags
    rises = np.diff(rows.step, prepend=last) > 0
    in_place = np.where(numbered, rises & before, ~before & (now.counter is None))
    in_place[:1] &= not now.is_empty
    return in_place


def _is_next(state: RunState, rows: TableRows) -> Flags:
    """Which rows to add in bulk directly follow the row before, by their steps."""
    last = -1 if state.now.counter is None else state.now.counter
    is_next: Flags = ~rows.is_numbered | (np.diff(rows.step, prepend=last) == 1)
    return is_next


def _counted(state: RunState, rows: TableRows) -> tuple[Floats, Flags]:
    """The counter of all skips after each row to add in bulk, and where it is unchanged."""
    skips = rows.skips
    known = math.nan if state.now.total_skips is None else float(state.now.total_skips)
    total: Floats = np.full(len(rows), known)
    quiet: Flags = ~skips.present
    if not skips.present.any():
        return total, quiet
    if not rows.is_total:
        return total, quiet | (skips.values == 0)
    last = np.maximum.accumulate(np.where(skips.present, np.arange(len(rows)), -1))
    total = np.where(last >= 0, skips.values[np.maximum(last, 0)], known)
    return total, quiet | (total == np.concatenate(([known], total[:-1])))


# --- into the writer ------------------------------------------------------------------------------


def _add_plain(state: RunState, rows: TableRows, plan: BulkPlan, where: slice) -> None:
    """Add plain table rows in bulk; the last one stays open, because the next may add to it."""
    planned_at = slice(where.start - plan.begin, where.stop - plan.begin)
    part = rows.at(where)
    columns = _columns(state, part, plan, planned_at)
    halved = plan.is_halved[planned_at]
    state.close_row()
    first, last = len(part) - 1, int(part.step[-1])
    if not part.is_numbered[0]:
        state.mark("step", Mark.PLACED)
    if halved.any():
        state.mark("skipped", Mark.IMPLIED)
        state.now.skips_told += int(halved.sum())
    state.go_on(int(part.step[0]), len(part))
    if first:
        for name in [name for name in part.values if name not in STEP_COLUMNS]:
            metric = part.values[name].at(slice(0, first))
            step = part.step[:first][metric.present]
            state.writer.add_metric(step, name, metric.values[metric.present])
        state.writer.add_columns({name: _cut(c, slice(0, first)) for name, c in columns.items()})
    _learn(state, part, columns)
    if (_told(part, "scale") | _told(part, "scale_after"))[:first].any():
        state.now.scale = float(plan.scale[planned_at][first - 1])
    state.add(_row(columns, first))
    state.now.is_unnumbered = not part.is_numbered[-1]
    state.now.accepted_since_skip = not state.now.open or not state.now.open.get("skipped")
    if part.is_numbered[-1]:
        state.now.counter, state.now.is_numbered = last, True
        state.now.recent.extend(part.step[-REMEMBERED_STEPS:].tolist())


def _columns(
    state: RunState, part: TableRows, plan: BulkPlan, planned_at: slice
) -> dict[str, npt.NDArray[np.int64] | Cells]:
    """The rows to add in bulk, as columns of the steps table."""
    step = part.step
    if not part.is_numbered[0]:
        step = state.now.last_step + 1 + np.arange(len(part))
    columns: dict[str, npt.NDArray[np.int64] | Cells] = {"step": step}
    columns.update((name, cells) for name, cells in part.values.items() if cells.present.any())
    if plan.scale_after.present[planned_at].any():
        columns["scale_after"] = plan.scale_after.at(planned_at)
    halved, skipped = plan.is_halved[planned_at], part.skipped
    if halved.any():
        skipped = Cells(np.where(halved, 1.0, skipped.values), skipped.present | halved)
        scale_now = math.nan if state.now.scale is None else state.now.scale
        before = np.concatenate(([scale_now], plan.scale[planned_at]))[:-1]
        with np.errstate(all="ignore"):
            factor = plan.scale[planned_at] / before
            by_half = halved & (np.abs(factor - 0.5) <= SAME_SCALE * np.maximum(factor, 0.5))
        told = part.values.get("scale") or Cells.absent(len(part))
        columns["scale"] = Cells(np.where(by_half, before, told.values), told.present | by_half)
    if skipped.present.any():
        is_skip = Cells((np.nan_to_num(skipped.values) != 0).astype(np.float64), skipped.present)
        columns["skipped"] = columns["found_inf"] = is_skip
    return columns


def _cut(column: npt.NDArray[np.int64] | Cells, rows: slice) -> npt.NDArray[np.int64] | Cells:
    return column.at(rows) if isinstance(column, Cells) else column[rows]


def _row(columns: dict[str, npt.NDArray[np.int64] | Cells], at: int) -> Row:
    row: Row = {}
    for name, column in columns.items():
        if not isinstance(column, Cells):
            row[name] = int(column[at])
        elif column.present[at]:
            value = column.values[at].item()
            row[name] = bool(value) if name in ("skipped", "found_inf") else value
    return row


def _learn(
    state: RunState, part: TableRows, columns: dict[str, npt.NDArray[np.int64] | Cells]
) -> None:
    """Update the state for table rows that were added in bulk."""
    now = state.now
    nothing = Cells.absent(len(part))
    scale, after = columns.get("scale", nothing), columns.get("scale_after", nothing)
    assert isinstance(scale, Cells)
    assert isinstance(after, Cells)
    if scale.present.any():
        state.seen_scale(float(scale.values[scale.present][0]))
    scales = np.where(after.present, after.values, scale.values)[after.present | scale.present]
    now.has_scaler |= bool((scales != 1.0).any())
    now.has_fine_losses |= _told(part, "loss").any().item()
    norm = part.values.get("grad_norm")
    if norm is not None and norm.present.any():
        now.last_norm = float(norm.values[norm.present][-1])
    if part.is_total and part.skips.present.any():
        now.total_skips = int(part.skips.values[part.skips.present][-1])
    now.skips_since = 0
