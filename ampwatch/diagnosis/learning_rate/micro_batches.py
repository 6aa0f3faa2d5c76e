"""Makes losses comparable that were summed over a changing number of micro-batches.

The loss of a step is the sum over its micro-batches. If a loop divides each by their number, the
sums are alike whatever the number is; if not, they grow with it. Which it is shows when the number
changes: by how much of the change the loss changes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ampwatch.diagnosis.column_arrays import Floats, Mask
from ampwatch.diagnosis.learning_rate.rate_history import RateRows, RateState
from ampwatch.diagnosis.medians import median

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
    known = counts[_known(counts)]
    if not len(known) or known.min() == known.max():
        return state
    share = _share_found_again(state)
    if share is None or share < _DIVIDED:
        return state
    if share > _SUMS:
        return state.with_column("loss", _a_micro_batch)
    values, times = np.unique(known, return_counts=True)
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
