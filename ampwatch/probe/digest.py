"""From the raw values of closed steps to rows: many steps at once, on the courier's thread.

Work is done on whole arrays of steps, so that the training thread seldom waits for the interpreter.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ampwatch.probe.capture import LayerCapture
from ampwatch.probe.forwards import data_magnitudes, first_bad_output, was_left_out
from ampwatch.probe.layer_digest import LayerCells, LayerDigest, LayerDigester
from ampwatch.probe.layer_rows import LayerLog, LayerStep, has_moved, merged, rows_of
from ampwatch.probe.loop import overflowed
from ampwatch.probe.models import Survey
from ampwatch.probe.norms import NormCapture
from ampwatch.probe.optimizer_state import rounding_of
from ampwatch.probe.overflow import CulpritFinder
from ampwatch.probe.own_backward import own_backward
from ampwatch.probe.records import EventRecord, Loss, StepRecord, Turn
from ampwatch.probe.stale_gradients import is_poisoned
from ampwatch.probe.update_norms import Move, Mover
from ampwatch.rows import DTYPE_NUMBERS, SCHEMAS, EventKind, Table

Columns = dict[str, list[Any]]
STEP_COLUMNS = tuple(SCHEMAS[Table.STEPS].names)

# What a rank holds of sharded gradients; squared and added up over the ranks that share one copy
# of the model it is the norm, which no rank knows.
SHARD_NORM = "grad_norm_shard"


class Digest:
    """Turns records into the columns of each table; remembers what later rows need."""

    def __init__(self, survey: Survey) -> None:
        self._survey = survey
        self._groups: dict[int, int] = {}  # the parameters' groups in their optimizer
        self._mover = Mover(survey)
        self._layers = LayerLog(survey)
        self._culprits = CulpritFinder(survey)
        self._details = LayerDigester(survey, self._groups.get)
        self._correction: dict[int, float] = {}  # exact over estimated weight norm, by optimizer
        self._inner_autocast: str | None = None  # where autocast is entered inside the model

    def rows(self, records: Iterable[StepRecord | EventRecord]) -> list[tuple[Table, Columns]]:
        """The column sets of every table that has rows now."""
        with np.errstate(all="ignore"):  # inf and nan are what we are here to write down
            return self._rows(records)

    def forget(self) -> None:
        """The last rows are made: hold no parameter any more."""
        self._survey.parameters.clear()

    def _rows(self, records: Iterable[StepRecord | EventRecord]) -> list[tuple[Table, Columns]]:
        steps = [r for r in records if isinstance(r, StepRecord)]
        events = [r for r in records if isinstance(r, EventRecord)]
        # Readers tell attempts apart by this event, so it comes before all other rows.
        starts = [event for event in events if event.kind is EventKind.STARTED]
        events = [event for event in events if event.kind is not EventKind.STARTED]
        moved = self._mover.moves(steps)
        cells: list[dict[str, Any]] = []
        extras: Columns = {"step": [], "name": [], "value": []}
        sets: list[tuple[Table, Columns]] = [(Table.EVENTS, _event_columns(starts))]
        for record in steps:
            if record.noted is not None:
                record.layers, record.noted = record.noted.capture(record.pack), None
            if record.layers is not None:
                self._inner_autocast = _half_output(record.layers)
            self._step_cells(record, moved, cells)
            _extra_rows(record, extras)
            sets += self._layer_sets(record, moved, events)
        columns = {name: [row.get(name) for row in cells] for name in STEP_COLUMNS}
        sets += [
            (Table.STEPS, columns),
            (Table.EXTRAS, extras),
            (Table.EVENTS, _event_columns(events)),
        ]
        return [(table, rows) for table, rows in sets if rows["step"]]

    def _layer_sets(
        self, record: StepRecord, moved: dict[int, Move], events: list[EventRecord]
    ) -> list[tuple[Table, Columns]]:
        """The layers' rows that this step makes necessary; an overflow adds its event."""
        left_out = was_left_out(record)
        bad = left_out or overflowed(record)
        self._layers.take(record, moved)
        sets: list[tuple[Table, Columns]] = []
        if not (bad or record.sampled):
            return sets
        known = self._layers.last()
        details = None
        if record.layers is not None:
            for turn in record.turns:
                self._groups.update(zip(turn.positions, turn.groups, strict=True))
            details = self._details.digest(
                record.layers, record.pack.values, scale_of(record), record.step,
                _largest_scaled_loss(record),
            )  # fmt: skip
            if left_out:
                details = _with_outputs(details, record, known)
            sets.append((Table.LAYER_INFO, details.info_rows()))
            sets.append((Table.LAYERS, merged(details.rows(), known)))
        else:
            sets.append((Table.LAYERS, rows_of([known])))
        if bad:
            sets.append((Table.LAYERS, rows_of(self._layers.around_overflow())))
            events.append(self._overflow(record, known, details))
        if details is not None:
            self._culprits.learn(details, scale_of(record), overflowed=bad)
        return sets

    def _overflow(
        self, record: StepRecord, known: LayerStep, details: LayerDigest | None
    ) -> EventRecord:
        """The event of a step in which an optimizer found an inf."""
        values = record.pack.values
        losses = [loss for turn in record.turns for loss in turn.losses if loss.counted]
        losses_known = [loss.pack.values[loss.at] for loss in losses]
        left_out = was_left_out(record)
        if left_out and record.logged_loss_at is not None:
            losses_known.append(values[record.logged_loss_at])
        poisoned = is_poisoned(record)  # then the gradients say nothing of this step's backward
        loss_finite = _all_finite(losses_known)
        own = own_backward(record, known, loss_finite=loss_finite)
        culprit = self._culprits.find(
            {} if poisoned else own.parameter_finite,
            loss_finite=loss_finite,
            input_finite=_all_finite(data_magnitudes(record)),
            digest=details,
            looked_inside=record.sampled or not left_out,
        )
        optimizers = [t.optimizer for t in record.turns if any(values[at] for at in t.found_inf_at)]
        detail: dict[str, Any] = {"optimizers": optimizers, "scale": scale_of(record)}
        if left_out:
            detail["guarded"] = True
        detail |= {"stale": True} if poisoned else own.detail()
        if culprit is not None:
            detail |= culprit.detail()
        return EventRecord(record.step, record.time_ns, EventKind.OVERFLOW, detail)

    def _step_cells(
        self, record: StepRecord, moved: dict[int, Move], rows: list[dict[str, Any]]
    ) -> None:
        """A row for each optimizer that had a turn; one all the same if none had."""
        shared = _shared_cells(record)
        if record.autocast_dtype is None and self._inner_autocast is not None:
            shared["autocast_dtype"] = DTYPE_NUMBERS[self._inner_autocast]
        if not record.turns:
            rows.append({**shared, **_loss_cells(record, record.losses)})
        for turn in record.turns:
            cells = {**shared, **_loss_cells(record, turn.losses), **_turn_cells(record, turn)}
            move = moved.get(id(turn))
            if move is not None:
                cells.update(self._update_cells(record, turn, move))
            cells.update(_rounding_cells(record, turn))
            rows.append(cells)

    def _update_cells(self, record: StepRecord, turn: Turn, move: Move) -> dict[str, Any]:
        cells: dict[str, Any] = {
            "update_norm": move.update_norm,
            "update_norm_rel_error": move.relative_error,
            "update_alignment": move.alignment,
            "max_update_ratio": move.largest_ratio,
            "max_update_layer": move.largest_layer,
        }
        if move.weight_norm is not None:
            if turn.param_norm_at is not None and move.weight_norm > 0:
                exact = record.pack.values[turn.param_norm_at]
                self._correction[turn.optimizer] = exact / move.weight_norm
            cells["param_norm"] = move.weight_norm * self._correction.get(turn.optimizer, 1.0)
        return cells


