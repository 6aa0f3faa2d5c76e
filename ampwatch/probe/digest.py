"""From the raw values of closed steps to rows: many steps at once, on the courier's thread.

Work is done on whole arrays of steps, so that the training thread seldom waits for the interpreter.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ampwatch.probe import updates
from ampwatch.probe.capture import LayerCapture
from ampwatch.probe.layer_digest import LayerDigest, LayerDigester
from ampwatch.probe.layer_rows import LayerLog, LayerStep, merged, rows_of
from ampwatch.probe.loop import overflowed
from ampwatch.probe.models import Survey
from ampwatch.probe.overflow import CulpritFinder
from ampwatch.probe.records import EventRecord, StepRecord, Turn
from ampwatch.probe.updates import DeviceUpdate, HostUpdate, UpdateFigures
from ampwatch.rows import DTYPE_NUMBERS, SCHEMAS, EventKind, Table

Columns = dict[str, list[Any]]
STEP_COLUMNS = tuple(SCHEMAS[Table.STEPS].names)


class Digest:
    """Turns records into the columns of each table; remembers what later rows need."""

    def __init__(
        self, survey: Survey, param_groups: Callable[[int], int | None] = lambda _position: None
    ) -> None:
        self._layers = LayerLog(survey)
        self._culprits = CulpritFinder(survey)
        self._details = LayerDigester(survey, param_groups)
        self._correction: dict[int, float] = {}  # exact over estimated weight norm, by optimizer
        self._inner_autocast: str | None = None  # where autocast is entered inside the model

    def rows(self, records: Iterable[StepRecord | EventRecord]) -> list[tuple[Table, Columns]]:
        """The column sets of every table that has rows now."""
        steps = [r for r in records if isinstance(r, StepRecord)]
        events = [r for r in records if isinstance(r, EventRecord)]
        moved = _update_figures(steps)
        columns: Columns = {name: [] for name in STEP_COLUMNS}
        extras: Columns = {"step": [], "name": [], "value": []}
        sets: list[tuple[Table, Columns]] = []
        for record in steps:
            self._step_rows(record, moved, columns)
            _extra_rows(record, extras)
            sets += self._layer_sets(record, moved, events)
        sets += [
            (Table.STEPS, columns),
            (Table.EXTRAS, extras),
            (Table.EVENTS, _event_columns(events)),
        ]
        return [(table, rows) for table, rows in sets if rows["step"]]

    def _layer_sets(
        self, record: StepRecord, moved: dict[int, UpdateFigures], events: list[EventRecord]
    ) -> list[tuple[Table, Columns]]:
        """The layers' rows that this step makes necessary; an overflow adds its event."""
        known = self._layers.take(record, moved)
        sets: list[tuple[Table, Columns]] = []
        details = None
        if record.layers is not None:
            details = self._details.digest(
                record.layers, record.pack.values, scale_of(record), record.step
            )
            self._inner_autocast = _half_output(record.layers)
            sets.append((Table.LAYER_INFO, details.info_rows()))
            sets.append((Table.LAYERS, merged(details.rows(), known)))
        elif record.sampled:
            sets.append((Table.LAYERS, rows_of([known])))
        bad = overflowed(record)
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
        inputs = [values[at] for at in record.input_at]
        culprit = self._culprits.find(
            known.parameter_finite,
            loss_finite=_all_finite([loss.pack.values[loss.at] for loss in losses]),
            input_finite=_all_finite(inputs),
            digest=details,
        )
        optimizers = [t.optimizer for t in record.turns if any(values[at] for at in t.found_inf_at)]
        detail: dict[str, Any] = {"optimizers": optimizers, "scale": scale_of(record)}
        if culprit is not None:
            detail |= culprit.detail()
        return EventRecord(record.step, record.time_ns, EventKind.OVERFLOW, detail)

    def _step_rows(
        self, record: StepRecord, moved: dict[int, UpdateFigures], columns: Columns
    ) -> None:
        shared = _shared_cells(record)
        turns: Sequence[Turn | None] = record.turns or (None,)
        for turn in turns:
            cells = dict(shared)
            losses = record.losses if turn is None else turn.losses
            cells["loss"] = _loss(record, losses)
            cells["micro_batches"] = sum(loss.counted for loss in losses) or None
            if record.autocast_dtype is None and self._inner_autocast is not None:
                cells["autocast_dtype"] = DTYPE_NUMBERS[self._inner_autocast]
            if turn is not None:
                cells.update(_turn_cells(record, turn))
                figures = moved.get(id(turn.update))
                if figures is not None:
                    cells.update(self._update_cells(record, turn, figures))
            for name, column in columns.items():
                column.append(cells.get(name))

    def _update_cells(
        self, record: StepRecord, turn: Turn, figures: UpdateFigures
    ) -> dict[str, Any]:
        layout = turn.update.layout  # type: ignore[union-attr]
        estimated = math.sqrt(float(figures.weight_squares[layout.matrix].sum()))
        if turn.param_norm_at is not None and estimated > 0:
            exact = record.pack.values[turn.param_norm_at]
            self._correction[turn.optimizer] = exact / estimated
        cells: dict[str, Any] = {
            "update_norm": float(figures.update_norm),
            "update_norm_rel_error": float(figures.relative_error),
        }
        if layout.matrix.any():
            cells["param_norm"] = estimated * self._correction.get(turn.optimizer, 1.0)
        ratios = self._layers.update_ratios(turn, figures)
        known = np.isfinite(ratios)
        if known.any():
            largest = int(np.where(known, ratios, -1.0).argmax())
            cells["max_update_ratio"] = float(ratios[largest])
            cells["max_update_layer"] = largest
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
    if record.input_at:
        amax = [values[at] for at in record.input_at]
        finite = all(map(math.isfinite, amax))
        cells["input_finite"] = finite
        cells["input_amax"] = max(amax) if finite else _worst(amax)
    return cells


