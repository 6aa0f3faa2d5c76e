"""One rise of the loss out of its band: where it began, how high it went, what went with it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from ampwatch.diagnosis import policy
from ampwatch.diagnosis.signals import Floats, Integers
from ampwatch.rows import LR_LEAP

COLUMNS = ("loss", "grad_norm", "update_norm", "lr", "step", "skipped", "position", "micro_batches")
_AT = {name: at for at, name in enumerate(COLUMNS)}

# In robust deviations: from here on an entry is out of the band, and a rise is worth telling of.
OUT_OF_BAND, TELLING = 4.0, 8.0
# A rise is over when two entries in a row are back: one may be back by chance.
BACK = 2
# Two outlying batches in a row are chance, and no rise that lasts.
_CHANCE_STEPS = 2
# Most are over within so many entries, and are judged at once.
SHORT = 8
# What happens more often than to one entry in a hundred is what the data are made of.
MIXED_SHARE = 0.01
# The recent past: long enough for quartiles, short enough to follow a loss that falls.
WINDOW = 128
# Quartiles of fewer entries say nothing of the spread.
LEAST_PAST = 24
# A loss that is computed in bf16 is rounded by this share of itself.
_ROUNDED = 2.0**-9
_QUARTILE = 0.6745  # of a normal distribution, in its deviations
_OCTAVES = 16
# An octave's rises that are kept: three late ones make a habit.
_KEPT = 4
# Gradients or updates at so many times their median, and out of their band as the loss is, went
# with it: updates double before the loss does.
_GREW = 1.5
# A rise's first rows that are kept: what went with it shows in them.
_FIRST_ROWS = 32
# Heights that stand apart: the octave below holds at most a quarter of those from there on. The
# tails of noise hold several times more, however heavy they are.
_APART_SHARE = 1 / 4
# Beside as high leaps of one step, twice as many, longer rises are such leaps in a row.
_NOISE_TIMES = 2
# Trouble that stands has lasted as long as a scale takes to be established.
_STANDS = policy.ESTABLISHED_STEPS
_DESCENT = 0.2  # of the climb, given back: it is on its way down
_NOW = 16  # entries whose median is where the loss stands


@dataclass(frozen=True, slots=True)
class Band:
    """Where the recent losses lay: their median, and a robust deviation of them and their logs."""

    level: float
    spread: float
    log_spread: float  # nan where some of them are not positive

    def height(self, loss: float) -> float:
        """How far above the level, in deviations."""
        plain = (loss - self.level) / self.spread
        if math.isnan(self.log_spread) or not loss * self.level > 0:
            return plain
        return min(plain, math.log(loss / self.level) / self.log_spread)

    def short_rise(self, rows: Floats) -> Rise | None:
        """The rise that begins with these rows, if it is over within them; its company untold."""
        losses = rows[:, 0].tolist()
        found = [self.height(loss) for loss in losses]
        back = [now < OUT_OF_BAND for now in found]
        over = (at for at in range(len(back) - 1) if back[at] and back[at + 1])
        last = next(over, 0) - 1
        if last < 0:
            return None
        steps = rows[[0, last, last + 1], _AT["step"]].tolist()
        return Rise(
            first_step=int(steps[0]),
            last_step=int(steps[1]),
            last_position=int(rows[last, _AT["position"]]),
            entries=last + 1,
            steps=max(1, int(steps[2] - steps[0])),
            height=max(found[: last + 1]),
            peak=max(losses[: last + 1]),
            level=self.level,
            skips=int(rows[: last + 1, _AT["skipped"]].sum()),
            is_meant=False,
            grew=None,
        )

    def heights(self, losses: Floats) -> Floats:
        """How far above the level, in deviations."""
        return heights(
            losses, np.array(self.level), np.array(self.spread), np.array(self.log_spread)
        )


def heights(loss: Floats, level: Floats, spread: Floats, log_spread: Floats) -> Floats:
    """How far losses are above their levels; positive ones by their ratio as well, the less counts.

    Losses that vary by factors have a heavy tail, and their logarithms have none.
    """
    with np.errstate(all="ignore"):
        plain = (loss - level) / spread
        ratio = np.log(loss / level) / log_spread
    return np.asarray(np.where(np.isnan(ratio), plain, np.minimum(plain, ratio)))


def bands_of(losses: Floats, begin: int, part: int, entries: int) -> tuple[Floats, Floats, Floats]:
    """Level, spread and spread of the logs before each part of the losses from `begin` on.

    `entries` came before that one. While there are few, their later half is the recent past: the
    loss falls fast at first.
    """
    window = WINDOW
    padded = np.concatenate([np.full(window, np.nan), losses])
    windows = np.lib.stride_tricks.sliding_window_view(padded[:-1], window)[begin::part]
    known = np.maximum((entries + part * np.arange(len(windows))) // 2, LEAST_PAST)
    known = np.minimum(known, np.minimum(begin + part * np.arange(len(windows)), window))
    if known.min() < window:
        windows = np.where(np.arange(window) >= (window - known)[:, None], windows, np.nan)
    ordered = np.sort(windows, axis=1)
    low, level, high = (_quantile(ordered, known, share) for share in (0.25, 0.5, 0.75))
    spread = np.maximum(high - level, level - low) / _QUARTILE
    spread = np.maximum(spread, np.maximum(_ROUNDED * np.abs(level), 1e-12))
    with np.errstate(all="ignore"):
        logs = np.maximum(np.log(high / level), np.log(level / low)) / _QUARTILE
    logs = np.where(ordered[:, 0] > 0, np.maximum(logs, _ROUNDED), np.nan)
    few = known < LEAST_PAST
    level[few] = np.nan
    return level, spread, logs


def _quantile(ordered: Floats, known: Integers, share: float) -> Floats:
    at = np.minimum((share * known).astype(np.int64), ordered.shape[1] - 1)
    return np.asarray(ordered[np.arange(len(ordered)), at])


@dataclass(frozen=True, slots=True)
class Open:
    """A rise that is not over."""

    band: Band
    past: Floats  # the rows before it
    first: Floats = field(default_factory=lambda: np.zeros((0, len(COLUMNS))))  # its first rows
    latest: Floats = field(default_factory=lambda: np.zeros((0, len(COLUMNS))))  # of the record
    entries: int = 0
    back: int = 0  # the last ones, that are in the band again
    peak: float = -math.inf
    height: float = -math.inf
    skips: int = 0
    last_step: int = 0  # of the rise, if it is over by now
    next_step: int = 0  # of the first entry that is back, or the last of all
    last_position: int = 0

    def with_rows(self, rows: Floats, back: int) -> Open:
        """The rise with rows more, of which the last `back` are in the band."""
        values = rows[:, 0]
        room = max(0, _FIRST_ROWS - len(self.first))
        inside = max(0, len(rows) - back)
        made = replace(
            self,
            first=np.concatenate([self.first, rows[:room]]),
            entries=self.entries + len(rows),
            back=back,
            peak=max(self.peak, float(values.max())),
            height=max(self.height, float(self.band.heights(values).max())),
            skips=self.skips + int(rows[:, _AT["skipped"]].sum()),
            next_step=self.next_step
            if back > len(rows)
            else int(rows[inside if back else -1, _AT["step"]]),
        )
        if not inside:
            return made
        last = rows[inside - 1]
        return replace(
            made, last_step=int(last[_AT["step"]]), last_position=int(last[_AT["position"]])
        )

    @property
    def first_step(self) -> int:
        """The step with which it began."""
        return int(self.first[0, _AT["step"]])

    def stands(self, last: Floats) -> bool:
        """Whether these last losses are still far out of its band, and not on their way back."""
        if self.entries < _STANDS:
            return False
        now = float(np.median(last[-_NOW:]))
        if float(self.band.heights(np.array([now]))[0]) < TELLING:
            return False
        if not self.gave_back(last):
            return True
        return self.grew is True and not (
            self._falls(last[-self.entries :]) or self._falls(last[-2 * _NOW :])
        )

    def _falls(self, losses: Floats) -> bool:
        """Whether the later half of these losses is lower, beyond the noise of a median."""
        half = len(losses) // 2
        fall = float(np.median(losses[:half]) - np.median(losses[half:]))
        return fall > 3 * 1.25 * self.band.spread / math.sqrt(half)

    def gave_back(self, last: Floats) -> bool:
        """Whether these last losses have come down from what it began with."""
        now, top = float(np.median(last[-_NOW:])), float(np.median(self.first[:, 0]))
        return now - self.band.level < (1 - _DESCENT) * (top - self.band.level)

    @property
    def grew(self) -> bool | None:
        """Whether gradients or updates left their band with it; None where none are recorded."""
        rows = self.first[: self.entries - self.back]
        seen = [_grew(self.past[:, at], rows[:, at], 2) for at in (1, 2)]
        # Of a slow rise the beginning is small; what stands at the end is most of the last rows.
        most = len(self.latest) // 2
        seen += [_grew(self.past[:, at], self.latest[:, at], most) for at in (1, 2) if most]
        known = [one for one in seen if one is not None]
        return any(known) if known else None

    @property
    def stayed(self) -> bool:
        """Whether gradients are known to have stayed in their band, and updates if recorded.

        Updates alone prove nothing: most optimizers make them as long whatever the gradients are.
        """
        gradients = self.past[:, _AT["grad_norm"]]
        return self.grew is False and bool((gradients > 0).sum() >= LEAST_PAST)

    @property
    def is_meant(self) -> bool:
        """Whether the rate had just been raised, or a step's micro-batches, whose losses add up."""
        recent = self.past[-policy.JUMP_STEPS :]
        return _rose(recent, self.first, "lr", LR_LEAP) or (
            _rose(self.past, self.first, "micro_batches", 1.0 + _ROUNDED)
        )


