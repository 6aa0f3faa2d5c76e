"""What the diagnosis reads of a run: protocols that `store.Run` and `store.Reading` fulfil."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from ampwatch.rows import Table


class Info(Protocol):
    """What of a run's identity the diagnosis and its letter read."""

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
    """What the diagnosis reads of a run; `store.Run` is one."""

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
        """A table's rows in canonical order: only these columns, only this rank's."""


class RecordRows(Protocol):
    """A record's rows for who takes each once, some at a time; `store.Reading` is one."""

    is_overtaken: bool  # a row has come among those that were taken: they no longer hold

    def portions(self) -> Iterator[None]:
        """Show more of the record, until all is shown."""

    def read(
        self, table: Table, columns: Sequence[str], rank: int | None = None, start: int = 0
    ) -> pa.Table:
        """The rows shown by now, from number `start` on."""


class RowsInMemory:
    """The rows of a record that holds them anyway, all in one portion."""

    is_overtaken = False

    def __init__(self, record: Record) -> None:
        self._record = record

    def portions(self) -> Iterator[None]:
        """All at once."""
        yield

    def read(
        self, table: Table, columns: Sequence[str], rank: int | None = None, start: int = 0
    ) -> pa.Table:
        """The rows from number `start` on."""
        return self._record.read(table, columns=columns, rank=rank).slice(start)
