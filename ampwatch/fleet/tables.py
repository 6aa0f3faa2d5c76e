"""The tables of a place, and stored rows as published ones and back.

A row table has the columns of `rows.py` and before them `run_id`, `edition`, `rank` and `attempt`;
where rows.py stores a layer or a data type by number, these tables have its name, and for a layer
also its number. An *edition* is one publication of a rank's rows: after a run was published again,
rows of the old edition remain, but no row of `runs` names them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ampwatch.codec import column
from ampwatch.rows import DTYPES, SCHEMAS, Table
from ampwatch.store.public_rows import ATTEMPT, RANK, LayerFacts, with_dtype_names
from ampwatch.store.run_files import RankRows

RUNS = "runs"
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

RUNS_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string()),
        pa.field("name", pa.string()),  # of its folder, when it was published
        pa.field("source", pa.string()),
        pa.field("host", pa.string()),
        pa.field("started", pa.timestamp("us", "UTC")),
        pa.field("last_time", pa.timestamp("us", "UTC")),
        pa.field("state", pa.string()),  # live, ended or lost, when it was published
        pa.field("steps", pa.int64()),
        pa.field("ranks", pa.int32()),
        pa.field("world_size", pa.int32()),
        pa.field("config", pa.string()),  # as JSON
        pa.field("tags", pa.list_(pa.string())),
        pa.field("note", pa.string()),
        pa.field("editions", pa.list_(pa.string())),  # that make up its rows
        pa.field("published", pa.timestamp("us", "UTC")),
        pa.field("publisher", pa.string()),  # the host that published it
        pa.field("ampwatch", pa.string()),  # the version that published it
        pa.field("stamp", pa.string()),  # tells one state of a run from another
        pa.field("signature", pa.string()),  # what the run is made of; null where it does not tell
        # Where what it takes to read the run is: a range of an object beside the tables.
        pa.field("detail_path", pa.string()),
        pa.field("detail_offset", pa.int64()),
        pa.field("detail_length", pa.int64()),
        pa.field("detail_crc", pa.int64()),
    ]
)


def published(
    table: Table, rows: pa.Table, run_id: str, edition: str, facts: LayerFacts
) -> pa.Table:
    """Stored rows, with columns for rank and attempt, as rows of the place's table."""
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
    """The columns of a place's table that these stored ones are made from."""
    return [_NUMBER_OF.get(name, name) for name in names]


def stored(table: Table, rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """The stored columns; null where an earlier version did not publish them."""
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
    """The facts about the layers of a rank."""
    return LayerFacts.of(with_places(log, Table.LAYER_INFO, 0, log.rows(Table.LAYER_INFO)))


def with_places(log: RankRows, table: Table, start: int, stop: int) -> pa.Table:
    """All stored columns of a rank's rows with its number and the attempt of each."""
    rows = log.read(table, SCHEMAS[table].names, start, stop)
    ranks = column(np.full(rows.num_rows, log.rank), pa.int32())
    attempts = column(log.attempts(table, start, start + rows.num_rows), pa.int32())
    return rows.append_column(RANK, ranks).append_column(ATTEMPT, attempts)
