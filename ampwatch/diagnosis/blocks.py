"""A block: some successive steps of a run with all that the record holds about them.

Histories are folded block by block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

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
from ampwatch.diagnosis.record import Event, RecordRows, detail_of
from ampwatch.rows import EventKind, Table

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


@dataclass(frozen=True, slots=True)
class Times:
    """How often something was seen, and when first and last."""

    count: int = 0
    first_step: int | None = None
    last_step: int | None = None
    last_position: int = -1  # an entry of the run

    def and_at(self, step: int, position: int, count: int = 1) -> Times:
        """These times and one more step, `count` times."""
        first = step if self.first_step is None else self.first_step
        return Times(self.count + count, first, step, position)

    def and_entries(self, at: Integers, steps: Integers, start: int) -> Times:
        """These times and these entries of a block that begins at `start`."""
        if not len(at):
            return self
        first = int(steps[at[0]]) if self.first_step is None else self.first_step
        return Times(self.count + len(at), first, int(steps[at[-1]]), start + int(at[-1]))

    def and_where(self, mask: Mask, block: Block) -> Times:
        """These times and the entries of a block that a mask marks."""
        return self.and_entries(mask.nonzero()[0], block.step, block.start)

    def joined(self, other: Times) -> Times:
        """These times and others, together."""
        if not self.count or not other.count:
            return other if other.count else self
        first = self if self.began_before(other) else other
        last = max(self, other, key=lambda times: times.last_position)
        return Times(self.count + other.count, first.first_step, last.last_step, last.last_position)

    def began_before(self, other: Times) -> bool:
        """Whether both were seen at all, and these first."""
        if self.first_step is None or other.first_step is None:
            return False
        return self.first_step < other.first_step


BLOCK_ROWS = 2048
# Rows of other tables that a restart left behind: steps that its attempt had begun and not closed.
_LEFT_BEHIND_STEPS = 100
_NONE: Integers = np.zeros(0, np.int64)

# A table, of which `Table.STEPS` is the spine, or another rank's steps.
Key: TypeAlias = "Table | int"
Shown: TypeAlias = "tuple[int, pa.Table]"  # the number of its first row, and the rows


def tables_of(rows: RecordRows, ranks: Sequence[int], cutter: BlockCutter) -> dict[Key, Shown]:
    """Read the rows of each table that no block has taken yet, and the last row one took."""
    spine, *others = sorted(ranks) or (0,)

    def shown(key: Key, table: Table, columns: Sequence[str], rank: int | None) -> Shown:
        left = cutter.uncut.get(key)
        first = 0 if left is None else left.needed
        return first, rows.read(table, columns, rank, first)

    made: dict[Key, Shown] = {
        Table.STEPS: shown(Table.STEPS, Table.STEPS, STEP_COLUMNS, spine),
        Table.LAYERS: shown(Table.LAYERS, Table.LAYERS, LAYER_COLUMNS, None),
        Table.EVENTS: shown(Table.EVENTS, Table.EVENTS, EVENT_COLUMNS, None),
        Table.EXTRAS: shown(Table.EXTRAS, Table.EXTRAS, METRIC_COLUMNS, spine),
    }
    for rank in others:
        made[rank] = shown(rank, Table.STEPS, OTHER_RANK_COLUMNS, rank)
    return made


@dataclass(slots=True)
class UncutRows:
    """The rows of one table (of one rank or of all) that no block has taken yet."""

    key: str = "step"  # the column by which they are ordered
    taken: int = 0
    restarts: int = 0
    last_step: int | None = None
    limit: int | None = None  # the last step that what was taken may hold
    rows: pa.Table | None = None  # as shown, from row number `first` on
    first: int = 0
    steps: Integers = field(default_factory=lambda: _NONE)  # of the rows not taken yet
    anew: Integers = field(default_factory=lambda: _NONE)  # where among them steps begin anew

    @property
    def needed(self) -> int:
        """The number of the last row that a block took: the table is read again from there."""
        return max(0, self.taken - 1)

    def show(self, rows: pa.Table, first: int = 0) -> bool:
        """Take up the table's new rows, read from row number `first` on.

        False if a row has appeared among those that blocks have already taken.
        """
        if first + rows.num_rows < self.taken:
            return False
        known = self.taken - self.needed
        steps = steps_of(rows, self.key, self.needed - first)
        if known and self.last_step != steps[0]:
            return False
        self.rows, self.first = rows, first
        self.steps = steps = steps[known:]
        if not len(steps):
            self.anew = _NONE
            return True
        before = steps[0] if self.last_step is None else self.last_step
        self.anew = np.flatnonzero(np.diff(steps, prepend=before) < 0)
        return self.limit is None or bool(steps[0] < before or steps[0] > self.limit)

    def reach(self, limit: int, restarts: int) -> int:
        """How many of the uncut rows belong to steps up to `limit`, within so many restarts."""
        begin, allowed = 0, restarts - self.restarts
        for end in [*self.anew.tolist(), len(self.steps)][: allowed + 1]:
            found = begin + int(np.searchsorted(self.steps[begin:end], limit, side="right"))
            if found < end:
                return found
            begin = end
        return begin

    def first_rows(self, count: int) -> Integers:
        """Where each step begins among the next rows: every optimizer writes its own row."""
        step = self.steps[:count]
        if not len(step):
            return _NONE
        again = step[1:] == step[:-1]
        if not again.any():
            return np.arange(len(step))
        optimizer = numbers(self.next_rows(count), "optimizer")
        # nan compares false: rows without an optimizer's number part by their step alone.
        again &= optimizer[1:] > optimizer[:-1]
        return np.concatenate(([0], np.flatnonzero(~again) + 1))

    def next_rows(self, count: int) -> pa.Table:
        """The next `count` rows that no block has taken, without taking them."""
        assert self.rows is not None
        return self.rows.slice(self.taken - self.first, count)

    def take(self, count: int, limit: int | None = None) -> pa.Table:
        """Take the next `count` rows for a block."""
        taken, self.limit = self.next_rows(count), limit
        if count:
            self.last_step = int(self.steps[count - 1])
            self.steps = self.steps[count:]
            later = self.anew >= count
            self.restarts += int((~later).sum())
            self.anew = self.anew[later] - count
            self.taken += count
        return taken


@dataclass(slots=True)
class BlockCutter:
    """Cuts the tables of a run into blocks; remembers how far it has come in each."""

    block_rows: int = BLOCK_ROWS
    entries: int = 0
    uncut: dict[Key, UncutRows] = field(default_factory=dict)

    @property
    def spine(self) -> UncutRows:
        """The steps of the lowest rank, which decide where a block ends."""
        return self.uncut[Table.STEPS]

    def copy(self) -> BlockCutter:
        """An independent copy: cutting blocks from one does not move the other."""
        return replace(self, uncut={key: replace(left) for key, left in self.uncut.items()})

    def show(self, tables: Mapping[Key, Shown]) -> bool:
        """Give each table its new rows; False if some appeared among rows of earlier blocks."""
        if self.entries and tables.keys() - self.uncut.keys():
            return False  # a new rank, whose rows may belong to blocks that were taken
        uncut = [(self.uncut.setdefault(key, UncutRows()), shown) for key, shown in tables.items()]
        return all(left.show(rows, first) for left, (first, rows) in uncut)

    def next_whole(self) -> Block | None:
        """The next block whose end is known; None if there is none yet."""
        end = self._end()
        if end is None:
            return None
        last = int(self.spine.steps[end - 1])
        anew = int(self.spine.steps[end]) < last
        return self._block(end, last + _LEFT_BEHIND_STEPS * anew)

    def rest(self) -> Block:
        """One last block of all rows that are left."""
        return self._block(len(self.spine.steps), None)

    def is_settled(self, rows: int, patience: int) -> bool:
        """Whether the next block lies so far back that no late row is expected in it."""
        waiting = len(self.spine.steps)
        if waiting < self.block_rows + rows:
            return False
        newest = int(self.spine.steps[: self.block_rows].max()) + rows // 2
        others = [left.steps for key, left in self.uncut.items() if not isinstance(key, Table)]
        return waiting > patience or all(len(steps) and steps[-1] >= newest for steps in others)

    def _end(self) -> int | None:
        """The row at which the next block ends: before a restart, or when full; None if unknown."""
        spine = self.spine
        anew = spine.anew[spine.anew > 0]
        if len(anew) and anew[0] <= self.block_rows:
            return int(anew[0])
        if len(spine.steps) <= self.block_rows:
            return None
        fitting = spine.first_rows(self.block_rows + 1)[1:]
        if len(fitting):
            return int(fitting[-1])
        firsts = spine.first_rows(len(spine.steps))[1:]  # one step with more rows than a block
        return int(firsts[0]) if len(firsts) else None

    def _block(self, end: int, limit: int | None) -> Block:
        spine = self.spine
        begins_anew, firsts = 0 in spine.anew, spine.first_rows(end)
        rows = spine.take(end, limit)
        parts: dict[Key, pa.Table] = {}
        for key, left in self.uncut.items():
            if left is not spine:
                count = len(left.steps) if limit is None else left.reach(limit, spine.restarts)
                parts[key] = left.take(count, limit)
        start, self.entries = self.entries, self.entries + len(firsts)
        return block_of(
            rows,
            firsts,
            start,
            restart=begins_anew,
            layers=parts.pop(Table.LAYERS),
            events=parts.pop(Table.EVENTS),
            metrics=parts.pop(Table.EXTRAS),
            others={int(key): table for key, table in parts.items()},
            next_row=spine.next_rows(0 if 0 in spine.anew else 1),
        )
