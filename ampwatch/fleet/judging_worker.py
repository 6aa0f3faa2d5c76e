"""What a worker does: judges the runs of one share, which lie beside each other in the same files.

A run that cannot be judged is named with the reason, and the others go on. A place that cannot be
read any more ends the share; the runs that were judged by then are handed over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ampwatch.errors import AmpwatchError, PlaceError
from ampwatch.fleet.nearby_bytes import Extent, NearbyBytes
from ampwatch.fleet.place import Place
from ampwatch.fleet.published_run_reader import open_row
from ampwatch.fleet.row_files import WHOLE_BYTES
from ampwatch.fleet.run_details import Detail, read_detail
from ampwatch.fleet.runs_delta_table import PublishedRun, list_published
from ampwatch.fleet.verdicts import RunVerdict, rules_version, verdict_of
from ampwatch.follow import diagnose
from ampwatch.printable_text import printable
from ampwatch.store import Run

# So many runs, or so many steps of all ranks, are one share: what a cut can cost a worker, and
# enough that a request fetches the rows of many. Fewer cost less than it takes to start a worker.
_RUNS, _LEAST_RUNS, _STEPS = 32, 16, 1 << 18

# What rows that nobody meant to write make of arithmetic that expects others. Anything else is
# a defect and ends the command.
_HOSTILE = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError)


@dataclass(slots=True)
class ShareVerdicts:
    """What a worker made of its share: verdicts, and runs that could not be judged."""

    found: list[RunVerdict] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)  # run id -> why
    changed: list[str] = field(default_factory=list)  # ids of runs that were replaced or deleted
    trouble: str = ""  # why the place cannot be read; the runs that are left were not judged
    rules: str = field(default_factory=rules_version)  # of the ampwatch that judged


def shares_of(rows: Sequence[PublishedRun], workers: int) -> list[list[PublishedRun]]:
    """Runs in shares for workers: those in the same files together, the largest shares first."""
    order = sorted(rows, key=lambda row: (row.detail_path, row.detail_offset))
    most = min(_RUNS, max(_LEAST_RUNS, len(rows) // workers))
    shares: list[list[PublishedRun]] = []
    for row in order:
        last = shares[-1] if shares else []
        is_beside = bool(last) and last[0].detail_path == row.detail_path
        if is_beside and len(last) < most and _steps(last) + _steps([row]) <= _STEPS:
            last.append(row)
        else:
            shares.append([row])
    return sorted(shares, key=_steps, reverse=True)


def judge_share(address: str, rows: Sequence[PublishedRun]) -> ShareVerdicts:
    """Judge the runs of one share, in a worker."""
    judge = _ShareJudge(Place(address))
    try:
        judge.all_of(rows)
    except PlaceError as problem:
        judge.done.trouble = str(problem)
    return judge.done


class _ShareJudge:
    """Judges the runs of a share, one after the other."""

    def __init__(self, place: Place) -> None:
        self.done = ShareVerdicts()
        self._place = place
        self._source = NearbyBytes(place)

    def all_of(self, rows: Sequence[PublishedRun]) -> None:
        """Judge all runs of a share; PlaceError if the place cannot be read at all."""
        self._source.expect(Extent(r.detail_path, r.detail_offset, r.detail_length) for r in rows)
        found = [(row, self._detail(row)) for row in rows]
        self._source.expect(
            Extent(part.path, part.offset, part.length)
            for _, detail in found
            for part in (detail.parts if detail else ())
            if part.length <= WHOLE_BYTES
        )
        for row, detail in found:
            if detail is not None:
                self._one(row, detail)

    def _detail(self, row: PublishedRun) -> Detail | None:
        """Read where the rows of a run to judge are; None if that is impossible, which is noted."""
        try:
            return read_detail(self._source, row)
        except (AmpwatchError, OSError) as problem:
            self._note(row, problem)
            return None

    def _one(self, row: PublishedRun, detail: Detail) -> None:
        try:
            # Losses near the largest float and the like: who reads a fleet has no use for numpy's
            # warnings of them.
            with np.errstate(all="ignore"):
                run = open_row(self._source, row, detail)
                self.done.found.append(judge_opened(row, run))
        except (AmpwatchError, OSError, *_HOSTILE) as problem:
            self._note(row, problem)

    def _note(self, row: PublishedRun, problem: Exception) -> None:
        """Note why a run was not judged; PlaceError if the place cannot be read at all."""
        now = next((one for one in list_published(self._place) if one.id == row.id), None)
        if now is None or now.stamp != row.stamp:
            self.done.changed.append(row.id)
        elif isinstance(problem, AmpwatchError | OSError):
            self.done.failed[row.id] = str(problem)
        else:
            said = printable(f"{type(problem).__name__}: {problem}")[:200]
            self.done.failed[row.id] = f"Its rows are such as no training writes ({said})."


def _steps(rows: Sequence[PublishedRun]) -> int:
    return sum(max(0, row.steps) * max(1, row.ranks) for row in rows)


def judge_run(place: Place, row: PublishedRun) -> RunVerdict:
    """Judge one run of a place, as `report --json PLACE#RUN` does; AmpwatchError if damaged."""
    return judge_opened(row, open_row(place, row))


def judge_opened(row: PublishedRun, run: Run) -> RunVerdict:
    """Judge a published run that is open already."""
    return verdict_of(row, run, diagnose(run))
