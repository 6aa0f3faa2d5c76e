"""The rows of all ranks in canonical order, kept up to date by what is new.

Order: attempt, step, rank; within that as logged (devices: time, rank). New rows seldom belong far
back, so only the end of what is there is sorted again. Who takes each row once lets the view forget
those before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from ampwatch.codec import column
from ampwatch.codec.columns import integers
from ampwatch.rows import SCHEMAS, Table
from ampwatch.store.run_files import RankRows

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
