"""How restarts changed a run: loss, gradients and updates just after each, compared with before.

A restart is a place where steps begin anew, or an event that reports one. A run that was restored
completely continues as it was. One whose optimizer began without its state makes updates of another
size, and the loss leaves its band within tens of steps. In a long record that heals, and only these
rows show it. One whose rate began anew may take thousands of steps to leave its band, and does not
come back: the end of the record shows that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ampwatch.diagnosis.blocks import Block, Times
from ampwatch.diagnosis.column_arrays import Floats, known_of, median_of_known
from ampwatch.diagnosis.learning_rate import RateRows, RateState
from ampwatch.rows import EventKind

# So many windows of so many rows before a restart show how far apart they lie by themselves, and
# two after it what changed; the first few rows still stand on the old weights.
_WINDOW, _WINDOWS, _FIRST_ROWS = 32, 8, 8
_AFTER = _FIRST_ROWS + 2 * _WINDOW
# The loss lies beyond all of them by as much as they lie apart, and by a tenth; and gradients or
# updates twice beyond all of theirs, or by a quarter, and the loss four times as far. Where neither
# is recorded: twice as far, and by a quarter.
_LOSS_RISE, _BLIND_RISE, _FAR_APART = 1.1, 1.25, 4.0
_NORM_RISE = 2.0
_NORMS = ("update", "grad_norm")
# A schedule that started over raises the rate; then long updates prove nothing.
_RATE_RISE = 2.0
# Restarts by events; an attempt's first rows have nothing before them.
_EVENTS = frozenset(
    kind.value for kind in (EventKind.STATE_LOADED, EventKind.STARTED, EventKind.OPTIMIZER_REPLACED)
)
_MOST_OPEN, _MOST_RAISED = 16, 4


@dataclass(frozen=True, slots=True)
class RestartJump:
    """How a restart changed the loss, and gradients or updates with it."""

    step: int
    is_seam: bool
    loss: tuple[float, float]  # the highest window's median before it, and after it
    norm: str | None  # what else leapt
    times: float  # ... and how many times
    position: int
    rates: tuple[float, float] | None = None  # before and after, where they are why


@dataclass(frozen=True, slots=True)
class _Restart:
    """A restart that cannot be judged yet, and windows of the rows before it."""

    position: int
    step: int
    is_seam: bool
    before: Sequence[RateRows]  # windows of the steps that it goes on from
    nearest: Sequence[RateRows]  # ... of the rows before it: how far they vary without a restart


@dataclass(frozen=True, slots=True)
class RestartHistory:
    """The restarts of a run and the jumps right after them; `fold` makes a new one."""

    open: tuple[_Restart, ...] = ()
    raised: tuple[tuple[_Restart, float], ...] = ()  # the last few that raised the rate, to what
    jumps: Times = field(default_factory=Times)
    first: RestartJump | None = None
    last: RestartJump | None = None

    def fold(self, state: RateState, rows: RateRows, block: Block) -> RestartHistory:
        """The history with one more block; `state` holds the rows before the block."""
        begins = _restarts_in(block)
        if not (begins or self.open):
            return self
        recent = RateRows(np.concatenate([state.tail.values, rows.values]))
        begin = state.rows - len(state.tail)
        new = tuple(
            _restart(position, step, is_seam, recent.part(0, position - begin), state)
            for position, (step, is_seam) in begins.items()
        )
        history = replace(self, open=(*self.open, *new)[-_MOST_OPEN:])
        return history._judged(_AFTER, recent, begin)

    def finished(self, state: RateState) -> RestartHistory:
        """The history at the end of the record: restarts with half of the rows are judged too.

        `state` holds all rows.
        """
        history = self._judged(_AFTER // 2, state.tail, state.rows - len(state.tail))
        end = state.tail.part(-_AFTER)
        for one, rate in history.raised if history.last is None else ():
            if state.rows - one.position >= 2 * _AFTER and (jump := _lasting(one, rate, end)):
                times = history.jumps.and_at(jump.step, jump.position)
                history = replace(history, jumps=times, first=history.first or jump, last=jump)
        return history

    def _judged(self, least: int, rows: RateRows, begin: int) -> RestartHistory:
        """Judge the restarts that have at least so many rows after them."""
        history, waiting = self, []
        for one in self.open:
            at = one.position - begin
            if at + least > len(rows):
                waiting.append(one)
                continue
            after = rows.part(at + _FIRST_ROWS, at + _AFTER)
            jump, rate = _jump(one, after), _median("lr", after)
            if rate >= _RATE_RISE * _medians("lr", one.before).max(initial=0.0) > 0:
                raised = (*history.raised, (one, rate))[-_MOST_RAISED:]
                history = replace(history, raised=raised)
            if jump is not None:
                times = history.jumps.and_at(jump.step, jump.position)
                history = replace(history, jumps=times, first=history.first or jump, last=jump)
        return replace(history, open=tuple(waiting))


def _restarts_in(block: Block) -> dict[int, tuple[int, bool]]:
    """Each restart in a block: its step, and whether steps begin anew there."""
    begins = {block.start: (int(block.step[0]), True)} if block.restart and len(block) else {}
    for event in block.events:
        if event.kind in _EVENTS:
            begins.setdefault(block.position(event.step), (event.step, False))
    begins.pop(0, None)  # before the first row there is nothing
    return begins


def _restart(position: int, step: int, is_seam: bool, rows: RateRows, state: RateState) -> _Restart:  # noqa: FBT001
    """A restart with the rows before it; where steps begin anew, it continues from earlier ones."""
    nearest = before = _last_windows(rows)
    if is_seam:
        earlier = np.flatnonzero(rows.of("step") < step)
        before = _last_windows(rows.part(0, int(earlier[-1]) + 1 if len(earlier) else 0))
        if len(before) < 2:  # those rows are not kept any more: the history
            cells = state.points.rows
            at = np.flatnonzero(cells.of("step") < step)[-_WINDOWS:]
            before = [cells.part(n, n + 1) for n in at.tolist()]
    return _Restart(position, step, is_seam, before, nearest)


def _last_windows(rows: RateRows) -> list[RateRows]:
    """The last rows before a restart, in windows."""
    rows = rows.part(-_WINDOW * _WINDOWS)
    whole = range(len(rows) % _WINDOW, len(rows), _WINDOW)
    return [rows.part(at, at + _WINDOW) for at in whole]


def _jump(one: _Restart, after: RateRows) -> RestartJump | None:
    loss = _leap("loss", one, after)
    if loss is None or loss.before <= 0 or _counts_differ(one, after):
        return None
    leaps = [(name, _leap(name, one, after)) for name in _NORMS]
    leaps_known = [(leap.times, name) for name, leap in leaps if leap is not None]
    times, name = max(leaps_known, default=(1.0, None))
    if leaps_known:
        is_jump = loss.times > _LOSS_RISE and loss.apart > 1.0 and times > _NORM_RISE
        is_jump |= loss.times > _LOSS_RISE and loss.apart > _FAR_APART and times > _BLIND_RISE
    else:
        is_jump = loss.times > _BLIND_RISE and loss.apart > 2.0
    if not is_jump:
        return None
    pair = (loss.before, loss.before * loss.times)
    return RestartJump(one.step, one.is_seam, pair, name, times, one.position)


def _lasting(one: _Restart, rate: float, end: RateRows) -> RestartJump | None:
    """The jump of a loss that rose with the rate after a restart and has not come back."""
    loss, norm = _leap("loss", one, end), _leap("grad_norm", one, end)
    if loss is None or loss.before <= 0 or _counts_differ(one, end):
        return None
    is_high = norm.times > _NORM_RISE and loss.apart > 1.0 if norm else loss.apart > 2.0
    if loss.times <= _BLIND_RISE or not is_high:
        return None
    name, times = ("grad_norm", norm.times) if norm else (None, 1.0)
    pair, rates = (loss.before, loss.before * loss.times), (_medians("lr", one.before).max(), rate)
    return RestartJump(one.step, one.is_seam, pair, name, times, one.position, rates)


@dataclass(frozen=True, slots=True)
class _Leap:
    before: float  # the highest of the windows
    times: float
    apart: float  # beyond them, in units of how far they lie apart


def _leap(name: str, one: _Restart, after: RateRows) -> _Leap | None:
    before, nearest = _medians(name, one.before), _medians(name, one.nearest)
    value = _median(name, after)
    if len(before) < 2 or not np.isfinite(value):
        return None
    highest = float(before.max())
    spread = max(float(np.ptp(known)) for known in (before, nearest) if len(known))
    apart = (value - highest) / max(spread, 1e-12 + 1e-3 * abs(highest))
    return _Leap(highest, value / highest if highest > 0 else 1.0, apart)


def _counts_differ(one: _Restart, after: RateRows) -> bool:
    """Whether steps after a restart hold another number of micro-batches: no comparison then."""
    old, new = _medians("micro_batches", one.before), _median("micro_batches", after)
    return bool(np.isfinite(new) and (old != new).any())


def _medians(name: str, windows: Sequence[RateRows]) -> Floats:
    """The median of a column in each window before a restart, where it is known."""
    values = np.array([_median(name, rows) for rows in windows])
    return known_of(values)


def _median(name: str, rows: RateRows) -> float:
    """The median of a column over accepted steps around a restart; nan if it is not recorded."""
    rows = rows.where(rows.accepted) if len(rows) > 1 else rows
    values = rows.ratio if name == "update" else rows.of(name)
    return median_of_known(values)
