"""The curves of the user's values, which `watch.log` was given: bounded, updated by new rows."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock

import numpy as np
import pyarrow as pa
from bounded_history import EXACT_WIDTH, Extremes, RowPlaces, with_neighbours
from step_curves import Span

from ampwatch.follow import Follower
from ampwatch.report import thinning
from ampwatch.report.thinning import Floats, Line, NotFinite, Steps, Stretches
from ampwatch.rows import Table
from ampwatch.store import Run

_COLUMNS = ("step", "name", "value")
_PORTION_ROWS = 1 << 18  # read at once
_MOST_ZOOMED_ROWS = 1 << 20  # of the log, for a span: of more, the points that are kept will do
_ZOOMS_KEPT = 4


class UserValue:
    """All numbers that the user's code logged under one name."""

    def __init__(self) -> None:
        self.count = 0
        self.last: tuple[int, float] | None = None  # the newest step, and its finite value
        self.odd_count = 0  # values that are not finite
        self.never_falls = True  # it can be the axis of a chart
        self._extremes, self._odd = Extremes(), NotFinite()

    @property
    def width(self) -> int:
        """How many steps share a few kept points of the user's value."""
        return self._extremes.points.width

    @property
    def points(self) -> tuple[Steps, Floats]:
        """The kept points of the user's value, in the order they were logged."""
        points = self._extremes.points
        return points.step, points.values

    @property
    def odd(self) -> Stretches:
        """The steps at which the user's value was not finite."""
        return self._odd.stretches

    def add(self, step: Steps, values: Floats) -> None:
        """Add the next logged rows to the user's value."""
        self.count += len(step)
        finite = np.isfinite(values)
        self.odd_count += len(step) - int(finite.sum())
        self._odd.add(step, values)
        if finite.any():
            known = values[finite]
            before = known[0] if self.last is None else self.last[1]
            self.never_falls &= bool((np.diff(known, prepend=before) >= 0).all())
            self.last = int(step[finite][-1]), float(known[-1])
        self._extremes.add(step, np.where(finite, values, np.float32(np.nan)))


class UserValues:
    """The user's values of an open run, read as they grow; any thread may ask.

    Of several ranks they are those of the one looked at, else of the lowest that logs any.
    """

    def __init__(self, follower: Follower, rank: int | None) -> None:
        self._follower, self._asked = follower, rank
        self._lock = Lock()
        self.rank: int | None = None
        self._begin(None)

    def read(self) -> dict[str, UserValue]:
        """Read new rows; all values of the user by name, in the order the names appeared."""
        with self._lock, self._follower.reading() as run:
            if run is not self._run or run.cuts != self._cuts:
                self._begin(run)
            if self.rank is None:
                self.rank = self._logging_rank(run)
            while self.rank is not None and self._read_portion(run, self.rank):
                pass
            return dict(self._values)

    def line(self, name: str, span: Span | None) -> Line:
        """The curve of a user's value in a span; from the log where too few points are kept."""
        value = self._values[name]
        step, values = value.points
        if span is None:
            return thinning.broken_line(step, values)
        if value.width > EXACT_WIDTH:
            zoomed = self._rows_of_span(span)
            if zoomed is not None:
                step, values = zoomed.get(name, (step[:0], values[:0]))
        inside = with_neighbours((step >= span[0]) & (step <= span[1]))
        usual = thinning.usual_hole(step)
        return thinning.broken_line(step[inside], values[inside], usual)

    # --- within ----------------------------------------------------------------------------------

    def _begin(self, run: Run | None) -> None:
        self._run, self._cuts = run, 0 if run is None else run.cuts
        self._taken = 0
        self._places = RowPlaces()
        self._values: dict[str, UserValue] = {}
        self._zooms: OrderedDict[tuple[Span, int], dict[str, tuple[Steps, Floats]]] = OrderedDict()

    def _logging_rank(self, run: Run) -> int | None:
        if self._asked in run.ranks:
            return self._asked
        return next((rank for rank in run.ranks if run.rows_logged(Table.EXTRAS, rank)), None)

    def _read_portion(self, run: Run, rank: int) -> bool:
        """Read a portion of the logged values; whether there may be more."""
        rows = run.logged(Table.EXTRAS, _COLUMNS, rank, self._taken, _PORTION_ROWS)
        if not rows.num_rows:
            return False
        self._taken += rows.num_rows
        self._places.add(_steps(rows))
        for name, (step, values) in _by_name(rows).items():
            self._values.setdefault(name, UserValue()).add(step, values)
        return rows.num_rows == _PORTION_ROWS

    def _rows_of_span(self, span: Span) -> dict[str, tuple[Steps, Floats]] | None:
        """The logged values of a span of steps, from the log; None if they are too many."""
        with self._lock, self._follower.reading() as run:
            key = (span, self._taken)
            ranges = self._places.ranges_of(*span)
            if self.rank is None or sum(b - a for a, b in ranges) > _MOST_ZOOMED_ROWS:
                return None
            if key not in self._zooms:
                parts = [
                    run.logged(Table.EXTRAS, _COLUMNS, self.rank, start, stop - start)
                    for start, stop in ranges
                ]
                self._zooms[key] = _by_name(pa.concat_tables(parts)) if parts else {}
                while len(self._zooms) > _ZOOMS_KEPT:
                    self._zooms.popitem(last=False)
            return self._zooms[key]


def group_names(names: Sequence[str]) -> dict[str, list[str]]:
    """The names of user's values by what is before their last slash: those without one first."""
    groups: dict[str, list[str]] = {"": []}
    for name in names:
        groups.setdefault(name.rpartition("/")[0], []).append(name)
    return {prefix: inside for prefix, inside in groups.items() if inside}


def _steps(rows: pa.Table) -> Steps:
    return np.asarray(rows.column("step").fill_null(-1).to_numpy(), np.int64)


def _by_name(rows: pa.Table) -> dict[str, tuple[Steps, Floats]]:
    """The steps and values of each name, in the order of the logged rows."""
    coded = rows.column("name").combine_chunks()
    coded = coded if isinstance(coded, pa.DictionaryArray) else coded.dictionary_encode()
    codes = np.asarray(coded.indices.fill_null(-1).to_numpy(zero_copy_only=False), np.int64)
    step = _steps(rows)
    with np.errstate(over="ignore"):
        values = np.array(rows.column("value").to_numpy(), np.float32)
    found = {}
    for code in dict.fromkeys(codes.tolist()):
        mine = codes == code
        found[coded.dictionary[code].as_py() if code >= 0 else ""] = step[mine], values[mine]
    return found
