"""Rows become bytes and come back equal; bytes from outside never do harm."""

from __future__ import annotations

import math
import struct
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ampwatch.codec import (
    MAX_ROWS,
    Batch,
    check,
    column,
    decode,
    decode_stream,
    encode,
    encode_batch,
    stream_head,
)
from ampwatch.errors import CodecError
from ampwatch.rows import SCHEMAS, TABLES, Table


def values_for(kind: pa.DataType) -> st.SearchStrategy:
    if pa.types.is_list(kind):
        return st.lists(values_for(kind.value_type), max_size=4)
    if pa.types.is_string(kind):
        return st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
    if pa.types.is_boolean(kind):
        return st.booleans()
    if pa.types.is_floating(kind):
        return st.floats(width=32, allow_nan=False)
    bits = kind.bit_width - 1
    return st.integers(-(1 << bits), (1 << bits) - 1)


@st.composite
def rows_of(draw: st.DrawFn) -> tuple[Table, dict[str, list], int]:
    table = draw(st.sampled_from(TABLES))
    count = draw(st.integers(1, 30))
    columns = {}
    for field in SCHEMAS[table]:
        if draw(st.booleans()) or field.name in ("step", "time_ns", "layer", "name", "kind"):
            optional = st.none() if field.name in ("loss", "detail", "value") else st.nothing()
            one = st.one_of(values_for(field.type), optional)
            columns[field.name] = draw(st.lists(one, min_size=count, max_size=count))
    return table, columns, count


def samples() -> list[Batch]:
    count = 400
    small = encode(Table.STEPS, {"step": [1], "time_ns": [2], "loss": [0.5], "lrs": [[0.1]]})
    layers = encode(
        Table.LAYERS,
        {
            "step": np.arange(count),
            "layer": np.arange(count),
            "grad_norm": np.linspace(0, 1, count),
            "exponents": np.ones((count, 64)),
        },
    )
    events = encode(
        Table.EVENTS,
        {
            "step": [1, None],
            "time_ns": [1, 2],
            "kind": ["started", "ended"],
            "detail": ["{}", None],
        },
    )
    return [small, layers, events]


