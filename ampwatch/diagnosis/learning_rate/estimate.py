"""How far a rate that failed lies above the highest stable one: a fitted formula.

It uses how far the first updates move the weights, at the base rate and in the optimizer's steady
state; later updates are already part of the trouble. The lines were fitted to
147 unstable runs of small trainings: treat them as a start.
Within one training the octaves grow one to one with the update, over all of them by 0.5 to 0.8; the
flatter lines left the highest rates too high.

The family of an optimizer is judged by what it does and not by its name. A *plain* optimizer (SGD,
momentum) moves in proportion to the gradient; an *adaptive* one (Adam and similar, sign methods)
moves each weight by about the rate, however large the gradient is.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, replace

import numpy as np

from ampwatch.diagnosis.column_arrays import Floats
from ampwatch.diagnosis.learning_rate.constants import BELOW_FAILED, FEW_STEPS, LEAST_OCTAVES
from ampwatch.diagnosis.learning_rate.rate_history import Group, RateRows, Setup

# --- the family of an optimizer -------------------------------------------------------------------


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
    is_known = np.isfinite(move) & np.isfinite(gradient)
    if is_known.any() and not setup.resumed:
        observed = _by_first_step(float(move[is_known][0]), float(gradient[is_known][0]), setup)
        if observed is not None:
            return observed
    observed, by_settings = _by_slope(move[is_known], gradient[is_known]), _by_settings(setup)
    if observed is Family.ADAPTIVE and by_settings is Family.PLAIN:
        return by_settings  # momentum averages the gradient's changes away
    return by_settings if observed is None else observed


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


# --- the estimate ---------------------------------------------------------------------------------


SLOPE = 0.75
OFFSETS = {  # octaves over the limit at an update as large as the weights
    Family.ADAPTIVE: 1.5,
    Family.PLAIN: 2.8,
    Family.UNKNOWN: 2.2,  # between the two
}
BLIND = 2.0  # no update norm: only "it was too high" is known
# How much deeper to cut. Of 1 to 3 octaves the least at which every rerun of twelve kinds of
# training that nobody had fitted was stable, and the one with the smallest gap.
MARGIN = 2.5
# How far the truth may lie from the estimate: the 4 and 96 % quantiles (2.4 and 1.5) of 305 failed
# runs of 43 kinds. Each kind in turn left out, 0.91 of the limits lie inside, of 3.8 octaves.
BELOW, ABOVE = 2.4, 1.6
# What is added on both sides where the optimizer's family is not known, or no update.
DOUBT, BLIND_DOUBT = 0.7, 2.4
UPDATE_STEPS = 2  # one may be odd, and from the third on a rate far too high has changed the run
# Octaves on top where a plain optimizer's first update was enough to break the run: the second one
# would have been far larger (without this all ten such runs came out 0.5 to 1.0 too low).
BROKE_AT_ONCE = 0.8
# A run that still learns is not far over: the fitted ones were 0.5 to 1.5, whatever their updates.
MOST_OCTAVES_LEARNING = 1.5


@dataclass(frozen=True, slots=True)
class EstimateBounds:
    """Two known rates between which the estimate must lie: one failed, one may have worked."""

    failed: float
    worked: float | None = None

    def capped(self, low: float, high: float) -> tuple[float, float]:
        """Cut an estimated interval at the rates that are known to have failed or worked."""
        ceiling = self.failed * 2.0**-BELOW_FAILED
        if self.worked is not None and high <= self.worked:
            return self.worked, ceiling  # the facts overrule an interval below them
        high = min(high, ceiling)
        return min(max(low, self.worked or 0.0), high), high

    def octaves_below(self, base: float) -> float:
        """By how many octaves the rate that failed lies below the base rate."""
        return max(0.0, math.log2(base / self.failed))


@dataclass(frozen=True, slots=True)
class Estimate:
    """How many octaves the base rate lies above the highest stable one, as estimated."""

    octaves: float
    doubt: float  # octaves that the interval is wider on both sides
    family: Family
    update: float | None  # u: the update over the weights at the base rate
    steps: int
    arithmetic: str
    fitted: float  # the octaves by the first updates alone; below 0 the rate is under the limit

    def limits(self, base: float, bounds: EstimateBounds) -> tuple[float, float]:
        """The interval of the estimated highest stable rate, within the bounds."""
        octaves = max(self.octaves, bounds.octaves_below(base) + LEAST_OCTAVES)
        low, high = octaves + ABOVE + self.doubt, octaves - BELOW - self.doubt
        return bounds.capped(base * 2.0**-low, base * 2.0**-high)

    @property
    def of_one_that_learns(self) -> Estimate:
        """The estimate for a run that still learns, whose rate cannot be far too high."""
        most = MOST_OCTAVES_LEARNING
        if self.octaves <= most:
            return self
        note = f"because the run still learns, {times_text(most)} is assumed"
        return replace(self, octaves=most, arithmetic=f"{self.arithmetic}; {note}")


def estimate(rows: RateRows, base: float, setup: Setup, *, broke: bool) -> Estimate:
    """Estimate how far the rate is too high, from the accepted steps before the onset.

    `broke` says that numbers left their format.
    """
    update, family = update_at_base(rows, base, setup), family_of(rows, setup)
    fitted = BLIND if update is None else OFFSETS[family] + SLOPE * math.log2(update)
    if broke and rows.moved.sum() == 1 and family is Family.PLAIN:
        fitted += BROKE_AT_ONCE
    octaves = max(fitted, LEAST_OCTAVES)  # a rate that failed is over the limit
    text = _arithmetic(update, family, octaves, is_least=octaves > fitted)
    doubt = DOUBT if family is Family.UNKNOWN else 0.0
    doubt = BLIND_DOUBT if update is None else doubt
    return Estimate(octaves, doubt, family, update, len(rows), text, fitted)


def _arithmetic(update: float | None, family: Family, octaves: float, *, is_least: bool) -> str:
    times = times_text(octaves)
    if update is None:
        unknown = "By how much the first updates change the weights is not recorded"
        return f"{unknown}: {times} too high is assumed"
    share = f"{100 * update:.2g} %" if update < 1 else f"{update:.2g} times their size"
    text = (
        "Extrapolated to the peak learning rate, early updates would change the weights by about "
        f"{share} per step"
    )
    if is_least:
        least = f"the least that is assumed of a learning rate that failed is {times} too high"
        return f"{text}, which other trainings tolerate: {least}"
    note = " (what kind of optimizer it is, is not known)" if family is Family.UNKNOWN else ""
    return f"{text}, so the peak is about {times} too high{note}"


def times_text(octaves: float) -> str:
    """An estimate's octaves as a factor in words: 2.5 is "5.7 times"."""
    return f"{2.0**octaves:.2g} times"


