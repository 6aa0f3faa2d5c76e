"""The steps that a chart marks for other reasons than a finding: attempts, and what was steered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from ampwatch.diagnosis.record import detail_of
from ampwatch.report.painter.message import StepNote
from ampwatch.report.timeline import Attempt, attempts_of
from ampwatch.rows import EventKind, Table
from ampwatch.store import Run

COLUMNS = ("step", "kind", "detail")
_STEERED = {"learning-rate": "learning rate set", "save": "checkpoint saved", "stop": "stopped"}
_MOST = 12  # of more, the lines would hide what they explain


def step_notes(attempts: Sequence[Attempt], events: pa.Table) -> list[StepNote]:
    """Where each later attempt begins, and where a page's instruction was done.

    `events` are a rank's, with the columns that are named here.
    """
    notes = [
        StepNote(attempt.first_step, f"attempt {attempt.number}")
        for attempt in attempts[1:]
        if attempt.first_step is not None
    ]
    steered = dict.fromkeys(_steered(events.to_pylist()))  # each rank says the same
    return sorted([*notes, *steered], key=lambda note: note.step)[-_MOST:]


def _steered(rows: Iterable[dict[str, object]]) -> Iterator[StepNote]:
    for row in rows:
        step, detail = row["step"], row["detail"]
        if row["kind"] == EventKind.CONTROL.value and isinstance(step, int):
            detail_told = detail_of(detail if isinstance(detail, str) else None)
            words = _STEERED.get(str(detail_told.get("asked")))
            if words and detail_told.get("outcome") == "done":
                yield StepNote(step, words, "advice")


def step_notes_of(run: Run) -> list[StepNote]:
    """The notes of a run that has ended."""
    attempts = attempts_of(run, min(run.ranks, default=0), goes_on=False)
    return step_notes(attempts, run.read(Table.EVENTS, COLUMNS))
