"""What a histogram of half-precision gradients tells: what was lost, and which scales fit.

Pure. A bin is an octave, as `rows` defines them. Values that the format flushed to zero cannot be
seen; they are estimated by continuing the lowest visible octaves as a power law, never beyond the
zeros that were seen. Zeros that have another cause (a dead ReLU) are therefore not counted. Where
every value is zero the histogram says nothing; `layer_flush` looks elsewhere.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from ampwatch.rows import EXPONENT_BINS, EXPONENT_LOWEST

FLOAT16_MAX = 65504.0
FLOAT16_SMALLEST_NORMAL = 2.0**-14
FLOAT16_SMALLEST = 2.0**-24

# The share of a layer's non-zero gradients that may fall below the smallest value before a scale is
# called too low for it. Of a normal distribution the smallest twentieth holds less than a
# ten-thousandth of the squared norm, so losing it is no loss; a quantile much lower would be read
# off a handful of the sampled values.
LOST_SHARE_ALLOWED = 0.05
# ... and the share that may be lost or subnormal: half of the values keep all their digits.
COARSE_SHARE_ALLOWED = 0.5
LEAST_VALUES_FOR_SCALES = 64
# Of 17 shapes of gradients at 5 scales the law named the smallest twentieth within 1.5 octaves when
# it was continued by 4 octaves at most (but for a softmax so sure that hardly a value is left to
# see); at 5 octaves it was 2 off, at 15 eleven.
MOST_OCTAVES_BEYOND = 4.0

Bins = NDArray[np.int64]


def _bin(exponent: int) -> int:
    return exponent - EXPONENT_LOWEST + 1


_ZEROS = 0
_NOT_FINITE = EXPONENT_BINS - 1
_SUBNORMALS = slice(_bin(-24), _bin(-14))
_FINITE = slice(1, _NOT_FINITE)

# The tail is judged by the two lowest octaves, because higher ones already bend towards the bulk.
# float16's values there are k * 2^-24, k = 1 and k = 2, 3; rounding made them of the true values
# from k - 1/2 to k + 1/2, hence the edges (unit: 2^-24).
_LOWEST = _bin(-24)
_NEXT = _bin(-23)
_EDGES = (0.5, 1.5, 3.5)
# A stray value must not pass for a tail: each octave starts with what values spread evenly around
# zero (power 1) would leave there for two values in the lowest.
_PRIOR = (2.0, 4.0)
_POWERS = np.linspace(0.02, 6.0, 300)


def histogram(bits: Iterable[NDArray[np.int16]], dtype: str) -> Bins:
    """Count the bit patterns of sampled float16 or bfloat16 values into bins."""
    bins = np.zeros(EXPONENT_BINS, np.int64)
    table = _bin_of_pattern(dtype)
    for sample in bits:
        bins += np.bincount(table[sample.view(np.uint16)], minlength=EXPONENT_BINS)
    return bins


def histogram_of_counts(reached: NDArray[np.float64]) -> Bins:
    """Bins from how many values reach into each bin or a higher one."""
    bins: Bins = np.rint(reached - np.append(reached[1:], 0.0)).astype(np.int64)
    return bins


@functools.cache
def _bin_of_pattern(dtype: str) -> NDArray[np.uint8]:
    patterns = np.arange(1 << 16, dtype=np.uint32)
    if dtype == "float16":
        values = patterns.astype(np.uint16).view(np.float16).astype(np.float64)
    else:
        with np.errstate(invalid="ignore"):  # signalling NaNs are patterns too
            values = (patterns << 16).view(np.float32).astype(np.float64)
    _, exponents = np.frexp(values)
    bins = np.clip(exponents - 1 - EXPONENT_LOWEST + 1, 1, _NOT_FINITE - 1)
    bins[values == 0] = _ZEROS
    bins[~np.isfinite(values)] = _NOT_FINITE
    small: NDArray[np.uint8] = bins.astype(np.uint8)
    return small


def underflow_share(bins: Bins) -> float | None:
    """Of the non-zero float16 values, the share flushed to zero or left subnormal.

    None where no non-zero value is seen: all may be lost, or there may have been nothing.
    """
    seen = int(bins[_FINITE].sum())
    if seen == 0:
        return None
    flushed, _ = _flushed(bins)
    return (int(bins[_SUBNORMALS].sum()) + flushed) / (seen + flushed)


def lowest_scale(bins: Bins, scale: float) -> float | None:
    """The lowest loss scale that suits these values; None where the histogram cannot tell.

    There at most `LOST_SHARE_ALLOWED` of them is lost to zero, and at most `COARSE_SHARE_ALLOWED`
    is lost or subnormal.
    """
    seen = int(bins[_FINITE].sum())
    if seen < LEAST_VALUES_FOR_SCALES:
        return None
    flushed, power = _flushed(bins)
    if power is None and flushed > 0:
        return None  # more is lost than the tail can tell
    counts = itertools.accumulate(bins[_FINITE].tolist(), initial=0)
    below = [flushed + count for count in counts]
    small, middle = (
        _quantile(below, power, share * (seen + flushed))
        for share in (LOST_SHARE_ALLOWED, COARSE_SHARE_ALLOWED)
    )
    if small < FLOAT16_SMALLEST * 2.0**-MOST_OCTAVES_BEYOND:
        return None
    return scale * max(FLOAT16_SMALLEST / small, FLOAT16_SMALLEST_NORMAL / middle)


def highest_scale(amax: float | None, scale: float) -> float | None:
    """The highest loss scale that keeps this maximum, seen at `scale`, within float16."""
    if amax is None or not math.isfinite(amax) or amax == 0.0:
        return None
    return scale * FLOAT16_MAX / amax


def _flushed(bins: Bins) -> tuple[float, float | None]:
    """How many values the format flushed to zero, and the power law that says so.

    The law is N(|x| < t) ~ t^power. No power means that the octaves do not thin out downwards: then
    every zero seen may be a lost value.
    """
    zeros = float(bins[_ZEROS])
    lowest, above = int(bins[_LOWEST]), int(bins[_NEXT])
    if lowest == 0:
        return 0.0, 1.0
    ratio = (above + _PRIOR[1]) / (lowest + _PRIOR[0])
    ratios, lost_shares = _power_law()
    if ratio <= ratios[0]:
        return zeros, None
    power = float(np.interp(ratio, ratios, _POWERS))
    lost = lowest * float(np.interp(power, _POWERS, lost_shares))
    return (lost, power) if lost <= zeros else (zeros, power)


@functools.cache
def _power_law() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """For each power: the next octave over the lowest, and the flushed over the lowest."""
    smallest, middle, upper = (np.power(edge, _POWERS) for edge in _EDGES)
    return (upper - middle) / (middle - smallest), smallest / (middle - smallest)


def _quantile(below: list[float], power: float | None, target: float) -> float:
    """The magnitude below which `target` of the values lie, in scaled units.

    `below` says how many lie below each finite bin, beginning with the flushed ones.
    """
    flushed, smallest_seen = below[0], FLOAT16_SMALLEST / 2
    if flushed >= target and power is not None:
        return smallest_seen * float((target / flushed) ** (1.0 / power))
    place = bisect.bisect_right(below, target) - 1
    inside = (target - below[place]) / (below[place + 1] - below[place])
    low, high = _edge(place), _edge(place + 1)
    return float(low * (high / low) ** inside)


def _edge(place: int) -> float:
    """The least true value that rounds into this octave of the finite bins."""
    octave = 2.0 ** (EXPONENT_LOWEST + place)
    return float(max(octave - FLOAT16_SMALLEST / 2, octave / 2))


def shown(bins: Bins) -> list[int] | None:
    """The histogram as a row holds it; None where nothing was sampled."""
    counts: list[int] = bins.tolist()
    return counts if any(counts) else None


def combined(histograms: Iterable[Bins]) -> Bins:
    """The histogram of all values together."""
    total: Bins = np.zeros(EXPONENT_BINS, np.int64)
    for bins in histograms:
        total += bins
    return total
