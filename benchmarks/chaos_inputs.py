"""Hostile bytes from the wire, and bombs: small things that claim or become something large."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import json
import lzma
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from chaos_damage import damaged, hostile_json
from chaos_files import _base_of, _seal_base, _use, _vouch_for
from chaos_material import a_run
from chaos_peers import Peer, hostile_parts
from chaos_trials import Trial, forget_peak, kind

from ampwatch import feed, list_runs, open_run
from ampwatch.codec import check, encode
from ampwatch.errors import AmpwatchError, CodecError, FrameError
from ampwatch.feed.frames import Hello
from ampwatch.importers import import_log
from ampwatch.rows import FORMAT, SCHEMAS, TABLES, Table
from ampwatch.store import RunInfo
from ampwatch.store.layout import INDEX_FILE
from ampwatch.store.live_log import HEADER_BYTES

_A_TRIAL = 20


# --- the wire ------------------------------------------------------------------------------------


@kind("codec", a_child=400, limit_s=60.0, share=0.4, capped=True)
def codec(trial: Trial) -> None:
    """Damaged batches, hellos and descriptions: refused by what reads them first."""
    chance = trial.chance
    table = chance.choice(TABLES)
    good = _good_payload(trial, table)
    hello = Hello("ab" * 16, 0, RunInfo(id="ab" * 16, name="x").to_json(), FORMAT, "0")
    for _ in range(_A_TRIAL):
        trial.inputs += 1
        way = chance.randrange(8)
        if way < 5:
            of = table if chance.random() < 0.9 else chance.choice(TABLES)
            with contextlib.suppress(CodecError):
                check(of, damaged(good, chance)).to_pylist()
        elif way == 5:
            with contextlib.suppress(FrameError):
                Hello.from_bytes(hostile_json(chance, hello.to_bytes().decode()).encode())
        elif way == 6:
            with contextlib.suppress(FrameError):
                Hello.from_bytes(damaged(hello.to_bytes(), chance))
        else:
            with contextlib.suppress(AmpwatchError):
                RunInfo.from_json(hostile_json(chance, hello.info_json))


def _good_payload(trial: Trial, table: Table) -> bytes:
    """Some rows of a real run; compressed, where there are many."""
    rows = open_run(trial.material / "runs" / "live").logged(table, SCHEMAS[table].names, 0)
    count = trial.chance.choice([1, 5, 200])
    columns = {}
    for name in rows.column_names:
        values = rows.column(name).slice(0, count).to_pylist()
        if any(value is not None for value in values):
            columns[name] = values
    if "optimizer" in columns or table is Table.STEPS:
        columns = {
            n: v for n, v in columns.items() if n in ("step", "time_ns", "loss", "lrs", "lr")
        }
    if not columns:
        return encode(Table.STEPS, {"step": [1], "time_ns": [1]}).payload
    with contextlib.suppress(CodecError):
        return encode(table, columns).payload
    return encode(Table.STEPS, {"step": [1], "time_ns": [1]}).payload


@kind("frames", a_child=100, limit_s=60.0, share=1.0, capped=True)
def frames(trial: Trial) -> None:
    """Malformed and hostile frames over a real socket, from a peer that is known or not."""
    receiver = feed.Receiver("tcp://127.0.0.1:*", keys=feed.Security(own=None))
    peers = [Peer(receiver.endpoint, run_id * 16, insecure=True) for run_id in ("ab", "cd")]

    def answer_to(peer: Peer) -> None:
        key = feed.PeerKey(peer.run_id, 0)
        _take(receiver)
        if key in receiver.peers:
            receiver.resume(key, 0)

    try:
        hostile, honest = peers
        if trial.chance.random() < 0.8:
            hostile.meet(lambda: answer_to(hostile))
        for _ in range(_A_TRIAL):
            trial.inputs += 1
            hostile.send_parts(hostile_parts(trial, hostile))
            if trial.chance.random() < 0.3:
                _take(receiver)
        _take(receiver)
        honest.meet(lambda: answer_to(honest))
    finally:
        receiver.close()
        for peer in peers:
            peer.socket.context.destroy(0)


def _take(receiver: feed.Receiver) -> None:
    for arrival in receiver.receive(0.01):
        if isinstance(arrival, feed.RowsArrived):
            check(arrival.batch.table, arrival.batch.payload).to_pylist()


# --- bombs ---------------------------------------------------------------------------------------


@kind("bombs", a_child=1, limit_s=180.0, share=1.0, capped=True)
def bombs(trial: Trial) -> None:
    """Small files and frames that claim, or become, something large."""
    bomb = trial.chance.choice(_BOMBS)
    trial.say((bomb.__doc__ or "").rstrip("."))
    trial.inputs += 1
    bomb(trial)


def _open(trial: Trial, run: Path) -> None:
    forget_peak()
    with contextlib.suppress(AmpwatchError):
        opened = open_run(run)
        _use(opened, trial.chance)
        assert isinstance(opened.notes, tuple)
    list_runs(run.parent)


def _bomb_dictionary(trial: Trial) -> None:
    """a Parquet file of 2 kB whose texts take gigabytes"""
    run = a_run(trial.material, "compacted", trial.folder / "run")
    facts = _base_of(run)
    entry = facts["tables"][Table.EVENTS.value]
    path = run / "rank-0" / entry["file"]
    count, schema = 1500, SCHEMAS[Table.EVENTS]
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), ["x" * (1 << 20)])
    kinds = pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), ["misuse"])
    numbers = pa.array([1] * count, pa.int64())
    given = {"step": numbers, "time_ns": numbers, "kind": kinds, "detail": texts}
    table = pa.table({name: given.get(name, pa.nulls(count)) for name in schema.names})
    pq.write_table(table, path, compression="zstd", store_schema=False)
    _enter(entry, path)
    _seal_base(run, facts)
    _open(trial, run)


def _bomb_rows(trial: Trial) -> None:
    """a Parquet file of some kB with a hundred million rows"""
    run = a_run(trial.material, "compacted", trial.folder / "run")
    facts = _base_of(run)
    table = Table.EXTRAS if "extras" in facts["tables"] else Table.DEVICES
    entry = facts["tables"][table.value]
    path = run / "rank-0" / entry["file"]
    count, schema = 2_000_000, SCHEMAS[table]
    columns = [pa.nulls(count, field.type) for field in schema]
    rows = pa.table(columns, schema=schema)
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for _ in range(50):
            writer.write_table(rows)
    _enter(entry, path)
    _seal_base(run, facts)
    _open(trial, run)


def _enter(entry: dict[str, object], path: Path) -> None:
    """Make a table's entry one for this file."""
    footer = pq.read_metadata(path)
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    entry["rows"], entry["row_group_rows"] = footer.num_rows, [g.num_rows for g in groups]
    entry["chunks"] = []
    for group in groups:
        columns = [group.column(number) for number in range(group.num_columns)]
        places = {c.path_in_schema.split(".")[0]: [_start(c), c.total_compressed_size, 0]
                  for c in columns}  # fmt: skip
        entry["chunks"].append(places)  # type: ignore[attr-defined]
    _vouch_for(entry, path.read_bytes())