def _rose(past: Floats, now: Floats, name: str, factor: float) -> bool:
    """Whether this column's highest value is so many times its lowest before."""
    low, high = past[past[:, _AT[name]] > 0, _AT[name]], now[now[:, _AT[name]] > 0, _AT[name]]
    return bool(len(low) and len(high) and high.max() >= factor * low.min())


def _grew(past: Floats, now: Floats, least: int) -> bool | None:
    """Whether so many of these values at least, or all, are far above those of the past."""
    usual, found = past[(past > 0) & np.isfinite(past)], now[now > 0]
    if len(usual) < LEAST_PAST or not len(found):
        return None
    middle = float(np.median(usual))
    spread = 1.4826 * float(np.median(np.abs(np.log(usual / middle))))
    line = middle * max(_GREW, math.exp(min(OUT_OF_BAND * spread, 50.0)))
    return bool((found > line).sum() >= min(least, len(found)))


@dataclass(frozen=True, slots=True)
class Rise:
    """A rise that is over."""

    first_step: int
    last_step: int
    last_position: int
    entries: int
    steps: int  # until the loss was back
    height: float
    peak: float
    level: float
    skips: int
    is_meant: bool
    grew: bool | None

    @property
    def is_single(self) -> bool:
        """Whether it was one step, or two by chance; a line of a log may stand for many."""
        return self.steps <= _CHANCE_STEPS

    @property
    def tells(self) -> bool:
        """Whether it is no noise: high, or out of the band for long, and gradients with it."""
        return self.height >= TELLING or (self.entries > SHORT and self.grew is True)

    @property
    def was_met(self) -> bool:
        """Whether a scaler met it with skips; one in a long rise may be a growth of the scale."""
        return self.skips * SHORT > self.entries

    @property
    def octave(self) -> int:
        """Its height in powers of two; of one that tells by its length at least the first high."""
        height = max(self.height, TELLING if self.tells else 1.0)
        return min(_OCTAVES - 1, int(math.log2(height)))


