"""The spikes of the loss out of the band of its recent past, folded: how high, how long, how often.

Each optimizer's losses are a series of their own, because the two halves of an adversarial pair
step in turn. A series is judged in parts of equal length, each against the entries before it, so
the result does not depend on how the rows were batched.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from ampwatch.diagnosis import thresholds
from ampwatch.diagnosis.blocks import Block
from ampwatch.diagnosis.column_arrays import Floats, Integers, Mask, median
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
    lengths = np.maximum((entries + before) // 2, LEAST_PAST)
    lengths = np.minimum(lengths, np.minimum(begin + before, WINDOW))
    if lengths.min() < WINDOW:
        windows = np.where(np.arange(WINDOW) >= (WINDOW - lengths)[:, None], windows, np.nan)
    ordered = np.sort(windows, axis=1)
    band, known = _band_of(ordered, lengths), lengths
    # Leaps of the past are no noise: left out, they do not hide the next ones.
    highest = ordered[np.arange(len(ordered)), lengths - 1]
    leaping = np.flatnonzero(band.heights(highest) >= OUT_OF_BAND)
    if len(leaping):
        heights = band.at(leaping[:, None]).heights(ordered[leaping])
        known = lengths.copy()
        known[leaping] -= (heights >= OUT_OF_BAND).sum(axis=1)
        band = _band_of(ordered, known)
    return replace(band, level=np.where(lengths < LEAST_PAST, np.nan, band.level))


def _band_of(ordered: Floats, known: Integers) -> LossBand:
    """The bands of windows in ascending order, of each its first `known` losses."""
    low, level, high = (_quantile(ordered, known, share) for share in (0.25, 0.5, 0.75))
    spread = np.maximum(high - level, level - low) / _QUARTILE
    spread = np.maximum(spread, np.maximum(ROUNDED * np.abs(level), 1e-12))
    with np.errstate(all="ignore"):
        logs = np.maximum(np.log(high / level), np.log(level / low)) / _QUARTILE
    return LossBand(level, spread, np.where(ordered[:, 0] > 0, np.maximum(logs, ROUNDED), np.nan))


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
    finite = past[np.isfinite(past)]
    if len(finite) < LEAST_PAST:
        return 1.0
    centred = finite - np.median(finite)
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
    finite = past[np.isfinite(past)]
    parts = finite[len(finite) % size :].reshape(-1, size).mean(axis=1)
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
    high: int = 0  # of its first entries, those at half of its peak or more
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
        series = replace(
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
            return series if self.back else replace(series, next_step=int(steps[0]))
        return replace(
            series,
            entries=self.entries + self.back + last + 1,
            last_step=int(steps[last]),
            last_position=int(rows[last, _AT["position"]]),
            next_step=int(steps[min(last + 1, len(rows) - 1)]),
        )

    def judged(self, latest: Floats = NO_ROWS) -> LossRise:
        """The rise, and what rose with it; `latest` are the last rows, if it has not ended."""
        above = self.first[:, _AT["loss"]] - self.level
        rise = replace(self, strength=self._strength(), high=_upper_half(above))
        if rise.strength < TELLING and (self.entries <= SHORT or self.wanders):
            return rise
        own = self.first[: self.entries]
        # Of a slow rise the beginning is small; what stands at the end is most of the last rows.
        pairs = [(own, max(2, len(own) // SHORT))] + [(latest, len(latest) // 2)] * (
            len(latest) > 1
        )
        leaps = [
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
        leaps_known = [one for one in leaps if one is not None]
        norms = self.past[:, _AT["grad_norm"]]
        undecided = (norms > 0).sum() >= LEAST_PAST and None in leaps[::2]
        recent = self.past[-thresholds.JUMP_STEPS :]
        meant = _rose(recent, self.first, "lr", LR_LEAP)
        meant |= _rose(self.past, self.first, "micro_batches", 1.0 + ROUNDED)
        grew = True if any(leaps_known) else None if undecided or not leaps_known else False
        return replace(rise, grew=grew, is_meant=meant)

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


def _upper_half(heights: Floats) -> int:
    """How many of these heights reach half of the highest."""
    return int((heights >= heights.max(initial=0.0) / 2).sum())


def _rose(past: Floats, now: Floats, name: str, factor: float) -> bool:
    """Whether a column rose by this factor from its lowest before the rise of the loss."""
    low, high = (rows[rows[:, _AT[name]] > 0, _AT[name]] for rows in (past, now))
    return bool(len(low) and len(high) and high.max() >= factor * low.min())


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
_KEPT = 16
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
        bare = replace(rise, past=NO_ROWS, first=NO_ROWS)
        idle = rise.steps * (rise.grew is False)
        grown, left_out = int(rise.grew is True), int(rise.left_out == rise.out)
        return cls(1, rise.steps, grown, idle, int(rise.is_sure), left_out, bare, (bare,))

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
        sums = [SpikeOctave()]
        for octave in reversed(self.octaves):
            sums.append(octave + sums[-1])
        return sums[::-1]

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
        values = {**columns, "step": block.step, "skipped": block.skipped, "position": position}
        values["guarded"] = block.guarded
        rows = np.empty((len(block), len(COLUMNS)))
        for at, name in enumerate(COLUMNS):
            rows[:, at] = values[name]
        valid = np.isfinite(rows[:, 0])
        number = columns["optimizer"]
        # A step that no optimizer took, as a last one without its turn, goes with the first one's.
        owner = np.nan_to_num(number).astype(np.int64)
        new = dict(self.series)
        for key in np.unique(owner[valid]).tolist():
            if key in new or len(new) < _MOST_SERIES:
                own = valid & (owner == key)
                new[key] = new.get(key, SpikeSeries()).with_rows(rows if own.all() else rows[own])
        return LossSpikes(new)

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
