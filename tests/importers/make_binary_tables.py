"""Records of TensorBoard and W&B, built by hand: a writer's usual ones and odd ones among them."""

from __future__ import annotations

import json
import random
import struct

import numpy as np

from ampwatch.importers.tables.tensorboard_file import masked_checksums


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def message(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def plain(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


def float32(number: int, value: float) -> bytes:
    return varint(number << 3 | 5) + struct.pack("<f", value)


def framed(record: bytes) -> bytes:
    length = struct.pack("<Q", len(record))

    def sum_of(data: bytes) -> bytes:
        return masked_checksums(data, np.array([0]), np.array([len(data)])).astype("<u4").tobytes()

    return length + sum_of(length) + record + sum_of(record)


def scalar(tag: str, value: float) -> bytes:
    return message(1, message(1, tag.encode()) + float32(2, value))


def tensor(tag: str, value: float, kind: int) -> bytes:
    form = {1: "<f", 2: "<d", 3: "<i", 9: "<q"}[kind]
    content = struct.pack(form, int(value) if kind in (3, 9) else value)
    held = plain(1, kind) + message(2, b"") + message(4, content)
    about = message(9, message(1, message(1, b"scalars")))
    return message(1, message(1, tag.encode()) + about + message(8, held))


def event(step: int, *values: bytes, time_s: float = 1.7e9) -> bytes:
    at = plain(2, step) if step else b""
    return b"\x09" + struct.pack("<d", time_s) + at + message(5, b"".join(values))


def events_of(chance: random.Random, count: int) -> bytes:
    """Two tags as usual; some records with several values, other types, huge steps or no step."""
    data = framed(b"\x09" + bytes(8) + message(3, b"brain.Event:2"))
    for n in range(count):
        value, step = chance.gauss(0, 1), n // 2
        record = event(step, scalar(("loss", "train/lr")[n % 2], value), time_s=n)
        kind = chance.random()
        if kind < 0.05:
            record = event(step, scalar("loss", value), scalar("grad_norm", math_odd(chance)))
        elif kind < 0.1:
            record = event(step, tensor("loss", value, chance.choice([1, 2, 3, 9])))
        elif kind < 0.13:
            record = event(chance.choice([-5, 2**40, 2**62]), scalar("loss", value))
        elif kind < 0.15:
            record = event(step, message(1, message(1, b"image") + message(4, b"\x01\x02")))
        elif kind < 0.17:
            record = bytes(chance.randrange(256) for _ in range(len(record)))
        data += framed(record)
    return data


def math_odd(chance: random.Random) -> float:
    return chance.choice([float("nan"), float("inf"), -0.0, 1e-40])


def item(name: str, value: object) -> bytes:
    parts = name.split("/")
    keys = message(1, name.encode()) if len(parts) == 1 else b""
    keys += b"".join(message(2, part.encode()) for part in parts if len(parts) > 1)
    return message(1, keys + message(16, json.dumps(value).encode()))


def history_of(chance: random.Random, count: int) -> list[bytes]:
    """History records as W&B writes them, and some with other values."""
    odd = [
        None,
        True,
        "nan",
        "NaN",
        "text",
        {"a": 1},
        [1],
        float("nan"),
        float("-inf"),
        10**25,
        -0.0,
    ]
    records = []
    for n in range(count):
        row: dict[str, object] = {"train/loss": chance.gauss(0, 1), "lr": 0.1, "_step": n}
        if chance.random() < 0.2:
            row["val/loss"] = chance.random()
        if chance.random() < 0.1:
            row[chance.choice(["lr", "grad_norm", "é"])] = chance.choice(odd)
        if chance.random() < 0.02:
            row["long"] = "x" * 300
        record = b"".join(item(name, value) for name, value in row.items())
        if chance.random() < 0.05:
            record += message(2, plain(1, n))
        records.append(record)
    return records
