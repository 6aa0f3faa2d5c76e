"""What benchmarks/chaos.py has found, as one table and a line a failure."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from chaos_children import MOST_BYTES, Batch
from chaos_trials import Kind, Outcome, Record

_SEEDS_SAID = 6
_HEAD = "| {} | {} |\n| --- |{}"
_COLUMNS = (
    "trials", "kills", "hostile inputs", "lost", "raised", "hung", "weights changed", "too large",
    "left behind", "peak MB",
)  # fmt: skip


def current_commit() -> str:
    """Which tree this is; asked at the start, as a run is long."""
    here = Path(__file__).parent
    words = ["git", "describe", "--always", "--dirty", "--abbrev=7"]
    found = subprocess.run(words, cwd=here, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


@dataclass(slots=True)
class Totals:
    """The counts by kind, and every failure."""

    counts: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    peak_bytes: Counter[str] = field(default_factory=Counter)
    failures: list[Record] = field(default_factory=list)
    total_bytes: int = 0  # of all processes together, shared pages counted once
    seconds: float = 0.0
    commit: str = field(default_factory=current_commit)

    def add(self, batch: Batch) -> None:
        """Count what a child has done."""
        name = batch.kind.name
        self.peak_bytes[name] = max(self.peak_bytes[name], batch.peak_bytes)
        for record in batch.records:
            counts = self.counts[name]
            counts["trials"] += 1
            counts["kills"] += record.kills
            counts["inputs"] += record.inputs
            counts["left"] += record.left_behind
            counts[record.outcome.value] += 1
            if record.outcome is not Outcome.OK:
                self.failures.append(record)

    @property
    def is_too_large(self) -> bool:
        return self.total_bytes > MOST_BYTES

    def sum(self, name: str) -> int:
        return sum(counts[name] for counts in self.counts.values())

    def sentence(self) -> str:
        failed = len(self.failures)
        return (
            f"{self.sum('trials'):,} trials, {self.sum('kills'):,} kills, "
            f"{self.sum('inputs'):,} hostile inputs, {failed:,} failures, "
            f"{self.total_bytes / 1e6:.0f} MB"
        )


def markdown(totals: Totals, kinds: Sequence[Kind], seed: int, workers: int) -> str:
    """The whole page."""
    names = [kind.name for kind in kinds]
    rows = [_row(name, totals.counts[name], totals.peak_bytes[name]) for name in names]
    everything = Counter[str]()
    for counts in totals.counts.values():
        everything.update(counts)
    whole = _row("**all**", everything, max(totals.peak_bytes.values(), default=0))
    head = _HEAD.format("kind", " | ".join(_COLUMNS), " ---: |" * len(_COLUMNS))
    return "\n".join([*_title(totals, seed, workers), head, *rows, whole, "", *_failures(totals)])


def _title(totals: Totals, seed: int, workers: int) -> list[str]:
    facts = ", ".join(f"{name} {version(name)}" for name in ("torch", "pyarrow", "pyzmq"))
    how = (
        f"`python benchmarks/chaos.py --minutes {totals.seconds / 60:.0f} --seed {seed} "
        f"--workers {workers}` at commit {totals.commit}; {os.cpu_count()} cores, "
        f"{platform.system()}, Python {platform.python_version()}, {facts}."
    )
    what = (
        f"All processes together took at most {totals.total_bytes / 1e6:.0f} MB, shared pages "
        "counted once. *Peak MB* is the largest single process of a kind: torch alone takes about "
        "250. *Left behind*: unnamed folders of killed programs that the next would never sweep."
    )
    return [
        "# Chaos",
        "",
        how,
        "",
        what,
        "",
    ]


def _row(name: str, counts: Counter[str], peak_bytes: int) -> str:
    outcomes = [Outcome.LOST, Outcome.RAISED, Outcome.HUNG, Outcome.CHANGED, Outcome.TOO_LARGE]
    figures = [counts["trials"], counts["kills"], counts["inputs"]]
    figures += [counts[outcome.value] for outcome in outcomes]
    figures += [counts["left"], round(peak_bytes / 1e6)]
    return f"| {name} | " + " | ".join(f"{figure:,}" for figure in figures) + " |"


def _failures(totals: Totals) -> list[str]:
    """A line for each way to fail, with the seeds of those that failed so."""
    alike: dict[tuple[str, str, str], list[Record]] = defaultdict(list)
    for record in totals.failures:
        key = (
            record.kind,
            record.outcome.value,
            re.sub(r"0x[0-9a-f]+|\d+(\.\d+)?", "N", record.detail)[:90],
        )
        alike[key].append(record)
    if not alike:
        return ["Nothing was lost, raised, hung, changed or too large.", ""]
    lines = ["`--only KIND --seed N --trials 1` repeats one:", ""]
    for (kind, outcome, _), records in sorted(alike.items()):
        first, *others = records
        seeds = ", ".join(str(other.seed) for other in others[: _SEEDS_SAID - 1])
        more = f" ({len(records)} times; also {seeds})" if others else ""
        lines.append(
            f"- `--only {kind} --seed {first.seed}`{more}: **{outcome}**, {_plain(first.tried)}: "
            f"{_plain(first.detail)}"
        )
    return [*lines, ""]


def _plain(text: str) -> str:
    """Text that keeps to its line and names no folder of this machine."""
    text = re.sub(r"/\S*/ampwatch-chaos-\w+/(trials/\d+/(trial/?)?|material/?)?", "", text)
    return " ".join(text.replace("|", "\\|").replace("`", "'").split())[:400]
