"""The tables `verdicts` and `findings` of a place: the diagnosis of each published run.

A verdict belongs to one state of a run, its *stamp*, and to one version of the *rules*. A new state
or new rules add a row; existing rows never change. `findings` has the same findings, one a row, for
SQL queries. It is derived from `verdicts`, so after a crash between the two the next call completes
it. What of a run was in vain, its lost steps and hours, is counted here.
"""

from __future__ import annotations

import datetime as dt
import functools
import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ampwatch.diagnosis import Diagnosis, Severity, Verdict
from ampwatch.diagnosis.column_arrays import Floats, Integers, Mask, flags, numbers, steps_of
from ampwatch.diagnosis.earlier_runs import signature_of
from ampwatch.errors import PlaceError, RunError
from ampwatch.fleet.place import Added, Place, commit_in_turn
from ampwatch.fleet.row_tables import DAY
from ampwatch.fleet.runs_delta_table import PublishedRun, list_published, schema_of
from ampwatch.follow.list_entry import diagnosis_digest
from ampwatch.rows import Table
from ampwatch.store import Reading, Run

if TYPE_CHECKING:
    from deltalake import DeltaTable

VERDICTS, FINDINGS = "verdicts", "findings"
# What this package itself says of a run (its lost steps, its headline); raise it with a change.
_EDITION = 2

Key = tuple[str, str, str]  # run, stamp, rules
KEY_NAMES = ("run_id", "stamp", "rules")
_MANY_FILES = 64  # of a table; are made few when there are more

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
    stamp: str  # of the run's row in `runs` that was judged
    rules: str  # their version
    name: str
    started: dt.datetime
    last_time: dt.datetime
    steps: int
    ranks: int
    verdict: str
    codes: tuple[str, ...]  # of errors and warnings, the headline first
    headline: str  # a sentence
    layer: str | None  # the culprit
    learning_rate: Mapping[str, Any]  # as in `report --json`
    lost_steps: int
    lost_hours: float | None  # None where the rows tell no times
    hours: float | None
    config: Mapping[str, Any]
    tags: tuple[str, ...]
    note: str
    signature: str | None  # what the run is made of
    findings_json: str | None  # as in `report --json`
    judged: dt.datetime
    highest_rate: float | None = None  # that the first group reached

    @property
    def key(self) -> Key:
        """The verdict's key: the run, its state, and the version of the rules."""
        return self.run_id, self.stamp, self.rules

    @property
    def findings(self) -> list[dict[str, Any]]:
        """The findings of this verdict, as in `report --json`."""
        found: list[dict[str, Any]] = json.loads(self.findings_json or "[]")
        return found


VERDICTS_SCHEMA = schema_of(RunVerdict)


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
        """The verdicts, one row per run, as in the place's table."""
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
    from ampwatch import __version__

    digest = hashlib.sha256(f"{_EDITION} {diagnosis_digest()}".encode())
    return f"{__version__}+{digest.hexdigest()[:12]}"


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
    current = rows.take(pa.array([best[run_id][2] for run_id in order], pa.int64()))
    return [_of_row(row, place) for row in current.to_pylist()]


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


def _of_row(row: dict[str, Any], place: Place) -> RunVerdict:
    """A verdict from its row in the table, which anybody may have written."""
    try:
        values: dict[str, Any] = {name: dict(json.loads(row[name])) for name in _AS_JSON}
        values |= {name: tuple(map(str, row[name])) for name in ("codes", "tags")}
        values |= {name: int(row[name]) for name in ("steps", "lost_steps", "ranks")}
        values |= {"verdict": Verdict(row["verdict"]).value}
        return RunVerdict(**{"findings_json": None, **row, **values})
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
    for row in rows:
        row |= {name: json.dumps(row[name]) for name in _AS_JSON}
    return pa.Table.from_pylist(rows, schema=VERDICTS_SCHEMA)


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
    as_json, lost = diagnosis.to_json(), lost_time(run, diagnosis)
    signature = signature_of(run)
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
        learning_rate=as_json["learning_rate"],
        lost_steps=lost.steps,
        lost_hours=lost.lost_hours,
        hours=lost.hours,
        config=_config(row),
        tags=row.tags,
        note=row.note,
        signature=signature.text if signature else None,
        findings_json=findings_text(as_json),
        judged=dt.datetime.now(dt.timezone.utc),
        highest_rate=lost.highest_rate,
    )


