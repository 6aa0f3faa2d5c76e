"""Skips close together are one episode: what it did to the scale, and what episodes add up to."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from ampwatch.diagnosis import policy
from ampwatch.diagnosis.overflow_culprits import Culprits
from ampwatch.diagnosis.scale_segments import NAN, Segment


@dataclass(frozen=True, slots=True)
class Descent:
    """A part of an episode: its skips between two established scales."""

    first_step: int
    skips_before: int  # of the run
    scale: float  # that it began with
    octaves: float = 0.0  # that it took the scale down


@dataclass(slots=True)
class Episode:
    """Skips close together; open until the next skip comes too late for it."""

    level: float | None = None  # established before it
    from_growth: bool = False
    from_reset: bool = False
    skips_before: int = 0  # of the run
    tooth_skips: int = 0  # at most, if it is one tooth of a saw
    first: int = 0
    first_step: int = 0
    first_scale: float = NAN
    last: int = 0
    last_step: int = 0
    skips: int = 0
    streaks: int = 0  # skips in a row, with accepted steps between
    streak: int = 0  # how long the last of them is
    longest_streak: int = 0
    lone_skips: int = 0  # in streaks no longer than one overflow may need
    scale_after: float = NAN
    lowest: float = NAN
    streak_scale: float = NAN  # that the last streak began with
    part: Descent | None = None  # the last one
    deepest: Descent | None = None  # the part that went farthest
    culprits: Culprits = field(default_factory=Culprits)
    search_skips: int = 0  # by which the search may still go on
    search_culprits: Culprits = field(default_factory=Culprits)

    def take(self, segment: Segment, *, after_a_level: bool, in_search: bool = False) -> None:
        """Take in a segment of skips; whether a scale was established just before it."""
        if not self.skips:
            self.first, self.first_step = segment.first, segment.first_step
            self.first_scale = segment.scale
        goes_on = self.skips > 0 and segment.first == self.last + 1
        before = self.streak if goes_on else 0
        if not goes_on:
            self.streak_scale = segment.scale
        if self.part is None or after_a_level:
            before_it = self.skips_before + self.skips
            self.part = Descent(segment.first_step, before_it, segment.scale)
        octaves = octaves_between(self.part.scale, segment.scale_after)
        self.part = replace(self.part, octaves=octaves)
        self.deepest = max(self.deepest or self.part, self.part, key=lambda part: part.octaves)
        self.streaks += not goes_on
        self.streak = before + segment.length
        self.longest_streak = max(self.longest_streak, self.streak)
        self.lone_skips += _lone(self.streak) - _lone(before)
        self.search_skips += in_search  # a streak's first
        self.skips += segment.length
        self.last, self.last_step = segment.last, segment.last_step
        self.scale_after = segment.scale_after
        self.lowest = float(np.fmin(self.lowest, segment.lowest_after))

    def copy(self) -> Episode:
        """The same, to take more apart."""
        searched = self.search_culprits.copy()
        return replace(self, culprits=self.culprits.copy(), search_culprits=searched)

    def without_search(self) -> Episode:
        """What the search does not explain."""
        lone, skips = self.lone_skips - self.search_skips, self.skips - self.search_skips
        return replace(self, skips=skips, lone_skips=lone)

    @property
    def descent(self) -> Descent:
        """Where the fall begins: with the part that went more than half of the way, if one did.

        A lone skip some time before has nothing to do with it.
        """
        deepest = self.deepest
        if deepest is not None and deepest.octaves > self.octaves / 2:
            return deepest
        return Descent(self.first_step, self.skips_before, self.first_scale, self.octaves)

    @property
    def streak_octaves(self) -> float:
        """How far the last skips in a row took the scale down."""
        return octaves_between(self.streak_scale, self.scale_after)

    @property
    def is_tooth(self) -> bool:
        """Whether it is the price of a growth just before: one overflow, or one and an echo."""
        few = self.streaks <= policy.SAWTOOTH_SKIPS and self.skips <= self.tooth_skips
        return self.from_growth and few

    @property
    def is_spike(self) -> bool:
        """Whether step after step was skipped, more than one overflow needs."""
        return self.longest_streak >= policy.SPIKE_SKIPS

    @property
    def octaves(self) -> float:
        """How far it took the scale down; 0 where a scale is unknown."""
        return octaves_between(self.first_scale, self.scale_after)

    @property
    def is_fall(self) -> bool:
        """Whether it carries the scale far below its established level."""
        if self.from_reset or self.skips < policy.COLLAPSE_SKIPS or self.level is None:
            return False
        return self.scale_after <= self.level * 2.0**-policy.COLLAPSE_OCTAVES


def octaves_between(high: float, low: float) -> float:
    """How far one scale lies above another; 0 where it does not, or where one is unknown."""
    return max(0.0, math.log2(high) - math.log2(low)) if high > 0 and low > 0 else 0.0


def _lone(streak: int) -> int:
    return streak if streak <= policy.SAWTOOTH_SKIPS else 0


@dataclass(frozen=True, slots=True)
class Span:
    """Some skips of one sort: how many, from where to where."""

    episodes: int = 0
    skips: int = 0
    first_step: int | None = None
    last_step: int | None = None
    highest_scale: float = -np.inf
    last_scale: float = NAN
    first_position: int = 0
    last_position: int = -1
    lone_skips: int = 0  # not in long streaks
    deepest_octaves: float = 0.0  # that one of them took the scale down

    def with_episode(self, episode: Episode) -> Span:
        """The span with one more episode."""
        return Span(
            self.episodes + 1,
            self.skips + episode.skips,
            self.first_step if self.episodes else episode.first_step,
            episode.last_step,
            max(self.highest_scale, episode.first_scale),
            episode.first_scale,
            self.first_position if self.episodes else episode.first,
            episode.last,
            self.lone_skips + episode.lone_skips,
            max(self.deepest_octaves, episode.octaves),
        )


@dataclass(frozen=True, slots=True)
class Fall:
    """An episode that carried the scale far below its level, and what followed."""

    level: float
    first_step: int
    end_step: int
    end_scale: float
    skips: int
    skips_before: int  # of the run, up to its first
    lowest: float  # from its beginning to the end of the record
    teeth: Span  # before it
    loose: Span
