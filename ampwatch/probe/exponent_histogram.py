"""Histograms of half-precision gradients: what the format lost, and which loss scales fit.

A bin is an octave, as `rows` defines them. The training thread takes a sample of each gradient; the
courier makes and reads the histograms, those of all layers at once.

Values that the format flushed to zero cannot be seen. They are estimated by continuing the lowest
visible octaves as a power law, never beyond the number of zeros seen. Zeros with another cause
(a dead ReLU) are therefore not counted. Where every value is zero the histogram says nothing, and
`flushed_everywhere` looks at the rest of the step.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ampwatch.probe.tensor_values import strided
from ampwatch.rows import EXPONENT_BINS, EXPONENT_LOWEST

FLOAT16_MAX = 65504.0
FLOAT16_SMALLEST_NORMAL = 2.0**-14
FLOAT16_SMALLEST = 2.0**-24

# The share of a layer's non-zero gradients that may fall below the smallest value before a scale is
# called too low for it. Of a normal distribution the smallest twentieth holds less than a
# ten-thousandth of the squared norm, so losing it is no loss; a much lower quantile would rest on a
# handful of the sampled values.
LOST_SHARE_ALLOWED = 0.05
# ... and the share that may be lost or subnormal: half of the values keep all their digits.
COARSE_SHARE_ALLOWED = 0.5
LEAST_VALUES_FOR_SCALES = 64
# Of 17 shapes of gradients at 5 scales, the power law placed the smallest twentieth within 1.5
# octaves if it was continued by at most 4 octaves (except for a softmax so sure that hardly a value
# is left to see); at 5 octaves it was 2 off, at 15 it was 11 off.
MOST_OCTAVES_BEYOND = 4.0

Bins = NDArray[np.int64]
Floats = NDArray[np.float64]


def _bin(exponent: int) -> int:
    return exponent - EXPONENT_LOWEST + 1


_ZEROS = 0
_NOT_FINITE = EXPONENT_BINS - 1
_SUBNORMALS = slice(_bin(-24), _bin(-14))
_FINITE = slice(1, _NOT_FINITE)

_FLOAT32_BIAS = 127
_FLOAT32_FRACTION_BITS = 23
_FLOAT32_NOT_FINITE = 255

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


# -- a sample, on the training thread --------------------------------------------------------------


def copied_bits(gradient: Tensor) -> Tensor:
    """The sample's bit patterns, copied: the gradient itself will be changed in place."""
    return strided(gradient).clone(memory_format=torch.contiguous_format).view(torch.int16)


def bits_of(sample: Tensor) -> Tensor:
    """The bit patterns of a sample that was copied already."""
    return sample.view(torch.int16)


def counted(gradient: Tensor) -> Tensor:
    """How many sampled magnitudes reach into each bin or a higher one; stays on the device.

    By comparisons and a sum: `bincount`, `histc` and `scatter_add` synchronise, or are refused by
    `torch.use_deterministic_algorithms(True)`.
    """
    magnitudes = strided(gradient).float().view(torch.int32).bitwise_and(0x7FFF_FFFF)
    reached = magnitudes.reshape(1, -1) >= _lower_edges(gradient.device)
    return reached.sum(dim=1)


@functools.cache
def _lower_edges(device: torch.device) -> Tensor:
    """Each bin's least magnitude, as the bits of a float32; made on the device."""
    exponents = torch.arange(EXPONENT_BINS, device=device, dtype=torch.int32)
    exponents += EXPONENT_LOWEST - 1 + _FLOAT32_BIAS
    edges = exponents << _FLOAT32_FRACTION_BITS
    edges[0].fill_(0)
    edges[1].fill_(1)
    edges[-1].fill_(_FLOAT32_NOT_FINITE << _FLOAT32_FRACTION_BITS)
    return edges.unsqueeze(1)


# -- histograms, on the courier's thread -----------------------------------------------------------


