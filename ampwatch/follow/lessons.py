"""Lessons from earlier runs in the same folder on the learning rate; no other run is opened.

The facts come from the entries kept for lists of runs, so a run counts once it was judged: by
`ampwatch runs`, by a page, or by its own report.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ampwatch.diagnosis import Diagnosis
from ampwatch.diagnosis.earlier_runs import (
    EarlierRun,
    LessonOfEarlierRuns,
    Outcome,
    Signature,
    lesson_of,
    signature_of,
)
from ampwatch.follow.list_entry import KeptEntries, ListEntry, entry_of
from ampwatch.store import Run, RunSummary
from ampwatch.store.kept_facts import stamp_of

_MOST = 200  # the newest runs, which are checked to be unchanged since they were judged
_OUTCOMES = {outcome.value for outcome in Outcome}


def lesson_for(
    run: Run, others: Sequence[EarlierRun] = (), kept: KeptEntries | None = None
) -> LessonOfEarlierRuns | None:
    """The lesson for a run from earlier runs in its folder, and from other known runs."""
    made = signature_of(run)
    if made is None:
        return None
    by_id = {one.id: one for one in others}
    by_id |= {one.id: one for one in _similar_runs(run, made, kept or KeptEntries())}
    return lesson_of(made, by_id.values(), run_id=run.info.id, started_ns=run.info.started_ns)


def keep_for_later(run: Run, diagnosis: Diagnosis, kept: KeptEntries | None = None) -> None:
    """Keep a finished run's facts for the lessons of later runs; errors are ignored."""
    path = run.path.absolute()
    stamp = stamp_of(str(path)) if run.clean_end else None
    if stamp is None or not stamp.text or signature_of(run) is None:
        return
    summary, kept = RunSummary(path, path.name, stamp=stamp.text), kept or KeptEntries()
    if kept.of(summary) is None:
        kept.add(summary, entry_of(run, diagnosis))
        kept.save()


def _similar_runs(run: Run, made: Signature, kept: KeptEntries) -> list[EarlierRun]:
    """The newest similar runs in the run's folder, if unchanged since they were judged."""
    folder = run.path.absolute().parent
    return [
        _earlier_run(name, entry)
        for name, stamp, entry in kept.similar(folder, made, _MOST)
        if entry.outcome in _OUTCOMES and _is_unchanged(folder / name, stamp)
    ]


def _is_unchanged(folder: Path, stamp: str) -> bool:
    now = stamp_of(str(folder))
    return now is not None and now.text == stamp


def _earlier_run(name: str, entry: ListEntry) -> EarlierRun:
    return EarlierRun(
        id=entry.run_id,
        name=name,
        started_ns=entry.started_ns,
        signature=Signature.of_text(entry.signature),
        outcome=Outcome(entry.outcome),
        rate=entry.rate,
        steps=entry.steps_held,
    )
