"""The facts that are published about a run: its row in `runs`, and a note on each rank's log."""

from __future__ import annotations

import datetime as dt
import json
import platform
from collections.abc import Sequence

import numpy as np

from ampwatch.diagnosis.earlier_runs import signature_of
from ampwatch.fleet.row_tables import time_of
from ampwatch.fleet.run_details import RankNote
from ampwatch.fleet.runs_delta_table import PublishedRun
from ampwatch.follow.liveness import State
from ampwatch.rows import TABLES, Table
from ampwatch.store import Run
from ampwatch.store.rank_log import RankLog
from ampwatch.store.tags import RunTags, read_tags

_READ_AT_ONCE = 1 << 15  # rows between two places at which a reader of a long run may stop


def rank_note_of(run: Run, log: RankLog, edition: str) -> RankNote:
    """The facts to publish about a rank's log."""
    return RankNote(
        rank=log.rank,
        edition=edition,
        held=tuple(log.held),
        marks=log.marks,
        ended=log.ended,
        last_time_ns=log.last_time_ns,
        notes=log.notes,
        lacks=run.files.lacks(log.rank),
        row_ends=_row_ends(log),
    )


def _row_ends(log: RankLog) -> dict[str, list[int]]:
    """The row numbers to publish at which a reader may stop: ends of batches, evenly spaced."""
    ends = log.row_ends()
    if not len(ends):
        return {table.value: [0] for table in TABLES}
    wanted = np.arange(_READ_AT_ONCE, int(ends[-1]), _READ_AT_ONCE)
    places = np.unique(np.append(np.searchsorted(ends, wanted), len(ends) - 1))
    return {
        table.value: [min(int(end), log.rows(table)) for end in log.row_ends(table)[places]]
        for table in TABLES
    }


def row_of(
    run: Run, name: str, state: State, stamp: str, notes: Sequence[RankNote]
) -> PublishedRun:
    """The facts to publish about a run, as its row in `runs`, without the place of its detail."""
    from ampwatch import __version__

    info, told, made = run.info, read_tags(run.path), signature_of(run)
    return PublishedRun(
        id=info.id,
        name=name,
        source=info.source,
        host=info.host,
        started=time_of(info.started_ns),
        last_time=time_of(max([info.started_ns, *(note.last_time_ns for note in notes)])),
        state=state.value,
        steps=_steps(run),
        ranks=len(run.ranks),
        world_size=info.world_size,
        config=json.dumps(json.loads(info.to_json())["config"]),
        tags=told.tags,
        note=told.note,
        editions=(),
        published=dt.datetime.now(dt.timezone.utc),
        publisher=platform.node(),
        ampwatch=__version__,
        stamp=stamp,
        signature=made.text if made else None,
        detail_path="",
        detail_offset=0,
        detail_length=0,
        detail_crc=0,
    )


def _steps(run: Run) -> int:
    """The steps to publish: from the first to the last logged one of the first rank."""
    log = next(iter(run.logs), None)
    if log is None or not log.rows(Table.STEPS):
        return 0
    rows = log.rows(Table.STEPS)
    first = log.read(Table.STEPS, ["step"], 0, 1).column(0)[0].as_py()
    last = log.read(Table.STEPS, ["step"], rows - 1, rows).column(0)[0].as_py()
    return (last or 0) - (first or 0) + 1


def is_retold(told: RunTags, there: PublishedRun) -> bool:
    """Whether a run's tags or note differ from the published ones; a run without any keeps them."""
    return told != RunTags() and (told.tags, told.note) != (there.tags, there.note)
