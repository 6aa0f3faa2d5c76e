"""Faults that begin late or come on slowly, and long healthy records: what is found, what is not.

    python benchmarks/late.py [--only PATTERN] [--steps N] [--seeds COUNT] [--healthy]

Records are built as arrays and held in memory. Each fault stands at several places of records of
10,000 to a million steps; with `--healthy` the same lengths without a fault, looked at while they
grow, tell of false alarms.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from ampwatch.diagnosis import Diagnosis, Engine, diagnose  # noqa: E402
from ampwatch.rows import SCHEMAS, Table  # noqa: E402
from examples.gallery.courses import Course, Stream, columns_of  # noqa: E402
from examples.gallery.late import LateFault, healthy_records, late_faults  # noqa: E402
from examples.gallery.vocabulary import Label  # noqa: E402

LOOKS = 40
_EMPTY = {
    Table.LAYERS: pa.table({"step": pa.array([], pa.int64()), "weight_shape": pa.array([])}),
    Table.DEVICES: pa.table({"time_ns": pa.array([], pa.int64())}),
    Table.EXTRAS: SCHEMAS[Table.EXTRAS].empty_table(),
}


@dataclass(frozen=True)
class Info:
    scaler: dict[str, Any]
    id: str = "0" * 32
    source: str = "ampwatch"
    started_ns: int = 1
    marks: dict[str, Any] = field(default_factory=dict)


@dataclass
class Record:
    """A run in memory; `rows` of it, while it grows."""

    tables: dict[Table, pa.Table]
    info: Info
    rows: int
    clean_end: bool = True
    ranks: tuple[int, ...] = (0,)
    notes: tuple[str, ...] = ()
    last_time_ns: int = 2

    def read(
        self, table: Table, columns: Sequence[str] | None = None, rank: int | None = None
    ) -> pa.Table:
        rows = self.tables[table]
        if table is Table.STEPS:
            rows = rows.slice(0, self.rows)
        return rows.select([c for c in columns or rows.column_names if c in rows.column_names])


def record_of(fault: LateFault, seed: int) -> Record:
    """The fault's record."""
    course = fault.make(np.random.default_rng(seed))
    columns = columns_of(course, Stream(fault.name, "", Label(), _never, fault.interval))
    step = columns["step"]
    for at, back in fault.seams:
        step[at:] -= back
    events = [(0, "started", {}), *course.events]
    table = pa.table({
        "step": [int(step[at]) for at, _, _ in events],
        "rank": pa.array([0] * len(events), pa.int32()),
        "kind": [kind for _, kind, _ in events],
        "detail": [json.dumps(detail) for _, _, detail in events],
    })  # fmt: skip
    scaler = {"init_scale": course.resets.get(0, 2.0**16), "growth_interval": fault.interval}
    tables = {Table.STEPS: pa.table(columns), Table.EVENTS: table, **_EMPTY}
    return Record(tables, Info(scaler), len(step))


def _never(random: np.random.Generator) -> Sequence[Course]:
    raise NotImplementedError


def alarms(diagnosis: Diagnosis) -> dict[str, str]:
    """The warnings and errors that stand."""
    return {f.code: f.severity.value for f in diagnosis.findings if f.severity.value != "info"}


def faults(only: str, lengths: tuple[int, ...], seeds: range) -> None:
    """What is found of each fault."""
    tally: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for fault in late_faults(lengths):
        if not fnmatch.fnmatch(fault.name, only):
            continue
        for seed in seeds:
            told = alarms(diagnose(record_of(fault, seed)))
            wanted, allowed = set(fault.label.must), {*fault.label.must, *fault.label.may}
            missed, wrong = wanted - set(told), set(told) - allowed
            kind = fault.name.split("-at-")[0].rsplit("-", 1)[0]
            tally[kind].append((not missed, len(wrong)))
            if missed or wrong:
                print(f"{fault.name} seed {seed}: missed {sorted(missed)}, told {told}", flush=True)
    print("\n| fault | found | of | beside it, wrong |\n|---|---:|---:|---:|")
    for kind, seen in tally.items():
        found, wrong = (sum(column) for column in zip(*seen, strict=True))
        print(f"| {kind} | {found} | {len(seen)} | {wrong} |")
    every = [one for seen in tally.values() for one in seen]
    print(f"| all | {sum(one for one, _ in every)} | {len(every)} | {sum(w for _, w in every)} |")


def healthy(only: str, lengths: tuple[int, ...], seeds: range) -> None:
    """False alarms of records without a fault, looked at while they grow."""
    steps, said = 0, []
    for seed in seeds:
        for one in healthy_records(lengths):
            if not fnmatch.fnmatch(one.name, only):
                continue
            record, seen = record_of(one, seed), {}
            engine, whole = Engine(), record.rows
            for look in range(1, LOOKS + 1):
                record.rows = whole * look // LOOKS
                record.clean_end = look == LOOKS
                told = alarms(engine.feed(record).diagnosis())
                seen |= {code: (how, record.rows) for code, how in told.items() if code not in seen}
            steps += whole
            said += [how for how, _ in seen.values()]
            if seen:
                print(f"{one.name} seed {seed}: {seen}", flush=True)
    print(
        f"\n{steps / 1e6:.1f} M healthy steps, each record looked at {LOOKS} times: "
        f"{said.count('error')} false errors, {said.count('warning')} false warnings."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="*", metavar="PATTERN")
    parser.add_argument("--steps", type=int, action="append", default=[])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1, metavar="COUNT")
    parser.add_argument("--healthy", action="store_true")
    asked = parser.parse_args()
    work = healthy if asked.healthy else faults
    work(asked.only, tuple(asked.steps), range(asked.seed, asked.seed + asked.seeds))


if __name__ == "__main__":
    main()
