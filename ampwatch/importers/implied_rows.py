"""Adds rows that a line implies but nobody printed; they are marked as implied.

Skipped steps follow from a counter of skips, a scale that fell by whole halvings, or a missing loss
beside an unchanged norm. Accepted steps follow from a scale that rose, or a counter that went on,
between two overflows.
"""

from __future__ import annotations

import math

from ampwatch.importers.row_writer import Row
from ampwatch.importers.run_state import RunState
from ampwatch.importers.scale_arithmetic import MOST_OCTAVES, halvings, octaves_between
from ampwatch.importers.statements import Stats
from ampwatch.rows import Mark

# An upper limit, in case the counter is damaged.
_MOST_IMPLIED = 100_000
# A first line with a step up to this one belongs to a run that began with it.
_FRESH_STEPS = 1000


def imply_skips(
    state: RunState, stats: Stats, step: int | None, values: dict[str, float], since: int
) -> None:
    """Add rows for the skipped steps that a line of statistics implies and no line printed."""
    if stats.is_skipped is not None:
        return
    window = 1 if step is None else max(1, step - since)
    silent = _lacks_its_loss(state, stats, values)
    told = _skips_by_counters(state, stats)
    if silent:  # all steps of the window; for a first line its length is unknown
        told = max(told, window if state.now.counter is not None else 1)
    after = values.get("scale_after", values.get("scale"))
    known = state.now.scale
    fell = 0 if after is None or known is None else octaves_between(after, known)
    overflowed = after is not None and not math.isfinite(values.get("grad_norm", 0.0))
    overflowed &= state.now.has_scaler or after != 1.0  # bf16 prints a constant 1
    if overflowed and state.now.scale is None:
        told = max(told, 1)  # a first line: the scale before it is unknown
    counted = told if state.now.total_skips is not None or stats.total_skips is None else 0
    missing = max(told, fell) - state.now.skips_since
    state.now.credit, state.now.credit_scale = max(0, min(missing, counted)), after
    if step is not None:
        missing = min(missing, window)
    begins_with = "scale" in values and "scale_after" not in values
    if begins_with and not (silent or overflowed):
        _imply_earlier(state, missing, step, after)
        return
    if missing <= 0:
        return
    is_last = missing + state.now.skips_since >= window or silent or overflowed
    path = halvings(state.now.scale, after, missing)
    imply(state, missing - is_last, step, path, None if is_last else after)
    if is_last:
        values["skipped"] = values["found_inf"] = True
        if path is not None:
            values["scale"] = path[missing - 1]
        state.now.skips_told += 1
        state.mark("skipped", Mark.IMPLIED)


def _imply_earlier(
    state: RunState, count: int, step: int | None, begins_with: float | None
) -> None:
    """Add implied skips before a step whose initial scale is known: that step was not skipped.

    Skips that do not fit between the rows begin at the row before.
    """
    path, last = halvings(state.now.scale, begins_with, count), state.now.open
    between = 0 if step is None else step - state.now.last_step - 1
    if last is not None and count > between and last.get("skipped") is None:
        last["skipped"] = last["found_inf"] = True
        state.mark("skipped", Mark.IMPLIED)
        state.now.skips_told += 1
        count -= 1
        if path is not None:
            last["scale_after"] = state.now.scale = path[1]
            path = path[1:]
    imply(state, count, step, path, begins_with)


def _lacks_its_loss(state: RunState, stats: Stats, values: dict[str, float]) -> bool:
    """Whether a skip is implied by a missing loss beside a norm that is unchanged or not finite.

    With a scaler that is an overflow; without one the loss was nan, and is noted as that.
    """
    norm = values.get("grad_norm")
    if not stats.lost_loss:
        return False
    if norm is None:  # without a scaler only a nan or a zero omits the loss
        if state.now.has_fine_losses and values.get("scale_after", 1.0) == 1.0:
            _lose_loss(state, values)
        return False
    stale = math.isfinite(norm) and norm == state.now.last_norm
    if not stale and math.isfinite(norm):
        return False
    if stale:
        values.pop("grad_norm")
        state.mark("grad_norm", Mark.STALE)
    if state.now.has_scaler or values.get("scale_after", 1.0) != 1.0:
        return True
    _lose_loss(state, values)
    return False


def _lose_loss(state: RunState, values: dict[str, float]) -> None:
    if not state.now.has_scaler:
        values["loss"] = math.nan
        state.mark("loss", Mark.IMPLIED)


def _skips_by_counters(state: RunState, stats: Stats) -> int:
    if stats.window_skips is not None:
        return stats.window_skips
    if stats.total_skips is None:
        return 0
    if state.now.total_skips is None:
        return stats.total_skips - (state.now.skips_told - state.now.skips_since)
    return stats.total_skips - state.now.total_skips


def imply(
    state: RunState, count: int, step: int | None, path: list[float] | None, after: float | None
) -> None:
    """Add `count` implied skipped steps before `step`, with the scales of `path` if known."""
    count = min(count, _MOST_IMPLIED)
    if count <= 0:
        return
    state.mark("skipped", Mark.IMPLIED)
    state.mark("step", Mark.PLACED)
    first = state.now.last_step + 1
    if step is not None and not (state.now.counter is None and step <= _FRESH_STEPS):
        first = max(first, step - count)  # a fresh run's first skips are its search
    for number in range(count):
        row: Row = {"step": first + number, "skipped": True, "found_inf": True}
        if path is not None:
            row["scale"], row["scale_after"] = path[number], path[number + 1]
        elif number == count - 1 and after is not None and _fits(state, after):
            row["scale_after"] = after
        state.add(row)
    state.now.skips_told += count


def _fits(state: RunState, after: float) -> bool:
    return state.now.scale is None or after <= state.now.scale


def scale_before(state: RunState, after: float | None) -> float | None:
    """The scale before an overflow, as the scale after it implies; at its floor it is the same."""
    if after is None or after <= state.setting("min_scale", 0.0):
        return after
    return after / state.setting("backoff_factor", 0.5)


def show_growth(state: RunState, before: float | None) -> None:
    """Add an implied accepted step if the scale rose between two overflows without a line."""
    if before is None or state.now.scale is None or state.now.accepted_since_skip:
        return
    if state.now.is_numbered:  # the counter shows how many steps lie between
        return
    octaves = octaves_between(state.now.scale, before)
    if octaves <= 0:
        return
    window = int(state.setting("growth_interval", 1))
    step = state.now.last_step + max(1, min(octaves, MOST_OCTAVES) * window)
    state.mark("scale", Mark.IMPLIED)
    state.mark("step", Mark.PLACED)
    state.add({"step": step, "scale_after": before, "skipped": False})
    state.now.accepted_since_skip = True


def grown_before(state: RunState, before: float | None) -> float | None:
    """The implied scale before an overflow, if it had grown since the line before; else None."""
    if before is None or state.now.scale is None or octaves_between(state.now.scale, before) <= 0:
        return None
    state.mark("scale", Mark.IMPLIED)
    return before


def show_accepted(state: RunState, step: int | None, before: float | None) -> None:
    """Add an implied accepted step if the counter went on without an overflow."""
    attempt = state.now
    if attempt.is_empty and step is None and attempt.counter == attempt.first_counter:
        return  # this was before the log begins
    now = state.now.counter if step is None else step - 1
    if now is None or now <= max(state.now.last_step, 0):
        return
    state.mark("skipped", Mark.IMPLIED)
    state.add({"step": now, "scale_after": before, "skipped": False})
    state.now.accepted_since_skip = True
