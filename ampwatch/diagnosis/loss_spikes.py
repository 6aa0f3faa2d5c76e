"""The spikes of the loss out of the band of its recent past, folded: how high, how long, how often.

Each optimizer's losses are a series of their own, because the two halves of an adversarial pair
step in turn. A series is judged in parts of equal length, each against the entries before it, so
the result does not depend on how the rows were batched.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate

import numpy as np

from ampwatch.diagnosis.blocks import Block
from ampwatch.diagnosis.column_arrays import Floats
from ampwatch.diagnosis.loss_rise import (
    COLUMNS,
    NO_ROWS,
    OCTAVES,
    OUT_OF_BAND,
    SHORT,
    TELLING,
    WINDOW,
    LossRise,
    RiseKind,
    loss_bands,
)

# What happens more often than to one entry in a hundred is what the data are made of.
MIXED_SHARE = 0.01
_LATEST = 32  # rows of the record: what goes with a rise that stands shows in them
_PART = 16
# What has not come back after so many entries, or a fiftieth of the record, is a new level.
_LONGEST, _LONGEST_SHARE = 1000, 1 / 50
_MOST_SERIES = 8
# So many rises of one height, or so large a share of all steps, are known well enough.
_MANY, _MANY_SHARE = 64, 1 / 500
# An octave's rises that are kept: three late ones make a habit.
_KEPT = 4
# Heights that stand apart: the octave below holds at most a quarter of those from there on, or as
# many where chance does not make them. The tails of noise hold several times more.
_APART_SHARE = 1 / 4
# Beside leaps of one step, as high and of half as many steps, longer rises are leaps in a row.
_NOISE_SHARE = 1 / 2
# So many rises of one length are to be expected by chance alone.
_CHANCE = 0.2


@dataclass(frozen=True, slots=True)
class SpikeOctave:
    """The spikes of the loss within one octave of heights, or several: counts and examples."""

    count: int = 0
    steps: int = 0
    grown: int = 0  # with which gradients or updates grew
    idle_steps: int = 0  # of those with which neither did, though recorded
    sure: int = 0  # that chance does not make
    left_out: int = 0  # of which a guard left out every step
    first: LossRise | None = None
    last: tuple[LossRise, ...] = ()

    @classmethod
    def of(cls, rise: LossRise) -> SpikeOctave:
        """A single spike as an octave of its own."""
        kept = replace(rise, past=NO_ROWS, first=NO_ROWS)
        idle = rise.steps * (rise.grew is False)
        grown, left_out = int(rise.grew is True), int(rise.left_out == rise.out)
        return cls(1, rise.steps, grown, idle, int(rise.is_sure), left_out, kept, (kept,))

    def __add__(self, other: SpikeOctave) -> SpikeOctave:
        if not self.count or not other.count:
            return self if self.count else other
        firsts = [rise for rise in (self.first, other.first) if rise is not None]
        return SpikeOctave(
            self.count + other.count,
            self.steps + other.steps,
            self.grown + other.grown,
            self.idle_steps + other.idle_steps,
            self.sure + other.sure,
            self.left_out + other.left_out,
            min(firsts, key=lambda rise: rise.first_step, default=None),
            tuple(sorted((*self.last, *other.last), key=lambda rise: rise.last_position)[-_KEPT:]),
        )

    def stands_above(self, below: SpikeOctave) -> bool:
        """Whether spikes of these heights stand apart from the noise in the octave below.

        Rises of noise are short, whatever their height. If gradients or updates rose with most of
        these spikes, the number of their steps counts too: a spike that heals leaves the band once
        more, lower and briefly, and that is no noise either.
        """
        if below.count <= (1 if 2 * self.sure > self.count else _APART_SHARE) * self.count:
            return self.count > 0
        return 2 * self.grown > self.count and below.steps <= self.steps


@dataclass(frozen=True)  # no slots: cached_property keeps its values in __dict__
class SpikeTally:
    """Spikes of the loss counted by the octave of their height."""

    octaves: tuple[SpikeOctave, ...] = (SpikeOctave(),) * OCTAVES

    def and_one(self, rise: LossRise) -> SpikeTally:
        """The tally with one more spike, of which an example is kept only if it may tell."""
        at, here = rise.octave, self.octaves[rise.octave]
        # So many that they come from the data, or too low to report.
        if rise.tells and here.count <= max(_MANY, _MANY_SHARE * rise.last_position):
            here += SpikeOctave.of(rise)
        else:
            here = replace(here, count=here.count + 1, steps=here.steps + rise.steps)
        return SpikeTally((*self.octaves[:at], here, *self.octaves[at + 1 :]))

    def __add__(self, other: SpikeTally) -> SpikeTally:
        return SpikeTally(tuple(a + b for a, b in zip(self.octaves, other.octaves, strict=True)))

    @property
    def apart(self) -> SpikeOctave:
        """All spikes high enough to stand apart from the noise; none if none do."""
        return self._and_higher[self._first_apart]

    def apart_beside(self, leaps: SpikeTally) -> SpikeOctave:
        """The spikes that stand apart, or none if one-step leaps as high are far more common."""
        apart, noise = self.apart, leaps._and_higher[self._first_apart].steps
        return apart if noise <= _NOISE_SHARE * apart.steps else SpikeOctave()

    def tells(self, rise: LossRise) -> bool:
        """Whether spikes of this height stand apart from the noise, this one among them."""
        return rise.octave >= self.and_one(rise)._first_apart

    @cached_property
    def _and_higher(self) -> Sequence[SpikeOctave]:
        """Spikes of each octave together with all higher octaves."""
        return list(accumulate((SpikeOctave(), *self.octaves[::-1]), lambda sum_, one: one + sum_))[
            ::-1
        ]

    @cached_property
    def _first_apart(self) -> int:
        for at in range(int(math.log2(TELLING)), OCTAVES):
            if self._and_higher[at].stands_above(self.octaves[at - 1]):
                return at
        return OCTAVES


@dataclass(frozen=True, slots=True)
class SpikeSeries:
    """The spikes of one optimizer's losses: the last losses, the open rise, past rises."""

    past: Floats = field(default_factory=lambda: NO_ROWS)
    waiting: Floats = field(default_factory=lambda: NO_ROWS)
    entries: int = 0
    open: LossRise | None = None
    shift: LossRise | None = None  # the last rise that became a new level
    tallies: Mapping[RiseKind, SpikeTally] = field(
        default_factory=lambda: dict.fromkeys(RiseKind, SpikeTally())
    )

    def with_rows(self, rows: Floats) -> SpikeSeries:
        """The series with more rows of losses, judged in parts of equal length."""
        both = np.concatenate([self.waiting, rows])
        whole = len(both) // _PART * _PART
        return replace(self, waiting=both[whole:].copy())._judged(both[:whole])

    def finished(self) -> SpikeSeries:
        """The series with the rows that still waited for a whole part: the record ends here."""
        return replace(self, waiting=NO_ROWS)._judged(self.waiting)

    def _judged(self, rows: Floats) -> SpikeSeries:
        if not len(rows):
            return self
        begin, both = len(self.past), np.concatenate([self.past, rows])
        bands = loss_bands(both[:, 0], begin, _PART, self.entries)
        part = np.arange(len(rows)) // _PART
        out = np.flatnonzero(bands.at(part).heights(rows[:, 0]) >= OUT_OF_BAND)
        series, at = self, 0
        while at < len(rows):
            if series.open is None:
                place = int(np.searchsorted(out, at))
                if place == len(out):
                    break
                at = int(out[place])
                past = both[max(0, begin + at - WINDOW) : begin + at].copy()
                rise = LossRise(bands.at(int(part[at])), int(rows[at, COLUMNS.index("step")]), past)
            else:
                rise = series.open
            series, at = series._followed(rise, rows, at)
        return replace(series, past=both[-WINDOW:].copy(), entries=self.entries + len(rows))

    def _followed(self, rise: LossRise, rows: Floats, at: int) -> tuple[SpikeSeries, int]:
        """Follow an open rise through the rows from `at` on; also returns where it was over."""
        width, longest = SHORT, max(_LONGEST, int(_LONGEST_SHARE * (self.entries + at)))
        while at < len(rows):
            later = rows[at : at + width]
            back = rise.band.heights(later[:, 0]) < OUT_OF_BAND
            # Over when two in a row are back: one may be back by chance.
            twice = np.flatnonzero(back & np.concatenate([[rise.back > 0], back[:-1]]))
            if len(twice):
                end = int(twice[0]) + 1
                return self._with(rise.and_rows(later[:end], back[:end])), at + end
            rise, at, width = rise.and_rows(later, back), at + len(later), 8 * SHORT
            if rise.entries > longest:
                return replace(self, open=None, shift=rise), at
        return replace(self, open=rise), at

    def _with(self, rise: LossRise) -> SpikeSeries:
        over = self._weighed(rise.judged())
        if over.is_meant and (over.strength >= TELLING or over.grew):
            return replace(self, open=None)  # a warm restart, a warm-up, a larger step
        tallies = {**self.tallies, over.kind: self.tallies[over.kind].and_one(over)}
        return replace(self, open=None, tallies=tallies)

    def _weighed(self, rise: LossRise) -> LossRise:
        """The rise, marked as sure or reduced if chance may have made it."""
        if not rise.is_long:
            return rise
        if self._is_chance(rise):
            return replace(rise, strength=min(rise.height, OUT_OF_BAND), grew=None)
        return replace(rise, is_sure=True)

    def _is_chance(self, rise: LossRise) -> bool:
        """Whether losses leave their band so often that a rise this dense is no surprise."""
        octaves = (octave for tally in self.tallies.values() for octave in tally.octaves)
        here = float((rise.band.heights(rise.past[:, 0]) >= OUT_OF_BAND).mean())
        share = max(here, sum(octave.steps for octave in octaves) / (rise.last_position + 1))
        ways = math.comb(min(rise.entries, 64), min(rise.out, 64))
        return rise.last_position * ways * min(1.0, share) ** rise.out > _CHANCE

    @property
    def standing(self) -> LossRise | None:
        """The rise of the loss that has not come back by the end, if it stands apart from noise."""
        last = self.past[:, 0]
        rise = next((one for one in (self.open, self.shift) if one and one.stands(last)), None)
        if rise is None or not self.tallies[RiseKind.SPIKE].tells(self._weighed(rise.judged())):
            return None
        now = rise.judged(self.past[-_LATEST:])
        is_datas = now.stayed or now.is_meant or (not now.grew and now.gave_back(last))
        return None if is_datas else now


