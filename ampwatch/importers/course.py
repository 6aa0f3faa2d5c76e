"""The rows of a run as its log is read: where a step stands, and where an attempt begins.

The step numbers are the log's own. A row that has none stands right after what came before it; a
counter that falls begins a new attempt.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ampwatch.importers.epochs import Epochs
from ampwatch.importers.ranks import Burst, NamedRanks
from ampwatch.importers.rowbook import STEP_COLUMNS, Row, RowBook
from ampwatch.importers.sayings import GaveUp
from ampwatch.rows import EventKind, Mark

# A counter that stands in two lines of one file at the same value is the same step; a few lines
# back is still the same attempt, printed late by another rank.
REMEMBERED_STEPS = 64
LATE_LINES = 16  # that ranks print after one of them has given up
MOST_STEPS = 1 << 42  # as many as the store tells apart


@dataclass(slots=True)
class Attempt:
    """What is known of the attempt that the log is at."""

    open: Row | None = None  # the last row: the next line may say more of its step
    last_step: int = -1
    step_before: int = -1  # the last row but one
    counter: int | None = None  # as last printed
    first_counter: int | None = None  # of a bar: what came before it was not seen
    recent: deque[int] = field(default_factory=lambda: deque(maxlen=REMEMBERED_STEPS))
    scale: float | None = None  # after the last row
    skips_since: int = 0  # since the last line of statistics
    skips_told: int = 0  # of this attempt, as far as rows show
    total_skips: int | None = None
    accepted_since_skip: bool = True
    is_numbered: bool = False
    is_unnumbered: bool = False  # the open row: a bar that follows may tell its step
    bar_total: int | None = None
    bar_is_full: bool = False
    has_scaler: bool = False  # a scale other than 1, which bf16 prints, was told
    has_fine_losses: bool = False
    last_norm: float | None = None
    named: NamedRanks = field(default_factory=NamedRanks)
    burst: Burst = field(default_factory=Burst)
    ending: GaveUp | None = None
    lines_since_ending: int = 0
    has_ended: bool = False
    credit: int = 0  # skips that a count has just told: their own lines may come late
    credit_scale: float | None = None  # as that line told it
    is_empty: bool = True
    started: bool = False


class Course:
    """Puts rows into the book in the log's order."""

    def __init__(self, book: RowBook) -> None:
        self.book = book
        self.scaler: dict[str, float] = {}
        self.defaults: Mapping[str, float] = {}  # of the framework, once it is known
        self.marks: dict[str, set[Mark]] = {}
        self.first_scale: float | None = None  # before its step
        self.attempts = 0
        self.epochs = Epochs()
        self.now = Attempt()

    def mark(self, column: str, *marks: Mark) -> None:
        """Say of a column that its values are not plain readings."""
        self.marks.setdefault(column, set()).update(marks)

    def setting(self, name: str, otherwise: float) -> float:
        """What the log says of the scaler, else the framework's default."""
        return self.scaler.get(name, self.defaults.get(name, otherwise))

    def meet(self, step: int) -> None:
        """A numbered line: where the counter has fallen, a new attempt begins before it."""
        if self.now.counter is not None and step < self.now.counter:
            self.restart()

    def restart(self) -> None:
        """A new attempt begins here."""
        self.end()
        self.close_row()
        self.now = Attempt()

    def placed(self, step: int | None, *, is_marked: bool = True) -> int:
        """The row's step: the log's own where it comes after what is there."""
        if step is not None and step > self.now.last_step:
            return step
        if is_marked:
            self.mark("step", Mark.PLACED)
        if step is None and self.now.counter is not None:
            return max(self.now.counter, self.now.last_step) + 1
        return self.now.last_step + 1

    def add(self, row: Row) -> None:
        """A row behind the last one, which is thereby complete."""
        self.close_row()
        self.start()
        self.now.is_empty = False
        self.seen_scale(row.get("scale"))
        self.now.open, self.now.step_before = row, self.now.last_step
        self.now.last_step = row["step"]
        after = row.get("scale_after")
        if after is None:
            after = row.get("scale")
        self.now.scale = self.now.scale if after is None else after
        self.now.has_scaler |= after is not None and after != 1.0

    def close_row(self) -> None:
        """The last row is complete: nothing more will be said of its step."""
        row, self.now.open = self.now.open, None
        if row is None:
            return
        if self.now.is_unnumbered:
            self.mark("step", Mark.PLACED)
            self.now.is_unnumbered = False
        step = row["step"]
        extras = [name for name in row if name not in STEP_COLUMNS]
        for name in extras:
            self.book.add_extra(step, name, row.pop(name))
        self.book.add(row)

    def event(self, kind: EventKind, detail: Mapping[str, Any]) -> None:
        """An event behind the last row, at its step."""
        step = None if self.now.last_step < 0 else self.now.last_step
        self.close_row()
        self.start()
        self.book.add_event(kind, step, detail)

    def start(self) -> None:
        """The attempt has begun, if it had not."""
        if not self.now.started:
            self.now.started = True
            self.attempts += 1
            self.book.add_event(EventKind.STARTED, None, {})

    def give_up(self, saying: GaveUp) -> None:
        """The framework says that it ends the run; each rank may say so."""
        if self.now.ending is None and not self.now.has_ended:
            self.now.ending, self.now.lines_since_ending = saying, 0

    def go_on(self, step: int | None, lines: int) -> None:
        """The log tells of more steps: beyond what other ranks print late, it was no end."""
        falls = step is not None and self.now.counter is not None and step <= self.now.counter
        if self.now.ending is not None and not falls:
            self.now.lines_since_ending += lines
            if self.now.lines_since_ending > LATE_LINES:
                self.now.ending = None

    def end(self) -> None:
        """What was said to be the end was it: a row for what is no number, and the event."""
        ending, self.now.ending = self.now.ending, None
        if ending is None:
            return
        self.now.has_ended = True
        column = ending.column
        if column and math.isfinite((self.now.open or {}).get(column) or 0.0):
            step = ending.step if (ending.step or 0) > self.now.last_step else None
            self.add({"step": self.placed(step), column: math.nan})
            self.mark(column, Mark.IMPLIED)
        detail = {"exception": ending.exception, "message": ending.message, "fatal": True}
        self.event(EventKind.EXCEPTION, detail)

    def seen_scale(self, scale: float | None) -> None:
        """A scale before its step; the first is the one the run began with."""
        if self.first_scale is None and scale is not None:
            self.first_scale = scale
