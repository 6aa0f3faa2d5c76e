"""What mirrors are given of a run: its readings by name, in updates that are read from its log.

In an update, absent values are marked and left out; nan and inf are numbers. Updates are read in
portions; the log itself is the queue, so little is kept here. For places that show only the present
(Prometheus, OpenTelemetry) `CurrentValues` keeps the newest of each.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ampwatch.alerts.alert_text import Alert, alert_of
from ampwatch.codec.columns import integers, joined, raw, valid
from ampwatch.diagnosis import Diagnosis, Finding
from ampwatch.follow import FollowedRun, Follower, NewFindings, State
from ampwatch.rows import Table
from ampwatch.store import Run, RunInfo

Flags: TypeAlias = NDArray[np.bool_]
Integers: TypeAlias = NDArray[np.int64]

PREFIX = "ampwatch/"
STEP = PREFIX + "step"


@dataclass(frozen=True, slots=True)
class Reading:
    """One curve: its name, and its name and unit in metrics systems, which use base units."""

    name: str
    metric: str
    help: str
    unit: str = ""  # the metric's unit: "seconds", "bytes"
    factor: float = 1.0  # factor from the reading to that unit
    is_count: bool = False  # a counter


READINGS = (
    Reading("scale", "loss_scale", "The loss scale that the gradients were scaled with."),
    Reading("skipped", "skipped_steps", "Steps skipped so far.", is_count=True),
    Reading("loss", "loss", "The loss."),
    Reading("lr", "learning_rate", "The first group's learning rate."),
    Reading("grad_norm", "gradient_norm", "The norm of the unscaled gradients, before clipping."),
    Reading(
        "grad_norm_applied",
        "gradient_norm_applied",
        "The norm of the gradients that the optimizer received.",
    ),
    Reading("step_time_ms", "step_time", "The duration of a step.", "seconds", 1e-3),
    Reading("memory_peak_bytes", "memory_peak", "The peak memory of the rank's devices.", "bytes"),
)

# A card's columns in the table `devices` that are shown as they are.
DEVICE_COLUMNS = ("used_bytes", "total_bytes", "utilisation", "power_w", "temperature_c")


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """The values of a reading by row, and in which rows it is present."""

    values: NDArray[np.float64]
    there: Flags

    def at(self, rows: Flags) -> Curve:
        """Some rows of it."""
        return Curve(self.values[rows], self.there[rows])


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """New rows of one rank and optimizer, oldest first, with one curve for each reading."""

    rank: int
    optimizer: int  # 0 for the first one
    steps: Integers
    times_ns: Integers
    curves: Mapping[str, Curve]
    devices: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # newest row of each

    @property
    def prefix(self) -> str:
        """The prefix of the readings' names if each rank has its own run."""
        return f"{PREFIX}optimizer-{self.optimizer}/" if self.optimizer else PREFIX

    @property
    def full_prefix(self) -> str:
        """The prefix if all ranks share one run; the first rank's is not longer."""
        rank = f"{PREFIX}rank-{self.rank}/" if self.rank else PREFIX
        return self.prefix.replace(PREFIX, rank)

    def known(self, name: str) -> tuple[Flags, NDArray[np.float64]]:
        """The rows in which a reading is present, and its values."""
        curve = self.curves[name]
        return curve.there, curve.values[curve.there]

    def one_by_one(self) -> Iterator[tuple[int, int, dict[str, float]]]:
        """Each row as its step, its time in ns, and its readings by full name."""
        curves = [
            (self.full_prefix + one.name, self.curves[one.name].values.tolist(),
             self.curves[one.name].there.tolist())
            for one in READINGS
        ]  # fmt: skip
        rows = zip(self.steps.tolist(), self.times_ns.tolist(), strict=True)
        for at, (step, time_ns) in enumerate(rows):
            yield step, time_ns, {name: values[at] for name, values, there in curves if there[at]}


