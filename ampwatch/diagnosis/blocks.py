"""A block: some successive steps of a run with all that the record holds about them.

Histories are folded block by block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ampwatch.diagnosis.column_arrays import (
    Flags,
    Floats,
    Integers,
    Mask,
    flags,
    integers,
    known,
    numbers,
    steps_of,
    texts,
    unchunked,
)
from ampwatch.diagnosis.event import Event, detail_of
from ampwatch.rows import EventKind

# Numbers that each step has once: of several optimizers the first's.
_STEP_NUMBERS = (
    "time_ns", "scale", "lr", "lr_base", "grad_norm", "grad_norm_applied", "param_norm",
    "update_norm", "max_update_ratio", "update_alignment", "input_amax", "micro_batches",
    "unmoved_share", "asked_share", "update_kept_share", "optimizer",
)  # fmt: skip
STEP_COLUMNS = (
    "step", "scale_after", "skipped", "stepped", "loss", "input_finite", "update_seen",
    "autocast_dtype", *_STEP_NUMBERS,
)  # fmt: skip
OTHER_RANK_COLUMNS = ("step", "time_ns", "scale", "skipped", "loss")
_LAYER_FLAGS = (
    "input_finite", "act_finite", "weight_finite", "trainable",
    "grad_finite", "out_grad_finite", "in_grad_finite",
)  # fmt: skip
_LAYER_NUMBERS = (
    "underflow_share", "act_amax", "log2_headroom", "scale_low", "scale_high", "update_ratio",
    "grad_norm",
    "param_group", "flops", "rows", "order", "amax_staleness",
    "input_saturated_share", "weight_saturated_share", "grad_saturated_share",
    "input_flushed_share", "weight_flushed_share", "grad_flushed_share",
    "input_scale", "weight_scale", "grad_scale",
)  # fmt: skip
_LAYER_DTYPES = ("output_dtype", "param_dtype", "input_format", "weight_format", "grad_format")
LAYER_COLUMNS = (
    "step", "rank", "layer", "kind", "weight_shape", *_LAYER_FLAGS, *_LAYER_NUMBERS, *_LAYER_DTYPES,
)  # fmt: skip
METRIC_COLUMNS = ("step", "name", "value")
EVENT_COLUMNS = ("step", "rank", "kind", "detail")
DEVICE_COLUMNS = (
    "time_ns", "device", "name", "capability", "utilisation",
    "allocated_bytes", "reserved_bytes", "peak_bytes", "used_bytes", "total_bytes",
)  # fmt: skip
_STEPS_ON_NOTHING = ("leave-out", "stop")  # actions of a guard
_FEW = 8  # to look for each by itself


@dataclass(frozen=True, slots=True)
class BlockLayerRows:
    """The layer samples of a block, one entry a sample."""

    step: Integers
    rank: Integers
    names: tuple[str, ...]
    layer: Integers  # a position in `names`, -1 where absent
    flags: Mapping[str, Flags]
    numbers: Mapping[str, Floats]
    dtypes: Mapping[str, tuple[tuple[str, ...], Integers]]  # names, and which of them
    kinds: tuple[tuple[str, ...], Integers]  # the same of the modules' classes
    weight_shapes: pa.Array  # as it came: few rows of a block are asked for theirs

    def __len__(self) -> int:
        return len(self.step)

    def has_dtype(self, column: str, *wanted: str) -> Mask:
        """In which layer samples of a block a column of data types names one of these."""
        names, codes = self.dtypes[column]
        return np.isin(codes, [n for n, name in enumerate(names) if name in wanted])


@dataclass(frozen=True, slots=True)
class BlockMetrics:
    """What a program logged beside its steps in a block, one entry a value."""

    names: tuple[str, ...] = ()
    name: Integers = field(default_factory=lambda: np.zeros(0, np.int64))  # a position in `names`
    step: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    value: Floats = field(default_factory=lambda: np.zeros(0))


@dataclass(frozen=True, slots=True)
class BlockRankRows:
    """The steps of a block as another rank than the lowest recorded them."""

    step: Integers
    time_ns: Integers
    skipped: Flags
    scale: Floats
    loss: Floats


@dataclass(frozen=True, slots=True)
class Block:
    """Successive steps of a run, one entry a step, and what else the record holds about them.

    If several optimizers write a row each for one step, the entry is skipped if any of them was;
    its loss and its norms are the first's, unless another's loss is not finite.
    """

    start: int  # how many entries came before
    step: Integers
    restart: bool  # steps begin anew here
    columns: Mapping[str, Floats]
    skipped: Mask  # by any rank
    skipped_here: Flags  # by the spine's rank; -1 where absent
    skipped_in_part: Mask  # by one of its optimizers and not by another
    input_finite: Flags
    update_seen: Flags
    bypassed: Mask  # an optimizer stepped past the scaler
    left_out: Mask  # numbers were not finite, and the loop itself left the step out
    guarded: Mask  # a guard left the step out
    loss_known: Mask
    norm_known: Mask
    applied_bad: Mask  # what the optimizer was given was not finite
    norm_zero: Flags  # whether every optimizer's gradients were exactly zero
    norm_cleared: Mask  # ... though some were not after the backward pass
    param_norm_bad: Mask
    autocast_dtypes: frozenset[str]
    layers: BlockLayerRows
    layer_entries: tuple[Integers, Mask]  # of each layer row its entry, and whether there is one
    events: tuple[Event, ...]
    metrics: BlockMetrics = field(default_factory=BlockMetrics)
    others: Mapping[int, BlockRankRows] = field(default_factory=dict)
    next_scale: float = float("nan")  # of the row after it, if there is one

    def __len__(self) -> int:
        return len(self.step)

    @property
    def loss_bad(self) -> Mask:
        """Where the loss was not finite, including a nan that somebody replaced by zero."""
        loss, norm = self.columns["loss"], self.columns["grad_norm"]
        bad = self.loss_known & ~np.isfinite(loss)
        return np.asarray(bad | ((loss == 0) & self.norm_known & np.isnan(norm)))

    def position(self, step: int) -> int:
        """A step's position in the run, counted in entries; past the end if the block lacks it."""
        return self.start + int(np.searchsorted(self.step, step))

    def entries_of(self, steps: Sequence[int]) -> Mask:
        """Which entries of the block belong to one of these steps."""
        if len(steps) > _FEW:
            return np.isin(self.step, steps)
        found = np.zeros(len(self), np.bool_)
        for step in set(steps):  # `isin` is slow, and mostly there are none
            found |= self.step == step
        return found

    def at_step(self, steps: Integers) -> tuple[Integers, Mask]:
        """For each of these steps its entry in this block, and whether the block has one."""
        return _entries(self.step, steps)


