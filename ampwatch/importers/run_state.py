"""The run as far as its log has been read: current attempt, steps, scale, overflows.

Step numbers are those of the log. A row without a number gets the number after the last row. A
counter that falls begins a new attempt. One overflow that several ranks print is one event: if
lines name their rank, the n-th overflow of any rank is the n-th of the run; if they do not, they
are collected until something else is printed, and equal lines are the ranks of one event if every
value occurs equally often in the burst.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from ampwatch.importers.row_writer import STEP_COLUMNS, Row, RowWriter
from ampwatch.importers.statements import GaveUp, Skip, Stats
from ampwatch.rows import EventKind, Mark

# --- overflows that several ranks print -----------------------------------------------------------

_Key: TypeAlias = "tuple[float | None, float | None]"
_MOST_WAITING = 4096
_REMEMBERED_OVERFLOWS = 4096
_FEW_STRANGERS = 4
# Ranks print an overflow of joined gradients almost at once; a step takes longer.
_MOMENT_NS = 100_000_000


def _scales_of(skip: Skip) -> _Key:
    return (skip.scale, skip.scale_after)


@dataclass(slots=True)
class RankedOverflows:
    """Overflows of which each line names its rank; several ranks print the same one."""

    total: int = 0
    counts: Counter[int] = field(default_factory=Counter)
    recent: deque[_Key] = field(default_factory=lambda: deque(maxlen=_REMEMBERED_OVERFLOWS))

    def is_new(self, skip: Skip) -> bool:
        """Whether no other rank has printed this overflow."""
        assert skip.rank is not None
        scales, behind = _scales_of(skip), self.total - self.counts[skip.rank]
        if 0 < behind <= len(self.recent) and self.recent[-behind] == scales:
            self.counts[skip.rank] += 1
            return False
        is_new = behind <= 0 or self.recent[-1] != scales  # else it did not print some of them
        if is_new:
            self.total += 1
            self.recent.append(scales)
        self.counts[skip.rank] = self.total
        return is_new


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
            self.world = _ranks_that_print(waiting)
        return list(self._events(waiting, self.world or 1))

    def _events(self, waiting: Sequence[Skip], world: int) -> Iterator[Skip]:
        counts: Counter[_Key] = Counter()
        began: dict[_Key, int | None] = {}  # when the event was first printed
        first = _scales_of(waiting[0])
        if self.last == first and self.last_count % world:
            counts[first] = self.last_count  # the remaining ranks of an earlier event
        for skip in waiting:
            key = _scales_of(skip)
            since, until = began.get(key), skip.time_ns
            # Else it was printed too late to be another rank's line about the same one.
            if since is not None and until is not None and until - since > _MOMENT_NS:
                counts[key] = 0
            if counts[key] % world == 0:
                began[key] = skip.time_ns
                yield skip
            counts[key] += 1
        self.last = _scales_of(waiting[-1])
        self.last_count = counts[self.last]


def _ranks_that_print(waiting: Sequence[Skip]) -> int:
    """How many ranks print each overflow: 1, unless every value occurs equally often.

    Lines without a value cannot be compared, so each is one event. A single value that is repeated
    comes from several ranks only if the count is a power of two.
    """
    counts = Counter(map(_scales_of, waiting))
    many = counts[_scales_of(waiting[0])]
    if _scales_of(waiting[0]) == (None, None) or (len(counts) == 1 and many & (many - 1)):
        return 1
    last = _scales_of(waiting[-1])  # may be cut off
    agreed = all(count % many == 0 for key, count in counts.items() if key != last)
    return many if agreed and counts[last] <= many * max(1, len(waiting) // many) else 1


# --- the run --------------------------------------------------------------------------------------

# The same counter value in two lines of one file is the same step. A few lines back it still
# belongs to this attempt, printed late by another rank.
REMEMBERED_STEPS = 64
# Printed by other ranks after one has given up; they cannot go on for many steps.
LATE_LINES, LATE_STEPS = 16, 4
MOST_STEPS = 1 << 42  # the largest step that the store accepts


@dataclass(slots=True)
class Epochs:
    """Turns a step counter that restarts with each epoch into one that goes on."""

    before: int = 0
    epoch: int | None = None  # the last epoch in the log

    def step(self, stats: Stats, batch: int, last: int | None, stride: int) -> int:
        """The run's step of a batch within its epoch; `last` is the step of the previous line."""
        last_batch = None if last is None else last - self.before
        if last_batch is not None and batch <= last_batch:
            self._turn_back(stats, batch, last_batch, stride)
        self.epoch = stats.epoch if stats.epoch is not None else self.epoch
        return self.before + batch

    def _turn_back(self, stats: Stats, batch: int, last: int, stride: int) -> None:
        """Decide whether a counter that fell belongs to a later epoch or was reset."""
        length, passed = stats.per_epoch, 0
        if stats.epoch is not None and self.epoch is not None:
            passed = stats.epoch - self.epoch
        elif length and last + stride > length and (batch < last or batch == length):
            passed = 1
        if passed > 0:
            self.before += length * passed if length else last + 1
        elif passed < 0 or (batch < last and stats.epoch is None):
            self.before = max(0, self.before + passed * length) if length and passed else 0


