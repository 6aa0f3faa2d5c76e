"""How rates that earlier, alike runs tried bound the advice to lower a rate.

The interval ends below a rate that failed and begins near one that held. The advised rate stays
below the one that failed, and is no lower than a quarter of the one that held. Measured on sweeps
of 38 configurations by `benchmarks/learning_rate_earlier.py`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass

from ampwatch.diagnosis.learning_rate.advice import Action, Advice
from ampwatch.diagnosis.learning_rate.constants import BELOW_FAILED, LEAST_OCTAVES
from ampwatch.diagnosis.value_text import count_text

# Octaves. Another seed failed up to half an octave below a rate that held once: with that much less
# the interval held the limit as often as without earlier runs.
HELD_WITHIN = 0.5
# The best rate lay about two octaves below the highest that held. Of 0, 1, 2 and 3 this left the
# smallest gap, on the fitted sweeps and then on those never fitted; at 0 reruns failed.
BELOW_HELD = 2.0


@dataclass(frozen=True, slots=True)
class TriedRate:
    """The rate of one earlier run, and whether it held."""

    rate: float
    steps: int  # that it held: until it ended, or failed
    held: bool  # else it failed, because of the rate


@dataclass(frozen=True, slots=True)
class EarlierRates:
    """The highest earlier rate that held and the lowest that failed, as far as known."""

    held: TriedRate | None = None
    failed: TriedRate | None = None

    @property
    def told(self) -> str:
        """What the earlier rates showed, in words."""
        held, failed = self.held, self.failed
        parts = []
        if held is not None:
            parts.append(f"held {held.rate:.3g} for {count_text(held.steps, 'step')}")
        if failed is not None:
            parts.append(f"failed at {failed.rate:.3g}")
        return f"Earlier runs alike {' and '.join(parts)}"


def rates_below(tried: Iterable[TriedRate], rate: float, steps: int) -> EarlierRates | None:
    """Which earlier rates below a failed one held or failed; None if they show nothing.

    A run that ended sooner proves nothing. If one failed at a rate that another held, neither is
    used.
    """
    below = [one for one in tried if 0 < one.rate < rate]
    held = max(
        (one for one in below if one.held and one.steps >= steps),
        key=lambda one: (one.rate, one.steps), default=None,
    )  # fmt: skip
    failed = min((one for one in below if not one.held), key=lambda one: one.rate, default=None)
    if held is not None and failed is not None and failed.rate <= held.rate:
        return None
    return None if held is failed else EarlierRates(held, failed)


def bounded(advice: Advice, tried: Iterable[TriedRate], steps: int) -> Advice:
    """The advice with its interval bounded by earlier rates; `steps` is how far this run came."""
    current, at = advice.current, advice.recommended
    if advice.action is not Action.LOWER or not advice.has_interval or not current or not at:
        return advice
    known = rates_below(tried, current, steps)
    if known is None:
        return advice
    low, high = _interval(advice, known, current)
    proven = 0.0 if known.held is None else known.held.rate * 2.0**-BELOW_HELD
    safe = math.inf if known.failed is None else known.failed.rate * 2.0**-LEAST_OCTAVES
    advised = min(max(at, proven), safe)
    reasons = [advice.because, f"{known.told}, which bounds the interval."]
    if advised > at:
        reasons.append(
            f"The advised rate is a quarter of the one that held, not {at:.3g}: in sweeps that "
            "trained better."
        )
    if advised < at:
        reasons.append(f"The advised rate is below the one that failed, not {at:.3g}.")
    return dataclasses.replace(
        advice,
        because=" ".join(reasons),
        recommended=advised,
        low=low,
        high=high,
        factor=advised / current,
        warmup_steps=advice.warmup_steps if advised == at else None,  # it was to the old peak
    )


def _interval(advice: Advice, known: EarlierRates, current: float) -> tuple[float, float]:
    """The advised interval cut at the earlier rates that held and failed."""
    assert advice.low is not None
    assert advice.high is not None
    width = advice.high / advice.low
    least = 0.0 if known.held is None else known.held.rate * 2.0**-HELD_WITHIN
    failed = current if known.failed is None else known.failed.rate
    most = failed * 2.0**-BELOW_FAILED
    high = most if advice.high <= least else min(advice.high, most)
    low = max(advice.low, least)
    return (low if low < high else max(least, high / width)), high
