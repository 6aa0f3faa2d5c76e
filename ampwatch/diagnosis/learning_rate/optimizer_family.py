"""The family of an optimizer, judged by what it does and not by its name.

A *plain* optimizer (SGD, momentum) moves in proportion to the gradient; an *adaptive* one (Adam and
similar, sign methods) moves each weight by about the rate, however large the gradient is.
"""

from __future__ import annotations

import enum

import numpy as np

from ampwatch.diagnosis.column_arrays import Floats
from ampwatch.diagnosis.learning_rate.constants import FEW_STEPS
from ampwatch.diagnosis.learning_rate.rate_history import RateRows, Setup

SAME_OCTAVES = 0.35  # an identity holds within this: the update norm is an estimate
ADAPTIVE_SLOPE, PLAIN_SLOPE = 0.35, 0.65  # of log(update / rate) over log(gradient)


class Family(str, enum.Enum):
    """The family of an optimizer: how its updates depend on the gradient."""

    PLAIN = "plain"
    ADAPTIVE = "adaptive"
    UNKNOWN = "unknown"


def family_of(rows: RateRows, setup: Setup) -> Family:
    """The family of the optimizer that these accepted steps show."""
    move = _log2(rows.of("update_norm")) - _log2(rows.of("lr"))
    gradient = _log2(_felt(rows))
    known = np.isfinite(move) & np.isfinite(gradient)
    if known.any() and not setup.resumed:
        seen = _by_first_step(float(move[known][0]), float(gradient[known][0]), setup)
        if seen is not None:
            return seen
    seen, said = _by_slope(move[known], gradient[known]), _by_settings(setup)
    if seen is Family.ADAPTIVE and said is Family.PLAIN:
        return said  # momentum averages the gradient's changes away
    return said if seen is None else seen


def _felt(rows: RateRows) -> Floats:
    """For the family, the norm of the gradient that the optimizer received."""
    applied = rows.of("applied_norm")
    return np.where(np.isnan(applied), rows.of("grad_norm"), applied)


def _by_first_step(move: float, gradient: float, setup: Setup) -> Family | None:
    """The family by the first step: lr x gradient if plain, lr for each weight if adaptive."""
    plain = abs(move - gradient) < SAME_OCTAVES
    adaptive = False
    if setup.elements:
        adaptive = abs(move - 0.5 * float(np.log2(setup.elements))) < SAME_OCTAVES
    if plain == adaptive:
        return None
    return Family.PLAIN if plain else Family.ADAPTIVE


def _by_slope(move: Floats, gradient: Floats) -> Family | None:
    if len(move) < FEW_STEPS or float(np.ptp(gradient)) < 1.0:
        return None
    slope = float(np.polyfit(gradient, move, 1)[0])
    if slope < ADAPTIVE_SLOPE:
        return Family.ADAPTIVE
    return Family.PLAIN if slope > PLAIN_SLOPE else None


def _by_settings(setup: Setup) -> Family:
    """The family by the optimizer's settings: betas or eps, or a momentum."""
    kinds = {group.adaptive for group in setup.groups} - {None}
    if len(kinds) != 1:
        return Family.UNKNOWN
    return Family.ADAPTIVE if kinds.pop() else Family.PLAIN


def _log2(values: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.log2(np.where(values > 0, values, np.nan)))
