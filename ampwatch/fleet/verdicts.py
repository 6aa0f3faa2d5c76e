"""The tables `verdicts` and `findings` of a place: the diagnosis of each published run.

A verdict belongs to one state of a run, its *stamp*, and to one version of the *rules*. A new state
or new rules add a row; existing rows never change. `findings` has the same findings, one a row, for
SQL queries. It is derived from `verdicts`, so after a crash between the two the next call completes
it.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from ampwatch.diagnosis import Diagnosis, Severity, Verdict
from ampwatch.diagnosis.earlier_runs import signature_of
from ampwatch.errors import PlaceError, RunError
from ampwatch.fleet.keyed_table import KEY_NAMES, Key, KeyedTable
from ampwatch.fleet.lost_time import lost_time
from ampwatch.fleet.place import Place
from ampwatch.fleet.row_tables import DAY
from ampwatch.fleet.runs_delta_table import PublishedRun, list_published
from ampwatch.store import Run

VERDICTS, FINDINGS = "verdicts", "findings"
# What this package itself says of a run (its lost steps, its headline); raise it with a change.
_EDITION = 2

VERDICTS_SCHEMA = pa.schema(
    [
        pa.field("run_id", pa.string()),
        pa.field("stamp", pa.string()),  # of the run's row in `runs` that was judged
        pa.field("rules", pa.string()),  # their version
        pa.field("name", pa.string()),
        pa.field("started", pa.timestamp("us", "UTC")),
        pa.field("last_time", pa.timestamp("us", "UTC")),
        pa.field("steps", pa.int64()),
        pa.field("ranks", pa.int32()),
        pa.field("verdict", pa.string()),
        pa.field("codes", pa.list_(pa.string())),  # of errors and warnings, the headline first
        pa.field("headline", pa.string()),  # a sentence
        pa.field("layer", pa.string()),  # the culprit
        pa.field("learning_rate", pa.string()),  # as in `report --json`
        pa.field("lost_steps", pa.int64()),
        pa.field("lost_hours", pa.float64()),  # null where the rows tell no times
        pa.field("hours", pa.float64()),
        pa.field("config", pa.string()),  # as JSON
        pa.field("tags", pa.list_(pa.string())),
        pa.field("note", pa.string()),
        pa.field("signature", pa.string()),  # what the run is made of
        pa.field("findings_json", pa.string()),  # as in `report --json`
        pa.field("judged", pa.timestamp("us", "UTC")),
        pa.field("highest_rate", pa.float64()),  # that the first group reached
    ]
)
FINDINGS_SCHEMA = pa.schema(
    [
        pa.field("run_id", pa.string()),
        pa.field("stamp", pa.string()),
        pa.field("rules", pa.string()),
        pa.field("name", pa.string()),  # of the run
        pa.field("started", pa.timestamp("us", "UTC")),
        pa.field("code", pa.string()),
        pa.field("severity", pa.string()),
        pa.field("layer", pa.string()),
        pa.field("first_step", pa.int64()),
        pa.field("last_step", pa.int64()),
        pa.field("summary", pa.string()),
        pa.field("because_of", pa.string()),  # the code of the finding that caused this one
        pa.field(DAY, pa.date32()),
    ]
)
_OF_A_FINDING = (
    "code", "severity", "layer", "first_step", "last_step", "summary", "because_of",
)  # fmt: skip
_AS_JSON = ("learning_rate", "config")


UNKNOWN_TIME = dt.datetime.fromtimestamp(0, dt.timezone.utc)  # of a log without times


@dataclass(frozen=True, slots=True)
class RunVerdict:
    """A row of the table `verdicts`: the verdict on one state of a run.

    `lost_steps` were skipped, or came after the first error that stands at the run's end;
    `lost_hours` is the time they took, `hours` that of all steps. `findings_json` is None where it
    was not asked for.
    """

    run_id: str
    stamp: str
    rules: str
    name: str
    started: dt.datetime
    last_time: dt.datetime
    steps: int
    ranks: int
    verdict: str
    codes: tuple[str, ...]
    headline: str
    layer: str | None
    learning_rate: Mapping[str, Any]
    lost_steps: int
    lost_hours: float | None
    hours: float | None
    config: Mapping[str, Any]
    tags: tuple[str, ...]
    note: str
    signature: str | None
    findings_json: str | None
    judged: dt.datetime
    highest_rate: float | None = None

    @property
    def key(self) -> Key:
        """The verdict's key: the run, its state, and the version of the rules."""
        return self.run_id, self.stamp, self.rules

    @property
    def findings(self) -> list[dict[str, Any]]:
        """The findings of this verdict, as in `report --json`."""
        found: list[dict[str, Any]] = json.loads(self.findings_json or "[]")
        return found


