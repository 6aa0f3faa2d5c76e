"""One rise of the loss out of the band of its recent past: how high, how long, what rose with it.

The band is robust; while a rise is open it does not move.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field, replace

import numpy as np

from ampwatch.diagnosis import thresholds
from ampwatch.diagnosis.column_arrays import Floats, Integers, Mask
from ampwatch.diagnosis.medians import median
from ampwatch.rows import LR_LEAP

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


COLUMNS = (
    "loss",
    "grad_norm",
    "update_norm",
    "lr",
    "step",
    "skipped",
    "guarded",
    "micro_batches",
    "position",
)
_AT = {name: at for at, name in enumerate(COLUMNS)}

# In robust deviations: from here on an entry is out of the band, and a rise is worth telling of.
OUT_OF_BAND, TELLING = 4.0, 8.0
# Most are over within so many entries.
SHORT = 8
# Two outlying batches in a row are chance, and no rise that lasts.
_CHANCE_STEPS = 2
# Gradients or updates at so many times their median, and out of their band as the loss is, went
# with it: updates double before the loss does.
GREW = 1.5
# Trouble that stands has lasted as long as a scale takes to be established.
_STANDS = thresholds.ESTABLISHED_STEPS
_DESCENT = 0.2  # of the climb, given back: it is on its way down
_NOW = 16  # entries whose median is where the loss stands
_FIRST_ROWS = 32  # what goes with a rise shows in them
# A past of fewer independent losses does not show their range: noise goes four times as far.
_FREE, _WANDERED = 16, 1 / 4
OCTAVES = 16  # of heights
NO_ROWS: Floats = np.zeros((0, len(COLUMNS)))


class RiseKind(enum.Enum):
    """What kind of rise of the loss it was, once it is over."""

    LEAP = "of one step, or two by chance; a line of a log may stand for many"
    SPIKE = "longer"
    SKIPPED = "longer, and a scaler met it with skips"


@dataclass(frozen=True, slots=True)
class LossRise:
    """One rise of the loss out of its band: where it began, how high it went, what rose with it."""

    band: LossBand
    first_step: int
    past: Floats = field(default_factory=lambda: NO_ROWS)  # the rows before it
    first: Floats = field(default_factory=lambda: NO_ROWS)  # its own first rows
    entries: int = 0  # to the last one that is out of the band
    back: int = 0  # entries after that
    peak: float = -math.inf
    height: float = -math.inf
    out: int = 0  # entries out of the band
    out_height: int = 0  # the sum of their heights in 1/1024, each at most TELLING
    strength: float = -math.inf  # of one that is judged: its height, or that of its entries' mean
    skips: int = 0
    left_out: int = 0  # of the entries out of the band: those that a guard left out
    last_step: int = 0
    last_position: int = 0
    next_step: int = 0  # of the first entry that is back, else the last one
    grew: bool | None = None  # whether gradients or updates did; None where none are recorded
    is_meant: bool = False  # the rate had just been raised, or a step's micro-batches
    is_sure: bool = False  # longer than chance makes them

    def and_rows(self, rows: Floats, back: Mask) -> LossRise:
        """The rise with more rows; `back` marks those whose loss is back in the band."""
        out, steps = np.flatnonzero(~back), rows[:, _AT["step"]]
        last = int(out[-1]) if len(out) else -1
        heights = self.band.heights(rows[:, 0])
        made = replace(
            self,
            first=np.concatenate([self.first, rows[: max(0, _FIRST_ROWS - len(self.first))]]),
            back=len(rows) - 1 - last + (0 if len(out) else self.back),
            peak=max(self.peak, float(rows[:, 0].max())),
            height=max(self.height, float(heights.max())),
            out=self.out + len(out),
            # Whole numbers add up to the same, however the rows came.
            out_height=self.out_height
            + int((1024 * heights[out].clip(max=TELLING)).astype(int).sum()),
            skips=self.skips + int(rows[:, _AT["skipped"]].sum()),
            left_out=self.left_out + int(rows[out, _AT["guarded"]].sum()),
        )
        if not len(out):
            return made if self.back else replace(made, next_step=int(steps[0]))
        return replace(
            made,
            entries=self.entries + self.back + last + 1,
            last_step=int(steps[last]),
            last_position=int(rows[last, _AT["position"]]),
            next_step=int(steps[min(last + 1, len(rows) - 1)]),
        )

    def judged(self, latest: Floats = NO_ROWS) -> LossRise:
        """The rise, and what rose with it; `latest` are the last rows, if it has not ended."""
        strength = self._strength()
        if strength < TELLING and (self.entries <= SHORT or self.wanders):
            return replace(self, strength=strength)
        own = self.first[: self.entries]
        # Of a slow rise the beginning is small; what stands at the end is most of the last rows.
        pairs = [(own, max(2, len(own) // SHORT))] + [(latest, len(latest) // 2)] * (
            len(latest) > 1
        )
        seen = [
            has_left_band(
                self.past[:, _AT[name]],
                rows[:, _AT[name]],
                least,
                times=GREW,
                deviations=OUT_OF_BAND,
            )
            for rows, least in pairs
            for name in ("grad_norm", "update_norm")
        ]
        known = [one for one in seen if one is not None]
        norms = self.past[:, _AT["grad_norm"]]
        undecided = (norms > 0).sum() >= LEAST_PAST and None in seen[::2]
        recent = self.past[-thresholds.JUMP_STEPS :]
        meant = _rose(recent, self.first, "lr", LR_LEAP)
        meant |= _rose(self.past, self.first, "micro_batches", 1.0 + ROUNDED)
        grew = True if any(known) else None if undecided or not known else False
        return replace(self, strength=strength, grew=grew, is_meant=meant)

    def _strength(self) -> float:
        """The rise's height, or the height of its mean loss if it is longer than chance.

        Several entries in a row out of the band are no tail of noise. Correlated losses may wander
        there: then a rise counts only as high as it is abrupt.
        """
        past, mean = self.past[:, 0], -math.inf
        if self.is_long:
            free = independent_values(past, self.out)
            mean = self.out_height / self.out / 1024 * math.sqrt(free)
        strength = max(self.height, mean)
        if self.wanders:
            abrupt = leap_height(past, self.first[:, 0])
            strength = min(strength, max(OUT_OF_BAND, abrupt, self.height * _WANDERED))
        return strength

    @property
    def wanders(self) -> bool:
        """Whether the losses before the rise drift so slowly that they do not show their range."""
        past = self.past[:, 0]
        return self.is_long and independent_values(past, len(past)) < _FREE

    @property
    def is_long(self) -> bool:
        """Whether the rise is longer than two outlying batches in a row."""
        return self.steps > _CHANCE_STEPS < self.out

    @property
    def level(self) -> float:
        """The level of the loss before the rise."""
        return float(self.band.level)

    @property
    def steps(self) -> int:
        """How many steps it took until the loss was back."""
        return max(1, self.next_step - self.first_step)

    @property
    def kind(self) -> RiseKind:
        """The kind of rise: of one or two steps, longer, or longer and met with skips."""
        if self.steps <= _CHANCE_STEPS:
            return RiseKind.LEAP
        return RiseKind.SKIPPED if self.skips * SHORT > self.entries else RiseKind.SPIKE

    @property
    def tells(self) -> bool:
        """Whether the rise is more than noise: high, or long with gradients rising too."""
        return self.strength >= TELLING or (self.entries > SHORT and self.grew is True)

    @property
    def octave(self) -> int:
        """The rise's height in powers of two, for counting rises by height."""
        height = max(self.strength, TELLING if self.tells else 1.0)
        return min(OCTAVES - 1, int(math.log2(height)))

    @property
    def stayed(self) -> bool:
        """Whether gradients are known to have stayed in their band during the rise.

        Updates alone prove nothing: most optimizers make them as long whatever the gradients are.
        """
        gradients = self.past[:, _AT["grad_norm"]]
        return self.grew is False and bool((gradients > 0).sum() >= LEAST_PAST)

    def stands(self, last: Floats) -> bool:
        """Whether the last losses are still far out of the rise's band, and not coming down."""
        now = median(last[-_NOW:])
        if self.entries + self.back < _STANDS or not self._is_above(now):
            return False
        if not self.gave_back(last):
            return True
        falls = self._falls(last[-self.entries - self.back :]) or self._falls(last[-2 * _NOW :])
        return self.judged().grew is True and not falls

    def _is_above(self, now: float) -> bool:
        """Whether the median of the last losses still lies above the band of the rise."""
        height = self.band.height(now)
        free = math.sqrt(independent_values(self.past[:, 0], _NOW)) / 1.25
        return height >= OUT_OF_BAND and height * max(1.0, free) >= TELLING

    def _falls(self, losses: Floats) -> bool:
        """Whether the later half of these losses is lower than the first, beyond noise."""
        half = len(losses) // 2
        fall = median(losses[:half]) - median(losses[half:])
        return fall > 3 * 1.25 * float(self.band.spread) / math.sqrt(half)

    def gave_back(self, last: Floats) -> bool:
        """Whether the last losses have come down from the first losses of the rise."""
        now, top = median(last[-_NOW:]), median(self.first[:, 0])
        return now - self.level < (1 - _DESCENT) * (top - self.level)


def _rose(past: Floats, now: Floats, name: str, factor: float) -> bool:
    """Whether a column rose by this factor from its lowest before the rise of the loss."""
    low, high = (rows[rows[:, _AT[name]] > 0, _AT[name]] for rows in (past, now))
    return bool(len(low) and len(high) and high.max() >= factor * low.min())