def findings_text(report: dict[str, Any]) -> str:
    """The findings of a `report --json` as the table `verdicts` holds them."""
    return json.dumps(report["findings"], ensure_ascii=False, allow_nan=False)


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


# --- a table with keys ----------------------------------------------------------------------------


class KeyedTable:
    """A Delta table to which rows are added, once per key, by any number of concurrent writers.

    A writer reads which keys exist, and commits only if nobody committed since; otherwise it reads
    again. So two writers that judge the same runs store them once, and a killed writer leaves only
    what it committed. Files are immutable, so the keys of each are read once. They are by `day` if
    the schema has that column.
    """

    def __init__(self, place: Place, name: str, schema: pa.Schema) -> None:
        self.place = place
        self.name = name
        self.schema = schema
        self._partition = [DAY] if DAY in schema.names else []
        self._keys: dict[str, frozenset[Key]] = {}  # of each file that was asked

    def keys(self) -> set[Key]:
        """The keys in the table now; none if the place does not have the table."""
        table = self.place.table(self.name)
        return set() if table is None else self._keys_of(table)

    def read(self, columns: Sequence[str]) -> pa.Table:
        """These columns of all rows of the table."""
        table = self.place.table(self.name)
        if table is None:
            return pa.schema([self.schema.field(name) for name in columns]).empty_table()
        with self.place.trouble("read"):
            return table.to_pyarrow_dataset().to_table(columns=list(columns))

    def add(self, keys: Iterable[Key], rows_of: Callable[[set[Key]], pa.Table]) -> set[Key]:
        """Add those rows whose keys are not in the table; return their keys."""
        wanted, added = set(keys), set[Key]()

        def try_once() -> bool:
            table = self.place.create(self.name, self.schema, self._partition)
            added.clear()
            added.update(wanted - self._keys_of(table))
            if not added:
                return True
            files = [self._put(day, rows) for day, rows in self._by_day(rows_of(added))]
            return self.place.commit(table, self.schema, files, alone=True)

        if wanted:
            commit_in_turn(self.place, try_once)
        return added

    def tidy(self) -> None:
        """Join many small files of the table; give up if another writer commits meanwhile."""
        from deltalake.exceptions import CommitFailedError

        table = self.place.table(self.name)
        if table is None or len(table.file_uris()) <= _MANY_FILES:
            return
        with self.place.trouble("written"):
            try:
                table.optimize.compact()
            except CommitFailedError:  # the next call does it
                return

    def _keys_of(self, table: DeltaTable) -> set[Key]:
        keys: dict[str, frozenset[Key]] = {}
        with self.place.trouble("read"):
            for fragment in table.to_pyarrow_dataset().get_fragments():
                path = str(fragment.path)
                keys[path] = self._keys.get(path) or _keys_in(fragment)
        self._keys = keys
        return set().union(*keys.values())

    def _by_day(self, rows: pa.Table) -> list[tuple[dt.date | None, pa.Table]]:
        if not self._partition:
            return [(None, rows)]
        days = sorted(set(rows.column(DAY).to_pylist()))
        return [(day, rows.filter(pc.equal(rows.column(DAY), pa.scalar(day)))) for day in days]

    def _put(self, day: dt.date | None, rows: pa.Table) -> Added:
        rows = rows.drop_columns(self._partition).sort_by("run_id")
        return self.place.put_rows(
            self.name, rows, ["run_id"], {DAY: day.isoformat()} if day else None
        )


def _keys_in(fragment: Any) -> frozenset[Key]:
    rows = fragment.to_table(columns=list(KEY_NAMES))
    return frozenset(zip(*(rows.column(name).to_pylist() for name in KEY_NAMES), strict=True))


# --- lost steps and hours -------------------------------------------------------------------------

# A step is lost if it was skipped, or if it came after the first error that still holds at the
# run's end. When a run recovers from an error, the engine lowers its severity to info, so such
# errors do not count.

