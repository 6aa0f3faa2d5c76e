"""Judges the runs of a place that have no verdict yet, by workers, and stores the verdicts.

Verdicts are stored while others are still worked on, so who is stopped keeps what was judged. Runs
that cannot be judged are named with the reason, and the others go on. A worker gets a share of runs
that lie beside each other in the same files. A place that cannot be read any more ends the share;
the runs that were judged by then are handed over.
"""

from __future__ import annotations

import datetime as dt
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ampwatch.errors import AmpwatchError, PlaceError
from ampwatch.fleet.chosen_runs import Choice, choice_of
from ampwatch.fleet.place import Place
from ampwatch.fleet.row_tables import WHOLE_BYTES, open_row
from ampwatch.fleet.runs_delta_table import Detail, PublishedRun, list_published, read_detail
from ampwatch.fleet.verdicts import (
    FleetVerdicts,
    NotJudged,
    RunVerdict,
    rules_version,
    store_verdicts,
    tables_of,
    verdict_of,
    verdicts_on,
)
from ampwatch.fleet.workers import LocalWorkers, RayWorkers, Workers
from ampwatch.follow import diagnose
from ampwatch.printable_text import printable
from ampwatch.store import Run, open_run

ENGINES = ("local", "ray")
# A transaction takes some tenths of a second, in a bucket some seconds, so many verdicts are one.
_STORED_EVERY_S, _STORED_RUNS = 20.0, 500

# So many runs, or so many steps of all ranks, are one share: what a cut can cost a worker, and
# enough that a request fetches the rows of many. Fewer cost less than it takes to start a worker.
_RUNS, _LEAST_RUNS, _STEPS = 32, 16, 1 << 18

# What rows that nobody meant to write make of arithmetic that expects others. Anything else is
# a defect and ends the command.
_HOSTILE = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError)

Progress = Callable[[int, int], None]


def judge(
    place: str | Place,
    *,
    engine: str = "local",
    address: str | None = None,
    workers: int | None = None,
    since: str | dt.timedelta | None = None,
    where: str = "",
    like: Run | str | Path | None = None,
    progress: Progress | None = None,
) -> FleetVerdicts:
    """Judge what is new of the runs in a place; return the verdicts on all of them.

    `.verdicts` and `.findings` of what it returns are Arrow tables, `.runs` the same as objects,
    and `.failed` names the runs that cannot be judged. Raises PlaceError; what was judged by then
    is stored. `engine`: "local" for processes of this machine, `workers` of them; "ray" for a
    cluster at `address`, or one of this machine. `since`: an age such as "7d"; `where`: as in the
    search of runs; `like`: only runs with the same model, optimizer and precision. `progress` gets
    the number of runs that were judged, and that of all.
    """
    opened = like if isinstance(like, Run) or like is None else open_run(like)
    choice = choice_of(since, where, opened)
    return judge_place(place, choice, workers_of(engine, address, workers), progress=progress)


def workers_of(engine: str, address: str | None, workers: int | None) -> Workers:
    """The workers that a call of `judge` asks for; AmpwatchError if it names none there are."""
    if engine not in ENGINES:
        raise AmpwatchError(f"There is no engine {engine!r}: local or ray.")
    if workers is not None and workers < 1:
        raise AmpwatchError(f"{workers} workers can judge nothing: give one or more.")
    if engine == "ray":
        return RayWorkers(address, workers)
    if address is not None:
        raise AmpwatchError("--address is for a Ray cluster: add --engine ray.")
    return LocalWorkers(workers or os.cpu_count() or 1)


def judge_place(
    place: Place | str,
    choice: Choice,
    workers: Workers,
    *,
    findings: bool = True,
    progress: Progress | None = None,
) -> FleetVerdicts:
    """Judge those chosen runs of a place that have no verdict yet; return all their verdicts.

    The verdicts are on all chosen runs, also those judged before. Raises PlaceError; what was
    judged by then is stored, as it is after Ctrl-C. Without `findings` the runs have none, which
    are most of the bytes. `progress` gets the runs that were judged and all that are to be.
    """
    place = place if isinstance(place, Place) else Place(place)
    chosen = choice.of_runs(list_published(place))
    done = _JudgedSoFar(place, chosen)
    shares, reported = shares_of(done.left, workers.count), 0
    try:
        for share, verdicts in workers.as_done(judge_share, place.address, shares):
            done.add(share, verdicts)
            reported = done.seen
            if progress:
                progress(reported, len(done.left))
    finally:
        done.store()
        if progress and reported != done.seen:  # Ctrl-C came in between
            progress(done.seen, len(done.left))
    if done.judged:
        done.tidy()
    current = choice.of_verdicts(chosen, verdicts_on(place, chosen, findings=findings))
    ours = tuple(verdict for verdict in current if verdict.rules == rules_version())
    return FleetVerdicts(place.address, ours, done.judged, tuple(done.failed), done.changed)


