"""How a card's memory has moved over the record: whether it is kept and grows, how near the end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ampwatch.diagnosis import policy
from ampwatch.diagnosis.device_course import Card
from ampwatch.diagnosis.signals import Floats


@dataclass(frozen=True, slots=True)
class Growth:
    """Memory that is kept and grows, over the judged part of the record."""

    first_bytes: float
    last_bytes: float
    seconds: float

    @property
    def bytes_per_hour(self) -> float:
        """At this pace."""
        return (self.last_bytes - self.first_bytes) / max(self.seconds, 1.0) * 3600.0


def growth_of(card: Card) -> Growth | None:
    """The growth of what the card keeps between steps; None if it does not grow steadily."""
    floor, peak = _judged(card.floor_bytes.whole), _judged(card.peak_bytes.whole)
    if card.samples < policy.MEMORY_SAMPLES or np.isnan(floor).any() or np.isnan(peak).any():
        return None
    quarters = [float(part.min()) for part in np.array_split(floor, policy.MEMORY_QUARTERS)]
    rises = bool((np.diff(quarters) > 0).all())
    climbs = float((np.diff(peak) > 0).mean()) >= policy.MEMORY_RISING_SHARE
    gained = quarters[-1] - quarters[0]
    kept = gained >= policy.MEMORY_FLOOR_SHARE * _between_quarters(peak)
    if not (rises and climbs and kept) or quarters[-1] < policy.MEMORY_GROWTH * quarters[0]:
        return None
    whole_s = (card.last_time_ns - card.first_time_ns) / 1e9
    quarter = policy.MEMORY_PART / policy.MEMORY_QUARTERS
    return Growth(quarters[0], quarters[-1], whole_s * (policy.MEMORY_PART - quarter))


def fills_card(card: Card, growth: Growth) -> bool:
    """Whether the card is full within a few times the record's own length, at this pace."""
    share = card.share.whole
    left = (1.0 - float(share[-1])) * card.total_bytes if len(share) else float("nan")
    hours = policy.MEMORY_HORIZON * (card.last_time_ns - card.first_time_ns) / 3600e9
    return bool(growth.bytes_per_hour * hours >= left)


def limit_share(card: Card) -> float | None:
    """The peak as a share of what the process can have, if it is near 1 and still rises."""
    share = card.share.whole
    if card.samples < policy.MEMORY_SAMPLES or not len(share) or np.isnan(share).any():
        return None
    half = len(share) // 2
    highest = np.maximum.accumulate(share)[half - 1 :]
    records = int((np.diff(highest) > 0).sum())
    rise = float(highest[-1] - highest[0])
    if share[-1] < policy.MEMORY_LIMIT or records < policy.MEMORY_LIMIT_RECORDS:
        return None
    return float(share[-1]) if rise >= policy.MEMORY_LIMIT_RISE else None


def _judged(windows: Floats) -> Floats:
    return windows[len(windows) - int(len(windows) * policy.MEMORY_PART) :]


def _between_quarters(peak: Floats) -> float:
    """What the peak gained while the floor went from its first quarter's least to its last's."""
    parts = np.array_split(peak, policy.MEMORY_QUARTERS)
    return float(parts[-1].min() - parts[0].min())
