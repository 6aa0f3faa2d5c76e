"""Lines of statistics as rows: one at a time, or many plain ones at once."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ampwatch.importers.course import REMEMBERED_STEPS, Course
from ampwatch.importers.halvings import SAME_SCALE, is_same
from ampwatch.importers.implied import imply_skips
from ampwatch.importers.rowbook import STEP_COLUMNS, Row
from ampwatch.importers.sayings import Stats
from ampwatch.rows import Mark


def take_stats(course: Course, stats: Stats) -> None:
    """A row for a line of statistics, behind those that it implies."""
    values = _usable(course, stats)
    step = _step_of(course, stats)
    if step is not None and _is_repeat(course, step, values):
        _merge(course, values)
        return
    if step is not None:
        course.meet(step)
    since = _since(course, step)
    imply_skips(course, stats, step, values, since)
    row: Row = {"step": step, **values}
    if stats.is_skipped is not None:
        row["skipped"] = row["found_inf"] = stats.is_skipped
    merged = _closes_open(course, step, row)
    if not merged:
        row["step"] = course.placed(step, is_marked=step is not None)
        course.add(row)
        course.now.is_unnumbered = step is None
    if step is not None:
        course.now.counter, course.now.is_numbered = step, True
        course.now.recent.append(step)
    _after_stats(course, stats, row)


def _since(course: Course, step: int | None) -> int:
    """The step that the line before told of; a first line tells of all from the beginning."""
    if course.now.counter is not None:
        return course.now.counter
    return 0 if step is None else min(0, step - 1)


def _usable(course: Course, stats: Stats) -> dict[str, float]:
    """The values without what a summary or a rounded scale would falsify."""
    values = dict(stats.values)
    if is_same(values.get("scale_after"), course.now.scale):
        values["scale_after"] = course.now.scale or 0.0
    if stats.is_summary and course.now.has_fine_losses:
        for name in ("loss", "grad_norm", "lr"):
            values.pop(name, None)
    if stats.is_summary:
        course.mark("loss", Mark.AVERAGED)
    return values


def _step_of(course: Course, stats: Stats) -> int | None:
    if stats.step is None or (stats.epoch is None and stats.per_epoch is None):
        return stats.step
    before = course.epochs.before
    recent, last = course.now.recent, course.now.counter
    stride = recent[-1] - recent[-2] if len(recent) > 1 else 1
    step = course.epochs.step(stats, stats.step, last, stride)
    if course.epochs.before != before:
        course.mark("step", Mark.PLACED)
    return step


def _is_repeat(course: Course, step: int, values: Mapping[str, float]) -> bool:
    """Whether this is a step told before: by another rank, or by another line of its step."""
    if course.now.counter is None or step > course.now.counter or step not in course.now.recent:
        return False
    if step == course.now.counter:
        return True
    return step > course.now.counter - REMEMBERED_STEPS and not values.keys() - {"time_ns"}


def _merge(course: Course, values: Mapping[str, float]) -> None:
    if course.now.open is None:
        return
    for name, value in values.items():
        if course.now.open.get(name) is None:
            course.now.open[name] = value
    if "scale_after" in values and values["scale_after"] == course.now.open.get("scale_after"):
        course.now.scale = values["scale_after"]


def _closes_open(course: Course, step: int | None, row: Row) -> bool:
    """Whether the last row is an overflow of this very step, which the line says more of."""
    last = course.now.open
    if last is None or not last.get("skipped") or step != last["step"]:
        return False
    if row.get("skipped") is None:
        row["skipped"] = last["skipped"]
    after = row.pop("scale_after", None)
    if last.get("scale_after") is None and after is not None:
        last["scale_after"] = course.now.scale = after
    for name, value in row.items():
        if last.get(name) is None:
            last[name] = value
    return True


def _after_stats(course: Course, stats: Stats, row: Row) -> None:
    if "loss" in stats.values and not stats.is_summary:
        course.now.has_fine_losses = True
    course.now.last_norm = stats.values.get("grad_norm", course.now.last_norm)
    if stats.total_skips is not None:
        course.now.total_skips = stats.total_skips
    course.now.skips_since = 0
    course.now.accepted_since_skip = not row.get("skipped")


def take_many(course: Course, step: np.ndarray, columns: Mapping[str, np.ndarray]) -> int:
    """Plain statistics in one go; how many of them were: the rest is to be taken singly.

    Plain is: steps that rise, and a scale that does not fall.
    """
    last, counter = course.now.last_step, course.now.counter
    plain = np.diff(step, prepend=last if counter is None else max(counter, last)) > 0
    scale = columns.get("scale_after")
    if scale is not None and course.now.scale:
        with np.errstate(all="ignore"):
            same = np.abs(scale / course.now.scale - 1) < SAME_SCALE
        scale = np.where(same, course.now.scale, scale)
        columns = {**columns, "scale_after": scale}
    if scale is not None:
        before = np.nan if course.now.scale is None else course.now.scale
        plain &= ~(np.diff(scale, prepend=before) < 0)
    count = len(plain) if plain.all() else int(np.argmin(plain))
    if count > 1:
        most = count - 1
        _put_many(course, step[:most], {name: c[:most] for name, c in columns.items()})
    if count:  # the last one may be told more of
        values = {name: column[count - 1].item() for name, column in columns.items()}
        take_stats(course, Stats(int(step[count - 1]), values))
    return count


def _put_many(course: Course, step: np.ndarray, columns: Mapping[str, np.ndarray]) -> None:
    course.close_row()
    course.start()
    course.now.is_empty = False
    ours = {name: column for name, column in columns.items() if name in STEP_COLUMNS}
    course.book.add_columns({"step": step, **ours})
    for name in columns.keys() - ours.keys():
        for at, value in zip(step.tolist(), columns[name].tolist(), strict=True):
            course.book.add_extra(at, name, value)
    course.now.last_step = course.now.counter = int(step[-1])
    course.now.is_numbered = course.now.accepted_since_skip = True
    course.now.recent.extend(step[-REMEMBERED_STEPS:].tolist())
    if "scale_after" in columns:
        course.now.scale = float(columns["scale_after"][-1])
        course.now.has_scaler |= course.now.scale != 1.0
    course.now.has_fine_losses |= "loss" in columns
    if "grad_norm" in columns:
        course.now.last_norm = float(columns["grad_norm"][-1])
    course.now.skips_since = 0
