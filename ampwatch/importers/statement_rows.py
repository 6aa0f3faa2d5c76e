"""Adds the rows of one statement: statistics, a skip, a scale, a bar; and those that it implies.

Rows of steps that nobody printed are marked as implied. Skipped steps follow from a counter of
skips, a scale that fell by whole halvings, or a missing loss beside an unchanged norm. Accepted
steps follow from a scale that rose, or a counter that went on, between two overflows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ampwatch.importers.row_writer import STEP_COLUMNS, Row
from ampwatch.importers.run_state import REMEMBERED_STEPS, RunState
from ampwatch.importers.scale_arithmetic import MOST_OCTAVES, halvings, is_same, octaves_between
from ampwatch.importers.statements import Amend, Progress, Scale, Skip, Stats
from ampwatch.rows import EventKind, Mark


def take_stats(state: RunState, stats: Stats) -> None:
    """Add the row of a statement of statistics, after the rows that it implies."""
    if _is_of_epoch(state, stats):
        _take_epoch(state, stats.values)
        return
    values = _usable(state, stats)
    if stats.is_redrawn and _is_closed_bar(state, stats, values):
        return
    step = _step_of(state, stats)
    if step is not None and _is_repeat(state, step, values):
        _merge(state, values, are_later=stats.is_redrawn)
        return
    if step is not None:
        state.meet(step)
    since = _since(state, step)
    imply_skips(state, stats, step, values, since)
    row: Row = {"step": step, **values}
    if stats.is_skipped is not None:
        row["skipped"] = row["found_inf"] = stats.is_skipped
    merged = _closes_open(state, step, row)
    if not merged:
        row["step"] = state.placed(step, is_marked=step is not None)
        state.add(row)
        state.now.is_unnumbered = step is None
    if step is not None:
        state.now.counter, state.now.is_numbered = step, True
        if stats.step is not None:
            state.now.counts_epochs = False
            state.marks.get("step", set()).discard(Mark.EPOCHS)
        state.now.recent.append(step)
    _after_stats(state, stats, row)


def _is_of_epoch(state: RunState, stats: Stats) -> bool:
    """Whether statistics sum up an epoch whose steps have been printed one by one."""
    now = state.now
    has_steps = now.is_numbered and now.has_fine_losses and not now.counts_epochs
    return stats.step is None and stats.epoch is not None and has_steps


def _take_epoch(state: RunState, values: Mapping[str, float]) -> None:
    """Add what sums up an epoch: its loss as a metric, a learning rate that no line had told."""
    row = state.now.open
    if row is not None and "lr" in values:
        row.setdefault("lr", values["lr"])
    known = STEP_COLUMNS | state.metrics_of_rows  # they were told step by step
    means = {"train_loss": values["loss"]} if "loss" in values else {}
    state.measured({**means, **{n: v for n, v in values.items() if n not in known}})


def _is_closed_bar(state: RunState, stats: Stats, values: Mapping[str, float]) -> bool:
    """Whether a bar that was full is drawn once more, with the same values, as it is closed."""
    counter, epochs = state.now.counter, state.epochs
    if counter is None or not stats.step == stats.per_epoch == counter - epochs.before:
        return False
    return stats.epoch in (None, epochs.epoch) and (state.now.open or {}).items() >= values.items()


def _since(state: RunState, step: int | None) -> int:
    """The step of the line before; a first line covers everything from the beginning."""
    if state.now.counter is not None:
        return state.now.counter
    return 0 if step is None else min(0, step - 1)


def _usable(state: RunState, stats: Stats) -> dict[str, float]:
    """A statement's values, except those that a summary or a rounded scale would falsify."""
    values = dict(stats.values)
    if is_same(values.get("scale_after"), state.now.scale):
        values["scale_after"] = state.now.scale or 0.0
    if stats.is_summary and state.now.has_fine_losses:
        kept = STEP_COLUMNS - {"loss", "grad_norm", "lr"}
        values = {name: value for name, value in values.items() if name in kept}
    if stats.is_summary:
        state.mark("loss", Mark.AVERAGED)
    return values


def _step_of(state: RunState, stats: Stats) -> int | None:
    if stats.step is None:
        return _epoch_as_step(state, stats)
    if stats.epoch is None and stats.per_epoch is None:
        return stats.step
    before = state.epochs.before
    recent, last = state.now.recent, state.now.counter
    stride = recent[-1] - recent[-2] if len(recent) > 1 else 1
    step = state.epochs.step(stats, stats.step, last, stride)
    if state.epochs.before != before:
        state.mark("step", Mark.PLACED)
    return step