def update_at_base(rows: RateRows, base: float, setup: Setup) -> float | None:
    """The first updates over the weights, as the estimate needs them: at the base rate.

    The optimizer's own decay of the weights does not answer a gradient: its part, which stands
    about at right angles to the rest, is subtracted.
    """
    decay = max((g.weight_decay for g in setup.groups if g.decoupled), default=0.0)
    with np.errstate(all="ignore"):
        per_rate = rows.ratio / rows.of("lr")
        moved = np.sqrt(np.maximum(per_rate**2 - decay**2, 0.0))
        octaves = np.log2(base * moved / _of_steady_state(setup, len(rows)))
    first = octaves[np.isfinite(octaves)][:UPDATE_STEPS]
    return 2.0 ** float(first.mean()) if len(first) else None


def _of_steady_state(setup: Setup, steps: int) -> Floats:
    """For the estimate, the share of its steady update that each first step makes.

    Momentum first has to build up; a mean of squares that begins at zero (RMSprop) divides by too
    little. Adam corrects both itself.
    """
    group = setup.groups[0] if setup.groups else Group()
    age = np.arange(1, steps + 1)
    gathered = 1.0 - group.momentum ** (age + group.nesterov)
    return np.asarray(gathered / np.sqrt(1.0 - group.square_decay**age))
