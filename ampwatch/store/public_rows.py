"""Stored rows as the public tables have them: all ranks in order, names in place of numbers.

Order: attempt, step, rank; within that as logged (devices: time, rank). A view is kept up to date
by what is new: new rows seldom belong far back, so only the end of what is there is sorted again.
Who takes each row once lets the view forget those before.

A layer's name and facts hold from the step they were logged at until they change; a layer that
appears before its first row of facts takes that row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ampwatch.codec import column
from ampwatch.codec.columns import integers, joined, masked, raw, valid
from ampwatch.rows import DTYPES, SCHEMAS, Table
from ampwatch.store.rank_log import RankRows

# --- the order of rows ----------------------------------------------------------------------------

RANK = "rank"
ATTEMPT = "attempt"  # not public; what layer numbers mean may change between attempts

# A key packs attempt, step and rank: 2**42 steps and 16,384 ranks are told apart.
_STEP_BITS, _RANK_BITS = 42, 14
_MAX_STEP = (1 << _STEP_BITS) - 2

_MANY_CHUNKS = 16  # a log has one a batch, and every later look would walk them


def step_keys(attempts: np.ndarray, steps: np.ndarray, ranks: np.ndarray | np.int64) -> np.ndarray:
    """One number a row by which rows stand in canonical order."""
    keys: np.ndarray = np.clip(steps, -1, _MAX_STEP)
    keys += 1
    if attempts.any():
        keys += attempts << _STEP_BITS
    keys <<= _RANK_BITS
    keys += np.minimum(ranks, (1 << _RANK_BITS) - 1)
    return keys


class View:
    """Some stored columns of one table, over all ranks, in canonical order."""

    def __init__(
        self, table: Table, names: Sequence[str], starts: Mapping[int, int] | None = None
    ) -> None:
        """From the log's beginning on, or of each rank from the row in `starts`."""
        key = "step" if SCHEMAS[table].get_field_index("step") >= 0 else "time_ns"
        self._table = table
        self._key_name = key
        self._names = list(dict.fromkeys((*names, key)))
        self._taken: dict[int, int] = dict(starts or {})
        self._last_step: dict[int, int] = {}
        self._pieces: list[_Piece] = []
        self.forgotten = 0  # rows, from the run's beginning on
        self._last_forgotten: int | None = None  # the key of that row
        self.is_overtaken = False  # whether a row came that belongs among those forgotten
        self.is_as_logged = True  # whether the rows of each rank were logged in this order

    def update(self, logs: Sequence[RankRows], stops: Mapping[int, int] | None = None) -> pa.Table:
        """Take in what is new, of a rank up to the row in `stops`; all rows not forgotten."""
        stops = stops or {}
        fresh = [p for log in logs if (p := self._fresh(log, stops.get(log.rank))) is not None]
        if fresh:
            self.is_as_logged &= all(np.all(p.keys[1:] >= p.keys[:-1]) for p in fresh)
            self._merge(_sorted(fresh))
        return self._all()

    def forget(self, rows: int) -> None:
        """Hold the first so many rows no longer, counted from the run's beginning."""
        while self._pieces and rows > self.forgotten:
            piece, here = self._pieces[0], rows - self.forgotten
            count = min(here, len(piece.keys))
            self._last_forgotten = int(piece.keys[count - 1])
            self.forgotten += count
            self._pieces[:1] = [piece.copy_from(count)] if count < len(piece.keys) else []

    def _fresh(self, log: RankRows, stop: int | None) -> _Piece | None:
        start = self._taken.get(log.rank, 0)
        rows = self._read(log, start, stop)
        if not rows.num_rows:
            return None
        self._taken[log.rank] = start + rows.num_rows
        attempts = log.attempts(self._table, start, start + rows.num_rows)
        keys = self._keys(log.rank, rows.column(self._key_name), attempts)
        ranks = column(np.full(rows.num_rows, log.rank), pa.int32())
        rows = rows.append_column(RANK, ranks)
        rows = rows.append_column(ATTEMPT, column(attempts, pa.int32()))
        return _Piece(keys, rows)

    def _read(self, log: RankRows, start: int, stop: int | None) -> pa.Table:
        """The rows from `start` on, in few pieces; of a long log those go column by column."""
        rows = log.read(self._table, self._names, start, stop)
        if rows.column(0).num_chunks <= _MANY_CHUNKS:
            return rows
        columns = []
        for name in self._names:
            columns.append(rows.column(name).combine_chunks())
            rows = rows.drop_columns([name])  # nobody else holds its pieces
        return pa.Table.from_arrays(columns, self._names)

    def _keys(self, rank: int, values: pa.ChunkedArray, attempts: np.ndarray) -> np.ndarray:
        numbers = integers(values)
        if self._key_name != "step":
            return numbers
        if values.null_count:
            # An event without a step stands where it was logged.
            numbers = np.maximum.accumulate(np.maximum(numbers, self._last_step.get(rank, 0)))
        self._last_step[rank] = int(numbers[-1])
        return step_keys(attempts, numbers, np.int64(rank))

    def _merge(self, fresh: _Piece) -> None:
        """Put new rows in place: whatever comes after the first of them is sorted again."""
        first = fresh.keys[0]
        if self._last_forgotten is not None and first < self._last_forgotten:
            self.is_overtaken = True
        self.is_as_logged &= not self._pieces or bool(self._pieces[-1].keys[-1] <= first)
        late: list[_Piece] = []
        while self._pieces and self._pieces[-1].keys[-1] > first:
            piece = self._pieces.pop()
            split = int(np.searchsorted(piece.keys, first, side="right"))
            late.insert(0, piece.slice(split))
            if split:
                self._pieces.append(piece.slice(0, split))
                break
        self._pieces.append(_sorted([*late, fresh]))
        self._join_small()

    def _join_small(self) -> None:
        """Keep pieces few: each is more than twice the next, so a row is copied log(n) times."""
        while len(self._pieces) > 1 and len(self._pieces[-2].keys) <= 2 * len(
            self._pieces[-1].keys
        ):
            right = self._pieces.pop()
            self._pieces[-1] = _concatenate([self._pieces[-1], right])

    def _all(self) -> pa.Table:
        if not self._pieces:
            fields = [SCHEMAS[self._table].field(name) for name in self._names]
            extra = [pa.field(RANK, pa.int32()), pa.field(ATTEMPT, pa.int32())]
            return pa.Table.from_batches([], pa.schema([*fields, *extra]))
        return pa.concat_tables([piece.rows for piece in self._pieces])


