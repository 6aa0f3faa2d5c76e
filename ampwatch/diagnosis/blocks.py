"""A block: some successive steps of a run with all that the record holds about them.

Histories are folded block by block. The steps of the lowest rank are the spine, in the order in
which they were written. A block is up to `BLOCK_ROWS` of its rows, ends where a step ends, and ends
early where steps begin anew (a restart). From the other tables and ranks a block takes the rows up
to its last step that no earlier block has taken. The same rows make the same blocks, in whatever
batches they arrived.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar

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
    "unmoved_share", "asked_share", "update_kept_share", "optimizer", "step_time_ms",
)  # fmt: skip
STEP_COLUMNS = (
    "step", "scale_after", "skipped", "stepped", "loss", "input_finite", "update_seen",
    "autocast_dtype", *_STEP_NUMBERS,
)  # fmt: skip
OTHER_RANK_COLUMNS = ("step", "time_ns", "scale", "skipped", "loss")
LAYER_COLUMNS = (
    "step", "rank", "layer", "kind", "weight_shape", "input_finite", "act_finite", "weight_finite",
    "trainable", "grad_finite", "out_grad_finite", "in_grad_finite",
    "underflow_share", "act_amax", "log2_headroom", "scale_low", "scale_high", "update_ratio",
    "grad_norm", "param_group", "flops", "rows", "order", "amax_staleness",
    "input_saturated_share", "weight_saturated_share", "grad_saturated_share",
    "input_flushed_share", "weight_flushed_share", "grad_flushed_share",
    "input_scale", "weight_scale", "grad_scale", "expert_tokens", "experts_idle",
    "output_dtype", "param_dtype", "input_format", "weight_format", "grad_format",
)  # fmt: skip
METRIC_COLUMNS = ("step", "name", "value")
EVENT_COLUMNS = ("step", "rank", "kind", "detail")
DEVICE_COLUMNS = (
    "time_ns", "device", "name", "capability", "utilisation",
    "allocated_bytes", "reserved_bytes", "peak_bytes", "used_bytes", "total_bytes",
)  # fmt: skip
_STEPS_ON_NOTHING = ("leave-out", "stop")  # actions of a guard
_FEW = 8  # to look for each by itself
_Values = TypeVar("_Values")


class BlockRows:
    """The rows of one table in a block; a column is decoded when it is first asked for."""

    def __init__(self, table: pa.Table) -> None:
        self._rows = unchunked(table) if table.num_rows else _NO_ROWS
        self._decoded: dict[tuple[str, str], Any] = {}
        self.step = steps_of(self._rows)

    def __len__(self) -> int:
        return len(self.step)

    def numbers(self, name: str) -> Floats:
        """A column of numbers, nan where absent."""
        return self._column(numbers, name)

    def flags(self, name: str) -> Flags:
        """A column of flags: 1 yes, 0 no, -1 absent."""
        return self._column(flags, name)

    def integers(self, name: str) -> Integers:
        """A column of whole numbers, -1 where absent."""
        return self._column(integers, name)

    def texts(self, name: str) -> tuple[tuple[str, ...], Integers]:
        """The different texts of a column, and for each row a position among them or -1."""
        return self._column(texts, name)

    def has_text(self, name: str, *wanted: str) -> Mask:
        """In which rows a column of texts holds one of these."""
        names, codes = self.texts(name)
        return np.isin(codes, [n for n, text in enumerate(names) if text in wanted])

    def value(self, name: str, row: int) -> Any:
        """One row's value, as Python holds it; for columns of which few rows are asked for."""
        return self._rows.column(name)[row].as_py()

    def _column(self, decode: Callable[[pa.RecordBatch, str], _Values], name: str) -> _Values:
        key = (decode.__name__, name)
        if key not in self._decoded:
            self._decoded[key] = decode(self._rows, name)
        values: _Values = self._decoded[key]
        return values


_NO_ROWS = unchunked(pa.table({}))


class BlockLayerRows(BlockRows):
    """The layer samples of a block, one a row, and the entries of the block they belong to."""

    def __init__(self, table: pa.Table, step: Integers) -> None:
        super().__init__(table)
        self.names, self.layer = self.texts("layer")  # `layer` is a position in `names`, or -1
        self.entry, self.has_entry = _entries(step, self.step)


