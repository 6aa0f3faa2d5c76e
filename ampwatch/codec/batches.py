"""Batches of rows to bytes and back: encode, decode, and check bytes from outside.

Arrow checks a message's structure, but inflates whatever it declares: a frame of 12 kB became
400 MB. So of bytes from outside the header (a flatbuffer: Message > RecordBatch) is read here
first, by hand, and what it declares is capped before Arrow sees the message.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.ipc

from ampwatch.codec.columns import Values, column, integers, null_column
from ampwatch.errors import CodecError
from ampwatch.rows import SCHEMAS, Table, schemas_of

MAX_ROWS = 1 << 18
MAX_PAYLOAD_BYTES = 16 << 20
MAX_INFLATED_BYTES = 128 << 20

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
        return _read_batch(table, payload, _read_header(table, payload).schema)
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
        batches = _decode_earlier_formats(table, payloads, wanted)
        if batches is None:
            raise CodecError(f"Batches of {table.value} cannot be decoded: {problem}") from problem
        return batches


def _decode_earlier_formats(
    table: Table, payloads: bytes | pa.Buffer, wanted: Sequence[int]
) -> list[pa.RecordBatch] | None:
    """Decode batches one by one if some are of an earlier format; None if none is."""
    present = SCHEMAS[table]
    source, view, at = pa.BufferReader(payloads), memoryview(payloads), 0
    batches, is_present = [], True
    try:
        while at < len(view):
            pa.ipc.read_message(source)
            payload, at = view[at : source.tell()], source.tell()
            schema = _read_header(table, payload).schema
            is_present = is_present and schema is present
            batches.append(_read_batch(table, payload, schema))
    except (pa.ArrowException, OSError):
        return None
    if is_present:
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
    header = _read_header(table, payload)
    _refuse_large(header)
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


# --- the header of a batch ------------------------------------------------------------------------

_CONTINUATION = 0xFFFFFFFF
_RECORD_BATCH = 3
_LZ4 = 0  # in Arrow's list of codecs


@dataclass(frozen=True, slots=True)
class _MessageHeader:
    """What an Arrow message of a batch declares about itself."""

    row_count: int
    schema: pa.Schema  # the table's in the format that it was written in
    buffers: list[tuple[int, int]]
    packing: int | None  # a codec's number, None for none
    body: memoryview


class _Flatbuffer:
    """A table of a flatbuffer, as Arrow headers are; each read is checked to be inside it."""

    __slots__ = ("_bytes", "_position", "_vtable", "_vtable_length")

    def __init__(self, data: memoryview, position: int) -> None:
        self._bytes = data
        self._position = position
        self._vtable = position - self._read("<i", position)
        self._vtable_length = self._read("<H", self._vtable)

    def _read(self, layout: str, position: int) -> int:
        if not 0 <= position <= len(self._bytes) - struct.calcsize(layout):
            raise CodecError("A batch's header points outside itself.")
        return int(struct.unpack_from(layout, self._bytes, position)[0])

    def _place(self, slot: int) -> int | None:
        entry = 4 + 2 * slot
        if entry + 2 > self._vtable_length:
            return None
        offset = self._read("<H", self._vtable + entry)
        return self._position + offset if offset else None

    def number(self, slot: int, layout: str) -> int:
        place = self._place(slot)
        return 0 if place is None else self._read(layout, place)

    def table(self, slot: int) -> _Flatbuffer | None:
        place = self._place(slot)
        return None if place is None else _Flatbuffer(self._bytes, place + self._read("<I", place))

    def count(self, slot: int) -> int:
        """How many elements a vector in the flatbuffer has."""
        place = self._place(slot)
        return 0 if place is None else self._read("<I", place + self._read("<I", place))

    def pairs(self, slot: int, expected: int) -> list[tuple[int, int]]:
        """A vector of structs of two int64 in the flatbuffer; `expected` is its length."""
        place = self._place(slot)
        start = 0 if place is None else place + self._read("<I", place)
        count = self.count(slot)
        if count != expected:
            raise CodecError("A batch's header does not fit its table's columns.")
        if start + 4 + 16 * count > len(self._bytes):
            raise CodecError("A batch's header points outside itself.")
        return list(struct.iter_unpack("<qq", self._bytes[start + 4 : start + 4 + 16 * count]))

    def has(self, slot: int) -> bool:
        return self._place(slot) is not None


@functools.cache
def _layouts(table: Table) -> dict[int, tuple[pa.Schema, int]]:
    """The layouts of a table's batches in an Arrow header, by how many nodes they have."""
    layouts = {}
    for schema in schemas_of(table):
        nodes = buffers = 0
        for field in schema:
            is_list = pa.types.is_list(field.type)
            nodes += 2 if is_list else 1
            buffers += 4 if is_list else 3 if pa.types.is_string(field.type) else 2
        layouts[nodes] = schema, buffers
    return layouts


