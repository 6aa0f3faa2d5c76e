"""What the lines say, one after another, as the rows of a run.

The step numbers are the log's own. An event that has none stands right after what came before it; a
counter that lags (it does not count skipped steps) is moved on, and both are marked. A counter that
falls begins a new attempt. What a line implies (a counter of skips, a scale that fell by whole
halvings, a scale that rose though nobody printed it) becomes rows that are marked as implied.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from ampwatch.importers.course import MOST_STEPS, Course
from ampwatch.importers.events import amend, put_skip, take_progress, take_scale
from ampwatch.importers.implied import show_accepted
from ampwatch.importers.rowbook import RowBook
from ampwatch.importers.sayings import (
    Amend,
    Fatal,
    GaveUp,
    More,
    Place,
    Progress,
    Saying,
    Scale,
    Setup,
    Skip,
    Stats,
)
from ampwatch.importers.statistics import take_many, take_stats
from ampwatch.importers.stretches import agrees, planned, take_rows
from ampwatch.importers.table_rows import TableRows
from ampwatch.rows import EventKind, Mark

# Rows of a table that are looked at together, and so few that they are taken singly instead.
_LEAST_PLANNED, _MOST_PLANNED, _WORTH_A_PLAN = 1024, 1 << 16, 32


class Timeline:
    """Takes sayings in the log's order, gives rows; `finish` when the log has ended."""

    def __init__(self, book: RowBook) -> None:
        self._course = Course(book)
        self.config: dict[str, Any] = {}
        self._place: Place | None = None  # what follows may be of it
        self.started_ns: int | None = None  # as the first line that counts tells

    def take(self, saying: Saying) -> None:
        """Take in what a line says."""
        if not _is_sane(saying):
            return
        if isinstance(saying, Place):
            self._place = saying
            return
        if isinstance(saying, More | Stats):
            placed = self._at_its_place(saying)
            if placed is None:
                return
            saying = placed
        if isinstance(saying, Stats | Skip | Scale):
            self._course.go_on(saying.step, 1)
        if isinstance(saying, Skip):
            self._take_skip(saying)
            return
        if isinstance(saying, Amend) and self._course.now.burst.waiting:
            self._amend_waiting(saying)
            return
        self.settle()
        self._take_settled(saying)

    def _at_its_place(self, saying: More | Stats) -> Stats | None:
        """The statistics with the place that stood before them."""
        place = self._place
        if isinstance(saying, More):
            if place is None:
                return None
            return Stats(place.step, saying.values, place.epoch, place.per_epoch)
        if place is not None and saying.step is not None and saying.epoch is None:
            return dataclasses.replace(saying, epoch=place.epoch)
        return saying

    def _take_settled(self, saying: Saying) -> None:
        if isinstance(saying, Stats):
            take_stats(self._course, saying)
        elif isinstance(saying, Amend):
            amend(self._course, saying)
        elif isinstance(saying, Scale):
            take_scale(self._course, saying)
        elif isinstance(saying, Progress):
            take_progress(self._course, saying)
        elif isinstance(saying, Setup):
            self._take_setup(saying)
        elif isinstance(saying, GaveUp):
            self._course.give_up(saying)
        elif isinstance(saying, Fatal):
            if not self._course.now.is_empty:
                show_accepted(self._course, None, None)  # what came before the end
            detail = {"exception": saying.exception, "message": saying.message, "fatal": True}
            self._course.event(EventKind.EXCEPTION, detail)

    def tell_time(self, at_ns: int | None) -> None:
        """When the line that speaks was printed."""
        if at_ns is not None and self.started_ns is None:
            self.started_ns = at_ns
            self._course.mark("time_ns", Mark.ASSUMED)  # its zone

    @property
    def is_waiting(self) -> bool:
        """Whether overflows wait for other ranks' lines."""
        return bool(self._course.now.burst.waiting)

    def passed(self, lines: int) -> None:
        """So many lines stood here that say nothing."""
        if self._course.now.burst.passed(lines):
            self.settle()

    def settle(self) -> None:
        """Whatever waited for other ranks' lines waits no longer."""
        for skip in self._course.now.burst.settle():
            put_skip(self._course, skip)

    def finish(self) -> None:
        """The log has ended."""
        self.settle()
        if not self._course.now.is_empty:
            show_accepted(self._course, None, None)
        self._course.end()
        self._course.close_row()
        self._course.book.flush()

    def catch_up(self) -> None:
        """Write what is known so far, but the last row: the next line may say more of its step."""
        self.settle()
        self._course.end()
        self._course.book.flush()

    def take_many(self, step: np.ndarray, columns: Mapping[str, np.ndarray]) -> int:
        """Plain statistics in one go; how many of them were: the rest is to be taken singly."""
        self.settle()
        self._course.go_on(int(step[0]), len(step))
        return take_many(self._course, step, columns)

    def take_table(self, rows: TableRows) -> None:
        """Rows of a table: stretches that are plain in one go, the others singly."""
        self.settle()
        at, width = 0, _LEAST_PLANNED
        while at < len(rows):
            plan = planned(self._course, rows, slice(at, at + width))
            begin, end = at, min(at + width, len(rows))
            while at < end and agrees(self._course, rows, plan, at):
                at = take_rows(self._course, rows, plan, at)
                if at < end:
                    self.take(rows.stats(at))
                    at += 1
            if at == end:
                width = min(2 * width, _MOST_PLANNED)
                continue
            width = _LEAST_PLANNED
            for _ in range(min(end, begin + _WORTH_A_PLAN) - at):  # what planning costs
                self.take(rows.stats(at))
                at += 1

    # --- what is known so far --------------------------------------------------------------------

    @property
    def attempts(self) -> int:
        """How many attempts the log tells of."""
        return self._course.attempts

    @property
    def marks(self) -> Mapping[str, set[Mark]]:
        """How the values of a column came about, where they are not plain readings."""
        return self._course.marks

    @property
    def scaler(self) -> Mapping[str, float]:
        """What the log says of the scaler."""
        return self._course.scaler

    @property
    def first_scale(self) -> float | None:
        """The scale before the first step that tells of one."""
        return self._course.first_scale

    @property
    def last_counter(self) -> int | None:
        """The counter as last printed."""
        return self._course.now.counter

    @property
    def total_skips(self) -> int | None:
        """The counter of all skips as last printed."""
        return self._course.now.total_skips

    def expect(self, defaults: Mapping[str, float]) -> None:
        """Read the scale against these defaults of the framework."""
        self._course.defaults = defaults

    # --- overflows -------------------------------------------------------------------------------

    def _take_skip(self, skip: Skip) -> None:
        if skip.rank is not None:
            self.settle()
            if self._course.now.named.is_new(skip):
                put_skip(self._course, skip)
        elif skip.step is not None:
            self.settle()
            put_skip(self._course, skip)
        else:
            for settled in self._course.now.burst.add(skip):
                put_skip(self._course, settled)

    def _amend_waiting(self, more: Amend) -> None:
        """A following line completes the overflow that waits; the same of another rank does not."""
        waiting = self._course.now.burst.waiting
        last = waiting[-1]
        waiting[-1] = dataclasses.replace(
            last,
            scale=last.scale if more.scale is None else more.scale,
            scale_after=last.scale_after if more.scale_after is None else more.scale_after,
        )
        if more.layer:
            self.settle()
            amend(self._course, more)

    def _take_setup(self, setup: Setup) -> None:
        if setup.begins and not self._course.now.is_empty and self._starts_over(setup):
            self._course.restart()
        self.config.update(setup.config)
        self._course.scaler.update(setup.scaler)

    def _starts_over(self, setup: Setup) -> bool:
        return all(self.config.get(name) is not None for name in setup.config)


def _is_sane(saying: Saying) -> bool:
    """Whether its step can be one: a damaged line may have any number of digits."""
    step = getattr(saying, "step", None)
    return step is None or -MOST_STEPS < step < MOST_STEPS
