"""What a run's trainer allows a page to do, and its answers, from its `control` events."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock

from ampwatch.diagnosis.event import detail_of
from ampwatch.follow import Follower
from ampwatch.rows import EventKind, Table
from ampwatch.store import Run

_COLUMNS = ("step", "time_ns", "kind", "detail")
_PORTION_ROWS = 1 << 16
_KEPT = 20


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of one instruction."""

    number: int
    step: int
    time_ns: int
    outcome: str  # done, refused, failed or undone
    told: str


@dataclass(frozen=True, slots=True)
class Allowed:
    """The instructions that the trainer accepts now."""

    keys: tuple[str, ...] = ()


class ControlAnswers:
    """Reads each event once, of the lowest rank; any thread may ask."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        self._lock = Lock()
        self._run: Run | None = None
        self._cuts = self._taken = 0
        self._allowed = Allowed()
        self._answers: tuple[Answer, ...] = ()

    def look(self) -> tuple[Allowed, tuple[Answer, ...]]:
        """What is allowed now, and the latest answers, the newest last."""
        with self._lock, self._follower.reading() as run:
            if run is not self._run or run.cuts != self._cuts:
                self._run, self._cuts, self._taken = run, run.cuts, 0
                self._allowed, self._answers = Allowed(), ()
            while run.ranks and self._portion(run):
                pass
            return self._allowed, self._answers

    def _portion(self, run: Run) -> bool:
        """Take in some rows; whether there were any."""
        rows = run.logged(Table.EVENTS, _COLUMNS, min(run.ranks), self._taken, _PORTION_ROWS)
        self._taken += rows.num_rows
        for row in rows.to_pylist():
            self._take(row["kind"], row["step"], row["time_ns"], row["detail"])
        return bool(rows.num_rows)

    def _take(self, kind: str, step: int | None, time_ns: int | None, told: str | None) -> None:
        if kind == EventKind.STARTED.value:  # another attempt, which may allow something else
            self._allowed = Allowed()
        if kind != EventKind.CONTROL.value:
            return
        detail = detail_of(told)
        if "offers" in detail:
            self._allowed = Allowed(tuple(map(str, detail["offers"])))
        elif isinstance(detail.get("number"), int):
            answer = Answer(
                detail["number"], step or 0, time_ns or 0,
                str(detail.get("outcome")), str(detail.get("told")),
            )  # fmt: skip
            self._answers = (*self._answers, answer)[-_KEPT:]
