"""A run's signals with its skips explained: what every rule is given.

Skips close together are one *episode*. An episode belongs to the start-up search, to the sawtooth
of a growing scale, to a reset, to a collapse, or to nothing known; each belongs to one of these.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ampwatch.diagnosis import policy
from ampwatch.diagnosis.signals import Event, Flags, Floats, Integers, Mask, Signals
from ampwatch.rows import EventKind


@dataclass(frozen=True, slots=True)
class Episodes:
    """Skips close together; positions are entries of the signals, `last` included."""

    first: Integers
    last: Integers
    skips: Integers

    def __len__(self) -> int:
        return len(self.first)


@dataclass(frozen=True)  # no slots: cached_property keeps its values in __dict__
class Case:
    """Signals, and what follows from them for several rules, each computed once."""

    signals: Signals

    @cached_property
    def first_accepted(self) -> int | None:
        """Where the first step stands that was not skipped, if there is one."""
        accepted = np.flatnonzero(~self.signals.skipped)
        return int(accepted[0]) if len(accepted) else None

    @property
    def startup_skips(self) -> int:
        """How many skips came before the first accepted step."""
        first = self.first_accepted
        return len(self.signals) if first is None else first

    @cached_property
    def established(self) -> tuple[Integers, Floats]:
        """Where a new highest level was established, and the levels, both ascending."""
        return _established(self.signals)

    def established_before(self, position: int) -> float | None:
        """The established level at an entry; before there is one, what the run began with."""
        where, levels = self.established
        count = int(np.searchsorted(where, position, side="left"))
        if count:
            return float(levels[count - 1])
        first = self.first_accepted
        if first is None or first == 0:
            return self.signals.initial_scale or _known_or_none(self.signals.scale, 0)
        return _known_or_none(self.signals.scale, first)

    @cached_property
    def episodes(self) -> Episodes:
        """The episodes after the start-up search."""
        at = np.flatnonzero(self.signals.skipped)
        return _episodes(at[at >= self.startup_skips], self.close_steps)

    @property
    def close_steps(self) -> int:
        """How near the next skip must be to belong to the same episode."""
        interval = self.signals.growth_interval
        near = max(policy.EPISODE_STEPS, int(interval * policy.EPISODE_SHARE_OF_INTERVAL))
        return min(near, interval)

    @cached_property
    def resets(self) -> Integers:
        """Where the scale stands at its initial value though nothing led it there."""
        return _resets(self.signals)

    @cached_property
    def is_sawtooth(self) -> Mask:
        """Which episodes are the price of a growth just before."""
        scale = _filled(self.signals.scale)
        changed = np.flatnonzero(np.diff(scale) != 0) + 1
        before = np.searchsorted(changed, self.episodes.first, side="right") - 1
        last = changed[np.maximum(before, 0)] if len(changed) else np.zeros(0, np.int64)
        if not len(last):
            return np.zeros(len(self.episodes), np.bool_)
        grew = (before >= 0) & (scale[last] > scale[last - 1]) & ~np.isin(last, self.resets)
        return np.asarray(grew & (self.episodes.skips <= policy.SAWTOOTH_SKIPS))

    @cached_property
    def is_after_reset(self) -> Mask:
        """Which episodes search their way down again after a reset."""
        where = np.searchsorted(self.resets, self.episodes.first, side="right") - 1
        if not len(self.resets):
            return np.zeros(len(self.episodes), np.bool_)
        gap = self.episodes.first - self.resets[np.maximum(where, 0)]
        return np.asarray((where >= 0) & (gap <= self.close_steps))

    @cached_property
    def is_collapse(self) -> Mask:
        """Which episodes carry the scale far below its established level."""
        mask = np.zeros(len(self.episodes), np.bool_)
        for episode in np.flatnonzero(self.episodes.skips >= policy.COLLAPSE_SKIPS).tolist():
            mask[episode] = self._collapses(episode)
        return mask & ~self.is_after_reset

    def _collapses(self, episode: int) -> bool:
        level = self.established_before(int(self.episodes.first[episode]))
        end = self.signals.scale_after[self.episodes.last[episode]]
        return level is not None and bool(end <= level * 2.0**-policy.COLLAPSE_OCTAVES)

    @cached_property
    def forward_finite(self) -> Flags:
        """Whether each step's forward was finite, -1 where nobody saw it."""
        return _forward_finite(self.signals)

    @cached_property
    def explained_steps(self) -> frozenset[int]:
        """The steps whose skip the search, the growth or a reset of the scale explains."""
        at = [np.arange(self.first_accepted or 0)]  # a search that nothing ended explains nothing
        teeth = np.flatnonzero(self.is_sawtooth | self.is_after_reset)
        at += [np.arange(self.episodes.first[i], self.episodes.last[i] + 1) for i in teeth]
        return frozenset(self.signals.step[np.concatenate(at)].tolist())

    @cached_property
    def bad_input_steps(self) -> frozenset[int]:
        """The steps whose input was not finite."""
        told = {e.step for e in overflows(self.signals, "input") if e.step is not None}
        return frozenset(told.union(self.signals.step[self.signals.input_finite == 0].tolist()))

    @cached_property
    def fatal_exceptions(self) -> tuple[Event, ...]:
        """The exceptions that ended training."""
        events = self.signals.of_kind(EventKind.EXCEPTION)
        return tuple(e for e in events if e.detail.get("fatal", True))

    @cached_property
    def first_bad_weight_step(self) -> int | None:
        """The first step before whose forward a weight was not finite."""
        layers = self.signals.layers
        steps = [
            *layers.step[layers.weight_finite == 0][:1].tolist(),
            *self.signals.step[self.signals.param_norm_bad][:1].tolist(),
            *[e.step for e in overflows(self.signals, "weights") if e.step is not None],
        ]
        return min(steps, default=None)

    @cached_property
    def sees_forward(self) -> bool:
        """Whether the record tells of any forward pass whether it was finite."""
        return bool((self.forward_finite >= 0).any())


