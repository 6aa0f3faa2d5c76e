"""One published run, judged: the engine's diagnosis as a row of `verdicts`."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import numpy as np

from ampwatch.diagnosis import Diagnosis, Severity
from ampwatch.diagnosis.signature import signature_of
from ampwatch.fleet.lost_time import lost_time
from ampwatch.fleet.place import Place
from ampwatch.fleet.published_run import open_row
from ampwatch.fleet.run_table import PublishedRun
from ampwatch.fleet.verdicts import RunVerdict, rules_version
from ampwatch.follow import diagnose
from ampwatch.rows import Table
from ampwatch.store import Run


def judge_run(place: Place, row: PublishedRun) -> RunVerdict:
    """What `report --json PLACE#RUN` says of a run; AmpwatchError if it is damaged."""
    run = open_row(place, row)
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
        started=row.started or dt.datetime.fromtimestamp(0, dt.timezone.utc),
        last_time=row.last_time or row.started or dt.datetime.fromtimestamp(0, dt.timezone.utc),
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
        config=json.loads(row.config or "{}"),
        tags=row.tags,
        note=row.note,
        signature=made.text if made else None,
        findings_json=findings_text(said),
        judged=dt.datetime.now(dt.timezone.utc),
        highest_rate=_highest_rate(run),
    )


def findings_text(said: dict[str, Any]) -> str:
    """The findings of a `report --json` as they are stored."""
    return json.dumps(said["findings"], ensure_ascii=False, allow_nan=False)


def _codes(diagnosis: Diagnosis) -> tuple[str, ...]:
    """Errors and warnings, each once, the headline first; without those of severity info."""
    grave = [one.code for one in diagnosis.findings if one.severity is not Severity.INFO]
    return tuple(dict.fromkeys(grave))


def _highest_rate(run: Run) -> float | None:
    rates = run.read(Table.STEPS, ("lr",), min(run.ranks, default=0)).column("lr").drop_null()
    known = rates.to_numpy()[np.isfinite(rates.to_numpy())]
    return float(known.max()) if len(known) else None


def _headline(diagnosis: Diagnosis) -> str:
    head = diagnosis.headline
    if head is not None and head.severity is not Severity.INFO:
        return head.summary
    return diagnosis.calm or (head.summary if head else "")
