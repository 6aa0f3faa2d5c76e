"""Rows to bytes and back: one batch is one encapsulated Arrow IPC record-batch message.

The same bytes go to the log and over the wire. The schema message is not repeated: `rows.SCHEMAS`
fixes it for a format. Batches of an earlier format are known by their fewer columns, and are given
as this one's, with nulls. Bytes from outside are `check`ed before anything reads a value from them.
"""

from __future__ import annotations

from ampwatch.codec.batches import (
    MAX_INFLATED_BYTES,
    MAX_PAYLOAD_BYTES,
    MAX_ROWS,
    Batch,
    check,
    decode,
    decode_stream,
    encode,
    encode_batch,
    refuse_missing_keys,
    stream_head,
)
from ampwatch.codec.columns import Values, column, numpy_type, scalar

__all__ = [
    "MAX_INFLATED_BYTES",
    "MAX_PAYLOAD_BYTES",
    "MAX_ROWS",
    "Batch",
    "Values",
    "check",
    "column",
    "decode",
    "decode_stream",
    "encode",
    "encode_batch",
    "numpy_type",
    "refuse_missing_keys",
    "scalar",
    "stream_head",
]  # fmt: skip