class _JudgedSoFar:
    """What the workers have judged so far, and what is not stored yet."""

    def __init__(self, place: Place, chosen: Sequence[PublishedRun]) -> None:
        self._place = place
        self._tables = tables_of(place)
        stored = self._tables[0].keys()
        self.left = [run for run in chosen if (run.id, run.stamp, rules_version()) not in stored]
        self._names = {run.id: run.name for run in self.left}
        self._unstored: list[RunVerdict] = []
        self._stored_s = time.monotonic()
        self.seen = self.judged = self.changed = 0
        self.failed: list[NotJudged] = []

    def add(self, share: Sequence[PublishedRun], result: ShareVerdicts) -> None:
        """Add what a worker made of its share; raises what kept it from reading the place."""
        if result.rules != rules_version():
            raise AmpwatchError(
                f"A worker judges by the rules {result.rules} and this machine by "
                f"{rules_version()}: install the same ampwatch on both."
            )
        self._unstored += result.verdicts
        self.judged += len(result.verdicts)
        self.changed += len(result.changed)
        self.seen += len(share)
        self.failed += [NotJudged(id_, self._names[id_], why) for id_, why in result.failed.items()]
        if result.trouble:
            raise PlaceError(result.trouble, place=self._place.address)
        is_time = time.monotonic() - self._stored_s > _STORED_EVERY_S
        if self._unstored and (is_time or len(self._unstored) >= _STORED_RUNS):
            self.store()

    def store(self) -> None:
        """Store the verdicts that are new; after Ctrl-C in here they are stored again, once."""
        if self._unstored:
            store_verdicts(self._tables, self._unstored)
            self._unstored = []
        self._stored_s = time.monotonic()

    def tidy(self) -> None:
        """Join the small files of the verdict tables after judging."""
        for table in self._tables:
            table.tidy()


# --- what a worker does ---------------------------------------------------------------------------


@dataclass(slots=True)
class ShareVerdicts:
    """What a worker made of its share: verdicts, and runs that could not be judged."""

    verdicts: list[RunVerdict] = field(default_factory=list)
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

    def all_of(self, rows: Sequence[PublishedRun]) -> None:
        """Judge all runs of a share; PlaceError if the place cannot be read at all."""
        self._place.fetch_ahead(row.detail for row in rows)
        details = [(row, self._detail(row)) for row in rows]
        self._place.fetch_ahead(
            part.extent
            for _, detail in details
            for part in (detail.parts if detail else ())
            if part.length <= WHOLE_BYTES
        )
        for row, detail in details:
            if detail is not None:
                self._judge(row, detail)

    def _detail(self, row: PublishedRun) -> Detail | None:
        """Read where the rows of a run to judge are; None if that is impossible, which is noted."""
        try:
            return read_detail(self._place, row)
        except (AmpwatchError, OSError) as problem:
            self._note(row, problem)
            return None

    def _judge(self, row: PublishedRun, detail: Detail) -> None:
        try:
            # Losses near the largest float and the like: who reads a fleet has no use for numpy's
            # warnings of them.
            with np.errstate(all="ignore"):
                run = open_row(self._place, row, detail)
                self.done.verdicts.append(verdict_of(row, run, diagnose(run)))
        except (AmpwatchError, OSError, *_HOSTILE) as problem:
            self._note(row, problem)

    def _note(self, row: PublishedRun, problem: Exception) -> None:
        """Note why a run was not judged; PlaceError if the place cannot be read at all."""
        now = next((run for run in list_published(self._place) if run.id == row.id), None)
        if now is None or now.stamp != row.stamp:
            self.done.changed.append(row.id)
        elif isinstance(problem, AmpwatchError | OSError):
            self.done.failed[row.id] = str(problem)
        else:
            reason = printable(f"{type(problem).__name__}: {problem}")[:200]
            self.done.failed[row.id] = f"Its rows are such as no training writes ({reason})."


def _steps(rows: Sequence[PublishedRun]) -> int:
    return sum(max(0, row.steps) * max(1, row.ranks) for row in rows)


def judge_run(place: Place, row: PublishedRun) -> RunVerdict:
    """Judge one run of a place, as `report --json PLACE#RUN` does; AmpwatchError if damaged."""
    run = open_row(place, row)
    return verdict_of(row, run, diagnose(run))
