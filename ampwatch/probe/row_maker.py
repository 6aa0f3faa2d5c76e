"""Makes rows of the raw values of closed steps: many steps at once, on the courier's thread.

Work is done on whole columns, so that the training thread seldom waits for the interpreter.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ampwatch.probe.checkpoints import CheckpointStamps
from ampwatch.probe.culprit import CulpritFinder, own_backward
from ampwatch.probe.layer_observer import SampledLayers
from ampwatch.probe.layer_rows import (
    LayerFigures,
    LayerInfos,
    LayerLog,
    LayerStep,
    figures_of,
    info_columns,
    merged,
    rows_of,
)
from ampwatch.probe.models import Survey
from ampwatch.probe.norms import NormCapture
from ampwatch.probe.optimizers import rounding_of
from ampwatch.probe.records import EventRecord, Loss, StepRecord, Turn
from ampwatch.probe.tensor_values import HALF, dtype_name, largest
from ampwatch.probe.weight_updates import Move, Mover
from ampwatch.rows import DTYPE_NUMBERS, EventKind, Table

Columns = dict[str, list[Any]]
TableRows = tuple[Table, Columns]
StepRow = tuple[StepRecord, Turn | None]

# What a rank holds of sharded gradients; squared and added up over the ranks that share one copy
# of the model it is the norm, which no rank knows.
SHARD_NORM = "grad_norm_shard"


class RowMaker:
    """Turns records into the columns of each table; remembers what later rows need."""

    def __init__(self, survey: Survey) -> None:
        self._survey = survey
        self._groups: dict[int, int] = {}  # the parameters' groups in their optimizer
        self._mover = Mover(survey)
        self._layers = LayerLog(survey)
        self._infos = LayerInfos(survey, self._groups.get)
        self._culprits = CulpritFinder(survey, self._infos.written)
        self._stamps = CheckpointStamps()
        self._correction: dict[int, float] = {}  # exact over estimated weight norm, by optimizer
        self._inner_autocast: str | None = None  # where autocast is entered inside the model

    def rows(self, records: Iterable[StepRecord | EventRecord]) -> list[TableRows]:
        """The columns of every table that has rows now."""
        with np.errstate(all="ignore"):  # inf and nan are what we are here to write down
            return self._rows(records)

    def forget(self) -> None:
        """The last rows are made: hold no parameter any more."""
        self._survey.parameters.clear()

    def _rows(self, records: Iterable[StepRecord | EventRecord]) -> list[TableRows]:
        steps = [r for r in records if isinstance(r, StepRecord)]
        events = [r for r in records if isinstance(r, EventRecord)]
        # Readers tell attempts apart by this event, so it comes before all other rows.
        starts = [event for event in events if event.kind is EventKind.STARTED]
        events = [event for event in events if event.kind is not EventKind.STARTED]
        moved = self._mover.moves(steps)
        tables: list[TableRows] = [(Table.EVENTS, _event_columns(starts))]
        autocast: list[int | None] = []
        for record in steps:
            if record.layers is not None:
                record.layers.put(record.pack)
                self._inner_autocast = _half_output(record.layers)
            autocast += [self._autocast_number(record)] * max(1, len(record.turns))
            layer_tables, overflow = self._layer_rows(record, moved)
            tables += layer_tables
            events += overflow
        rows: list[StepRow] = [(r, turn) for r in steps for turn in r.turns or (None,)]
        columns = {**_step_columns(rows), **self._update_columns(rows, moved)}
        self._stamps.follow(columns["step"], columns["param_norm"], columns["scale"])
        self._stamps.stamp(events)
        tables += [
            (Table.STEPS, {**columns, "autocast_dtype": autocast}),
            (Table.EXTRAS, _extra_columns(steps)),
            (Table.EVENTS, _event_columns(events)),
        ]
        for record in steps:
            record.layers = None  # the ring keeps the record for 64 steps
        return [(table, found) for table, found in tables if found["step"]]

    def _autocast_number(self, record: StepRecord) -> int | None:
        dtype = record.autocast_dtype or self._inner_autocast
        return None if dtype is None else DTYPE_NUMBERS.get(dtype, DTYPE_NUMBERS["other"])

    # -- layers ----------------------------------------------------------------------------------

    def _layer_rows(
        self, record: StepRecord, moved: Mapping[int, Move]
    ) -> tuple[list[TableRows], list[EventRecord]]:
        """The layers' rows that this step makes necessary; an overflow adds its event."""
        left_out = record.was_left_out
        bad = left_out or record.has_overflowed
        self._layers.take(record, moved)
        if not (bad or record.sampled):
            return [], []
        layers = self._layers.last()
        tables: list[TableRows] = []
        figures = None
        if record.layers is None:
            tables.append((Table.LAYERS, rows_of([layers])))
        else:
            for turn in record.turns:
                self._groups.update(zip(turn.positions, turn.groups, strict=True))
            changed = self._infos.changed(record.layers)
            figures = self._figures(record, record.layers)
            if left_out:
                _add_outputs(figures, record, layers)
            changed = self._infos.with_routers(changed, record.layers, record.pack.values)
            tables.append((Table.LAYER_INFO, info_columns(record.step, changed)))
            tables.append((Table.LAYERS, merged(figures.columns, layers)))
        events = []
        if bad:
            tables.append((Table.LAYERS, rows_of(self._layers.around_overflow())))
            events.append(self._overflow(record, layers, figures))
        if figures is not None:
            self._culprits.learn(figures, record.scale, overflowed=bad)
        return tables, events

    def _figures(self, record: StepRecord, sampled: SampledLayers) -> LayerFigures:
        values, scale = record.pack.values, record.scale
        return figures_of(sampled, self._survey.layers, values, scale, _largest_scaled_loss(record))

    def _overflow(
        self, record: StepRecord, known: LayerStep, figures: LayerFigures | None
    ) -> EventRecord:
        """The event of a step in which an optimizer found an inf."""
        values = record.pack.values
        losses = [loss for turn in record.turns for loss in turn.losses if loss.counted]
        losses_known = [loss.value for loss in losses]
        left_out = record.was_left_out
        if left_out and record.logged_loss_at is not None:
            losses_known.append(values[record.logged_loss_at])
        poisoned = record.is_poisoned  # then the gradients say nothing of this step's backward
        loss_finite = _all_finite(losses_known)
        own = own_backward(record, known, loss_finite=loss_finite)
        culprit = self._culprits.find(
            {} if poisoned else own.parameter_finite,
            loss_finite=loss_finite,
            input_finite=_all_finite(record.data_magnitudes),
            figures=figures,
            looked_inside=record.sampled or not left_out,
        )
        optimizers = [turn.optimizer for turn in record.turns if turn.found_inf(values)]
        detail: dict[str, Any] = {"optimizers": optimizers, "scale": record.scale}
        if left_out:
            detail["guarded"] = True
        detail |= {"stale": True} if poisoned else own.detail()
        if culprit is not None:
            detail |= culprit.detail()
        return EventRecord(record.step, record.time_ns, EventKind.OVERFLOW, detail)

    # -- updates ---------------------------------------------------------------------------------

    def _update_columns(self, rows: Sequence[StepRow], moved: Mapping[int, Move]) -> Columns:
        """What the optimizers did to the weights."""
        moves = [moved.get(id(turn)) for _, turn in rows]
        roundings = _of_turns(rows, _rounding)
        return {
            "update_norm": [m and m.update_norm for m in moves],
            "update_norm_rel_error": [m and m.relative_error for m in moves],
            "update_alignment": [m and m.alignment for m in moves],
            "max_update_ratio": [m and m.largest_ratio for m in moves],
            "max_update_layer": [m and m.largest_layer for m in moves],
            "param_norm": [
                None if turn is None or move is None else self._param_norm(record, turn, move)
                for (record, turn), move in zip(rows, moves, strict=True)
            ],
            "unmoved_share": [r and r.unmoved_share for r in roundings],
            "asked_share": [r and r.asked_share for r in roundings],
            "update_kept_share": [r and r.kept_share for r in roundings],
        }

    def _param_norm(self, record: StepRecord, turn: Turn, move: Move) -> float | None:
        """The weights' norm, corrected by what sampled steps showed of the estimate."""
        if move.weight_norm is None:
            return None
        if turn.param_norm_at is not None and move.weight_norm > 0:
            exact = record.pack.values[turn.param_norm_at]
            self._correction[turn.optimizer] = exact / move.weight_norm
        return move.weight_norm * self._correction.get(turn.optimizer, 1.0)


