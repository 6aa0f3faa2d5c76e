"""Leaps of the learning rate, folded; the stairs of a warm-up are none."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ampwatch.diagnosis import policy
from ampwatch.diagnosis.blocks import Block
from ampwatch.diagnosis.signals import Floats, Integers
from ampwatch.rows import LR_LEAP

# No more are kept: those that explain a trouble are the last before it.
MOST_LEAPS = 64
# A rate this near to the highest yet is at it, and one so far above it has gone on rising.
_AT_TOP, _FURTHER = 0.98, 1.1
# Nobody trains at a hundredth of the base rate: it is where a warm-up begins.
_WARMING = 0.01


@dataclass(frozen=True, slots=True)
class Leap:
    """The rate at least doubled from one step to the next."""

    step: int
    before: float
    after: float
    from_top: bool  # it had never been higher


@dataclass(frozen=True, slots=True)
class LeapCourse:
    """What is remembered of them; `fold` makes a new one."""

    leaps: tuple[Leap, ...] = ()  # the last few
    stairs: tuple[int, ...] = ()  # steps of jumps that only went on with a climb, the last few
    top: float = 0.0  # the highest rate yet
    top_position: int = 0  # the entry that reached it
    last: float = float("nan")

    def fold(self, block: Block) -> LeapCourse:
        """The course with a block more."""
        if not len(block):
            return self
        rate, base = block.columns["lr"], block.columns["lr_base"]
        before = np.concatenate(([self.last], rate[:-1]))
        position = np.arange(block.start, block.start + len(block))
        leapt = (rate >= LR_LEAP * before) & (before > 0)
        leapt &= position >= policy.JUMP_LEAST_POSITION
        top, reached = self._tops(rate, block.start)
        from_top = before >= _AT_TOP * top[:-1]
        # On the way up a rate rests no longer than it took to get there, but for the first epoch of
        # a warm-up that goes by epochs.
        warms = (rate <= base) & (before <= _WARMING * base)
        stair = leapt & from_top & (warms | (position - reached[:-1] <= reached[:-1]))
        found = [
            Leap(int(block.step[at]), float(before[at]), float(rate[at]), bool(from_top[at]))
            for at in np.flatnonzero(leapt & ~stair)[-MOST_LEAPS:]
        ]
        stairs = block.step[stair][-MOST_LEAPS:].tolist()
        return replace(
            self,
            leaps=(*self.leaps, *found)[-MOST_LEAPS:],
            stairs=(*self.stairs, *stairs)[-MOST_LEAPS:],
            top=float(top[-1]),
            top_position=int(reached[-1]),
            last=float(rate[-1]),
        )

    def _tops(self, rate: Floats, start: int) -> tuple[Floats, Integers]:
        """The highest rate before each entry and after the last, and where it was reached."""
        top = np.fmax.accumulate(np.concatenate([[self.top], rate]))
        rose = np.flatnonzero(top[1:] > top[:-1])
        reached = np.concatenate([[self.top_position], start + rose])
        return top, reached[np.searchsorted(rose, np.arange(len(top)))]

    @property
    def settled(self) -> tuple[Leap, ...]:
        """The leaps after which the rate did not go on rising from one top to the next."""
        return tuple(
            leap for leap in self.leaps if not leap.from_top or self.top <= _FURTHER * leap.after
        )

    def is_climb(self, step: int) -> bool:
        """Whether the rate's change at this step only went on with a climb."""
        climbs = {leap.step for leap in self.leaps} - {leap.step for leap in self.settled}
        return any(abs(step - one) <= 1 for one in climbs.union(self.stairs))