@settings(max_examples=settings().max_examples // 2)
@given(rows_of())
def test_what_is_encoded_is_what_pyarrow_makes_of_the_same_lists(sample) -> None:
    table, columns, count = sample
    expected = pa.record_batch(
        [pa.array(columns.get(f.name, [None] * count), f.type) for f in SCHEMAS[table]],
        schema=SCHEMAS[table],
    )
    batch = encode(table, columns)
    assert batch.row_count == count
    assert decode(table, batch.payload).equals(expected)
    assert check(table, batch.payload).equals(expected)


@pytest.mark.parametrize("batch", samples(), ids=lambda batch: batch.table.value)
def test_any_arrow_tool_reads_a_stream_made_of_the_head_and_payloads(batch: Batch) -> None:
    stream = stream_head(batch.table) + batch.payload + batch.payload
    found = pa.ipc.open_stream(stream).read_all()
    assert found.num_rows == 2 * batch.row_count
    assert found.schema.equals(SCHEMAS[batch.table], check_metadata=True)
    assert (
        found.slice(0, batch.row_count).to_batches()[0].equals(decode(batch.table, batch.payload))
    )


def test_a_batch_given_in_arrows_form_has_the_same_bytes() -> None:
    for batch in samples():
        assert encode_batch(batch.table, decode(batch.table, batch.payload)) == batch


def test_only_the_columns_asked_for_are_decoded() -> None:
    batch = encode(
        Table.STEPS, {"step": list(range(900)), "time_ns": [1] * 900, "lrs": [[1.0]] * 900}
    )
    [found] = decode_stream(Table.STEPS, batch.payload, ["lrs", "step"])
    assert found.schema.names == ["step", "lrs"]
    assert found.column("step").to_pylist() == list(range(900))


def test_absent_is_null_and_nan_and_inf_are_values() -> None:
    columns = {"step": [1, 2, 3], "time_ns": [1, 2, 3], "loss": [math.nan, None, math.inf]}
    found = decode(Table.STEPS, encode(Table.STEPS, columns).payload)
    first, second, third = found.column("loss").to_pylist()
    assert math.isnan(first)
    assert second is None
    assert third == math.inf
    assert found.column("scale").null_count == 3


def test_inf_of_both_signs_beside_none_stays_apart_from_it() -> None:
    losses = [math.inf, -math.inf, None, 1.0]
    batch = encode(Table.STEPS, {"step": [1] * 4, "time_ns": [1] * 4, "loss": losses})
    assert decode(Table.STEPS, batch.payload).column("loss").to_pylist() == losses


def test_numpy_columns_and_lists_make_the_same_bytes() -> None:
    lists = {
        "step": [4, 5],
        "time_ns": [1, 2],
        "found_inf": [True, False],
        "param_norm": [0.5, 1.5],
    }
    arrays = {name: np.array(values) for name, values in lists.items()}
    assert encode(Table.STEPS, lists) == encode(Table.STEPS, arrays)


def test_rows_of_a_list_column_may_be_arrays() -> None:
    rows = [np.arange(64), None, np.ones(64)]
    columns = {"step": [1, 2, 3], "layer": [0, 0, 0], "exponents": rows}
    found = decode(Table.LAYERS, encode(Table.LAYERS, columns).payload).column("exponents")
    assert found.to_pylist() == [list(range(64)), None, [1] * 64]


def test_a_number_beyond_float32_is_inf_and_warns_nobody() -> None:
    batch = encode(Table.STEPS, {"step": [1], "time_ns": [1], "param_norm": np.array([1e300])})
    assert decode(Table.STEPS, batch.payload).column("param_norm").to_pylist() == [math.inf]


def test_half_a_surrogate_pair_in_a_text_is_replaced() -> None:
    batch = encode(Table.EVENTS, {"time_ns": [1], "kind": ["misuse"], "detail": ["a\ud800b"]})
    assert check(Table.EVENTS, batch.payload).column("detail").to_pylist() == ["a?b"]


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"step": [1], "colour": [2]}, "no column 'colour'"),
        ({"step": [1], "loss": [1.0, 2.0]}, "differ in length"),
        ({}, "differ in length"),
        ({"step": ["one"]}, "'step' cannot hold"),
        ({"step": [1], "micro_batches": [1 << 40]}, "'micro_batches' cannot hold"),
        ({"step": np.zeros(MAX_ROWS + 1)}, "smaller batches"),
    ],
)
def test_what_cannot_be_encoded_is_refused_with_a_sentence(columns, sentence: str) -> None:
    with pytest.raises(CodecError, match=sentence):
        encode(Table.STEPS, columns)


def test_rows_that_are_mostly_null_do_not_bloat() -> None:
    count = 600
    columns = {"step": [1] * count, "layer": list(range(count)), "grad_finite": [True] * count}
    columns["grad_norm"] = np.random.default_rng(0).random(count)
    # 40 bytes of a batch's head stand for each column that is null throughout.
    assert len(encode(Table.LAYERS, columns).payload) / count < 17


def test_a_row_without_its_step_is_refused_from_outside() -> None:
    batch = encode(Table.LAYERS, {"step": [1, None], "layer": [0, 0]})
    with pytest.raises(CodecError, match="without step"):
        check(Table.LAYERS, batch.payload)


def test_a_message_of_another_schema_is_refused() -> None:
    events = encode(Table.EVENTS, {"time_ns": [1], "kind": ["ended"]})
    with pytest.raises(CodecError, match="does not fit"):
        check(Table.STEPS, events.payload)
    with pytest.raises(CodecError, match="no record batch"):
        check(Table.STEPS, stream_head(Table.STEPS))


def bomb(length: int, packing: str = "zstd") -> bytes:
    """An events batch whose texts shrink to almost nothing."""
    text = pa.Array.from_buffers(
        pa.string(),
        1,
        [None, pa.py_buffer(np.array([0, length], np.int32)), pa.py_buffer(bytes(length))],
    )
    plain = decode(Table.EVENTS, encode(Table.EVENTS, {"time_ns": [1], "kind": [""]}).payload)
    batch = pa.record_batch([*plain.columns[:3], text], schema=SCHEMAS[Table.EVENTS])
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=packing)
    pa.ipc.new_stream(sink, batch.schema, options=options).write_batch(batch)
    return sink.getvalue().to_pybytes()[len(stream_head(Table.EVENTS)) :]


