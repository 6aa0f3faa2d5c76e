"""One overflow that several ranks print is one event.

If lines name their rank, the n-th overflow of any rank is the n-th of the run. If they do not, they
are collected until something else is printed; equal lines are then the ranks of one event if every
value occurs equally often in the burst.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ampwatch.importers.statements import Skip

_Key: TypeAlias = "tuple[float | None, float | None]"
_MOST_WAITING = 4096
_REMEMBERED = 4096
_FEW_STRANGERS = 4
# Ranks print an overflow of joined gradients almost at once; a step takes longer.
_MOMENT_NS = 100_000_000


def _key(skip: Skip) -> _Key:
    return (skip.scale, skip.scale_after)


@dataclass(slots=True)
class RankedOverflows:
    """Overflows of which each line names its rank; several ranks print the same one."""

    total: int = 0
    counts: Counter[int] = field(default_factory=Counter)
    recent: deque[_Key] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))

    def is_new(self, skip: Skip) -> bool:
        """Whether no other rank has printed this overflow."""
        assert skip.rank is not None
        count = self.counts[skip.rank]
        behind = self.total - count
        if 0 < behind <= len(self.recent) and self.recent[-behind] == _key(skip):
            self.counts[skip.rank] += 1
            return False
        if behind > 0 and self.recent[-1] == _key(skip):  # this rank did not print some of them
            self.counts[skip.rank] = self.total
            return False
        self.total += 1
        self.counts[skip.rank] = self.total
        self.recent.append(_key(skip))
        return True


@dataclass(slots=True)
class OverflowBurst:
    """Overflows printed in a row without a rank: duplicates of other ranks are found among them."""

    world: int | None = None  # number of ranks that print, once known
    waiting: list[Skip] = field(default_factory=list)
    last: _Key | None = None  # of the event that may not be complete yet
    last_count: int = 0
    strangers: int = 0  # other lines since the last overflow

    def passed(self, lines: int) -> bool:
        """Count lines that are no overflow; return whether the waiting overflows are to be settled.

        A single overflow followed by anything else comes from a single process. If several ranks
        print, other lines may occur between theirs.
        """
        self.strangers += lines
        few = _FEW_STRANGERS if len(self.waiting) > 1 or (self.world or 1) > 1 else 1
        return bool(self.waiting) and self.strangers >= few

    def add(self, skip: Skip) -> Iterator[Skip]:
        """Hold an overflow back until its duplicates are known; if too many wait, yield them."""
        self.waiting.append(skip)
        self.strangers = 0
        if len(self.waiting) >= _MOST_WAITING:
            yield from self.settle()

    def settle(self) -> list[Skip]:
        """The waiting overflows without the duplicates that other ranks printed."""
        waiting, self.waiting = self.waiting, []
        if not waiting:
            return []
        if self.world is None:
            self.world = _world(waiting)
        return list(self._events(waiting, self.world or 1))

    def _events(self, waiting: Sequence[Skip], world: int) -> Iterator[Skip]:
        counts: Counter[_Key] = Counter()
        began: dict[_Key, int | None] = {}  # when the event was first printed
        if self.last is not None and self.last == _key(waiting[0]) and self.last_count % world:
            counts[self.last] = self.last_count  # the remaining ranks of an earlier event
        for skip in waiting:
            key = _key(skip)
            if _is_later(skip.time_ns, began.get(key)):
                counts[key] = 0
            if counts[key] % world == 0:
                began[key] = skip.time_ns
                yield skip
            counts[key] += 1
        self.last = _key(waiting[-1])
        self.last_count = counts[self.last]


def _is_later(time_ns: int | None, began_ns: int | None) -> bool:
    """Whether an overflow was printed too late to be another rank's line about the same one."""
    return time_ns is not None and began_ns is not None and time_ns - began_ns > _MOMENT_NS


def _world(waiting: Sequence[Skip]) -> int:
    """How many ranks print each overflow: 1, unless every value occurs equally often.

    Lines without a value cannot be compared, so each is one event. A single value that is repeated
    comes from several ranks only if the count is a power of two.
    """
    counts = Counter(map(_key, waiting))
    many = counts[_key(waiting[0])]
    if _key(waiting[0]) == (None, None) or (len(counts) == 1 and many & (many - 1)):
        return 1
    last = _key(waiting[-1])  # may be cut off
    agreed = all(count % many == 0 for key, count in counts.items() if key != last)
    return many if agreed and counts[last] <= many * max(1, len(waiting) // many) else 1