def histogram(bits: Tensor, dtype: torch.dtype) -> Bins:
    """Count the bit patterns of sampled float16 or bfloat16 values into bins."""
    patterns = bits.numpy().reshape(-1).view(np.uint16)
    return np.bincount(_bin_of_pattern(dtype).take(patterns), minlength=EXPONENT_BINS)


def histogram_of_counts(reached: Sequence[float]) -> Bins:
    """Bins from how many values reach into each bin or a higher one."""
    counts = np.asarray(reached)
    bins: Bins = np.rint(counts - np.append(counts[1:], 0.0)).astype(np.int64)
    return bins


@functools.cache
def _bin_of_pattern(dtype: torch.dtype) -> NDArray[np.uint8]:
    patterns = np.arange(1 << 16, dtype=np.uint32)
    with np.errstate(invalid="ignore"):  # signalling NaNs are patterns too
        if dtype is torch.float16:
            values = patterns.astype(np.uint16).view(np.float16).astype(np.float64)
        else:
            values = (patterns << 16).view(np.float32).astype(np.float64)
        _, exponents = np.frexp(values)
    bins = np.clip(exponents - 1 - EXPONENT_LOWEST + 1, 1, _NOT_FINITE - 1)
    bins[values == 0] = _ZEROS
    bins[~np.isfinite(values)] = _NOT_FINITE
    small: NDArray[np.uint8] = bins.astype(np.uint8)
    return small


# -- what histograms of float16 gradients tell, one in each row of `bins` --------------------------


def underflow_shares(bins: Bins) -> list[float | None]:
    """Of the non-zero values, the share flushed to zero or left subnormal.

    None where no non-zero value is seen: all may be lost, or there may have been nothing.
    """
    counts = bins[:, _FINITE].sum(axis=1)
    flushed, _ = _flushed(bins)
    shares = (bins[:, _SUBNORMALS].sum(axis=1) + flushed) / np.maximum(counts + flushed, 1.0)
    return [
        share if count else None
        for share, count in zip(shares.tolist(), counts.tolist(), strict=True)
    ]


def lowest_scales(bins: Bins, scale: float) -> list[float | None]:
    """The lowest loss scale that suits these values; None where the histogram cannot tell.

    There at most `LOST_SHARE_ALLOWED` of them is lost to zero, and at most `COARSE_SHARE_ALLOWED`
    is lost or subnormal.
    """
    scales: list[float | None] = [None] * len(bins)
    counts = bins[:, _FINITE].sum(axis=1)
    flushed, powers = _flushed(bins)
    lost_beyond_the_tail = np.isnan(powers) & (flushed > 0)
    judged = np.flatnonzero((counts >= LEAST_VALUES_FOR_SCALES) & ~lost_beyond_the_tail)
    if not len(judged):
        return scales
    tail = _Tail(bins[judged], flushed[judged], powers[judged])
    smallest = tail.quantiles(LOST_SHARE_ALLOWED)
    middles = tail.quantiles(COARSE_SHARE_ALLOWED)
    for row, small, middle in zip(judged.tolist(), smallest, middles, strict=True):
        if small >= FLOAT16_SMALLEST * 2.0**-MOST_OCTAVES_BEYOND:
            fit = max(FLOAT16_SMALLEST / small, FLOAT16_SMALLEST_NORMAL / middle)
            scales[row] = scale * fit
    return scales


def highest_scale(amax: float | None, scale: float) -> float | None:
    """The highest loss scale that keeps this maximum, seen at `scale`, within float16."""
    if amax is None or not math.isfinite(amax) or amax == 0.0:
        return None
    return scale * FLOAT16_MAX / amax