def _established(signals: Signals) -> tuple[Integers, Floats]:
    need = min(policy.ESTABLISHED_STEPS, signals.growth_interval)
    scale = signals.scale
    if not len(scale):
        return np.zeros(0, np.int64), np.zeros(0)
    parts = (np.diff(_filled(scale)) != 0) | (np.diff(signals.skipped.astype(np.int8)) != 0)
    begin = np.concatenate(([0], np.flatnonzero(parts) + 1))
    length = np.diff(np.append(begin, len(scale)))
    good = (length >= need) & ~signals.skipped[begin] & np.isfinite(scale[begin])
    where, level = begin[good] + need - 1, np.maximum.accumulate(scale[begin[good]])
    return where, level


def _episodes(at: Integers, close_steps: int) -> Episodes:
    if not len(at):
        none = np.zeros(0, np.int64)
        return Episodes(none, none, none)
    cut = np.flatnonzero(np.diff(at) > close_steps) + 1
    first = np.concatenate(([0], cut))
    last = np.append(cut, len(at)) - 1
    return Episodes(at[first], at[last], last - first + 1)


def _resets(signals: Signals) -> Integers:
    initial = signals.initial_scale
    if initial is None or len(signals) < 2:
        return np.zeros(0, np.int64)
    expected = signals.scale_after[:-1]
    jumped = (signals.scale[1:] == initial) & (expected != initial) & ~np.isnan(expected)
    at = np.flatnonzero(jumped) + 1
    set_by_user = [e.step for e in signals.of_kind(EventKind.SCALE_SET) if e.step is not None]
    # `update(new_scale)` closes one step and shows in the next.
    excused = np.isin(signals.step[at], set_by_user) | np.isin(signals.step[at - 1], set_by_user)
    return np.asarray(at[~excused])


def _forward_finite(signals: Signals) -> Flags:
    layers = signals.layers
    result = np.full(len(signals), -1, np.int8)
    for flag in (1, 0):  # one layer that is not finite outweighs all that are
        result[np.isin(signals.step, layers.step[layers.act_finite == flag])] = flag
    for direction, flag in _FORWARD_OF.items():
        steps = [e.step for e in overflows(signals, direction) if e.step is not None]
        result[np.isin(signals.step, steps)] = flag
    return result


# What an overflow's direction says of the forward pass of its step.
_FORWARD_OF = {"backward": 1, "loss": 1, "forward": 0, "input": 0, "weights": 0}


def overflows(signals: Signals, direction: str) -> list[Event]:
    """The overflow events that were traced to this direction."""
    events = signals.of_kind(EventKind.OVERFLOW)
    return [event for event in events if event.detail.get("direction") == direction]


def _filled(values: Floats) -> Floats:
    """Unknown entries take the last known value, so that a gap is no change."""
    known = ~np.isnan(values)
    where = np.maximum.accumulate(np.where(known, np.arange(len(values)), 0))
    return values[where]


def _known_or_none(values: Floats, position: int) -> float | None:
    if position >= len(values) or np.isnan(values[position]):
        return None
    return float(values[position])
