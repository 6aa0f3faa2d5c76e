"""The rows of a table by column: sorted by step, merged to one row a step.

A step also gets the scale that the next one began with. `counting_columns` makes the rows from the
table's blocks; the run builder takes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from ampwatch.importers.statements import Stats
from ampwatch.importers.tables.cells import Cells, joined

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
        values, metrics = (
            {name: cells.at(rows) for name, cells in columns.items()}
            for columns in (self.values, self.metrics)
        )
        return TableRows(
            self.step[rows], self.is_numbered[rows], values, self.skipped.at(rows),
            self.skips.at(rows), self.is_total, metrics, self.is_redrawn,
        )  # fmt: skip

    @property
    def of_steps(self) -> npt.NDArray[np.bool_]:
        """Which rows tell more of a step than metrics."""
        told = [cells.present for cells in (*self.values.values(), self.skipped, self.skips)]
        return np.asarray(np.logical_or.reduce(told))

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

    merged = rows.at(starts)
    values, metrics = (
        {name: first(cells) for name, cells in columns.items()}
        for columns in (rows.values, rows.metrics)
    )
    return TableRows(
        merged.step, merged.is_numbered, values, first(rows.skipped), first(rows.skips),
        rows.is_total, metrics,
    )  # fmt: skip


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
