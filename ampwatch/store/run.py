"""A run, live or finished alike: its rows as the public tables, in canonical order."""

from __future__ import annotations

import copy
import os
import platform
import threading
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc  # this and the next take 150 ms, which the first read would pay
import pyarrow.parquet

from ampwatch.codec import column, scalar
from ampwatch.errors import RunError
from ampwatch.rows import SCHEMAS, EventKind, Table
from ampwatch.store import locks
from ampwatch.store import public_rows as public
from ampwatch.store.catalogue import default_log_dir, find_run
from ampwatch.store.layout import rank_folder, ranks_in
from ampwatch.store.public_rows import View
from ampwatch.store.rank_log import RankLog, RankRows
from ampwatch.store.run_info import RUN_FILE, RunInfo, read_copies, read_info
from ampwatch.store.tags import read_tags

# Each view holds its columns in memory; panels ask for a few sets, over and over.
_MAX_VIEWS = 24
# The diagnosis goes rank by rank, over and over, each view of a rank's own rows.
_VIEWS_A_RANK = 2

# Rows may be logged so far from their place: the last steps' layers are written after an overflow.
_DISORDER_ROWS = 4096
_PORTION_ROWS = 1 << 17  # of all tables of a rank: a compacted log is read by as many

_Reading: TypeAlias = "tuple[Table, tuple[str, ...] | None, int | None]"  # columns; of one rank


def open_run(path: str | Path) -> Run:
    """Open a run by its folder, by its name in the default folder, or as `PLACE#NAME`.

    Raises NotARunError, which says which runs there are, FutureRunError or PlaceError.
    """
    if is_published(path):
        # By name: many runs stand above one, and only who asks for one of them loads Delta Lake.
        opened: Run = import_module("ampwatch.fleet").open_published(str(path))
        return opened
    return Run(find_run(path))


def is_published(path: str | Path) -> bool:
    """Whether this names a run in a place, as in `s3://bucket/runs#NAME`, and no run here."""
    here = (Path(path), default_log_dir() / path)
    return "#" in str(path) and not any(os.path.lexists(folder / RUN_FILE) for folder in here)


