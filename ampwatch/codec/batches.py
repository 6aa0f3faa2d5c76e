"""Batches of rows to bytes and back: encode, decode, and check bytes from outside."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.ipc

from ampwatch.codec.arrow_header import (
    MAX_PAYLOAD_BYTES,
    MAX_ROWS,
    read_header,
    refuse_large,
    split_messages,
)
from ampwatch.codec.columns import Values, column, integers, null_column
from ampwatch.errors import CodecError
from ampwatch.rows import SCHEMAS, Table

# Below this size lz4 makes a batch longer (each of some 60 buffers gets a length and a frame);
# above it, all-null and repeating columns shrink to nothing for about 15 µs. zstd takes 10 %
# off that for 20 times the time.
COMPRESS_FROM_BYTES = 6_000

# A layer's number indexes tables that a reader allocates; no model has a hundredth of these.
MAX_LAYER = 1 << 20

# The key columns, which no row can lack.
REQUIRED: Mapping[Table, tuple[str, ...]] = {
    Table.STEPS: ("step", "time_ns"),
    Table.LAYERS: ("step", "layer"),
    Table.LAYER_INFO: ("step", "layer", "name"),
    Table.DEVICES: ("time_ns",),
    Table.EVENTS: ("time_ns", "kind"),
    Table.EXTRAS: ("step", "name"),
}


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of rows of one table, as the bytes that are logged and sent."""

    table: Table
    row_count: int
    payload: bytes


def encode(table: Table, columns: Mapping[str, Values]) -> Batch:
    """Encode a batch of rows given by column; a column left out is null in every row, as is None.

    NaN and inf are values. Raises CodecError on an unknown column, uneven lengths, a value that
    the column's type cannot hold, and more than `MAX_ROWS` rows or `MAX_PAYLOAD_BYTES`.
    """
    schema = SCHEMAS[table]
    row_count = _count_rows(table, columns)
    with np.errstate(all="ignore"):  # a float64 beyond float32 is inf, as torch's own cast does
        arrays = [
            _encoded_column(name, columns[name], kind)
            if name in columns
            else null_column(kind, row_count)
            for name, kind in _fields(table)
        ]
    payload = _serialize(table, pa.RecordBatch.from_arrays(arrays, schema=schema))
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise CodecError(
            f"{row_count} rows of {table.value} make a batch of {len(payload)} bytes and at most "
            f"{MAX_PAYLOAD_BYTES} are sent; encode them in smaller batches."
        )
    return Batch(table, row_count, payload)


def encode_batch(table: Table, batch: pa.RecordBatch) -> Batch:
    """Encode a batch of rows that is in Arrow's form already, with the table's schema."""
    return Batch(table, batch.num_rows, _serialize(table, batch))


def decode(table: Table, payload: bytes | memoryview) -> pa.RecordBatch:
    """Decode a batch from bytes of our own log, whose checksum was verified."""
    try:
        return _read_batch(table, payload, read_header(table, payload).schema)
    except (pa.ArrowException, OSError) as problem:
        raise CodecError(f"A batch of {table.value} cannot be decoded: {problem}") from problem


def decode_stream(
    table: Table, payloads: bytes | pa.Buffer, names: Sequence[str] | None = None
) -> list[pa.RecordBatch]:
    """Decode batches that follow each other; only the columns `names`, in the schema's order.

    The bytes are known to be as they were written. Columns not asked for are not inflated.
    """
    schema = SCHEMAS[table]
    wanted = [] if names is None else sorted({schema.get_field_index(name) for name in names})
    options = pa.ipc.IpcReadOptions(included_fields=wanted, use_threads=False)
    source = pa.BufferReader(b"".join((stream_head(table), payloads)))
    try:
        return list(pa.ipc.open_stream(source, options=options))
    except (pa.ArrowException, OSError) as problem:
        found = _decode_earlier_formats(table, payloads, wanted)
        if found is None:
            raise CodecError(f"Batches of {table.value} cannot be decoded: {problem}") from problem
        return found


