"""What the advice on the learning rate remembers of a run, in a fixed size.

The first and the last rows are kept as they are; between them, rows are merged into cells whose
width doubles as the run grows. `fold` is the only way in, and pure. The result does not depend on
how the rows were batched.

The loss of a step is the sum over its micro-batches. If a loop divides each by their number, the
sums are alike whatever the number is; if not, they grow with it. Which it is shows when the number
changes: by how much of the change the loss changes. `comparable` takes it out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np

from ampwatch.diagnosis import thresholds
from ampwatch.diagnosis.blocks import Block
from ampwatch.diagnosis.column_arrays import Flags, Floats, Integers, Mask, known_of, median
from ampwatch.diagnosis.doubling_windows import DoublingWindows
from ampwatch.diagnosis.learning_rate import constants

# Absent is nan; flags are 0 and 1. `loss` is finite or nan, `loss_bad` marks a loss that was
# recorded and was not finite.
COLUMNS = (
    "step", "skipped", "loss", "loss_bad", "lr", "lr_base", "grad_norm", "applied_norm",
    "update_norm", "param_norm", "max_ratio", "input_amax", "act_amax", "forward_bad",
    "micro_batches", "scale", "alignment",
)  # fmt: skip
FLAGS = ("skipped", "loss_bad", "forward_bad")
_AT = {name: position for position, name in enumerate(COLUMNS)}
# Columns of a block that have the same name here, and those that have another.
_SAME = (
    "loss", "lr", "lr_base", "micro_batches", "scale", "grad_norm", "update_norm", "param_norm",
    "input_amax",
)  # fmt: skip
_RENAMED = {
    "applied_norm": "grad_norm_applied",
    "max_ratio": "max_update_ratio",
    "alignment": "update_alignment",
}


@dataclass(frozen=True, eq=False)  # no slots: cached_property keeps its values in __dict__
class RateRows:
    """Steps of a run, or cells of its history, as the learning rate reads them: a column a name."""

    values: Floats = field(default_factory=lambda: np.zeros((0, len(COLUMNS))))

    def __len__(self) -> int:
        return len(self.values)

    def of(self, name: str) -> Floats:
        """One column of the rows, by name."""
        return self.values[:, _AT[name]]

    def part(self, begin: int, end: int | None = None) -> RateRows:
        """The rows from `begin` to `end`."""
        return RateRows(self.values[begin:end])

    def where(self, mask: Mask) -> RateRows:
        """The rows that the mask selects."""
        return RateRows(self.values[mask])

    def with_column(self, name: str, column: Floats) -> RateRows:
        """The rows with one column replaced."""
        values = self.values.copy()
        values[:, _AT[name]] = column
        return RateRows(values)

    @cached_property
    def accepted(self) -> Mask:
        """Which rows are accepted steps."""
        return np.asarray(self.of("skipped") == 0)

    @property
    def moved(self) -> Mask:
        """Which rows have a rate that moves weights; an unknown rate may."""
        return np.asarray(self.of("lr") != 0)

    @cached_property
    def ratio(self) -> Floats:
        """The norm of each row's update over the norm of the weights."""
        with np.errstate(all="ignore"):
            ratio = self.of("update_norm") / self.of("param_norm")
        return np.where(np.isfinite(ratio), ratio, np.nan)


def rows_of(**columns: object) -> RateRows:
    """Make rows for the rate's history from columns; a missing column is absent, a missing flag 0.

    Values that are not finite count as absent; `loss_bad` marks such a loss.
    """
    values = np.full((np.size(np.asarray(columns.get("step", ()))), len(COLUMNS)), np.nan)
    for name, given in columns.items():
        values[:, _AT[name]] = np.asarray(given, dtype=np.float64)
    values[~np.isfinite(values)] = np.nan
    for name in FLAGS:
        values[:, _AT[name]] = values[:, _AT[name]] > 0
    return RateRows(values)


