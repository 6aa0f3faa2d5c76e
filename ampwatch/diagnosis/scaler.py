"""The settings of a run's GradScaler, as run.json tells them, and what follows from them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ampwatch.diagnosis import thresholds
from ampwatch.diagnosis.event import positive_number
from ampwatch.diagnosis.record import Info

# torch's own default, for records that do not say.
GROWTH_INTERVAL = 2000
# What run.json says may be anything; no run is longer.
LONGEST_INTERVAL = 2.0**40
# Skips belong to one episode when the next comes within a tenth of a growth interval: a fall that
# pauses for a few accepted steps is one fall, overflows a whole interval apart are not.
_EPISODE_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Scaler:
    """The settings of a run's GradScaler, as run.json tells them."""

    initial: float | None
    growth_factor: float
    growth_interval: int
    floor: float | None
    backoff_factor: float = 0.5
    hysteresis: int = 1  # overflows in a row before the scale falls

    @property
    def tooth_skips(self) -> int:
        """How many skips undo one growth of the scaler, with one more that an overflow may need."""
        if not (self.growth_factor > 1.0 > self.backoff_factor > 0.0):
            return thresholds.SAWTOOTH_SKIPS
        undone = math.log(self.growth_factor) / -math.log(self.backoff_factor)
        return max(thresholds.SAWTOOTH_SKIPS, math.ceil(undone - 1e-9) + 1) + self.hysteresis - 1

    def skips_by_growth(self, steps: int) -> float:
        """How many skips the scaler's growth causes in so many steps: one a growth too far."""
        return steps / self.growth_interval * self.hysteresis

    @property
    def close_steps(self) -> int:
        """How near the next skip must be, with this scaler, to belong to the same episode."""
        share = int(self.growth_interval * _EPISODE_SHARE)
        return min(max(thresholds.NEAR_STEPS, share), self.growth_interval)

    @property
    def established_steps(self) -> int:
        """How many accepted steps in a row establish a scale, with this scaler."""
        return min(thresholds.ESTABLISHED_STEPS, self.growth_interval)


def scaler_of(info: Info) -> Scaler:
    """The scaler of a run, with torch's defaults for what run.json does not say."""
    told = {name: positive_number(value) for name, value in info.scaler.items()}
    interval = min(told.get("growth_interval") or GROWTH_INTERVAL, LONGEST_INTERVAL)
    return Scaler(
        initial=told.get("init_scale"),
        growth_factor=told.get("growth_factor") or 2.0,
        growth_interval=max(1, int(interval)),
        floor=told.get("min_scale"),
        backoff_factor=told.get("backoff_factor") or 0.5,
        hysteresis=int(min(told.get("hysteresis") or 1.0, 16.0)),
    )