def closed(rise: Open) -> Rise:
    """The rise, now that it is over."""
    entries = rise.entries - rise.back
    grew = rise.grew if rise.height >= TELLING or entries > SHORT else None
    return Rise(
        first_step=rise.first_step,
        last_step=rise.last_step,
        last_position=rise.last_position,
        entries=entries,
        steps=max(1, rise.next_step - rise.first_step),
        height=rise.height,
        peak=rise.peak,
        level=rise.band.level,
        skips=rise.skips,
        is_meant=(rise.height >= TELLING or grew is True) and rise.is_meant,
        grew=grew,
    )


@dataclass(frozen=True, slots=True)
class Octave:
    """The rises of one octave of heights."""

    count: int = 0
    spent: int = 0  # steps of all of them; what follows is of those that are told of
    steps: int = 0
    grown: int = 0  # with which gradients or updates grew
    idle_steps: int = 0  # of those with which neither did, though recorded
    first: Rise | None = None
    last: tuple[Rise, ...] = ()

    def and_one(self, rise: Rise) -> Octave:
        """One more."""
        return Octave(
            self.count + 1,
            self.spent + rise.steps,
            self.steps + rise.steps,
            self.grown + (rise.grew is True),
            self.idle_steps + rise.steps * (rise.grew is False),
            self.first or rise,
            (*self.last, rise)[-_KEPT:],
        )

    def stands_above(self, below: Octave) -> bool:
        """Whether these stand apart from the ordinary ones of the octave below.

        Rises of noise are short, whatever their height. Where gradients or updates went with most
        of these, their steps may tell as well: what is left of a spike as it heals leaves the band
        once more, lower and briefly, and is no noise either.
        """
        if below.count <= _APART_SHARE * self.count:
            return self.count > 0
        return 2 * self.grown > self.count and below.spent <= _APART_SHARE * self.spent

    def __add__(self, other: Octave) -> Octave:
        if not (self.count and other.count):  # most are empty, and a look adds hundreds
            return self if self.count else other
        both = sorted((*self.last, *other.last), key=lambda rise: rise.last_position)
        firsts = [rise for rise in (self.first, other.first) if rise is not None]
        return Octave(
            self.count + other.count,
            self.spent + other.spent,
            self.steps + other.steps,
            self.grown + other.grown,
            self.idle_steps + other.idle_steps,
            min(firsts, key=lambda rise: rise.first_step, default=None),
            tuple(both[-_KEPT:]),
        )