def _read_header(table: Table, payload: bytes | memoryview) -> _MessageHeader:
    """Read an Arrow message's header; CodecError if it is not of a batch of this table."""
    if not 8 <= len(payload) <= MAX_PAYLOAD_BYTES:
        raise CodecError(f"A batch of {len(payload)} bytes; 8 to {MAX_PAYLOAD_BYTES} are read.")
    continuation, metadata_length = struct.unpack_from("<Ii", payload)
    if continuation != _CONTINUATION or not 0 < metadata_length <= len(payload) - 8:
        raise CodecError("The bytes do not begin as an Arrow message.")
    view = memoryview(payload)
    metadata, body = view[8 : 8 + metadata_length], view[8 + metadata_length :]
    message = _Flatbuffer(metadata, _root(metadata))
    batch = message.table(2)
    if message.number(1, "<B") != _RECORD_BATCH or batch is None:
        raise CodecError("The message is no record batch.")
    if message.number(3, "<q") != len(body):
        raise CodecError("The batch's body is shorter or longer than it declares.")
    return _header_of(table, batch, body)


def _root(metadata: memoryview) -> int:
    if len(metadata) < 4:
        raise CodecError("The bytes do not begin as an Arrow message.")
    return int(struct.unpack_from("<I", metadata)[0])


def _header_of(table: Table, batch: _Flatbuffer, body: memoryview) -> _MessageHeader:
    node_count = batch.count(1)
    if node_count not in _layouts(table):
        raise CodecError("A batch's header does not fit its table's columns.")
    schema, buffer_count = _layouts(table)[node_count]
    nodes = batch.pairs(1, node_count)
    if any(length < 0 or nulls < 0 for length, nulls in nodes) or batch.has(4):
        raise CodecError("A batch's header does not fit its table's columns.")
    packing = batch.table(3)
    return _MessageHeader(
        row_count=batch.number(0, "<q"),
        schema=schema,
        buffers=batch.pairs(2, buffer_count),
        packing=None if packing is None else packing.number(0, "<b"),
        body=body,
    )


def _refuse_large(header: _MessageHeader) -> None:
    """Raise CodecError if an Arrow header declares more rows or bytes than are read.

    lz4 gives 255 bytes for one at most, so a log of such batches is measured by its file; zstd
    gives ten thousand and more.
    """
    if not 0 <= header.row_count <= MAX_ROWS:
        raise CodecError(f"A batch declares {header.row_count} rows; 0 to {MAX_ROWS} are read.")
    measure = _plain_size if header.packing is None else _inflated_size
    total = sum(measure(header, offset, length) for offset, length in header.buffers)
    if total > MAX_INFLATED_BYTES:
        raise CodecError(
            f"A batch inflates to {total} bytes; at most {MAX_INFLATED_BYTES} are read."
        )
    if header.packing not in (None, _LZ4):
        raise CodecError("A batch is not packed with lz4, and nothing bounds what it inflates to.")


def _plain_size(header: _MessageHeader, offset: int, length: int) -> int:
    if offset < 0 or length < 0 or offset + length > len(header.body):
        raise CodecError("A batch's buffer lies outside its body.")
    return length


def _inflated_size(header: _MessageHeader, offset: int, length: int) -> int:
    """The size that a compressed buffer declares before it; -1 means "stored as it is"."""
    if _plain_size(header, offset, length) == 0:
        return 0
    if length < 8:
        raise CodecError("A batch's compressed buffer is too short for its length.")
    (declared,) = struct.unpack_from("<q", header.body, offset)
    if declared < -1:
        raise CodecError("A batch's compressed buffer declares a negative length.")
    return length - 8 if declared == -1 else int(declared)
