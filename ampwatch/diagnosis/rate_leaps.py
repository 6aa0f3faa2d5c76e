"""The leaps of the learning rate, folded: where it at least doubled from one step to the next.

The stairs of a warm-up are no leaps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ampwatch.diagnosis import thresholds
from ampwatch.diagnosis.blocks import Block
from ampwatch.rows import LR_LEAP

# No more are kept: those that explain a trouble are the last before it.
_MOST_LEAPS = 64
# A rate this near to the highest yet is at it, and one so far above it has gone on rising.
_AT_TOP, _FURTHER = 0.98, 1.1
# Nobody trains at a hundredth of the base rate: it is where a warm-up begins.
_WARMING = 0.01


@dataclass(frozen=True, slots=True)
class RateLeap:
    """The rate at least doubled from one step to the next."""

    step: int
    before: float
    after: float
    from_top: bool  # it had never been higher
    is_stair: bool  # ... and had rested there no longer than it took to get there


@dataclass(frozen=True, slots=True)
class RateLeaps:
    """The leaps of the learning rate so far; `fold` makes a new one."""

    leaps: tuple[RateLeap, ...] = ()  # the last few
    top: float = 0.0  # the highest rate yet
    top_position: int = 0  # the entry that reached it
    last: float = float("nan")
    last_base: float = float("nan")

    def fold(self, block: Block) -> RateLeaps:
        """The leaps of the rate with one more block."""
        if not len(block):
            return self
        rate, base = block.columns["lr"], block.columns["lr_base"]
        before = np.concatenate(([self.last], rate[:-1]))
        # Without a scheduler the base rate leaps with the rate, and warms up to nothing.
        base_before = np.concatenate(([self.last_base], base[:-1]))
        position = np.arange(block.start, block.start + len(block))
        leapt = (rate >= LR_LEAP * before) & (before > 0)
        leapt &= position >= thresholds.JUMP_LEAST_POSITION
        top = np.fmax.accumulate(np.concatenate([[self.top], rate]))
        rose = np.flatnonzero(top[1:] > top[:-1])
        reached = np.concatenate([[self.top_position], block.start + rose])
        reached = reached[np.searchsorted(rose, np.arange(len(top)))]
        from_top = before >= _AT_TOP * top[:-1]
        # On the way up a rate rests no longer than it took to get there, but for the first epoch of
        # a warm-up that goes by epochs.
        warms = (rate <= base_before) & (before <= _WARMING * base_before)
        stair = from_top & (warms | (position - reached[:-1] <= reached[:-1]))
        found = [
            RateLeap(*(column[at].item() for column in (block.step, before, rate, from_top, stair)))
            for at in np.flatnonzero(leapt)[-_MOST_LEAPS:]
        ]
        return replace(
            self,
            leaps=(*self.leaps, *found)[-_MOST_LEAPS:],
            top=float(top[-1]),
            top_position=int(reached[-1]),
            last=float(rate[-1]),
            last_base=float(base[-1]),
        )

    def is_settled(self, leap: RateLeap) -> bool:
        """Whether a leap of the rate was not just one of several stairs upwards."""
        return not (leap.is_stair or (leap.from_top and self.top > _FURTHER * leap.after))

    def is_climb(self, step: int) -> bool:
        """Whether the rate's change at this step was one of several stairs upwards."""
        return any(abs(step - one.step) <= 1 for one in self.leaps if not self.is_settled(one))
