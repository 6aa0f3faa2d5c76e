"""Rises of the loss out of the band of its recent past, folded: how high, how long, how often.

Each optimizer's losses are a series of their own: the two halves of an adversarial pair step in
turn. A series is judged in parts of equal length, each against the entries before it, so what is
seen does not hang on how the rows came. While a rise is open its band stands still.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate

import numpy as np

from ampwatch.diagnosis import policy
from ampwatch.diagnosis.blocks import Block
from ampwatch.diagnosis.loss_band import (
    LEAST_PAST,
    ROUNDED,
    WINDOW,
    Band,
    bands_of,
    independent,
    leap_height,
    left_band,
)
from ampwatch.diagnosis.medians import median
from ampwatch.diagnosis.signals import Floats, Mask
from ampwatch.rows import LR_LEAP

_COLUMNS = (
    "loss",
    "grad_norm",
    "update_norm",
    "lr",
    "step",
    "skipped",
    "micro_batches",
    "position",
)
_AT = {name: at for at, name in enumerate(_COLUMNS)}

# In robust deviations: from here on an entry is out of the band, and a rise is worth telling of.
OUT_OF_BAND, TELLING = 4.0, 8.0
# Most are over within so many entries.
SHORT = 8
# What happens more often than to one entry in a hundred is what the data are made of.
MIXED_SHARE = 0.01
# Two outlying batches in a row are chance, and no rise that lasts.
_CHANCE_STEPS = 2
# Gradients or updates at so many times their median, and out of their band as the loss is, went
# with it: updates double before the loss does.
GREW = 1.5
# Trouble that stands has lasted as long as a scale takes to be established.
_STANDS = policy.ESTABLISHED_STEPS
_DESCENT = 0.2  # of the climb, given back: it is on its way down
_NOW = 16  # entries whose median is where the loss stands
_FIRST_ROWS, _LATEST = 32, 32  # of a rise, of the record: what goes with a rise shows in them
_PART = 16
# What has not come back after so many entries, or a fiftieth of the record, is a new level.
_LONGEST, _LONGEST_SHARE = 1000, 1 / 50
_MOST_SERIES = 8
# So many rises of one height, or so large a share of all steps, are known well enough.
_MANY, _MANY_SHARE = 64, 1 / 500
_OCTAVES = 16
# An octave's rises that are kept: three late ones make a habit.
_KEPT = 4
# Heights that stand apart: the octave below holds at most a quarter of those from there on. The
# tails of noise hold several times more, however heavy they are.
_APART_SHARE = 1 / 4
# Beside leaps of one step, as high and of half as many steps, longer rises are leaps in a row.
_NOISE_SHARE = 1 / 2
# A past that stands for fewer independent losses does not tell how far they go.
_FREE = 16
# ... and noise goes four times as far as they did.
_WANDERED = 1 / 4
# So many rises of one length are to be expected by chance alone.
_CHANCE = 0.2
_NO_ROWS: Floats = np.zeros((0, len(_COLUMNS)))


class Kind(enum.Enum):
    """What a rise that is over was."""

    LEAP = "of one step, or two by chance; a line of a log may stand for many"
    SPIKE = "longer"
    SKIPPED = "longer, and a scaler met it with skips"


@dataclass(frozen=True, slots=True)
class Rise:
    """The loss out of its band: where it began, how high it went, what went with it."""

    band: Band
    first_step: int
    past: Floats = field(default_factory=lambda: _NO_ROWS)  # the rows before it
    first: Floats = field(default_factory=lambda: _NO_ROWS)  # its own first rows
    entries: int = 0  # to the last one that is out of the band
    back: int = 0  # entries after that
    peak: float = -math.inf
    height: float = -math.inf
    out: int = 0  # entries out of the band
    out_height: int = 0  # theirs in all, in 1/1024, each up to where it tells by itself
    strength: float = -math.inf  # of one that is judged: its height, or that of its entries' mean
    skips: int = 0
    last_step: int = 0
    last_position: int = 0
    next_step: int = 0  # of the first entry that is back, else the last one
    grew: bool | None = None  # whether gradients or updates did; None where none are recorded
    is_meant: bool = False  # the rate had just been raised, or a step's micro-batches
    is_sure: bool = False  # longer than chance makes them

    def and_rows(self, rows: Floats, back: Mask) -> Rise:
        """The rise with rows more, these of which are in the band."""
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

    def judged(self, latest: Floats = _NO_ROWS) -> Rise:
        """The rise, and what went with it; `latest` are the last rows of one that stands."""
        strength = self._strength()
        if strength < TELLING and (self.entries <= SHORT or self.wanders):
            return replace(self, strength=strength)
        own = self.first[: self.entries]
        # Of a slow rise the beginning is small; what stands at the end is most of the last rows.
        pairs = [(own, max(2, len(own) // SHORT))] + [(latest, len(latest) // 2)] * (
            len(latest) > 1
        )
        seen = [
            left_band(
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
        recent = self.past[-policy.JUMP_STEPS :]
        meant = _rose(recent, self.first, "lr", LR_LEAP)
        meant |= _rose(self.past, self.first, "micro_batches", 1.0 + ROUNDED)
        grew = True if any(known) else None if undecided or not known else False
        return replace(self, strength=strength, grew=grew, is_meant=meant)

    def _strength(self) -> float:
        """Its height, or that of its entries' mean in deviations of the mean of as many.

        Several entries in a row out of the band are no tail of a noise. One that remembers may
        wander there: then a rise is as high as it is abrupt.
        """
        past, mean = self.past[:, 0], -math.inf
        if self.is_long:
            free = independent(past, self.out)
            mean = self.out_height / self.out / 1024 * math.sqrt(free)
        strength = max(self.height, mean)
        if self.wanders:
            abrupt = leap_height(past, self.first[:, 0])
            strength = min(strength, max(OUT_OF_BAND, abrupt, self.height * _WANDERED))
        return strength

    @property
    def wanders(self) -> bool:
        """Whether the losses before it remember so long that they do not tell how far they go."""
        past = self.past[:, 0]
        return self.is_long and independent(past, len(past)) < _FREE

    @property
    def is_long(self) -> bool:
        """Whether it is more than two outlying batches in a row."""
        return self.steps > _CHANCE_STEPS < self.out

    @property
    def level(self) -> float:
        """Where the loss had been."""
        return float(self.band.level)

    @property
    def steps(self) -> int:
        """How many until the loss was back."""
        return max(1, self.next_step - self.first_step)

    @property
    def kind(self) -> Kind:
        """What it was; a skip in a long rise may be a growth of the scale."""
        if self.steps <= _CHANCE_STEPS:
            return Kind.LEAP
        return Kind.SKIPPED if self.skips * SHORT > self.entries else Kind.SPIKE

    @property
    def tells(self) -> bool:
        """Whether it is no noise: high, or out of the band for long, and gradients with it."""
        return self.strength >= TELLING or (self.entries > SHORT and self.grew is True)

    @property
    def octave(self) -> int:
        """Its height in powers of two; of one that tells by its length at least the first high."""
        height = max(self.strength, TELLING if self.tells else 1.0)
        return min(_OCTAVES - 1, int(math.log2(height)))

    @property
    def stayed(self) -> bool:
        """Whether gradients are known to have stayed in their band, and updates if recorded.

        Updates alone prove nothing: most optimizers make them as long whatever the gradients are.
        """
        gradients = self.past[:, _AT["grad_norm"]]
        return self.grew is False and bool((gradients > 0).sum() >= LEAST_PAST)

    def stands(self, last: Floats) -> bool:
        """Whether these last losses are still far out of its band, and not on their way back."""
        now = median(last[-_NOW:])
        if self.entries + self.back < _STANDS or not self._is_above(now):
            return False
        if not self.gave_back(last):
            return True
        falls = self._falls(last[-self.entries - self.back :]) or self._falls(last[-2 * _NOW :])
        return self.judged().grew is True and not falls

    def _is_above(self, now: float) -> bool:
        """Whether the median of the last losses tells, being of as many."""
        height = self.band.height(now)
        free = math.sqrt(independent(self.past[:, 0], _NOW)) / 1.25
        return height >= OUT_OF_BAND and height * max(1.0, free) >= TELLING

    def _falls(self, losses: Floats) -> bool:
        """Whether the later half of these losses is lower, beyond the noise of a median."""
        half = len(losses) // 2
        fall = median(losses[:half]) - median(losses[half:])
        return fall > 3 * 1.25 * float(self.band.spread) / math.sqrt(half)

    def gave_back(self, last: Floats) -> bool:
        """Whether these last losses have come down from what it began with."""
        now, top = median(last[-_NOW:]), median(self.first[:, 0])
        return now - self.level < (1 - _DESCENT) * (top - self.level)


def _rose(past: Floats, now: Floats, name: str, factor: float) -> bool:
    """Whether this column's highest value is so many times its lowest before."""
    low, high = (rows[rows[:, _AT[name]] > 0, _AT[name]] for rows in (past, now))
    return bool(len(low) and len(high) and high.max() >= factor * low.min())


