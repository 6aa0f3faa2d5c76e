"""Runs made to harm who reads them: damage that no checksum tells, for checksums are made anew.

`python tests/store/hostile_runs.py --mutations 100000 --minutes 15` tries many.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import shutil
import struct
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from store_samples import event, layers, steps, write_run

from ampwatch import diagnose
from ampwatch.errors import AmpwatchError
from ampwatch.rows import Table
from ampwatch.store import RankWriter, compact, list_runs, open_run
from ampwatch.store.compacted_log import seal
from ampwatch.store.live_log import HEADER_BYTES, RECORD, RECORD_BYTES, Header, pack_header
from ampwatch.store.run_info import CopyNote, write_copies

WORDS: list[Any] = [
    None, True, False, 0, 1, -1, 2**31, 2**32 - 1, 2**53, 2**63 - 1, 2**63, 2**64, -(2**63),
    10**400, 1.5, -0.0, float("inf"), float("nan"), "", "x", "steps", "../steps", "/dev/zero",
    "\0", "\ud800", "started", [], [[]], {}, {"a": 1}, [[0, "started"]], [1, 2, 3], "9" * 400,
]  # fmt: skip
NUMBERS = [0, 1, 2, 5, 7, 255, 2**16, 2**18 + 1, 2**31, 2**32 - 1, 2**40 + 1, 2**63, 2**64 - 1]


def good_runs(folder: Path) -> list[Path]:
    """A live run with a recorder's note, a compacted one, and one that goes on after its base."""
    live = write_run(folder / "live", 6)
    write_copies(live, {0: CopyNote(((3, 5),), 21)})
    compacted, resumed = write_run(folder / "compacted", 6), write_run(folder / "resumed", 3)
    for run in (compacted, resumed):
        compact(run)
    writer = RankWriter(resumed, 0)
    for batch in (event("started", 30), steps(30, 10), layers(30), event("ended", 40)):
        writer.append(batch)
    writer.close()
    return [live, compacted, resumed]


# --- damage --------------------------------------------------------------------------------------


def bytes_anywhere(run: Path, chance: random.Random) -> None:
    """What disks and people do to files."""
    victim = chance.choice(sorted(p for p in run.rglob("*") if p.is_file() and p.name != "lock"))
    data = bytearray(victim.read_bytes())
    at, size = chance.randrange(len(data) + 1), chance.randrange(1, 64)
    kind = chance.randrange(6)
    if kind == 0:
        data[at : at + size] = bytes(size)
    elif kind == 1:
        data = data[:at]
    elif kind == 2:
        del data[at : at + size]
    elif kind == 3:
        data[at:at] = chance.randbytes(size)
    elif kind == 4:
        other = chance.choice(sorted(p for p in run.rglob("*") if p.is_file()))
        data = bytearray(other.read_bytes())
    elif data:
        data[at % len(data)] ^= 1 << chance.randrange(8)
    victim.write_bytes(data)


def index_fields(run: Path, chance: random.Random) -> None:
    """Records of the index that vouch for what is not there."""
    path = run / "rank-0" / "index"
    data = bytearray(path.read_bytes())
    if chance.random() < 0.1:
        numbers = [n for n in NUMBERS if n < 2**64]
        generation = chance.choice([n for n in NUMBERS if n < 2**32])
        data[:HEADER_BYTES] = pack_header(Header(generation, chance.choice(numbers)))
    whole = (len(data) - HEADER_BYTES) // RECORD_BYTES
    records = np.frombuffer(bytes(data[HEADER_BYTES:]), RECORD, count=whole).copy()
    for _ in range(chance.randrange(1, 4) if whole else 0):
        number = chance.randrange(whole)
        name = chance.choice(RECORD.names[:-1])
        records[name][number] = _number(chance, RECORD[name].itemsize, int(records[name][number]))
    path.write_bytes(bytes(data[:HEADER_BYTES]) + b"".join(map(_sealed, records)))


