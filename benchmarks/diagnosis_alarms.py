"""False alarms on long healthy runs, counted as a live reader meets them.

    python benchmarks/diagnosis_alarms.py [--only PATTERN] [--seed N] [--seeds COUNT]

Each stream is fed to the engine as it would grow and looked at `LOOKS` times; an alarm counts once
a stream and code, also where it is taken back later. Streams are written, read and deleted one by
one: the long ones take 200 MB each.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.progress import track

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import ampwatch  # noqa: E402 - the checkout's own, found above
from ampwatch.diagnosis import Diagnosis, Engine  # noqa: E402
from ampwatch.rows import Table  # noqa: E402
from examples.gallery.courses import Stream, write_stream  # noqa: E402
from examples.gallery.held_out.streams import unseen_streams  # noqa: E402
from examples.gallery.performing import chosen  # noqa: E402

LOOKS = 40


@dataclass(frozen=True, slots=True)
class Watched:
    """What was said of a stream while it grew, and at its end."""

    stream: Stream
    steps: int
    alarms: frozenset[tuple[str, str]]  # code and severity, warnings and errors, at any look
    at_end: Diagnosis


class _Beginning:
    """A run's first steps; its few events are there from the start."""

    clean_end = False

    def __init__(self, run: Any, rows: int) -> None:
        self._run, self._rows = run, rows
        self.info, self.ranks, self.notes = run.info, run.ranks, run.notes
        self.last_time_ns = run.last_time_ns

    def read(self, table: Any, columns: Any = None, rank: int | None = None) -> Any:
        rows = self._run.read(table, columns=columns, rank=rank)
        return rows.slice(0, self._rows) if table == Table.STEPS else rows


def watch(streams: Iterable[Stream], seed: int) -> Iterator[Watched]:
    """Write, watch and delete each stream."""
    with tempfile.TemporaryDirectory() as folder:
        for stream in streams:
            path = write_stream(stream, Path(folder), seed)
            yield _watched(stream, ampwatch.open_run(path))
            shutil.rmtree(path)


def _watched(stream: Stream, run: Any) -> Watched:
    steps = run.read(Table.STEPS, columns=["step"]).num_rows
    engine, alarms = Engine(), set()
    for look in range(1, LOOKS + 1):
        diagnosis = engine.feed(_Beginning(run, steps * look // LOOKS)).diagnosis()
        alarms |= {
            (finding.code, finding.severity.value)
            for finding in diagnosis.findings
            if finding.severity.value != "info"
        }
    return Watched(stream, steps, frozenset(alarms), ampwatch.diagnose(run))


def rates(watched: Iterable[Watched]) -> str:
    """False alarms of the healthy streams among these, in one sentence."""
    healthy = [one for one in watched if one.stream.label.is_healthy]
    million = sum(one.steps for one in healthy) / 1e6
    said = [severity for one in healthy for _, severity in one.alarms]
    warnings, errors = said.count("warning"), said.count("error")
    lowered = sum(one.at_end.learning_rate.action.value == "lower" for one in healthy)
    return (
        f"{len(healthy)} healthy streams, {million:.1f} million steps, each looked at {LOOKS} "
        f"times while it grew: {warnings} false warnings ({warnings / million:.2f} a million "
        f"steps), {errors} false errors ({errors / million:.2f}), {lowered} times the advice to "
        "lower the rate."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=None, metavar="PATTERN")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1, metavar="COUNT")
    options = parser.parse_args()
    seen = []
    for seed in range(options.seed, options.seed + options.seeds):
        streams = chosen(unseen_streams(), options.only)
        for one in track(watch(streams, seed), f"seed {seed}", total=len(streams)):
            seen.append(one)
            if one.alarms:
                print(one.stream.name, "seed", seed, *sorted(one.alarms))
    print(rates(seen))


if __name__ == "__main__":
    main()
