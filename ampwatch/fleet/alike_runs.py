"""Finds judged runs in a place that are made like a new run, to compare it with them.

`diagnosis.earlier_runs` says what such runs teach.
"""

from __future__ import annotations

from collections.abc import Iterable

from ampwatch.diagnosis.earlier_runs import (
    EarlierRun,
    LessonOfEarlierRuns,
    Signature,
    lesson_of,
    outcome_of,
    rate_told,
)
from ampwatch.fleet.chosen_runs import made_of
from ampwatch.fleet.place import Place
from ampwatch.fleet.verdicts import RunVerdict, read_verdicts
from ampwatch.store import Run


def runs_in(place: Place | str) -> list[EarlierRun]:
    """The place's runs that have a verdict (from `ampwatch fleet`) and a signature."""
    return [_earlier_run(one) for one in read_verdicts(place) if one.signature]


def alike_in(place: Place | str, run: Run) -> list[RunVerdict]:
    """The verdicts on a place's runs with the same structure as this run, the newest first.

    RunError if the run does not record its structure.
    """
    made = made_of(run)
    return [one for one in read_verdicts(place) if _is_alike(made, one)]


def lesson_in(verdicts: Iterable[RunVerdict], run: Run) -> LessonOfEarlierRuns | None:
    """What the alike ones among some judged runs teach a run that started later."""
    others = [_earlier_run(one) for one in verdicts]
    started_ns = run.info.started_ns
    return lesson_of(made_of(run), others, run_id=run.info.id, started_ns=started_ns)


def _is_alike(made: Signature, one: RunVerdict) -> bool:
    its = Signature.of_text(one.signature)
    return its is not None and made.is_alike(its)


def _earlier_run(one: RunVerdict) -> EarlierRun:
    advice = one.learning_rate
    return EarlierRun(
        id=one.run_id,
        name=one.name,
        started_ns=int(one.started.timestamp() * 1e9),
        signature=Signature.of_text(one.signature),
        outcome=outcome_of(one.verdict, str(advice.get("action"))),
        rate=rate_told(advice.get("current"), advice.get("group"), one.highest_rate),
        steps=one.steps - one.lost_steps,
    )