assert tuple(VERDICTS_SCHEMA.names) == tuple(f.name for f in dataclasses.fields(RunVerdict))


@dataclass(frozen=True, slots=True)
class NotJudged:
    """A run that has no verdict because it could not be judged, and why."""

    id: str
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class FleetVerdicts:
    """The verdicts on the chosen runs of a place, the newest run first.

    `judged` is how many of them were judged now. `changed` were published again or deleted while
    they were judged.
    """

    place: str
    runs: tuple[RunVerdict, ...]
    judged: int = 0
    failed: tuple[NotJudged, ...] = ()
    changed: int = 0

    @property
    def verdicts(self) -> pa.Table:
        """The verdicts, a row a run, as in the place's table."""
        return verdict_rows(self.runs)

    @property
    def findings(self) -> pa.Table:
        """The findings, a row each, as in the place's table."""
        return finding_rows(self.runs)


@functools.cache
def rules_version() -> str:
    """The version of the rules in a verdict's key; it changes exactly when the diagnosis changes.

    It is made of our version and a digest of the diagnosis' source and pages.
    """
    import ampwatch.diagnosis

    folder = Path(ampwatch.diagnosis.__file__).parent
    digest = hashlib.sha256(str(_EDITION).encode())
    for path in sorted(path for path in folder.rglob("*") if path.suffix in {".py", ".md"}):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return f"{ampwatch.__version__}+{digest.hexdigest()[:12]}"


def read_verdicts(place: Place | str, *, findings: bool = False) -> list[RunVerdict]:
    """The verdicts on a place's runs, as each run is now, the newest run first.

    The one by this version's rules if there is one, otherwise the latest. Without `findings` their
    JSON, which is most of the bytes, is not fetched. Empty if nobody ran `ampwatch fleet` there.
    """
    place = place if isinstance(place, Place) else Place(place)
    return verdicts_on(place, list_published(place), findings=findings)


def verdicts_on(
    place: Place, runs: Sequence[PublishedRun], *, findings: bool = False
) -> list[RunVerdict]:
    """The verdicts on some runs of a place, in the order of the runs."""
    stamps = {run.id: (run.stamp, number) for number, run in enumerate(runs)}
    names = [name for name in VERDICTS_SCHEMA.names if findings or name != "findings_json"]
    rows = KeyedTable(place, VERDICTS, VERDICTS_SCHEMA).read(names)
    best: dict[str, tuple[bool, Any, int]] = {}
    keys = (rows.column(name).to_pylist() for name in (*KEY_NAMES, "judged"))
    for at, (run_id, stamp, rules, judged) in enumerate(zip(*keys, strict=True)):
        if stamps.get(run_id, ("", 0))[0] == stamp:
            found = (rules == rules_version(), judged, at)
            best[run_id] = max(best.get(run_id, found), found)
    order = sorted(best, key=lambda run_id: stamps[run_id][1])
    return _of_rows(rows.take(pa.array([best[run_id][2] for run_id in order], pa.int64())), place)