def payload_bytes(run: Path, chance: random.Random) -> None:
    """A batch that is no batch, under a record that vouches for it."""
    path = run / "rank-0" / "index"
    data = path.read_bytes()
    records = np.frombuffer(data[HEADER_BYTES:], RECORD).copy()
    if not len(records):
        return
    record = records[chance.randrange(len(records))]
    table = list(Table)[int(record["table"])]
    stream = run / "rank-0" / f"{table.value}.arrows"
    content = bytearray(stream.read_bytes())
    start, length = int(record["offset"]), int(record["length"])
    payload = bytearray(content[start : start + length])
    for _ in range(chance.randrange(1, 4)):
        _spoil(payload, chance)
    content[start : start + length] = payload
    stream.write_bytes(content)
    number = int(np.flatnonzero(records["offset"] == start)[0])
    records["crc"][records["offset"] == start] = zlib.crc32(payload)
    assert number >= 0
    path.write_bytes(data[:HEADER_BYTES] + b"".join(map(_sealed, records)))


def json_values(run: Path, chance: random.Random) -> None:
    """A value of a JSON file that is another, or of another type."""
    path = chance.choice(sorted(run.rglob("*.json")))
    facts = json.loads(path.read_bytes().splitlines()[0] if path.name == "base.json" else
                       path.read_bytes())  # fmt: skip
    facts = _replaced(facts, chance)
    path.write_bytes(seal(facts) if path.name == "base.json" else json.dumps(facts).encode())


def base_records(run: Path, chance: random.Random) -> None:
    """A compacted log's records that are not its rows."""
    path = run / "rank-0" / "base.json"
    if not path.exists():
        return index_fields(run, chance)
    facts = json.loads(path.read_bytes().splitlines()[0])
    index = run / "rank-0" / Path(facts["index"]["file"]).name
    records = np.frombuffer(index.read_bytes(), RECORD).copy()
    for _ in range(chance.randrange(1, 4)):
        number, name = chance.randrange(len(records)), chance.choice(RECORD.names)
        records[name][number] = _number(chance, RECORD[name].itemsize, int(records[name][number]))
    if chance.random() < 0.2:
        records = records[: chance.randrange(len(records))]
    data = records.tobytes()[: -1 if chance.random() < 0.1 else None]
    index.write_bytes(data)
    facts["index"]["crc"] = zlib.crc32(data)
    path.write_bytes(seal(facts))
    return None


def parquet_bytes(run: Path, chance: random.Random) -> None:
    """A Parquet file that is another, with its checksums made anew."""
    path = run / "rank-0" / "base.json"
    if not path.exists():
        return payload_bytes(run, chance)
    facts = json.loads(path.read_bytes().splitlines()[0])
    entry = facts["tables"][chance.choice(sorted(facts["tables"]))]
    file = run / "rank-0" / Path(entry["file"]).name
    data = bytearray(file.read_bytes())
    footer = len(data) - 8 - struct.unpack("<I", data[-8:-4])[0]
    part = data[footer:-8] if chance.random() < 0.5 else data[4:footer]
    begin = footer if len(part) == len(data) - 8 - footer else 4
    for _ in range(chance.randrange(1, 4)):
        part[chance.randrange(len(part))] = chance.choice(
            [0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)]
        )
    data[begin : begin + len(part)] = part
    file.write_bytes(data)
    entry["footer_crc"] = zlib.crc32(data[footer:])
    for group in entry["chunks"]:
        for name, (offset, length, _) in group.items():
            group[name] = [offset, length, zlib.crc32(data[offset : offset + length])]
    path.write_bytes(seal(facts))
    return None


DAMAGE: list[Callable[[Path, random.Random], None]] = [
    bytes_anywhere, index_fields, payload_bytes, json_values, base_records, parquet_bytes,
]  # fmt: skip


def _number(chance: random.Random, width: int, value: int) -> int:
    near = [value - 1, value + 1, value ^ (1 << chance.randrange(8 * width))]
    return chance.choice([*NUMBERS, *near]) % (1 << 8 * width)