class Run:
    """What a training left behind, or is leaving now; `refresh()` takes in what came since.

    Threads may share one: `lock` is held while its rows are read.
    """

    def __init__(self, path: Path, files: RunFiles | None = None) -> None:
        """A run's folder or, read from `files`, one that is elsewhere."""
        self.path = path
        self.files: RunFiles = RunFolder(path) if files is None else files
        self.lock = threading.RLock()
        self.info: RunInfo = self.files.info()
        self._logs: dict[int, RankRows] = {}
        self._views: dict[tuple[Table, tuple[str, ...], int | None], View] = {}
        self._published: dict[_Reading, pa.Table] = {}
        self._cuts = 0
        self._find_ranks()

    def __repr__(self) -> str:
        return f"<Run {self.info.name!r} at {self.path}>"

    def uncached(self) -> Run:
        """The run for one look: its rows go with it, and are not kept up to date."""
        run = copy.copy(self)
        run._views, run._published = {}, {}
        return run

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that have written so far."""
        return tuple(self._logs)

    @property
    def steps(self) -> pa.Table:
        """A row a step and optimizer; the user's scalars joined as columns."""
        return self.read(Table.STEPS)

    @property
    def layers(self) -> pa.Table:
        """A row a layer and sampled step, with what the layer is."""
        return self.read(Table.LAYERS)

    @property
    def devices(self) -> pa.Table:
        """A row a device and sample."""
        return self.read(Table.DEVICES)

    @property
    def events(self) -> pa.Table:
        """A row an event; `detail` is JSON."""
        return self.read(Table.EVENTS)

    def figure(self, theme: str = "light") -> Any:
        """The run's chart as a plotly figure, light or dark; plotly must be installed."""
        # By name: the report stands above the store, and only who asks for a figure loads it.
        return import_module("ampwatch.report.plotly_figure").figure_of(self, theme)

    def _repr_html_(self) -> str:
        """The run in a notebook, as it stands now: what its report says, and a small chart."""
        self.refresh()
        return str(import_module("ampwatch.report.notebook_html").run_html(self))

    @property
    def ended(self) -> Mapping[int, bool]:
        """For each rank whether its newest attempt wrote its end mark."""
        return {rank: log.ended for rank, log in self._logs.items()}

    @property
    def clean_end(self) -> bool:
        """Whether every rank there is wrote its end mark."""
        return bool(self._logs) and all(log.ended for log in self._logs.values())

    @property
    def last_time_ns(self) -> int:
        """The latest time any row tells, else when the run started."""
        with self.lock:
            newest = [log.last_time_ns for log in self._logs.values()]
        return max([self.info.started_ns, *newest])

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences: what was cut off, what is missing. The first call verifies every byte."""
        with self.lock:
            for log in self._logs.values():
                log.verify()
            self._forget_after_cut()
            ranks = (
                note
                for rank, log in self._logs.items()
                for note in (*log.notes, *self.files.lacks(rank))
            )
            return (*self.info.notes, *ranks)

    def read(
        self, table: Table | str, columns: Sequence[str] | None = None, rank: int | None = None
    ) -> pa.Table:
        """Rows of a table in canonical order; only `columns`, in that order, are decoded.

        Raises RunError on an unknown table or column. `rank` keeps that rank's rows.
        """
        table = _known_table(table)
        wanted = None if columns is None else tuple(columns)
        key = (table, wanted, rank)
        with self.lock:
            if key not in self._published and (among := self._read_among_others(key)) is not None:
                self._published[key] = among
            if key not in self._published:
                rows = self._build(table, wanted, rank)
                if self._forget_after_cut():  # damage on the way shortens what was read before
                    rows = self._build(table, wanted, rank)
                self._published[key] = rows
            return self._published[key]

    def logged(
        self,
        table: Table,
        columns: Sequence[str],
        rank: int,
        start: int = 0,
        most: int | None = None,
    ) -> pa.Table:
        """Stored columns of a rank's rows in the order of its log: at most so many, from `start`.

        Layers are numbers as they were logged, data types have their names. A row keeps its number
        while the log grows and is compacted, so whoever remembers how many there were misses none
        and meets none twice; nothing of them is kept in memory.
        """
        log = self._logs.get(rank)
        if log is None:
            return pa.Table.from_batches([], pa.schema([SCHEMAS[table].field(n) for n in columns]))
        with self.lock:
            stop = log.rows(table) if most is None else min(log.rows(table), start + most)
            return public.with_dtype_names(log.read(table, columns, start, max(start, stop)))

    def last_rows(
        self,
        table: Table,
        columns: Sequence[str],
        most: int,
        *,
        step: int | None = None,
        rank: int | None = None,
    ) -> pa.Table:
        """The last rows up to a step, or of all: at most so many, of which none stays in memory."""
        names = [name for name in columns if name in public.PUBLIC_NAMES[table]]
        with self.lock:
            logs = [log for log in self._logs.values() if rank in (None, log.rank)]
            stops = {log.rank: _end_of(log, table, step) for log in logs}
            starts = {at: max(0, stop - most - _DISORDER_ROWS) for at, stop in stops.items()}
            view = View(table, public.stored_for(table, names), starts)
            rows = view.update(logs, stops)
            if step is not None and rows.num_rows:
                rows = rows.filter(pc.less_equal(rows.column("step"), scalar(step, pa.int64())))
            rows = rows.slice(max(0, rows.num_rows - most))
            return public.publish(table, rows, names, self.layer_facts(table, names))

    def rows_between(
        self, table: Table, columns: Sequence[str], first: int, last: int, rank: int | None = None
    ) -> Iterator[pa.Table]:
        """The rows of some steps, rank by rank, in portions; none of them stays in memory."""
        names = public.stored_for(table, ("step", *columns))
        ends = column([first, last], pa.int64())
        for log in self.logs:
            if rank not in (None, log.rank):
                continue
            resumed = sum(kind == EventKind.STARTED.value for _, kind in log.marks) > 1
            start = 0 if resumed else max(0, _end_of(log, table, first - 1) - 2 * _DISORDER_ROWS)
            end = _end_of(log, table, None if resumed else last)
            for at in range(start, end, _PORTION_ROWS):
                with self.lock:
                    stop = min(end, at + _PORTION_ROWS)
                    rows = View(table, names, {log.rank: at}).update([log], {log.rank: stop})
                    step = rows.column("step")
                    within = pc.and_(pc.greater_equal(step, ends[0]), pc.less_equal(step, ends[1]))
                    facts = self.layer_facts(table, columns)
                    yield public.publish(table, rows.filter(within), columns, facts)

    def rows_logged(self, table: Table, rank: int) -> int:
        """How many rows of a table a rank has logged."""
        log = self._logs.get(rank)
        return log.rows(table) if log is not None else 0

    @property
    def logs(self) -> tuple[RankRows, ...]:
        """Each rank's log, the lowest rank's first."""
        return tuple(self._logs.values())

    @property
    def cuts(self) -> int:
        """Grows when damage is found that shortens a log: rows read before no longer line up."""
        return sum(log.cuts for log in self._logs.values())

    def layer_facts(self, table: Table, names: Sequence[str]) -> public.LayerFacts:
        """What the layers are, for the public columns of a table that tell of it."""
        if public.needs_layers(table, names):
            return public.LayerFacts.of(self._stored(Table.LAYER_INFO, _ALL_INFO))
        return public.LayerFacts.of(View(Table.LAYER_INFO, _ALL_INFO).update([]))

    def column_names(self, table: Table | str) -> tuple[str, ...]:
        """The public columns of a table; for steps with the user's scalars."""
        table = _known_table(table)
        names = public.PUBLIC_NAMES[table]
        return (*names, *self._extra_names()) if table is Table.STEPS else names

    def refresh(self) -> bool:
        """Take in what was logged since; True if there is more. Costs what is new."""
        with self.lock:
            return self._refresh()

    # --- within ----------------------------------------------------------------------------------

    def _refresh(self) -> bool:
        changed = self._find_ranks()
        if self.info.source != "ampwatch":  # an importer describes the run anew as it reads
            self.info = self.files.info()
        for log in self._logs.values():
            changed = log.refresh() or changed
        if changed:
            self._published.clear()
        self._forget_after_cut()
        return changed

    def _find_ranks(self) -> bool:
        ranks_before = len(self._logs)
        for rank in self.files.ranks():
            if rank not in self._logs:
                self._logs[rank] = self.files.log(rank)
        self._logs = dict(sorted(self._logs.items()))
        return len(self._logs) > ranks_before

    def _forget_after_cut(self) -> bool:
        """Damage shortens a log: what was read from it before no longer lines up."""
        if self.cuts == self._cuts:
            return False
        self._cuts = self.cuts
        self._views.clear()
        self._published.clear()
        return True

    def _read_among_others(self, key: _Reading) -> pa.Table | None:
        """The same rows, where these columns were read with others since the last refresh.

        A long run's columns are large, and the report asks for some that the diagnosis has read.
        """
        table, wanted, rank = key
        if not wanted:
            return None
        for (other, _, of), rows in self._published.items():
            if (other, of) == (table, rank) and set(wanted).issubset(rows.column_names):
                return rows.select(wanted)
        return None

    def _build(self, table: Table, wanted: tuple[str, ...] | None, rank: int | None) -> pa.Table:
        names = self.column_names(table) if wanted is None else wanted
        self._refuse_unknown(table, names)
        own = [name for name in names if name in public.PUBLIC_NAMES[table]]
        rows = self._stored(table, public.stored_for(table, own), rank)
        table_rows = public.publish(table, rows, own, self.layer_facts(table, own))
        if len(own) == len(names):
            return table_rows
        return self._with_extras(table_rows, rows, names)

    def _refuse_unknown(self, table: Table, names: Sequence[str]) -> None:
        unknown = set(names).difference(public.PUBLIC_NAMES[table])
        if unknown and table is Table.STEPS:
            unknown.difference_update(self._extra_names())
        if unknown:
            raise RunError(
                f"The table {table.value} has no column {min(unknown)!r}; it has "
                f"{', '.join(self.column_names(table))}.",
                path=self.path,
            )

    def _stored(self, table: Table, names: Sequence[str], rank: int | None = None) -> pa.Table:
        key = (table, tuple(names), rank)
        view = self._views.pop(key, None) or View(table, names)
        self._views[key] = view  # the newest last
        while len(self._views) > _MAX_VIEWS + _VIEWS_A_RANK * len(self._logs):
            self._views.pop(next(iter(self._views)))
        return view.update([log for log in self._logs.values() if rank in (None, log.rank)])

    def _extra_names(self) -> dict[str, str]:
        return public.scalar_names(self._stored(Table.EXTRAS, _ALL_EXTRAS))

    def _with_extras(self, found: pa.Table, rows: pa.Table, names: Sequence[str]) -> pa.Table:
        users = self._extra_names()
        joined = [name for name in names if name in users]
        long_rows = self._stored(Table.EXTRAS, _ALL_EXTRAS)
        added = public.join_scalars(rows, long_rows, [users[name] for name in joined])
        for name, values in zip(joined, added, strict=True):
            found = found.append_column(name, values)
        return found.select(list(names))


