"""Rows to bytes and back: one batch is one encapsulated Arrow IPC record-batch message.

The same bytes go to the log and over the wire. The schema message is not repeated: `rows.SCHEMAS`
fixes it for a format. Batches of an earlier format are known by their fewer columns, and are given
as this one's, with nulls. Bytes from outside are `check`ed before anything reads a value from them.
"""

from __future__ import annotations

from ampwatch.codec.batches import MAX_INFLATED_BYTES as MAX_INFLATED_BYTES
from ampwatch.codec.batches import MAX_PAYLOAD_BYTES as MAX_PAYLOAD_BYTES
from ampwatch.codec.batches import MAX_ROWS as MAX_ROWS
from ampwatch.codec.batches import Batch as Batch
from ampwatch.codec.batches import check as check
from ampwatch.codec.batches import decode as decode
from ampwatch.codec.batches import decode_stream as decode_stream
from ampwatch.codec.batches import encode as encode
from ampwatch.codec.batches import encode_batch as encode_batch
from ampwatch.codec.batches import refuse_missing_keys as refuse_missing_keys
from ampwatch.codec.batches import stream_head as stream_head
from ampwatch.codec.columns import Values as Values
from ampwatch.codec.columns import column as column
from ampwatch.codec.columns import numpy_type as numpy_type
from ampwatch.codec.columns import scalar as scalar