def _entries(step: Integers, steps: Integers) -> tuple[Integers, Mask]:
    if not (len(step) and len(steps)):
        return np.zeros(len(steps), np.int64), np.zeros(len(steps), np.bool_)
    at = np.minimum(np.searchsorted(step, steps), len(step) - 1)
    return at, np.asarray(step[at] == steps)


def block_of(
    table: pa.Table,
    firsts: Integers,
    start: int,
    *,
    restart: bool,
    layers: pa.Table,
    events: pa.Table,
    metrics: pa.Table,
    others: Mapping[int, pa.Table],
    next_row: pa.Table,
) -> Block:
    """Make a block from its rows of each table; `firsts` says where each step begins."""
    rows = unchunked(table)
    step, made = _at(steps_of(rows), firsts), _events(events)
    sampled = _layer_rows(layers) if layers.num_rows else _NO_LAYERS
    columns = {name: _at(numbers(rows, name), firsts) for name in _STEP_NUMBERS}
    lasts = np.append(firsts[1:], rows.num_rows)[: len(firsts)] - 1
    columns["scale_after"] = _at(numbers(rows, "scale_after"), lasts)
    columns["loss"], loss_known = _worst_loss(rows, firsts)
    skips = flags(rows, "skipped")
    here = _fold(np.maximum, skips, firsts)
    update_seen = _fold(np.maximum, flags(rows, "update_seen"), firsts)
    ranks = {rank: _rank_rows(table) for rank, table in others.items()}
    skipped = here == 1
    for one in ranks.values():
        skipped |= np.isin(step, one.step[one.skipped == 1])
    return Block(
        start=start,
        step=step,
        restart=restart,
        columns=columns,
        skipped=skipped,
        skipped_here=here,
        skipped_in_part=(here == 1) & (_fold(np.minimum, skips, firsts) == 0),
        input_finite=_any_not(flags(rows, "input_finite"), firsts),
        update_seen=update_seen,
        bypassed=(here < 0) & (_fold(np.maximum, flags(rows, "stepped"), firsts) == 1),
        left_out=(update_seen == 0) & _is_left_out(step, columns, loss_known, made),
        guarded=_is_guarded(step, made),
        loss_known=loss_known,
        **_norms(rows, firsts),
        autocast_dtypes=_dtypes(rows),
        layers=sampled,
        layer_entries=_entries(step, sampled.step),
        events=made,
        metrics=_metrics(metrics),
        others=ranks,
        next_scale=float(numbers(next_row, "scale")[0]) if next_row.num_rows else float("nan"),
    )


def _at(values: npt.NDArray[Any], rows: Integers) -> Any:
    """Pick one row for each step of a block; with one row a step nothing is copied."""
    return values if len(rows) == len(values) else values[rows]


def _dtypes(rows: pa.RecordBatch) -> frozenset[str]:
    names, codes = texts(rows, "autocast_dtype")
    return (
        frozenset(names[code] for code in np.unique(codes) if code >= 0) if names else frozenset()
    )


