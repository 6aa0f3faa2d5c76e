"""How right is the diagnosis on the fault gallery, by the labels of its cases?

    python benchmarks/diagnosis.py [--only PATTERN] [--seed N] [--runs DIR] [--out FILE]

The rules were corrected with these cases, so this is a test and no measure; benchmarks/strangers.py
measures. Runs are kept in DIR: empty it after a change to the probe. How soon a finding comes is
measured as a live reader would see it: by diagnosing the rows up to a step, for ever later steps.
Results: results/diagnosis.md.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import tempfile
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from parts.machine import ROOT, machine
from parts.options import command_line
from parts.tables import table
from rich.progress import track

sys.path.insert(0, str(ROOT))

import ampwatch
from ampwatch.diagnosis import RULES, Diagnosis
from ampwatch.rows import Table
from examples.gallery.courses import write_stream
from examples.gallery.held_out.streams import unseen_streams
from examples.gallery.performing import chosen, perform_missing, seconds_trained
from examples.gallery.registry import all_cases
from examples.gallery.scoring import Score, Tally, read_answers, score
from examples.gallery.streams import all_streams

# After so many steps from its onset a live reader looks, until it is told.
LOOKS = (1, 2, 3, 5, 8, 12, 20, 30, 50, 80, 120, 200, 500, 1000, 2000, 5000, 10_000)
BY_HAND = "<!-- explanations, by hand; kept when the figures are renewed -->"
KNOWN = {rule.code for rule in RULES}


class Prefix:
    """A run as it was when a step had just ended."""

    clean_end = False

    def __init__(self, run: Any, steps: int) -> None:
        self._run, self._steps = run, steps
        self.info, self.ranks, self.notes = run.info, run.ranks, run.notes
        self.last_time_ns = run.last_time_ns

    def read(self, table: Any, columns: Any = None, rank: int | None = None) -> pa.Table:
        if table is Table.DEVICES:
            return self._run.read(table, columns=columns, rank=rank)
        wanted = None if columns is None else list(dict.fromkeys((*columns, "step")))
        rows = self._run.read(table, columns=wanted, rank=rank)
        rows = rows.filter(pc.less(rows.column("step"), self._steps))
        return rows if columns is None else rows.select(list(columns))


@dataclass(frozen=True, slots=True)
class Part:
    """Cases that are scored together."""

    title: str
    runs: int
    score: Score


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--only", default=None, metavar="PATTERN", help="a name or a family")
    parser.add_argument("--runs", type=Path, default=ROOT / "ampwatch-runs" / "gallery")
    parser.add_argument("--seed", type=int, default=0, help="of weights and of generated rows")
    parser.add_argument("--out", type=Path, default=None, help="such as results/diagnosis.md")
    options = parser.parse_args()
    options.runs.mkdir(parents=True, exist_ok=True)
    cases, streams, unseen = (
        chosen(some, options.only) for some in (all_cases(), all_streams(), unseen_streams())
    )
    lines: list[str] = []
    trained = perform_missing(cases, options.runs, options.seed)
    for case in track(trained, "trainings", total=len(cases)):
        lines += findings_of(case.name, options.runs / case.name, case.label)
    for stream in track([*streams, *unseen], "streams"):  # the long ones take 200 MB each
        with tempfile.TemporaryDirectory(dir=options.runs) as folder:
            path = write_stream(stream, Path(folder), options.seed)
            lines += findings_of(stream.name, path, stream.label)
            shutil.rmtree(path)
    (options.runs / "findings.jsonl").write_text("\n".join(lines), "utf-8")
    groups = {
        "Gallery": [c for c in cases if not c.held_out and c.family != "blind"],
        "Tests, once held out": [case for case in cases if case.held_out],
        "Tests, once blind": [case for case in cases if case.family == "blind"],
        "Long streams": streams,
        "Long streams, once held out": unseen,
    }
    parts = [part_of(title, some, lines) for title, some in groups.items() if some]
    text = page_of(parts, cases, seconds_trained(cases, options.runs))
    print(text)
    if options.out:
        old = options.out.read_text("utf-8") if options.out.exists() else ""
        by_hand = old[old.index(BY_HAND) :] if BY_HAND in old else f"{BY_HAND}\n"
        options.out.write_text(f"{text}\n{by_hand}", "utf-8")


# -- what ampwatch says --------------------------------------------------------------------------


def findings_of(name: str, folder: Path, label: Any) -> list[str]:
    """ampwatch's findings on a run, as the lines that the scorer reads."""
    run = ampwatch.open_run(folder)
    diagnosis = ampwatch.diagnose(run)
    told = dict(told_at(run, label, diagnosis))
    lines: list[dict[str, Any]] = [{"case": name, "advice": diagnosis.learning_rate.action.value}]
    lines += [
        {
            "case": name, "code": finding.code, "severity": finding.severity.value,
            "layer": finding.layer, "found_at": told.get(finding.code),
        }
        for finding in diagnosis.findings
    ]  # fmt: skip
    return [json.dumps(line) for line in lines]


