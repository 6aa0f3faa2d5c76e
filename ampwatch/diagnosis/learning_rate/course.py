"""What the advice remembers of a run: bounded, and independent of how rows were batched.

The first and the last rows are kept as they are; between them, rows are merged into cells whose
width doubles as the run grows. `fold` is the only way in, and pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np

from ampwatch.diagnosis.learning_rate import constants
from ampwatch.diagnosis.signals import Floats, Integers, Mask

# Absent is nan; flags are 0 and 1. `loss` is finite or nan, `loss_bad` tells a loss that was
# recorded and was not finite.
COLUMNS = (
    "step", "skipped", "loss", "loss_bad", "lr", "lr_base", "grad_norm", "applied_norm",
    "update_norm", "param_norm", "max_ratio", "input_amax", "act_amax", "forward_bad",
    "micro_batches", "scale", "alignment",
)  # fmt: skip
FLAGS = ("skipped", "loss_bad", "forward_bad")
_AT = {name: position for position, name in enumerate(COLUMNS)}


@dataclass(frozen=True, slots=True)
class Rows:
    """Steps in order, or cells of the history: a column of numbers for each name."""

    values: Floats = field(default_factory=lambda: np.zeros((0, len(COLUMNS))))

    def __len__(self) -> int:
        return len(self.values)

    def of(self, name: str) -> Floats:
        """One column."""
        return self.values[:, _AT[name]]

    def part(self, begin: int, end: int | None = None) -> Rows:
        """Some of the rows, in order."""
        return Rows(self.values[begin:end])

    def where(self, mask: Mask) -> Rows:
        """The rows that the mask selects."""
        return Rows(self.values[mask])

    def with_column(self, name: str, column: Floats) -> Rows:
        """The same rows with another column of this name."""
        values = self.values.copy()
        values[:, _AT[name]] = column
        return Rows(values)

    @property
    def accepted(self) -> Mask:
        """Which rows are accepted steps."""
        return np.asarray(self.of("skipped") == 0)

    @property
    def moved(self) -> Mask:
        """Which rows have a rate that moves weights; an unknown rate may."""
        return np.asarray(self.of("lr") != 0)

    @property
    def ratio(self) -> Floats:
        """The update's norm over the weights'."""
        with np.errstate(all="ignore"):
            ratio = self.of("update_norm") / self.of("param_norm")
        return np.where(np.isfinite(ratio), ratio, np.nan)


def rows_of(**columns: object) -> Rows:
    """Rows made of columns, such as `step`; a missing column is absent, a missing flag is 0.

    Non-finite values count as absent; `loss_bad` marks such a loss.
    """
    values = np.full((np.size(np.asarray(columns.get("step", ()))), len(COLUMNS)), np.nan)
    for name, given in columns.items():
        values[:, _AT[name]] = np.asarray(given, dtype=np.float64)
    values[~np.isfinite(values)] = np.nan
    for name in FLAGS:
        values[:, _AT[name]] = np.nan_to_num(values[:, _AT[name]]) > 0
    return Rows(values)


@dataclass(frozen=True, slots=True)
class Group:
    """One parameter group of the optimizer."""

    base: float | None = None
    weight_decay: float = 0.0
    decoupled: bool = False  # the decay is no part of the gradient (AdamW)
    adaptive: bool | None = None  # by its hyper-parameters: betas or eps, or momentum
    momentum: float = 0.0
    nesterov: bool = False
    square_decay: float = 0.0  # of a mean of squared gradients whose beginning is not corrected
    fade: float | None = None  # the share of an update that lives on in the next; None: unknown


@dataclass(frozen=True, slots=True)
class Setup:
    """What events say: the optimizer's groups, checkpoints, resumes."""

    groups: tuple[Group, ...] = ()
    lead_group: int = 0  # the one whose update ratio is the largest
    elements: int | None = None
    several_optimizers: bool = False
    resumed: bool = False  # the run does not begin with random weights
    saved_steps: tuple[int, ...] = ()
    restarts: int = 0  # attempts after the first
    larger_batches: tuple[int, ...] = ()  # the last few steps from which a batch held more
    stopped: bool = False  # the loop gave up at the last row, whose loss was not finite


@dataclass(frozen=True, slots=True)
class Cells:
    """The run in at most `MOST_CELLS` parts of equal width; the last one is still being filled."""

    sums: Floats = field(default_factory=lambda: np.zeros((constants.MOST_CELLS, len(COLUMNS))))
    known: Floats = field(default_factory=lambda: np.zeros((constants.MOST_CELLS, len(COLUMNS))))
    parts: int = 0  # of CELL_ROWS rows each, in all
    parts_a_cell: int = 1

    @property
    def cell_rows(self) -> int:
        """How many rows a whole cell stands for."""
        return self.parts_a_cell * constants.CELL_ROWS

    def first(self, count: int) -> Rows:
        """The first cells: means of their parts' medians."""
        known = self.known[:count]
        with np.errstate(divide="ignore", invalid="ignore"):
            return Rows(np.where(known > 0, self.sums[:count] / known, np.nan))

    def with_means(self, name: str, means: Floats) -> Cells:
        """The same cells with other means of this column; nan is absent."""
        sums, known, at = self.sums.copy(), self.known.copy(), _AT[name]
        known[:, at] = np.where(np.isfinite(means), known[:, at], 0.0)
        sums[:, at] = np.where(np.isfinite(means), means, 0.0) * known[:, at]
        return replace(self, sums=sums, known=known)


