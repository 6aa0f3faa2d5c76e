"""The worst values of a run's layers, by stretches of steps: bounded, updated by new rows."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from bounded_history import BoundedHistory
from numpy.typing import NDArray

from ampwatch.diagnosis.column_arrays import flags
from ampwatch.follow import Follower
from ampwatch.report.last_layer_values import Readable, columns_with_values, stored, values_of
from ampwatch.report.thinning import Floats, Steps
from ampwatch.rows import Table
from ampwatch.store import Reading, Run

MOST_CELLS = 960  # stretches of steps: four for each column of the heat map
_LEAST_CELLS = 240  # where layers are very many: one for each
_MOST_VALUES = 12_000_000  # of all quantities that are kept together: 48 MB
_MOST_LINES = 4  # layers whose own numbers are kept; the one not looked at for longest is let go

_KEYS = ("step", "layer", "order")
# What says of a value that is missing whether the tensor that it is of was finite.
_FINITE_OF = {
    "grad_norm": "grad_finite", "moment_ratio": "grad_finite", "act_amax": "act_finite",
    "log2_headroom": "act_finite", "underflow_share": "out_grad_finite",
    "update_ratio": "weight_finite",
}  # fmt: skip
_FINITE_OF_ROLE = {
    "input": "input_finite", "weight": "weight_finite", "grad": "out_grad_finite",
}  # fmt: skip


class WorstValues:
    """The worst value of each quantity and layer in each stretch of steps."""

    def __init__(self, is_low: Mapping[str, bool]) -> None:
        """`is_low` says of each column whether low values are the worst."""
        self._is_low, self.width = is_low, 1
        self.cells: Steps = np.zeros(0, np.int64)  # the stretches there are, by their number
        self.first: Steps = np.zeros(0, np.int64)  # the lowest step in each that was sampled
        self.last_step = 0
        self._values: dict[str, Floats] = {}  # a row a layer, a column a stretch
        self._layers: dict[str, int] = {}
        self._order: list[int] = []

    @property
    def layers(self) -> tuple[str, ...]:
        """The names of all layers with worst values, in forward order."""
        return tuple(np.array(list(self._layers), object)[self._in_order].tolist())

    def of_columns(self, *columns: str) -> tuple[tuple[str, ...], Floats]:
        """All layers, and the worst of these columns in each stretch; nan where there is none."""
        matrices = [self._matrix(name) for name in columns if name in self._values]
        if not matrices:
            return (), np.zeros((0, len(self.cells)), np.float32)
        worst = np.fmin if self._is_low[columns[0]] else np.fmax
        return self.layers, reduce(worst, matrices)[self._in_order]

    def add(self, rows: pa.Table) -> None:
        """Add rows of the table `layers` to the worst values."""
        if not rows.num_rows:
            return
        step = np.asarray(rows.column("step").to_numpy(), np.int64)
        layer = self._layer_numbers(rows)
        cell = self._stretches_of(step)
        self.last_step = max(self.last_step, int(step.max()))
        for column, is_low in self._is_low.items():
            values = _not_finite_as_worst(rows, column, is_low=is_low)
            logged = ~np.isnan(values)
            if logged.any():
                worst = np.fmin if is_low else np.fmax
                worst.at(self._matrix(column), (layer[logged], cell[logged]), values[logged])
        room = _MOST_VALUES // len(self._is_low)
        most = max(_LEAST_CELLS, min(MOST_CELLS, room // len(self._layers)))
        while len(self.cells) > most:
            self._widen()

    # --- within ----------------------------------------------------------------------------------

    @property
    def _in_order(self) -> list[int]:
        return sorted(range(len(self._order)), key=self._order.__getitem__)

    def _layer_numbers(self, rows: pa.Table) -> NDArray[np.int64]:
        """The number of each row's layer among the worst values."""
        coded = pc.dictionary_encode(pc.cast(rows.column("layer"), "string")).combine_chunks()
        codes = np.asarray(coded.indices.fill_null(0).to_numpy(zero_copy_only=False), np.int64)
        unplaced = np.iinfo(np.int32).max
        order = np.asarray(pc.fill_null(rows.column("order"), unplaced).to_numpy(), np.int64)
        names = coded.dictionary.to_pylist()
        lowest = np.full(len(names), unplaced, np.int64)
        np.minimum.at(lowest, codes, order)
        places = [self._layers.setdefault(name, len(self._layers)) for name in names]
        self._order += [unplaced] * (len(self._layers) - len(self._order))
        for at, low in zip(places, lowest.tolist(), strict=True):
            self._order[at] = min(self._order[at], low)
        return np.array(places, np.int64)[codes]

    def _stretches_of(self, step: Steps) -> NDArray[np.intp]:
        """The stretch of each step among the worst values; new stretches are added."""
        cell = step // self.width
        cells = np.union1d(self.cells, cell)
        if len(cells) > len(self.cells):
            at = np.searchsorted(cells, self.cells)
            first = np.full(len(cells), np.iinfo(np.int64).max)
            first[at] = self.first
            for column, values in self._values.items():
                wide = np.full((len(values), len(cells)), np.nan, np.float32)
                wide[:, at] = values
                self._values[column] = wide
            self.cells, self.first = cells, first
        places = np.searchsorted(self.cells, cell)
        np.minimum.at(self.first, places, step)
        return places

    def _matrix(self, column: str) -> Floats:
        """The worst values of a column, with room for every layer."""
        values = self._values.get(column, np.zeros((0, len(self.cells)), np.float32))
        missing = len(self._layers) - len(values)
        if missing:
            more = np.full((missing, len(self.cells)), np.nan, np.float32)
            values = self._values[column] = np.concatenate([values, more])
        return values

    def _widen(self) -> None:
        """Make stretches of steps twice as long, and join the worst values of each two."""
        self.width *= 2
        cell = self.cells // 2
        starts = np.concatenate(([0], np.flatnonzero(np.diff(cell)) + 1))
        self.cells, self.first = cell[starts], np.minimum.reduceat(self.first, starts)
        for column, values in self._values.items():
            worst = np.fmin if self._is_low[column] else np.fmax
            self._values[column] = worst.reduceat(values, starts, axis=1)


