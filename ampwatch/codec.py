"""Rows to bytes and back: one batch is one encapsulated Arrow IPC record-batch message.

The same bytes go to the log and over the wire. The schema message is not repeated: `rows.SCHEMAS`
fixes it for a format. Bytes from outside are `check`ed before anything reads a value from them.

Columns are built from numpy buffers, never by `pyarrow.array`: that imports pandas where it is
installed, a quarter of a second and 40 MB in the training process.
"""

from __future__ import annotations

import functools
import itertools
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc

from ampwatch.errors import CodecError
from ampwatch.rows import SCHEMAS, Table

MAX_ROWS = 1 << 18
MAX_PAYLOAD_BYTES = 16 << 20
MAX_INFLATED_BYTES = 128 << 20

# Below this size lz4 makes a batch longer (each of some 60 buffers gets a length and a frame);
# above it, all-null and repeating columns shrink to nothing for about 15 µs. zstd takes 10 %
# off that for 20 times the time.
COMPRESS_FROM_BYTES = 6_000

# The columns no row can lack: without them a row has no place.
REQUIRED: Mapping[Table, tuple[str, ...]] = {
    Table.STEPS: ("step", "time_ns"),
    Table.LAYERS: ("step", "layer"),
    Table.LAYER_INFO: ("step", "layer", "name"),
    Table.DEVICES: ("time_ns",),
    Table.EVENTS: ("time_ns", "kind"),
    Table.EXTRAS: ("step", "name"),
}

Values = Sequence[Any] | np.ndarray


@dataclass(frozen=True, slots=True)
class Batch:
    """Some rows of one table, as the bytes that are logged and sent."""

    table: Table
    row_count: int
    payload: bytes


def encode(table: Table, columns: Mapping[str, Values]) -> Batch:
    """Encode rows given by column; a column left out is null in every row, `None` is null.

    NaN and inf are values. Raises CodecError on an unknown column, uneven lengths, a value that
    the column's type cannot hold, and more than `MAX_ROWS` rows or `MAX_PAYLOAD_BYTES`.
    """
    schema = SCHEMAS[table]
    row_count = _count_rows(table, columns)
    with np.errstate(all="ignore"):  # a float64 beyond float32 is inf, as torch's own cast does
        arrays = [
            _column_of(name, columns[name], kind) if name in columns else _nulls(kind, row_count)
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
    """Encode rows that are in Arrow's form already, with the table's schema."""
    return Batch(table, batch.num_rows, _serialize(table, batch))


def decode(table: Table, payload: bytes | memoryview) -> pa.RecordBatch:
    """Decode bytes that are known to be as they were written (our log's, checksum verified)."""
    try:
        return pa.ipc.read_record_batch(pa.py_buffer(payload), SCHEMAS[table])
    except (pa.ArrowException, OSError) as problem:
        raise CodecError(f"A batch of {table.value} cannot be decoded: {problem}") from problem


def decode_stream(
    table: Table, payloads: bytes | pa.Buffer, names: Sequence[str] | None = None
) -> list[pa.RecordBatch]:
    """Decode payloads that follow each other; only the columns `names`, in the schema's order.

    The bytes are known to be as they were written. Columns not asked for are not inflated.
    """
    schema = SCHEMAS[table]
    wanted = [] if names is None else sorted({schema.get_field_index(name) for name in names})
    options = pa.ipc.IpcReadOptions(included_fields=wanted, use_threads=False)
    source = pa.BufferReader(b"".join((stream_head(table), payloads)))
    try:
        return list(pa.ipc.open_stream(source, options=options))
    except (pa.ArrowException, OSError) as problem:
        raise CodecError(f"Batches of {table.value} cannot be decoded: {problem}") from problem


def check(table: Table, payload: bytes) -> pa.RecordBatch:
    """Decode bytes from outside, or raise CodecError; every size is capped before it is used."""
    header = _read_header(table, payload)
    _cap(header)
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(payload), SCHEMAS[table])
        # A string offset beyond its buffer is a segmentation fault for whoever reads the value.
        batch.validate(full=True)
    except (pa.ArrowException, OSError, MemoryError) as problem:
        raise CodecError(f"A batch of {table.value} is damaged: {problem}") from problem
    for name in REQUIRED[table]:
        if batch.column(name).null_count:
            raise CodecError(f"A batch of {table.value} has rows without {name}.")
    return batch


