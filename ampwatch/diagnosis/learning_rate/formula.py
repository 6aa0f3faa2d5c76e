"""How far a rate that failed lies above the highest stable one: the fitted formula."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ampwatch.diagnosis.learning_rate import constants
from ampwatch.diagnosis.learning_rate.course import Rows, Setup
from ampwatch.diagnosis.learning_rate.family import Family, family_of
from ampwatch.diagnosis.signals import Floats


@dataclass(frozen=True, slots=True)
class Estimate:
    """log2 of base rate over highest stable rate, how wide that is, and how it came about."""

    octaves: float
    half_width: float
    margin: float
    family: Family
    update: float | None  # u: the update over the weights at the base rate
    predicted: float | None  # p: the loss decrease that gradient and update foretell, inverted
    steps: int
    arithmetic: str

    @property
    def is_below_limit(self) -> bool:
        """Whether the estimate lies so far below the limit that the rate is not too high."""
        return self.update is not None and self.octaves + constants.CLEARED < 0

    def limits(self, base: float) -> tuple[float, float]:
        """The 90 % interval of the highest stable rate."""
        middle = self.octaves - constants.SHIFT
        return base * 2.0 ** -(middle + self.half_width), base * 2.0 ** -(middle - self.half_width)

    @property
    def cut(self) -> float:
        """By how many octaves to lower the rate."""
        return max(constants.LEAST_CUT, self.octaves + self.margin)


def estimate(rows: Rows, base: float, setup: Setup, *, collapsed: bool) -> Estimate:
    """The estimate from the accepted steps before the onset."""
    margin = constants.MARGIN_COLLAPSED if collapsed else constants.MARGIN_OTHER
    update, predicted = update_at_base(rows, base, setup), _predicted(rows, base)
    family, steps = family_of(rows, setup), len(rows)
    if update is None:
        text = (
            "No update norm is recorded, so only that the rate was too high is known: "
            f"{constants.BLIND_OCTAVES:g} octaves are assumed"
        )
        octaves, width = constants.BLIND_OCTAVES, constants.BLIND_WIDTH
    else:
        octaves, width, text = _fitted(family, update, predicted)
    if steps < constants.UNSTEADY_STEPS:
        width += constants.UNSTEADY_WIDTH
        text += f"; only {steps} accepted steps before it, no steady state yet: a wider interval"
    return Estimate(octaves, width, margin, family, update, predicted, steps, text)


def update_at_base(rows: Rows, base: float, setup: Setup) -> float | None:
    """The 90th percentile of the update over the weights, as it would be at the base rate.

    The optimizer's own decay of the weights is no answer to a gradient: its part, which stands
    about at right angles to the rest, is subtracted.
    """
    rate = rows.of("lr")
    decay = max((g.weight_decay for g in setup.groups if g.decoupled), default=0.0)
    with np.errstate(all="ignore"):
        per_rate = rows.ratio / rate
        squared = np.maximum(per_rate**2 - decay**2, 0.0)
    known = squared[np.isfinite(squared)]
    if not len(known):
        return None
    update = math.sqrt(float(np.percentile(known, constants.UPDATE_PERCENTILE))) * base
    return update if update > 0 and math.isfinite(update) else None


def _predicted(rows: Rows, base: float) -> float | None:
    """The minimum of rate x loss / (gradient x update), over the base rate."""
    with np.errstate(all="ignore"):
        values: Floats = rows.of("lr") * rows.of("loss")
        values = values / (rows.of("grad_norm") * rows.of("update_norm")) / base
    known = values[np.isfinite(values) & (values > 0)]
    return float(known.min()) if len(known) else None


def _fitted(family: Family, update: float, predicted: float | None) -> tuple[float, float, str]:
    width = constants.HALF_WIDTH
    adaptive = constants.ADAPTIVE_OFFSET + constants.ADAPTIVE_UPDATE * math.log2(update)
    adaptive_text = (
        f"u = {update:.3g} of the weights a step at the base rate; x = "
        f"{constants.ADAPTIVE_OFFSET} + {constants.ADAPTIVE_UPDATE} log2 u = "
        f"{adaptive:.2f} octaves too high"
    )
    if family is Family.ADAPTIVE:
        return adaptive, width, adaptive_text
    if predicted is None:
        text = adaptive_text + " (no loss to use the other form)"
        return adaptive, width + constants.UNKNOWN_FAMILY_WIDTH, text
    plain = (
        constants.PLAIN_OFFSET
        + constants.PLAIN_UPDATE * math.log2(update)
        + constants.PLAIN_PREDICTED * math.log2(predicted)
    )
    plain_text = (
        f"u = {update:.3g}, p = {predicted:.3g}; x = {constants.PLAIN_OFFSET} + "
        f"{constants.PLAIN_UPDATE} log2 u + {constants.PLAIN_PREDICTED} log2 p = "
        f"{plain:.2f} octaves too high"
    )
    if family is Family.PLAIN:
        return plain, width, plain_text
    return (
        (plain + adaptive) / 2,
        width + constants.UNKNOWN_FAMILY_WIDTH,
        f"The optimizer's family is not known, so between two forms: {adaptive_text}; {plain_text}",
    )
