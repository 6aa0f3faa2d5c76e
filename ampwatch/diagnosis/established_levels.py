"""The levels at which the loss scale was established, over the whole run, in cells that widen.

The scale's history remembers the highest level only. If a scale sinks for thousands of steps, or a
storm of skips begins late, only the recent past shows it. These cells hold it for a run of any
length.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from ampwatch.diagnosis.column_arrays import Floats, Integers

_MOST_CELLS = 256  # then pairs become one: a cell is never wider than 1/128 of the run
_CELL_STEPS = 16  # the narrowest cell
# The scale that a step tolerates varies in healthy runs, in some by several octaves: a slow fall
# has to go an octave farther than a collapse, and as far again as the level had fallen before, up
# to four.
_WANDERING = (1.0, 4.0)
# More than one tooth of the sawtooth.
_NEAR_OCTAVES = 2.0


@dataclass(frozen=True, slots=True)
class SlowFall:
    """A scale that fell slowly from an established level and has not come back."""

    level: float
    first_step: int  # the last that was accepted at that level
    left_position: int  # about there
    down_position: int  # from which on it stood near where it is now
    skips: int


@dataclass(frozen=True, slots=True)
class RecordEnding:
    """The last part of a record, and the skips in it that nothing explains."""

    steps: int
    loose_skips: int
    lone_skips: int  # of them, those that were alone


def _no_levels() -> Floats:
    return np.tile([[-np.inf], [-1.0], [0.0]], _MOST_CELLS)


def _no_skips() -> Integers:
    return np.zeros((2, _MOST_CELLS), np.int64)


@dataclass(slots=True)
class EstablishedLevels:
    """The established levels of the scale in each part of a run; copied before it may change."""

    width: int = _CELL_STEPS
    # The highest level's log2, the last step at it, how many steps of the run were skipped by then.
    levels: Floats = field(default_factory=_no_levels)
    loose: Integers = field(default_factory=_no_skips)  # all that nothing explains, and alone
    last: int = -1  # the last cell in which anything was seen
    began: int = 0  # the position from which levels count

    def copy(self) -> EstablishedLevels:
        """An independent copy of the levels."""
        return replace(self, levels=self.levels.copy(), loose=self.loose.copy())

    def establish(self, first: int, last: int, last_step: int, scale: float, skips: int) -> None:
        """Note that an established scale stood from one position to another."""
        first = max(first, self.began)
        if first > last or not scale > 0:
            return
        end = self._cell(last)  # which may make cells wider
        at = np.arange(first // self.width, end + 1)
        at = at[math.log2(scale) >= self.levels[0, at]]
        here = np.minimum(last, (at + 1) * self.width - 1)
        self.levels[0, at], self.levels[2, at] = math.log2(scale), skips
        self.levels[1, at] = last_step - (last - here)

    def count_loose(self, position: int, skips: int, lone: int) -> None:
        """Count an episode of skips that nothing explains: how many, and how many of them alone."""
        self.loose[:, self._cell(position)] += skips, lone

    def begin_anew(self, position: int) -> None:
        """Forget the levels so far: the scale was set anew here, and they are no comparison."""
        self.began, self.levels = max(position, 0), _no_levels()

    def slow_fall(self, final: float, octaves: float, window: int, skips: int) -> SlowFall | None:
        """The last level from which the scale has fallen this far within so many steps, for good.

        Every level after that window is as much lower, and so is the final scale. A level that had
        fallen before, and come back, has to fall by as much more.
        """
        count = self.last + 1
        if not final > 0 or count < 1:
            return None
        level = self.levels[0, :count]
        later = np.append(np.maximum.accumulate(level[::-1])[::-1], -np.inf)
        after = np.minimum(np.arange(count) + max(1, window // self.width), count)
        needed = octaves + np.clip(_falls_before(level) - 1.0, *_WANDERING)  # but for a tooth
        found = np.flatnonzero(level - np.maximum(later[after], math.log2(final)) >= needed)
        if not len(found):
            return None
        left = int(found[level[found] >= level[found].max()][-1])
        octave, until, skipped = self.levels[:, left].tolist()
        above = np.flatnonzero(level >= math.log2(final) + _NEAR_OCTAVES)
        down = (int(above[-1]) + 1) * self.width
        return SlowFall(2.0**octave, int(until), left * self.width, down, skips - int(skipped))

    def endings(self, steps: int, least: int) -> list[RecordEnding]:
        """The endings of the record with at least so many steps, the longest first.

        Each begins with a skip that nothing explains, or is the shortest.
        """
        loose = self.loose[:, : self.last + 1]
        length = steps - np.arange(self.last + 1) * self.width
        told = (length >= least) & (loose[0] > 0)
        told[np.flatnonzero(length >= least)[-1:]] = True
        sums = np.cumsum(loose[:, ::-1], axis=1)[:, ::-1]
        return [RecordEnding(*row) for row in np.vstack([length, sums])[:, told].T.tolist()]

    def _cell(self, position: int) -> int:
        """The cell of a position, widening all cells if it lies beyond the last."""
        position = max(position, 0)
        while position // self.width >= _MOST_CELLS:
            self._widen()
        self.last = max(self.last, position // self.width)
        return position // self.width

    def _widen(self) -> None:
        pairs, half = self.levels.reshape(3, -1, 2), _MOST_CELLS // 2
        higher = np.where(pairs[0, :, 0] > pairs[0, :, 1], 0, 1)  # of equals the later
        levels, loose = _no_levels(), _no_skips()
        levels[:, :half] = pairs[:, np.arange(half), higher]
        loose[:, :half] = self.loose.reshape(2, -1, 2).sum(axis=2)
        self.levels, self.loose = levels, loose
        self.width *= 2
        self.last //= 2


def _falls_before(octave: Floats) -> Floats:
    """How far the established level had fallen before each cell, at most."""
    known = np.isfinite(octave)
    highest = np.maximum.accumulate(octave)
    fall = np.where(known, np.where(known, highest, 0.0) - np.where(known, octave, 0.0), 0.0)
    return np.asarray(np.maximum.accumulate(fall))
