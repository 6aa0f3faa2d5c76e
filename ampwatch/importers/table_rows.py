"""The rows of a table by column, ready for the run builder.

Here rows of one step are merged, shuffled rows are sorted, and a step gets the scale that the next
one began with. The second half finds out what counting columns count (steps, batches of an epoch,
skips). Their names do not show it; the numbers do: a step that is a fraction, a flag above 1, a
counter that falls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ampwatch.codec import numpy_type
from ampwatch.importers.run_state import MOST_STEPS
from ampwatch.importers.statements import Stats
from ampwatch.importers.tables.cells import Block, Cells, joined
from ampwatch.importers.tables.column_names import SKIP_COUNT, SKIP_FLAGS, Names
from ampwatch.rows import SCHEMAS, Table

Say = Callable[[str], None]
# A late row of a shuffled table is almost alone; late rows of a resumed run are together.
_LATE_TOGETHER = 8
_MOST_SORTED_ROWS = 4 << 20


@dataclass(frozen=True, slots=True)
class TableRows:
    """Some rows of a table: the step, our columns, and what they show about skips."""

    step: npt.NDArray[np.int64]
    is_numbered: npt.NDArray[np.bool_]
    values: Mapping[str, Cells]
    skipped: Cells  # whether this step was skipped: 0 or 1
    skips: Cells  # counted since the row before, or since the run began
    is_total: bool = False  # what `skips` counts

    def __len__(self) -> int:
        return len(self.step)

    def at(self, rows: npt.NDArray[np.intp] | slice) -> TableRows:
        """These rows, in this order."""
        values = {name: cells.at(rows) for name, cells in self.values.items()}
        return TableRows(
            self.step[rows], self.is_numbered[rows], values, self.skipped.at(rows),
            self.skips.at(rows), self.is_total,
        )  # fmt: skip

    def stats(self, at: int) -> Stats:
        """One row as a statement."""
        skips = int(self.skips.values[at]) if self.skips.present[at] else None
        return Stats(
            step=int(self.step[at]) if self.is_numbered[at] else None,
            values={n: float(c.values[at]) for n, c in self.values.items() if c.present[at]},
            total_skips=skips if self.is_total else None,
            window_skips=None if self.is_total else skips,
            is_skipped=bool(self.skipped.values[at]) if self.skipped.present[at] else None,
        )


# --- rows that belong together -------------------------------------------------------------------


def in_order(parts: Iterable[TableRows], say: Say) -> Iterator[TableRows]:
    """The rows in the order of their steps, if they are shuffled or newest first.

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
    """Whether steps fall although no step occurs twice: a resumed run repeats steps."""
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


def complete(parts: Iterable[TableRows]) -> Iterator[TableRows]:
    """The rows, one for each step, with the scale after it; the last two wait for more."""
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
    names = dict.fromkeys(name for part in parts for name in part.values)
    return TableRows(
        np.concatenate([part.step for part in parts]),
        np.concatenate([part.is_numbered for part in parts]),
        {
            name: joined([part.values.get(name) or Cells.absent(len(part)) for part in parts])
            for name in names
        },
        joined([part.skipped for part in parts]),
        joined([part.skips for part in parts]),
        parts[-1].is_total,
    )


def _merged(rows: TableRows) -> TableRows:
    """Consecutive rows of one step as one row, with the first value of each column."""
    same = (np.diff(rows.step) == 0) & rows.is_numbered[1:] & rows.is_numbered[:-1]
    if not same.any():
        return rows
    starts = np.flatnonzero(np.concatenate(([True], ~same)))

    def first(cells: Cells) -> Cells:
        places = np.where(cells.present, np.arange(len(rows)), len(rows))
        at = np.minimum.reduceat(places, starts)
        return cells.at(np.where(at < len(rows), at, starts))

    merged = rows.at(starts)
    values = {name: first(cells) for name, cells in rows.values.items()}
    return TableRows(
        merged.step, merged.is_numbered, values, first(rows.skipped), first(rows.skips),
        rows.is_total,
    )  # fmt: skip