# -- columns of the `steps` table, a row for each optimizer's turn, or one if none had a turn ------


def _step_columns(rows: Sequence[StepRow]) -> Columns:
    records = [record for record, _ in rows]
    inputs = [record.data_magnitudes for record in records]
    losses = [_counted(record.losses if turn is None else turn.losses) for record, turn in rows]
    norms = _of_turns(rows, lambda record, turn: _global_norm(record, turn.norms))
    return {
        "step": [record.step for record in records],
        "time_ns": [record.time_ns for record in records],
        "update_seen": [record.update_seen for record in records],
        "step_time_ms": [record.step_time_ms for record in records],
        "scale": [record.scale for record in records],
        "growth_tracker": [
            None if r.tracker_at is None else int(r.pack.values[r.tracker_at]) for r in records
        ],
        "scale_after": [
            None if r.scale_after_at is None else r.pack.values[r.scale_after_at] for r in records
        ],
        "input_amax": list(map(largest, inputs)),
        "input_finite": list(map(_all_finite, inputs)),
        "loss": list(map(_loss, records, losses)),
        "micro_batches": [len(counted) or None for counted in losses],
        "optimizer": _of_turns(rows, lambda _, turn: turn.optimizer),
        "stepped": _of_turns(rows, lambda _, turn: turn.stepped),
        "lrs": _of_turns(rows, lambda _, turn: turn.lrs or None),
        "lr_bases": _of_turns(rows, lambda _, turn: turn.lr_bases or None),
        "lr": _of_turns(rows, lambda _, turn: turn.lrs[0] if turn.lrs else None),
        "lr_base": _of_turns(rows, lambda _, turn: turn.lr_bases[0] if turn.lr_bases else None),
        "found_inf": _of_turns(rows, lambda record, turn: turn.found_inf(record.pack.values)),
        "skipped": _of_turns(rows, _skipped),
        "grad_norm": norms,
        "grad_norm_applied": [
            norm if turn is None or turn.applied is None else _global_norm(record, turn.applied)
            for (record, turn), norm in zip(rows, norms, strict=True)
        ],
    }