class Block:
    """Successive steps of a run, one entry a step, and what else the record holds about them.

    If several optimizers write a row each for one step, the entry is skipped if any of them was;
    its loss and its norms are the first's, unless another's loss is not finite.
    """

    def __init__(
        self,
        table: pa.Table,
        firsts: Integers,  # where each step begins in the table
        start: int,  # how many entries came before
        *,
        restart: bool,  # steps begin anew here
        layers: pa.Table,
        events: pa.Table,
        metrics: pa.Table,
        others: Mapping[int, pa.Table],
        next_row: pa.Table,  # the row after the block, if there is one
    ) -> None:
        rows = unchunked(table)
        self.start, self.restart = start, restart
        self.step: Integers = _at(steps_of(rows), firsts)
        self.events = _events(events)
        self.layers = BlockLayerRows(layers, self.step)
        self.metrics = BlockRows(metrics)  # what a program logged beside its steps
        self.others = {rank: BlockRows(theirs) for rank, theirs in others.items()}
        self.next_scale = float(numbers(next_row, "scale")[0]) if next_row.num_rows else math.nan
        self.columns: dict[str, Floats] = {
            name: _at(numbers(rows, name), firsts) for name in _STEP_NUMBERS
        }
        lasts = np.append(firsts[1:], rows.num_rows)[: len(firsts)] - 1
        self.columns["scale_after"] = _at(numbers(rows, "scale_after"), lasts)
        self.columns["loss"], self.loss_known = _worst_loss(rows, firsts)
        self._set_skips(rows, firsts)
        self._set_norms(rows, firsts)
        loss, norm = self.columns["loss"], self.columns["grad_norm"]
        # Hugging Face's Trainer, and loops like it, put 0 in place of a loss that is nan.
        self.columns["loss"] = np.where(
            (loss == 0) & self.norm_known & np.isnan(norm), np.nan, loss
        )
        self.input_finite = _any_not(flags(rows, "input_finite"), firsts)
        self.update_seen: Flags = _fold(np.maximum, flags(rows, "update_seen"), firsts)
        self.left_out = (self.update_seen == 0) & self._is_left_out()
        self.guarded = self._is_guarded()
        names, codes = texts(rows, "autocast_dtype")
        used = np.unique(codes) if names else ()
        self.autocast_dtypes = frozenset(names[code] for code in used if code >= 0)

    def _set_skips(self, rows: pa.RecordBatch, firsts: Integers) -> None:
        skips = flags(rows, "skipped")
        self.skipped_here: Flags = _fold(np.maximum, skips, firsts)  # by the spine's rank
        self.skipped: Mask = self.skipped_here == 1  # by any rank
        for theirs in self.others.values():
            self.skipped |= np.isin(self.step, theirs.step[theirs.flags("skipped") == 1])
        # By one of its optimizers and not by another.
        accepted = _fold(np.minimum, skips, firsts) == 0
        self.skipped_in_part: Mask = (self.skipped_here == 1) & accepted
        # An optimizer stepped past the scaler.
        stepped = _fold(np.maximum, flags(rows, "stepped"), firsts) == 1
        self.bypassed: Mask = (self.skipped_here < 0) & stepped

    def _set_norms(self, rows: pa.RecordBatch, firsts: Integers) -> None:
        """Set the masks about norms: of gradients, of gradients as applied, and of weights."""
        gradient, applied = numbers(rows, "grad_norm"), numbers(rows, "grad_norm_applied")
        has_norm, has_applied = known(rows, "grad_norm"), known(rows, "grad_norm_applied")
        weights_bad = known(rows, "param_norm") & ~np.isfinite(numbers(rows, "param_norm"))
        cleared = (applied == 0) & (gradient != 0)
        zero = np.where(has_norm | has_applied, (gradient == 0) | cleared, -1).astype(np.int8)
        self.norm_known: Mask = _at(has_norm, firsts)
        # What the optimizer was given was not finite.
        self.applied_bad: Mask = _at(has_applied & ~np.isfinite(applied), firsts)
        self.param_norm_bad: Mask = _fold(np.logical_or, weights_bad, firsts)
        # Whether every optimizer's gradients were exactly zero, and whether some had not been so
        # after the backward pass.
        self.norm_zero = _any_not(zero, firsts)
        self.norm_cleared: Mask = _fold(np.logical_or, cleared, firsts)

    def _is_left_out(self) -> Mask:
        """The steps that no optimizer took because the forward pass or the loss was bad."""
        no_turn = np.isnan(self.columns["optimizer"])
        if not no_turn.any():
            return no_turn
        guarded = np.isin(self.step, [event.step for event in self.events if event.is_guarded])
        return np.asarray(no_turn & (self.loss_bad | guarded))

    def _is_guarded(self) -> Mask:
        """The steps in which a guard (`ampwatch.guard`) kept the weights from moving."""
        steps = [
            event.step
            for event in self.events
            if event.kind == EventKind.GUARD.value
            and event.detail.get("done")
            and event.detail.get("action") in _STEPS_ON_NOTHING
        ]
        return np.isin(self.step, steps) if steps else np.zeros(len(self), np.bool_)

    def __len__(self) -> int:
        return len(self.step)

    @property
    def loss_bad(self) -> Mask:
        """Where the loss was not finite."""
        return np.asarray(self.loss_known & ~np.isfinite(self.columns["loss"]))

    def position(self, step: int) -> int:
        """A step's position in the run, counted in entries; past the end if the block lacks it."""
        return self.start + int(np.searchsorted(self.step, step))

    def entries_of(self, steps: Sequence[int]) -> Mask:
        """Which entries of the block belong to one of these steps."""
        if len(steps) > _FEW:
            return np.isin(self.step, steps)
        mask = np.zeros(len(self), np.bool_)
        for step in set(steps):  # `isin` is slow, and mostly there are none
            mask |= self.step == step
        return mask

    def at_step(self, steps: Integers) -> tuple[Integers, Mask]:
        """For each of these steps its entry in this block, and whether the block has one."""
        return _entries(self.step, steps)


