"""How printed loss scales relate: equal but for rounding, or some halvings apart."""

from __future__ import annotations

import math

# Scales that differ by less are equal, printed with fewer digits.
SAME_SCALE = 0.05
MOST_OCTAVES = 1100  # between the largest and the smallest float


def is_same(printed: float | None, known: float | None) -> bool:
    """Whether a printed scale is the known one, rounded."""
    if not printed or not known:
        return False
    return abs(printed / known - 1) < SAME_SCALE


def octaves_between(low: float, high: float) -> int:
    """The number of doublings from `low` to `high`, rounded; 0 if one is zero, inf or nan."""
    if not (low > 0 and high > 0 and math.isfinite(low) and math.isfinite(high)):
        return 0
    octaves = math.log2(high) - math.log2(low)
    return round(octaves) if abs(octaves) < MOST_OCTAVES + 100 else 0


def halvings(begin: float | None, end: float | None, count: int) -> list[float] | None:
    """The scales from `begin` to `end`, if `count` halvings lead from one to the other."""
    if begin is None or end is None or octaves_between(end, begin) != count or count <= 0:
        return None
    factor = (end / begin) ** (1 / count)
    if not math.isclose(factor, 0.5, rel_tol=0.05):
        return None
    return [*(begin * factor**number for number in range(count)), end]
