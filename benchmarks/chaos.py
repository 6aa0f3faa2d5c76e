"""Chaos, kept: whatever may happen to a training, a recorder or a file happens, at random.

    python benchmarks/chaos.py --minutes 60 --out benchmarks/results/chaos.md
    python benchmarks/chaos.py --list
    python benchmarks/chaos.py --only kill-training --minutes 2
    python benchmarks/chaos.py --only run-forged --seed 1234 --trials 1     one failure once more

Kills at random moments of attach, training, compaction, export, report, import and recording; disks
that are full, read-only or gone; no descriptors left; stopped and flooded recorders; forks; clocks
set back; flipped bits in every file that is read; forged runs, frames and batches; bombs. Prints
one table, then every failure with the seed that repeats it. Exit 1 if anything was lost, raised,
hung, changed a weight or took more than 1 GB.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

# Set before any library is loaded: an address-space limit counts what allocators and thread pools
# reserve, and two workers share two cores.
os.environ.update(ARROW_DEFAULT_MEMORY_POOL="system", OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))  # what the table names is what is tried

import argparse
import gc
import itertools
import re
import signal
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import chaos_faults  # noqa: F401 - each puts its trials on the list
import chaos_files  # noqa: F401
import chaos_inputs  # noqa: F401
import chaos_kills  # noqa: F401
import chaos_material
import chaos_recorder  # noqa: F401
from chaos_trials import (
    KINDS,
    MOST_BYTES,
    Batch,
    Kind,
    Outcome,
    Record,
    end_descendants,
    inherit_orphans,
    own_environment,
    total_bytes,
)
from parts.machine import commit, machine
from parts.options import command_line
from parts.tables import table

_LOOK_S = 0.02
_WEIGH_S = 3.0
_SAY_S = 20.0
_SEEDS_SAID = 6
_COLUMNS = (
    "trials", "kills", "hostile inputs", "lost", "raised", "hung", "weights changed", "too large",
    "left behind", "peak MB",
)  # fmt: skip


@dataclass(slots=True)
class Totals:
    """The counts by kind, and every failure."""

    counts: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    peak_bytes: Counter[str] = field(default_factory=Counter)
    failures: list[Record] = field(default_factory=list)
    total_bytes: int = 0  # of all processes together, shared pages counted once
    seconds: float = 0.0
    commit: str = field(default_factory=commit)  # a run is long

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


@dataclass(slots=True)
class Driver:
    """Shares the time out among the kinds, a few children at once."""

    kinds: list[Kind]
    seed: int
    folder: Path
    material: Path
    workers: int
    most_trials: int | None
    totals: Totals = field(default_factory=Totals)
    _running: list[Batch] = field(default_factory=list)
    _begun: Counter[str] = field(default_factory=Counter)
    _spent_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    _names: itertools.count = field(default_factory=itertools.count)

    def run(self, seconds: float) -> None:
        """Try until the time is over, then let those under way finish."""
        began = said = weighed = time.monotonic()
        try:
            while True:
                now = time.monotonic()
                self._collect()
                if now - began < seconds:
                    self._start_some()
                if not self._running:
                    break
                if now - weighed > _WEIGH_S:
                    weighed = now
                    self.totals.total_bytes = max(self.totals.total_bytes, total_bytes())
                if now - said > _SAY_S:
                    said = now
                    print(f"{now - began:6.0f} s  {self.totals.sentence()}", file=sys.stderr)
                time.sleep(_LOOK_S)
        finally:
            for batch in self._running:
                batch.end()
            end_descendants()
            self.totals.seconds = time.monotonic() - began

    def _start_some(self) -> None:
        while len(self._running) < self.workers and (kind := self._next()) is not None:
            count = kind.a_child
            if self.most_trials is not None:
                count = min(count, self.most_trials - self._begun[kind.name])
            seed = self.seed + self._begun[kind.name]
            self._begun[kind.name] += count
            place = self.folder / str(next(self._names))
            self._running.append(Batch(kind, seed, count, place, self.material))

    def _next(self) -> Kind | None:
        """Of the kinds that may still begin, the one that has had the least of its share."""
        now = time.monotonic()
        spent = Counter(self._spent_s)
        for batch in self._running:
            spent[batch.kind.name] += now - batch.began_s + 1.0
        left = [k for k in self.kinds if self._begun[k.name] < (self.most_trials or 1 << 60)]
        return min(left, key=lambda kind: spent[kind.name] / kind.share, default=None)

    def _collect(self) -> None:
        over = [batch for batch in self._running if batch.is_over()]
        for batch in over:
            self._running.remove(batch)
            self._spent_s[batch.kind.name] += time.monotonic() - batch.began_s
            self.totals.add(batch)
        if over:
            end_descendants(frozenset(batch.pid for batch in self._running))


# --- the page -------------------------------------------------------------------------------------


def markdown(totals: Totals, kinds: Sequence[Kind], seed: int, workers: int) -> str:
    """The whole page."""
    rows = [_row(k.name, totals.counts[k.name], totals.peak_bytes[k.name]) for k in kinds]
    everything = sum(totals.counts.values(), Counter[str]())
    rows.append(_row("**all**", everything, max(totals.peak_bytes.values(), default=0)))
    how = (
        f"`python benchmarks/chaos.py --minutes {totals.seconds / 60:.0f} --seed {seed} "
        f"--workers {workers}` at commit {totals.commit}. {machine('torch', 'pyarrow', 'pyzmq')}"
    )
    what = (
        f"All processes together took at most {totals.total_bytes / 1e6:.0f} MB, shared pages "
        "counted once. *Peak MB* is the largest single process of a kind: torch alone takes about "
        "250. *Left behind*: unnamed folders of killed programs that the next would never sweep."
    )
    figures = table(f"kind | {' | '.join(_COLUMNS)}", rows)
    return "\n".join(["# Chaos", "", how, "", what, "", figures, "", *_failures(totals)])


def _row(name: str, counts: Counter[str], peak_bytes: int) -> list[str]:
    outcomes = [Outcome.LOST, Outcome.RAISED, Outcome.HUNG, Outcome.CHANGED, Outcome.TOO_LARGE]
    figures = [counts["trials"], counts["kills"], counts["inputs"]]
    figures += [counts[outcome.value] for outcome in outcomes]
    figures += [counts["left"], round(peak_bytes / 1e6)]
    return [name, *(f"{figure:,}" for figure in figures)]


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


def main() -> int:
    options = read_options()
    if options.list:
        print("\n".join(f"{name:24} {kind.work.__doc__ or ''}" for name, kind in KINDS.items()))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that `finally` is run
    warnings.simplefilter("ignore")
    inherit_orphans()
    kinds = [KINDS[name] for name in options.only or KINDS]
    with tempfile.TemporaryDirectory(prefix="ampwatch-chaos-") as name:
        folder = Path(name)
        own_environment(folder)
        material = chaos_material.made(folder / "material", [kind.name for kind in kinds])
        gc.collect()
        gc.freeze()  # else each fork copies all of it, to look in it for what to free
        trials = folder / "trials"
        trials.mkdir()
        driver = Driver(kinds, options.seed, trials, material, options.workers, options.trials)
        driver.run(60 * options.minutes)
    text = markdown(driver.totals, kinds, options.seed, options.workers)
    print(text)
    if options.out:
        options.out.write_text(text, "utf-8")
    failed = any(record.outcome is not Outcome.OK for record in driver.totals.failures)
    return 1 if failed or driver.totals.is_too_large else 0


def read_options() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--only", action="append", choices=sorted(KINDS), metavar="KIND")
    parser.add_argument("--seed", type=int, default=0, help="of each kind's first trial")
    parser.add_argument("--trials", type=int, help="at most so many of each kind")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, help="write the table there, too")
    parser.add_argument("--list", action="store_true", help="say which kinds there are")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
