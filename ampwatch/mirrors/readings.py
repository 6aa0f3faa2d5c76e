"""Which values of a run are mirrored, their names, and the updates that carry them.

In an update, absent values are marked and left out; nan and inf are numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ampwatch.alerts.alert_text import Alert, alert_of
from ampwatch.diagnosis import Diagnosis, Finding
from ampwatch.follow import State
from ampwatch.store import RunInfo

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


class Mirror(Protocol):
    """A place that shows runs. Used by one thread; may be slow and may raise.

    An update at which it raised is passed again later. `close` is called after the last one.
    """

    @property
    def label(self) -> str:
        """Its name in sentences."""

    @property
    def shows_past(self) -> bool:
        """Whether it also wants what was logged before this process began."""

    def take(self, update: Update) -> None:
        """Show an update of a run in this tool."""

    def close(self) -> None:
        """Send what is still waiting, and end."""
