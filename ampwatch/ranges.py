"""Sets of batch numbers, which come in few unbroken ranges."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator
from typing import TypeAlias

import numpy as np

Range: TypeAlias = "tuple[int, int]"  # the first number, and one past the last


class Ranges:
    """A set of whole numbers, kept as ranges: sorted, and never touching each other."""

    __slots__ = ("_ends", "_starts")

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for first, after in ranges:
            self.add(first, after)

    @classmethod
    def of_numbers(cls, numbers: np.ndarray) -> Ranges:
        """The set of the numbers in an array, which may be in any order."""
        ordered = np.sort(numbers.astype(np.int64))
        breaks = np.flatnonzero(np.diff(ordered) > 1)
        found = cls()
        found._starts = np.concatenate([ordered[:1], ordered[breaks + 1]]).tolist()
        found._ends = (np.concatenate([ordered[breaks], ordered[-1:]]) + 1).tolist()
        return found

    def __iter__(self) -> Iterator[Range]:
        return zip(self._starts, self._ends, strict=True)

    def __len__(self) -> int:
        """How many ranges there are, not how many numbers."""
        return len(self._starts)

    def __contains__(self, number: int) -> bool:
        return self.next_missing(number) != number

    @property
    def start(self) -> int:
        """The lowest number in the set of ranges; 0 for an empty set."""
        return self._starts[0] if self._starts else 0

    @property
    def end(self) -> int:
        """One past the highest number in the set of ranges; 0 for an empty set."""
        return self._ends[-1] if self._ends else 0

    @property
    def first(self) -> Range:
        """The lowest range of the set."""
        return self._starts[0], self._ends[0]

    @property
    def gaps(self) -> tuple[Range, ...]:
        """The ranges from 0 to `end` that are not in the set."""
        ends = [0, *self._ends]
        return tuple((a, b) for a, b in zip(ends, self._starts, strict=False) if a < b)

    def next_missing(self, number: int) -> int:
        """The lowest number from this one on that is not in the set of ranges."""
        place = bisect.bisect(self._starts, number) - 1
        return max(number, self._ends[place]) if place >= 0 else number

    def add(self, first: int, after: int | None = None) -> None:
        """Add `first` to the set, or the range from `first` up to but not including `after`."""
        if after is None:
            after = first + 1
        if first >= after:
            return
        if self._ends and first == self._ends[-1]:  # nearly always: batches come in order
            self._ends[-1] = after
            return
        left = bisect.bisect_left(self._ends, first)  # these ranges overlap or touch the new one
        right = bisect.bisect(self._starts, after)
        if left < right:
            first = min(first, self._starts[left])
            after = max(after, self._ends[right - 1])
        self._starts[left:right] = [first]
        self._ends[left:right] = [after]

    def remove_below(self, number: int) -> None:
        """Remove all numbers below this one from the set of ranges."""
        place = bisect.bisect(self._ends, number)
        del self._starts[:place], self._ends[:place]
        if self._starts:
            self._starts[0] = max(self._starts[0], number)

    def without(self, others: Iterable[Range]) -> list[Range]:
        """The parts of the set's ranges that these other ranges do not cover."""
        left = list(self)
        for first, after in others:
            cut = [((a, min(b, first)), (max(a, after), b)) for a, b in left]
            left = [(a, b) for pair in cut for a, b in pair if a < b]
        return left
