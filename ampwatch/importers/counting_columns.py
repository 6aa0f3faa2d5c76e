"""What the counting columns of a table count: steps, batches of an epoch, skipped steps.

Their names do not show it; the numbers do: a step that is a fraction, a flag above 1, a counter
that falls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ampwatch.codec import numpy_type
from ampwatch.importers.row_writer import STEP_COLUMNS
from ampwatch.importers.run_state import MOST_STEPS
from ampwatch.importers.table_rows import Say, TableRows
from ampwatch.importers.tables.cells import Block, Cells
from ampwatch.importers.tables.column_names import EPOCHS, SKIP_COUNT, SKIP_FLAGS, Names
from ampwatch.rows import SCHEMAS, Table

_COUNTED = (*SKIP_FLAGS, "step")
_A_FEW = 3  # enough rows, or epochs, to exclude chance


def counted_rows(
    blocks: Iterable[Block], names: Callable[[], Names], say: Say
) -> Iterator[TableRows]:
    """The rows of a table's blocks, with steps and skips read as their columns count them.

    Rows that hold none of our columns are left out; names may be added from block to block.
    """
    counters: CountingColumns | None = None
    for block in blocks:
        of = names().of
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
        metrics = {name: cells[name] for name in cells if name not in (*ours, SKIP_COUNT)}
        flag, skips = self._skips(cells, nothing)
        self.is_total = self.is_total and not _falls(skips, step)
        told = [column.present for column in (*values.values(), *metrics.values(), flag, skips)]
        with np.errstate(invalid="ignore"):
            beyond = step.present & (np.abs(step.values) >= MOST_STEPS)
        kept = np.logical_or.reduce(told) & ~beyond
        numbered = step.present & np.isfinite(step.values)
        whole = np.where(numbered & kept, step.values, 0.0).astype(np.int64)
        if self.period:
            whole = self._counted_on(whole, numbered)
        rows = TableRows(whole, numbered, values, flag, skips, self.is_total, metrics)
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
    told = epoch.values[epoch.present]
    return bool((told != np.floor(told)).any() or (np.diff(told) == 0).any())


def _no_counter(step: Cells, cells: Mapping[str, Cells]) -> str | None:
    """Why a table's step column does not count steps; None if it does."""
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
    """After how many steps a step column restarts at its first number, regularly; else 0.

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