def _entries(step: Integers, steps: Integers) -> tuple[Integers, Mask]:
    if not (len(step) and len(steps)):
        return np.zeros(len(steps), np.int64), np.zeros(len(steps), np.bool_)
    at = np.minimum(np.searchsorted(step, steps), len(step) - 1)
    return at, np.asarray(step[at] == steps)


def _at(values: npt.NDArray[Any], rows: Integers) -> Any:
    """Pick one row for each step of a block; with one row a step nothing is copied."""
    return values if len(rows) == len(values) else values[rows]


def _fold(operation: np.ufunc, values: npt.NDArray[Any], firsts: Integers) -> Any:
    """Combine the rows of each step of a block into one value."""
    return values if len(firsts) == len(values) else operation.reduceat(values, firsts)


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

    def and_entries(self, at: Integers, block: Block) -> Times:
        """These times and these entries of a block."""
        if not len(at):
            return self
        first = int(block.step[at[0]]) if self.first_step is None else self.first_step
        last = int(at[-1])
        return Times(self.count + len(at), first, int(block.step[last]), block.start + last)

    def and_where(self, mask: Mask, block: Block) -> Times:
        """These times and the entries of a block that a mask marks."""
        return self.and_entries(mask.nonzero()[0], block)

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


BLOCK_ROWS = 8192
# Rows of other tables that a restart left behind: steps that its attempt had begun and not closed.
_LEFT_BEHIND_STEPS = 100
_NONE: Integers = np.zeros(0, np.int64)

# A table, of which `Table.STEPS` is the spine, or another rank's steps.
Key: TypeAlias = "Table | int"
NewRows: TypeAlias = "tuple[int, pa.Table]"  # the number of its first row, and the rows