def _with_scale_after(rows: TableRows) -> TableRows:
    """Each row with the scale after it: the one that the next step began with.

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
    return TableRows(rows.step, numbered, both, rows.skipped, rows.skips, rows.is_total)


# --- columns that count ---------------------------------------------------------------------------


_A_FEW = 3  # enough rows, or epochs, to exclude chance


def rows_of(blocks: Iterable[Block], names: Callable[[], Names], say: Say) -> Iterator[TableRows]:
    """The table's rows that hold any of our columns; names may be added from block to block."""
    counters: Counters | None = None
    for block in blocks:
        of = names().of
        cells = {column: block.cells(name) for column, name in of.items()}
        if counters is None:
            counters = Counters.of(cells, of, say)
        yield counters.rows(cells, block.count)


@dataclass(slots=True)
class Counters:
    """What the first rows show about counting columns, and their current values."""

    counts_steps: bool
    period: int = 0  # steps in an epoch, if the counter restarts with each
    is_total: bool = True  # a counter of skips counts all of them, until it falls
    counts_skips: bool = False  # the flag of a skip is a counter
    _epoch: int = 0
    _last: int = -1

    @classmethod
    def of(cls, cells: Mapping[str, Cells], names: Mapping[str, str], say: Say) -> Counters:
        """Judge the columns; report once if the step column counts no steps, or restarts."""
        step = cells.get("step")
        if step is None:
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
        """A block's rows, without empty ones."""
        step, nothing = cells.get("step"), Cells.absent(count)
        if step is None or not self.counts_steps:
            step = nothing
        values = {
            name: _fitting(name, column)
            for name, column in cells.items()
            if name not in (*SKIP_FLAGS, SKIP_COUNT, "step")
        }
        flag, skips = self._skips(cells, nothing)
        self.is_total = self.is_total and not _falls(skips, step)
        told = [column.present for column in (*values.values(), flag, skips)]
        with np.errstate(invalid="ignore"):
            beyond = step.present & (np.abs(step.values) >= MOST_STEPS)
        kept = np.logical_or.reduce(told) & ~beyond
        numbered = step.present & np.isfinite(step.values)
        whole = np.where(numbered & kept, step.values, 0.0).astype(np.int64)
        if self.period:
            whole = self._counted_on(whole, numbered)
        rows = TableRows(whole, numbered, values, flag, skips, self.is_total)
        return rows if kept.all() else rows.at(np.flatnonzero(kept))

    def _counted_on(
        self, step: npt.NDArray[np.int64], numbered: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.int64]:
        told = step[numbered]
        if not len(told):
            return step
        epochs = self._epoch + np.cumsum(np.diff(told, prepend=self._last) < 0)
        self._epoch, self._last = int(epochs[-1]), int(told[-1])
        step[numbered] = told + epochs * self.period
        return step

    def _skips(self, cells: Mapping[str, Cells], nothing: Cells) -> tuple[Cells, Cells]:
        """Which steps were skipped, and how many: a flag that cannot be one is a counter."""
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


def _no_counter(step: Cells, cells: Mapping[str, Cells]) -> str | None:
    """Why a step column does not count steps; None if it does."""
    told = step.values[step.present & ~np.isnan(step.values)]
    if not len(told):
        return None
    if np.mean(np.abs(told) >= MOST_STEPS) > 0.5:
        return "its numbers are too large"
    told = told[np.isfinite(told)]
    if np.mean(told != np.floor(told)) > 0.5:
        return "it holds fractions"
    others = (column for name, column in cells.items() if name != "step")
    if len(told) >= _A_FEW and (told == told[0]).all() and any(map(_varies, others)):
        return "it is the same in every row"
    return None


def _varies(column: Cells) -> bool:
    return len(np.unique(column.values[column.present])) >= _A_FEW


def _period(step: Cells) -> int:
    """After how many steps a counter restarts at its first number, regularly; else 0.

    A resumed run starts at a checkpoint, and never so regularly.
    """
    told = step.values[step.present & np.isfinite(step.values)]
    begins = np.flatnonzero(np.diff(told) < 0) + 1
    if len(begins) < _A_FEW or (told[begins] != told[0]).any():
        return 0
    lengths = np.diff(begins, prepend=0)
    strides = np.diff(told)
    strides = strides[strides > 0]
    if (lengths != lengths[0]).any() or not len(strides):
        return 0
    return int(told.max() - told[0] + np.median(strides))


def _outlasts(flag: Cells, cells: Mapping[str, Cells]) -> bool:
    """Whether a flag stays 1 although those steps cannot all be skipped: then it counts skips."""
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
    """The cells, without those that do not fit the column's type."""
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
