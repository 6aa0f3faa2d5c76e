"""One rise of the loss out of the band of its recent past: how high, how long, what rose with it.

While a rise is open its band does not move.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field, replace

import numpy as np

from ampwatch.diagnosis import thresholds
from ampwatch.diagnosis.column_arrays import Floats, Mask
from ampwatch.diagnosis.loss_band import (
    LEAST_PAST,
    ROUNDED,
    LossBand,
    has_left_band,
    independent_values,
    leap_height,
)
from ampwatch.diagnosis.medians import median
from ampwatch.rows import LR_LEAP

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