@dataclass(slots=True)
class UncutRows:
    """The rows of one table (of one rank or of all) that no block has taken yet."""

    key: str = "step"  # the column by which they are ordered
    taken: int = 0
    restarts: int = 0
    last_step: int | None = None
    limit: int | None = None  # the last step that what was taken may hold
    rows: pa.Table | None = None  # not taken yet
    steps: Integers = field(default_factory=lambda: _NONE)  # of them
    anew: Integers = field(default_factory=lambda: _NONE)  # where among them steps begin anew

    @property
    def needed(self) -> int:
        """The number of the last row that a block took: the table is read again from there."""
        return max(0, self.taken - 1)

    def add(self, rows: pa.Table, first: int) -> bool:
        """Take up the table's new rows, read from row number `first` on.

        False if a row has appeared among those that blocks have already taken.
        """
        if first + rows.num_rows < self.taken:
            return False
        steps = steps_of(rows, self.key, self.needed - first)
        if self.taken and self.last_step != steps[0]:
            return False
        self.rows = rows.slice(self.taken - first)
        self.steps = steps = steps[self.taken - self.needed :]
        if not len(steps):
            self.anew = _NONE
            return True
        before = steps[0] if self.last_step is None else self.last_step
        self.anew = np.flatnonzero(np.diff(steps, prepend=before) < 0)
        return self.limit is None or bool(steps[0] < before or steps[0] > self.limit)

    def count_to(self, limit: int, restarts: int) -> int:
        """How many of the uncut rows belong to steps up to `limit`, within so many restarts."""
        begin, allowed = 0, restarts - self.restarts
        for end in [*self.anew.tolist(), len(self.steps)][: allowed + 1]:
            last = begin + int(np.searchsorted(self.steps[begin:end], limit, side="right"))
            if last < end:
                return last
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
        return self.rows.slice(0, count)

    def take_rows(self, count: int, limit: int | None = None) -> pa.Table:
        """Take the next `count` rows for a block."""
        assert self.rows is not None
        taken, self.rows, self.limit = self.next_rows(count), self.rows.slice(count), limit
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

    def copy(self, block_rows: int) -> BlockCutter:
        """An independent copy, which goes on in blocks of so many rows."""
        uncut = {key: replace(left) for key, left in self.uncut.items()}
        return BlockCutter(block_rows, self.entries, uncut)

    def read(self, rows: RecordRows, ranks: Sequence[int]) -> dict[Key, NewRows]:
        """Read the rows of each table that no block has taken yet, and the last row one took."""
        spine, *others = sorted(ranks) or (0,)
        wanted: dict[Key, tuple[Table, Sequence[str], int | None]] = {
            Table.STEPS: (Table.STEPS, STEP_COLUMNS, spine),
            Table.LAYERS: (Table.LAYERS, LAYER_COLUMNS, None),
            Table.EVENTS: (Table.EVENTS, EVENT_COLUMNS, None),
            Table.EXTRAS: (Table.EXTRAS, METRIC_COLUMNS, spine),
        }
        wanted |= {rank: (Table.STEPS, OTHER_RANK_COLUMNS, rank) for rank in others}
        firsts = {key: self.uncut[key].needed if key in self.uncut else 0 for key in wanted}
        return {key: (firsts[key], rows.read(*what, firsts[key])) for key, what in wanted.items()}

    def add(self, tables: Mapping[Key, NewRows]) -> bool:
        """Give each table its new rows; False if some appeared among rows of earlier blocks."""
        if self.entries and tables.keys() - self.uncut.keys():
            return False  # a new rank, whose rows may belong to blocks that were taken
        uncut = [(self.uncut.setdefault(key, UncutRows()), new) for key, new in tables.items()]
        return all(left.add(rows, first) for left, (first, rows) in uncut)

    def settled(self, rows: int, patience: int) -> Iterator[Block]:
        """Cut all blocks that lie so far back that no late row is expected in them."""
        while self._is_settled(rows, patience) and (end := self._end()) is not None:
            yield self._next(end)

    def rest(self) -> Iterator[Block]:
        """Cut all rows that are left, in as few blocks as their restarts allow."""
        while (end := self._end()) is not None:
            yield self._next(end)
        yield self._block(len(self.spine.steps), None)

    def _is_settled(self, rows: int, patience: int) -> bool:
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

    def _next(self, end: int) -> Block:
        """The next block, whose end is known."""
        last = int(self.spine.steps[end - 1])
        anew = int(self.spine.steps[end]) < last
        return self._block(end, last + _LEFT_BEHIND_STEPS * anew)

    def _block(self, end: int, limit: int | None) -> Block:
        spine = self.spine
        begins_anew, firsts = 0 in spine.anew, spine.first_rows(end)
        rows = spine.take_rows(end, limit)
        parts: dict[Key, pa.Table] = {}
        for key, left in self.uncut.items():
            if left is not spine:
                count = len(left.steps) if limit is None else left.count_to(limit, spine.restarts)
                parts[key] = left.take_rows(count, limit)
        start, self.entries = self.entries, self.entries + len(firsts)
        return Block(
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
