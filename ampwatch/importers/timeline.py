"""What the lines say, one after another, as the rows of a run.

The step numbers are the log's own. An event that has none stands right after what came before it; a
counter that lags (it does not count skipped steps) is moved on, and both are marked. A counter that
falls begins a new attempt. What a line implies (a counter of skips, a scale that fell by whole
halvings, a scale that rose though nobody printed it) becomes rows that are marked as implied.
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ampwatch.importers.ranks import Burst, NamedRanks
from ampwatch.importers.rowbook import STEP_COLUMNS, Row, RowBook
from ampwatch.importers.sayings import (
    Amend,
    Fatal,
    Progress,
    Saying,
    Scale,
    Setup,
    Skip,
    Stats,
)
from ampwatch.rows import EventKind, Mark

# A counter that stands in two lines of one file at the same value is the same step; a few lines
# back is still the same attempt, printed late by another rank.
_REMEMBERED_STEPS = 64
# What a damaged counter may ask for at most.
_MOST_IMPLIED = 100_000
# A first line of a step up to here is of a run that began with it.
_FRESH_STEPS = 1000
# Scales differ by halvings; one that differs by less is the same, printed with fewer digits.
_SAME_SCALE = 0.05
_MOST_STEPS = 1 << 42
_MOST_OCTAVES = 1100  # between the largest and the smallest float


class Timeline:
    """Takes sayings in the log's order, gives rows; `finish` when the log has ended."""

    def __init__(self, book: RowBook) -> None:
        self.book = book
        self.config: dict[str, Any] = {}
        self.scaler: dict[str, float] = {}
        self.defaults: Mapping[str, float] = {}  # of the framework, once it is known
        self.marks: dict[str, set[Mark]] = {}
        self.first_scale: float | None = None  # before its step
        self.attempts = 0
        self._begin()

    def _begin(self) -> None:
        """A new attempt."""
        self._open: Row | None = None  # the last row: the next line may say more of its step
        self._last_step = -1
        self._counter: int | None = None  # as last printed
        self._recent: deque[int] = deque(maxlen=_REMEMBERED_STEPS)
        self._scale: float | None = None  # after the last row
        self._skips_since = 0  # since the last line of statistics
        self._skips_told = 0  # of this attempt, as far as rows show
        self._total_skips: int | None = None
        self._accepted_since_skip = True
        self._is_numbered = False
        self._is_unnumbered = False  # the open row: a bar that follows may tell its step
        self._bar_total: int | None = None
        self._bar_is_full = False
        self._has_scaler = False  # a scale other than 1, which bf16 prints, was told
        self._has_fine_losses = False
        self._last_norm: float | None = None
        self._epoch: tuple[int, int] | None = None  # the last epoch, and its offset
        self._named = NamedRanks()
        self._burst = Burst()
        self._is_empty = True
        self._started = False

    # --- taking in -------------------------------------------------------------------------------

    def take(self, saying: Saying) -> None:
        """Take in what a line says."""
        if not _is_sane(saying):
            return
        if isinstance(saying, Skip):
            self._take_skip(saying)
            return
        if isinstance(saying, Amend) and self._burst.waiting:
            self._amend_waiting(saying)
            return
        self.settle()
        if isinstance(saying, Stats):
            self._take_stats(saying)
        elif isinstance(saying, Amend):
            self._amend(saying)
        elif isinstance(saying, Scale):
            self._take_scale(saying)
        elif isinstance(saying, Progress):
            self._take_progress(saying)
        elif isinstance(saying, Setup):
            self._take_setup(saying)
        elif isinstance(saying, Fatal):
            detail = {"exception": saying.exception, "message": saying.message, "fatal": True}
            self._event(EventKind.EXCEPTION, detail)

    @property
    def is_waiting(self) -> bool:
        """Whether overflows wait for other ranks' lines."""
        return bool(self._burst.waiting)

    def passed(self, lines: int) -> None:
        """So many lines stood here that say nothing."""
        if self._burst.passed(lines):
            self.settle()

    def settle(self) -> None:
        """Whatever waited for other ranks' lines waits no longer."""
        for skip in self._burst.settle():
            self._put_skip(skip)

    def finish(self) -> None:
        """The log has ended."""
        self.settle()
        if not self._is_empty:
            self._show_accepted(None, None)
        self._close_row()
        self.book.flush()

    def catch_up(self) -> None:
        """Write what is known so far, but the last row: the next line may say more of its step."""
        self.settle()
        self.book.flush()

    def mark(self, column: str, *marks: Mark) -> None:
        """Say of a column that its values are not plain readings."""
        self.marks.setdefault(column, set()).update(marks)

    @property
    def last_counter(self) -> int | None:
        """The counter as last printed."""
        return self._counter

    @property
    def total_skips(self) -> int | None:
        """The counter of all skips as last printed."""
        return self._total_skips

    # --- overflows -------------------------------------------------------------------------------

    def _take_skip(self, skip: Skip) -> None:
        if skip.rank is not None:
            self.settle()
            if self._named.is_new(skip):
                self._put_skip(skip)
        elif skip.step is not None:
            self.settle()
            self._put_skip(skip)
        else:
            for settled in self._burst.add(skip):
                self._put_skip(settled)

    def _amend_waiting(self, more: Amend) -> None:
        """A following line completes the overflow that waits; the same of another rank does not."""
        last = self._burst.waiting[-1]
        self._burst.waiting[-1] = dataclasses.replace(
            last,
            scale=last.scale if more.scale is None else more.scale,
            scale_after=last.scale_after if more.scale_after is None else more.scale_after,
        )
        if more.layer:
            self.settle()
            self._amend(more)

    def _put_skip(self, skip: Skip) -> None:
        step = skip.step
        if step is not None:
            if self._open is not None and self._open["step"] == step and self._open.get("skipped"):
                return  # another rank's line
            self._meet(step)
        before = skip.scale if skip.scale is not None else self._before(skip.scale_after)
        self._show_growth(before)
        self._show_accepted(step, before)
        scale = self._grown(before) if skip.scale is None else skip.scale
        row: Row = {"step": self._placed(step), "scale": scale, "scale_after": skip.scale_after}
        self._add({**row, "skipped": True, "found_inf": True})
        self._skips_since += 1
        self._skips_told += 1
        self._accepted_since_skip = False

    def _before(self, after: float | None) -> float | None:
        """The scale that an overflow has brought there; at its floor it stays."""
        if after is None or after <= self._setting("min_scale", 0.0):
            return after
        return after / self._setting("backoff_factor", 0.5)

    def _show_growth(self, before: float | None) -> None:
        """An accepted row where the scale rose between two overflows and nobody printed it."""
        if before is None or self._scale is None or self._accepted_since_skip:
            return
        if self._is_numbered:  # the counter tells how many steps lie between
            return
        octaves = _octaves(self._scale, before)
        if octaves <= 0:
            return
        window = int(self._setting("growth_interval", 1))
        step = self._last_step + max(1, min(octaves, _MOST_OCTAVES) * window)
        self.mark("scale", Mark.IMPLIED)
        self.mark("step", Mark.PLACED)
        self._add({"step": step, "scale_after": before, "skipped": False})
        self._accepted_since_skip = True

    def _grown(self, before: float | None) -> float | None:
        """The scale before an overflow, where it had grown since the line before it."""
        if before is None or self._scale is None or _octaves(self._scale, before) <= 0:
            return None
        self.mark("scale", Mark.IMPLIED)
        return before

    def _show_accepted(self, step: int | None, before: float | None) -> None:
        """An accepted row where the counter went on without an overflow being printed."""
        now = self._counter if step is None else step - 1
        if now is None or now <= max(self._last_step, 0):
            return
        self.mark("skipped", Mark.IMPLIED)
        self._add({"step": now, "scale_after": before, "skipped": False})
        self._accepted_since_skip = True

    def _amend(self, more: Amend) -> None:
        row = self._open
        if row is None or not row.get("skipped"):
            return
        if more.scale is not None and row.get("scale") is None:
            row["scale"] = more.scale
            self._seen_scale(more.scale)
        if more.scale_after is not None and row.get("scale_after") is None:
            row["scale_after"] = self._scale = more.scale_after
        if more.layer:
            self._event(EventKind.OVERFLOW, {"direction": "backward", "layer": more.layer})

    # --- the scale and settings ------------------------------------------------------------------

    def _take_scale(self, told: Scale) -> None:
        if told.step is not None:
            self._meet(told.step)
        same = self._open is not None and told.step in (None, self._open["step"])
        if same and self._scale == told.scale_after:
            return
        drops = 0 if self._scale is None else _octaves(told.scale_after, self._scale)
        if drops > self._skips_since:
            missing = drops - self._skips_since
            path = _path(self._scale, told.scale_after, missing)
            self._imply(missing, told.step, path, told.scale_after)
        step = self._placed(told.step)
        row = {"step": step, "scale_after": told.scale_after}
        self._add(row)
        self._skips_since = 0
        self._accepted_since_skip = True

    def _take_progress(self, bar: Progress) -> None:
        """A bar's step; bars of other loops (an evaluation) count only when this one is full."""
        if bar.total != self._bar_total and self._bar_total is not None and not self._bar_is_full:
            return
        if bar.total == self._bar_total and self._counter is not None:
            if bar.step < self._counter - 1:
                self._restart()
        elif bar.total != self._bar_total:
            self._counter = None if self._is_empty else self._counter
        self._bar_total, self._bar_is_full = bar.total, bar.step == bar.total
        if self._is_unnumbered and self._open is not None and bar.step >= self._open["step"]:
            self._open["step"] = self._last_step = bar.step  # the bar is drawn anew below a line
            self._is_unnumbered = False
        if self._counter is None or bar.step > self._counter:
            self._counter = bar.step
            self._is_numbered = True

    def _take_setup(self, setup: Setup) -> None:
        if setup.begins and not self._is_empty and self._starts_over(setup):
            self._restart()
        self.config.update(setup.config)
        self.scaler.update(setup.scaler)

    def _starts_over(self, setup: Setup) -> bool:
        return all(self.config.get(name) is not None for name in setup.config)

    # --- statistics ------------------------------------------------------------------------------

    def _take_stats(self, stats: Stats) -> None:
        values = self._usable(stats)
        step = self._step_of(stats)
        if step is not None and self._is_repeat(step, values):
            self._merge(values)
            return
        if step is not None:
            self._meet(step)
        since = self._since(step)
        self._imply_skips(stats, step, values, since)
        row: Row = {"step": step, **values}
        if stats.is_skipped is not None:
            row["skipped"] = row["found_inf"] = stats.is_skipped
        merged = self._closes_open(step, row)
        if not merged:
            row["step"] = self._placed(step, is_marked=step is not None)
            self._add(row)
            self._is_unnumbered = step is None
        if step is not None:
            self._counter, self._is_numbered = step, True
            self._recent.append(step)
        self._after_stats(stats, row)

    def _since(self, step: int | None) -> int:
        """The step that the line before told of; a first line tells of all from the beginning."""
        if self._counter is not None:
            return self._counter
        return 0 if step is None else min(0, step - 1)

    def _usable(self, stats: Stats) -> dict[str, float]:
        """The values without what a summary or a rounded scale would falsify."""
        values = dict(stats.values)
        if _is_same(values.get("scale_after"), self._scale):
            values["scale_after"] = self._scale or 0.0
        if stats.is_summary and self._has_fine_losses:
            for name in ("loss", "grad_norm", "lr"):
                values.pop(name, None)
        if stats.is_summary:
            self.mark("loss", Mark.AVERAGED)
        return values

    def _step_of(self, stats: Stats) -> int | None:
        if stats.epoch is None or stats.step is None:
            return stats.step
        if self._epoch is None:
            self._epoch = (stats.epoch, 0)
        epoch, offset = self._epoch
        if stats.epoch > epoch and self._counter is not None:
            offset = self._counter + 1
            self.mark("step", Mark.PLACED)
        self._epoch = (stats.epoch, offset)
        return offset + stats.step

    def _is_repeat(self, step: int, values: Mapping[str, float]) -> bool:
        """Whether this is a step told before: by another rank, or by another line of its step."""
        if self._counter is None or step > self._counter or step not in self._recent:
            return False
        if step == self._counter:
            return True
        return step > self._counter - _REMEMBERED_STEPS and not values

    def _merge(self, values: Mapping[str, float]) -> None:
        if self._open is None:
            return
        for name, value in values.items():
            if self._open.get(name) is None:
                self._open[name] = value
        if "scale_after" in values and values["scale_after"] == self._open.get("scale_after"):
            self._scale = values["scale_after"]

    def _closes_open(self, step: int | None, row: Row) -> bool:
        """Whether the last row is an overflow of this very step, which the line says more of."""
        last = self._open
        if last is None or not last.get("skipped") or step != last["step"]:
            return False
        if row.get("skipped") is None:
            row["skipped"] = last["skipped"]
        after = row.pop("scale_after", None)
        if last.get("scale_after") is None and after is not None:
            last["scale_after"] = self._scale = after
        for name, value in row.items():
            if last.get(name) is None:
                last[name] = value
        return True

    def _after_stats(self, stats: Stats, row: Row) -> None:
        if "loss" in stats.values and not stats.is_summary:
            self._has_fine_losses = True
        self._last_norm = stats.values.get("grad_norm", self._last_norm)
        if stats.total_skips is not None:
            self._total_skips = stats.total_skips
        self._skips_since = 0
        self._accepted_since_skip = not row.get("skipped")

    def _imply_skips(
        self, stats: Stats, step: int | None, values: dict[str, float], since: int
    ) -> None:
        """Rows for the skips that this line tells of and no line before it did."""
        if stats.is_skipped is not None:
            return
        window = 1 if step is None else max(1, step - since)
        silent = self._says_nothing_was_learnt(stats, values)
        told = self._told_by_counters(stats)
        if silent:  # all of them; how many a first line speaks of is not known
            told = max(told, window if self._counter is not None else 1)
        after = values.get("scale_after", values.get("scale"))
        fell = 0 if after is None or self._scale is None else _octaves(after, self._scale)
        overflowed = after is not None and not math.isfinite(values.get("grad_norm", 0.0))
        overflowed &= self._has_scaler or after != 1.0  # bf16 prints a constant 1
        if overflowed and self._scale is None:
            told = max(told, 1)  # a first line: what the scale was before it is not known
        missing = max(told, fell) - self._skips_since
        if step is not None:
            missing = min(missing, window)
        if missing <= 0:
            return
        is_last = missing + self._skips_since >= window or silent or overflowed
        path = _path(self._scale, after, missing)
        self._imply(missing - is_last, step, path, None if is_last else after)
        if is_last:
            values["skipped"] = values["found_inf"] = True
            if path is not None:
                values["scale"] = path[missing - 1]
            self._skips_told += 1
            self.mark("skipped", Mark.IMPLIED)

    def _says_nothing_was_learnt(self, stats: Stats, values: dict[str, float]) -> bool:
        """Whether the loss is missing beside a norm that is stale or not finite.

        With a scaler that is an overflow; without one the loss was nan.
        """
        norm = values.get("grad_norm")
        if not stats.lost_loss:
            return False
        if norm is None:  # without a scaler nothing but a nan, or a zero, leaves the loss out
            if self._has_fine_losses and values.get("scale_after", 1.0) == 1.0:
                self._lose_loss(values)
            return False
        stale = math.isfinite(norm) and norm == self._last_norm
        if not stale and math.isfinite(norm):
            return False
        if stale:
            values.pop("grad_norm")
            self.mark("grad_norm", Mark.STALE)
        if self._has_scaler or values.get("scale_after", 1.0) != 1.0:
            return True
        self._lose_loss(values)
        return False

    def _lose_loss(self, values: dict[str, float]) -> None:
        if not self._has_scaler:
            values["loss"] = math.nan
            self.mark("loss", Mark.IMPLIED)

    def _told_by_counters(self, stats: Stats) -> int:
        if stats.window_skips is not None:
            return stats.window_skips
        if stats.total_skips is None:
            return 0
        if self._total_skips is None:
            return stats.total_skips - (self._skips_told - self._skips_since)
        return stats.total_skips - self._total_skips

    def _imply(
        self, count: int, step: int | None, path: list[float] | None, after: float | None
    ) -> None:
        """`count` skipped steps before `step`; along a path of scales where that is known."""
        count = min(count, _MOST_IMPLIED)
        if count <= 0:
            return
        self.mark("skipped", Mark.IMPLIED)
        self.mark("step", Mark.PLACED)
        first = self._last_step + 1
        if step is not None and not (self._counter is None and step <= _FRESH_STEPS):
            first = max(first, step - count)  # a fresh run's first skips are its search
        for number in range(count):
            row: Row = {"step": first + number, "skipped": True, "found_inf": True}
            if path is not None:
                row["scale"], row["scale_after"] = path[number], path[number + 1]
            elif number == count - 1 and after is not None and self._fits(after):
                row["scale_after"] = after
            self._add(row)
        self._skips_told += count

    def _fits(self, after: float) -> bool:
        return self._scale is None or after <= self._scale

    def _setting(self, name: str, otherwise: float) -> float:
        """What the log says of the scaler, else the framework's default."""
        return self.scaler.get(name, self.defaults.get(name, otherwise))

    # --- places ----------------------------------------------------------------------------------

    def _meet(self, step: int) -> None:
        """A numbered line: where the counter has fallen, a new attempt begins before it."""
        if self._counter is not None and step < self._counter:
            self._restart()

    def _placed(self, step: int | None, *, is_marked: bool = True) -> int:
        """The row's step: the log's own where it comes after what is there."""
        if step is not None and step > self._last_step:
            return step
        if is_marked:
            self.mark("step", Mark.PLACED)
        if step is None and self._counter is not None:
            return max(self._counter, self._last_step) + 1
        return self._last_step + 1

    def _restart(self) -> None:
        self.settle()
        self._close_row()
        self._begin()

    def _event(self, kind: EventKind, detail: Mapping[str, Any]) -> None:
        step = None if self._open is None else self._open["step"]
        self._close_row()
        self._start()
        self.book.add_event(kind, step, detail)

    def _start(self) -> None:
        if not self._started:
            self._started = True
            self.attempts += 1
            self.book.add_event(EventKind.STARTED, None, {})

    def _seen_scale(self, scale: float | None) -> None:
        if self.first_scale is None and scale is not None:
            self.first_scale = scale

    def _add(self, row: Row) -> None:
        self._close_row()
        self._start()
        self._is_empty = False
        self._seen_scale(row.get("scale"))
        self._open = row
        self._last_step = row["step"]
        after = row.get("scale_after")
        if after is None:
            after = row.get("scale")
        self._scale = self._scale if after is None else after
        self._has_scaler |= after is not None and after != 1.0

    def _close_row(self) -> None:
        row, self._open = self._open, None
        if row is None:
            return
        if self._is_unnumbered:
            self.mark("step", Mark.PLACED)
            self._is_unnumbered = False
        step = row["step"]
        extras = [name for name in row if name not in STEP_COLUMNS]
        for name in extras:
            self.book.add_extra(step, name, row.pop(name))
        self.book.add(row)

    # --- many lines at once ----------------------------------------------------------------------

    def take_many(self, step: np.ndarray, columns: Mapping[str, np.ndarray]) -> int:
        """Plain statistics in one go; how many of them were: the rest is to be taken singly.

        Plain is: steps that rise, and a scale that does not fall.
        """
        self.settle()
        since = self._last_step if self._counter is None else max(self._counter, self._last_step)
        plain = np.diff(step, prepend=since) > 0
        scale = columns.get("scale_after")
        if scale is not None and self._scale:
            with np.errstate(all="ignore"):
                same = np.abs(scale / self._scale - 1) < _SAME_SCALE
            scale = np.where(same, self._scale, scale)
            columns = {**columns, "scale_after": scale}
        if scale is not None:
            before = np.nan if self._scale is None else self._scale
            plain &= ~(np.diff(scale, prepend=before) < 0)
        count = len(plain) if plain.all() else int(np.argmin(plain))
        if count:
            self._put_many(step[:count], {name: c[:count] for name, c in columns.items()})
        return count

    def _put_many(self, step: np.ndarray, columns: Mapping[str, np.ndarray]) -> None:
        self._close_row()
        self._start()
        self._is_empty = False
        ours = {name: column for name, column in columns.items() if name in STEP_COLUMNS}
        self.book.add_columns({"step": step, **ours})
        for name in columns.keys() - ours.keys():
            for at, value in zip(step.tolist(), columns[name].tolist(), strict=True):
                self.book.add_extra(at, name, value)
        self._last_step = self._counter = int(step[-1])
        self._is_numbered = self._accepted_since_skip = True
        self._recent.extend(step[-_REMEMBERED_STEPS:].tolist())
        if "scale_after" in columns:
            self._scale = float(columns["scale_after"][-1])
            self._has_scaler |= self._scale != 1.0
        self._has_fine_losses |= "loss" in columns
        if "grad_norm" in columns:
            self._last_norm = float(columns["grad_norm"][-1])
        self._skips_since = 0


