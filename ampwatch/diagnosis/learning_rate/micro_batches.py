"""Losses that were summed over a changing number of micro-batches, made comparable.

A step's loss is the sum over its micro-batches. Where a loop divides each by their number, sums
are alike whatever the number; where it does not, they grow with it. Which of the two it is shows
where the number changes: how much of a change of the number is found again in the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from ampwatch.diagnosis.learning_rate import constants
from ampwatch.diagnosis.learning_rate.course import Cells, RateState, Rows
from ampwatch.diagnosis.signals import Floats, Mask

# The share of a change that is found again: all of it in plain sums, none in divided ones. What
# lies between is neither, as far as the record can tell.
_SUMS, _DIVIDED = 0.75, 0.25
# A level is the median of so many steps; so many changes tell as much as more.
_LEVEL_STEPS, _MOST_CHANGES = 10, 64


def comparable(state: RateState) -> RateState:
    """The same state with losses that may be compared; as it is where the number never changes."""
    if not _varies(state.head, state.tail, state.points.rows):
        return state
    share = _share_found_again(state)
    if share is None or share < _DIVIDED:
        return state
    if share > _SUMS:
        return _with_losses(state, _a_micro_batch)
    usual = _usual(state.points.rows if len(state.points.rows) else state.head)
    return _with_losses(state, lambda loss, count: np.where(count == usual, loss, np.nan))


def _a_micro_batch(loss: Floats, count: Floats) -> Floats:
    return np.where(_known(count), loss / np.where(_known(count), count, 1.0), loss)


def _known(count: Floats) -> Mask:
    return np.asarray((count >= 1) & (count < constants.MOST_MICRO_BATCHES))


def _varies(*parts: Rows) -> bool:
    counts = np.concatenate([rows.of("micro_batches") for rows in parts])
    counts = counts[_known(counts)]
    return bool(len(counts)) and bool((counts != counts[0]).any())


def _usual(rows: Rows) -> float:
    """The number that most steps have."""
    counts = rows.of("micro_batches")
    values, times = np.unique(counts[_known(counts)], return_counts=True)
    return float(values[np.argmax(times)])


def _share_found_again(state: RateState) -> float | None:
    """The slope of the losses' leaps over those of the number; None where neither is known."""
    pairs = [pair for rows in (state.head, state.tail) for pair in _leaps(rows)]
    pairs = pairs or list(_leaps(state.points.rows))
    if not pairs:
        return None
    count, loss = np.array(pairs).T
    return float((count * loss).sum() / (count * count).sum())


def _leaps(rows: Rows) -> Iterator[tuple[float, float]]:
    """Where the number changes: the logarithm of its change and of the loss's."""
    count, loss = rows.of("micro_batches"), rows.of("loss")
    keep = _known(count) & (loss > 0)
    count, loss = count[keep], loss[keep]
    cuts = np.flatnonzero(np.diff(count)) + 1
    edges = np.concatenate(([0], cuts, [len(count)]))
    chosen = (
        np.unique(np.linspace(0, len(cuts) - 1, _MOST_CHANGES).astype(int)) if len(cuts) else ()
    )
    for at in chosen:
        begin, cut, end = (int(edge) for edge in edges[at : at + 3])
        before = np.median(loss[max(begin, cut - _LEVEL_STEPS) : cut])
        after = np.median(loss[cut : min(end, cut + _LEVEL_STEPS)])
        yield float(np.log(count[cut] / count[cut - 1])), float(np.log(after) - np.log(before))


def _with_losses(state: RateState, made: Callable[[Floats, Floats], Floats]) -> RateState:
    def of(rows: Rows) -> Rows:
        return rows.with_column("loss", made(rows.of("loss"), rows.of("micro_batches")))

    return replace(state, head=of(state.head), tail=of(state.tail), cells=_cells(state.cells, made))


def _cells(cells: Cells, made: Callable[[Floats, Floats], Floats]) -> Cells:
    """The history's cells hold sums: their mean loss is made anew, by their mean number."""
    means = cells.first(len(cells.sums))
    loss = made(means.of("loss"), means.of("micro_batches"))
    return cells.with_means("loss", loss)
