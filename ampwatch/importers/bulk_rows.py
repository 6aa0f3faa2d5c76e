"""Adds many steps at once, by column: plain rows of a table, plain lines of a text log.

A row is plain if `take_stats` would only append it: its step rises, and neither its scale nor a
counter implies a skipped step. A single halving between neighbouring steps of a table means that
the row itself was skipped; it is added in bulk too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ampwatch.importers.row_writer import STEP_COLUMNS, Row
from ampwatch.importers.run_state import REMEMBERED_STEPS, RunState
from ampwatch.importers.scale_arithmetic import (
    SAME_SCALE,
    Flags,
    Floats,
    octaves_between_arrays,
    without_rounding,
)
from ampwatch.importers.table_rows import TableRows
from ampwatch.importers.tables.cells import Cells
from ampwatch.rows import Mark

SHORT = 8  # fewer rows than this are added faster singly


@dataclass(frozen=True, slots=True)
class BulkPlan:
    """Which table rows from `begin` on can be added in bulk, and the scale after each."""

    begin: int
    scale_after: Cells  # with rounded scales replaced by the known ones
    scale: Floats  # after the row; nan where none is known
    total: Floats  # last printed counter of skips; nan if none
    odd: npt.NDArray[np.intp]  # indices of rows that are not plain, from `begin`
    is_halved: Flags  # the row itself was skipped: its scale has halved


def plan_of(state: RunState, rows: TableRows, where: slice) -> BulkPlan:
    """Find out which of these table rows can be added in bulk, given the state before them."""
    part = rows.at(where)
    known = math.nan if state.now.scale is None else state.now.scale
    after, scale = _scales(part, known)
    before = np.concatenate(([known], scale[:-1]))
    flagged = part.skipped.present
    fell = octaves_between_arrays(scale, before)
    norm = part.values.get("grad_norm")
    bad_norm = np.zeros(len(part), np.bool_)
    if norm is not None:
        bad_norm = norm.present & ~np.isfinite(norm.values)
    has_scale = after.present | _told(part, "scale")
    first_overflow = bad_norm & has_scale & _is_unknown_before(part, state)
    implies = (fell > 0) & has_scale | first_overflow
    halved = (fell == 1) & after.present & ~flagged & _is_next(state, part) & ~first_overflow
    total, quiet = _counted(state, part)
    plain = _in_place(state, part) & (flagged | ~implies | halved) & quiet
    return BulkPlan(where.start, after, scale, total, np.flatnonzero(~plain), halved)


def add_plain_rows(state: RunState, rows: TableRows, plan: BulkPlan, at: int) -> int:
    """Add the plain table rows from `at` on in bulk; return the index of the next other row."""
    odd = int(np.searchsorted(plan.odd, at - plan.begin))
    stop = plan.begin + (int(plan.odd[odd]) if odd < len(plan.odd) else len(plan.scale))
    if stop - at < SHORT:
        return at
    _add_plain(state, rows, plan, slice(at, stop))
    return stop


def plan_holds(state: RunState, rows: TableRows, plan: BulkPlan, at: int) -> bool:
    """Whether the state before this table row is what the bulk plan assumed."""
    if at == plan.begin:
        return True
    now, last = state.now, at - 1
    if rows.is_numbered[last]:
        placed = now.counter == now.last_step == int(rows.step[last])
    else:
        placed = now.counter is None
    stands = [math.nan if one is None else one for one in (now.scale, now.total_skips)]
    meant = [plan.scale[last - plan.begin], plan.total[last - plan.begin]]
    return placed and np.array_equal(stands, meant, equal_nan=True)


# --- what a row is -------------------------------------------------------------------------------


def _scales(rows: TableRows, known: float) -> tuple[Cells, Floats]:
    """The scale after each row to add in bulk, with and without values of earlier rows."""
    after = rows.values.get("scale_after") or Cells.absent(len(rows))
    before = rows.values.get("scale") or Cells.absent(len(rows))
    told = after.present | before.present
    printed = np.where(after.present, after.values, before.values)
    last = np.maximum.accumulate(np.where(told, np.arange(len(rows)), -1))
    scale = np.where(last >= 0, printed[np.maximum(last, 0)], known)
    previous = np.concatenate(([known], scale[:-1]))
    changed = (scale != previous) & ~(np.isnan(scale) & np.isnan(previous))
    with np.errstate(all="ignore"):
        near = changed & after.present & (np.abs(scale / previous - 1) < SAME_SCALE)
    if near.any():
        changed |= told & ~after.present
        scale = without_rounding(scale, after.present, np.flatnonzero(changed), known)
    return Cells(np.where(after.present, scale, after.values), after.present), scale


def _told(rows: TableRows, name: str) -> Flags:
    cells = rows.values.get(name)
    return np.zeros(len(rows), np.bool_) if cells is None else cells.present


def _is_unknown_before(rows: TableRows, state: RunState) -> Flags:
    """Which rows to add in bulk have no known scale before them."""
    if state.now.scale is not None:
        return np.zeros(len(rows), np.bool_)
    told = _told(rows, "scale") | _told(rows, "scale_after")
    count: Flags = np.cumsum(told) - told == 0
    return count


def _in_place(state: RunState, rows: TableRows) -> Flags:
    """Which rows can be added in bulk by their steps: each above the last, or none has a step."""
    now, numbered = state.now, rows.is_numbered
    before = np.concatenate(([now.counter is not None], numbered[:-1]))
    last = now.last_step if now.counter is None else max(now.counter, now.last_step)
    in_place: Flags
    rises = np.diff(rows.step, prepend=last) > 0
    in_place = np.where(numbered, rises & before, ~before & (now.counter is None))
    in_place[:1] &= not now.is_empty
    return in_place


def _is_next(state: RunState, rows: TableRows) -> Flags:
    """Which rows to add in bulk directly follow the row before, by their steps."""
    last = -1 if state.now.counter is None else state.now.counter
    is_next: Flags = ~rows.is_numbered | (np.diff(rows.step, prepend=last) == 1)
    return is_next


def _counted(state: RunState, rows: TableRows) -> tuple[Floats, Flags]:
    """The counter of all skips after each row to add in bulk, and where it is unchanged."""
    skips = rows.skips
    known = math.nan if state.now.total_skips is None else float(state.now.total_skips)
    total: Floats = np.full(len(rows), known)
    quiet: Flags = ~skips.present
    if not skips.present.any():
        return total, quiet
    if not rows.is_total:
        return total, quiet | (skips.values == 0)
    last = np.maximum.accumulate(np.where(skips.present, np.arange(len(rows)), -1))
    total = np.where(last >= 0, skips.values[np.maximum(last, 0)], known)
    return total, quiet | (total == np.concatenate(([known], total[:-1])))


# --- into the writer ------------------------------------------------------------------------------


def _add_plain(state: RunState, rows: TableRows, plan: BulkPlan, where: slice) -> None:
    """Add plain table rows in bulk; the last one stays open, because the next may add to it."""
    planned_at = slice(where.start - plan.begin, where.stop - plan.begin)
    part = rows.at(where)
    columns = _columns(state, part, plan, planned_at)
    halved = plan.is_halved[planned_at]
    state.close_row()
    first, last = len(part) - 1, int(part.step[-1])
    if not part.is_numbered[0]:
        state.mark("step", Mark.PLACED)
    if halved.any():
        state.mark("skipped", Mark.IMPLIED)
        state.now.skips_told += int(halved.sum())
    state.go_on(int(part.step[0]), len(part))
    if first:
        for name in part.values.keys() - STEP_COLUMNS:
            metric = part.values[name].at(slice(0, first))
            step = part.step[:first][metric.present]
            state.writer.add_metric(step, name, metric.values[metric.present])
        state.writer.add_columns({name: _cut(c, slice(0, first)) for name, c in columns.items()})
    _learn(state, part, columns)
    if (_told(part, "scale") | _told(part, "scale_after"))[:first].any():
        state.now.scale = float(plan.scale[planned_at][first - 1])
    state.add(_row(columns, first))
    state.now.is_unnumbered = not part.is_numbered[-1]
    state.now.accepted_since_skip = not state.now.open or not state.now.open.get("skipped")
    if part.is_numbered[-1]:
        state.now.counter, state.now.is_numbered = last, True
        state.now.recent.extend(part.step[-REMEMBERED_STEPS:].tolist())


def _columns(
    state: RunState, part: TableRows, plan: BulkPlan, planned_at: slice
) -> dict[str, npt.NDArray[np.int64] | Cells]:
    """The rows to add in bulk, as columns of the steps table."""
    step = part.step
    if not part.is_numbered[0]:
        step = state.now.last_step + 1 + np.arange(len(part))
    columns: dict[str, npt.NDArray[np.int64] | Cells] = {"step": step}
    columns.update((name, cells) for name, cells in part.values.items() if cells.present.any())
    if plan.scale_after.present[planned_at].any():
        columns["scale_after"] = plan.scale_after.at(planned_at)
    halved, skipped = plan.is_halved[planned_at], part.skipped
    if halved.any():
        skipped = Cells(np.where(halved, 1.0, skipped.values), skipped.present | halved)
        known = math.nan if state.now.scale is None else state.now.scale
        before = np.concatenate(([known], plan.scale[planned_at]))[:-1]
        with np.errstate(all="ignore"):
            factor = plan.scale[planned_at] / before
            by_half = halved & (np.abs(factor - 0.5) <= SAME_SCALE * np.maximum(factor, 0.5))
        told = part.values.get("scale") or Cells.absent(len(part))
        columns["scale"] = Cells(np.where(by_half, before, told.values), told.present | by_half)
    if skipped.present.any():
        is_skip = Cells((np.nan_to_num(skipped.values) != 0).astype(np.float64), skipped.present)
        columns["skipped"] = columns["found_inf"] = is_skip
    return columns


def _cut(column: npt.NDArray[np.int64] | Cells, rows: slice) -> npt.NDArray[np.int64] | Cells:
    return column.at(rows) if isinstance(column, Cells) else column[rows]


def _row(columns: dict[str, npt.NDArray[np.int64] | Cells], at: int) -> Row:
    row: Row = {}
    for name, column in columns.items():
        if not isinstance(column, Cells):
            row[name] = int(column[at])
        elif column.present[at]:
            value = column.values[at].item()
            row[name] = bool(value) if name in ("skipped", "found_inf") else value
    return row


def _learn(
    state: RunState, part: TableRows, columns: dict[str, npt.NDArray[np.int64] | Cells]
) -> None:
    """Update the state for table rows that were added in bulk."""
    now = state.now
    nothing = Cells.absent(len(part))
    scale, after = columns.get("scale", nothing), columns.get("scale_after", nothing)
    assert isinstance(scale, Cells)
    assert isinstance(after, Cells)
    if scale.present.any():
        state.seen_scale(float(scale.values[scale.present][0]))
    told = np.where(after.present, after.values, scale.values)[after.present | scale.present]
    now.has_scaler |= bool((told != 1.0).any())
    now.has_fine_losses |= _told(part, "loss").any().item()
    norm = part.values.get("grad_norm")
    if norm is not None and norm.present.any():
        now.last_norm = float(norm.values[norm.present][-1])
    if part.is_total and part.skips.present.any():
        now.total_skips = int(part.skips.values[part.skips.present][-1])
    now.skips_since = 0