_COLUMNS = ("step", "skipped", "time_ns", "step_time_ms", "lr")
_MS_PER_HOUR = 3.6e6


@dataclass(frozen=True, slots=True)
class LostTime:
    """A run's lost steps and hours; hours are None where the rows tell no times.

    `highest_rate` is the highest learning rate of the first group; None where the rows tell none.
    """

    steps: int
    lost_hours: float | None
    hours: float | None
    highest_rate: float | None


def lost_time(run: Run, diagnosis: Diagnosis) -> LostTime:
    """Count the lost steps and hours of a run, from its lowest rank's rows, in constant memory."""
    since = first_standing_error(diagnosis)
    count = _LostCount(since)
    reading, read = Reading(run), 0
    for _ in reading.portions():
        rows = reading.read(Table.STEPS, _COLUMNS, min(run.ranks, default=0), read)
        read += rows.num_rows
        if rows.num_rows:
            times = numbers(rows, "time_ns"), numbers(rows, "step_time_ms")
            count.add(steps_of(rows), flags(rows, "skipped") == 1, *times)
            count.add_rates(numbers(rows, "lr"))
            count.tells_skips |= bool((flags(rows, "skipped") >= 0).any())
    skipped = diagnosis.run.skipped
    # Rows that do not say which steps were skipped do not say whether those came before the error.
    steps = skipped + count.after if count.tells_skips else max(skipped, count.after)
    lost_ms, all_ms = (count.lost_ms, count.all_ms) if count.is_timed else (None, None)
    return LostTime(
        steps=min(steps, max(diagnosis.run.steps, skipped)),
        lost_hours=None if lost_ms is None else lost_ms / _MS_PER_HOUR,
        hours=None if all_ms is None else all_ms / _MS_PER_HOUR,
        highest_rate=count.highest_rate if np.isfinite(count.highest_rate) else None,
    )


def first_standing_error(diagnosis: Diagnosis) -> int | None:
    """The step from which on steps are lost: of the first error that holds at the run's end.

    None if there is no such error.
    """
    errors = [finding for finding in diagnosis.findings if finding.severity is Severity.ERROR]
    return min((error.first_step for error in errors if error.first_step is not None), default=None)


class _LostCount:
    """Counts lost steps and their time over rows, in the order of the rows."""

    def __init__(self, since: int | None) -> None:
        self.after = 0  # steps after the error that were not skipped
        self.lost_ms = self.all_ms = 0.0
        self.is_timed = self.tells_skips = False
        self.highest_rate = -np.inf
        self._since = np.inf if since is None else since
        self._last: tuple[int, float] | None = None  # step and time of the row before

    def add_rates(self, rates: Floats) -> None:
        """Keep the highest of these learning rates."""
        highest = float(np.max(rates, initial=-np.inf, where=np.isfinite(rates)))
        self.highest_rate = max(self.highest_rate, highest)

    def add(self, step: Integers, skipped: Mask, time_ns: Floats, step_ms: Floats) -> None:
        """Count rows as lost or not, with their time.

        If a step has several rows, one per optimizer, the times of the first count.
        """
        last_step, last_ns = self._last or (int(step[0]) - 1, np.nan)
        before = np.concatenate([[last_step], step[:-1]])
        first = np.flatnonzero(step != before)
        self._last = int(step[-1]), float(time_ns[-1])
        if not len(first):
            return
        is_skipped = np.logical_or.reduceat(skipped, first)
        steps_apart = np.maximum(1, (step - before)[first])
        passed = np.diff(np.concatenate([[last_ns], time_ns]))[first] / 1e6
        lasted = np.where(np.isnan(step_ms[first]), passed, step_ms[first] * steps_apart)
        known = np.isfinite(lasted)
        lasted = np.where(known, np.maximum(lasted, 0.0), 0.0)
        is_after = step[first] >= self._since
        self.is_timed |= bool(known.any())
        self.all_ms += float(lasted.sum())
        self.lost_ms += float(lasted[is_skipped | is_after].sum())
        self.after += int(steps_apart[is_after & ~is_skipped].sum())
