"""The header of an Arrow message from outside: read and capped before Arrow sees the message.

Arrow checks a message's structure, but inflates whatever it declares: a frame of 12 kB became
400 MB. So its header (a flatbuffer: Message > RecordBatch) is read here first, by hand.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from ampwatch.errors import CodecError
from ampwatch.rows import Table, schemas_of

MAX_ROWS = 1 << 18
MAX_PAYLOAD_BYTES = 16 << 20
MAX_INFLATED_BYTES = 128 << 20

_CONTINUATION = 0xFFFFFFFF
_RECORD_BATCH = 3
_LZ4 = 0  # in Arrow's list of codecs


@dataclass(frozen=True, slots=True)
class MessageHeader:
    """What an Arrow message of a batch declares about itself."""

    row_count: int
    schema: pa.Schema  # the table's in the format that it was written in
    buffers: list[tuple[int, int]]
    compressed: bool
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
    known = {}
    for schema in schemas_of(table):
        nodes = buffers = 0
        for field in schema:
            is_list = pa.types.is_list(field.type)
            nodes += 2 if is_list else 1
            buffers += 4 if is_list else 3 if pa.types.is_string(field.type) else 2
        known[nodes] = schema, buffers
    return known


def read_header(table: Table, payload: bytes | memoryview) -> MessageHeader:
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
    return _read_batch(table, batch, body)


def split_messages(
    table: Table, payloads: memoryview
) -> Iterator[tuple[MessageHeader, memoryview]]:
    """The Arrow messages of batches that follow each other, each with its header."""
    at = 0
    while at < len(payloads):
        rest = payloads[at:]
        length = 8 + sum(_message_lengths(rest))
        yield read_header(table, rest[:length]), rest[:length]
        at += length


def _message_lengths(payload: memoryview) -> tuple[int, int]:
    """The lengths in bytes of the first Arrow message's header and body."""
    if len(payload) < 8:
        raise CodecError("The bytes do not begin as an Arrow message.")
    (metadata_length,) = struct.unpack_from("<i", payload, 4)
    metadata = payload[8 : 8 + max(0, metadata_length)]
    body_length = _Flatbuffer(metadata, _root(metadata)).number(3, "<q")
    if metadata_length < 0 or body_length < 0:
        raise CodecError("The bytes do not begin as an Arrow message.")
    return metadata_length, body_length


def refuse_other_packing(payload: bytes | memoryview) -> None:
    """Raise CodecError if an Arrow message is compressed by another codec than lz4.

    lz4 gives 255 bytes for one at most, so that a log in memory is measured by its file; zstd
    gives ten thousand and more. Cheap, for every batch of a log that is read.
    """
    view = memoryview(payload)
    if len(view) < 8:
        raise CodecError("The bytes do not begin as an Arrow message.")
    (metadata_length,) = struct.unpack_from("<i", view, 4)
    metadata = view[8 : 8 + max(0, metadata_length)]
    batch = _Flatbuffer(metadata, _root(metadata)).table(2)
    packing = batch.table(3) if batch is not None else None
    if packing is not None and packing.number(0, "<b") != _LZ4:
        raise CodecError("A batch is not packed with lz4, and nothing bounds what it inflates to.")


def _root(metadata: memoryview) -> int:
    if len(metadata) < 4:
        raise CodecError("The bytes do not begin as an Arrow message.")
    return int(struct.unpack_from("<I", metadata)[0])


def _read_batch(table: Table, batch: _Flatbuffer, body: memoryview) -> MessageHeader:
    node_count = batch.count(1)
    if node_count not in _layouts(table):
        raise CodecError("A batch's header does not fit its table's columns.")
    schema, buffer_count = _layouts(table)[node_count]
    nodes = batch.pairs(1, node_count)
    if any(length < 0 or nulls < 0 for length, nulls in nodes) or batch.has(4):
        raise CodecError("A batch's header does not fit its table's columns.")
    return MessageHeader(
        row_count=batch.number(0, "<q"),
        schema=schema,
        buffers=batch.pairs(2, buffer_count),
        compressed=batch.has(3),
        body=body,
    )


def refuse_large(header: MessageHeader) -> None:
    """Raise CodecError if an Arrow header declares more rows or bytes than are read."""
    if not 0 <= header.row_count <= MAX_ROWS:
        raise CodecError(f"A batch declares {header.row_count} rows; 0 to {MAX_ROWS} are read.")
    measure: Callable[[MessageHeader, int, int], int] = (
        _inflated_size if header.compressed else _plain_size
    )
    total = sum(measure(header, offset, length) for offset, length in header.buffers)
    if total > MAX_INFLATED_BYTES:
        raise CodecError(
            f"A batch inflates to {total} bytes; at most {MAX_INFLATED_BYTES} are read."
        )


def _plain_size(header: MessageHeader, offset: int, length: int) -> int:
    if offset < 0 or length < 0 or offset + length > len(header.body):
        raise CodecError("A batch's buffer lies outside its body.")
    return length


def _inflated_size(header: MessageHeader, offset: int, length: int) -> int:
    """The size that a compressed buffer declares before it; -1 means "stored as it is"."""
    if _plain_size(header, offset, length) == 0:
        return 0
    if length < 8:
        raise CodecError("A batch's compressed buffer is too short for its length.")
    (declared,) = struct.unpack_from("<q", header.body, offset)
    if declared < -1:
        raise CodecError("A batch's compressed buffer declares a negative length.")
    return length - 8 if declared == -1 else int(declared)
