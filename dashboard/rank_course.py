"""Several ranks' numbers as one course: the lowest rank's, and what the others have that differs.

Another rank's columns bear its number (`loss@1`) and lie on the steps of the lowest rank. Where
ranks train together most of them are the same on all ranks, and are not there a second time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from course import LINES, SCALE, Course, Growing, Numbers
from numpy.typing import NDArray

from ampwatch.store import Run

MOST = 8  # ranks over one another
_PATIENCE_NS = 10 * 10**9  # a rank that is later than this is not waited for
_SEGMENT = 1 << 48  # more steps than there are between a restart and the next
_NAMES = (SCALE, *LINES)


def column_of(name: str, rank: int) -> str:
    """The column that holds another rank's."""
    return f"{name}@{rank}"


class RankNumbers:
    """The ranks' growing numbers: `take` what is new, as `Numbers` does of one rank."""

    def __init__(
        self, ranks: tuple[int, ...], *, epoch: int = 0, now_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._now_ns = now_ns
        self._lowest = Numbers(rank=ranks[0])
        self._others = {rank: Numbers(rank=rank) for rank in ranks[1:]}
        self._epoch = epoch - 1
        self._begin()
        self._course = self._lowest.course

    @property
    def course(self) -> Course:
        """What was taken so far; later rows do not change it."""
        return self._course

    @property
    def waits(self) -> bool:
        """Whether rows of the lowest rank are held back until the others have come as far."""
        return self._rows < len(self._lowest.course)

    def take(self, run: Run) -> Course:
        """Take in the rows that are new, as far as every rank has come that still writes."""
        spine = self._lowest.take(run)
        others = {rank: numbers.take(run) for rank, numbers in self._others.items()}
        if not self._continues(spine, others):
            self._begin()
            self._epochs = _epochs(spine, others)
        is_over = run.clean_end or self._now_ns() - run.last_time_ns > _PATIENCE_NS
        end = len(spine) if is_over else _reached(spine, others, self._rows)
        if end > self._rows:
            self._add(spine, others, end)
            self._course = self._snapshot(spine, others)
        return self._course

    # --- within ----------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._epoch += 1
        self._rows, self._last_key = 0, -1
        self._taken = dict.fromkeys(self._others, 0)
        self._columns = {
            column_of(name, rank): Growing(np.float32) for rank in self._others for name in _NAMES
        }
        self._differs: frozenset[str] = frozenset()
        self._epochs: tuple[int, ...] = ()

    def _continues(self, spine: Course, others: dict[int, Course]) -> bool:
        """Whether no rank has other rows than before, or later ones for steps already joined."""
        return self._epochs == _epochs(spine, others) and not any(
            (_keys(course, self._taken[rank]) <= self._last_key).any()
            for rank, course in others.items()
        )

    def _add(self, spine: Course, others: dict[int, Course], end: int) -> None:
        new = slice(self._rows, end)
        keys = _keys(spine, self._rows)[: end - self._rows]
        self._rows, self._last_key = end, int(keys.max())
        for rank, course in others.items():
            theirs = _keys(course, self._taken[rank])
            at, there = _places(keys, theirs)
            at += self._taken[rank]
            self._taken[rank] += int(np.searchsorted(theirs, self._last_key, side="right"))
            for name in _NAMES:
                values = np.full(len(keys), np.nan, np.float32)
                values[there] = course.columns[name][at[there]]
                self._columns[column_of(name, rank)].extend(values)
                if not _same(spine.columns[name][new][there], values[there]):
                    self._differ(column_of(name, rank))

    def _differ(self, column: str) -> None:
        """A column more to be shown: who has the others has it not."""
        if column not in self._differs:
            self._differs |= {column}
            self._epoch += 1

    def _snapshot(self, spine: Course, others: dict[int, Course]) -> Course:
        shown = {name: self._columns[name].values for name in self._differs}
        mine = {name: values[: self._rows] for name, values in spine.columns.items()}
        courses = (spine, *others.values())
        return replace(
            spine,
            epoch=self._epoch,
            step=spine.step[: self._rows],
            columns={**mine, **shown},
            skips=np.unique(np.concatenate([course.skips for course in courses])),
            present=spine.present | self._differs,
            stepped=frozenset({SCALE, *(column_of(SCALE, rank) for rank in others)}),
            starts=tuple(at for at in spine.starts if at < self._rows),
            clips=any(course.clips for course in courses),
            last_step_ns=max(course.last_step_ns for course in courses),
        )


def _epochs(spine: Course, others: dict[int, Course]) -> tuple[int, ...]:
    return spine.epoch, *(course.epoch for course in others.values())


def _keys(course: Course, start: int = 0) -> NDArray[np.int64]:
    """The steps, made to rise where a restart has taken them back."""
    rows = np.arange(start, len(course))
    return course.step[start:] + np.searchsorted(course.starts, rows, side="right") * _SEGMENT


def _places(keys: NDArray[np.int64], theirs: NDArray[np.int64]) -> tuple[Any, Any]:
    """For each key its row among theirs, and whether it is there at all."""
    at = np.searchsorted(theirs, keys)
    there = at < len(theirs)
    there[there] = theirs[at[there]] == keys[there]
    return at, there


def _reached(spine: Course, others: dict[int, Course], start: int) -> int:
    """The rows of the lowest rank that all have reached, but those long silent; from `start` on."""
    keys, end = _keys(spine, start), len(spine)
    for course in others.values():
        if spine.last_step_ns - course.last_step_ns > _PATIENCE_NS:
            continue
        last = int(_keys(course, len(course) - 1)[0]) if len(course) else -1
        end = min(end, start + int(np.searchsorted(keys, last, side="right")))
    return end


def _same(one: NDArray[np.float32], other: NDArray[np.float32]) -> bool:
    return np.array_equal(one, other, equal_nan=True)
