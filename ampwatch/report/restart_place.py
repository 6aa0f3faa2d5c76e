"""Where to restart a run: one answer, for the letter, the page and `ampwatch plan`."""

from __future__ import annotations

from dataclasses import dataclass

from ampwatch.diagnosis import Action, Diagnosis
from ampwatch.diagnosis.record import Record, detail_of
from ampwatch.report.facts import telling_step
from ampwatch.report.timeline import CLEAN, condition_of, last_sound_step
from ampwatch.rows import EventKind, Table


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A recorded save; `path` is None if the script did not report it."""

    step: int
    path: str | None
    state: str


@dataclass(frozen=True, slots=True)
class RestartPlace:
    """The checkpoint to restart from; None: from the beginning.

    `saves` counts the steps in which the record shows a save, `sees_saves` whether it could.
    """

    checkpoint: Checkpoint | None
    saves: int
    sees_saves: bool
    until: int | None = None  # the last step at which the run was still sound, if known
    rank: int = 0  # whose events show the saves


def restart_place(run: Record, diagnosis: Diagnosis) -> RestartPlace:
    """Where a run with trouble is to be restarted."""
    advice = diagnosis.learning_rate
    until = last_sound_step(advice) if advice.action is Action.LOWER else None
    until = telling_step(diagnosis) if until is None else until
    saves = saves_of(run)
    sees = run.info.source == "ampwatch"
    return RestartPlace(
        _clean(saves, diagnosis, until), len(saves), sees, until, min(run.ranks, default=0)
    )


def last_clean_save(run: Record, diagnosis: Diagnosis, until: int | None) -> Checkpoint | None:
    """The last clean save, not after this step."""
    return _clean(saves_of(run), diagnosis, until)


def _clean(
    saves: dict[int, tuple[str | None, str]], diagnosis: Diagnosis, until: int | None
) -> Checkpoint | None:
    clean: Checkpoint | None = None
    for step, (path, stamp) in sorted(saves.items()):
        state = stamp or condition_of(step, diagnosis)[0]
        if state == CLEAN and (until is None or step <= until):
            clean = Checkpoint(step, path, state)
    return clean


def saves_of(run: Record) -> dict[int, tuple[str | None, str]]:
    """By step, each save's path, if reported, and its stamp; of the lowest rank."""
    rank = min(run.ranks, default=0)
    saves: dict[int, tuple[str | None, str]] = {}
    for row in run.read(Table.EVENTS, ("step", "kind", "detail"), rank).to_pylist():
        if row["kind"] == EventKind.STATE_SAVED.value and row["step"] is not None:
            told, (path, stamp) = detail_of(row["detail"]), saves.get(row["step"], (None, ""))
            saves[row["step"]] = told.get("path") or path, str(told.get("state") or stamp)
    return saves