@dataclass(slots=True)
class Attempt:
    """The state of the attempt that the log is in: last row, counter, scale, skips."""

    open: Row | None = None  # the last row: the next line may add to it
    last_step: int = -1
    step_before: int = -1  # of the row before the last
    counter: int | None = None  # as printed last
    first_counter: int | None = None  # of a bar: earlier steps are not in the log
    recent: deque[int] = field(default_factory=lambda: deque(maxlen=REMEMBERED_STEPS))
    scale: float | None = None  # after the last row
    skips_since: int = 0  # since the last line of statistics
    skips_told: int = 0  # skips of this attempt in the rows
    total_skips: int | None = None
    accepted_since_skip: bool = True
    is_numbered: bool = False
    counts_epochs: bool = False  # nothing finer is printed: an epoch is a step
    is_unnumbered: bool = False  # the open row: a later bar may give its step
    unnumbered: int = 0  # rows before it, one after another, to which no bar gave one
    bar_total: int | None = None
    bar_is_full: bool = False
    has_scaler: bool = False  # a scale other than 1 was printed; bf16 prints 1
    has_fine_losses: bool = False
    last_norm: float | None = None
    named: RankedOverflows = field(default_factory=RankedOverflows)
    burst: OverflowBurst = field(default_factory=OverflowBurst)
    ending: GaveUp | None = None
    lines_since_ending: int = 0
    steps_since_ending: int = 0
    has_ended: bool = False
    credit: int = 0  # skips from a counter whose own lines may follow
    credit_scale: float | None = None  # the scale on the counter's line
    is_empty: bool = True
    started: bool = False


