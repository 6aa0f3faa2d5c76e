"""Where two runs diverge: the first common step at which loss, scale or skips differ.

Two runs with the same settings differ by noise (another seed, another order of sums). So the loss
has two steps: the first at which any bit differs, and the first at which the difference exceeds
the usual change from step to step. Scales and skips are compared exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from ampwatch.diagnosis.learning_rate.constants import (
    MEDIAN_STEPS,
    ROBUST_DEVIATIONS,
    SUSTAINED_STEPS,
)
from ampwatch.report.first_difference import (
    FOR_ALL_LAYERS,
    FirstDifference,
    Floats,
    Integers,
    Mask,
    StepRows,
    compared_columns,
    first_difference,
    layer_difference,
    same,
    step_rows,
)
from ampwatch.store import Run

# Logs print three digits: less is no difference.
_LEAST_SHARE = 0.01
_MAD_TO_DEVIATION = 1.4826  # of normal noise
_LEAST_STEPS = MEDIAN_STEPS + SUSTAINED_STEPS


@dataclass(frozen=True, slots=True)
class Difference:
    """The first step at which a quantity differs, and its value in each run."""

    step: int
    first: float | None
    second: float | None


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where a run differs from another; None where all common steps are the same."""

    common_steps: int
    last_common_step: int | None = None
    both_tell: tuple[str, ...] = ()  # of loss, scale and skips, those that both runs record
    loss_bits: Difference | None = None
    loss: Difference | None = None
    knows_noise: bool = False  # whether both losses are long enough to estimate it
    scale: Difference | None = None
    skips: Difference | None = None
    first: FirstDifference | None = None  # in anything that both record
    compared: tuple[str, ...] = ()  # the columns that both record


@dataclass(frozen=True, slots=True)
class _Pair:
    """One quantity of both runs, at the steps that both recorded."""

    step: Integers
    one: Floats
    other: Floats

    def at(self, places: NDArray[np.intp]) -> Difference | None:
        """The first of these places, if any."""
        if not len(places):
            return None
        at = int(places.min())
        return Difference(int(self.step[at]), float(self.one[at]), float(self.other[at]))


def divergence_of(first: Run, second: Run) -> Divergence:
    """Where the second run differs from the first."""
    return divergence_of_rows(first, step_rows(first), second)


def divergence_of_rows(first: Run, one: StepRows, second: Run) -> Divergence:
    """The same, given the first run's rows: many runs are compared with it."""
    other = step_rows(second)
    step, mine, its = np.intersect1d(one.step, other.step, return_indices=True)
    if not len(step):
        return Divergence(0)
    loss, scale, skips = (
        _pair(step, left[mine], right[its], known_left[mine] & known_right[its])
        for (left, known_left), (right, known_right) in zip(_told(one), _told(other), strict=True)
    )
    pairs = {"loss": loss, "scale": scale, "skips": skips}
    unequal = _unequal(
        loss
    )  # without any, none is beyond noise: medians of a million steps are slow
    return Divergence(
        len(step),
        int(step[-1]),
        tuple(name for name, pair in pairs.items() if len(pair.step)),
        loss.at(unequal),
        loss.at(_beyond_noise(loss)) if len(unequal) else None,
        _both_finite(loss) >= _LEAST_STEPS,
        scale.at(_unequal(scale)),
        skips.at(_unequal(skips)),
        _with_layer(first, second, first_difference(one, other), int(step[-1])),
        compared_columns(one, other),
    )


def _with_layer(
    first: Run, second: Run, found: FirstDifference | None, last: int
) -> FirstDifference | None:
    if found is None or found.column in FOR_ALL_LAYERS:
        return found
    return replace(found, layer=layer_difference(first, second, found.step, last))


def _told(rows: StepRows) -> tuple[tuple[Floats, Mask], ...]:
    """Loss, scale and skips; for the scale, its value after the step if a log has only that."""
    nothing: tuple[Floats, Mask] = (
        np.full(len(rows.step), np.nan),
        np.zeros(len(rows.step), np.bool_),
    )
    loss, scale, after, skips = (
        rows.columns.get(name, nothing) for name in ("loss", "scale", "scale_after", "skipped")
    )
    either: Floats = np.where(scale[1], scale[0], after[0])
    return loss, (either, scale[1] | after[1]), skips


def _pair(step: Integers, one: Floats, other: Floats, known: Mask) -> _Pair:
    return _Pair(step[known], one[known], other[known])


def _unequal(pair: _Pair) -> NDArray[np.intp]:
    """Where they differ; two nan are equal."""
    return np.flatnonzero(~same(pair.one, pair.other))


def _both_finite(pair: _Pair) -> int:
    return int((np.isfinite(pair.one) & np.isfinite(pair.other)).sum())


def _beyond_noise(pair: _Pair) -> NDArray[np.intp]:
    """Where the medians begin to differ by more than noise, for long or to the end.

    A finite loss and one that is not finite differ by more than any noise.
    """
    finite = np.isfinite(pair.one), np.isfinite(pair.other)
    if _both_finite(pair) < _LEAST_STEPS:
        return np.flatnonzero(finite[0] != finite[1])
    told = np.flatnonzero(finite[0] | finite[1])
    away = np.abs(np.where(finite[0] & finite[1], pair.one - pair.other, np.inf)[told])
    middle = np.median(sliding_window_view(away, MEDIAN_STEPS), axis=1)
    noise = np.hypot(_deviation(pair.one[finite[0]]), _deviation(pair.other[finite[1]]))
    least = _LEAST_SHARE * float(np.median(np.abs(pair.one[finite[0]])))
    apart = middle > max(ROBUST_DEVIATIONS * noise, least)
    lasting = np.append(apart, np.ones(SUSTAINED_STEPS - 1, bool))
    starts = np.flatnonzero(sliding_window_view(lasting, SUSTAINED_STEPS).all(axis=1))
    return np.asarray(told[starts + MEDIAN_STEPS // 2])


def _deviation(loss: Floats) -> float:
    """The usual change of a loss from step to step."""
    moves = np.diff(loss)
    return float(_MAD_TO_DEVIATION * np.median(np.abs(moves - np.median(moves))) / np.sqrt(2))