class LayerNumbers:
    """One layer's numbers over the sampled steps; of several ranks the worst.

    nan is no sample of a number; what was sampled and is not finite is the worst there is: inf, or
    -inf where low values are the worst.
    """

    def __init__(self, layer: str, is_low: Mapping[str, bool]) -> None:
        self._layer, self._is_low = layer, is_low
        self.history = BoundedHistory(is_low)

    def add(self, rows: pa.Table) -> None:
        """Add rows of the table `layers`, in the order of their steps, to the layer's numbers."""
        mine = pc.equal(pc.cast(rows.column("layer"), "string"), self._layer)
        rows = rows.filter(pc.fill_null(mine, False))  # noqa: FBT003
        if not rows.num_rows:
            return
        step = np.asarray(rows.column("step").to_numpy(), np.int64)
        columns = {
            name: _not_finite_as_worst(rows, name, is_low=low) for name, low in self._is_low.items()
        }
        starts = np.flatnonzero(np.diff(step, prepend=step[0] - 1))
        if len(starts) < len(step):
            for name, is_low in self._is_low.items():
                worst = np.fmin if is_low else np.fmax
                columns[name] = worst.reduceat(columns[name], starts)
            step = step[starts]
        self.history.add(step, columns, np.zeros(0, np.int64))


class _LayerRowReader:
    """Reads rows of `layers` once each, but for those of the last step, which may grow."""

    def __init__(self, make: Callable[[], Any], columns: tuple[str, ...], rank: int | None) -> None:
        self._make, self._columns, self._rank = make, columns, rank
        self._run: Run | None = None
        self.taker = make()

    def update(self, run: Run, *, is_live: bool) -> Any:
        """What was made of the rows of `layers` so far, new ones included."""
        if run is not self._run:
            self._begin(run, Reading(run))
        at_once = False
        while not self._read_new_rows(is_live=is_live):
            self._begin(run, Reading(run, portion_rows=None) if at_once else Reading(run))
            at_once = True
        return self.taker

    def _begin(self, run: Run, reading: Reading) -> None:
        self._run, self._reading, self._rows = run, reading, 0
        self.taker = self._make()

    def _read_new_rows(self, *, is_live: bool) -> bool:
        """Read the new rows of `layers`; False if a row came among those already read."""
        for _ in self._reading.portions():
            rows = self._reading.read(Table.LAYERS, self._columns, self._rank, self._rows)
            if self._reading.is_overtaken:
                return False
            if is_live and rows.num_rows:
                step = rows.column("step").to_numpy()
                rows = rows.slice(0, int(np.flatnonzero(step != step[-1]).max(initial=-1)) + 1)
            self._rows += rows.num_rows
            self.taker.add(rows)
        return True