@dataclass(frozen=True, slots=True)
class Group:
    """One parameter group of the optimizer, as its settings describe it."""

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
    """How the rate was set up: the optimizer's groups, checkpoints, resumes."""

    groups: tuple[Group, ...] = ()
    lead_group: int = 0  # the one whose update ratio is the largest
    elements: int | None = None
    several_optimizers: bool = False
    resumed: bool = False  # the run does not begin with random weights
    saved_steps: tuple[int, ...] = ()
    restarts: int = 0  # attempts after the first
    larger_batches: tuple[int, ...] = ()  # the last few steps from which a batch held more
    inner_updates: bool = False  # a step makes several (LBFGS): none of its figures is of one
    stopped: bool = False  # the loop gave up at the last row, whose loss was not finite


_NO_SUMS = DoublingWindows.empty(np.add, constants.MOST_CELLS, len(COLUMNS))


@dataclass(frozen=True, slots=True)
class RateCells:
    """The middle of a run in a fixed number of cells of equal width; the last is still filling."""

    sums: DoublingWindows = _NO_SUMS
    known: DoublingWindows = _NO_SUMS

    @property
    def cell_rows(self) -> int:
        """How many rows of the run a whole cell stands for."""
        return self.sums.width * constants.CELL_ROWS

    def first(self, count: int) -> RateRows:
        """The first cells as rows: means of the medians within."""
        counts = self.known.values[:count]
        with np.errstate(divide="ignore", invalid="ignore"):
            return RateRows(np.where(counts > 0, self.sums.values[:count] / counts, np.nan))

    def with_rows(self, values: Floats) -> RateCells:
        """The cells with more rows, whose number is a multiple of `CELL_ROWS`."""
        parts = _medians(values.reshape(-1, constants.CELL_ROWS, len(COLUMNS)))
        here = ~np.isnan(parts)
        sums = self.sums.with_next(np.where(here, parts, 0.0))
        return RateCells(sums, self.known.with_next(here))

    def with_means(self, name: str, means: Floats) -> RateCells:
        """The cells with one column's means replaced; nan is absent."""
        sums, known, at = self.sums.values.copy(), self.known.values.copy(), _AT[name]
        known[:, at] = np.where(np.isfinite(means), known[:, at], 0.0)
        sums[:, at] = np.where(np.isfinite(means), means, 0.0) * known[:, at]
        return RateCells(replace(self.sums, values=sums), replace(self.known, values=known))


@dataclass(frozen=True, slots=True)
class RatePoints:
    """The whole run in few points: the history's cells, then ten-step medians of the last rows.

    Skips and bad losses are shares of a point.
    """

    rows: RateRows
    start: Integers  # the row's position in the run at which a point begins