def _of_turns(rows: Sequence[StepRow], cell: Callable[[StepRecord, Turn], Any]) -> list[Any]:
    return [None if turn is None else cell(record, turn) for record, turn in rows]


def _counted(losses: Iterable[Loss]) -> list[float]:
    return [loss.value for loss in losses if loss.counted]


def _loss(record: StepRecord, counted: Sequence[float]) -> float | None:
    if record.logged_loss_at is not None:
        return record.pack.values[record.logged_loss_at]
    return sum(counted) if counted else None


def _skipped(record: StepRecord, turn: Turn) -> bool | None:
    flag = turn.found_inf(record.pack.values)
    return False if flag is None and not record.enabled else flag


def _rounding(record: StepRecord, turn: Turn) -> Any:
    """What became of the update in half-precision weights, where it was looked for."""
    values = record.pack.values
    return rounding_of(turn.state, values) if turn.state and turn.has_moved(values) else None


def _all_finite(values: Sequence[float]) -> bool | None:
    """Whether all of these values are finite; None where there are none."""
    return all(map(math.isfinite, values)) if values else None


def _global_norm(record: StepRecord, norms: NormCapture | None) -> float | None:
    """One measurement's global norm, of unscaled gradients."""
    if norms is not None and norms.reported_at is not None:
        return record.pack.values[norms.reported_at]
    if norms is None or norms.unseen or norms.sharded:
        return None  # a part is missing: no total
    return _held_norm(record, norms)


def _held_norm(record: StepRecord, norms: NormCapture) -> float | None:
    """The norm of the gradients that this process holds."""
    total = norms.total(record.pack.values)
    if not norms.scaled:
        return total
    scale = record.scale
    if scale is None:
        return None
    return float(np.float32(total) * np.float32(1.0 / scale)) if scale else math.inf


# -- what a sampled step needs besides -------------------------------------------------------------


def _largest_scaled_loss(record: StepRecord) -> float | None:
    """What this step's backward passes began with, the largest; None if unknown."""
    values = record.pack.values
    losses = [abs(loss) for turn in record.turns for loss in _counted(turn.losses)]
    if record.logged_loss_at is not None:
        losses.append(abs(values[record.logged_loss_at]))
    scale = record.scale if record.enabled else 1.0
    return None if scale is None or not losses else scale * max(losses)


def _half_output(sampled: SampledLayers) -> str | None:
    """The half precision that autocast gives inside the model."""
    for visit in sampled.visits.values():
        if visit.autocast and visit.output_dtype in HALF:
            return dtype_name(visit.output_dtype)
    return None


def _add_outputs(figures: LayerFigures, record: StepRecord, known: LayerStep) -> None:
    """Add what is known of the layers' outputs in a step that was not sampled."""
    gave = record.first_bad_output
    first, amax = known.first_layer, known.first_amax
    if first is not None and amax is not None:
        figures.add_output(first, amax, finite=math.isfinite(amax) and first != gave)
    if gave is not None:
        figures.add_output(gave, None, finite=False)


# -- the other tables ------------------------------------------------------------------------------


def _extra_columns(steps: Iterable[StepRecord]) -> Columns:
    columns = [(record.step, *scalar) for record in steps for scalar in _scalars(record)]
    return {
        "step": [step for step, _, _ in columns],
        "name": [name for _, name, _ in columns],
        "value": [value for _, _, value in columns],
    }


def _scalars(record: StepRecord) -> Iterator[tuple[str, float | None]]:
    """A step's `extras`: the user's own, and the norm of this rank's part of sharded gradients."""
    for name, at in record.scalars:
        yield name, record.pack.values[at]
    for turn in record.turns:
        if turn.norms is not None and turn.norms.sharded:
            yield SHARD_NORM, _held_norm(record, turn.norms)
            return


def _event_columns(events: Sequence[EventRecord]) -> Columns:
    return {
        "step": [event.step for event in events],
        "time_ns": [event.time_ns for event in events],
        "kind": [EventKind(event.kind).value for event in events],
        "detail": [json.dumps(event.detail, default=str) for event in events],
    }
