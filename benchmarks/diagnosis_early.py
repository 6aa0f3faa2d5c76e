"""How early a live reader is told: of a collapse, and of a drift before the first overflow.

What a run shows is read off its rows here, by DESIGN's definitions and not by the engine's code;
when it is told is read off the engine, on ever longer beginnings of the run.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ampwatch.rows import Table

_OCTAVES, _LEAST_SKIPS = 8, 4
_ESTABLISHED = 20
_SEARCH_FORWARDS, _SEARCH_SCALE = 5, 2.0**-32
_BEFORE, _WINDOW = 20, 10
_EARLY_SIGNS = frozenset({"AMP205", "AMP304"})
Told = Callable[[int], set[str]]  # the codes a reader has been told at the end of a step


@dataclass(frozen=True, slots=True)
class Course:
    """The columns that the definitions speak of, of the lowest rank."""

    step: Any
    scale: Any
    after: Any
    skipped: Any
    loss: Any
    norm: Any


def course_of(run: Any) -> Course:
    """A run's course; absent numbers are nan."""
    names = ("step", "scale", "scale_after", "skipped", "loss", "grad_norm")
    rows = run.read(Table.STEPS, columns=names, rank=min(run.ranks, default=0))
    numbers = [np.array(rows[name].to_pylist(), dtype=float) for name in names]
    step, scale, after, skipped, loss, norm = numbers
    return Course(step, scale, after, skipped == 1, loss, norm)


def collapse_shows(course: Course) -> int | None:
    """The step at which a collapse can be told from a search and from a spike."""
    accepted = np.flatnonzero(~course.skipped)
    if not len(accepted):
        bad = np.flatnonzero(~np.isfinite(course.loss))
        low = np.flatnonzero(course.scale < _SEARCH_SCALE)
        at = bad[_SEARCH_FORWARDS - 1 :] if len(bad) == len(course.loss) else low
        return int(course.step[at[0]]) if len(at) else None
    level, streak, skips = course.scale[accepted[0]], 0, 0
    for at in range(accepted[0], len(course.step)):
        streak = 0 if course.skipped[at] else streak + 1
        skips += int(course.skipped[at])
        if streak >= _ESTABLISHED:
            level, skips = max(level, course.scale[at]), 0
        if skips >= _LEAST_SKIPS and course.after[at] <= level * 2.0**-_OCTAVES:
            return int(course.step[at])
    return None


def drifted_before(course: Course) -> int | None:
    """The first overflow, if twenty steps before it the gradient norm had doubled."""
    first = int(np.argmin(course.skipped)) if len(course.skipped) else 0
    late = first + np.flatnonzero(course.skipped[first:])
    if not len(late) or late[0] < first + _BEFORE + 2 * _WINDOW:
        return None
    norm = course.norm[first : late[0] - _BEFORE]
    windows = np.lib.stride_tricks.sliding_window_view(norm, _WINDOW)
    medians = np.median(windows, axis=1)
    doubled = medians[-1] >= 2 * np.nanmin(medians)
    return int(course.step[late[0]]) if doubled else None


@dataclass(frozen=True, slots=True)
class Early:
    """How many steps after it could be something was told, and whether a drift was in time."""

    collapse: int | None = None
    any_alarm: int | None = None
    ahead: bool | None = None


def early(run: Any, told: Told, onset: int) -> Early:
    """When a live reader of this run was told."""
    course = course_of(run)
    shows, overflow = collapse_shows(course), drifted_before(course)
    found = Early()
    if shows is not None:
        collapse = _first(course, shows, lambda step: "AMP103" in told(step))
        alarm = _first(course, onset, lambda step: bool(told(step)))
        found = Early(
            None if collapse is None else collapse - shows,
            None if alarm is None else alarm - onset,
        )
    if overflow is None:
        return found
    ahead = bool(_EARLY_SIGNS & told(overflow - 1))
    return Early(found.collapse, found.any_alarm, ahead)


def _first(course: Course, since: int, told: Callable[[int], bool]) -> int | None:
    steps = course.step[course.step >= since][:_MOST_LOOKS]
    return next((int(step) for step in steps if told(int(step))), None)


_MOST_LOOKS = 60


def as_text(found: Sequence[Early]) -> str:
    """The two figures, in two sentences."""
    collapses = [one.collapse for one in found if one.collapse is not None]
    alarms = [one.any_alarm for one in found if one.any_alarm is not None]
    drifts = [one.ahead for one in found if one.ahead is not None]
    lines = []
    if collapses:
        lines.append(
            f"Persistent collapses: {len(collapses)}; AMP103 comes {_steps(collapses)} steps after "
            f"the rows first show one by its definition, the first warning or error of any code "
            f"{_steps(alarms)} steps after the fault begins (median, worst)."
        )
    if drifts:
        lines.append(
            f"Gradient norm doubled 20 steps before the first overflow: {len(drifts)} runs; "
            f"AMP304 or AMP205 was told before the overflow in {sum(drifts)}."
        )
    return "\n".join(lines)


def _steps(values: Sequence[int]) -> str:
    return f"{statistics.median(values):g} ({max(values)})" if values else "?"
