"""The verdicts on a place's runs as JSON, as `ampwatch fleet --json` prints it."""

from __future__ import annotations

import datetime as dt
from dataclasses import asdict
from typing import Any

from ampwatch.fleet.summary import Tally, by_code, total
from ampwatch.fleet.verdicts import FleetVerdicts, RunVerdict

SCHEMA = 1


def to_json(fleet: FleetVerdicts) -> dict[str, Any]:
    """The verdicts on a place's runs, in JSON's types."""
    sums = _counts(total(fleet.runs))
    codes = {tally.key: _counts(tally) for tally in by_code(fleet.runs)}
    return {
        "schema": SCHEMA,
        "runs": [_run(one, fleet.place) for one in fleet.runs],
        "not_judged": [asdict(one) for one in fleet.failed],
        "summary": sums | {"by_code": codes},
    }


def _run(one: RunVerdict, place: str) -> dict[str, Any]:
    return {
        "id": one.run_id,
        "name": one.name,
        "place": place,
        "started": _iso(one.started),
        "steps": one.steps,
        "verdict": one.verdict,
        "codes": list(one.codes),
        "headline": one.headline,
        "learning_rate": dict(one.learning_rate),
        "findings": one.findings,
        "lost_steps": one.lost_steps,
        "lost_hours": one.lost_hours,
        "hours": one.hours,
        "config": dict(one.config),
        "tags": list(one.tags),
        "signature": one.signature,
    }


def _counts(tally: Tally) -> dict[str, Any]:
    counts = asdict(tally)
    del counts["key"]
    return counts


def _iso(time: dt.datetime) -> str | None:
    """A time in JSON, as in `report --json`; None where nobody knows."""
    seconds = int(time.timestamp())
    moment = dt.datetime.fromtimestamp(seconds, dt.timezone.utc)
    return moment.isoformat().replace("+00:00", "Z") if seconds > 0 else None
