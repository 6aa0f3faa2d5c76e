"""The band of the recent losses, robustly, and how far above it others lie."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ampwatch.diagnosis.column_arrays import Floats, Integers
from ampwatch.diagnosis.medians import median

# The recent past: long enough for quartiles, short enough to follow a loss that falls.
WINDOW = 128
# Quartiles of fewer entries say nothing of the spread.
LEAST_PAST = 24
# A loss that is computed in bf16 is rounded by this share of itself.
ROUNDED = 2.0**-9
# Fewer independent values have no mean to speak of.
LEAST_MEAN = 3
# A rise is abrupt or not within so many entries.
LEAP = 8
_QUARTILE = 0.6745  # of a normal distribution, in its deviations


@dataclass(frozen=True, slots=True)
class LossBand:
    """The level of the recent losses, and robust deviations of them and of their logarithms."""

    level: Floats | float
    spread: Floats | float
    log_spread: Floats | float  # nan where some of them are not positive

    def at(self, index: int | Integers) -> LossBand:
        """The band at this index, or at each of these indices."""
        return LossBand(
            *(np.asarray(one)[index] for one in (self.level, self.spread, self.log_spread))
        )

    def heights(self, values: Floats) -> Floats:
        """How far losses lie above the band's level, in deviations; positive ones also by ratio.

        The lower of the two counts: values that vary by factors have a heavy tail, their logarithms
        not.
        """
        with np.errstate(all="ignore"):
            plain = (values - self.level) / self.spread
            ratio = np.log(values / self.level) / self.log_spread
        return np.asarray(np.where(np.isnan(ratio), plain, np.minimum(plain, ratio)))

    def height(self, value: float) -> float:
        """How far one loss lies above the band's level, in deviations."""
        return float(self.heights(np.array(value)))


def loss_bands(values: Floats, begin: int, part: int, entries: int) -> LossBand:
    """The band of recent losses before each part of the losses from `begin` on.

    While there are few losses, only their later half counts: the loss falls fast at first.
    """
    padded = np.concatenate([np.full(WINDOW, np.nan), values])
    windows = np.lib.stride_tricks.sliding_window_view(padded[:-1], WINDOW)[begin::part]
    before = part * np.arange(len(windows))
    known = np.maximum((entries + before) // 2, LEAST_PAST)
    known = np.minimum(known, np.minimum(begin + before, WINDOW))
    if known.min() < WINDOW:
        windows = np.where(np.arange(WINDOW) >= (WINDOW - known)[:, None], windows, np.nan)
    ordered = np.sort(windows, axis=1)
    low, level, high = (_quantile(ordered, known, share) for share in (0.25, 0.5, 0.75))
    spread = np.maximum(high - level, level - low) / _QUARTILE
    spread = np.maximum(spread, np.maximum(ROUNDED * np.abs(level), 1e-12))
    with np.errstate(all="ignore"):
        logs = np.maximum(np.log(high / level), np.log(level / low)) / _QUARTILE
    logs = np.where(ordered[:, 0] > 0, np.maximum(logs, ROUNDED), np.nan)
    level[known < LEAST_PAST] = np.nan
    return LossBand(level, spread, logs)


def _quantile(ordered: Floats, known: Integers, share: float) -> Floats:
    at = np.minimum((share * known).astype(np.int64), ordered.shape[1] - 1)
    return np.asarray(ordered[np.arange(len(ordered)), at])


def has_left_band(
    past: Floats, now: Floats, least: int, *, times: float, deviations: float
) -> bool | None:
    """Whether recent values lie far above the band of the past; None if that cannot be told.

    It cannot if too few values of either are known, or if noise would hide it.
    """
    usual, found = past[(past > 0) & np.isfinite(past)], now[now > 0]
    if len(usual) < LEAST_PAST or not len(found):
        return None
    middle = median(usual)
    spread = 1.4826 * median(np.abs(np.log(usual / middle)))
    line = middle * max(times, math.exp(min(deviations * spread, 50.0)))
    if (found > line).sum() >= min(least, len(found)):
        return True
    count = independent_values(np.log(usual), len(found))
    if count < LEAST_MEAN:
        return None if len(found) >= LEAST_MEAN else False
    above, error = math.log(float(np.median(found)) / middle), 1.25 * spread / math.sqrt(count)
    if above >= max(math.log(times), deviations * error):
        return True
    return None if above + 2 * error >= math.log(times) else False


def independent_values(past: Floats, count: int) -> float:
    """How many independent losses so many in a row stand for, to test if they left the band.

    Correlated noise stays where it is for a while. A trend looks like correlation, which errs on
    the safe side.
    """
    known = past[np.isfinite(past)]
    if len(known) < LEAST_PAST:
        return 1.0
    centred = known - np.median(known)
    wide = 3 * float(np.median(np.abs(centred)))
    centred = centred.clip(-wide, wide)  # a single outlier is no memory, and hides none
    varies = float((centred**2).sum())
    alike = float((centred[1:] * centred[:-1]).sum()) / varies if varies > 0 else 1.0
    alike = min(max(alike, 0.0), 1.0)
    return max(1.0, count * (1.0 - alike) / (1.0 + alike))


def leap_height(past: Floats, now: Floats) -> float:
    """How abruptly losses left their band: the first change, in the changes of the past.

    Correlated noise wanders out of a narrow band, but never faster than it always moved; so does a
    loss that rises and falls with the order of the data.
    """
    size = min(LEAP, len(now))
    known = past[np.isfinite(past)]
    parts = known[len(known) % size :].reshape(-1, size).mean(axis=1)
    if len(parts) < 3:
        return math.inf
    changes = np.abs(np.diff(parts))
    usual = 1.4826 * max(float(np.median(changes)), 1e-12, ROUNDED * abs(float(parts[-1])))
    return (float(now[:size].mean()) - float(parts[-1])) / usual