def _decode_earlier_formats(
    table: Table, payloads: bytes | pa.Buffer, wanted: Sequence[int]
) -> list[pa.RecordBatch] | None:
    """Decode batches one by one if some are of an earlier format; None if none is."""
    present = SCHEMAS[table]
    messages = list(split_messages(table, memoryview(payloads)))
    if all(header.schema is present for header, _ in messages):
        return None
    try:
        batches = [_read_batch(table, payload, header.schema) for header, payload in messages]
    except (pa.ArrowException, OSError):
        return None
    return [batch.select(list(wanted)) if wanted else batch for batch in batches]


def _read_batch(table: Table, payload: bytes | memoryview, schema: pa.Schema) -> pa.RecordBatch:
    """Read one batch as the present format has it."""
    batch = pa.ipc.read_record_batch(pa.py_buffer(payload), schema)
    present = SCHEMAS[table]
    if schema is present:
        return batch
    added = list(present)[len(schema) :]
    arrays = [*batch.columns, *(null_column(field.type, batch.num_rows) for field in added)]
    return pa.RecordBatch.from_arrays(arrays, schema=present)


def check(table: Table, payload: bytes) -> pa.RecordBatch:
    """Decode a batch from outside, or raise CodecError; every size is capped before it is used."""
    header = read_header(table, payload)
    refuse_large(header)
    try:
        batch = _read_batch(table, payload, header.schema)
        # A string offset beyond its buffer is a segmentation fault for whoever reads the value.
        batch.validate(full=True)
    except (pa.ArrowException, OSError, MemoryError) as problem:
        raise CodecError(f"A batch of {table.value} is damaged: {problem}") from problem
    for name in REQUIRED[table]:
        if batch.column(name).null_count:
            raise CodecError(f"A batch of {table.value} has rows without {name}.")
    return batch


def refuse_missing_keys(table: Table, rows: pa.Table) -> None:
    """Raise CodecError if stored rows lack their key columns; they may lack the time."""
    for name in REQUIRED[table]:
        if name != "time_ns" and name in rows.column_names and rows.column(name).null_count:
            raise CodecError(f"There are rows of {table.value} without {name}.")
    if "layer" in rows.column_names and integers(rows.column("layer")).max(initial=0) > MAX_LAYER:
        raise CodecError(f"There are rows of {table.value} of a layer beyond {MAX_LAYER}.")


@functools.cache
def stream_head(table: Table) -> bytes:
    """The Arrow schema message with which a stream of this table's batches begins."""
    return SCHEMAS[table].serialize().to_pybytes()  # type: ignore[no-any-return]


# --- writing -------------------------------------------------------------------------------------


@functools.cache
def _write_options() -> pa.ipc.IpcWriteOptions:
    # A thread pool for one small batch costs more than it saves, and training wants the cores.
    codec = "lz4" if pa.Codec.is_available("lz4") else None
    return pa.ipc.IpcWriteOptions(compression=codec, use_threads=False)


def _serialize(table: Table, batch: pa.RecordBatch) -> bytes:
    if pa.ipc.get_record_batch_size(batch) < COMPRESS_FROM_BYTES:
        return batch.serialize().to_pybytes()  # type: ignore[no-any-return]
    sink = pa.BufferOutputStream()
    pa.ipc.new_stream(sink, SCHEMAS[table], options=_write_options()).write_batch(batch)
    return sink.getvalue()[len(stream_head(table)) :].to_pybytes()  # type: ignore[no-any-return]


def _count_rows(table: Table, columns: Mapping[str, Values]) -> int:
    schema = SCHEMAS[table]
    unknown = [name for name in columns if schema.get_field_index(name) < 0]
    if unknown:
        raise CodecError(f"The table {table.value} has no column {unknown[0]!r}.")
    lengths = {len(values) for values in columns.values()}
    if len(lengths) != 1:
        raise CodecError(f"The columns of a {table.value} batch differ in length: {lengths}.")
    row_count = lengths.pop()
    if row_count > MAX_ROWS:
        raise CodecError(f"{row_count} rows in one batch, at most {MAX_ROWS}; use smaller batches.")
    return row_count


@functools.cache
def _fields(table: Table) -> tuple[tuple[str, pa.DataType], ...]:
    return tuple((field.name, field.type) for field in SCHEMAS[table])


def _encoded_column(name: str, values: Values, kind: pa.DataType) -> pa.Array:
    try:
        return column(values, kind)
    except (TypeError, ValueError, OverflowError) as problem:
        raise CodecError(f"The column {name!r} cannot hold its values: {problem}") from None
