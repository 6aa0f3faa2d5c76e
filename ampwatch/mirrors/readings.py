"""The vocabulary: what of a run is mirrored, under which names, and how it is handed on.

A mirror is handed updates. In them absent is marked and left out; nan and inf are numbers.
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
    """One curve: its name, and how metrics systems, which want base units, know it."""

    name: str
    metric: str
    help: str
    unit: str = ""  # of the metric: "seconds", "bytes"
    factor: float = 1.0  # from the reading to that unit
    is_count: bool = False  # only grows


READINGS = (
    Reading("scale", "loss_scale", "The loss scale that the gradients were scaled with."),
    Reading("skipped", "skipped_steps", "Steps skipped so far.", is_count=True),
    Reading("loss", "loss", "The loss."),
    Reading("lr", "learning_rate", "The first group's learning rate."),
    Reading("grad_norm", "gradient_norm", "The unscaled gradients' norm, before clipping."),
    Reading("grad_norm_applied", "gradient_norm_applied", "That norm as the optimizer saw it."),
    Reading("step_time_ms", "step_time", "How long a step took.", "seconds", 1e-3),
    Reading(
        "memory_peak_bytes", "memory_peak", "The fullest that a device of the rank was.", "bytes"
    ),
)


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """A reading in each row, and whether it is there."""

    values: NDArray[np.float64]
    there: Flags

    def at(self, rows: Flags) -> Curve:
        """Some rows of it."""
        return Curve(self.values[rows], self.there[rows])


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """New rows of one rank and optimizer, oldest first, with a curve a reading."""

    rank: int
    optimizer: int  # 0 for the first one seen
    steps: Integers
    times_ns: Integers
    curves: Mapping[str, Curve]

    @property
    def prefix(self) -> str:
        """What the readings' names begin with where each rank has a run of its own."""
        return f"{PREFIX}optimizer-{self.optimizer}/" if self.optimizer else PREFIX

    @property
    def full_prefix(self) -> str:
        """The same where all ranks' curves stand in one run; of the first rank it is no longer."""
        rank = f"{PREFIX}rank-{self.rank}/" if self.rank else PREFIX
        return self.prefix.replace(PREFIX, rank)

    def known(self, name: str) -> tuple[Flags, NDArray[np.float64]]:
        """In which rows a reading is there, and its values in those."""
        curve = self.curves[name]
        return curve.there, curve.values[curve.there]

    def one_by_one(self) -> Iterator[tuple[int, int, dict[str, float]]]:
        """Each row as step, time in ns, and its readings by their full names."""
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
    """What is new of a run since the update before.

    `diagnosis` is there when there is a new one; `fresh` are its findings that are new or worse.
    """

    info: RunInfo
    place: str  # where the run lies
    points: tuple[Points, ...]
    diagnosis: Diagnosis | None = None
    fresh: tuple[Finding, ...] = ()
    state: State = State.LIVE

    @property
    def is_over(self) -> bool:
        """Whether the run has ended or is lost: this is its last update, unless it goes on."""
        return self.state is not State.LIVE

    @property
    def findings_text(self) -> str:
        """All that was found so far, in words."""
        if self.diagnosis is None:
            return ""
        if not self.diagnosis.findings:
            return f"ampwatch: {self.info.name} is {self.diagnosis.verdict.value}"
        told = alert_of(self.info.name, self.place, self.diagnosis, self.diagnosis.findings)
        return f"{told.title}\n\n{told.body}"

    @property
    def alert(self) -> Alert | None:
        """What the findings that are fresh say, if there are any."""
        if self.diagnosis is None or not self.fresh:
            return None
        return alert_of(self.info.name, self.place, self.diagnosis, self.fresh)

    @property
    def row_count(self) -> int:
        """How many rows it brings."""
        return sum(len(points.steps) for points in self.points)


class Mirror(Protocol):
    """A place that shows runs. Used by one thread; may take its time, and may raise.

    A update that it raised at is handed to it again later. `close` follows the last one.
    """

    @property
    def label(self) -> str:
        """What it is called in sentences."""

    @property
    def shows_past(self) -> bool:
        """Whether what was logged before this process is wanted, too: else it is there already."""

    def take(self, update: Update) -> None:
        """Show what is new."""

    def close(self) -> None:
        """Send what is still held back, and end."""
