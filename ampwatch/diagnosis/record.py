"""What the diagnosis reads of a run's record: `store.Run` and `store.Reading` provide it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from ampwatch.rows import Table


class Info(Protocol):
    """What the diagnosis reads of a run's identity."""

    @property
    def id(self) -> str: ...  # noqa: D102
    @property
    def source(self) -> str: ...  # noqa: D102
    @property
    def started_ns(self) -> int: ...  # noqa: D102
    @property
    def config(self) -> Mapping[str, Any]: ...  # noqa: D102
    @property
    def scaler(self) -> Mapping[str, Any]: ...  # noqa: D102
    @property
    def marks(self) -> Mapping[str, Sequence[str]]: ...  # noqa: D102


class Record(Protocol):
    """What the diagnosis reads of a run's record; `store.Run` is one."""

    @property
    def info(self) -> Info: ...  # noqa: D102
    @property
    def ranks(self) -> tuple[int, ...]: ...  # noqa: D102
    @property
    def notes(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def clean_end(self) -> bool: ...  # noqa: D102
    @property
    def last_time_ns(self) -> int | None: ...  # noqa: D102

    def read(
        self, table: Table, columns: Sequence[str] | None = None, rank: int | None = None
    ) -> pa.Table:
        """Read a table of the record in canonical order: these columns, this rank's rows."""


class RecordRows(Protocol):
    """Reads a record's rows once, portion by portion; `store.Reading` is one."""

    is_overtaken: bool  # a row has come among those that were taken: they no longer hold

    def portions(self) -> Iterator[None]:
        """Make one more portion of the record readable at a time, until all of it is."""

    def read(
        self, table: Table, columns: Sequence[str], rank: int | None = None, start: int = 0
    ) -> pa.Table:
        """Read the rows of a table that are readable by now, from number `start` on."""


class RowsInMemory:
    """Reads the rows of a record that holds them in memory, in one portion."""

    is_overtaken = False

    def __init__(self, record: Record) -> None:
        self._record = record

    def portions(self) -> Iterator[None]:
        """Make the whole record readable at once."""
        yield

    def read(
        self, table: Table, columns: Sequence[str], rank: int | None = None, start: int = 0
    ) -> pa.Table:
        """Read the rows of a table of the record from number `start` on."""
        return self._record.read(table, columns=columns, rank=rank).slice(start)


@dataclass(frozen=True, slots=True)
class RecordFacts:
    """What a run's record says about itself: its source, its ranks, its notes, how it ended."""

    id: str
    source: str
    started_ns: int
    ranks: tuple[int, ...]
    notes: tuple[str, ...]
    marks: Mapping[str, Sequence[str]]  # how a foreign log's columns are to be read
    clean_end: bool
    last_time_ns: int | None

    @classmethod
    def of(cls, run: Record) -> RecordFacts:
        """The facts about a run's record as it stands now."""
        info = run.info
        return cls(
            info.id, info.source, info.started_ns, tuple(run.ranks), tuple(run.notes), info.marks,
            run.clean_end, run.last_time_ns,
        )  # fmt: skip