@dataclass(frozen=True, slots=True)
class Tally:
    """Rises by the octave of their height."""

    octaves: tuple[Octave, ...] = (Octave(),) * _OCTAVES

    def and_one(self, rise: Rise) -> Tally:
        """One more."""
        return self._with(rise.octave, self.octaves[rise.octave].and_one(rise))

    def and_count(self, rise: Rise) -> Tally:
        """One more, of which nothing is kept but how long it took."""
        here = self.octaves[rise.octave]
        return self._with(
            rise.octave, replace(here, count=here.count + 1, spent=here.spent + rise.steps)
        )

    def _with(self, at: int, octave: Octave) -> Tally:
        return Tally((*self.octaves[:at], octave, *self.octaves[at + 1 :]))

    def __add__(self, other: Tally) -> Tally:
        return Tally(tuple(a + b for a, b in zip(self.octaves, other.octaves, strict=True)))

    @property
    def apart(self) -> Octave:
        """All rises that are high and stand apart from the ordinary ones; none where none do."""
        return sum(self.octaves[self._first_apart :], Octave())

    def apart_beside(self, leaps: Tally) -> Octave:
        """The same, unless leaps of one step are as high and far more: then they are noise."""
        at = self._first_apart
        above = sum(self.octaves[at:], Octave())
        noise = sum(octave.count for octave in leaps.octaves[at:])
        return above if noise <= _NOISE_TIMES * above.count else Octave()

    def tells(self, octave: int) -> bool:
        """Whether rises of this octave stand apart."""
        return octave >= self._first_apart

    @property
    def _first_apart(self) -> int:
        for at in range(int(math.log2(TELLING)), _OCTAVES):
            if sum(self.octaves[at:], Octave()).stands_above(self.octaves[at - 1]):
                return at
        return _OCTAVES