@dataclass(frozen=True)  # no slots: cached_property keeps its value in __dict__
class RateState:
    """All that the advice on the rate reads of a run; `fold` makes a new one of fixed size."""

    setup: Setup = field(default_factory=Setup)
    rows: int = 0
    accepted: int = 0
    head: RateRows = field(default_factory=RateRows)
    tail: RateRows = field(default_factory=RateRows)
    cells: RateCells = field(default_factory=RateCells)  # of the rows that have left the tail
    pending: RateRows = field(default_factory=RateRows)  # too few of those to be a part of a cell

    @cached_property
    def points(self) -> RatePoints:
        """The whole run in few points; less than a cell of rows before the last is left out."""
        width, size = self.cells.cell_rows, constants.POINT_STEPS
        tail, begin = self.tail.values, self.rows - len(self.tail)
        whole, count = begin // width, len(tail) // size
        late = len(tail) - count * size  # the points end with the record
        recent = _medians(tail[late:].reshape(count, size, len(COLUMNS)))
        starts = [np.arange(whole) * width, begin + late + np.arange(count) * size]
        values = np.concatenate([self.cells.first(whole).values, recent])
        return RatePoints(RateRows(values), np.concatenate(starts))

    @property
    def is_whole(self) -> bool:
        """Whether the first rows are all rows of the run."""
        return len(self.head) == self.rows

    @property
    def base_rate(self) -> float | None:
        """The base rate of the leading group: the last that is recorded, or the highest in use.

        Rows hold the rate of the first group; the rate in the optimizer's settings may be the first
        step of a warm-up.
        """
        base = known_of(self.tail.of("lr_base"))
        if len(base) and base[-1] > 0:
            return float(base[-1]) * self.lead_share
        middle = self.cells.first(constants.MOST_CELLS), self.points.rows
        used = known_of(np.concatenate([rows.of("lr") for rows in (self.head, *middle, self.tail)]))
        if len(used) and used.max() > 0:
            return float(used.max()) * self.lead_share
        groups, lead = self.setup.groups, self.setup.lead_group
        return groups[lead].base or None if 0 < lead < len(groups) else None

    @property
    def lead_share(self) -> float:
        """The base rate of the leading group over that of the first group."""
        groups, lead = self.setup.groups, self.setup.lead_group
        if not 0 < lead < len(groups):
            return 1.0
        first, leading = groups[0].base, groups[lead].base
        return leading / first if first and leading else 1.0

    def loss_fell_on(self, first_step: int, end_step: int) -> bool:
        """Whether the losses after `end_step` lie below all losses before `first_step`.

        None since then may stand far above all of those.
        """
        parts = (self.head, self.points.rows, self.tail)
        step = np.concatenate([rows.of("step") for rows in parts])
        loss = np.concatenate([rows.of("loss") for rows in parts])
        has_loss = np.isfinite(loss)
        before, after = loss[has_loss & (step < first_step)], loss[has_loss & (step > end_step)]
        if not len(before) or len(after) < thresholds.LOSS_LINES:
            return False
        fell = median(after[-thresholds.LOSS_LINES :]) < before.min()
        high = loss[has_loss & (step >= first_step)].max()
        return bool(fell and high < thresholds.DIVERGED_LOSS * before.max())

    def with_column(self, name: str, made: Callable[[RateRows], Floats]) -> RateState:
        """The state with one column computed anew in all its parts; nan is absent.

        The cells hold sums: their column is computed from their means.
        """

        def of(rows: RateRows) -> RateRows:
            return rows.with_column(name, made(rows))

        cells = self.cells.with_means(name, made(self.cells.first(constants.MOST_CELLS)))
        return replace(self, head=of(self.head), tail=of(self.tail), cells=cells)

    def without(self, *names: str) -> RateState:
        """The state as if the record lacked these columns."""
        state = self
        for name in names:
            absent = 0.0 if name in FLAGS else np.nan
            state = state.with_column(name, partial(_filled, absent))
        return state


def fold(state: RateState, rows: RateRows, setup: Setup | None = None) -> RateState:
    """Fold more rows into the state of the rate; `setup` replaces the earlier setup."""
    room = constants.HEAD_ROWS - len(state.head)
    latest = _joined(state.tail, rows)
    left = max(0, len(latest) - constants.TAIL_ROWS)
    pending = _joined(state.pending, latest.part(0, left)).values
    whole = len(pending) // constants.CELL_ROWS * constants.CELL_ROWS
    return RateState(
        setup=state.setup if setup is None else setup,
        rows=state.rows + len(rows),
        accepted=state.accepted + int(rows.accepted.sum()),
        head=_joined(state.head, rows.part(0, room)) if room else state.head,
        # Copies: a view would keep the whole batch alive.
        tail=RateRows(latest.values[left:].copy()),
        cells=state.cells.with_rows(pending[:whole]) if whole else state.cells,
        pending=RateRows(pending[whole:].copy()),
    )


def _filled(value: float, rows: RateRows) -> Floats:
    return np.full(len(rows), value)


def _joined(first: RateRows, second: RateRows) -> RateRows:
    return RateRows(np.concatenate([first.values, second.values]))