class _Piece:
    """Rows in canonical order beside their keys."""

    __slots__ = ("keys", "rows")

    def __init__(self, keys: np.ndarray, rows: pa.Table) -> None:
        self.keys = keys
        self.rows = rows

    def slice(self, start: int, length: int | None = None) -> _Piece:
        stop = None if length is None else start + length
        return _Piece(self.keys[start:stop], self.rows.slice(start, length))

    def copy_from(self, start: int) -> _Piece:
        """The rows from `start` on; unlike a slice they do not keep those before in memory."""
        places = column(np.arange(start, len(self.keys)), pa.int64())
        return _Piece(self.keys[start:].copy(), self.rows.take(places).combine_chunks())


def _concatenate(pieces: list[_Piece]) -> _Piece:
    if len(pieces) == 1:
        return pieces[0]
    keys = np.concatenate([piece.keys for piece in pieces])
    return _Piece(keys, pa.concat_tables([piece.rows for piece in pieces]).combine_chunks())


def _sorted(pieces: list[_Piece]) -> _Piece:
    whole = _concatenate(pieces)
    if np.all(whole.keys[1:] >= whole.keys[:-1]):
        return whole
    order = np.argsort(whole.keys, kind="stable")
    rows = whole.rows.take(column(order, pa.int64())).combine_chunks()
    return _Piece(whole.keys[order], rows)


# --- public columns -------------------------------------------------------------------------------

CLASH_SUFFIX = "_logged"

_FACTS = (
    "order", "kind", "trainable", "param_group", "weight_shape", "rows", "flops", "observed",
    "input_dtype", "param_dtype", "output_dtype", "param_grad_dtype", "out_grad_dtype", "autocast",
    "input_format", "weight_format", "grad_format",
    "expert_tokens", "expert_most", "expert_entropy", "experts_idle",
)  # fmt: skip
_DTYPE_COLUMNS = {name for name in _FACTS if name.endswith("_dtype")} | {"autocast_dtype"}


