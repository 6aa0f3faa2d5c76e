"""Builds the rows of a run from the statements of its log.

Step numbers are those of the log. An event without one gets the number after the last row; a
counter that lags (because it does not count skipped steps) is moved on; both are marked. A counter
that falls begins a new attempt. What a line implies (a counter of skips, a scale that fell by whole
halvings or rose silently) becomes rows that are marked as implied.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ampwatch.importers.row_writer import STEP_COLUMNS, LoggedLayers, RowWriter
from ampwatch.importers.run_state import MOST_STEPS, RunState
from ampwatch.importers.statement_rows import (
    amend,
    put_skip,
    show_accepted,
    take_progress,
    take_scale,
    take_stats,
)
from ampwatch.importers.statements import (
    Amend,
    Fatal,
    GaveUp,
    LayerStats,
    Metrics,
    More,
    Place,
    Progress,
    Scale,
    Setup,
    Skip,
    Statement,
    Stats,
)
from ampwatch.importers.table_rows import SHORT, TableRows, add_plain_rows, plan_holds, plan_of
from ampwatch.rows import EventKind, Mark

# Rows of a table that are planned together, and so few that adding them singly is cheaper.
_LEAST_PLANNED, _MOST_PLANNED, _WORTH_A_PLAN = 1024, 1 << 16, 32


class RunBuilder:
    """Takes a log's statements in order and writes the run's rows; `finish` ends it."""

    def __init__(self, writer: RowWriter) -> None:
        self.state = RunState(writer)
        self._layers = LoggedLayers(writer)
        self.config: dict[str, Any] = {}
        self._place: Place | None = None  # later values may belong to it
        self._evaluation: Metrics | None = None  # the last one of an epoch without losses
        self._early: More | None = None  # of a step whose own line has not come yet
        self.started_ns: int | None = None  # the time of the first line that counts

    def take(self, statement: Statement) -> None:
        """Take one statement of the log and add the rows that follow from it."""
        if not _is_sane(statement):
            return
        if isinstance(statement, LayerStats):
            self._take_layer(statement)
            return
        if isinstance(statement, Place):
            self._place = statement
            return
        placed = self._at_its_place(statement) if isinstance(statement, More | Stats) else statement
        if placed is None:
            return
        statement = placed
        if isinstance(statement, Stats | Skip | Scale):
            self.state.go_on(statement.step, 1)
        if isinstance(statement, Skip):
            self._take_skip(statement)
            return
        if isinstance(statement, Amend) and self.state.now.burst.waiting:
            self._amend_waiting(statement)
            return
        self.settle()
        self._take_settled(statement)

    def _take_layer(self, statement: LayerStats) -> None:
        """Take a statement about a layer; its step gets a row."""
        if statement.step != self._layers.step:
            self._layers.settle()
            attempt = self.state.now
            self.state.meet(statement.step)
            if self.state.now is not attempt:
                self._layers.tell_again()
            time = {} if statement.time_ns is None else {"time_ns": statement.time_ns}
            self._take_settled(Stats(step=statement.step, values=time))
        self._layers.take(statement)

    def _at_its_place(self, statement: More | Stats) -> Stats | None:
        """The statistics with the step or epoch, and the values, that an earlier line printed."""
        if isinstance(statement, More):
            return self._placed(statement)
        place, early = self._place, self._early
        if place is not None and statement.step is not None and statement.epoch is None:
            statement = dataclasses.replace(statement, epoch=place.epoch)
        if statement.step is not None or statement.epoch is not None:  # what follows belongs to it
            self._place = Place(statement.step, statement.epoch, statement.per_epoch)
        if early is not None and _is_meant(early, statement):
            statement = dataclasses.replace(statement, values={**early.values, **statement.values})
        else:
            self._take_early(statement.step)
        self._early = None
        return statement

    def _placed(self, more: More) -> Stats | None:
        """Values alone as statistics; those of a step that has no row yet wait for its line."""
        place, early = self._place, self._early
        if more.step is not None and more.step == self.state.now.counter:
            return Stats(more.step, more.values)
        if more.step is not None or more.epoch is not None:
            is_same = early is not None and (early.step, early.epoch) == (more.step, more.epoch)
            if not is_same:
                self._take_early(more.step)
            values = early.values if early is not None and is_same else {}
            self._early = dataclasses.replace(more, values={**values, **more.values})
            self._place = Place(more.step, more.epoch)
            return None
        if place is not None and place.is_evaluation:
            self.state.measured({f"val_{name}": value for name, value in more.values.items()})
            return None
        if place is None:
            is_first = self.state.now.is_empty and "loss" in more.values
            if self.state.now.is_empty and "lr" in more.values and early is None:
                self._early = More({"lr": more.values["lr"]})
            return Stats(values=more.values) if is_first else None
        if early is not None and (place.step, place.epoch) == (early.step, early.epoch):
            self._early = dataclasses.replace(early, values={**early.values, **more.values})
            if "loss" not in more.values:
                return None
            more, self._early = self._early, None
        return Stats(place.step, more.values, place.epoch, place.per_epoch)

    def _take_early(self, step: int | None) -> None:
        """Take the values of a step that never had a line of its own: a later step has begun."""
        early, counter = self._early, self.state.now.counter
        if early is None or early.step is None or step is None or not step > early.step:
            return
        if early.values.keys() & STEP_COLUMNS and (counter is None or early.step > counter):
            self._take_settled(Stats(early.step, early.values))

    def _take_settled(self, statement: Statement) -> None:
        if isinstance(statement, Stats):
            take_stats(self.state, statement)
        elif isinstance(statement, Amend):
            amend(self.state, statement)
        elif isinstance(statement, Scale):
            take_scale(self.state, statement)
        elif isinstance(statement, Progress):
            take_progress(self.state, statement)
        elif isinstance(statement, Setup):
            self._take_setup(statement)
        elif isinstance(statement, Metrics):
            self._take_metrics(statement)
        elif isinstance(statement, GaveUp | Fatal):
            self._take_end(statement)

    def _take_metrics(self, metrics: Metrics) -> None:
        """Add metrics to the run; a log of nothing but evaluations has a row for each epoch."""
        if metrics.epoch is not None and self.state.has_no_losses:
            held, self._evaluation = self._evaluation, metrics
            is_first = held is None or held.epoch == metrics.epoch
            if is_first and not self.state.now.started:
                return
            if held is not None and not self.state.now.started:
                take_stats(self.state, Stats(epoch=held.epoch))
                self.state.measured(held.values)
            take_stats(self.state, Stats(epoch=metrics.epoch))
        self.state.measured(metrics.values)

    def _take_end(self, statement: GaveUp | Fatal) -> None:
        if isinstance(statement, GaveUp):
            self.state.give_up(statement)
            return
        if not self.state.now.is_empty:
            show_accepted(self.state, None, None)  # the steps before the end
        detail = {"exception": statement.exception, "message": statement.message, "fatal": True}
        self.state.event(EventKind.EXCEPTION, detail)

    def tell_time(self, at_ns: int | None) -> None:
        """Note when the current line was printed; the first time is the start of the run."""
        if at_ns is not None and self.started_ns is None:
            self.started_ns = at_ns
            self.state.mark("time_ns", Mark.ASSUMED)  # its time zone

    @property
    def is_waiting(self) -> bool:
        """Whether overflows wait until it is known which lines are other ranks' duplicates."""
        return bool(self.state.now.burst.waiting)

    def passed(self, lines: int) -> None:
        """Note that the log has so many lines without a statement."""
        if self.state.now.burst.passed(lines):
            self.settle()

    def settle(self) -> None:
        """Add the waiting overflows to the run, each once."""
        for skip in self.state.now.burst.settle():
            put_skip(self.state, skip)

    def finish(self) -> None:
        """Write the run's last rows: the log has ended."""
        early, self._early = self._early, None
        if early is not None and early.step is not None and self.state.now.started:
            self._take_settled(Stats(early.step, early.values))
        self.settle()
        self._layers.settle()
        if not self.state.now.is_empty:
            show_accepted(self.state, None, None)
        self.state.end()
        self.state.close_row()
        self.state.writer.flush()

    def catch_up(self) -> None:
        """Write the rows known so far, except the last one, to which the next line may add."""
        self.settle()
        self.state.end()
        self.state.writer.flush()

    def take_table(self, rows: TableRows) -> None:
        """Add the rows of a table to the run: plain stretches at once, the others one by one."""
        self.settle()
        if rows.metrics:
            rows = self._without_metrics(rows)
        at, width = 0, _LEAST_PLANNED
        if self._early is not None:  # values that the first row adds to, or ends
            at = self._take_singly(rows, 0, 1)
        if rows.is_numbered[-1:].any():  # their own steps count, not an epoch on a line before
            self._place = Place(int(rows.step[-1]))
        if len(rows) < SHORT:
            at = self._take_singly(rows, at, len(rows))
        while at < len(rows):
            plan = plan_of(self.state, rows, slice(at, at + width))
            begin, end = at, min(at + width, len(rows))
            while at < end and plan_holds(self.state, rows, plan, at):
                after = add_plain_rows(self.state, rows, plan, at)
                if after > at:
                    self._place = Place(int(rows.step[after - 1]))
                at = self._take_singly(rows, after, min(after + 1, end))
            if at == end:
                width = min(2 * width, _MOST_PLANNED)
                continue
            width = _LEAST_PLANNED
            at = self._take_singly(rows, at, min(end, begin + _WORTH_A_PLAN))  # the cost of a plan

    def _take_singly(self, rows: TableRows, begin: int, end: int) -> int:
        """Take some rows of a table one by one; return the index of the next."""
        for at in range(begin, end):
            self.take(rows.stats(at))
        return max(begin, end)

    def _without_metrics(self, rows: TableRows) -> TableRows:
        """Add the metrics of a table's rows to the run; the rows that tell of steps are left."""
        of_steps = rows.of_steps
        if of_steps.any():
            self.state.start()
        before = np.maximum(np.cumsum(of_steps) - 1, 0)
        placed = self.state.now.last_step + 1 + before
        step = np.where(rows.is_numbered, rows.step, placed)
        for name, cells in rows.metrics.items():
            self.state.writer.add_metric(step[cells.present], name, cells.values[cells.present])
        of_runs = rows if of_steps.all() else rows.at(np.flatnonzero(of_steps))
        return dataclasses.replace(of_runs, metrics={})

    # --- what is known so far --------------------------------------------------------------------

    @property
    def layers_told(self) -> int:
        """How many layers the run has so far."""
        return self._layers.count

    # --- overflows -------------------------------------------------------------------------------

    def _take_skip(self, skip: Skip) -> None:
        if skip.rank is not None:
            self.settle()
            if self.state.now.named.is_new(skip):
                put_skip(self.state, skip)
        elif skip.step is not None:
            self.settle()
            put_skip(self.state, skip)
        else:
            for settled in self.state.now.burst.add(skip):
                put_skip(self.state, settled)

    def _amend_waiting(self, more: Amend) -> None:
        """Add what a later line says to the last waiting overflow."""
        waiting = self.state.now.burst.waiting
        last = waiting[-1]
        waiting[-1] = dataclasses.replace(
            last,
            scale=last.scale if more.scale is None else more.scale,
            scale_after=last.scale_after if more.scale_after is None else more.scale_after,
        )
        if more.layer:
            self.settle()
            amend(self.state, more)

    def _take_setup(self, setup: Setup) -> None:
        repeats = all(self.config.get(name) is not None for name in setup.config)
        if setup.begins and not self.state.now.is_empty and repeats:
            self.state.restart()
        self.config.update(setup.config)
        self.state.scaler.update(setup.scaler)


def _is_meant(early: More, stats: Stats) -> bool:
    """Whether values that came before their step or epoch are of these statistics."""
    if early.step is None and early.epoch is None:  # a learning rate before the first step
        return True
    name = "epoch" if early.step is None else "step"
    return bool(getattr(early, name) == getattr(stats, name))


def _is_sane(statement: Statement) -> bool:
    """Whether a statement's step is possible: a damaged line may have any number of digits."""
    step = getattr(statement, "step", None)
    return step is None or -MOST_STEPS < step < MOST_STEPS
