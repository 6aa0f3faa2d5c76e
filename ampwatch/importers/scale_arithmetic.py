"""How printed loss scales relate: equal but for rounding, powers of two, some halvings apart."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


# Scales that differ by less are equal, printed with fewer digits.
SAME_SCALE = 0.05
MOST_OCTAVES = 1100  # between the largest and the smallest float


def is_same(printed: float | None, known: float | None) -> bool:
    """Whether a printed scale is the known scale, rounded."""
    return False if not printed or not known else abs(printed / known - 1) < SAME_SCALE


def octaves_between(low: float, high: float) -> int:
    """How many doublings lead from scale `low` to `high`, rounded; 0 if one is zero, inf or nan."""
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


def without_rounding(
    scale: Floats, is_after: Flags, changes: npt.NDArray[np.intp], known: float
) -> Floats:
    """The scales, each replaced by the known one before it if it is the same but for rounding."""
    exact: Floats = scale.copy()
    ends = [*changes[1:].tolist(), len(scale)]
    exact[: changes[0]] = known
    for begin, end in zip(changes.tolist(), ends, strict=True):
        printed = float(scale[begin])
        same = bool(is_after[begin] and known and printed) and abs(printed / known - 1) < SAME_SCALE
        known = known if same else printed
        exact[begin:end] = known
    return exact


def octaves_between_arrays(low: Floats, high: Floats) -> Floats:
    """How many doublings lead from each scale of `low` to that of `high`; see `octaves_between`."""
    with np.errstate(all="ignore"):
        octaves = np.log2(high) - np.log2(low)
    fits = (low > 0) & (high > 0) & np.isfinite(low) & np.isfinite(high)
    whole: Floats = np.where(fits & (np.abs(octaves) < MOST_OCTAVES + 100), np.rint(octaves), 0.0)
    return whole


def snapped(scale: float) -> float:
    """The power of two that a scale printed in a few digits stands for."""
    if not (scale > 0 and math.isfinite(scale)):
        return scale
    near: float = 2.0 ** round(math.log2(scale))
    return near if math.isclose(near, scale, rel_tol=0.05) else scale