def _shared_cells(record: StepRecord) -> dict[str, Any]:
    """What all optimizers' rows of one step have in common."""
    values = record.pack.values
    cells: dict[str, Any] = {
        "step": record.step,
        "time_ns": record.time_ns,
        "update_seen": record.update_seen,
        "step_time_ms": record.step_time_ms,
    }
    if record.scale_at is not None:
        cells["scale"] = values[record.scale_at]
    if record.tracker_at is not None:
        cells["growth_tracker"] = int(values[record.tracker_at])
    if record.scale_after_at is not None:
        cells["scale_after"] = values[record.scale_after_at]
    if record.autocast_dtype is not None:
        cells["autocast_dtype"] = DTYPE_NUMBERS.get(record.autocast_dtype, DTYPE_NUMBERS["other"])
    if amax := data_magnitudes(record):
        finite = all(map(math.isfinite, amax))
        cells["input_finite"] = finite
        cells["input_amax"] = max(amax) if finite else _worst(amax)
    return cells


def _with_outputs(details: LayerDigest, record: StepRecord, known: LayerStep) -> LayerDigest:
    """With what is known of the layers' outputs in a step that nobody had chosen to look into."""
    told: dict[int, dict[str, Any]] = {}
    if known.first_layer is not None and known.first_amax is not None:
        finite = math.isfinite(known.first_amax)
        told[known.first_layer] = {"act_amax": known.first_amax, "act_finite": finite}
    gave = first_bad_output(record)
    if gave is not None:
        told.setdefault(gave, {})["act_finite"] = False
    cells = dict(details.cells)
    for layer, figures in told.items():
        seen = cells.get(layer, LayerCells(layer))
        if seen.act_finite is None:
            cells[layer] = replace(seen, **figures)
    return replace(details, cells=cells)


