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

from ampwatch.follow import Follower
from ampwatch.report.last_layer_values import Readable, stored, values_of
from ampwatch.report.layer_views import VIEWS, offered
from ampwatch.report.thinning import Floats, Steps
from ampwatch.rows import Table
from ampwatch.store import Reading, Run

MOST_CELLS = 960  # stretches of steps: four for each column of the heat map
_LEAST_CELLS = 240  # where layers are very many: one for each
_MOST_VALUES = 12_000_000  # of all quantities that are kept together: 48 MB
_MOST_LINES = 4  # layers whose own numbers are kept; the one not looked at for longest is let go

_KEYS = ("step", "layer", "order")
_OF_A_SAMPLE = "act_amax"  # which rows hold that are samples, and not only norms
_OFTEN_LACKING = "underflow_share"


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
        """The layers with any value of these columns, and the worst of them in each stretch."""
        matrices = [self._matrix(name) for name in columns if name in self._values]
        if not matrices:
            return (), np.zeros((0, len(self.cells)), np.float32)
        worst = np.fmin if self._is_low[columns[0]] else np.fmax
        values = reduce(worst, matrices)
        filled = [at for at in self._in_order if not np.isnan(values[at]).all()]
        names = list(self._layers)
        return tuple(names[at] for at in filled), values[filled]

    def add(self, rows: pa.Table) -> None:
        """Add rows of the table `layers` to the worst values."""
        if not rows.num_rows:
            return
        step = np.asarray(rows.column("step").to_numpy(), np.int64)
        layer = self._layer_numbers(rows)
        cell = self._stretches_of(step)
        self.last_step = max(self.last_step, int(step.max()))
        for column, is_low in self._is_low.items():
            cells = values_of(rows, column)
            logged = np.asarray(cells.is_valid())
            if logged.any():
                values = _not_finite_as_worst(cells, is_low=is_low)[logged]
                worst = np.fmin if is_low else np.fmax
                worst.at(self._matrix(column), (layer[logged], cell[logged]), values)
        values = _MOST_VALUES // len(self._is_low)
        most = max(_LEAST_CELLS, min(MOST_CELLS, values // len(self._layers)))
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
    -inf where low values are the worst. So is what a sample lacks of its own, as the underflow of
    gradients that overflowed: a line across it would show what was not.
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
            name: _not_finite_as_worst(values_of(rows, name), is_low=low)
            for name, low in self._is_low.items()
        }
        if {_OF_A_SAMPLE, _OFTEN_LACKING} <= columns.keys():
            lacks = ~np.isnan(columns[_OF_A_SAMPLE]) & np.isnan(columns[_OFTEN_LACKING])
            columns[_OFTEN_LACKING][lacks] = np.inf
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
        self._views: tuple[str, ...] | None = None

    def views(self, run: Readable, *, is_live: bool) -> tuple[str, ...]:
        """The views of layers that an open run offers, kept: one that was found stays."""
        views = self._views
        if views is None:
            views = offered(run)
        elif is_live:
            now = {*offered(run, quick=True), *views}
            views = tuple(view for view in VIEWS if view in now)
        self._views = views
        return views

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
        return _LayerRowReader(make, (*_KEYS, *stored(columns)), self.rank)

    def _updated(self, reader: _LayerRowReader, *, is_live: bool) -> Any:
        with self._follower.reading() as run:
            return reader.update(run, is_live=is_live)

    def worst_within(self, is_low: Mapping[str, bool], first: int, last: int) -> WorstValues:
        """The worst values of all layers in a span of steps, read from the log."""
        worst = WorstValues(is_low)
        with self._follower.reading() as run:
            columns = (*_KEYS, *stored(is_low))
            for rows in run.rows_between(Table.LAYERS, columns, first, last, self.rank):
                worst.add(rows)
        return worst


def _not_finite_as_worst(column: Any, *, is_low: bool) -> Floats:
    values = np.array(column.to_numpy(), np.float32)
    known = np.asarray(column.is_valid())
    values[known & ~np.isfinite(values)] = -np.inf if is_low else np.inf
    return values