@dataclass(frozen=True, slots=True)
class Update:
    """What is new in a run since the previous update.

    `diagnosis` is set if there is a new one; `fresh` are its findings that are new or worse.
    """

    info: RunInfo
    place: str  # the run's folder
    points: tuple[Points, ...]
    diagnosis: Diagnosis | None = None
    fresh: tuple[Finding, ...] = ()
    state: State = State.LIVE

    @property
    def is_over(self) -> bool:
        """Whether the run has ended or is lost: then this is its last update, unless it goes on."""
        return self.state is not State.LIVE

    @property
    def findings_text(self) -> str:
        """The verdict and all findings, as text."""
        if self.diagnosis is None:
            return ""
        if not self.diagnosis.findings:
            return f"ampwatch: {self.info.name} is {self.diagnosis.verdict.value}"
        told = alert_of(self.info.name, self.place, self.diagnosis, self.diagnosis.findings)
        return f"{told.title}\n\n{told.body}"

    @property
    def alert(self) -> Alert | None:
        """The new findings as text, if there are any."""
        if self.diagnosis is None or not self.fresh:
            return None
        return alert_of(self.info.name, self.place, self.diagnosis, self.fresh)

    @property
    def row_count(self) -> int:
        """How many rows it contains."""
        return sum(len(points.steps) for points in self.points)


# --- reading what is new --------------------------------------------------------------------------

MOST_ROWS = 4096  # rows of a rank in one update, which a client gets at once

_PLAIN = ("scale", "loss", "lr", "grad_norm", "grad_norm_applied", "step_time_ms")
_COLUMNS = ("step", "time_ns", "skipped", "optimizer", "scale_after", *_PLAIN)


@dataclass(frozen=True, slots=True)
class Selection:
    """Which of a run's rows are mirrored; findings are always those of the whole run."""

    thin: int = 1  # 10: every tenth step, and every skipped one
    rank: int | None = None  # only this rank's
    began_ns: int = 0  # start of the followed attempt
    shows_past: bool = True  # earlier attempts as well


class RankReader:
    """Reads a rank's rows from where it stopped, and counts its skips."""

    def __init__(self, rank: int, selection: Selection) -> None:
        self._rank, self._selection = rank, selection
        self._steps_read = self._samples_read = 0
        self._skipped: dict[int, int] = {}  # by optimizer, in order of appearance
        self._devices: dict[str, dict[str, Any]] = {}  # the newest sample of each

    def waiting(self, run: Run) -> int:
        """How many step rows have not been read yet."""
        return max(0, run.rows_logged(Table.STEPS, self._rank) - self._steps_read)

    def read(self, run: Run, most: int) -> tuple[Points, ...]:
        """The next rows, at most so many; one item for each optimizer."""
        rows = run.logged(Table.STEPS, _COLUMNS, self._rank, self._steps_read, most)
        self._steps_read += rows.num_rows
        rows = rows.filter(rows.column("step").is_valid())
        if not rows.num_rows:
            return ()
        steps = integers(rows.column("step"))
        times_ns = integers(rows.column("time_ns"), null=run.info.started_ns)
        peaks = self._peaks(run, times_ns, most)
        every = Points(
            self._rank, 0, steps, times_ns, {**_curves(rows), "memory_peak_bytes": peaks},
            self._devices,
        )  # fmt: skip
        skips = integers(rows.column("skipped").cast(pa.int8()), null=0) > 0
        numbers = integers(rows.column("optimizer"))
        parts = [self._of(n, every, skips, numbers == n) for n in np.unique(numbers).tolist()]
        return tuple(part for part in parts if len(part.steps))

    def _of(self, number: int, every: Points, skips: Flags, mine: Flags) -> Points:
        """One optimizer's mirrored rows, with its skips counted."""
        counts = np.zeros(len(mine))
        counts[mine] = self._skipped.setdefault(number, 0) + np.cumsum(skips[mine])
        self._skipped[number] = int(counts.max())
        place = list(self._skipped).index(number)
        curves = {**every.curves, "skipped": Curve(counts, np.ones(len(mine), np.bool_))}
        shown = mine & self._shown(every, skips)
        return Points(
            every.rank, place, every.steps[shown], every.times_ns[shown],
            {name: curve.at(shown) for name, curve in curves.items()}, every.devices,
        )  # fmt: skip

    def _shown(self, every: Points, skips: Flags) -> Flags:
        shown = np.ones(len(skips), np.bool_)
        if self._selection.thin > 1:
            shown &= (every.steps % self._selection.thin == 0) | skips
        if not self._selection.shows_past:
            shown &= every.times_ns >= self._selection.began_ns
        return shown

    def _peaks(self, run: Run, times_ns: Integers, most: int) -> Curve:
        """Each device sample, at the step that was running then."""
        names = ("time_ns", "peak_bytes", "device", "name", *DEVICE_COLUMNS)
        samples = run.logged(Table.DEVICES, names, self._rank, self._samples_read, most)
        ends = np.maximum.accumulate(times_ns)
        sampled = integers(samples.column("time_ns"))
        due = int(np.searchsorted(np.maximum.accumulate(sampled), ends[-1], side="right"))
        self._samples_read += due
        newest = samples.slice(0, due).select(names[2:]).to_pylist()
        self._devices = self._devices | {row["device"]: row for row in newest}
        values = integers(samples.column("peak_bytes"))[:due]
        places = np.minimum(np.searchsorted(ends, sampled[:due]), len(ends) - 1)
        peaks = np.full(len(ends), -1, np.int64)
        np.maximum.at(peaks, places, values)
        return Curve(peaks.astype(np.float64), peaks >= 0)


