"""The attempts of a run: each start, its steps, and how it ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ampwatch.diagnosis.record import Event, detail_of
from ampwatch.report.settings import flat
from ampwatch.rows import EventKind, Table
from ampwatch.store import Run
from ampwatch.store.rank_log import RankRows

_MARKS = (EventKind.STARTED.value, EventKind.ENDED.value, EventKind.EXCEPTION.value)
_MOST_LETTERS = 160  # of an exception's message
# What may differ in a later attempt; run.json has the values of the first.
_SETTINGS = {"config": "config", "scaler": "scaler", "origin": "code"}


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of a run, as recorded by one of its ranks."""

    number: int  # from 1
    first_step: int | None = None  # None if it took none
    last_step: int | None = None
    started_ns: int | None = None
    last_ns: int | None = None  # of its last step or event
    ending: str = ""  # in words; empty if its source records no end
    detail: Mapping[str, Any] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, str]:
        """The settings recorded by each attempt, by dotted name; long ones are cut."""
        told = {section: self.detail.get(name) for name, section in _SETTINGS.items()}
        return {name: text for name, text in flat("", told) if text and text != "null"}


def attempts_of(run: Run, rank: int, *, goes_on: bool) -> tuple[Attempt, ...]:
    """The attempts of one rank, the first one first; `goes_on`: the last one is live."""
    log = next((log for log in run.logs if log.rank == rank), None)
    if log is None:
        return ()
    names = ("step", "time_ns", "kind", "detail")
    told = [row for row in run.read(Table.EVENTS, names, rank).to_pylist() if row["kind"] in _MARKS]
    parts = list(_by_start(told)) or [[]]
    begins = [_first_row(log, number) for number in range(len(parts))]
    ends = [*begins[1:], log.rows(Table.STEPS)]
    known = zip(parts, begins, ends, strict=True)
    return tuple(
        _attempt(run, rank, number, part, (begin, end), goes_on=goes_on and number == len(parts))
        for number, (part, begin, end) in enumerate(known, 1)
    )


def _first_row(log: RankRows, attempt: int) -> int:
    """The number of the first row of an attempt, from 0, or of one after it."""
    low, high = 0, log.rows(Table.STEPS) if attempt else 0
    while low < high:
        middle = (low + high) // 2
        is_before = log.attempts(Table.STEPS, middle, middle + 1)[0] < attempt
        low, high = (middle + 1, high) if is_before else (low, middle)
    return low


def _by_start(rows: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    part: list[dict[str, Any]] = []
    for row in rows:
        if row["kind"] == EventKind.STARTED.value and part:
            yield part
            part = []
        part.append(row)
    if part:
        yield part


def _attempt(
    run: Run,
    rank: int,
    number: int,
    marks: Sequence[dict[str, Any]],
    rows: tuple[int, int],
    *,
    goes_on: bool,
) -> Attempt:
    begin, end = rows
    steps = [_row(run, rank, at) for at in (begin, end - 1)] if end > begin else []
    start = next((row for row in marks if row["kind"] == EventKind.STARTED.value), None)
    times = [row["time_ns"] for row in (*steps, *marks) if row["time_ns"]]
    return Attempt(
        number=number,
        first_step=steps[0]["step"] if steps else None,
        last_step=steps[1]["step"] if steps else None,
        started_ns=start["time_ns"] if start else None,
        last_ns=max(times, default=None),
        ending="goes on" if goes_on else _ending(run, marks),
        detail=detail_of(start["detail"]) if start else {},
    )


def _row(run: Run, rank: int, at: int) -> dict[str, Any]:
    found: dict[str, Any] = run.logged(Table.STEPS, ("step", "time_ns"), rank, at, 1).to_pylist()[0]
    return found


def _ending(run: Run, marks: Sequence[dict[str, Any]]) -> str:
    kinds = {row["kind"] for row in marks}
    for row in reversed(marks):
        event = Event(0, 0, row["kind"], detail_of(row["detail"]))
        if event.kind == EventKind.EXCEPTION.value and event.detail.get("fatal", True):
            message = str(event.detail.get("message") or "")[:_MOST_LETTERS]
            return f"ended by {event.exception}{f': {message}' if message else ''}"
    if EventKind.ENDED.value in kinds:
        return "ended with its end mark"
    return "cut off: it has no end mark" if run.info.source == "ampwatch" else ""