@functools.cache
def stream_head(table: Table) -> bytes:
    """The schema message that a stream of this table's batches begins with."""
    return SCHEMAS[table].serialize().to_pybytes()  # type: ignore[no-any-return]


def column(values: Values, kind: pa.DataType) -> pa.Array:
    """An Arrow array from a list (`None` is null) or a numpy array, without loading pandas."""
    if pa.types.is_list(kind):
        return _list_column(values, kind)
    if pa.types.is_string(kind):
        return _text_column(values, kind)
    return _fixed_column(values, kind)


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


def _nulls(kind: pa.DataType, row_count: int) -> pa.Array:
    small = row_count <= 1024  # large ones are not worth their memory
    return _kept_nulls(kind, row_count) if small else pa.nulls(row_count, kind)


@functools.lru_cache(maxsize=64)
def _kept_nulls(kind: pa.DataType, row_count: int) -> pa.Array:
    return pa.nulls(row_count, kind)


def _column_of(name: str, values: Values, kind: pa.DataType) -> pa.Array:
    try:
        return column(values, kind)
    except (TypeError, ValueError, OverflowError) as problem:
        raise CodecError(f"The column {name!r} cannot hold its values: {problem}") from None


def _bitmap(flags: np.ndarray) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags, bitorder="little"))


def _split_nulls(values: Values, filler: Any) -> tuple[Values, pa.Buffer | None, int]:
    """The values with `filler` for each None, the validity bitmap, and the count of nulls."""
    if isinstance(values, np.ndarray) and values.dtype != object:
        return values, None, 0
    if not _has_none(values):
        return values, None, 0
    present = [value is not None for value in values]
    filled = [filler if value is None else value for value in values]
    return filled, _bitmap(np.array(present)), len(present) - sum(present)


def _has_none(values: Values) -> bool:
    try:
        return None in values  # twice as fast as asking each
    except ValueError:  # a list of arrays: comparing one gives no single answer
        return any(value is None for value in values)


@functools.cache
def numpy_type(kind: pa.DataType) -> np.dtype[Any]:
    """The numpy type of a fixed-width Arrow type (asking Arrow for it would load pandas)."""
    names = {"float": "f4", "double": "f8", "bool": "?"}
    return np.dtype(names.get(str(kind), str(kind)))


def _fixed_column(values: Values, kind: pa.DataType) -> pa.Array:
    filled, validity, null_count = _split_nulls(values, 0)
    data = np.ascontiguousarray(filled, dtype=numpy_type(kind))
    buffer = _bitmap(data) if pa.types.is_boolean(kind) else pa.py_buffer(data)
    return pa.Array.from_buffers(kind, len(data), [validity, buffer], null_count)


def _text_column(values: Values, kind: pa.DataType) -> pa.Array:
    filled, validity, null_count = _split_nulls(values, "")
    encoded = [str(value).encode("utf-8", "replace") for value in filled]
    offsets = _offsets(list(map(len, encoded)))
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(kind, len(encoded), buffers, null_count)


def _list_column(values: Values, kind: pa.DataType) -> pa.Array:
    filled, validity, null_count = _split_nulls(values, ())
    offsets = _offsets(list(map(len, filled)))
    if isinstance(filled, np.ndarray) and filled.ndim == 2:
        flat: Values = filled.reshape(-1)
    else:
        flat = list(itertools.chain.from_iterable(filled))
    child = _fixed_column(flat, kind.value_type)
    buffers = [validity, pa.py_buffer(offsets)]
    return pa.Array.from_buffers(kind, len(filled), buffers, null_count, children=[child])


