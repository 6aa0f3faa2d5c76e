"""The history of the loss scale, folded block by block: what explains each skip, in a fixed size.

Skips close together are one *episode*. Each episode belongs to one of these: the start-up search,
the sawtooth of a growing scale, a reset, a collapse, or nothing known. The fold goes through
*segments*: entries in a row with one scale, all skipped or all accepted. A run has few of them,
however long it is.

Positions and lengths are counted in steps, not in rows, because a foreign log has one row for many
steps. Steps between two rows with the same scale count as accepted at it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from ampwatch.diagnosis import thresholds
from ampwatch.diagnosis.blocks import Block, Times
from ampwatch.diagnosis.column_arrays import Floats, Integers, Mask
from ampwatch.diagnosis.event_history import NO_CULPRITS, JointOverflows, OverflowCulprits
from ampwatch.diagnosis.record import Event, Scaler
from ampwatch.diagnosis.scale_segments import (
    NAN,
    EstablishedLevels,
    ScaleBeforeBlock,
    ScaleInBlock,
    ScaleReset,
    ScaleSegment,
    filled_forward,
    scale_segments_of,
)


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
    culprits: OverflowCulprits = NO_CULPRITS
    search_skips: int = 0  # by which the search may still go on
    unsettled_skips: int = 0  # before any level of the run was established
    search_culprits: OverflowCulprits = NO_CULPRITS

    def add_segment(
        self, segment: ScaleSegment, *, after_a_level: bool, in_search: bool = False
    ) -> None:
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


# Of falls from one level the first says all; of some 280 powers of two, few are ever levels.
MOST_FALLS = 16


class EstablishedScale(NamedTuple):
    """The highest loss scale that a run had established, and since which step it stood."""

    scale: float
    since_step: int


@dataclass(slots=True)
class ScaleHistory:
    """The history of the loss scale; `copy` it before folding what may still change."""

    scaler: Scaler
    before_block: ScaleBeforeBlock = field(default_factory=ScaleBeforeBlock)  # the next one
    entries: int = 0  # rows, one a recorded step
    skips: int = 0
    first_step: int | None = None
    second_step: int | None = None
    first_scale: float = NAN  # the first known
    sees_beginning: bool = False  # the first row is of the run's first step
    first_is_untold: bool = False  # ... and holds only the scale after it, which may have fallen
    search: SkipEpisode = field(default_factory=SkipEpisode)  # skips before the first accepted step
    first_accepted: int | None = None
    first_accepted_step: int | None = None
    level: float | None = None  # established
    level_step: int | None = None
    low_scale_steps: int = 0  # accepted at an established scale below 1
    recent_levels: EstablishedLevels = field(default_factory=EstablishedLevels)
    last_place: int = -1  # of the last segment
    run_scale: float = NAN
    run_length: int = 0  # accepted steps in a row at that scale
    grew_last: bool = False
    growths: int = 0
    resets: Times = field(default_factory=Times)
    reset: ScaleReset | None = None  # the last one
    reset_skips: int = 0  # for the searches after them
    late_search_skips: int = 0
    open: SkipEpisode | None = None
    ending: SkipEpisode | None = None  # that was open when the record ended
    teeth: SkipSpan = field(default_factory=SkipSpan)
    loose: SkipSpan = field(default_factory=SkipSpan)
    spikes: SkipSpan = field(default_factory=SkipSpan)  # falls, and what of the loose is a burst
    falls: tuple[ScaleFall, ...] = ()
    # Of overflows that nothing explains.
    culprits: OverflowCulprits = NO_CULPRITS
    highest_skip: float = NAN  # the highest scale that overflowed after the search
    lowest_skip: float = NAN  # the lowest scale that overflowed since the search began
    last_skip: int = 0  # the last one's position
    search_step: int | None = None  # the last one with which the search went on
    recent_skips: Integers = field(default_factory=lambda: np.zeros(0, np.int64))  # positions
    lowest: float = NAN  # the lowest scale of a step
    tiny: Times = field(default_factory=Times)  # steps at a scale whose inverse is infinite
    at_floor: Times = field(default_factory=Times)  # skips at the framework's minimum
    micro_batches: tuple[float, float] = (NAN, NAN)  # of a step: at first, at most

    def copy(self) -> ScaleHistory:
        """A copy that can be folded further without changing this history."""
        episode, search = self.open and replace(self.open), replace(self.search)
        return replace(self, open=episode, search=search, recent_levels=self.recent_levels.copy())

    @property
    def steps(self) -> int:
        """How many steps the record covers, from the first to the last."""
        return self.before_block.steps

    @property
    def last_step(self) -> int | None:
        """The last step of the record."""
        return self.before_block.last_step

    @property
    def final_scale(self) -> float:
        """The last known loss scale."""
        return self.before_block.known

    @property
    def established(self) -> EstablishedScale | None:
        """The established level of the loss scale with its step, if there is one."""
        if self.level is None or self.level_step is None:
            return None
        return EstablishedScale(self.level, self.level_step)

    @property
    def has_scaler(self) -> bool:
        """Whether the record holds any loss scale."""
        return not math.isnan(self.first_scale)

    @property
    def steps_before(self) -> int:
        """Steps before the first row, in a log of every n-th step that begins with its n-th."""
        if self.first_step is None or self.second_step is None:
            return 0
        is_nth = 0 < self.first_step <= self.second_step - self.first_step
        return self.first_step - 1 if is_nth else 0

    @property
    def floor(self) -> float | None:
        """The framework's minimum scale; None if the scale has fallen below it."""
        floor = self.scaler.floor
        return None if floor is None or self.lowest < floor / 2 else floor

    @property
    def floored(self) -> Times:
        """Steps at the smallest possible scale, from which it cannot fall further."""
        return self.tiny if self.floor is None else self.at_floor.joined(self.tiny)

    @property
    def startup_skips(self) -> int:
        """How many steps were skipped before the first accepted one."""
        return self.search.skips

    @property
    def accumulation_octaves(self) -> float:
        """How far the number of micro-batches in a step grew: a summed loss overflows sooner."""
        first, most = self.micro_batches
        return math.log2(most / first) if most > first else 0.0

    @property
    def unexplained_skips(self) -> int:
        """Skips that neither the search, nor growth, nor a reset of the scale explains."""
        startup = self.search.skips if self.first_accepted is not None else 0
        explained = self.teeth.skips + self.reset_skips + self.late_search_skips
        return self.skips - startup - explained

    def fold(self, block: Block, overflows: Iterable[tuple[int, Event | JointOverflows]]) -> Mask:
        """Add a block, and its overflow events by position.

        Returns in which steps the scale stood near an established level, or there was no scale at
        all.
        """
        waiting, level = list(overflows), np.full(len(block), NAN)
        if len(block):
            self._take_beginning(block)
            block_scale = ScaleInBlock(block, self.before_block)
            for at in np.flatnonzero(block_scale.set_here)[-1:]:
                self.recent_levels.begin_anew(int(block_scale.places[at]))
            first_scale = self.first_scale if self.sees_beginning else NAN
            for segment in scale_segments_of(
                block_scale, self.scaler, self.first_step or 0, first_scale
            ):
                self._take(segment)
                level[segment.entries] = NAN if self.level is None else self.level
                while waiting and waiting[0][0] < block.start + segment.entries.stop:
                    self._take_overflow(*waiting.pop(0), skipped=segment.skipped)
            self._take_facts(block_scale)
        for position, event in waiting:
            self._take_overflow(position, event, skipped=False)
        scale = filled_forward(block.columns["scale"], NAN)
        if not self.has_scaler:
            return np.isnan(scale)
        return np.asarray(np.isnan(level) | (scale > level * 2.0**-thresholds.COLLAPSE_OCTAVES))

    def finish(self) -> None:
        """Close the episode that is open, as if the record ended here."""
        self.ending = self.open
        self._close()
        if self.first_accepted is None:
            self.culprits = self.culprits.joined(self.search.culprits)

    # --- one block -------------------------------------------------------------------------------

    def _take_beginning(self, block: Block) -> None:
        scale, after = block.columns["scale"], block.columns["scale_after"]
        if not self.entries:
            self.first_step, self.sees_beginning = int(block.step[0]), bool(block.step[0] <= 1)
            untold = block.skipped_here[0] < 0 and np.isnan(scale[0]) and not np.isnan(after[0])
            self.first_is_untold = self.sees_beginning and bool(untold)
        if self.second_step is None:
            steps = block.step[not self.entries :]
            self.second_step = int(steps[0]) if len(steps) else None
        if not self.has_scaler:
            both = np.column_stack([scale, after]).ravel()
            self.first_scale = float(np.append(both[~np.isnan(both)], NAN)[0])

    def _take_facts(self, block_scale: ScaleInBlock) -> None:
        block, scale = block_scale.block, block_scale.begun
        tiny = np.flatnonzero(scale < thresholds.FLOOR_SCALE)
        at_floor = np.flatnonzero(block.skipped & (scale <= (self.scaler.floor or 0.0)))
        self.tiny = self.tiny.and_entries(tiny, block)
        self.at_floor = self.at_floor.and_entries(at_floor, block)
        self.lowest = float(np.fmin(self.lowest, np.fmin.reduce(scale)))
        self.before_block, self.entries = block_scale.before_next, self.entries + len(block)
        recent = np.concatenate([self.recent_skips, block_scale.places[block.skipped]])
        self.recent_skips = recent[recent >= self.steps - thresholds.STORM_WINDOW_STEPS]
        self._take_micro_batches(block.columns["micro_batches"])

    def _take_micro_batches(self, count: Floats) -> None:
        counts = count[count >= 1]
        if len(counts):
            first, most = self.micro_batches
            first = float(counts[0]) if np.isnan(first) else first
            self.micro_batches = first, float(np.fmax(most, counts.max()))

    # --- one segment -----------------------------------------------------------------------------

    def _take(self, segment: ScaleSegment) -> None:
        previous = self.run_scale
        unseen = segment.first - self.last_place - 1
        self.last_place = segment.last
        if unseen > 0 and self.run_length and segment.scale == previous:
            # Had one of these been skipped, the scale had fallen.
            self._accept(unseen, segment, segment.first - 1)
        if segment.scale != previous and not np.isnan(segment.scale):
            if not np.isnan(previous):
                self.grew_last = segment.scale > previous and segment.reset is None
                self.growths += self.grew_last
            self.run_length = 0
        self.run_scale = segment.scale
        if segment.reset is not None:
            self._close()  # what is skipped from here on is the new search's
            self.recent_levels.begin_anew(segment.first)
            self.reset, self.lowest_skip, self.last_skip = segment.reset, NAN, segment.first
            self.resets = self.resets.and_at(segment.first_step, segment.first)
        self.falls = tuple(
            replace(fall, lowest=min(fall.lowest, segment.lowest_after)) for fall in self.falls
        )
        if segment.skipped:
            self._take_skips(segment)
        elif not segment.left_out:
            self._take_accepted(segment)

    def _take_accepted(self, segment: ScaleSegment) -> None:
        if self.first_accepted is None:
            self.first_accepted, self.first_accepted_step = segment.first, segment.first_step
            # The search has ended: it explains them.
            self.search.culprits = NO_CULPRITS
        self._accept(segment.length, segment, segment.last)

    def _accept(self, length: int, segment: ScaleSegment, last: int) -> None:
        self.run_length += length
        over = self.run_length - self.scaler.established_steps
        if over >= 0 and np.isfinite(segment.scale):
            first, last_step = last - min(over, length - 1), segment.last_step
            last_step -= segment.last - last
            self.recent_levels.establish(first, last, last_step, segment.scale, self.skips)
            if self.level is None or segment.scale > self.level:
                self.level, self.level_step = segment.scale, segment.first_step
            if segment.scale < 1.0:
                self.low_scale_steps += length

    def _take_skips(self, segment: ScaleSegment) -> None:
        established = self.run_length >= self.scaler.established_steps
        self.run_length = 0
        if self.first_is_untold and self.first_accepted == 0 and segment.first == 1:
            # The first row was taken for an accepted step; with skips after it nobody knows.
            self.first_accepted = self.first_accepted_step = None
        if self.first_accepted is None:
            self.search.add_segment(segment, after_a_level=False)
        else:
            self.highest_skip = float(np.fmax(self.highest_skip, segment.scale))
            if self.open and self._is_apart(segment, self.open):
                self._close()
            in_search = self._is_late_search(segment)
            self.search_step = segment.first_step if in_search else self.search_step
            self.open = self.open or self._opened(segment)
            self.open.add_segment(segment, after_a_level=established, in_search=in_search)
            if self.level is None and not in_search:
                self.open.unsettled_skips += segment.length
        self.skips += segment.length
        self.last_skip = segment.last
        self.lowest_skip = float(np.fmin(self.lowest_skip, segment.scale))

    def _is_late_search(self, segment: ScaleSegment) -> bool:
        """Whether a skip continues the search for a scale: a new low, twice as late as the last."""
        if math.isnan(segment.scale) or segment.scale >= self.lowest_skip:
            return False
        begun = self.resets.last_position if self.resets.count else 0
        apart = segment.first - self.last_skip
        return apart > 1 and apart >= self.last_skip - begun

    def _is_apart(self, segment: ScaleSegment, episode: SkipEpisode) -> bool:
        """Whether skips come too late for the open episode, or after the scale grew."""
        apart = segment.first - episode.last
        return apart > self.scaler.close_steps or (apart > 1 and self.grew_last)

    def _opened(self, segment: ScaleSegment) -> SkipEpisode:
        near = segment.first - self.resets.last_position <= self.scaler.close_steps
        return SkipEpisode(
            level=self._level_before(),
            from_growth=self.grew_last,
            from_reset=self.resets.count > 0 and near,
            skips_before=self.skips,
            tooth_skips=self.scaler.tooth_skips,
        )

    def _level_before(self) -> float | None:
        """The established level of the scale; before there is one, the scale the run began with."""
        if self.level is not None:
            return self.level
        begun = self.scaler.initial or self.first_scale
        if self.search.skips:
            begun = self.search.scale_after
        return None if math.isnan(begun) else begun

    def _close(self) -> None:
        episode, self.open = self.open, None
        if episode is None:
            return
        if episode.from_reset:
            self.reset_skips += episode.skips
            return
        if episode.is_tooth and not episode.is_fall:
            self.teeth = self.teeth.with_episode(episode)
            return
        if episode.is_fall or episode.is_spike:
            episode.culprits = episode.culprits.joined(episode.search_culprits)
            self.spikes = self.spikes.with_episode(episode) if episode.is_spike else self.spikes
        else:
            if self.level is not None:  # a level was found: until then the search went on
                episode.search_skips += episode.unsettled_skips
            self.late_search_skips += episode.search_skips
            episode = episode.without_search()
        if episode.is_fall:
            self._take_fall(episode)
        elif episode.skips:
            self.loose = self.loose.with_episode(episode)
            self.recent_levels.count_loose(episode.first, episode.skips, episode.lone_skips)
        self.culprits = self.culprits.joined(episode.culprits)

    def _take_fall(self, episode: SkipEpisode) -> None:
        level, begin = episode.level, episode.descent
        assert level is not None, "a fall has a level"
        # Levels only rise, so of falls from one level the first says all.
        if len(self.falls) < MOST_FALLS and all(fall.level < level for fall in self.falls):
            skips = episode.skips_before + episode.skips - begin.skips_before
            self.falls += (
                ScaleFall(
                    level, begin.first_step, episode.last_step, episode.scale_after, skips,
                    begin.skips_before, episode.lowest, self.teeth, self.loose,
                ),
            )  # fmt: skip

    def _take_overflow(
        self, position: int, overflow: Event | JointOverflows, *, skipped: bool
    ) -> None:
        if self.run_scale < thresholds.FLOOR_SCALE:
            return  # every gradient is divided by next to nothing: all layers overflow
        if skipped and self.first_accepted is None:
            self.search.culprits = self.search.culprits.and_overflow(overflow, position)
        elif skipped and self.open is not None:
            # Which layer limits a scale is chance; which rank overflows first is not.
            searching = isinstance(overflow, Event) and overflow.step == self.search_step
            name = "search_culprits" if searching else "culprits"
            setattr(self.open, name, getattr(self.open, name).and_overflow(overflow, position))
        else:
            self.culprits = self.culprits.and_overflow(overflow, position)