def _all_finite(values: Sequence[float]) -> bool | None:
    """None where there are none."""
    return all(map(math.isfinite, values)) if values else None


def scale_of(record: StepRecord) -> float | None:
    """The loss scale of this step's gradients."""
    return None if record.scale_at is None else record.pack.values[record.scale_at]


def _largest_scaled_loss(record: StepRecord) -> float | None:
    """What this step's backward passes began with, the largest; None if nobody saw it."""
    values = record.pack.values
    losses = [loss for turn in record.turns for loss in turn.losses if loss.counted]
    seen = [abs(loss.pack.values[loss.at]) for loss in losses]
    if record.logged_loss_at is not None:
        seen.append(abs(values[record.logged_loss_at]))
    scale = scale_of(record) if record.enabled else 1.0
    return None if scale is None or not seen else scale * max(seen)


def _half_output(capture: LayerCapture) -> str | None:
    """The half precision that autocast gives inside the model."""
    for visit in capture.visits:
        if visit.autocast and visit.output_dtype in ("float16", "bfloat16"):
            return visit.output_dtype
    return None


def _worst(values: Iterable[float]) -> float:
    """nan if there is one, else inf."""
    return math.nan if any(map(math.isnan, values)) else math.inf


def _loss_cells(record: StepRecord, losses: Sequence[Loss]) -> dict[str, Any]:
    counted = [loss.pack.values[loss.at] for loss in losses if loss.counted]
    loss = sum(counted) if counted else None
    if record.logged_loss_at is not None:
        loss = record.pack.values[record.logged_loss_at]
    return {"loss": loss, "micro_batches": len(counted) or None}


def _turn_cells(record: StepRecord, turn: Turn) -> dict[str, Any]:
    """One optimizer's own cells."""
    values = record.pack.values
    cells: dict[str, Any] = {
        "optimizer": turn.optimizer,
        "stepped": turn.stepped,
        "lrs": turn.lrs or None,
        "lr_bases": turn.lr_bases or None,
        "lr": turn.lrs[0] if turn.lrs else None,
        "lr_base": turn.lr_bases[0] if turn.lr_bases else None,
    }
    if turn.found_inf_at:
        cells["found_inf"] = any(values[at] > 0 for at in turn.found_inf_at)
        cells["skipped"] = cells["found_inf"]
    elif not record.enabled:
        cells["skipped"] = False
    cells["grad_norm"] = total_norm(record, turn.norms)
    unedited = turn.applied is None
    cells["grad_norm_applied"] = (
        cells["grad_norm"] if unedited else total_norm(record, turn.applied)
    )
    return cells


def _rounding_cells(record: StepRecord, turn: Turn) -> dict[str, Any]:
    """What became of the update in half-precision weights, where it was looked for."""
    if turn.state is None or not has_moved(turn, record.pack.values):
        return {}
    rounding = rounding_of(turn.state, record.pack.values)
    if rounding is None:
        return {}
    return {
        "unmoved_share": rounding.unmoved_share,
        "asked_share": rounding.asked_share,
        "update_kept_share": rounding.kept_share,
    }


def total_norm(record: StepRecord, norms: NormCapture | None) -> float | None:
    """One measurement's global norm, of unscaled gradients."""
    if norms is None or norms.unseen or norms.sharded:
        return None  # a part is missing: no total
    return _held_norm(record, norms)


def _held_norm(record: StepRecord, norms: NormCapture) -> float | None:
    """The norm of the gradients that this process holds."""
    total = norms.total(record.pack.values)
    return _unscaled(record, total) if norms.scaled else total


def _unscaled(record: StepRecord, norm: float) -> float | None:
    scale = scale_of(record)
    if scale is None:
        return None
    return float(np.float32(norm) * np.float32(1.0 / scale)) if scale else math.inf


def _extra_rows(record: StepRecord, extras: Columns) -> None:
    for name, at in record.scalars:
        extras["step"].append(record.step)
        extras["name"].append(name)
        extras["value"].append(record.pack.values[at])
    for turn in record.turns:
        if turn.norms is not None and turn.norms.sharded:
            extras["step"].append(record.step)
            extras["name"].append(SHARD_NORM)
            extras["value"].append(_held_norm(record, turn.norms))
            return


def _event_columns(events: Sequence[EventRecord]) -> Columns:
    return {
        "step": [event.step for event in events],
        "time_ns": [event.time_ns for event in events],
        "kind": [EventKind(event.kind).value for event in events],
        "detail": [json.dumps(event.detail, default=str) for event in events],
    }