class UpdateReader:
    """A run as one mirror gets it. An update is repeated until `taken` confirms it."""

    def __init__(self, folder: Path, selection: Selection) -> None:
        self._place = str(folder)
        self._selection = selection
        self._follower: Follower | None = None
        self._followed: FollowedRun | None = None
        self._readers: dict[int, RankReader] = {}
        self._new = NewFindings()
        self._pending: Update | None = None
        self._shown: tuple[int, bool] | None = None  # the rows so far, and whether the run was over

    def update(self, follower: Follower, max_age_s: float) -> None:
        """Read what was logged since the last update; RunError if the run cannot be read."""
        self._followed, self._follower = follower.update(max_age_s), follower

    def next(self) -> Update | None:
        """The next update; None if there is none."""
        if self._pending is None and self._follower is not None and self._followed is not None:
            with self._follower.reading() as run:
                self._pending = self._update(run, self._followed)
        return self._pending

    def taken(self) -> None:
        """Confirm that the update has arrived."""
        update, self._pending = self._pending, None
        if update is not None and update.diagnosis is not None and self._followed is not None:
            self._shown = (self._followed.rows, update.is_over)
            if update.is_over:
                self._follower = None

    @property
    def is_done(self) -> bool:
        """Whether the run is over and everything has arrived."""
        return self._followed is not None and self._shown == (self._followed.rows, True)

    @property
    def is_behind(self) -> bool:
        """Whether an update did not arrive."""
        return self._pending is not None

    @property
    def waiting_rows(self) -> int:
        """How many rows did not arrive."""
        pending = self._pending.row_count if self._pending else 0
        if self._follower is None:
            return pending
        with self._follower.reading() as run:
            return pending + self._waiting(run)

    # --- within ----------------------------------------------------------------------------------

    def _update(self, run: Run, followed: FollowedRun) -> Update | None:
        points = self._points(run)
        # Findings come separately, so that a failing one repeats no rows.
        if points or self._waiting(run):
            return Update(run.info, self._place, points)
        # If one rank is mirrored, it ends with that rank.
        state = State.ENDED if self._selection.rank in followed.ended_ranks else followed.state
        is_over = state is not State.LIVE
        if self._shown == (followed.rows, is_over):
            return None
        diagnosis = followed.judged if is_over else followed.diagnosis
        if not (is_over or diagnosis.run.steps):
            return None  # it has just begun: that nothing can be judged yet is no news
        return Update(run.info, self._place, (), diagnosis, self._new.of(diagnosis), state)

    def _points(self, run: Run) -> tuple[Points, ...]:
        """The next rows to mirror, without those that are thinned out."""
        for rank in run.ranks:
            if self._selection.rank in (None, rank):
                self._readers.setdefault(rank, RankReader(rank, self._selection))
        while True:
            before = self._waiting(run)
            found = [p for reader in self._readers.values() for p in reader.read(run, MOST_ROWS)]
            if found or not 0 < self._waiting(run) < before:
                return tuple(found)

    def _waiting(self, run: Run) -> int:
        return sum(reader.waiting(run) for reader in self._readers.values())