def store_verdicts(tables: tuple[KeyedTable, KeyedTable], found: Sequence[RunVerdict]) -> None:
    """Add verdicts that nobody has stored meanwhile, then their findings."""
    verdicts, findings = tables
    by_key = {one.key: one for one in found}

    def rows_of(keys: Collection[Key]) -> pa.Table:
        return verdict_rows(by_key[key] for key in keys)

    def findings_of(keys: Collection[Key]) -> pa.Table:
        return finding_rows(by_key[key] for key in keys)

    verdicts.add(by_key, rows_of)
    findings.add((key for key, one in by_key.items() if one.findings), findings_of)


def tables_of(place: Place) -> tuple[KeyedTable, KeyedTable]:
    """The tables `verdicts` and `findings` of a place; created with the first rows."""
    return (
        KeyedTable(place, VERDICTS, VERDICTS_SCHEMA),
        KeyedTable(place, FINDINGS, FINDINGS_SCHEMA),
    )


def _of_rows(rows: pa.Table, place: Place) -> list[RunVerdict]:
    return [_of_row(row, place) for row in rows.to_pylist()]


def _of_row(row: dict[str, Any], place: Place) -> RunVerdict:
    """A verdict from its row in the table, which anybody may have written."""
    try:
        told: dict[str, Any] = {name: dict(json.loads(row[name])) for name in _AS_JSON}
        told |= {name: tuple(map(str, row[name])) for name in ("codes", "tags")}
        told |= {name: int(row[name]) for name in ("steps", "lost_steps", "ranks")}
        told |= {"verdict": Verdict(row["verdict"]).value}
        return RunVerdict(**{"findings_json": None, **row, **told})
    except (ValueError, TypeError) as problem:
        raise PlaceError(
            f"The table {VERDICTS} in {place.address} says of the run {row['name']} what ampwatch "
            f"never says: delete {VERDICTS} and {FINDINGS} there, and `ampwatch fleet` judges the "
            "runs again.",
            place=place.address,
        ) from problem


def verdict_rows(verdicts: Iterable[RunVerdict]) -> pa.Table:
    """Verdicts as rows of the table `verdicts`."""
    rows = [{name: getattr(one, name) for name in VERDICTS_SCHEMA.names} for one in verdicts]
    texts = [{name: json.dumps(row[name]) for name in _AS_JSON} for row in rows]
    told = [row | text for row, text in zip(rows, texts, strict=True)]
    return pa.Table.from_pylist(told, schema=VERDICTS_SCHEMA)


def finding_rows(verdicts: Iterable[RunVerdict]) -> pa.Table:
    """The findings of verdicts as rows of the table `findings`."""
    rows = [
        {
            **{name: getattr(one, name) for name in (*KEY_NAMES, "name", "started")},
            **{name: finding[name] for name in _OF_A_FINDING},
            DAY: one.started.date(),
        }
        for one in verdicts
        for finding in one.findings
    ]
    return pa.Table.from_pylist(rows, schema=FINDINGS_SCHEMA)


def verdict_of(row: PublishedRun, run: Run, diagnosis: Diagnosis) -> RunVerdict:
    """The verdict on a published run with this diagnosis, as a row of `verdicts`."""
    said, lost = diagnosis.to_json(), lost_time(run, diagnosis)
    made = signature_of(run)
    codes, suspect = _codes(diagnosis), diagnosis.suspect
    return RunVerdict(
        run_id=row.id,
        stamp=row.stamp,
        rules=rules_version(),
        name=row.name,
        started=row.started or UNKNOWN_TIME,
        last_time=row.last_time or row.started or UNKNOWN_TIME,
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
    """The findings of a `report --json` as the table `verdicts` holds them."""
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
    """A verdict's codes: errors and warnings, each once, the headline first."""
    grave = [one.code for one in diagnosis.findings if one.severity is not Severity.INFO]
    return tuple(dict.fromkeys(grave))


def _headline(diagnosis: Diagnosis) -> str:
    head = diagnosis.headline
    if head is not None and head.severity is not Severity.INFO:
        return head.summary
    return diagnosis.calm or (head.summary if head else "")