_ALL_INFO = tuple(SCHEMAS[Table.LAYER_INFO].names)
_ALL_EXTRAS = tuple(SCHEMAS[Table.EXTRAS].names)


def _end_of(log: RankRows, table: Table, step: int | None) -> int:
    """After which row of a log no row up to the step is to be expected: its order is nearly so."""
    low, high = 0, log.rows(table)
    if step is None:
        return high
    last = high
    while low < high:
        middle = (low + high) // 2
        step_there = log.read(table, ["step"], middle, middle + 1).column(0)
        if len(step_there) and (step_there[0].as_py() or 0) <= step:
            low = middle + 1
        else:
            high = middle
    return min(last, low + _DISORDER_ROWS)


def _known_table(table: Table | str) -> Table:
    try:
        return Table(table)
    except ValueError:
        names = ", ".join(known.value for known in Table)
        raise RunError(f"A run has no table {table!r}; it has {names}.") from None


# --- each row once --------------------------------------------------------------------------------

_ALL = 1 << 62
_LEAST_STEPS = 1024  # in a portion, however many layers each has


class Reading:
    """A run for who takes each row once: in portions, and what was taken is not held.

    The log is the memory: a long one is shown as if it grew, some rows of every rank at a time, all
    tables equally far, in canonical order.

    A row may come late, among rows that were taken already. Then `is_overtaken`: what was taken no
    longer holds, and only a new reading, in one portion, has every row in its place.
    """

    def __init__(self, run: Run, portion_rows: int | None = _PORTION_ROWS) -> None:
        self.run = run
        self.is_overtaken = False
        self._portion_rows = portion_rows
        self._steps: dict[int, int] = {}  # rows of steps that were shown, by rank
        self._batches: dict[int, int] = {}  # that are shown, of each rank that has more
        self._views: dict[tuple[Table, tuple[str, ...], int | None], View] = {}
        self._cuts = run.cuts

    @property
    def is_as_logged(self) -> bool:
        """Whether a rank's rows are in the order of its log, so that they can be found there."""
        return all(v.is_as_logged for (_, _, rank), v in self._views.items() if rank is not None)

    def portions(self) -> Iterator[None]:
        """Show more of the run as it was last refreshed, until all is shown."""
        while True:
            with self.run.lock:
                self._show_portion()
            yield
            if not self._batches or self.is_overtaken:
                break
        self._portion_rows = self._portion_rows or _PORTION_ROWS

    def read(
        self, table: Table, columns: Sequence[str], rank: int | None = None, start: int = 0
    ) -> pa.Table:
        """The rows shown by now, from number `start` on; those before are forgotten."""
        with self.run.lock:
            return self._read(table, columns, rank, start)

    def _read(self, table: Table, columns: Sequence[str], rank: int | None, start: int) -> pa.Table:
        names = public.stored_for(table, columns)
        key = (table, tuple(names), rank)
        view = self._views.setdefault(key, View(table, names))
        view.forget(start)
        logs = [log for log in self.run.logs if rank in (None, log.rank)]
        rows = view.update(logs, {log.rank: self._stop(log, table) for log in logs})
        if (behind := start - view.forgotten) > 0:  # a reader that goes on where another stopped
            rows = rows.slice(behind)
        self.is_overtaken |= view.is_overtaken or self.run.cuts != self._cuts
        return public.publish(table, rows, columns, self.run.layer_facts(table, columns))

    def _stop(self, log: RankRows, table: Table) -> int:
        """How many rows of a table are shown."""
        if log.rank not in self._batches:
            return log.rows(table)
        return min(log.rows(table), int(log.row_ends(table)[self._batches[log.rank] - 1]))

    def _show_portion(self) -> None:
        """Ranks go on by as many steps each, lest one be taken for late."""
        self._batches = {}
        more = min((self._steps_of_a_portion(log) for log in self.run.logs), default=_ALL)
        for log in self.run.logs:
            known, shown = log.rows(Table.STEPS), self._steps.get(log.rank, 0)
            if known - shown > more:
                ends = log.row_ends(Table.STEPS)
                reached = ends[min(int(np.searchsorted(ends, shown + more)), len(ends) - 1)]
                # With the batches of other tables that were filed after those steps.
                batches = int(np.searchsorted(ends, reached, side="right"))
                if batches < len(ends):
                    self._batches[log.rank] = batches
                    known = min(known, int(ends[batches - 1]))
            self._steps[log.rank] = known

    def _steps_of_a_portion(self, log: RankRows) -> int:
        known, shown = log.rows(Table.STEPS), self._steps.get(log.rank, 0)
        if self._portion_rows is None or known == shown:
            return _ALL
        steps, all_tables = log.row_ends(Table.STEPS), log.row_ends()
        before = np.searchsorted(steps, shown) if shown else 0
        there = int(all_tables[before]) if shown else 0
        end = min(len(steps) - 1, int(np.searchsorted(all_tables, there + self._portion_rows)))
        return max(_LEAST_STEPS, int(steps[end]) - shown)