def _sealed(record: np.void) -> bytes:
    bare = record.tobytes()[:-4]
    return bare + struct.pack("<I", zlib.crc32(bare))


def _spoil(payload: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(payload))
    if chance.random() < 0.5:
        payload[at] = chance.choice(
            [0, 1, 0x7F, 0x80, 0xFF, payload[at] ^ 1 << chance.randrange(8)]
        )
    else:
        place = at // 4 * 4
        word = struct.pack("<q", chance.choice([-1, 0, 1, 2**31 - 1, 2**32, 2**62, -(2**63)]))
        payload[place : place + 8] = word[: max(0, len(payload) - place)]


def _replaced(value: Any, chance: random.Random) -> Any:
    """The same with one value within replaced, or left out."""
    if not isinstance(value, dict | list) or not value or chance.random() < 0.1:
        return chance.choice(WORDS)
    key = chance.choice(sorted(value) if isinstance(value, dict) else range(len(value)))
    if chance.random() < 0.1:
        del value[key]
    else:
        value[key] = _replaced(value[key], chance)
    return value


# --- what a reader does --------------------------------------------------------------------------


def use(run: Path, *, thoroughly: bool = True) -> str:
    """All that reads a run: "read" or "refused"; any other exception than ours is let through."""
    acts: list[Callable[[], object]] = [lambda: _read(run)]
    if thoroughly:
        acts += [lambda: diagnose(open_run(run)), lambda: compact(run), lambda: _resume(run)]
    said = [problem for act in acts if (problem := _problem_of(act)) is not None]
    assert all(len(problem) > 20 for problem in said)  # sentences
    list_runs(run.parent)
    return "refused" if said else "read"


def _problem_of(act: Callable[[], object]) -> str | None:
    try:
        act()
    except AmpwatchError as problem:
        return str(problem)
    return None


def _read(run: Path) -> None:
    found = open_run(run)
    for table in Table:
        found.read(table).to_pylist()
    assert str(found.notes) + str(found.ended) + str(found.last_time_ns) + str(found.info)
    found.refresh()


def _resume(run: Path) -> None:
    writer = RankWriter(run, 0)
    try:
        writer.read_from(0, 1 << 20)
    finally:
        writer.close()


def mutate(good: Path, place: Path, seed: str) -> None:
    """A copy of a good run, harmed as this seed has it."""
    chance = random.Random(seed)
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(good, place)
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        with contextlib.suppress(*SPOILED):
            chance.choice(DAMAGE)(place, chance)


# A file that an earlier damage has spoiled takes no other.
SPOILED = (
    ValueError, KeyError, TypeError, IndexError, AttributeError, OSError, struct.error,
)  # fmt: skip


def _try_many() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mutations", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--seed", default="many")
    parser.add_argument("--thoroughly", action="store_true")
    wanted = parser.parse_args()
    until = time.monotonic() + 60 * wanted.minutes
    verdicts: dict[str, int] = {}
    slowest = (0.0, "")
    with tempfile.TemporaryDirectory() as folder:
        runs = good_runs(Path(folder) / "good")
        for number in range(wanted.mutations):
            seed = f"{wanted.seed} {number}"
            place = Path(folder) / "place" / "run"
            mutate(runs[number % len(runs)], place, seed)
            began = time.monotonic()
            try:
                said = use(place, thoroughly=wanted.thoroughly)
            except Exception as problem:  # the very thing that is looked for
                import traceback

                frames = traceback.extract_tb(problem.__traceback__)
                ours = next((f for f in reversed(frames) if "ampwatch" in f.filename), frames[-1])
                said = f"{type(problem).__name__} in {Path(ours.filename).name}:{ours.lineno}"
                if said not in verdicts:
                    print(seed, said, problem, flush=True)
            verdicts[said] = verdicts.get(said, 0) + 1
            slowest = max(slowest, (time.monotonic() - began, seed))
            if time.monotonic() > until:
                break
    print(number + 1, verdicts, "slowest", slowest)
    sys.exit(bool(verdicts.keys() - {"read", "refused"}))


if __name__ == "__main__":
    _try_many()
