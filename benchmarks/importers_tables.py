"""Tables of many rows for `importers.py`, as each tool writes them; the same each time."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from ampwatch.importers.tables.tensorboard_file import masked_checksums

_PART = 20_000
_BLOCK = 32_768  # of W&B's file


def courses(rows: int) -> dict[str, list[float]]:
    """A healthy run: a loss that falls, a norm that wavers, a scale that stands."""
    noise, step = np.random.default_rng(0), np.arange(rows)
    return {
        "step": step.tolist(),
        "loss": np.round(2 + 8 * np.exp(-step / 3e4) + 0.05 * noise.normal(size=rows), 6).tolist(),
        "lr": [1e-3] * rows,
        "grad_norm": np.round(noise.lognormal(0, 0.2, rows), 5).tolist(),
        "loss_scale": [65536.0] * rows,
    }


def _delimited(path: Path, columns: dict[str, list[float]]) -> None:
    with path.open("w") as file:
        file.write(",".join(columns) + "\n")
        rows = zip(*columns.values(), strict=True)
        file.writelines(",".join(map(str, row)) + "\n" for row in rows)


def three_columns(path: Path, rows: int) -> None:
    found = courses(rows)
    _delimited(path, {name: found[name] for name in ("step", "loss", "lr")})


def twenty_columns(path: Path, rows: int) -> None:
    found = courses(rows)
    more = {f"metric_{n}": [round(value * n, 4) for value in found["loss"]] for n in range(14)}
    _delimited(path, {**found, "skipped": [False] * rows, **more})


def json_lines(path: Path, rows: int) -> None:
    found = courses(rows)
    names = [name.replace("loss", "train/loss") for name in found]
    with path.open("w") as file:
        file.writelines(
            json.dumps({**dict(zip(names, row, strict=True)), "note": "x"}) + "\n"
            for row in zip(*found.values(), strict=True)
        )


def parquet_file(path: Path, rows: int) -> None:
    parquet.write_table(pa.table(courses(rows)), path)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _message(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _events(rows: int) -> Iterator[bytes]:
    yield b"\x09" + bytes(8) + _message(3, b"brain.Event:2")
    found = courses(rows)
    heads = {name: _message(1, f"train/{name}".encode()) for name in ("loss", "lr", "grad_norm")}
    for step in range(rows):
        time, at = struct.pack("<d", 1.7e9 + step), b"\x10" + _varint(step) if step else b""
        for name, head in heads.items():
            value = head + b"\x15" + struct.pack("<f", found[name][step])
            yield b"\x09" + time + at + _message(5, _message(1, value))


def tensorboard(path: Path, rows: int) -> None:
    """A record a scalar, three a step, as torch's SummaryWriter has them."""
    events = _events(rows)
    with path.open("wb") as file:
        while part := list(islice(events, _PART)):
            lengths = np.array([len(record) for record in part])
            heads = [struct.pack("<Q", length) for length in lengths.tolist()]
            of_heads = masked_checksums(b"".join(heads), 8 * np.arange(len(part)), 0 * lengths + 8)
            whole = b"".join(part)
            of_data = masked_checksums(whole, np.cumsum(lengths) - lengths, lengths)
            for head, one, record, other in zip(
                heads, of_heads.tolist(), part, of_data.tolist(), strict=True
            ):
                file.write(head + struct.pack("<I", one) + record + struct.pack("<I", other))


def _item(name: str, value: float) -> bytes:
    return _message(1, _message(1, name.encode()) + _message(16, json.dumps(value).encode()))


def _history(rows: int) -> Iterator[bytes]:
    found = courses(rows)
    for step in range(rows):
        row = {"_runtime": step / 8, "_timestamp": 1.7e9 + step / 8, "_step": step}
        row |= {f"train/{name}": found[name][step] for name in ("loss", "lr", "grad_norm")}
        yield _message(2, b"".join(_item(name, value) for name, value in row.items()))


def wandb(path: Path, rows: int) -> None:
    """LevelDB's log: blocks of 32 kB, each record in one piece or in several."""
    with path.open("wb") as file:
        file.write(b":W&B" + bytes(3))
        place = 7
        for record in _history(rows):
            rest, is_first = record, True
            while rest or is_first:
                if _BLOCK - place < 7:
                    file.write(bytes(_BLOCK - place))
                    place = 0
                piece, rest = rest[: _BLOCK - place - 7], rest[_BLOCK - place - 7 :]
                kind = bytes([(1 if is_first else 4) if not rest else 2 if is_first else 3])
                file.write(struct.pack("<IH", zlib.crc32(kind + piece), len(piece)) + kind + piece)
                place, is_first = (place + 7 + len(piece)) % _BLOCK, False


TABLES: dict[str, tuple[str, Callable[[Path, int], None]]] = {
    "csv, 3 columns": ("a.csv", three_columns),
    "csv, 20 columns": ("a.csv", twenty_columns),
    "json lines": ("a.jsonl", json_lines),
    "parquet": ("a.parquet", parquet_file),
    "tensorboard": ("events.out.tfevents.1.a", tensorboard),
    "wandb": ("run-a.wandb", wandb),
}