# --- what a run is read from ----------------------------------------------------------------------


class RunFiles(Protocol):
    """What a run is read from: a folder, or a place to which it was published (`fleet`)."""

    def info(self) -> RunInfo:
        """What the run says about itself."""

    def ranks(self) -> tuple[int, ...]:
        """The ranks that have written so far."""

    def log(self, rank: int) -> RankRows:
        """A rank's rows."""

    def lacks(self, rank: int) -> tuple[str, ...]:
        """Sentences: which batches of a rank are not here."""

    def muted(self) -> tuple[tuple[str, str], ...]:
        """Codes of findings that somebody muted, each with the reason."""

    def is_there(self) -> bool:
        """Whether it can still be read, as far as that is cheap to know."""

    def grows(self) -> bool:
        """Whether rows may still come here; else it stands as it did when it was opened."""

    def is_written(self) -> bool:
        """Whether a process is writing the run; False if that cannot be known."""

    def is_abandoned(self, host: str) -> bool:
        """Whether it is known that nobody writes the run, which was made on this host."""


class RunFolder:
    """A run on this disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._logs: dict[int, RankLog] = {}

    def info(self) -> RunInfo:
        """Its run.json."""
        return read_info(self._path)

    def ranks(self) -> tuple[int, ...]:
        """The ranks that have a folder."""
        return ranks_in(self._path)

    def log(self, rank: int) -> RankLog:
        """The log in a rank's folder."""
        if rank not in self._logs:
            self._logs[rank] = RankLog(rank_folder(self._path, rank), rank)
        return self._logs[rank]

    def muted(self) -> tuple[tuple[str, str], ...]:
        """What its tags say."""
        return read_tags(self._path).muted

    def lacks(self, rank: int) -> tuple[str, ...]:
        """What a copy lacks of the trainer's log."""
        return self.log(rank).lacks(read_copies(self._path).get(rank))

    def is_there(self) -> bool:
        """Whether its folder is there."""
        return (self._path / RUN_FILE).is_file()

    def grows(self) -> bool:
        """A folder is where a trainer or a recorder writes."""
        return True

    def is_written(self) -> bool:
        """Whether a lock of a rank is held."""
        return locks.is_written(self._path)

    def is_abandoned(self, host: str) -> bool:
        """Whether a run of this machine has a lock that works and that nobody holds.

        The lock of a copy is the recorder's, who lets go of it while a trainer is silent.
        """
        is_here = bool(host) and host == platform.node()
        return is_here and locks.is_let_go(self._path) and not read_copies(self._path)
