"""Episodes: skipped steps close together, what each did to the loss scale, and their sums."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from ampwatch.diagnosis import thresholds
from ampwatch.diagnosis.overflow_culprits import OverflowCulprits
from ampwatch.diagnosis.scale_segments import NAN, ScaleSegment


@dataclass(frozen=True, slots=True)
class ScaleDescent:
    """A part of an episode of skips: those between two established scales."""

    first_step: int
    skips_before: int  # of the run
    scale: float  # that it began with
    octaves: float = 0.0  # that it took the scale down


@dataclass(slots=True)
class SkipEpisode:
    """Skipped steps close together; open until the next skip comes too late to belong to it."""

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
    part: ScaleDescent | None = None  # the last one
    deepest: ScaleDescent | None = None  # the part that went farthest
    culprits: OverflowCulprits = field(default_factory=OverflowCulprits)
    search_skips: int = 0  # by which the search may still go on
    unsettled_skips: int = 0  # before any level of the run was established
    search_culprits: OverflowCulprits = field(default_factory=OverflowCulprits)

    def take(self, segment: ScaleSegment, *, after_a_level: bool, in_search: bool = False) -> None:
        """Add a segment of skips; `after_a_level`: a scale was established just before it."""
        if not self.skips:
            self.first, self.first_step = segment.first, segment.first_step
            self.first_scale = segment.scale
        goes_on = self.skips > 0 and segment.first == self.last + 1
        before = self.streak if goes_on else 0
        if not goes_on:
            self.streak_scale = segment.scale
        if self.part is None or after_a_level:
            before_it = self.skips_before + self.skips
            self.part = ScaleDescent(segment.first_step, before_it, segment.scale)
        octaves = _octaves_between(self.part.scale, segment.scale_after)
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

    def copy(self) -> SkipEpisode:
        """An independent copy of the episode, which can take more skips."""
        searched = self.search_culprits.copy()
        return replace(self, culprits=self.culprits.copy(), search_culprits=searched)

    def without_search(self) -> SkipEpisode:
        """The episode without the skips that the search for a scale explains."""
        lone, skips = self.lone_skips - self.search_skips, self.skips - self.search_skips
        return replace(self, skips=skips, lone_skips=lone)

    @property
    def descent(self) -> ScaleDescent:
        """Where the scale's fall begins: at the part that made more than half of it, if one did.

        A lone skip some time before that is no part of the fall.
        """
        deepest = self.deepest
        if deepest is not None and deepest.octaves > self.octaves / 2:
            return deepest
        return ScaleDescent(self.first_step, self.skips_before, self.first_scale, self.octaves)

    @property
    def streak_octaves(self) -> float:
        """How far the last skips in a row took the scale down."""
        return _octaves_between(self.streak_scale, self.scale_after)

    @property
    def is_tooth(self) -> bool:
        """Whether the episode only undoes the growth just before it: one overflow, or two."""
        few = self.streaks <= thresholds.SAWTOOTH_SKIPS and self.skips <= self.tooth_skips
        return self.from_growth and few

    @property
    def is_spike(self) -> bool:
        """Whether it skipped more steps in a row than one overflow needs."""
        return self.longest_streak >= thresholds.SPIKE_SKIPS

    @property
    def octaves(self) -> float:
        """How far the whole episode took the scale down; 0 if a scale is unknown."""
        return _octaves_between(self.first_scale, self.scale_after)

    @property
    def is_fall(self) -> bool:
        """Whether the episode took the scale far below its established level."""
        if self.from_reset or self.skips < thresholds.COLLAPSE_SKIPS or self.level is None:
            return False
        return self.scale_after <= self.level * 2.0**-thresholds.COLLAPSE_OCTAVES


def _octaves_between(high: float, low: float) -> float:
    """How far an episode took the scale down, in octaves; 0 if it did not, or if one is unknown."""
    return max(0.0, math.log2(high) - math.log2(low)) if high > 0 and low > 0 else 0.0


def _lone(streak: int) -> int:
    return streak if streak <= thresholds.SAWTOOTH_SKIPS else 0


@dataclass(frozen=True, slots=True)
class SkipSpan:
    """Episodes of one sort added up: how many skips, from which step to which."""

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

    def with_episode(self, episode: SkipEpisode) -> SkipSpan:
        """The span with one more episode."""
        return SkipSpan(
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
class ScaleFall:
    """An episode that took the scale far below its level, and what followed."""

    level: float
    first_step: int
    end_step: int
    end_scale: float
    skips: int
    skips_before: int  # of the run, up to its first
    lowest: float  # from its beginning to the end of the record
    teeth: SkipSpan  # before it
    loose: SkipSpan
