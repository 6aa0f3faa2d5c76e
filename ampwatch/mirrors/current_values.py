"""The current values of runs, for places that show only the present: Prometheus, OpenTelemetry."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ampwatch.diagnosis import Finding
from ampwatch.mirrors.updates import READINGS, Points, Reading, Update

MOST_ENDED_RUNS = 100  # at most so many ended runs are shown, however long one records

STEP = Reading("step", "step", "The newest step.")
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
            found = {
                reading: [s for name, one in runs for s in _samples(reading, name, one)]
                for reading in (STEP, *READINGS)
            }
            found[ENDED] = [Sample(float(one.is_over), {"run": name}) for name, one in runs]
            found[FINDING] = [s for name, one in runs for s in _findings(name, one)]
        return {reading: samples for reading, samples in found.items() if samples}


def _newest(points: Points) -> Iterator[tuple[str, float]]:
    yield STEP.name, float(points.steps[-1])
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