def _is_sane(saying: Saying) -> bool:
    """Whether its step can be one: a damaged line may have any number of digits."""
    step = getattr(saying, "step", None)
    return step is None or -_MOST_STEPS < step < _MOST_STEPS


def _is_same(printed: float | None, known: float | None) -> bool:
    """Whether a printed scale is the known one, rounded."""
    if not printed or not known:
        return False
    return abs(printed / known - 1) < _SAME_SCALE


def _octaves(low: float, high: float) -> int:
    """How many doublings lead from the one to the other, about; 0 where that says nothing."""
    if not (low > 0 and high > 0 and math.isfinite(low) and math.isfinite(high)):
        return 0
    octaves = math.log2(high) - math.log2(low)
    return round(octaves) if abs(octaves) < _MOST_OCTAVES + 100 else 0


def _path(begin: float | None, end: float | None, count: int) -> list[float] | None:
    """The scales from one to the other by halvings, where `count` of them lead there."""
    if begin is None or end is None or _octaves(end, begin) != count or count <= 0:
        return None
    factor = (end / begin) ** (1 / count)
    if not math.isclose(factor, 0.5, rel_tol=0.05):
        return None
    return [*(begin * factor**number for number in range(count)), end]


def take_all(timeline: Timeline, sayings: Iterable[Saying]) -> None:
    """Every saying in order."""
    for saying in sayings:
        timeline.take(saying)
