"""How right the diagnosis is: the gallery's trainings and long streams, scored by their labels.

    python benchmarks/diagnosis.py [--only PATTERN] [--seed N] [--runs DIR] [--out FILE]

Runs are kept in DIR, so an interrupted benchmark goes on where it was; empty DIR after a change to
the probe. How soon a finding comes is measured as a live reader would see it: by diagnosing the
rows up to a step, for ever later steps.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import statistics
import sys
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from rich.progress import track

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from diagnosis_alarms import Watched, rates, watch  # noqa: E402
from diagnosis_early import Early, as_text, early  # noqa: E402

import ampwatch  # noqa: E402 - the checkout's own, found above
from ampwatch.diagnosis import RULES, Diagnosis  # noqa: E402
from ampwatch.rows import Table  # noqa: E402
from examples.gallery.courses import write_stream  # noqa: E402
from examples.gallery.held_out.streams import unseen_streams  # noqa: E402
from examples.gallery.performing import chosen, perform_missing, seconds_trained  # noqa: E402
from examples.gallery.registry import all_cases  # noqa: E402
from examples.gallery.scoring import Score, Tally, read_answers, score  # noqa: E402
from examples.gallery.streams import all_streams  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "diagnosis.md"
# After so many steps from its onset a live reader looks, until it is told.
LOOKS = (1, 2, 3, 5, 8, 12, 20, 30, 50, 80, 120, 200, 500, 1000, 2000, 5000, 10_000)


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
    """A table of the report."""

    title: str
    score: Score
    runs: int


def main() -> None:
    options = _options()
    options.runs.mkdir(parents=True, exist_ok=True)
    cases, streams = chosen(all_cases(), options.only), chosen(all_streams(), options.only)
    lines: list[str] = []
    for case in track(
        perform_missing(cases, options.runs, options.seed), "trainings", total=len(cases)
    ):
        lines += _said(case.name, options.runs / case.name, case.label)
    for stream in track(streams, "streams"):
        lines += _said(stream.name, write_stream(stream, options.runs, options.seed), stream.label)
    soon = [
        _early(options.runs / case.name, case.label)
        for case in track([c for c in cases if not c.label.is_healthy], "how early")
    ]
    unseen = chosen(unseen_streams(), options.only)
    watched = list(track(watch(unseen, options.seed), "unseen streams", total=len(unseen)))
    for one in watched:
        lines += _lines(one.stream.name, one.at_end, {})
    (options.runs / "findings.jsonl").write_text("\n".join(lines), "utf-8")
    blind = [case for case in cases if case.family == "blind"]
    open_cases = [case for case in cases if not case.held_out and case.family != "blind"]
    held_out = [case for case in cases if case.held_out]
    parts = [
        _part(title, some, lines)
        for title, some in (
            ("Gallery", open_cases), ("Tests, once held out", held_out),
            ("Tests, once blind", blind),
            ("Long streams", streams), ("Long streams, once held out", unseen),
        )
        if some
    ]  # fmt: skip
    text = _report(parts, cases, seconds_trained(cases, options.runs), watched, soon)
    print(text)
    if options.out:
        options.out.write_text(_with_explanations(text, options.out), "utf-8")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=None, metavar="PATTERN", help="a name or a family")
    parser.add_argument("--runs", type=Path, default=ROOT / "ampwatch-runs" / "gallery")
    parser.add_argument("--seed", type=int, default=0, help="of weights and of generated rows")
    parser.add_argument("--out", type=Path, default=None, help=f"such as {RESULTS.name}")
    return parser.parse_args()


# -- what ampwatch says --------------------------------------------------------------------------


def _said(name: str, folder: Path, label: Any) -> list[str]:
    """ampwatch's findings on a run, as the lines that the scorer reads."""
    run = ampwatch.open_run(folder)
    diagnosis = ampwatch.diagnose(run)
    return _lines(name, diagnosis, _told_at(run, label, diagnosis))


def _lines(name: str, diagnosis: Diagnosis, told: Mapping[str, int]) -> list[str]:
    lines = [{"case": name, "advice": diagnosis.learning_rate.action.value}]
    lines += [
        {
            "case": name, "code": finding.code, "severity": finding.severity.value,
            "layer": finding.layer, "found_at": told.get(finding.code),
        }
        for finding in diagnosis.findings
    ]  # fmt: skip
    return [json.dumps(line) for line in lines]


def _told_at(run: Any, label: Any, diagnosis: Diagnosis) -> dict[str, int]:
    """When a live reader would have been told of what the label demands."""
    if label.onset is None:
        return {}
    last = int(pc.max(run.read(ampwatch.rows.Table.STEPS, columns=["step"])["step"]).as_py() or 0)
    at_end = _alarms(diagnosis)
    return {
        code: step
        for code in label.must
        if code in at_end and (step := _first_told(run, code, label.onset, last)) is not None
    }


def _first_told(run: Any, code: str, onset: int, last: int) -> int | None:
    """The first step whose end shows the finding; exact if it then stays."""

    def told(step: int) -> bool:
        return code in _alarms(ampwatch.diagnose(Prefix(run, step + 1)))

    looks = [onset + look - 1 for look in LOOKS if onset + look - 1 < last] + [last]
    seen = next((at for at, step in enumerate(looks) if told(step)), None)
    if seen is None:
        return None
    between = range(looks[seen - 1] + 1 if seen else onset, looks[seen] + 1)
    return between[bisect_left(between, 1, key=lambda step: int(told(step)))]