def _start(column: object) -> int:
    pages = (column.data_page_offset, column.dictionary_page_offset)  # type: ignore[attr-defined]
    return min(page for page in pages if page is not None)


def _bomb_sparse(trial: Trial) -> None:
    """a sparse file of 8 GB in place of one of a run's"""
    run = a_run(trial.material, trial.chance.choice(["live", "compacted"]), trial.folder / "run")
    files = [path for path in sorted(run.rglob("*")) if path.is_file() and path.name != "lock"]
    path = trial.chance.choice(files)
    trial.say(f"{path.name} grown to 8 GB, sparse")
    with path.open("r+b") as file:
        file.truncate(8 << 30)
    _open(trial, run)


def _bomb_index(trial: Trial) -> None:
    """an index whose one record claims 4 GB and four billion rows"""
    import zlib

    run = a_run(trial.material, "live", trial.folder / "run")
    path = run / "rank-0" / INDEX_FILE
    most = (1 << 32) - 1
    record = struct.pack("<QQIIIII", 0, 0, most, most, trial.chance.randrange(6), 0, 0)[:-4]
    record += struct.pack("<I", zlib.crc32(record))
    path.write_bytes(path.read_bytes()[:HEADER_BYTES] + record)
    with (run / "rank-0" / "steps.arrows").open("r+b") as file:
        file.truncate(1 << 32)
    _open(trial, run)


