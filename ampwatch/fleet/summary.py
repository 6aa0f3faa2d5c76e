"""Sums over many verdicts, by finding, week or setting, and all of it as JSON: pure functions.

Lost steps and hours are counted once: under the headline finding of a run, in the week in which it
started. A run with several findings or tags is counted as a run under each of them.
"""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ampwatch.diagnosis import Verdict
from ampwatch.fleet.verdicts import UNKNOWN_TIME, FleetVerdicts, RunVerdict
from ampwatch.follow.list_entry import MODEL_SETTINGS

PERSON_SETTINGS = ("person", "user", "username", "owner", "author", "researcher")
# What runs are grouped by beside a setting's own name.
TAG, PERSON, MODEL = "tag", "person", "model"
UNKNOWN = ""  # the key of runs that do not say

_GRAVITY = (Verdict.FAILING.value, Verdict.WARNING.value)
_MOST_DEPTH = 6
_SCHEMA = 1  # of the JSON


@dataclass(frozen=True, slots=True)
class Tally:
    """The sums over the verdicts on a group of runs; `key` names the group.

    `incomplete` are the runs too short to be judged, and those that were cut off while healthy.
    `lost_hours` and `hours` leave out the runs whose rows tell no times.
    """

    key: str
    runs: int = 0
    failing: int = 0
    warning: int = 0
    healthy: int = 0
    incomplete: int = 0
    lost_steps: int = 0
    lost_hours: float = 0.0
    steps: int = 0
    hours: float = 0.0


def total(verdicts: Iterable[RunVerdict]) -> Tally:
    """The sums over all verdicts."""
    return _tally("all", list(verdicts))


def by_code(verdicts: Iterable[RunVerdict]) -> list[Tally]:
    """The sums over the verdicts by finding, the most frequent first: errors and warnings.

    `runs` and the verdicts count every run that has it; lost steps count under the headline only.
    """
    verdicts = list(verdicts)
    groups: dict[str, list[RunVerdict]] = defaultdict(list)
    for one in verdicts:
        for code in one.codes:
            groups[code].append(one)
    found = [_tally(code, some, heads=code) for code, some in groups.items()]
    return sorted(found, key=lambda tally: (-tally.runs, -tally.lost_hours, tally.key))


def by_week(verdicts: Iterable[RunVerdict]) -> list[Tally]:
    """The sums over the verdicts by the week in which runs started, the oldest first.

    The key is the week's Monday, in UTC: `2026-11-23`; UNKNOWN for logs without times.
    """
    return sorted(_grouped((week_of(one), one) for one in verdicts), key=lambda tally: tally.key)


def by_setting(verdicts: Iterable[RunVerdict], name: str) -> list[Tally]:
    """The sums over the verdicts by a setting of the runs (`optimizer.name`), tag, person or model.

    The most frequent value first; `UNKNOWN` if a run has none.
    """
    pairs = ((value, one) for one in verdicts for value in values_of(one, name))
    return sorted(_grouped(pairs), key=lambda tally: (-tally.runs, tally.key))


def worst(verdicts: Iterable[RunVerdict], count: int) -> list[RunVerdict]:
    """The failing and warning runs with the most lost steps."""
    bad = [one for one in verdicts if one.verdict in _GRAVITY]
    return sorted(bad, key=_badness)[:count]


def setting_names(verdicts: Iterable[RunVerdict]) -> list[str]:
    """The settings by which verdicts can be summed: those in which some of the runs differ."""
    seen: dict[str, set[str]] = defaultdict(set)
    counts: Counter[str] = Counter()
    verdicts = list(verdicts)
    for one in verdicts:
        for name, value in settings_of(one.config).items():
            seen[name].add(value)
            counts[name] += 1
    differ = [n for n in seen if len(seen[n]) > 1 or counts[n] < len(verdicts)]
    return sorted(differ, key=lambda name: (-counts[name], name))


def values_of(one: RunVerdict, name: str) -> tuple[str, ...]:
    """The values of a setting under which a run is summed: several for tags, UNKNOWN if none."""
    if name == TAG:
        return one.tags or (UNKNOWN,)
    settings = settings_of(one.config)
    names = {PERSON: PERSON_SETTINGS, MODEL: MODEL_SETTINGS}.get(name, (name,))
    return (next((settings[n] for n in (name, *names) if n in settings), UNKNOWN),)


def settings_of(config: Mapping[str, Any]) -> dict[str, str]:
    """A configuration's settings as text, those within others by their path with dots."""
    found: dict[str, str] = {}
    _flatten(config, "", found, 0)
    return found


def week_of(one: RunVerdict) -> str:
    """The Monday, in UTC, of the week in which a judged run started; UNKNOWN without times."""
    if one.started == UNKNOWN_TIME:
        return UNKNOWN
    day = one.started.astimezone(dt.timezone.utc).date()
    return (day - dt.timedelta(days=day.weekday())).isoformat()


def _flatten(value: Any, path: str, found: dict[str, str], depth: int) -> None:
    if isinstance(value, Mapping) and depth < _MOST_DEPTH:
        for name, inner in value.items():
            _flatten(inner, f"{path}.{name}" if path else str(name), found, depth + 1)
    else:
        found[path] = value if isinstance(value, str) else json.dumps(value)


def _grouped(pairs: Iterable[tuple[str, RunVerdict]]) -> list[Tally]:
    groups: dict[str, list[RunVerdict]] = defaultdict(list)
    for key, one in pairs:
        groups[key].append(one)
    return [_tally(key, some) for key, some in groups.items()]


def _tally(key: str, runs: Sequence[RunVerdict], heads: str | None = None) -> Tally:
    verdicts = Counter(one.verdict for one in runs)
    losers = [one for one in runs if heads is None or one.codes[0] == heads]
    cut_off = verdicts[Verdict.CUT_OFF.value]
    return Tally(
        key=key,
        runs=len(runs),
        failing=verdicts[Verdict.FAILING.value],
        warning=verdicts[Verdict.WARNING.value],
        healthy=verdicts[Verdict.HEALTHY.value],
        incomplete=verdicts[Verdict.INCOMPLETE.value] + cut_off,
        lost_steps=sum(one.lost_steps for one in losers),
        lost_hours=sum(one.lost_hours or 0.0 for one in losers),
        steps=sum(one.steps for one in runs),
        hours=sum(one.hours or 0.0 for one in runs),
    )


def _badness(one: RunVerdict) -> tuple[int, float, int, str]:
    return _GRAVITY.index(one.verdict), -(one.lost_hours or 0.0), -one.lost_steps, one.name


# --- as JSON --------------------------------------------------------------------------------------


def to_json(fleet: FleetVerdicts) -> dict[str, Any]:
    """The verdicts on a place's runs in JSON's types, as `ampwatch fleet --json` prints them."""
    sums = _counts(total(fleet.runs))
    codes = {tally.key: _counts(tally) for tally in by_code(fleet.runs)}
    return {
        "schema": _SCHEMA,
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