class RunLayers:
    """The worst values and the numbers of an open run's layers; any thread may ask."""

    def __init__(self, follower: Follower, rank: int | None) -> None:
        self._follower, self.rank = follower, rank
        self._lock = Lock()
        # By the columns that are kept together: of all layers, and, behind its name, of one layer.
        self._worst: dict[tuple[str, ...], _LayerRowReader] = {}
        self._lines: OrderedDict[tuple[str, ...], _LayerRowReader] = OrderedDict()
        self._filled: frozenset[str] | None = None

    def columns_with_values(
        self, run: Readable, columns: Iterable[str], *, is_live: bool
    ) -> frozenset[str]:
        """Those of the columns in which an open run's layers have a value; one found stays."""
        filled = self._filled
        if filled is None:
            filled = columns_with_values(run, columns)
        elif is_live:
            filled |= columns_with_values(run, columns, quick=True)
        self._filled = filled
        return filled

    def worst(self, is_low: Mapping[str, bool], *, is_live: bool) -> WorstValues:
        """The worst values of all layers over the whole run, by stretches of steps."""
        with self._lock:
            reader = self._worst.setdefault(
                tuple(is_low), self._reader(lambda: WorstValues(is_low), is_low)
            )
            worst: WorstValues = self._updated(reader, is_live=is_live)
            return worst

    def numbers_of(self, layer: str, is_low: Mapping[str, bool], *, is_live: bool) -> LayerNumbers:
        """One layer's numbers over the sampled steps of the run, kept and updated."""
        with self._lock:
            key = (layer, *is_low)
            reader = self._lines.setdefault(
                key, self._reader(lambda: LayerNumbers(layer, is_low), is_low)
            )
            self._lines.move_to_end(key)
            while len(self._lines) > _MOST_LINES:
                self._lines.popitem(last=False)
            numbers: LayerNumbers = self._updated(reader, is_live=is_live)
            return numbers

    def _reader(self, make: Callable[[], Any], columns: Iterable[str]) -> _LayerRowReader:
        return _LayerRowReader(make, _columns_read(columns), self.rank)

    def _updated(self, reader: _LayerRowReader, *, is_live: bool) -> Any:
        with self._follower.reading() as run:
            return reader.update(run, is_live=is_live)

    def worst_within(self, is_low: Mapping[str, bool], first: int, last: int) -> WorstValues:
        """The worst values of all layers in a span of steps, read from the log."""
        worst = WorstValues(is_low)
        with self._follower.reading() as run:
            columns = _columns_read(is_low)
            for rows in run.rows_between(Table.LAYERS, columns, first, last, self.rank):
                worst.add(rows)
        return worst


def _columns_read(columns: Iterable[str]) -> tuple[str, ...]:
    """The columns of `layers` that tell these values, and whether they are finite."""
    finite = filter(None, map(_finite_column, columns))
    return (*_KEYS, *dict.fromkeys((*stored(columns), *finite)))


def _finite_column(name: str) -> str | None:
    """The column that says of a missing value whether the tensor that it is of was finite."""
    return _FINITE_OF.get(name) or _FINITE_OF_ROLE.get(name.partition("_")[0])


def _not_finite_as_worst(rows: pa.Table, name: str, *, is_low: bool) -> Floats:
    """A column's values; inf, or -inf where low ones are the worst, of what is not finite.

    Some values, as the headroom, are missing where their tensor is not finite.
    """
    column, finite = values_of(rows, name), _finite_column(name)
    values = np.array(column.to_numpy(), np.float32)
    odd = np.asarray(column.is_valid()) & ~np.isfinite(values)
    if finite is not None:
        odd |= np.isnan(values) & (flags(rows, finite) == 0)
    values[odd] = -np.inf if is_low else np.inf
    return values