def _alarms(diagnosis: Diagnosis) -> set[str]:
    return {f.code for f in diagnosis.findings if f.severity.value != "info"}


# -- the report ----------------------------------------------------------------------------------


def _part(title: str, cases: Sequence[Any], lines: Iterable[str]) -> Part:
    labels = {case.name: case.label for case in cases}
    return Part(title, score(labels, read_answers(lines)), len(cases))


def _report(
    parts: Sequence[Part],
    cases: Sequence[Any],
    seconds: float,
    watched: Sequence[Watched],
    soon: Sequence[Early],
) -> str:
    cited = {case.issue for case in cases if case.issue}
    recreated = sum(case.issue is not None for case in cases)
    head = (
        f"# The diagnosis on the fault gallery\n\n{_machine()}\n{len(cases)} trainings "
        f"({sum(case.twin_of is not None for case in cases)} of them healthy twins), "
        f"{recreated} re-create one of {len(cited)} public threads; trained in "
        f"{seconds:.0f} s. Precision and recall count warnings and errors.\n"
    )
    told = [as_text(soon), *([f"Held-out streams: {rates(watched)}"] if watched else [])]
    further = "\n\n".join(filter(None, told)) + "\n"
    return "\n".join([head, _totals(parts), further, *(_details(part) for part in parts)])


def _machine() -> str:
    import torch

    return (
        f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}, Python "
        f"{platform.python_version()}, torch {torch.__version__} on the CPU, "
        f"ampwatch {ampwatch.__version__} with {len(RULES)} rules."
    )


def _totals(parts: Sequence[Part]) -> str:
    head = (
        "| | runs | precision | recall | recall of codes with a rule | told as info | healthy runs "
        "| with a warning | with an error | culprit | advice on faults | advice on healthy runs "
        "| steps to the finding, median (worst) |\n"
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|\n"
    )
    return head + "\n".join(_total_row(part) for part in parts) + "\n"


def _total_row(part: Part) -> str:
    result, total = part.score, part.score.total
    known = {rule.code for rule in RULES}
    ruled = sum((t for code, t in result.codes.items() if code in known), Tally())
    told = sum(result.told.values(), Tally())
    delays = [step for steps in result.delays.values() for step in steps]
    cells = (
        part.title, part.runs, _share(total.precision, total.hits, total.hits + total.false),
        _share(total.recall, total.hits, total.hits + total.misses),
        _share(ruled.recall, ruled.hits, ruled.hits + ruled.misses),
        _share(told.recall, told.hits, told.hits + told.misses),
        result.healthy, len(result.healthy_with_warning), len(result.healthy_with_error),
        _share(result.culprits.recall, result.culprits.hits,
               result.culprits.hits + result.culprits.misses),
        _share(result.advice.recall, result.advice.hits,
               result.advice.hits + result.advice.misses),
        _share(result.healthy_advice.recall, result.healthy_advice.hits,
               result.healthy_advice.hits + result.healthy_advice.misses),
        _steps(delays),
    )  # fmt: skip
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def _share(share: float | None, part: int, whole: int) -> str:
    return "" if share is None else f"{share:.2f} ({part}/{whole})"


def _steps(delays: Sequence[int]) -> str:
    return f"{statistics.median(delays):g} ({max(delays)})" if delays else ""


def _details(part: Part) -> str:
    known = {rule.code for rule in RULES}
    result = part.score
    rows = [
        f"| {code} | {'' if code in known else 'none yet'} | {tally.hits} | {tally.misses} | "
        f"{tally.false} | {_steps(result.delays.get(code, []))} |"
        for code, tally in sorted(result.codes.items())
    ]
    table = (
        "| code | rule | found | missed | false | steps to the finding |\n|---|---|---|---|---|---|"
    )
    wrong = [f"- {line}{_no_rule(line, known)}" for line in sorted(result.wrong)]
    return "\n".join(
        [f"## {part.title}\n", table, *rows, "\nMisses and false alarms, one by one:\n", *wrong, ""]
    )


def _no_rule(line: str, known: set[str]) -> str:
    """Why a miss was bound to happen."""
    code = next((word for word in line.split() if word.startswith("AMP")), None)
    lacks = code is not None and code not in known and ("missed" in line or "not told" in line)
    return " (no rule yet)" if lacks else ""


def _early(folder: Path, label: Any) -> Early:
    run = ampwatch.open_run(folder)
    if label.onset is None or not run.ranks:
        return Early()
    told = functools.cache(lambda step: _alarms(ampwatch.diagnose(Prefix(run, step + 1))))
    return early(run, told, label.onset)


_MARK = "<!-- explanations, by hand; kept when the figures are renewed -->"


def _with_explanations(text: str, out: Path) -> str:
    """The new figures, and what a person wrote below the old ones."""
    old = out.read_text("utf-8") if out.exists() else ""
    kept = old[old.index(_MARK) :] if _MARK in old else _MARK + "\n"
    return f"{text}\n{kept}"


if __name__ == "__main__":
    main()
