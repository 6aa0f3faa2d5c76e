"""Publishes runs: rows first, each table's in one transaction, and the runs' own rows last.

If the publisher is killed at any point, a run in the place is either as it was before or complete.
No row of `runs` names what a killed publisher left behind, so nobody reads it. Publishing again
continues: it skips runs that are already published and have nothing new. Runs are compared by id
and, rank by rank, by the numbers of their batches. So a copy that lacks batches never replaces one
that has them, and two publishers with different ranks of one run together publish all of it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from ampwatch.errors import AmpwatchError, PlaceError, RunError
from ampwatch.fleet.committing import DETAILS, commit
from ampwatch.fleet.place import Place
from ampwatch.fleet.publishing_worker import Outcome, PublishingJob, bytes_in, write_share
from ampwatch.fleet.row_tables import DAY, TABLE_SCHEMAS
from ampwatch.fleet.runs_delta_table import RUNS, RUNS_SCHEMA, RunTable, of_rows
from ampwatch.fleet.workers import in_order
from ampwatch.rows import TABLES
from ampwatch.store import RUN_FILE, read_info
from ampwatch.store.layout import ranks_in

# As much as a cut can cost, and about as much log as makes a batch.
_SHARE_RUNS, _SHARE_BYTES = 200, 384 << 20

Progress = Callable[[int, int], None]


def publish(
    run: str | Path | Iterable[Path],
    place: str | Place,
    *,
    live: bool = False,
    workers: int = 1,
    progress: Progress | None = None,
) -> Outcome:
    """Publish a run's folder, or every run in a folder, to a place; raises PlaceError.

    `live`: also runs that go on, as far as they are. `workers`: processes that read and encode many
    runs; they are started afresh, so a script that asks for more than one needs its `__main__`
    guard. `progress` gets the runs done and all.
    """
    place = place if isinstance(place, Place) else Place(place)
    folders = _folders(run)
    table = _prepared(place)
    job = PublishingJob(place.address, {row.id: row for row in of_rows(table.rows())}, live=live)
    shares = _shares(folders, workers)
    outcome, done = Outcome(), 0
    for share, written in in_order(write_share, job, shares, workers):
        for one in written:
            commit(place, one)
            outcome.add(one.outcome)
        done += len(share)
        if progress:
            progress(done, len(folders))
    return outcome


def _folders(run: str | Path | Iterable[Path]) -> list[Path]:
    """The folders of the runs to publish, those of one day together."""
    if not isinstance(run, str | Path):
        return list(run)
    folder = Path(run)
    if os.path.lexists(folder / RUN_FILE):
        return [folder]
    found = runs_in(folder)
    if not found:
        raise RunError(f"{run} holds no run to publish.", path=run)
    return found


def runs_in(folder: Path) -> list[Path]:
    """The folders in this folder that may be runs to publish, the oldest first."""
    found = [path for path in folder.iterdir() if path.is_dir() and _may_be_run(path)]
    return sorted(found, key=lambda path: (_started_ns(path), path.name))


def _may_be_run(path: Path) -> bool:
    is_hidden = path.name.startswith(".")
    return not is_hidden and (os.path.lexists(path / RUN_FILE) or bool(ranks_in(path)))


def _started_ns(path: Path) -> int:
    try:
        return read_info(path).started_ns
    except AmpwatchError:  # said when its turn comes
        return 0


def _shares(folders: Sequence[Path], workers: int) -> list[list[Path]]:
    """The runs to publish in shares of about equal size, each for one worker at a time."""
    weights = [max(1 / _SHARE_RUNS, bytes_in(folder) / _SHARE_BYTES) for folder in folders]
    total = sum(weights)
    count = math.ceil(total)
    count = math.ceil(count / workers) * workers if count > 1 else 1
    shares: list[list[Path]] = [[] for _ in range(count)]
    before = 0.0
    for folder, weight in zip(folders, weights, strict=True):
        shares[min(int(before / total * count), count - 1)].append(folder)
        before += weight
    return [share for share in shares if share]


def _prepared(place: Place) -> RunTable:
    """Prepare a place for publishing: create missing tables; PlaceError if it is something else."""
    if place.table(RUNS) is None:
        others = place.names() - {table.value for table in TABLES} - {RUNS, DETAILS}
        if others:
            raise PlaceError(
                f"{place.address} holds something else ({min(others)}): choose a place of its own, "
                "such as a new prefix in the same bucket.",
                place=place.address,
            )
        for table in TABLES:
            place.create(table.value, TABLE_SCHEMAS[table], [DAY])
        place.create(RUNS, RUNS_SCHEMA, [])
    return RunTable.open(place)