def _norms(rows: pa.RecordBatch, firsts: Integers) -> dict[str, Any]:
    """The columns of a block about norms: of gradients, of gradients as applied, and of weights."""
    gradient, applied = numbers(rows, "grad_norm"), numbers(rows, "grad_norm_applied")
    norm_told, applied_told = known(rows, "grad_norm"), known(rows, "grad_norm_applied")
    weights_bad = known(rows, "param_norm") & ~np.isfinite(numbers(rows, "param_norm"))
    cleared = (applied == 0) & (gradient != 0)
    zero = np.where(norm_told | applied_told, (gradient == 0) | cleared, -1).astype(np.int8)
    return {
        "norm_known": _at(norm_told, firsts),
        "applied_bad": _at(applied_told & ~np.isfinite(applied), firsts),
        "param_norm_bad": _fold(np.logical_or, weights_bad, firsts),
        "norm_zero": _any_not(zero, firsts),
        "norm_cleared": _fold(np.logical_or, cleared, firsts),
    }


def _is_left_out(
    step: Integers, columns: Mapping[str, Floats], loss_known: Mask, events: Sequence[Event]
) -> Mask:
    """The steps of a block that no optimizer took because the forward pass or the loss was bad."""
    no_turn = np.isnan(columns["optimizer"])
    if not no_turn.any():
        return no_turn
    guarded = np.isin(step, [event.step for event in events if event.is_guarded])
    loss_bad = loss_known & ~np.isfinite(columns["loss"])
    return np.asarray(no_turn & (loss_bad | guarded))


def _is_guarded(step: Integers, events: Sequence[Event]) -> Mask:
    """The steps of a block in which a guard (`ampwatch.guard`) kept the weights from moving."""
    found = [
        event.step
        for event in events
        if event.kind == EventKind.GUARD.value
        and event.detail.get("done")
        and event.detail.get("action") in _STEPS_ON_NOTHING
    ]
    return np.isin(step, found) if found else np.zeros(len(step), np.bool_)


def _fold(operation: np.ufunc, values: npt.NDArray[Any], firsts: Integers) -> Any:
    """Combine the rows of each step of a block into one value."""
    if len(firsts) == len(values):
        return values
    return operation.reduceat(values, firsts)


def _any_not(values: Flags, firsts: Integers) -> Flags:
    """Combine each step's flags in a block: 0 if any row says 0, else 1 if any says 1, else -1."""
    if len(firsts) == len(values):
        return values
    lowest = _fold(np.minimum, np.where(values < 0, np.int8(2), values), firsts)
    return np.asarray(np.where(lowest == 2, np.int8(-1), lowest))


def _worst_loss(rows: pa.RecordBatch, firsts: Integers) -> tuple[Floats, Mask]:
    """The loss of each step of a block: its first row's, unless another row's is not finite."""
    loss, has_loss = numbers(rows, "loss"), known(rows, "loss")
    if len(firsts) == len(loss):
        return loss, has_loss
    value, is_known = loss[firsts], has_loss[firsts]
    bad = np.flatnonzero(has_loss & ~np.isfinite(loss))
    owners = np.searchsorted(firsts, bad, side="right") - 1
    value[owners], is_known[owners] = loss[bad], True
    return value, is_known


def _rank_rows(table: pa.Table) -> BlockRankRows:
    rows = unchunked(table)
    return BlockRankRows(
        step=steps_of(rows),
        time_ns=integers(rows, "time_ns", 0),
        skipped=flags(rows, "skipped"),
        scale=numbers(rows, "scale"),
        loss=numbers(rows, "loss"),
    )


def _layer_rows(table: pa.Table) -> BlockLayerRows:
    rows = unchunked(table)
    names, layer = texts(rows, "layer")
    return BlockLayerRows(
        step=steps_of(rows),
        rank=integers(rows, "rank", 0),
        names=names,
        layer=layer,
        flags={name: flags(rows, name) for name in _LAYER_FLAGS},
        numbers={name: numbers(rows, name) for name in _LAYER_NUMBERS},
        dtypes={name: texts(rows, name) for name in _LAYER_DTYPES},
        kinds=texts(rows, "kind"),
        weight_shapes=rows.column("weight_shape"),
    )


_NO_LAYERS = _layer_rows(pa.table({name: pa.nulls(0) for name in LAYER_COLUMNS}))


def _metrics(table: pa.Table) -> BlockMetrics:
    if not table.num_rows:
        return BlockMetrics()
    rows = unchunked(table)
    names, name = texts(rows, "name")
    return BlockMetrics(names, name, steps_of(rows), numbers(rows, "value"))


def _events(rows: pa.Table) -> tuple[Event, ...]:
    if not rows.num_rows:
        return ()
    step, rank = steps_of(rows).tolist(), integers(rows, "rank", 0).tolist()
    kinds, details = (rows.column(name).to_pylist() for name in ("kind", "detail"))
    return tuple(
        Event(s, r, kind or "", detail_of(text))
        for s, r, kind, text in zip(step, rank, kinds, details, strict=True)
    )