@dataclass(frozen=True)  # no slots: cached_property keeps its value in __dict__
class RateState:
    """All that `advise` reads. A new one comes from `fold`; its size does not grow with the run."""

    setup: Setup = field(default_factory=Setup)
    rows: int = 0
    accepted: int = 0
    head: Rows = field(default_factory=Rows)
    tail: Rows = field(default_factory=Rows)
    cells: Cells = field(default_factory=Cells)  # of the rows that have left the tail
    pending: Rows = field(default_factory=Rows)  # too few of those to be a part of a cell

    @cached_property
    def points(self) -> Points:
        """The whole run in few points."""
        return _points(self)

    @property
    def is_whole(self) -> bool:
        """Whether the first rows are all rows."""
        return len(self.head) == self.rows

    def with_column(self, name: str, made: Callable[[Rows], Floats]) -> RateState:
        """The same state with this column made anew in every part of it; nan is absent.

        The history's cells hold sums: theirs is made of their means.
        """

        def of(rows: Rows) -> Rows:
            return rows.with_column(name, made(rows))

        cells = self.cells.with_means(name, made(self.cells.first(len(self.cells.sums))))
        return replace(self, head=of(self.head), tail=of(self.tail), cells=cells)

    def without(self, *names: str) -> RateState:
        """The same run as a record without these columns has it."""
        state = self
        for name in names:
            absent = 0.0 if name in FLAGS else np.nan
            state = state.with_column(name, partial(_filled, absent))
        return state


def fold(state: RateState, rows: Rows, setup: Setup | None = None) -> RateState:
    """The state after these rows too; `setup` replaces what events had told before."""
    room = constants.HEAD_ROWS - len(state.head)
    recent = _joined(state.tail, rows)
    left = max(0, len(recent) - constants.TAIL_ROWS)
    pending = _joined(state.pending, recent.part(0, left)).values
    whole = len(pending) // constants.CELL_ROWS * constants.CELL_ROWS
    return RateState(
        setup=state.setup if setup is None else setup,
        rows=state.rows + len(rows),
        accepted=state.accepted + int(rows.accepted.sum()),
        head=_joined(state.head, rows.part(0, room)) if room else state.head,
        tail=Rows(recent.values[left:].copy()),  # a view would keep the whole batch alive
        cells=_with_parts(state.cells, pending[:whole]) if whole else state.cells,
        pending=Rows(pending[whole:].copy()),
    )


def _filled(value: float, rows: Rows) -> Floats:
    return np.full(len(rows), value)


def _joined(first: Rows, second: Rows) -> Rows:
    return Rows(np.concatenate([first.values, second.values]))


def _with_parts(cells: Cells, values: Floats) -> Cells:
    """The cells with these rows, whose number is a multiple of `CELL_ROWS`."""
    sums, known = cells.sums.copy(), cells.known.copy()
    parts, width = cells.parts, cells.parts_a_cell
    fresh = _medians(values.reshape(-1, constants.CELL_ROWS, len(COLUMNS)))
    while len(fresh):
        if parts == width * constants.MOST_CELLS:
            sums, known, width = _halved(sums), _halved(known), width * 2
        now, fresh = np.split(fresh, [width * constants.MOST_CELLS - parts])
        here, at = ~np.isnan(now), (parts + np.arange(len(now))) // width
        # `add.at` adds one by one: sums come about in the same order whatever the batches were.
        np.add.at(sums, at, np.where(here, now, 0.0))
        np.add.at(known, at, here)
        parts += len(now)
    return Cells(sums, known, parts, width)


def _halved(values: Floats) -> Floats:
    """Pairs added up, and as much room again."""
    pairs = values.reshape(len(values) // 2, 2, -1).sum(axis=1)
    return np.concatenate([pairs, np.zeros_like(pairs)])


def _medians(parts: Floats) -> Floats:
    """Each part's medians, absent values left out; flags become shares, the step is the first."""
    ordered = np.sort(parts, axis=1)  # nan comes last
    known = (~np.isnan(ordered)).sum(axis=1)
    ends = (np.maximum(known - 1, 0) // 2, np.minimum(known // 2, parts.shape[1] - 1))
    low, high = (np.take_along_axis(ordered, at[:, None, :], axis=1)[:, 0] for at in ends)
    result = np.where(known > 0, (low + high) / 2, np.nan)
    for name in FLAGS:
        result[:, _AT[name]] = parts[:, :, _AT[name]].mean(axis=1)
    result[:, _AT["step"]] = parts[:, 0, _AT["step"]]
    return np.asarray(result)


@dataclass(frozen=True, slots=True)
class Points:
    """The whole run in few points: the history's cells, then ten-step medians of the last rows.

    Skips and bad losses are shares of a point.
    """

    rows: Rows
    start: Integers  # the row's position in the run at which a point begins


def _points(state: RateState) -> Points:
    """The run as points; at most one cell's rows before the last rows are left out."""
    width, size = state.cells.cell_rows, constants.POINT_STEPS
    tail = state.tail.values
    begin = state.rows - len(tail)
    whole, count = begin // width, len(tail) // size
    late = len(tail) - count * size  # the points end with the record
    recent = _medians(tail[late : late + count * size].reshape(count, size, len(COLUMNS)))
    starts = [np.arange(whole) * width, begin + late + np.arange(count) * size]
    return Points(
        Rows(np.concatenate([state.cells.first(whole).values, recent])), np.concatenate(starts)
    )