def _all_finite(values: Sequence[float]) -> bool | None:
    """None where there are none."""
    return all(map(math.isfinite, values)) if values else None


def scale_of(record: StepRecord) -> float | None:
    """The loss scale of this step's gradients."""
    return None if record.scale_at is None else record.pack.values[record.scale_at]


def _half_output(capture: LayerCapture) -> str | None:
    """The half precision that autocast gives inside the model."""
    for visit in capture.visits:
        if visit.autocast and visit.output_dtype in ("float16", "bfloat16"):
            return visit.output_dtype
    return None


def _worst(values: Iterable[float]) -> float:
    """nan if there is one, else inf."""
    return math.nan if any(map(math.isnan, values)) else math.inf


def _loss(record: StepRecord, losses: Sequence[Any]) -> float | None:
    if record.logged_loss_at is not None:
        return record.pack.values[record.logged_loss_at]
    counted = [loss.pack.values[loss.at] for loss in losses if loss.counted]
    return sum(counted) if counted else None


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
    cells["grad_norm_applied"] = total_norm(record, turn.applied or turn.norms)
    return cells


def total_norm(record: StepRecord, norms: Any) -> float | None:
    """One measurement's global norm, of unscaled gradients."""
    if norms is None:
        return None
    if norms.unseen:
        return None  # a part is missing: no total
    values = record.pack.values
    if norms.total_at is None:
        parts = values[norms.at : norms.at + norms.count]
        total = math.sqrt(sum(part * part for part in parts))
    else:
        total = values[norms.total_at]
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


def _event_columns(events: Sequence[EventRecord]) -> Columns:
    return {
        "step": [event.step for event in events],
        "time_ns": [event.time_ns for event in events],
        "kind": [EventKind(event.kind).value for event in events],
        "detail": [json.dumps(event.detail, default=str) for event in events],
    }


def _update_figures(steps: Sequence[StepRecord]) -> dict[int, UpdateFigures]:
    """Each turn's figures, by its capture's identity; steps of one layout are done together."""
    found: dict[int, UpdateFigures] = {}
    groups: defaultdict[int, list[HostUpdate]] = defaultdict(list)
    for record in steps:
        for turn in record.turns:
            if isinstance(turn.update, HostUpdate):
                groups[id(turn.update.layout)].append(turn.update)
            elif isinstance(turn.update, DeviceUpdate):
                found[id(turn.update)] = _one(_device_figures(record, turn.update), 0)
    with np.errstate(all="ignore"):  # weights may well be nan
        for group in groups.values():
            layout = group[0].layout
            before = np.stack([update.before for update in group])
            after = np.stack([update.after for update in group])
            many = updates.figures(layout, before, after)
            found.update((id(update), _one(many, row)) for row, update in enumerate(group))
    return found


def _device_figures(record: StepRecord, update: DeviceUpdate) -> UpdateFigures:
    count = len(update.layout.starts)

    def squares(at: int) -> NDArray[np.float64]:
        return np.array([record.pack.values[at : at + count]]) ** 2

    with np.errstate(all="ignore"):
        return updates.estimate(
            update.layout,
            squares(update.moved_at),
            squares(update.squared_at),
            squares(update.weight_at),
        )


def _one(many: UpdateFigures, row: int) -> UpdateFigures:
    """One step's part of the figures of many."""
    return UpdateFigures(
        many.update_squares[row],
        many.weight_squares[row],
        many.update_norm[row],
        many.relative_error[row],
    )