def test_a_small_frame_that_inflates_to_much_is_refused_before_it_is_inflated() -> None:
    payload = bomb(400_000_000)
    assert len(payload) < 40_000
    allocated = pa.total_allocated_bytes()
    peak = pa.default_memory_pool().max_memory()
    with pytest.raises(CodecError, match="inflates to"):
        check(Table.EVENTS, payload)
    assert pa.total_allocated_bytes() == allocated
    assert pa.default_memory_pool().max_memory() == peak


def test_a_declared_size_that_lies_is_refused() -> None:
    payload = bytearray(bomb(1_000_000, "lz4"))
    at = payload.rindex(struct.pack("<q", 1_000_000))
    for lie in (1, 999_999, 1_000_001, -2, 1 << 62):
        payload[at : at + 8] = struct.pack("<q", lie)
        with pytest.raises(CodecError):
            check(Table.EVENTS, bytes(payload))


def test_a_batch_that_no_writer_of_ours_packed_so_is_refused() -> None:
    """A log of lz4 is measured by its file; zstd gives ten thousand bytes and more for one."""
    assert check(Table.EVENTS, bomb(1_000_000, "lz4")).num_rows == 1
    with pytest.raises(CodecError, match="not packed with lz4"):
        check(Table.EVENTS, bomb(1_000_000, "zstd"))


def test_a_text_offset_beyond_its_buffer_is_refused_before_it_is_read() -> None:
    payload = bytearray(encode(Table.EVENTS, {"time_ns": [1], "kind": ["started"]}).payload)
    at = payload.rindex(struct.pack("<ii", 0, len("started")))  # the header has it too
    payload[at + 4 : at + 8] = struct.pack("<i", 1 << 30)
    with pytest.raises(CodecError):
        check(Table.EVENTS, bytes(payload))


def harmless(table: Table, payload: bytes) -> None:
    """Whatever the bytes: CodecError, or rows whose every value can be read."""
    try:
        batch = check(table, payload)
    except CodecError:
        return
    assert len(batch.to_pylist()) == batch.num_rows


@given(st.data())
@settings(max_examples=2 * settings().max_examples)
def test_flipped_bits_and_cuts_do_no_harm(data: st.DataObject) -> None:
    batch = data.draw(st.sampled_from(samples()))
    payload = bytearray(batch.payload)
    # The header is where a lie is dangerous: half of the flips are put there.
    reach = data.draw(st.sampled_from([400, len(payload)]))
    for _ in range(data.draw(st.integers(1, 4))):
        bit = data.draw(st.integers(0, 8 * min(reach, len(payload)) - 1))
        payload[bit // 8] ^= 1 << bit % 8
    if data.draw(st.booleans()):
        payload = payload[: data.draw(st.integers(0, len(payload)))]
    harmless(batch.table, bytes(payload))


@given(st.binary(max_size=600), st.sampled_from(TABLES))
def test_any_bytes_do_no_harm(noise: bytes, table: Table) -> None:
    harmless(table, noise)
    harmless(table, b"\xff\xff\xff\xff" + noise)


def test_encoding_and_checking_load_neither_pandas_nor_datasets() -> None:
    script = """
import sys
from ampwatch.codec import check, encode
from ampwatch.rows import Table
columns = {"step": [1, 2], "time_ns": [1, None], "loss": [None, 1.0], "lrs": [[1.0], None]}
batch = encode(Table.STEPS, columns | {"time_ns": [1, 2]})
check(batch.table, batch.payload)
encode(Table.EVENTS, {"time_ns": [1], "kind": ["ended"], "detail": [None]})
print([name for name in ("pandas", "pyarrow.dataset", "pyarrow.parquet") if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_column_built_by_hand_is_valid_arrow() -> None:
    for kind, values in [
        (pa.string(), ["a", None, "ü"]),
        (pa.list_(pa.float64()), [[1.0], [], None]),
        (pa.bool_(), [True, None, False] * 5),
        (pa.int8(), [1, None, -3]),
    ]:
        found = column(values, kind)
        found.validate(full=True)
        assert found.to_pylist() == values