def told_at(run: Any, label: Any, diagnosis: Diagnosis) -> Iterator[tuple[str, int]]:
    """When a live reader would have been told of what the label demands."""
    wanted = (
        alarms(diagnosis).intersection(label.must) if label.onset is not None and run.ranks else ()
    )
    for code in wanted:
        step = first_told(run, code, label.onset)
        if step is not None:
            yield code, step


def first_told(run: Any, code: str, onset: int) -> int | None:
    """The first step whose end shows the finding; exact if it then stays."""
    last = int(pc.max(run.read(Table.STEPS, columns=["step"])["step"]).as_py() or 0)

    def is_told(step: int) -> bool:
        return code in alarms(ampwatch.diagnose(Prefix(run, step + 1)))

    looks = [onset + look - 1 for look in LOOKS if onset + look - 1 < last] + [last]
    at = next((at for at, step in enumerate(looks) if is_told(step)), None)
    if at is None:
        return None
    between = range(looks[at - 1] + 1 if at else onset, looks[at] + 1)
    return between[bisect_left(between, 1, key=lambda step: int(is_told(step)))]


def alarms(diagnosis: Diagnosis) -> set[str]:
    return {f.code for f in diagnosis.findings if f.severity.value != "info"}


# -- the report ----------------------------------------------------------------------------------


def part_of(title: str, cases: Sequence[Any], lines: Iterable[str]) -> Part:
    labels = {case.name: case.label for case in cases}
    return Part(title, len(cases), score(labels, read_answers(lines)))


def page_of(parts: Sequence[Part], cases: Sequence[Any], seconds: float) -> str:
    issues = [case.issue for case in cases if case.issue]
    head = (
        f"# The diagnosis on the fault gallery\n\n{machine('torch')} ampwatch "
        f"{ampwatch.__version__} with {len(RULES)} rules.\n{len(cases)} trainings "
        f"({sum(case.twin_of is not None for case in cases)} of them healthy twins), "
        f"{len(issues)} re-create one of {len(set(issues))} public threads; trained in "
        f"{seconds:.0f} s. Precision and recall count warnings and errors.\n"
    )
    totals = table(
        " | runs | precision | recall | told as info | healthy runs | with a warning "
        "| with an error | culprit | advice on faults | advice on healthy runs "
        "| steps to the finding, median (worst)",
        map(totals_of, parts),
    )
    return "\n".join([head, totals, "", *map(details_of, parts)])


def totals_of(part: Part) -> Iterator[object]:
    result, total = part.score, part.score.total
    told = sum(result.told.values(), Tally())
    yield from (part.title, part.runs, _share(total.hits, total.false), _recall(total))
    yield from (_recall(told), result.healthy)
    yield from (len(result.healthy_with_warning), len(result.healthy_with_error))
    yield from map(_recall, (result.culprits, result.advice, result.healthy_advice))
    yield _steps([step for steps in result.delays.values() for step in steps])


def _recall(tally: Tally) -> str:
    return _share(tally.hits, tally.misses)


def _share(hits: int, others: int) -> str:
    whole = hits + others
    return f"{hits / whole:.2f} ({hits}/{whole})" if whole else ""


def _steps(delays: Sequence[int]) -> str:
    return f"{statistics.median(delays):g} ({max(delays)})" if delays else ""


def details_of(part: Part) -> str:
    result = part.score
    rows = [
        (code, "" if code in KNOWN else "none yet", tally.hits, tally.misses, tally.false,
         _steps(result.delays.get(code, [])))
        for code, tally in sorted(result.codes.items())
    ]  # fmt: skip
    wrong = [f"- {line}" for line in sorted(result.wrong)]
    head = "code | rule | found | missed | false | steps to the finding"
    return "\n".join(
        [f"## {part.title}\n", table(head, rows), "\nMisses and false alarms, one by one:\n",
         *wrong, ""]
    )  # fmt: skip


if __name__ == "__main__":
    main()