def _names_of(table: Table) -> tuple[str, ...]:
    """The public columns in their order: `rank` comes after the step and the time."""
    names = list(SCHEMAS[table].names)
    places = [name for name in ("step", "time_ns") if name in names]
    rest = [name for name in names if name not in places]
    if table is Table.LAYERS:
        rest = ["layer", *_FACTS, *(name for name in rest if name != "layer")]
    return (*places, RANK, *rest)


PUBLIC_NAMES: Mapping[Table, tuple[str, ...]] = {table: _names_of(table) for table in Table}
LAYER_FACTS = frozenset(_FACTS)


def stored_for(table: Table, names: Sequence[str]) -> list[str]:
    """The stored columns that these public ones are made from."""
    needed = [name for name in names if SCHEMAS[table].get_field_index(name) >= 0]
    if table is Table.LAYERS and LAYER_FACTS.intersection(names):
        needed.append("layer")
    return [name for name in SCHEMAS[table].names if name in needed]


def needs_layers(table: Table, names: Sequence[str]) -> bool:
    """Whether these public columns need the table of layer facts."""
    if table is Table.LAYERS:
        return "layer" in names or bool(LAYER_FACTS.intersection(names))
    return table is Table.STEPS and "max_update_layer" in names


def publish(table: Table, rows: pa.Table, names: Sequence[str], layers: LayerFacts) -> pa.Table:
    """The public columns `names` made from stored rows."""
    places: np.ndarray | None = None
    columns = []
    for name in names:
        if table is Table.LAYERS and name in LAYER_FACTS:
            places = layers.places(rows, "layer") if places is None else places
            columns.append(_dtype_or_same(name, layers.fact(name, places)))
        elif name == "layer" and table is Table.LAYERS:
            columns.append(layers.names(rows, "layer"))
        elif name == "max_update_layer":
            columns.append(layers.names(rows, name))
        else:
            columns.append(_dtype_or_same(name, rows.column(name)))
    return pa.Table.from_arrays(columns, names=list(names))


def with_dtype_names(rows: pa.Table) -> pa.Table:
    """Stored rows with the names of data types instead of their numbers."""
    columns = [_dtype_or_same(name, rows.column(name)) for name in rows.column_names]
    return pa.Table.from_arrays(columns, names=rows.column_names)