def _medians(parts: Floats) -> Floats:
    """For cells of the rate's history, the medians of each part of rows; flags become shares."""
    ordered = np.sort(parts, axis=1)  # nan comes last
    counts = (~np.isnan(ordered)).sum(axis=1)
    ends = (np.maximum(counts - 1, 0) // 2, np.minimum(counts // 2, parts.shape[1] - 1))
    part, column = np.arange(len(parts))[:, None], np.arange(parts.shape[2])
    low, high = (ordered[part, at, column] for at in ends)
    result = np.where(counts > 0, (low + high) / 2, np.nan)
    for name in FLAGS:
        result[:, _AT[name]] = parts[:, :, _AT[name]].mean(axis=1)
    result[:, _AT["step"]] = parts[:, 0, _AT["step"]]
    return np.asarray(result)


def rows_of_block(block: Block, forward: Flags) -> RateRows:
    """The rows of a block as the learning rate's history keeps them.

    A step that the loop left out counts as skipped, with a loss that was not finite.
    """
    columns = block.columns
    return rows_of(
        step=block.step,
        skipped=block.skipped | block.left_out,
        loss_bad=block.loss_bad | block.left_out,
        act_amax=_largest_activations(block),
        forward_bad=forward == 0,
        **{name: columns[name] for name in _SAME},
        **{name: columns[source] for name, source in _RENAMED.items()},
    )


def _largest_activations(block: Block) -> Floats:
    """The largest activation of each step of a block; -inf where it was not sampled."""
    layers = block.layers
    amax = layers.numbers("act_amax")
    keep = layers.has_entry & np.isfinite(amax)
    result = np.full(len(block), -np.inf)
    np.maximum.at(result, layers.entry[keep], amax[keep])
    return result


# The share of a change that shows in the loss: all of it in plain sums, none in divided ones.
# Values between are neither, as far as the record shows.
_SUMS, _DIVIDED = 0.75, 0.25
# A level is the median of so many steps; more changes than this add nothing.
_LEVEL_STEPS, _MOST_CHANGES = 10, 64
_MOST = 1e6  # larger numbers are not credible


def comparable(state: RateState) -> RateState:
    """The state with losses that can be compared, whatever the number of micro-batches."""
    parts = (state.head, state.tail, state.points.rows)
    counts = np.concatenate([rows.of("micro_batches") for rows in parts])
    credible = counts[_known(counts)]
    if not len(credible) or credible.min() == credible.max():
        return state
    share = _share_found_again(state)
    if share is None or share < _DIVIDED:
        return state
    if share > _SUMS:
        return state.with_column("loss", _a_micro_batch)
    values, times = np.unique(credible, return_counts=True)
    usual = values[np.argmax(times)]  # if it is neither, only equal numbers are compared
    return state.with_column(
        "loss", lambda rows: np.where(rows.of("micro_batches") == usual, rows.of("loss"), np.nan)
    )


def micro_batches(rows: RateRows) -> Floats:
    """The number of micro-batches of each row whose number is credible."""
    counts = rows.of("micro_batches")
    return counts[_known(counts)]


def _a_micro_batch(rows: RateRows) -> Floats:
    count = rows.of("micro_batches")
    return rows.of("loss") / np.where(_known(count), count, 1.0)


def _known(count: Floats) -> Mask:
    return np.asarray((count >= 1) & (count < _MOST))


def _share_found_again(state: RateState) -> float | None:
    """How much of each change in the number of micro-batches shows in the loss; None if unknown."""
    pairs = [pair for rows in (state.head, state.tail) for pair in _leaps(rows)]
    pairs = pairs or list(_leaps(state.points.rows))
    if not pairs:
        return None
    count, loss = np.array(pairs).T
    return float((count * loss).sum() / (count * count).sum())


def _leaps(rows: RateRows) -> Iterator[tuple[float, float]]:
    """For each change in the number of micro-batches its logarithm, and the loss's change."""
    count, loss = rows.of("micro_batches"), rows.of("loss")
    keep = _known(count) & (loss > 0)
    count, loss = count[keep], loss[keep]
    edges = [0, *(np.flatnonzero(np.diff(count)) + 1), len(count)]
    chosen = np.linspace(0, len(edges) - 3, min(_MOST_CHANGES, len(edges) - 2)).astype(int)
    for at in chosen:
        begin, cut, end = (int(edge) for edge in edges[at : at + 3])
        before = median(loss[max(begin, cut - _LEVEL_STEPS) : cut])
        after = median(loss[cut : min(end, cut + _LEVEL_STEPS)])
        yield float(np.log(count[cut] / count[cut - 1])), float(np.log(after) - np.log(before))
