"""How runs stand now, for places that ask for the present only: Prometheus, OpenTelemetry."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ampwatch.diagnosis import Finding
from ampwatch.mirrors.readings import READINGS, Points, Reading, Update

MOST_ENDED_RUNS = 100  # whoever records for months shows no more of them than that

STEP = Reading("step", "step", "The newest step.")
ENDED = Reading("ended", "run_ended", "1 once the run has ended.")
FINDING = Reading("finding", "finding", "1 for each finding that stands.")


@dataclass(frozen=True, slots=True)
class Sample:
    """One number now, and whose it is."""

    value: float
    labels: dict[str, str]


@dataclass(slots=True)
class _Run:
    """One run: by rank and optimizer the newest of each reading, and what was found."""

    values: dict[tuple[int, int], dict[str, float]] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    is_over: bool = False


class CurrentValues:
    """Kept by the mirror's thread, read by whichever thread is asked for the numbers."""

    def __init__(self) -> None:
        self._runs: dict[str, _Run] = {}
        self._lock = threading.Lock()

    def note(self, update: Update) -> None:
        """Take in what is new of a run."""
        with self._lock:
            run = self._runs.setdefault(Path(update.place).name, _Run())
            for points in update.points:
                own = run.values.setdefault((points.rank, points.optimizer), {})
                own.update(_newest(points))
            if update.diagnosis is not None:
                run.findings = update.diagnosis.findings
            run.is_over = update.is_over
            self._forget()

    def samples(self) -> dict[Reading, list[Sample]]:
        """Every metric that somebody has, with its samples."""
        with self._lock:
            runs = [(name, run) for name, run in self._runs.items()]
            found = {
                reading: [s for name, one in runs for s in _samples(reading, name, one)]
                for reading in (STEP, *READINGS)
            }
            found[ENDED] = [Sample(float(one.is_over), {"run": name}) for name, one in runs]
            found[FINDING] = [s for name, one in runs for s in _findings(name, one)]
        return {reading: samples for reading, samples in found.items() if samples}

    def _forget(self) -> None:
        """Let go of the runs that ended first."""
        ended = [name for name, run in self._runs.items() if run.is_over]
        for name in ended[:-MOST_ENDED_RUNS]:
            del self._runs[name]


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
