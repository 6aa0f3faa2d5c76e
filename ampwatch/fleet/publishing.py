"""Publish runs: rows first, each table's in one transaction, and the runs' own rows last.

Killed at any point, a run is in the place as it was before or whole. What a killed publisher left
is named by no row of `runs`, so nobody reads it, and publishing again starts where it stopped: runs
that are there already, with nothing new, are passed over. Runs are told apart by their id and, rank
by rank, by the numbers of the batches that are held, so a copy that lacks some never replaces one
that has them, and two publishers of one run, each with other ranks of it, together publish all.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from ampwatch.errors import AmpwatchError, PlaceError, RunError
from ampwatch.fleet.committing import DETAILS, commit
from ampwatch.fleet.place import Place
from ampwatch.fleet.run_table import RunTable, of_rows
from ampwatch.fleet.share_writing import Job, Outcome, bytes_in, write_share
from ampwatch.fleet.tables import DAY, RUNS, RUNS_SCHEMA, TABLE_SCHEMAS
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
    """Publish a run's folder, or every run in a folder; raises PlaceError.

    `live`: also runs that go on, as far as they are. `workers`: processes that read and encode many
    runs; they are started afresh, so a script that asks for more than one needs its `__main__`
    guard. `progress` gets the runs done and all.
    """
    place = place if isinstance(place, Place) else Place(place)
    folders = _folders(run)
    table = _prepared(place)
    job = Job(place.address, {row.id: row for row in of_rows(table.rows())}, live=live)
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
    """The runs; of a folder in an order in which those of a day come together."""
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
    """What may be runs in a folder, the oldest first."""
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
    """Runs that are written together, in files of a good size; as much for each worker."""
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
    """The place's tables, made if there are none; refused if it holds something else."""
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
