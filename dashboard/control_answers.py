"""What a run's trainer allows the dashboard to do, and its answers, read from `control` events."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock

from ampwatch.diagnosis.record import detail_of
from ampwatch.follow import Follower
from ampwatch.rows import EventKind, Table
from ampwatch.store import Run

_COLUMNS = ("step", "time_ns", "kind", "detail")
_PORTION_ROWS = 1 << 16
_KEPT = 20


@dataclass(frozen=True, slots=True)
class ControlAnswer:
    """A trainer's answer to one instruction of the dashboard."""

    number: int
    step: int
    time_ns: int
    outcome: str  # done, refused, failed or undone
    told: str


@dataclass(frozen=True, slots=True)
class AllowedControls:
    """The instructions that the trainer accepts now."""

    keys: tuple[str, ...] = ()


class ControlAnswers:
    """Reads a run's `control` events once, of the lowest rank; any thread may ask."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        self._lock = Lock()
        self._run: Run | None = None
        self._cuts = self._taken = 0
        self._allowed = AllowedControls()
        self._answers: tuple[ControlAnswer, ...] = ()

    def read(self) -> tuple[AllowedControls, tuple[ControlAnswer, ...]]:
        """Read new events: what the trainer allows now, and its latest answers, the newest last."""
        with self._lock, self._follower.reading() as run:
            if run is not self._run or run.cuts != self._cuts:
                self._run, self._cuts, self._taken = run, run.cuts, 0
                self._allowed, self._answers = AllowedControls(), ()
            while run.ranks and self._read_portion(run):
                pass
            return self._allowed, self._answers

    def _read_portion(self, run: Run) -> bool:
        """Read a portion of the run's events; returns whether there were any."""
        rows = run.logged(Table.EVENTS, _COLUMNS, min(run.ranks), self._taken, _PORTION_ROWS)
        self._taken += rows.num_rows
        for row in rows.to_pylist():
            self._take(row["kind"], row["step"], row["time_ns"], row["detail"])
        return bool(rows.num_rows)

    def _take(self, kind: str, step: int | None, time_ns: int | None, told: str | None) -> None:
        if kind == EventKind.STARTED.value:  # another attempt, which may allow something else
            self._allowed = AllowedControls()
        if kind != EventKind.CONTROL.value:
            return
        detail = detail_of(told)
        if "offers" in detail:
            self._allowed = AllowedControls(tuple(map(str, detail["offers"])))
        elif isinstance(detail.get("number"), int):
            answer = ControlAnswer(
                detail["number"], step or 0, time_ns or 0,
                str(detail.get("outcome")), str(detail.get("told")),
            )  # fmt: skip
            self._answers = (*self._answers, answer)[-_KEPT:]
