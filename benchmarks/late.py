"""Are faults found that begin late or come on slowly, and what is said of long healthy records?

    python benchmarks/late.py [--only PATTERN] [--steps N] [--seeds COUNT] [--healthy]

Records are built as arrays and held in memory. Each fault stands at several places of records of
10,000 to a million steps; with `--healthy` the same lengths without a fault, looked at while they
grow, tell of false alarms. Results: results/late.md.
"""

from __future__ import annotations

import fnmatch
import json
import sys
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from parts.machine import ROOT
from parts.memory_run import Info, MemoryRun
from parts.options import command_line
from parts.tables import table

sys.path.insert(0, str(ROOT))

from ampwatch.diagnosis import Diagnosis, Engine, diagnose
from ampwatch.rows import Table
from examples.gallery.courses import Course, Stream, columns_of
from examples.gallery.late import LateFault, healthy_records, late_faults
from examples.gallery.vocabulary import Label

LOOKS = 40


def record_of(fault: LateFault, seed: int) -> MemoryRun:
    """The fault's record."""
    course = fault.make(np.random.default_rng(seed))
    columns = columns_of(course, Stream(fault.name, "", Label(), _never, fault.interval))
    step = columns["step"]
    for at, back in fault.seams:
        step[at:] -= back
    events = [(0, "started", {}), *course.events]
    events_table = pa.table({
        "step": [int(step[at]) for at, _, _ in events],
        "rank": pa.array([0] * len(events), pa.int32()),
        "kind": [kind for _, kind, _ in events],
        "detail": [json.dumps(detail) for _, _, detail in events],
    })  # fmt: skip
    scaler = {"init_scale": course.resets.get(0, 2.0**16), "growth_interval": fault.interval}
    tables = {Table.STEPS: pa.table(columns), Table.EVENTS: events_table}
    return MemoryRun(tables, Info(scaler), len(step))


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
    every = [one for found in tally.values() for one in found]
    rows = [
        (kind, sum(found for found, _ in of), len(of), sum(wrong for _, wrong in of))
        for kind, of in [*tally.items(), ("all", every)]
    ]
    print(f"\n{table('fault | found | of | beside it, wrong', rows)}")


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
    parser = command_line(__doc__)
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