@dataclass(frozen=True, slots=True)
class Octave:
    """Rises of one octave of heights, or of several."""

    count: int = 0
    steps: int = 0
    grown: int = 0  # with which gradients or updates grew
    idle_steps: int = 0  # of those with which neither did, though recorded
    sure: int = 0  # that chance does not make
    first: Rise | None = None
    last: tuple[Rise, ...] = ()

    @classmethod
    def of(cls, rise: Rise) -> Octave:
        """One rise."""
        kept = replace(rise, past=_NO_ROWS, first=_NO_ROWS)
        idle = rise.steps * (rise.grew is False)
        return cls(1, rise.steps, int(rise.grew is True), idle, int(rise.is_sure), kept, (kept,))

    def __add__(self, other: Octave) -> Octave:
        if not self.count or not other.count:
            return self if self.count else other
        firsts = [rise for rise in (self.first, other.first) if rise is not None]
        return Octave(
            self.count + other.count,
            self.steps + other.steps,
            self.grown + other.grown,
            self.idle_steps + other.idle_steps,
            self.sure + other.sure,
            min(firsts, key=lambda rise: rise.first_step, default=None),
            tuple(sorted((*self.last, *other.last), key=lambda rise: rise.last_position)[-_KEPT:]),
        )

    def stands_above(self, below: Octave) -> bool:
        """Whether these stand apart from the ordinary ones of the octave below.

        Rises of noise are short, whatever their height. Where gradients or updates went with most
        of these, their steps may tell as well: what is left of a spike as it heals leaves the band
        once more, lower and briefly, and is no noise either.
        """
        if below.count <= (1 if 2 * self.sure > self.count else _APART_SHARE) * self.count:
            return self.count > 0
        return 2 * self.grown > self.count and below.steps <= self.steps


