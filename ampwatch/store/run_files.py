"""Where a run's rows are: in a folder or elsewhere. `Run` reads both by these two protocols.

`RunFolder` is a run on this disk; `fleet` has the same for a run that was published.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa

from ampwatch.rows import Table
from ampwatch.store import locks
from ampwatch.store.copy_notes import read_copies
from ampwatch.store.layout import rank_folder, ranks_in
from ampwatch.store.rank_log import RankLog
from ampwatch.store.run_info import RUN_FILE, RunInfo, read_info


class RankRows(Protocol):
    """One rank's rows in the order of its log, as `RankLog` gives them."""

    @property
    def rank(self) -> int:
        """Whose rows they are."""

    @property
    def cuts(self) -> int:
        """Grows when damage was found: positions of rows read before no longer hold."""

    @property
    def ended(self) -> bool:
        """Whether the newest attempt wrote its end mark."""

    @property
    def marks(self) -> tuple[tuple[int, str], ...]:
        """The events that start and end attempts, as (sequence, kind)."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences: what was cut off."""

    @property
    def last_time_ns(self) -> int:
        """The latest time in the newest rows."""

    def refresh(self) -> bool:
        """Take in what was appended; True if there is more."""

    def rows(self, table: Table) -> int:
        """How many rows of a table are known."""

    def read(
        self, table: Table, names: Sequence[str], start: int = 0, stop: int | None = None
    ) -> pa.Table:
        """The columns `names` of the rows from `start` on, or up to `stop`."""

    def row_ends(self, table: Table | None = None) -> np.ndarray:
        """How many rows of a table, or of all, stand before each of some places in the log."""

    def attempts(self, table: Table, start: int, stop: int) -> np.ndarray:
        """The attempt, from 0, that each row from `start` to `stop` belongs to."""

    def verify(self) -> None:
        """Check every byte that was not checked yet; what is found shows in `notes`."""


class RunFiles(Protocol):
    """What a run is read from."""

    def info(self) -> RunInfo:
        """What the run says about itself."""

    def ranks(self) -> tuple[int, ...]:
        """The ranks that have written so far."""

    def log(self, rank: int) -> RankRows:
        """A rank's rows."""

    def lacks(self, rank: int) -> tuple[str, ...]:
        """Sentences: which batches of a rank are not here."""

    def is_there(self) -> bool:
        """Whether it can still be read, as far as that is cheap to know."""

    def grows(self) -> bool:
        """Whether rows may still come here; else it stands as it did when it was opened."""

    def is_written(self) -> bool:
        """Whether a process is writing the run; False if that cannot be known."""

    def is_abandoned(self, host: str) -> bool:
        """Whether it is known that nobody writes the run, which was made on this host."""


class RunFolder:
    """A run on this disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._logs: dict[int, RankLog] = {}

    def info(self) -> RunInfo:
        """Its run.json."""
        return read_info(self._path)

    def ranks(self) -> tuple[int, ...]:
        """The ranks that have a folder."""
        return ranks_in(self._path)

    def log(self, rank: int) -> RankLog:
        """The log in a rank's folder."""
        if rank not in self._logs:
            self._logs[rank] = RankLog(rank_folder(self._path, rank), rank)
        return self._logs[rank]

    def lacks(self, rank: int) -> tuple[str, ...]:
        """What a copy lacks of the trainer's log."""
        return self.log(rank).lacks(read_copies(self._path).get(rank))

    def is_there(self) -> bool:
        """Whether its folder is there."""
        return (self._path / RUN_FILE).is_file()

    def grows(self) -> bool:
        """A folder is where a trainer or a recorder writes."""
        return True

    def is_written(self) -> bool:
        """Whether a lock of a rank is held."""
        return locks.is_written(self._path)

    def is_abandoned(self, host: str) -> bool:
        """Whether a run of this machine has a lock that works and that nobody holds.

        The lock of a copy is the recorder's, who lets go of it while a trainer is silent.
        """
        is_here = bool(host) and host == platform.node()
        return is_here and locks.is_let_go(self._path) and not read_copies(self._path)
