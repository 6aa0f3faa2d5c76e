"""A block cut into segments of one loss scale: entries all skipped, all accepted or all left out.

A row may hold the scale before its step, after it, both or neither; what it lacks is taken from the
rows around it. A scale that is at its initial value although nothing led it there was reset. So was
one that leaps back to where the run began and overflows there at once.

And the levels at which the scale was established, over the whole run, in cells that widen: if a
scale sinks for thousands of steps, or a storm of skips begins late, only they show it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ampwatch.diagnosis import thresholds
from ampwatch.diagnosis.blocks import Block
from ampwatch.diagnosis.column_arrays import Floats, Integers, Mask
from ampwatch.diagnosis.record import Scaler
from ampwatch.rows import EventKind

NAN = float("nan")
# A burst of skips has so many: as many octaves up at once are no growth, and cost one.
_LEAP_OCTAVES = thresholds.SPIKE_SKIPS
# Whether the very first step fitted may be untold, of the run as of the new scaler: one halving,
# and what rounding leaves.
_SAME_OCTAVES = 1.25


@dataclass(frozen=True, slots=True)
class ScaleReset:
    """A reset of the scale to its initial value."""

    scale_from: float
    scale_to: float
    by_hand: bool = False


@dataclass(frozen=True, slots=True)
class ScaleSegment:
    """Entries in a row with one scale, all skipped, all accepted or all left out by the loop."""

    entries: slice  # of its block
    reset: ScaleReset | None
    first: int  # position in the run
    last: int
    first_step: int
    last_step: int
    scale: float
    scale_after: float
    lowest_after: float
    skipped: bool
    left_out: bool

    @property
    def length(self) -> int:
        """How many steps the segment covers."""
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class ScaleBeforeBlock:
    """What is known of the scale just before a block begins."""

    steps: int = 0  # of the record so far
    last_step: int | None = None
    scale: float = NAN  # the last one before its step
    known: float = NAN  # the last one, before its step or after
    skipped: bool = False  # the last entry
    set_by_user: bool = False  # at the last entry


class ScaleInBlock:
    """The scale at each entry of a block, as its rows and those before it tell.

    A step not after the last one counts as one.
    """

    def __init__(self, block: Block, before: ScaleBeforeBlock) -> None:
        self.block, self.before = block, before
        scale, after = block.columns["scale"], block.columns["scale_after"]
        last_step = block.step[0] - 1 if before.last_step is None else before.last_step
        apart = np.maximum(block.step - _shifted(last_step, block.step), 1)
        both = filled_forward(np.column_stack([scale, after]).ravel(), before.known)
        latest = filled_forward(np.where(np.isnan(after), scale, after), before.known)
        events = [event.step for event in block.events if event.kind == EventKind.SCALE_SET.value]
        # Each entry's position in steps, and how many steps before it have no row.
        self.places: Integers = before.steps - 1 + np.cumsum(apart)
        self.unseen: Integers = apart - 1
        # The scale of each step: its own, or the last known before it; and of the step before.
        self.begun: Floats = both[::2]
        self.began: Floats = _shifted(before.scale, self.begun)
        # What each step would begin with if nothing happened.
        self.expected: Floats = _shifted(before.known, latest)
        self.skipped_before: Mask = _shifted(before.skipped, block.skipped)
        # Where the loop itself set the scale; `update(new_scale)` shows one entry later.
        self.set_here: Mask = block.entries_of(events)
        self.set_before: Mask = _shifted(before.set_by_user, self.set_here)

    @property
    def before_next(self) -> ScaleBeforeBlock:
        """What is known of the scale just before the next block begins."""
        block = self.block
        after = float(block.columns["scale_after"][-1])
        return ScaleBeforeBlock(
            steps=int(self.places[-1]) + 1,
            last_step=int(block.step[-1]),
            scale=float(self.begun[-1]),
            known=float(self.begun[-1]) if math.isnan(after) else after,
            skipped=bool(block.skipped[-1]),
            set_by_user=bool(self.set_here[-1]),
        )

    def may_have_grown(self, low: Floats, high: float | Floats, scaler: Scaler) -> Mask:
        """Whether the scale may have grown this far in steps that no row shows."""
        growths = np.where(self.unseen > 0, self.unseen // scaler.growth_interval + 1, 0)
        with np.errstate(all="ignore"):
            needed = np.log2(high / low) / np.log2(scaler.growth_factor)
        return np.asarray((growths > 0) & (needed >= 0) & (needed <= growths))


def scale_segments_of(
    block_scale: ScaleInBlock, scaler: Scaler, first_step: int, first_scale: float
) -> Iterator[ScaleSegment]:
    """Cut a block into segments of one scale; `first_scale` is nan if the record begins later."""
    block = block_scale.block
    leaps = _leaps(block_scale, scaler, scaler.initial or first_scale)
    # A run that is begun once more has lost nothing.
    leaps = {at: leap for at, leap in leaps.items() if block.step[at] > first_step + 1}
    resets = {**leaps, **_resets(block_scale, scaler)}
    after, tried = block.columns["scale_after"], block_scale.begun
    if (grown := _have_grown(block_scale, scaler)).any():
        tried = np.where(grown, after / scaler.backoff_factor, tried)
    following = np.append(block.columns["scale"][1:], block.next_scale)
    after = np.where(np.isnan(after), following, after)
    after = np.where(np.isnan(after), tried, after)
    before = _shifted(block_scale.before.scale, tried)
    cut = (tried != before) & ~(np.isnan(tried) & np.isnan(before))
    cut |= block.skipped != block_scale.skipped_before
    cut |= block.skipped & (block_scale.unseen > 0)
    cut[1:] |= block.left_out[1:] != block.left_out[:-1]
    cut[[0, *resets]] = True
    begin = np.flatnonzero(cut)
    end = np.append(begin[1:], len(cut))
    rows: Any = (
        begin, end, block_scale.places[begin], block_scale.places[end - 1], block.step[begin],
        block.step[end - 1], tried[begin], after[end - 1], np.fmin.reduceat(after, begin),
        block.skipped[begin], block.left_out[begin],
    )  # fmt: skip
    for first, last, *figures in zip(*(column.tolist() for column in rows), strict=True):
        yield ScaleSegment(slice(first, last), resets.get(first), *figures)


def _have_grown(block_scale: ScaleInBlock, scaler: Scaler) -> Mask:
    """Where a skip did not lower the scale below its last known value: it had grown unseen.

    At its floor the scale cannot fall, and with hysteresis the first overflow does not lower it.
    """
    skipped, columns = block_scale.block.skipped, block_scale.block.columns
    if not skipped.any():
        return skipped
    after, begun = columns["scale_after"], block_scale.begun
    must_fall = ~block_scale.skipped_before & (after > (scaler.floor or 0.0))
    unlowered = (after > begun) | (must_fall & (scaler.hysteresis == 1) & (after == begun))
    return np.asarray(skipped & np.isnan(columns["scale"]) & unlowered)


def _resets(block_scale: ScaleInBlock, scaler: Scaler) -> Mapping[int, ScaleReset]:
    """Where the scale is back at its initial value although nothing led it there."""
    scale, after = (block_scale.block.columns[name] for name in ("scale", "scale_after"))
    initial, expected = scaler.initial, block_scale.expected
    if initial is None:
        return {}
    skipped = block_scale.block.skipped
    jumped = (scale == initial) & (expected != initial) & ~np.isnan(expected)
    jumped |= np.isnan(scale) & ~skipped & (after == initial) & (expected < initial)
    if not (jumped.any() or block_scale.set_before.any()):
        return {}
    # One growth looks the same, and a log may print the scale before it.
    by_one_growth = (expected < initial) & (expected * scaler.growth_factor >= initial)
    jumped &= ~by_one_growth & ~block_scale.may_have_grown(expected, initial, scaler)
    jumped &= ~block_scale.set_here & ~block_scale.set_before
    # A scale set by hand is a decision, unless it goes so far back that it overflows again.
    by_hand = block_scale.set_before & (scale == initial) & skipped
    by_hand &= block_scale.began <= initial * 2.0**-thresholds.COLLAPSE_OCTAVES
    low = np.where(by_hand, block_scale.began, expected)
    places = np.flatnonzero(jumped | by_hand).tolist()
    return {at: ScaleReset(float(low[at]), initial, bool(by_hand[at])) for at in places}


def _leaps(
    block_scale: ScaleInBlock, scaler: Scaler, begun_with: float
) -> Mapping[int, ScaleReset]:
    """Where the scale leaps back to where the run began, and overflows there at once.

    If the record holds only the scale after each step, this is all that shows of a new scaler: its
    first step recorded as a skip, or seen in the fall of the next one. (If the initial scale is
    known, the leap itself is a reset.)
    """
    block, after = block_scale.block, block_scale.block.columns["scale_after"]
    if not block.skipped.any():
        return {}
    within = np.isnan(block.columns["scale"]) & (after > block_scale.begun)
    entered = ~block_scale.skipped_before & (scaler.initial is None)
    low = np.where(within, block_scale.begun, block_scale.began)
    high = np.where(within, after, block_scale.begun)
    with np.errstate(all="ignore"):
        leaps = np.log2(high / low) >= _LEAP_OCTAVES
        leaps &= np.abs(np.log2(high / begun_with)) <= _SAME_OCTAVES
    leaps &= block.skipped & (within | entered) & ~block_scale.set_here & ~block_scale.set_before
    leaps &= ~block_scale.may_have_grown(low, high, scaler)
    places = np.flatnonzero(leaps).tolist()
    return {at: ScaleReset(float(low[at]), float(high[at])) for at in places}


def _shifted(before: Any, values: Any) -> Any:
    """The scales of a block moved by one entry: for each entry the value of the one before it."""
    return np.concatenate(([before], values[:-1]))


def filled_forward(values: Floats, before: float) -> Floats:
    """Scales with each unknown one replaced by the last known, so that a gap is no change."""
    joined = np.concatenate(([before], values))
    unknown = np.isnan(joined)
    if not unknown[1:].any():
        return values
    at = np.maximum.accumulate(np.where(unknown, 0, np.arange(len(joined))))
    return np.asarray(joined[at][1:])


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
        cells = np.flatnonzero(level - np.maximum(later[after], math.log2(final)) >= needed)
        if not len(cells):
            return None
        left = int(cells[level[cells] >= level[cells].max()][-1])
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
        is_ending = (length >= least) & (loose[0] > 0)
        is_ending[np.flatnonzero(length >= least)[-1:]] = True
        sums = np.cumsum(loose[:, ::-1], axis=1)[:, ::-1]
        return [RecordEnding(*row) for row in np.vstack([length, sums])[:, is_ending].T.tolist()]

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
    finite = np.isfinite(octave)
    highest = np.maximum.accumulate(octave)
    fall = np.where(finite, np.where(finite, highest, 0.0) - np.where(finite, octave, 0.0), 0.0)
    return np.asarray(np.maximum.accumulate(fall))
