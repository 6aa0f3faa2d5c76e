"""What the rules read: a run's columns as numpy arrays, one entry a step, absent told from zero.

Only the columns that rules use are read. Numbers are float64 with nan where absent; where a value
may itself be nan, a mask says so. Flags are int8: 1 yes, 0 no, -1 absent. A step that several
optimizers share is one entry; its skip is any of theirs. Steps of the lowest rank stand for the
run, in the order they were written, so that a resumed attempt follows the one before it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ampwatch.diagnosis import policy
from ampwatch.rows import EventKind, Table

Floats: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.int8]
Mask: TypeAlias = npt.NDArray[np.bool_]


class Info(Protocol):
    """What of a run's identity the diagnosis reads."""

    @property
    def id(self) -> str: ...  # noqa: D102
    @property
    def source(self) -> str: ...  # noqa: D102
    @property
    def started_ns(self) -> int: ...  # noqa: D102
    @property
    def scaler(self) -> Mapping[str, Any]: ...  # noqa: D102


class Record(Protocol):
    """What the diagnosis reads of a run; `store.Run` is one."""

    @property
    def info(self) -> Info: ...  # noqa: D102
    @property
    def ranks(self) -> tuple[int, ...]: ...  # noqa: D102
    @property
    def notes(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def clean_end(self) -> bool: ...  # noqa: D102
    @property
    def last_time_ns(self) -> int | None: ...  # noqa: D102

    def read(
        self, table: Table, columns: Sequence[str] | None = None, rank: int | None = None
    ) -> pa.Table:
        """A table's rows: only these columns, only this rank's."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event, its detail read."""

    step: int | None
    rank: int
    kind: str
    detail: Mapping[str, Any]

    @property
    def exception(self) -> str:
        """The type of the exception that an `exception` event tells of."""
        return str(self.detail.get("exception") or self.detail.get("type") or "an exception")


@dataclass(frozen=True, slots=True)
class LayerRows:
    """The layers' samples that rules read, one entry a sample."""

    step: Integers
    names: tuple[str, ...]
    layer: Integers  # a position in `names`
    input_finite: Flags
    act_finite: Flags
    weight_finite: Flags
    underflow_share: Floats

    def __len__(self) -> int:
        return len(self.step)


@dataclass(frozen=True, slots=True)
class Signals:
    """A run as the rules see it."""

    source: str
    ranks: tuple[int, ...]
    notes: tuple[str, ...]
    clean_end: bool
    initial_scale: float | None
    growth_factor: float
    growth_interval: int
    floor_scale: float | None
    step: Integers
    scale: Floats
    scale_after: Floats
    skipped: Mask
    loss: Floats
    loss_known: Mask
    input_finite: Flags
    update_seen: Flags
    autocast_dtypes: frozenset[str]
    param_norm_bad: Mask
    layers: LayerRows
    events: tuple[Event, ...]

    def __len__(self) -> int:
        return len(self.step)

    @property
    def has_scaler(self) -> bool:
        """Whether any step was scaled."""
        return bool(np.isfinite(self.scale).any() or np.isfinite(self.scale_after).any())

    @property
    def final_scale(self) -> float | None:
        """The scale that the record ends with."""
        return _last_known(self.scale_after) if self.has_scaler else None

    @property
    def recent_step(self) -> int | None:
        """The first step that counts as the end of the record."""
        if not len(self):
            return None
        window = max(policy.RECENT_STEPS, int(len(self) * policy.RECENT_SHARE))
        return int(self.step[-min(window, len(self))])

    def of_kind(self, *kinds: EventKind) -> list[Event]:
        """The events of these kinds, in order."""
        wanted = {kind.value for kind in kinds}
        return [event for event in self.events if event.kind in wanted]


def read_signals(run: Record) -> Signals:
    """Read what the rules need from a run, and no more."""
    rank = min(run.ranks, default=0)
    rows = run.read(Table.STEPS, columns=_STEP_COLUMNS, rank=rank)
    firsts = _first_rows(rows)
    loss, known = _numbers(rows, "loss"), _known(rows, "loss")
    bad_loss = np.flatnonzero(known & ~np.isfinite(loss))
    loss_here, known_here = loss[firsts], known[firsts]
    owners = np.searchsorted(firsts, bad_loss, side="right") - 1
    loss_here[owners], known_here[owners] = loss[bad_loss], True
    norm = _numbers(rows, "param_norm")
    scaler = run.info.scaler
    return Signals(
        source=run.info.source,
        ranks=tuple(run.ranks),
        notes=tuple(run.notes),
        clean_end=run.clean_end,
        initial_scale=_positive(scaler.get("init_scale")),
        growth_factor=_positive(scaler.get("growth_factor")) or 2.0,
        growth_interval=int(_positive(scaler.get("growth_interval")) or policy.GROWTH_INTERVAL),
        floor_scale=_positive(scaler.get("min_scale")),
        step=_integers(rows, "step")[firsts],
        scale=_numbers(rows, "scale")[firsts],
        scale_after=_scale_after(rows, firsts),
        skipped=_skipped(run, rows, rank, firsts),
        loss=loss_here,
        loss_known=known_here,
        input_finite=_fold(np.minimum, _flags(rows, "input_finite"), firsts),
        update_seen=_fold(np.maximum, _flags(rows, "update_seen"), firsts),
        autocast_dtypes=_different(rows, "autocast_dtype"),
        param_norm_bad=_fold(
            np.logical_or, _known(rows, "param_norm") & ~np.isfinite(norm), firsts
        ),
        layers=_layer_rows(run),
        events=_events(run),
    )


_STEP_COLUMNS = (
    "step", "optimizer", "scale", "scale_after", "skipped", "loss",
    "input_finite", "autocast_dtype", "param_norm", "update_seen",
)  # fmt: skip
_LAYER_COLUMNS = (
    "step", "layer", "input_finite", "act_finite", "weight_finite", "underflow_share",
)  # fmt: skip


def _first_rows(rows: pa.Table) -> Integers:
    """Where each step begins: several optimizers write a row each for one step."""
    step = _integers(rows, "step")
    if not len(step):
        return np.zeros(0, np.int64)
    optimizer = _numbers(rows, "optimizer")
    # nan compares false: rows without an optimizer's number part by their step alone.
    again = (step[1:] == step[:-1]) & (optimizer[1:] > optimizer[:-1])
    return np.concatenate(([0], np.flatnonzero(~again) + 1))


def _fold(operation: np.ufunc, values: npt.NDArray[Any], firsts: Integers) -> Any:
    """One value a step out of one a row; one row a step is the common case and costs nothing."""
    if len(firsts) == len(values):
        return values
    return operation.reduceat(values, firsts)


def _scale_after(rows: pa.Table, firsts: Integers) -> Floats:
    values = _numbers(rows, "scale_after")
    if len(firsts) == len(values):
        return values
    lasts = np.append(firsts[1:], len(values)) - 1
    return np.asarray(values[lasts])


def _skipped(run: Record, rows: pa.Table, rank: int, firsts: Integers) -> Mask:
    """The steps that any optimizer of any rank skipped."""
    here: Mask = _fold(np.logical_or, _flags(rows, "skipped") == 1, firsts)
    step = _integers(rows, "step")[firsts]
    for other in run.ranks:
        if other != rank:
            there = run.read(Table.STEPS, columns=("step", "skipped"), rank=other)
            at = _integers(there, "step")[_flags(there, "skipped") == 1]
            here = here | np.isin(step, at)
    return here


def _layer_rows(run: Record) -> LayerRows:
    rows = run.read(Table.LAYERS, columns=_LAYER_COLUMNS)
    names, layer = _names(rows, "layer")
    return LayerRows(
        step=_integers(rows, "step"),
        names=names,
        layer=layer,
        input_finite=_flags(rows, "input_finite"),
        act_finite=_flags(rows, "act_finite"),
        weight_finite=_flags(rows, "weight_finite"),
        underflow_share=_numbers(rows, "underflow_share"),
    )


def _events(run: Record) -> tuple[Event, ...]:
    rows = run.read(Table.EVENTS, columns=("step", "rank", "kind", "detail"))
    columns = (rows.column(name).to_pylist() for name in ("step", "rank", "kind", "detail"))
    return tuple(
        Event(step, rank or 0, kind or "", _detail(text))
        for step, rank, kind, text in zip(*columns, strict=True)
    )


def _detail(text: str | None) -> Mapping[str, Any]:
    """An event's detail; what is no JSON object is kept under its only name."""
    if not text:
        return {}
    try:
        detail = json.loads(text)
    except ValueError:
        return {"text": text}
    return detail if isinstance(detail, dict) else {"text": detail}


def _last_known(values: Floats) -> float | None:
    known = np.flatnonzero(~np.isnan(values))
    return float(values[known[-1]]) if len(known) else None


def _positive(value: Any) -> float | None:
    """A number above zero, or none: what run.json says may be anything."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if value > 0 else None


def _column(rows: pa.Table, name: str) -> pa.ChunkedArray:
    if name in rows.column_names:
        return rows.column(name)
    return pa.chunked_array([pa.nulls(rows.num_rows)])


def _numbers(rows: pa.Table, name: str) -> Floats:
    column = _column(rows, name)
    if pa.types.is_null(column.type):
        return np.full(rows.num_rows, np.nan)
    return np.array(pc.cast(column, pa.float64()).to_numpy(), dtype=np.float64)


def _integers(rows: pa.Table, name: str) -> Integers:
    column = pc.fill_null(pc.cast(_column(rows, name), pa.int64()), -1)
    return np.asarray(column.to_numpy(), dtype=np.int64)


def _known(rows: pa.Table, name: str) -> Mask:
    return np.asarray(_column(rows, name).is_valid().to_numpy(), dtype=np.bool_)


def _flags(rows: pa.Table, name: str) -> Flags:
    column = _column(rows, name)
    if pa.types.is_null(column.type):
        return np.full(rows.num_rows, -1, np.int8)
    filled = pc.fill_null(pc.cast(column, pa.int8()), -1)
    return np.asarray(filled.to_numpy(), dtype=np.int8)


def _different(rows: pa.Table, name: str) -> frozenset[str]:
    """The texts that occur in a column; a dictionary may hold more."""
    names, codes = _names(rows, name)
    return frozenset(names[code] for code in np.unique(codes) if code >= 0)


def _names(rows: pa.Table, name: str) -> tuple[tuple[str, ...], Integers]:
    """The different texts of a column, and for each row which of them, -1 where absent."""
    column = _column(rows, name)
    if pa.types.is_null(column.type):
        return (), np.full(rows.num_rows, -1, np.int64)
    if not pa.types.is_dictionary(column.type):
        column = pc.dictionary_encode(column)
    joined = column.unify_dictionaries().combine_chunks()
    if isinstance(joined, pa.ChunkedArray):
        joined = joined.chunk(0) if joined.num_chunks else pa.array([], column.type)
    codes = pc.fill_null(pc.cast(joined.indices, pa.int64()), -1)
    return tuple(joined.dictionary.to_pylist()), np.asarray(codes.to_numpy(), dtype=np.int64)