class RunState:
    """The state of a run while its log is read; passes rows to the writer in the log's order."""

    def __init__(self, writer: RowWriter) -> None:
        self.writer = writer
        self.scaler: dict[str, float] = {}
        self.defaults: Mapping[str, float] = {}  # the framework's, once it is known
        self.marks: dict[str, set[Mark]] = {}
        self.first_scale: float | None = None  # before the first step
        self.attempts = 0
        self.is_of_training = False  # by the program's own words, whatever its rows are
        self.epochs = Epochs()
        self.metrics_of_rows: set[str] = set()
        self.now = Attempt()

    def mark(self, column: str, *marks: Mark) -> None:
        """Note in the run's state that the values of a column are not plain readings."""
        self.marks.setdefault(column, set()).update(marks)

    def setting(self, name: str, otherwise: float) -> float:
        """A setting of the scaler as the log printed it, else the framework's default."""
        return self.scaler.get(name, self.defaults.get(name, otherwise))

    def meet(self, step: int) -> None:
        """Note a line's step: if its counter has fallen, a new attempt begins."""
        if self.now.counter is not None and step < self.now.counter:
            self.restart()

    def restart(self) -> None:
        """End the current attempt and begin a new one."""
        self.end()
        self.close_row()
        self.now = Attempt()

    def placed(self, step: int | None, *, is_marked: bool = True) -> int:
        """The step for a new row: the log's number if it is above the last, else the next one."""
        if step is not None and step > self.now.last_step:
            return step
        if is_marked:
            self.mark("step", Mark.PLACED)
        if step is None and self.now.counter is not None:
            return max(self.now.counter, self.now.last_step) + 1
        return self.now.last_step + 1

    def add(self, row: Row) -> None:
        """Add a row to the run, open for later lines; the row before it is then complete."""
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
        """Pass the open row to the writer: no later line adds to it."""
        row, self.now.open = self.now.open, None
        if row is None:
            return
        self.now.unnumbered = self.now.unnumbered + 1 if self.now.is_unnumbered else 0
        if self.now.is_unnumbered:
            self.mark("step", Mark.PLACED)
            self.now.is_unnumbered = False
        step = row["step"]
        extras = [name for name in row if name not in STEP_COLUMNS]
        self.metrics_of_rows.update(extras)
        for name in extras:
            self.writer.add_metric(np.array([step]), name, np.array([row.pop(name)], np.float64))
        self.writer.add(row)

    @property
    def has_no_losses(self) -> bool:
        """Whether the attempt has no row but those of evaluations after an epoch."""
        now = self.now
        return now.is_empty or (now.counts_epochs and not now.has_fine_losses)

    def measured(self, values: Mapping[str, float]) -> None:
        """Add metrics of their own line to the run, at the last row's step."""
        if self.now.started:
            step = np.array([max(0, self.now.last_step)])
            for name, value in values.items():
                self.writer.add_metric(step, name, np.array([value], np.float64))

    def event(self, kind: EventKind, detail: Mapping[str, Any]) -> None:
        """Add an event to the run, at the last row's step."""
        step = None if self.now.last_step < 0 else self.now.last_step
        self.close_row()
        self.start()
        self.writer.add_event(kind, step, detail)

    def start(self) -> None:
        """Write the current attempt's `started` event, once."""
        if not self.now.started:
            self.now.started = True
            self.attempts += 1
            self.writer.add_event(EventKind.STARTED, None, {})

    def give_up(self, statement: GaveUp) -> None:
        """Note that the log says the run ends; every rank may say so."""
        if self.now.ending is None and not self.now.has_ended:
            self.now.ending, self.now.lines_since_ending = statement, 0
            self.now.steps_since_ending = 0

    def go_on(self, step: int | None, lines: int) -> None:
        """Note that the log goes on: after more lines than ranks print late, no end was meant."""
        falls = step is not None and self.now.counter is not None and step <= self.now.counter
        if self.now.ending is not None and not falls:
            self.now.lines_since_ending += lines
            self.now.steps_since_ending += step is not None and step != self.now.counter
            if self.now.lines_since_ending > LATE_LINES or self.now.steps_since_ending > LATE_STEPS:
                self.now.ending = None

    def end(self) -> None:
        """Write the end of the run that the framework announced: a row with the nan, an event."""
        ending, self.now.ending = self.now.ending, None
        if ending is None:
            return
        if self.now.is_empty and not (ending.says_why or self.is_of_training):
            return  # any program ends by exceptions
        self.now.has_ended = True
        column = ending.column
        if column and math.isfinite((self.now.open or {}).get(column) or 0.0):
            step = ending.step if (ending.step or 0) > self.now.last_step else None
            self.add({"step": self.placed(step), column: math.nan})
            self.mark(column, Mark.IMPLIED)
        detail = {"exception": ending.exception, "message": ending.message, "fatal": True}
        self.event(EventKind.EXCEPTION, detail)

    def seen_scale(self, scale: float | None) -> None:
        """Note a scale before its step; the first one is the run's initial scale."""
        self.first_scale = scale if self.first_scale is None else self.first_scale