@dataclass(frozen=True)  # no slots: cached_property keeps its values in __dict__
class Tally:
    """Rises by the octave of their height."""

    octaves: tuple[Octave, ...] = (Octave(),) * _OCTAVES

    def and_one(self, rise: Rise) -> Tally:
        """One more; nothing is kept of it that only counts."""
        at, here = rise.octave, self.octaves[rise.octave]
        # One of so many that they are the data, or too low to tell of.
        if rise.tells and here.count <= max(_MANY, _MANY_SHARE * rise.last_position):
            here += Octave.of(rise)
        else:
            here = replace(here, count=here.count + 1, steps=here.steps + rise.steps)
        return Tally((*self.octaves[:at], here, *self.octaves[at + 1 :]))

    def __add__(self, other: Tally) -> Tally:
        return Tally(tuple(a + b for a, b in zip(self.octaves, other.octaves, strict=True)))

    @property
    def apart(self) -> Octave:
        """All rises that are high and stand apart from the ordinary ones; none where none do."""
        return self._and_higher[self._first_apart]

    def apart_beside(self, leaps: Tally) -> Octave:
        """The same, unless leaps of one step are as high and far more: then they are noise."""
        apart, noise = self.apart, leaps._and_higher[self._first_apart].steps
        return apart if noise <= _NOISE_SHARE * apart.steps else Octave()

    def tells(self, rise: Rise) -> bool:
        """Whether rises of this height stand apart, this one among them."""
        return rise.octave >= self.and_one(rise)._first_apart

    @cached_property
    def _and_higher(self) -> Sequence[Octave]:
        """Each octave's rises and those of all higher ones."""
        return list(accumulate((Octave(), *self.octaves[::-1]), lambda sum_, one: one + sum_))[::-1]

    @cached_property
    def _first_apart(self) -> int:
        for at in range(int(math.log2(TELLING)), _OCTAVES):
            if self._and_higher[at].stands_above(self.octaves[at - 1]):
                return at
        return _OCTAVES