def _offsets(lengths: list[int]) -> np.ndarray:
    offsets = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


# --- reading what came from outside --------------------------------------------------------------
#
# Arrow checks a message's structure, but inflates whatever it declares: a frame of 12 kB became
# 400 MB. So its header (a flatbuffer: Message > RecordBatch) is read here first, by hand.

_CONTINUATION = 0xFFFFFFFF
_RECORD_BATCH = 3


@dataclass(frozen=True, slots=True)
class _Header:
    """What a message declares about itself."""

    row_count: int
    buffers: list[tuple[int, int]]
    compressed: bool
    body: memoryview


class _Flatbuffer:
    """A table of a flatbuffer; every read is checked against the bytes there are."""

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

    def pairs(self, slot: int, expected: int) -> list[tuple[int, int]]:
        """A vector of structs of two int64, of which there must be `expected`."""
        place = self._place(slot)
        start = 0 if place is None else place + self._read("<I", place)
        count = 0 if place is None else self._read("<I", start)
        if count != expected:
            raise CodecError("A batch's header does not fit its table's columns.")
        if start + 4 + 16 * count > len(self._bytes):
            raise CodecError("A batch's header points outside itself.")
        return list(struct.iter_unpack("<qq", self._bytes[start + 4 : start + 4 + 16 * count]))

    def has(self, slot: int) -> bool:
        return self._place(slot) is not None


@functools.cache
def _layout(table: Table) -> tuple[int, int]:
    """How many nodes and buffers a batch of the table has."""
    nodes = buffers = 0
    for field in SCHEMAS[table]:
        is_list = pa.types.is_list(field.type)
        nodes += 2 if is_list else 1
        buffers += 4 if is_list else 3 if pa.types.is_string(field.type) else 2
    return nodes, buffers


def _read_header(table: Table, payload: bytes) -> _Header:
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
    return _read_batch(table, batch, body)


def _root(metadata: memoryview) -> int:
    if len(metadata) < 4:
        raise CodecError("The bytes do not begin as an Arrow message.")
    return int(struct.unpack_from("<I", metadata)[0])


def _read_batch(table: Table, batch: _Flatbuffer, body: memoryview) -> _Header:
    node_count, buffer_count = _layout(table)
    nodes = batch.pairs(1, node_count)
    if any(length < 0 or nulls < 0 for length, nulls in nodes) or batch.has(4):
        raise CodecError("A batch's header does not fit its table's columns.")
    return _Header(
        row_count=batch.number(0, "<q"),
        buffers=batch.pairs(2, buffer_count),
        compressed=batch.has(3),
        body=body,
    )


def _cap(header: _Header) -> None:
    if not 0 <= header.row_count <= MAX_ROWS:
        raise CodecError(f"A batch declares {header.row_count} rows; 0 to {MAX_ROWS} are read.")
    measure: Callable[[_Header, int, int], int] = _inflated if header.compressed else _plain
    total = sum(measure(header, offset, length) for offset, length in header.buffers)
    if total > MAX_INFLATED_BYTES:
        raise CodecError(
            f"A batch inflates to {total} bytes; at most {MAX_INFLATED_BYTES} are read."
        )


def _plain(header: _Header, offset: int, length: int) -> int:
    if offset < 0 or length < 0 or offset + length > len(header.body):
        raise CodecError("A batch's buffer lies outside its body.")
    return length


def _inflated(header: _Header, offset: int, length: int) -> int:
    """The size a compressed buffer declares: an int64 before it, -1 for "stored as it is"."""
    if _plain(header, offset, length) == 0:
        return 0
    if length < 8:
        raise CodecError("A batch's compressed buffer is too short for its length.")
    (declared,) = struct.unpack_from("<q", header.body, offset)
    if declared < -1:
        raise CodecError("A batch's compressed buffer declares a negative length.")
    return length - 8 if declared == -1 else int(declared)