def _epoch_as_step(state: RunState, stats: Stats) -> int | None:
    """The epoch as a step, in a log in which nothing finer counts."""
    now, epoch = state.now, stats.epoch
    if epoch is None or (now.is_numbered and not (now.counts_epochs or now.is_empty)):
        return None  # a bar alone, before any row, numbers no row
    if now.is_numbered and not now.counts_epochs:
        now.counter = now.first_counter = None
    now.counts_epochs = True
    state.mark("step", Mark.EPOCHS)
    is_another = epoch == now.counter and stats.values.keys() & (now.open or {}).keys() & {"loss"}
    return None if is_another else epoch


def _is_repeat(state: RunState, step: int, values: Mapping[str, float]) -> bool:
    """Whether the run has this step: from another rank, or another line about it."""
    if state.now.counter is None or step > state.now.counter or step not in state.now.recent:
        return False
    if step == state.now.counter:
        return True
    return step > state.now.counter - REMEMBERED_STEPS and not values.keys() - {"time_ns"}


def _merge(state: RunState, values: Mapping[str, float], *, are_later: bool) -> None:
    if state.now.open is None:
        return
    for name, value in values.items():
        if are_later or state.now.open.get(name) is None:
            state.now.open[name] = value
    if "scale_after" in values and values["scale_after"] == state.now.open.get("scale_after"):
        state.now.scale = values["scale_after"]


def _closes_open(state: RunState, step: int | None, row: Row) -> bool:
    """Whether the last row is an overflow of the same step; it then gets the statement's values."""
    last = state.now.open
    if last is None or not last.get("skipped") or step != last["step"]:
        return False
    if row.get("skipped") is None:
        row["skipped"] = last["skipped"]
    after = row.pop("scale_after", None)
    if last.get("scale_after") is None and after is not None:
        last["scale_after"] = state.now.scale = after
    for name, value in row.items():
        if last.get(name) is None:
            last[name] = value
    return True


def _after_stats(state: RunState, stats: Stats, row: Row) -> None:
    if "loss" in stats.values and not stats.is_summary:
        state.now.has_fine_losses = True
    state.now.last_norm = stats.values.get("grad_norm", state.now.last_norm)
    if stats.total_skips is not None:
        state.now.total_skips = stats.total_skips
    state.now.skips_since = 0
    state.now.accepted_since_skip = not row.get("skipped")


# --- skips, scales and progress bars --------------------------------------------------------------


def put_skip(state: RunState, skip: Skip) -> None:
    """Add the row of a skip statement, after the accepted steps that it implies."""
    if _is_counted(state, skip):
        state.now.credit -= 1
        _add_scale_of_counted(state, skip)
        return
    step, last = skip.step, state.now.open
    if last is not None and not last.get("skipped") and _explains(skip, last):
        _mark_skipped(state, last)
        return
    if step is not None:
        if last is not None and last["step"] == step and last.get("skipped"):
            return  # another rank's line
        state.meet(step)
    before = skip.scale if skip.scale is not None else scale_before(state, skip.scale_after)
    show_growth(state, before)
    show_accepted(state, step, before)
    scale = grown_before(state, before) if skip.scale is None else skip.scale
    row: Row = {"step": state.placed(step), "scale": scale, "scale_after": skip.scale_after}
    if skip.grad_norm is not None:
        row["grad_norm"] = skip.grad_norm
    if skip.time_ns is not None:
        row["time_ns"] = skip.time_ns
    state.add({**row, "skipped": True, "found_inf": True})
    state.now.skips_since += 1
    state.now.skips_told += 1
    state.now.accepted_since_skip = False


def _is_counted(state: RunState, skip: Skip) -> bool:
    """Whether a skip statement is about an overflow that a counter printed just before includes.

    An overflow that starts at the scale printed beside the counter came after it.
    """
    if not state.now.credit or skip.step is not None:
        return False
    return skip.scale is None or not is_same(state.now.credit_scale, skip.scale)


def _explains(skip: Skip, last: Row) -> bool:
    """Whether a skip statement only explains why the last row's values are not finite."""
    is_bare = skip.step is None and skip.scale is None and skip.scale_after is None
    finite = all(math.isfinite(last.get(name) or 0.0) for name in ("loss", "grad_norm"))
    return is_bare and skip.grad_norm is None and not finite