def _flushed(bins: Bins) -> tuple[Floats, Floats]:
    """How many values the format flushed to zero, and the power law that says so.

    The law is N(|x| < t) ~ t^power. A power of nan means that the octaves do not thin out
    downwards: then every zero seen may be a lost value.
    """
    zeros = bins[:, _ZEROS].astype(np.float64)
    lowest, above = bins[:, _LOWEST], bins[:, _NEXT]
    ratio = (above + _PRIOR[1]) / (lowest + _PRIOR[0])
    ratios, lost_shares = _power_law()
    powers = np.interp(ratio, ratios, _POWERS)
    lost = np.minimum(lowest * np.interp(powers, _POWERS, lost_shares), zeros)
    has_no_tail = ratio <= ratios[0]
    lost[has_no_tail] = zeros[has_no_tail]
    powers[has_no_tail] = np.nan
    nothing_small = lowest == 0
    lost[nothing_small], powers[nothing_small] = 0.0, 1.0
    return lost, powers


@functools.cache
def _power_law() -> tuple[Floats, Floats]:
    """For each power: the next octave over the lowest, and the flushed over the lowest."""
    smallest, middle, upper = (np.power(edge, _POWERS) for edge in _EDGES)
    return (upper - middle) / (middle - smallest), smallest / (middle - smallest)


class _Tail:
    """How many values lie below each finite bin, the flushed ones included."""

    def __init__(self, bins: Bins, flushed: Floats, powers: Floats) -> None:
        none = np.zeros((len(bins), 1), np.int64)
        counts = np.concatenate((none, bins[:, _FINITE].cumsum(axis=1)), axis=1)
        self._below = counts + flushed[:, None]
        self._total = counts[:, -1] + flushed
        self._powers = powers

    def quantiles(self, share: float) -> list[float]:
        """The magnitude below which this share of each row's values lies, in scaled units."""
        targets = share * self._total
        place = (self._below <= targets[:, None]).sum(axis=1) - 1
        row = np.arange(len(place))
        inner = np.maximum(place, 0)  # a quantile among the flushed values has no place
        low = self._below[row, inner]
        with np.errstate(divide="ignore", invalid="ignore"):
            inside = (targets - low) / (self._below[row, inner + 1] - low)
        flushed = self._below[:, 0]
        continued = (flushed >= targets) & ~np.isnan(self._powers)
        # Python's own power: numpy's differs in the last digit from machine to machine.
        return [
            FLOAT16_SMALLEST / 2 * (target / lost) ** (1.0 / power)
            if beyond
            else _LOWER_EDGES[at] * (_LOWER_EDGES[at + 1] / _LOWER_EDGES[at]) ** part
            for beyond, target, lost, power, at, part in zip(
                continued.tolist(), targets.tolist(), flushed.tolist(), self._powers.tolist(),
                inner.tolist(), inside.tolist(), strict=True,
            )
        ]  # fmt: skip


def _lower_edge(place: int) -> float:
    """The least true value that rounds into this octave of the finite bins."""
    octave = 2.0 ** (EXPONENT_LOWEST + place)
    return float(max(octave - FLOAT16_SMALLEST / 2, octave / 2))


_LOWER_EDGES = tuple(map(_lower_edge, range(EXPONENT_BINS)))


# -- steps whose every half-precision gradient is zero ---------------------------------------------

_WIDE = (torch.float32, torch.float64)


def flushed_everywhere(
    gradients: Iterable[tuple[torch.dtype | None, float]], outputs: int, scaled_loss: float | None
) -> bool:
    """Whether half precision flushed every gradient of a step, from each one's largest magnitude.

    Zeros alone do not tell: a loss that is exactly 0, a dead unit or a matrix that starts at zero
    leaves them too. So where no half gradient of the step is above zero, what comes down from the
    loss must be too small for the format. Float32 gradients on the way show that; else the loss
    itself, times its scale and divided among the `outputs` values of the last half layer.
    """
    known = list(gradients)
    half = [amax for dtype, amax in known if dtype is torch.float16]
    if not half or any(half):  # nan counts as something
        return False
    if any(0.0 < amax < FLOAT16_SMALLEST for dtype, amax in known if dtype in _WIDE):
        return True
    if scaled_loss is None or not math.isfinite(scaled_loss):
        return False
    return 0.0 < abs(scaled_loss) < outputs * FLOAT16_SMALLEST