def _bomb_packed(trial: Trial) -> None:
    """a packed log that inflates to 100 MB"""
    chance = trial.chance
    line = chance.choice([b"\0", b"a", b" ", b"{", b"[1", b"step 1 loss 2\n", b"\n", b"a,b\n"])
    opened = chance.choice([_gz, bz2.open, _xz, _zst])
    trial.say(f"100 MB of {line!r}, {opened.__module__} {opened.__name__}")
    log = trial.folder / "train.log"
    piece = line * ((1 << 20) // len(line))
    with opened(log, "wb") as file:
        for _ in range(100):
            file.write(piece)
    with contextlib.suppress(AmpwatchError):
        open_run(import_log(log, trial.folder / "runs"))


def _gz(path: Path, mode: str) -> Any:
    return gzip.open(path, mode, 1)


def _xz(path: Path, mode: str) -> Any:
    return lzma.open(path, mode, preset=0)


def _zst(path: Path, mode: str) -> Any:
    return pa.CompressedOutputStream(str(path), "zstd")


def _bomb_batch(trial: Trial) -> None:
    """a batch of the wire whose one text inflates to 150 MB"""
    schema = SCHEMAS[Table.EVENTS]
    text = "x" * trial.chance.choice([20 << 20, 150 << 20])
    given = {"time_ns": [1], "kind": ["misuse"], "detail": [text]}
    columns = [pa.array(given.get(f.name, [None]), f.type) for f in schema]
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    codec = trial.chance.choice(["lz4", "zstd"])
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        writer.write_batch(batch)
    head = len(schema.serialize())
    payload = sink.getvalue()[head:-8].to_pybytes()
    del text, given, columns, batch, sink
    forget_peak()
    with contextlib.suppress(CodecError):
        check(Table.EVENTS, payload)


def _bomb_declared(trial: Trial) -> None:
    """a TensorBoard or W&B record that declares a length beyond all bounds"""
    length = trial.chance.choice([1 << 31, 1 << 40, (1 << 63) - 1, (1 << 64) - 1])
    head = trial.chance.choice([b"", b":W&B\xe8\xbe\x00", b"\x0a\x04"])
    log = trial.folder / trial.chance.choice(["events.out.tfevents.1", "run.wandb"])
    log.write_bytes(head + struct.pack("<QI", length, 0) + bytes(200))
    with contextlib.suppress(AmpwatchError):
        open_run(import_log(log, trial.folder / "runs"))


def _bomb_json(trial: Trial) -> None:
    """a description of 15 MB, nested or wide"""
    run = a_run(trial.material, "live", trial.folder / "run")
    facts = json.loads((run / "run.json").read_text())
    most = 15 << 20
    wide = {f"k{number}": number for number in range(most // 20)}
    deep = "[" * (most // 2) + "]" * (most // 2)
    texts = [json.dumps({**facts, "config": wide}), f'{{"format": 1, "config": {deep}}}']
    (run / "run.json").write_text(trial.chance.choice(texts))
    _open(trial, run)


def _bomb_lines(trial: Trial) -> None:
    """a log of few lines, each of them very long"""
    chance = trial.chance
    filler = chance.choice(["9", "1e", "{", '"', " ", "loss=", "a|", ",", "nan "])
    word = chance.choice(["step", "loss scale", "| epoch 001:", "[deepspeed] OVERFLOW!", "{'loss'"])
    line = word + filler * ((40 << 20) // len(filler))
    (trial.folder / "train.log").write_text("\n".join([line, line]))
    with contextlib.suppress(AmpwatchError):
        open_run(import_log(trial.folder / "train.log", trial.folder / "runs"))


_BOMBS: tuple[Callable[[Trial], None], ...] = (
    _bomb_dictionary, _bomb_rows, _bomb_sparse, _bomb_index, _bomb_packed, _bomb_batch,
    _bomb_declared, _bomb_json, _bomb_lines,
)  # fmt: skip
