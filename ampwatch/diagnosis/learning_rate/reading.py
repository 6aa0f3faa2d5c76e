"""A run's own tables as the advice's rows and setup."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ampwatch.diagnosis.learning_rate.course import Group, RateState, Rows, Setup, fold, rows_of
from ampwatch.diagnosis.signals import Floats, Record
from ampwatch.rows import EventKind, Table

_STEP_COLUMNS = (
    "step", "skipped", "loss", "lr", "lr_base", "grad_norm", "grad_norm_applied", "update_norm",
    "param_norm", "max_update_ratio", "input_amax", "micro_batches", "scale", "update_alignment",
    "optimizer",
)  # fmt: skip
_LAYER_COLUMNS = ("step", "act_amax", "act_finite", "update_ratio", "param_group")


@dataclass(frozen=True, slots=True)
class Told:
    """One event that the advice reads."""

    step: int | None
    kind: str
    detail: Mapping[str, Any]


def read_rate_state(run: Record) -> RateState:
    """The state after all of a run's rows, of its lowest rank and first optimizer."""
    rank = min(run.ranks, default=0)
    steps = run.read(Table.STEPS, columns=_STEP_COLUMNS, rank=rank)
    layers = run.read(Table.LAYERS, columns=_LAYER_COLUMNS, rank=rank)
    optimizer = _numbers(steps, "optimizer")
    keep = ~(optimizer > np.nanmin(optimizer)) if np.isfinite(optimizer).any() else None
    events = _told(run)
    rows = _rows(steps, layers, events)
    setup = setup_of(events, rows, layers)
    return fold(RateState(), rows if keep is None else rows.where(keep), setup)


def _rows(steps: pa.Table, layers: pa.Table, events: Sequence[Told]) -> Rows:
    step, loss = _numbers(steps, "step"), _numbers(steps, "loss")
    known = np.asarray(steps.column("loss").is_valid()) if "loss" in steps.column_names else False
    finite = np.isfinite(loss)
    amax, bad = _of_layers(step, layers)
    told = [e.step for e in events if e.detail.get("direction") in {"forward", "input", "weights"}]
    return rows_of(
        step=step,
        skipped=np.nan_to_num(_numbers(steps, "skipped")),
        loss=np.where(finite, loss, np.nan),
        loss_bad=known & ~finite,
        lr=_numbers(steps, "lr"),
        lr_base=_numbers(steps, "lr_base"),
        grad_norm=_finite(_numbers(steps, "grad_norm")),
        applied_norm=_finite(_numbers(steps, "grad_norm_applied")),
        update_norm=_finite(_numbers(steps, "update_norm")),
        param_norm=_finite(_numbers(steps, "param_norm")),
        max_ratio=_finite(_numbers(steps, "max_update_ratio")),
        input_amax=_finite(_numbers(steps, "input_amax")),
        act_amax=amax,
        forward_bad=bad | np.isin(step, [at for at in told if at is not None]),
        micro_batches=_numbers(steps, "micro_batches"),
        scale=_numbers(steps, "scale"),
        alignment=_numbers(steps, "update_alignment"),
    )


def _of_layers(step: Floats, layers: pa.Table) -> tuple[Floats, Any]:
    """Each step's largest activation where it was sampled, and whether one was not finite."""
    at, amax = _numbers(layers, "step"), _finite(_numbers(layers, "act_amax"))
    known = np.isfinite(amax) & np.isfinite(at)
    sampled, where = np.unique(at[known], return_inverse=True)
    largest = np.full(len(sampled), -np.inf)
    np.maximum.at(largest, where, amax[known])
    result = np.full(len(step), np.nan)
    if len(sampled):
        near = np.minimum(np.searchsorted(sampled, step), len(sampled) - 1)
        here = sampled[near] == step
        result[here] = largest[near[here]]
    return result, np.isin(step, at[_numbers(layers, "act_finite") == 0])


def setup_of(events: Sequence[Told], rows: Rows, layers: pa.Table) -> Setup:
    """What the events tell of the optimizer, checkpoints and resumes."""
    described = [e.detail for e in events if e.kind == EventKind.OPTIMIZER.value]
    first = next((d for d in described if d.get("optimizer", 0) == 0), {})
    step = rows.of("step")
    begin = float(step[0]) if len(step) else 0.0
    loaded = [e for e in events if e.kind == EventKind.STATE_LOADED.value]
    backwards = int((np.diff(step) < 0).sum())
    groups = tuple(_group(first, g) for g in _mappings(first.get("groups")))
    saved = [e.step for e in events if e.kind == EventKind.STATE_SAVED.value]
    return Setup(
        groups=groups,
        lead_group=_lead_group(layers, len(groups)),
        elements=_count(first.get("elements")),
        several_optimizers=len({d.get("optimizer") for d in described}) > 1,
        resumed=begin > 0 or any(e.step is None or e.step <= begin for e in loaded),
        saved_steps=tuple(at for at in saved if at is not None)[-_MOST_SAVED:],
        restarts=backwards + sum(e.step is not None and e.step > begin for e in loaded),
    )


_MOST_SAVED = 256


def _group(detail: Mapping[str, Any], group: Mapping[str, Any]) -> Group:
    decay = group.get("weight_decay")
    adaptive = True if "betas" in group else False if "momentum" in group else None
    base = group.get("max_lr") or group.get("initial_lr") or group.get("lr")
    return Group(
        base=float(base) if isinstance(base, (int, float)) else None,
        weight_decay=float(decay) if isinstance(decay, (int, float)) else 0.0,
        # The one thing that no step shows and no setting says.
        decoupled=adaptive is True and str(detail.get("class", "")).endswith(("W", "Lion")),
        adaptive=adaptive,
    )


def _lead_group(layers: pa.Table, groups: int) -> int:
    """The group whose layers are moved the most, by the median of their ratios."""
    group, ratio = _numbers(layers, "param_group"), _numbers(layers, "update_ratio")
    best, lead = -1.0, 0
    for number in range(groups):
        here = ratio[(group == number) & np.isfinite(ratio) & (ratio > 0)]
        middle = float(np.median(here)) if len(here) else -1.0
        if middle > best:
            best, lead = middle, number
    return lead


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def _finite(values: Floats) -> Floats:
    return np.where(np.isfinite(values), values, np.nan)


_READ_KINDS = frozenset(
    kind.value
    for kind in (
        EventKind.OPTIMIZER, EventKind.STATE_LOADED, EventKind.STATE_SAVED, EventKind.OVERFLOW
    )
)  # fmt: skip


def _told(run: Record) -> list[Told]:
    rows = run.read(Table.EVENTS, columns=("step", "kind", "detail"))
    columns = [rows.column(name).to_pylist() for name in ("step", "kind", "detail")]
    return [
        Told(step, kind, _detail(text))
        for step, kind, text in zip(*columns, strict=True)
        if kind in _READ_KINDS
    ]


def _detail(text: str | None) -> Mapping[str, Any]:
    try:
        detail = json.loads(text or "{}")
    except ValueError:
        return {}
    return detail if isinstance(detail, dict) else {}


def _numbers(rows: pa.Table, name: str) -> Floats:
    """A column as floats, nan where absent."""
    if name not in rows.column_names or pa.types.is_null(rows.column(name).type):
        return np.full(rows.num_rows, np.nan)
    return np.array(pc.cast(rows.column(name), pa.float64()).to_numpy(), dtype=np.float64)
