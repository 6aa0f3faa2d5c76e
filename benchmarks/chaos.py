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
import signal
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from dataclasses import dataclass, field

import chaos_faults  # noqa: F401 - each puts its trials on the list
import chaos_files  # noqa: F401
import chaos_inputs  # noqa: F401
import chaos_kills  # noqa: F401
import chaos_material
import chaos_recorder  # noqa: F401
from chaos_children import Batch, end_descendants, inherit_orphans, own_environment, total_bytes
from chaos_table import Totals, markdown
from chaos_trials import KINDS, Kind, Outcome

_LOOK_S = 0.02
_WEIGH_S = 3.0
_SAY_S = 20.0


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
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
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
