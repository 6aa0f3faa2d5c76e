"""Parquet: any table of numbers, read by the row group and the wanted columns alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import pyarrow as pa

from ampwatch.errors import LogError
from ampwatch.importers.tables.cells import Block

_MAGIC = b"PAR1"
_BLOCK_ROWS = 1 << 16
_MOST_TEXT_BYTES = 16 << 20  # of the footer
_MOST_GROUP_BYTES = 4 << 30  # that a row group may inflate to


def looks_like_parquet(head: bytes) -> bool:
    """Whether a file begins as Parquet does."""
    return head.startswith(_MAGIC)


class ParquetTable:
    """An opened Parquet file; raises LogError, with a sentence, where it is damaged."""

    def __init__(self, file: BinaryIO | str, path: str) -> None:
        from pyarrow import parquet

        self._path = path
        try:
            self._file = parquet.ParquetFile(
                file, thrift_string_size_limit=_MOST_TEXT_BYTES,
                thrift_container_size_limit=1_000_000, page_checksum_verification=True,
            )  # fmt: skip
            about = self._file.metadata
            groups = [about.row_group(n).total_byte_size for n in range(about.num_row_groups)]
        except (pa.ArrowException, OSError) as problem:
            raise self._damaged(problem) from None
        if max(groups, default=0) > _MOST_GROUP_BYTES:
            raise LogError(f"{path} declares a row group of more than 4 GB.", path=path)
        self.names: list[str] = [about.schema.column(n).path for n in range(about.num_columns)]

    def blocks(self, wanted: list[str], say: Callable[[str], None]) -> Iterator[Block]:
        """The Parquet file's rows, some ten thousand at a time, up to where it is damaged."""
        try:
            for batch in self._file.iter_batches(_BLOCK_ROWS, columns=wanted, use_threads=False):
                yield Block(batch.num_rows, dict(_leaves(batch)))
        except (pa.ArrowException, OSError) as problem:
            say(str(self._damaged(problem)))

    def _damaged(self, problem: Any) -> LogError:
        said = str(problem).partition("\n")[0][:200].rstrip(".")
        return LogError(f"{self._path} is a damaged Parquet file: {said}.", path=self._path)


def _leaves(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.Array]]:
    table = pa.Table.from_batches([batch])
    while any(pa.types.is_struct(field.type) for field in table.schema):
        table = table.flatten()
    for name in dict.fromkeys(table.column_names):
        yield name, table.column(table.column_names.index(name)).combine_chunks()
