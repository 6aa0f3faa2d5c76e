"""One published run, judged: the engine's diagnosis as a row of `verdicts`."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

from ampwatch.diagnosis import Diagnosis, Severity
from ampwatch.diagnosis.signature import signature_of
from ampwatch.errors import RunError
from ampwatch.fleet.lost_time import lost_time
from ampwatch.fleet.place import Place
from ampwatch.fleet.published_run import open_row
from ampwatch.fleet.runs_delta_table import PublishedRun
from ampwatch.fleet.verdicts import RunVerdict, rules_version
from ampwatch.follow import diagnose
from ampwatch.store import Run

_UNKNOWN_TIME = dt.datetime.fromtimestamp(0, dt.timezone.utc)


def judge_run(place: Place, row: PublishedRun) -> RunVerdict:
    """What `report --json PLACE#RUN` says of a run; AmpwatchError if it is damaged."""
    return judge_opened(row, open_row(place, row))


def judge_opened(row: PublishedRun, run: Run) -> RunVerdict:
    """The same of a run that was opened."""
    return verdict_of(row, run, diagnose(run))


def verdict_of(row: PublishedRun, run: Run, diagnosis: Diagnosis) -> RunVerdict:
    """The row of `verdicts` for a run with this diagnosis."""
    said, lost = diagnosis.to_json(), lost_time(run, diagnosis)
    made = signature_of(run)
    codes, suspect = _codes(diagnosis), diagnosis.suspect
    return RunVerdict(
        run_id=row.id,
        stamp=row.stamp,
        rules=rules_version(),
        name=row.name,
        started=row.started or _UNKNOWN_TIME,
        last_time=row.last_time or row.started or _UNKNOWN_TIME,
        steps=diagnosis.run.steps,
        ranks=row.ranks,
        verdict=diagnosis.verdict.value,
        codes=codes,
        headline=_headline(diagnosis),
        layer=suspect.layer if codes and suspect else None,
        learning_rate=said["learning_rate"],
        lost_steps=lost.steps,
        lost_hours=lost.lost_hours,
        hours=lost.hours,
        config=_config(row),
        tags=row.tags,
        note=row.note,
        signature=made.text if made else None,
        findings_json=findings_text(said),
        judged=dt.datetime.now(dt.timezone.utc),
        highest_rate=lost.highest_rate,
    )


def findings_text(said: dict[str, Any]) -> str:
    """The findings of a `report --json` as they are stored."""
    return json.dumps(said["findings"], ensure_ascii=False, allow_nan=False)


def _config(row: PublishedRun) -> dict[str, Any]:
    try:
        config = json.loads(row.config or "{}")
    except ValueError:
        config = None
    if not isinstance(config, dict):
        raise RunError(f"The settings of {row.name} are not those of a run: publish it again.")
    return config


def _codes(diagnosis: Diagnosis) -> tuple[str, ...]:
    """Errors and warnings, each once, the headline first; without those of severity info."""
    grave = [one.code for one in diagnosis.findings if one.severity is not Severity.INFO]
    return tuple(dict.fromkeys(grave))


def _headline(diagnosis: Diagnosis) -> str:
    head = diagnosis.headline
    if head is not None and head.severity is not Severity.INFO:
        return head.summary
    return diagnosis.calm or (head.summary if head else "")