@dataclass(frozen=True, slots=True)
class LossSpikes:
    """The spikes of the loss in every optimizer's series; `fold` makes a new one."""

    series: Mapping[int, SpikeSeries] = field(default_factory=dict)

    def fold(self, block: Block) -> LossSpikes:
        """The history of loss spikes with one more block."""
        columns = block.columns
        position = np.arange(block.start, block.start + len(block))
        told = {**columns, "step": block.step, "skipped": block.skipped, "position": position}
        told["guarded"] = block.guarded
        rows = np.empty((len(block), len(COLUMNS)))
        for at, name in enumerate(COLUMNS):
            rows[:, at] = told[name]
        known = np.isfinite(rows[:, 0])
        number = columns["optimizer"]
        # A step that no optimizer took, as a last one without its turn, goes with the first one's.
        owner = np.nan_to_num(number).astype(np.int64)
        made = dict(self.series)
        for key in np.unique(owner[known]).tolist():
            if key in made or len(made) < _MOST_SERIES:
                own = known & (owner == key)
                made[key] = made.get(key, SpikeSeries()).with_rows(rows if own.all() else rows[own])
        return LossSpikes(made)

    def finished(self) -> LossSpikes:
        """The history of loss spikes at the end of the record."""
        return LossSpikes({key: one.finished() for key, one in self.series.items()})

    def of(self, kind: RiseKind) -> SpikeTally:
        """All spikes of this kind, over all series."""
        tallies = [one.tallies[kind] for one in self.series.values()]
        return sum(tallies[1:], tallies[0]) if tallies else SpikeTally()

    @property
    def standing(self) -> LossRise | None:
        """The rise of the only series that has not come back by the end; None if there is none."""
        return next(iter(self.series.values())).standing if len(self.series) == 1 else None