def _dtype_or_same(name: str, values: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    return values if name not in _DTYPE_COLUMNS else named(integers(values), DTYPES)


def named(numbers: np.ndarray, names: Sequence[str]) -> pa.Array:
    """Positions as a public column of the names they stand for; null without a name."""
    is_named = (numbers >= 0) & (numbers < len(names))
    indices = masked(np.where(is_named, numbers, 0), is_named, pa.int32())
    return pa.DictionaryArray.from_arrays(indices, column(list(names), pa.string()))


@dataclass(frozen=True, slots=True)
class LayerFacts:
    """The layer_info rows of all ranks, looked up by attempt, rank, layer and step."""

    rows: pa.Table
    codes: np.ndarray  # sorted: one number for each layer of a rank in an attempt
    keys: np.ndarray  # sorted: the code's position << 40 | step
    order: np.ndarray  # the row of each key
    width: int  # layers per rank and attempt

    @classmethod
    def of(cls, rows: pa.Table) -> LayerFacts:
        """The facts of all layers, from the layer_info view."""
        layers = integers(rows.column("layer"))
        width = int(layers.max(initial=0)) + 1
        codes, positions = np.unique(_codes(rows, layers, width), return_inverse=True)
        keys = _with_step(positions, rows)
        order = np.argsort(keys, kind="stable")
        return cls(rows, codes, keys[order], order, width)

    def places(self, rows: pa.Table, layer_column: str) -> np.ndarray:
        """For each row, the row of facts that held for its layer at its step; -1 for none."""
        layers = integers(rows.column(layer_column))
        if not len(self.keys):
            return np.full(len(layers), -1)
        positions = self._positions(_codes(rows, layers, self.width))
        places: np.ndarray
        if len(self.keys) == len(self.codes):  # no layer ever changed: the step does not matter
            places = self.order[positions]
        else:
            places = self._found_at(_with_step(positions, rows))
        outside = (layers < 0) | (layers >= self.width) | (positions < 0)
        places[outside] = -1
        return places

    def _positions(self, codes: np.ndarray) -> np.ndarray:
        """Where each code stands among those that are known; -1 for none."""
        last = int(self.codes[-1])
        if last < _DENSE_CODES:  # a table is ten times as quick, and as long as its last code
            table = np.full(last + 2, -1)
            table[self.codes] = np.arange(len(self.codes))
            places: np.ndarray = table[np.minimum(codes, last + 1)]
            return places
        near = np.minimum(np.searchsorted(self.codes, codes), len(self.codes) - 1)
        return np.where(self.codes[near] == codes, near, -1)

    def _found_at(self, wanted: np.ndarray) -> np.ndarray:
        known, positions = self.keys >> _FACT_STEP_BITS, wanted >> _FACT_STEP_BITS
        places = np.searchsorted(self.keys, wanted, side="right") - 1
        before = (places >= 0) & (known[places] == positions)
        # Else its first facts.
        places = np.minimum(np.where(before, places, places + 1), len(known) - 1)
        return np.where(known[places] == positions, self.order[places], -1)

    def fact(self, name: str, places: np.ndarray) -> pa.Array:
        """A column of facts, one value a place."""
        return joined(self.rows.column(name)).take(masked(places, places >= 0, pa.int64()))

    def names(self, rows: pa.Table, layer_column: str) -> pa.Array:
        """A column of layer numbers as names."""
        places = self.places(rows, layer_column)
        texts = self.rows.column("name").to_pylist()
        return named(*_distinct(places, texts))


def _distinct(places: np.ndarray, texts: list[str]) -> tuple[np.ndarray, list[str]]:
    """Places among layers' names as places among the distinct names."""
    firsts: dict[str, int] = {}
    positions = np.array([firsts.setdefault(text, len(firsts)) for text in texts])
    if len(firsts) == len(texts):
        return places, texts
    return np.where(places < 0, -1, positions[places]), list(firsts)


_FACT_STEP_BITS = 40
_DENSE_CODES = 1 << 21


def _codes(rows: pa.Table, layers: np.ndarray, width: int) -> np.ndarray:
    """One number for each row's layer, rank and attempt: a layer's number may change."""
    attempts, ranks = integers(rows.column(ATTEMPT)), integers(rows.column(RANK))
    parts = (attempts << 14) + np.minimum(ranks, (1 << 14) - 1)
    codes: np.ndarray = np.clip(layers, 0, width - 1)
    return codes + parts * width if parts.any() else codes


def _with_step(positions: np.ndarray, rows: pa.Table) -> np.ndarray:
    steps = np.clip(integers(rows.column("step")), 0, (1 << _FACT_STEP_BITS) - 1)
    keys: np.ndarray = (positions << _FACT_STEP_BITS) + steps
    return keys


# --- the user's scalars, logged as long rows (step, name, value) ----------------------------------


def scalar_names(rows: pa.Table) -> dict[str, str]:
    """Public column name -> the user's name, in order of appearance; a clash gets a suffix."""
    taken = set(PUBLIC_NAMES[Table.STEPS])
    names: dict[str, str] = {}
    for name in joined(rows.column("name")).unique().to_pylist():
        public = name
        while public in taken:
            public += CLASH_SUFFIX
        taken.add(public)
        names[public] = name
    return names


def join_scalars(steps: pa.Table, extras: pa.Table, names: Sequence[str]) -> list[pa.Array]:
    """A public column for each user's scalar: its value at each row of `steps`, or null."""
    step_keys, extra_keys = _step_keys(steps), _step_keys(extras)
    texts = joined(extras.column("name")).dictionary_encode()
    codes, known = raw(texts.indices), texts.dictionary.to_pylist()
    values = joined(extras.column("value"))
    numbers, there = raw(values), valid(values)
    columns = []
    for name in names:
        mine = (codes == known.index(name)) & there
        columns.append(_placed(step_keys, extra_keys[mine], numbers[mine]))
    return columns


def _placed(step_keys: np.ndarray, keys: np.ndarray, numbers: np.ndarray) -> pa.Array:
    """The last value of a user's scalar at each step; both arrays of keys are sorted."""
    if not len(keys):
        return pa.nulls(len(step_keys), pa.float64())
    places = np.searchsorted(keys, step_keys, side="right") - 1
    there = (places >= 0) & (keys[places] == step_keys)
    return masked(numbers[places], there, pa.float64())


def _step_keys(rows: pa.Table) -> np.ndarray:
    names = (ATTEMPT, "step", RANK)
    return step_keys(*(integers(rows.column(name)) for name in names))