def _mark_skipped(state: RunState, row: Row) -> None:
    """Mark the last row as skipped, at the scale that was printed with it."""
    row["skipped"] = row["found_inf"] = True
    if row.get("scale") is None and "scale_after" in row:
        row["scale"] = row.pop("scale_after")
    state.now.skips_since += 1  # the next line shows the fall
    state.now.skips_told += 1
    state.now.accepted_since_skip = False


def _add_scale_of_counted(state: RunState, skip: Skip) -> None:
    """Add a skip statement's scale to the row of an overflow that a counter has already added."""
    row = state.now.open
    if row is not None and not row.get("skipped") and row.get("scale_after") is None:
        row["scale_after"] = state.now.scale = skip.scale_after
    amend(state, Amend(scale=skip.scale, scale_after=skip.scale_after))


def amend(state: RunState, more: Amend) -> None:
    """Add a later statement about an overflow to its row, which is the last one."""
    row = state.now.open
    if row is not None and more.is_skip and not row.get("skipped"):
        _mark_skipped(state, row)
    if row is None or not row.get("skipped"):
        return
    if more.scale is not None and row.get("scale") is None:
        row["scale"] = more.scale
        state.seen_scale(more.scale)
    if more.scale_after is not None and row.get("scale_after") is None:
        row["scale_after"] = state.now.scale = more.scale_after
    if more.layer:
        state.event(EventKind.OVERFLOW, {"direction": "backward", "layer": more.layer})


def take_scale(state: RunState, told: Scale) -> None:
    """Add the row of a scale printed alone, after the skips that its fall implies."""
    if told.step is not None:
        state.meet(told.step)
    now = state.now
    same = now.open is not None and told.step in (None, now.open["step"])
    if same and now.scale == told.scale_after:
        return
    drops = 0 if now.scale is None else octaves_between(told.scale_after, now.scale)
    missing = drops - now.skips_since
    if missing > 0:
        path = halvings(now.scale, told.scale_after, missing)
        imply(state, missing, told.step, path, told.scale_after)
    state.add({"step": state.placed(told.step), "scale_after": told.scale_after})
    now.skips_since = 0
    now.accepted_since_skip = True


# After so many rows without a bar below them a bar does not count what the rows count.
_MOST_UNNUMBERED = 2


def take_progress(state: RunState, bar: Progress) -> None:
    """Take the step of a progress bar; bars of other loops (evaluation) count once it is full."""
    now = state.now
    if now.counts_epochs and not bar.values:
        return
    is_other = bar.total != now.bar_total
    if is_other and now.bar_total is not None and not now.bar_is_full:
        return
    if is_other:
        now.counter = None if now.is_empty else now.counter
    elif now.counter is not None and bar.step < now.counter - 1:
        state.restart()
        now = state.now
    now.bar_total, now.bar_is_full = bar.total, bar.step == bar.total
    if now.is_unnumbered and now.unnumbered >= _MOST_UNNUMBERED:
        return
    if now.is_unnumbered and now.open is not None and bar.step > now.step_before:
        now.open["step"] = now.last_step = bar.step  # the bar is drawn again below a line
        now.is_unnumbered = False
    if now.first_counter is None:
        now.first_counter = bar.step
    if now.counter is None or bar.step > now.counter:
        now.counter = bar.step
        now.is_numbered = True
    if bar.values:
        take_stats(state, Stats(step=bar.step, values=bar.values))


# --- steps that nobody printed --------------------------------------------------------------------

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
    steps = _skips_by_counters(state, stats)
    if silent:  # all steps of the window; for a first line its length is unknown
        steps = max(steps, window if state.now.counter is not None else 1)
    after = values.get("scale_after", values.get("scale"))
    scale = state.now.scale
    fell = 0 if after is None or scale is None else octaves_between(after, scale)
    overflowed = after is not None and not math.isfinite(values.get("grad_norm", 0.0))
    overflowed &= state.now.has_scaler or after != 1.0  # bf16 prints a constant 1
    if overflowed and state.now.scale is None:
        steps = max(steps, 1)  # a first line: the scale before it is unknown
    counted = steps if state.now.total_skips is not None or stats.total_skips is None else 0
    missing = max(steps, fell) - state.now.skips_since
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
        elif number == count - 1 and after is not None and after <= (state.now.scale or math.inf):
            row["scale_after"] = after
        state.add(row)
    state.now.skips_told += count


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