def _curves(rows: pa.Table) -> dict[str, Curve]:
    """The readings that are plain columns. An imported log may have only the later scale."""
    found = {name: _curve(rows, name) for name in _PLAIN}
    after, scale = _curve(rows, "scale_after"), found["scale"]
    values = np.where(scale.there, scale.values, after.values)
    found["scale"] = Curve(values, scale.there | after.there)
    return found


def _curve(rows: pa.Table, name: str) -> Curve:
    array = joined(rows.column(name))
    return Curve(raw(array).astype(np.float64), valid(array))


# --- the newest values ----------------------------------------------------------------------------

MOST_ENDED_RUNS = 100  # at most so many ended runs are shown, however long one records

STEP_READING = Reading("step", "step", "The newest step.")
ENDED = Reading("ended", "run_ended", "1 once the run has ended.")
FINDING = Reading("finding", "finding", "1 for each current finding.")


@dataclass(frozen=True, slots=True)
class Sample:
    """One current value with its labels."""

    value: float
    labels: dict[str, str]


@dataclass(slots=True)
class _Run:
    """One run: the newest value of each reading by rank and optimizer, and the findings."""

    values: dict[tuple[int, int], dict[str, float]] = field(default_factory=dict)
    devices: dict[tuple[int, str], Mapping[str, Any]] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    is_over: bool = False


class CurrentValues:
    """Updated by the mirror's thread, read by any thread that asks for the values."""

    def __init__(self) -> None:
        self._runs: dict[str, _Run] = {}
        self._lock = threading.Lock()

    def note(self, update: Update) -> None:
        """Apply an update of a run."""
        with self._lock:
            run = self._runs.setdefault(Path(update.place).name, _Run())
            for points in update.points:
                own = run.values.setdefault((points.rank, points.optimizer), {})
                own.update(_newest(points))
                run.devices |= {(points.rank, d): row for d, row in points.devices.items()}
            if update.diagnosis is not None:
                run.findings = update.diagnosis.findings
            run.is_over = update.is_over
            ended = [name for name, run in self._runs.items() if run.is_over]
            for name in ended[:-MOST_ENDED_RUNS]:  # those that ended first
                del self._runs[name]

    def samples(self) -> dict[Reading, list[Sample]]:
        """Every metric that a run has, with its samples."""
        with self._lock:
            runs = [(name, run) for name, run in self._runs.items()]
            samples = {
                reading: [s for name, one in runs for s in _samples(reading, name, one)]
                for reading in (STEP_READING, *READINGS)
            }
            samples[ENDED] = [Sample(float(one.is_over), {"run": name}) for name, one in runs]
            samples[FINDING] = [s for name, one in runs for s in _findings(name, one)]
        return {reading: some for reading, some in samples.items() if some}

    def devices(self) -> list[tuple[str, int, Mapping[str, Any]]]:
        """Of each run that goes on and each rank the cards' newest rows."""
        with self._lock:
            return [
                (name, rank, row)
                for name, run in self._runs.items()
                if not run.is_over
                for (rank, _), row in run.devices.items()
            ]


def _newest(points: Points) -> Iterator[tuple[str, float]]:
    yield STEP_READING.name, float(points.steps[-1])
    for reading in READINGS:
        _, values = points.known(reading.name)
        if len(values):
            yield reading.name, float(values[-1]) * reading.factor


def _samples(reading: Reading, name: str, run: _Run) -> Iterator[Sample]:
    for (rank, optimizer), values in run.values.items():
        if reading.name in values:
            labels = {"run": name, "rank": str(rank), "optimizer": str(optimizer)}
            yield Sample(values[reading.name], labels)


def _findings(name: str, run: _Run) -> Iterator[Sample]:
    for finding in run.findings:
        yield Sample(
            1.0,
            {
                "run": name,
                "code": finding.code,
                "name": finding.name,
                "severity": finding.severity.value,
                "layer": finding.layer or "",
            },
        )
