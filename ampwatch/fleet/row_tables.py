"""The row tables of a place: their columns, and stored rows as published ones and back.

A row table has the columns of `rows.py` and before them `run_id`, `edition`, `rank` and `attempt`;
where rows.py stores a layer or a data type by number, these tables have its name, and for a layer
also its number. An *edition* is one publication of a rank's rows: after a run was published again,
rows of the old edition remain, but no row of `runs` names them.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ampwatch.codec import column
from ampwatch.rows import DTYPES, SCHEMAS, Table
from ampwatch.store.public_rows import ATTEMPT, RANK, LayerFacts, with_dtype_names
from ampwatch.store.rank_log import RankRows

DAY = "day"  # of the run's start; a partition, so it stands in a file's path, not in the file
LAYER_NUMBER = "layer_number"
_NUMBER_OF = {"layer": LAYER_NUMBER, "max_update_layer": "max_update_layer_number"}
_DTYPES = pa.array(DTYPES, pa.string())

_HEAD = [
    pa.field("run_id", pa.string()),
    pa.field("edition", pa.string()),
    pa.field(RANK, pa.int32()),
    pa.field(ATTEMPT, pa.int32()),
]


def _fields(table: Table) -> Iterator[pa.Field]:
    yield from _HEAD
    for stored in SCHEMAS[table]:
        if stored.name.endswith("_dtype"):
            yield pa.field(stored.name, pa.string())
        elif stored.name in _NUMBER_OF:
            if table is not Table.LAYER_INFO:  # there the name has a column of its own
                yield pa.field(stored.name, pa.string())
            yield pa.field(_NUMBER_OF[stored.name], stored.type)
        else:
            yield stored


FILE_SCHEMAS = {table: pa.schema(list(_fields(table))) for table in Table}
TABLE_SCHEMAS = {table: FILE_SCHEMAS[table].append(pa.field(DAY, pa.date32())) for table in Table}


def published_rows(
    table: Table, rows: pa.Table, run_id: str, edition: str, facts: LayerFacts
) -> pa.Table:
    """Stored rows, with columns for rank and attempt, as rows of the place's row table."""
    count = rows.num_rows
    named = with_dtype_names(rows)
    columns = []
    for field in FILE_SCHEMAS[table]:
        if field.name == "run_id":
            columns.append(pa.repeat(run_id, count))
        elif field.name == "edition":
            columns.append(pa.repeat(edition, count))
        elif field.name in _STORED_AS:
            columns.append(rows.column(_STORED_AS[field.name]))
        elif field.name in _NUMBER_OF and table is not Table.LAYER_INFO:
            columns.append(facts.names(rows, field.name).cast(pa.string()))
        elif pa.types.is_dictionary(named.column(field.name).type):
            columns.append(named.column(field.name).cast(pa.string()))
        else:
            columns.append(named.column(field.name))
    return pa.Table.from_arrays(columns, schema=FILE_SCHEMAS[table])


_STORED_AS = {number: name for name, number in _NUMBER_OF.items()}


def published_names(names: Sequence[str]) -> list[str]:
    """The columns of the place's row table that these stored columns are made from."""
    return [_NUMBER_OF.get(name, name) for name in names]


def stored_rows(table: Table, rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """Rows of the place's row table as stored ones; null where an older version published none."""
    columns = []
    for name, there in zip(names, published_names(names), strict=True):
        kind = SCHEMAS[table].field(name).type
        if there not in rows.column_names:
            columns.append(pa.nulls(rows.num_rows, kind))
        elif name.endswith("_dtype"):
            numbers = pc.index_in(rows.column(there), value_set=_DTYPES)
            columns.append(numbers.cast(kind))
        else:
            columns.append(rows.column(there))
    schema = pa.schema([SCHEMAS[table].field(name) for name in names])
    return pa.Table.from_arrays([c.cast(f.type) for c, f in zip(columns, schema, strict=True)],
                                schema=schema)  # fmt: skip


def layer_facts(log: RankRows) -> LayerFacts:
    """The names and facts of a rank's layers, by which row tables name them."""
    return LayerFacts.of(with_places(log, Table.LAYER_INFO, 0, log.rows(Table.LAYER_INFO)))


def with_places(log: RankRows, table: Table, start: int, stop: int) -> pa.Table:
    """A rank's stored rows with two columns more: the rank, and the attempt of each row."""
    rows = log.read(table, SCHEMAS[table].names, start, stop)
    ranks = column(np.full(rows.num_rows, log.rank), pa.int32())
    attempts = column(log.attempts(table, start, start + rows.num_rows), pa.int32())
    return rows.append_column(RANK, ranks).append_column(ATTEMPT, attempts)


def time_of(time_ns: int) -> dt.datetime:
    """A time in nanoseconds as the place's tables hold it."""
    # 9999 is the last year that tables know.
    seconds = min(time_ns // 1000 / 1e6, 253_402_300_799.0)
    return dt.datetime.fromtimestamp(seconds, dt.timezone.utc)
