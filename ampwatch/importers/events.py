"""Lines outside of the statistics as rows: an overflow, what is added to it, a scale, a bar."""

from __future__ import annotations

import math

from ampwatch.importers.course import Course
from ampwatch.importers.halvings import halvings, is_same, octaves_between
from ampwatch.importers.implied import (
    grown_before,
    imply,
    scale_before,
    show_accepted,
    show_growth,
)
from ampwatch.importers.rowbook import Row
from ampwatch.importers.sayings import Amend, Progress, Scale, Skip, Stats
from ampwatch.importers.statistics import take_stats
from ampwatch.rows import EventKind


def put_skip(course: Course, skip: Skip) -> None:
    """A skipped step, behind the accepted ones that it implies."""
    if _is_counted(course, skip):
        course.now.credit -= 1
        _complete(course, skip)
        return
    step, last = skip.step, course.now.open
    if last is not None and not last.get("skipped") and _is_of(skip, last):
        _mark_skipped(course, last)
        return
    if step is not None:
        if last is not None and last["step"] == step and last.get("skipped"):
            return  # another rank's line
        course.meet(step)
    before = skip.scale if skip.scale is not None else scale_before(course, skip.scale_after)
    show_growth(course, before)
    show_accepted(course, step, before)
    scale = grown_before(course, before) if skip.scale is None else skip.scale
    row: Row = {"step": course.placed(step), "scale": scale, "scale_after": skip.scale_after}
    if skip.grad_norm is not None:
        row["grad_norm"] = skip.grad_norm
    if skip.time_ns is not None:
        row["time_ns"] = skip.time_ns
    course.add({**row, "skipped": True, "found_inf": True})
    course.now.skips_since += 1
    course.now.skips_told += 1
    course.now.accepted_since_skip = False


def _is_counted(course: Course, skip: Skip) -> bool:
    """Whether a count that was printed just before has told of this very overflow.

    One that begins at the scale that stood beside the count came after it.
    """
    if not course.now.credit or skip.step is not None:
        return False
    return skip.scale is None or not is_same(course.now.credit_scale, skip.scale)


def _is_of(skip: Skip, last: Row) -> bool:
    """Whether the line only says why the step last told of is no number."""
    is_bare = skip.step is None and skip.scale is None and skip.scale_after is None
    finite = all(math.isfinite(last.get(name) or 0.0) for name in ("loss", "grad_norm"))
    return is_bare and skip.grad_norm is None and not finite


def _mark_skipped(course: Course, row: Row) -> None:
    """The step last told of was skipped, at the scale that stood beside it."""
    row["skipped"] = row["found_inf"] = True
    if row.get("scale") is None and "scale_after" in row:
        row["scale"] = row.pop("scale_after")
    course.now.skips_since += 1  # the fall shows on the next line
    course.now.skips_told += 1
    course.now.accepted_since_skip = False


def _complete(course: Course, skip: Skip) -> None:
    """The scale of an overflow that was counted, at the overflow or at the line that counted it."""
    row = course.now.open
    if row is not None and not row.get("skipped") and row.get("scale_after") is None:
        row["scale_after"] = course.now.scale = skip.scale_after
    amend(course, Amend(scale=skip.scale, scale_after=skip.scale_after))


def amend(course: Course, more: Amend) -> None:
    """What a following line adds to the overflow that is the last row."""
    row = course.now.open
    if row is not None and more.is_skip and not row.get("skipped"):
        _mark_skipped(course, row)
    if row is None or not row.get("skipped"):
        return
    if more.scale is not None and row.get("scale") is None:
        row["scale"] = more.scale
        course.seen_scale(more.scale)
    if more.scale_after is not None and row.get("scale_after") is None:
        row["scale_after"] = course.now.scale = more.scale_after
    if more.layer:
        course.event(EventKind.OVERFLOW, {"direction": "backward", "layer": more.layer})


def take_scale(course: Course, told: Scale) -> None:
    """A row for a scale that is told by itself, behind the skips that its fall implies."""
    if told.step is not None:
        course.meet(told.step)
    now = course.now
    same = now.open is not None and told.step in (None, now.open["step"])
    if same and now.scale == told.scale_after:
        return
    drops = 0 if now.scale is None else octaves_between(told.scale_after, now.scale)
    missing = drops - now.skips_since
    if missing > 0:
        path = halvings(now.scale, told.scale_after, missing)
        imply(course, missing, told.step, path, told.scale_after)
    course.add({"step": course.placed(told.step), "scale_after": told.scale_after})
    now.skips_since = 0
    now.accepted_since_skip = True


def take_progress(course: Course, bar: Progress) -> None:
    """A bar's step; bars of other loops (an evaluation) count only when this one is full."""
    now = course.now
    is_other = bar.total != now.bar_total
    if is_other and now.bar_total is not None and not now.bar_is_full:
        return
    if is_other:
        now.counter = None if now.is_empty else now.counter
    elif now.counter is not None and bar.step < now.counter - 1:
        course.restart()
        now = course.now
    now.bar_total, now.bar_is_full = bar.total, bar.step == bar.total
    if now.is_unnumbered and now.open is not None and bar.step > now.step_before:
        now.open["step"] = now.last_step = bar.step  # the bar is drawn anew below a line
        now.is_unnumbered = False
    if now.first_counter is None:
        now.first_counter = bar.step
    if now.counter is None or bar.step > now.counter:
        now.counter = bar.step
        now.is_numbered = True
    if bar.values:
        take_stats(course, Stats(step=bar.step, values=bar.values))