@dataclass(frozen=True, slots=True)
class Series:
    """One optimizer's losses: the last ones, what is open, and the rises that are over."""

    past: Floats = field(default_factory=lambda: _NO_ROWS)
    waiting: Floats = field(default_factory=lambda: _NO_ROWS)
    entries: int = 0
    open: Rise | None = None
    shift: Rise | None = None  # the last rise that became a new level
    tallies: Mapping[Kind, Tally] = field(default_factory=lambda: dict.fromkeys(Kind, Tally()))

    def with_rows(self, rows: Floats) -> Series:
        """The series after these rows, as many of them as make whole parts."""
        both = np.concatenate([self.waiting, rows])
        whole = len(both) // _PART * _PART
        return replace(self, waiting=both[whole:].copy())._judged(both[:whole])

    def finished(self) -> Series:
        """The series with what waits for more: the record ends here, as far as anyone knows."""
        return replace(self, waiting=_NO_ROWS)._judged(self.waiting)

    def _judged(self, rows: Floats) -> Series:
        if not len(rows):
            return self
        begin, both = len(self.past), np.concatenate([self.past, rows])
        bands = bands_of(both[:, 0], begin, _PART, self.entries)
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
                rise = Rise(bands.at(int(part[at])), int(rows[at, _AT["step"]]), past)
            else:
                rise = series.open
            series, at = series._followed(rise, rows, at)
        return replace(series, past=both[-WINDOW:].copy(), entries=self.entries + len(rows))

    def _followed(self, rise: Rise, rows: Floats, at: int) -> tuple[Series, int]:
        """The open rise with the rows from `at` on, and where to go on once it is over."""
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

    def _with(self, rise: Rise) -> Series:
        over = self._weighed(rise.judged())
        if over.is_meant and (over.strength >= TELLING or over.grew):
            return replace(self, open=None)  # a warm restart, a warm-up, a larger step
        tallies = {**self.tallies, over.kind: self.tallies[over.kind].and_one(over)}
        return replace(self, open=None, tallies=tallies)

    def _weighed(self, rise: Rise) -> Rise:
        """The rise, and whether chance may have made it."""
        if not rise.is_long:
            return rise
        if self._is_chance(rise):
            return replace(rise, strength=min(rise.height, OUT_OF_BAND), grew=None)
        return replace(rise, is_sure=True)

    def _is_chance(self, rise: Rise) -> bool:
        """Whether entries leave the band so often that as many close together are no wonder."""
        octaves = (octave for tally in self.tallies.values() for octave in tally.octaves)
        here = float((rise.band.heights(rise.past[:, 0]) >= OUT_OF_BAND).mean())
        share = max(here, sum(octave.steps for octave in octaves) / (rise.last_position + 1))
        ways = math.comb(min(rise.entries, 64), min(rise.out, 64))
        return rise.last_position * ways * min(1.0, share) ** rise.out > _CHANCE

    @property
    def standing(self) -> Rise | None:
        """The rise that has not come back by the end, if one stands apart and was not to come."""
        last = self.past[:, 0]
        rise = next((one for one in (self.open, self.shift) if one and one.stands(last)), None)
        if rise is None or not self.tallies[Kind.SPIKE].tells(self._weighed(rise.judged())):
            return None
        now = rise.judged(self.past[-_LATEST:])
        is_datas = now.stayed or now.is_meant or (not now.grew and now.gave_back(last))
        return None if is_datas else now


@dataclass(frozen=True, slots=True)
class LossSpikes:
    """What is remembered of all series; `fold` makes a new one."""

    series: Mapping[int, Series] = field(default_factory=dict)

    def fold(self, block: Block) -> LossSpikes:
        """The course with a block more."""
        columns = block.columns
        position = np.arange(block.start, block.start + len(block))
        told = {**columns, "step": block.step, "skipped": block.skipped, "position": position}
        rows = np.empty((len(block), len(_COLUMNS)))
        for at, name in enumerate(_COLUMNS):
            rows[:, at] = told[name]
        known = np.isfinite(rows[:, 0])
        number = columns["optimizer"]
        owner = np.where(np.isnan(number), -1.0, number).astype(np.int64)
        made = dict(self.series)
        for key in np.unique(owner[known]).tolist():
            if key in made or len(made) < _MOST_SERIES:
                own = known & (owner == key)
                made[key] = made.get(key, Series()).with_rows(rows if own.all() else rows[own])
        return LossSpikes(made)

    def finished(self) -> LossSpikes:
        """The course where the record ends, as far as anyone knows."""
        return LossSpikes({key: one.finished() for key, one in self.series.items()})

    def of(self, kind: Kind) -> Tally:
        """The rises of this kind, of all series."""
        tallies = [one.tallies[kind] for one in self.series.values()]
        return sum(tallies[1:], tallies[0]) if tallies else Tally()

    @property
    def standing(self) -> Rise | None:
        """The rise of the only series that has not come back by the end, if there is one."""
        return next(iter(self.series.values())).standing if len(self.series) == 1 else None
