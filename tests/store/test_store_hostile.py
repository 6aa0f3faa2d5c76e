"""Runs made to harm their reader: only errors of ours come out, in little time and memory."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from drawn_examples import examples
from hostile_runs import WORDS, good_runs, mutate, use
from pyarrow import parquet
from store_samples import OTHER_ID, info, steps, write_run

from ampwatch.errors import RunError
from ampwatch.rows import SCHEMAS, Table
from ampwatch.store import (
    RankWriter,
    RunSummary,
    compact,
    create_run,
    list_runs,
    open_run,
    summarize,
)
from ampwatch.store.compacted_log import seal
from ampwatch.store.compaction import _vouch, parquet_options
from ampwatch.store.live_log import HEADER_BYTES, RECORD, read_records, read_region

ROUNDS = 3


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return good_runs(tmp_path_factory.mktemp("good"))


@pytest.mark.parametrize("part", range(ROUNDS))
def test_of_many_hostile_runs_none_gets_an_exception_out_that_is_not_ours(
    good: list[Path], tmp_path: Path, part: int
) -> None:
    """`python tests/store/hostile_runs.py` tries many more."""
    verdicts = set()
    for number in examples(50):
        place = tmp_path / "place" / "run"
        mutate(good[number % len(good)], place, f"suite {part} {number}")
        verdicts.add(use(place, thoroughly=number % 8 == 0))
    assert verdicts == {"read", "refused"}


# --- one bad run is one bad line ----------------------------------------------------------------


def zeroed_tail(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-4096:] = bytes(min(len(data), 4096))
    path.write_bytes(data)


def cut_in_half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def flipped(path: Path) -> None:
    data, chance = bytearray(path.read_bytes()), random.Random(path.name)
    for _ in range(8 if data else 0):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def swapped(path: Path) -> None:
    others = sorted(p for p in path.parent.iterdir() if p.is_file() and p.stat().st_size)
    path.write_bytes(others[-1 if path != others[-1] else 0].read_bytes())


def a_folder_instead(path: Path) -> None:
    path.unlink()
    path.mkdir()


def a_dangling_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def a_link_to_itself(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def a_pipe_instead(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def a_device_instead(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def deleted(path: Path) -> None:
    path.unlink()


def unreadable(path: Path) -> None:
    path.chmod(0)


DAMAGE: list[Callable[[Path], None]] = [
    zeroed_tail, cut_in_half, emptied, flipped, swapped, a_folder_instead, deleted, a_dangling_link,
    a_link_to_itself, a_pipe_instead, a_device_instead, unreadable,
]  # fmt: skip
POSIX_ONLY = {a_dangling_link, a_link_to_itself, a_pipe_instead, a_device_instead, unreadable}


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_a_list_shows_the_other_runs_and_one_line_of_the_damaged_one(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    if damage in POSIX_ONLY and os.name == "nt":
        pytest.skip("Windows has none of these, or not for everybody")
    here = tmp_path / "runs"
    whole = create_run(here, info("whole", OTHER_ID))
    for kind in ("live", "compacted"):
        good = write_run(tmp_path / kind, 12)
        if kind == "compacted":
            compact(good)
        files = [p.relative_to(good) for p in sorted(good.rglob("*")) if p.is_file()]
        for file in files:
            bad = here / "bad"
            shutil.copytree(good, bad)
            damage(bad / file)
            found = {run.path: run for run in list_runs(here)}
            assert found.keys() == {whole, bad}, file
            assert found[whole].problem is None
            assert all(sentence.endswith(".") for sentence in said_of(found[bad]))
            shutil.rmtree(bad)


def said_of(line: RunSummary) -> tuple[str, ...]:
    """What is wrong with a run, by its line or by who opens it."""
    if line.problem is not None:
        return (line.problem,)
    try:
        return open_run(line.path).notes
    except RunError as problem:
        return (str(problem),)


def test_the_rows_before_a_zeroed_tail_make_a_runs_line(tmp_path: Path) -> None:
    run = write_run(tmp_path, 40)
    zeroed_tail(run / "rank-0" / "steps.arrows")
    found = summarize(run)
    assert found.problem is None
    assert found.steps == open_run(run).steps.num_rows < 400


@pytest.mark.parametrize("word", WORDS, ids=range(len(WORDS)))
def test_a_run_json_of_any_json_type_is_one_bad_line(tmp_path: Path, word: object) -> None:
    run = write_run(tmp_path, 1)
    (run / "run.json").write_text(json.dumps(word))
    [found] = list_runs(tmp_path)
    assert found.problem
    assert "run.json" in found.problem


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may look everywhere")
def test_a_folder_that_may_not_be_looked_into_is_listed(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", 1)
    closed = tmp_path / "runs" / "closed"
    closed.mkdir(mode=0)
    found = {run.name: run.problem for run in list_runs(tmp_path / "runs")}
    assert found["run"] is None
    assert "Permission denied" in found["closed"]


# --- declared sizes -----------------------------------------------------------------------------


def test_a_payload_under_many_records_is_read_once(tmp_path: Path) -> None:
    run = create_run(tmp_path, info())
    writer = RankWriter(run, 0)
    writer.append(steps(0, 10))
    writer.close()
    index = run / "rank-0" / "index"
    data = index.read_bytes()
    index.write_bytes(data + data[HEADER_BYTES:] * 1000)
    found = open_run(run)
    assert found.steps.num_rows == 10
    assert "steps is damaged" in found.notes[0]


def test_an_index_that_asks_for_terabytes_is_given_what_the_file_has(tmp_path: Path) -> None:
    run = create_run(tmp_path, info())
    writer = RankWriter(run, 0)
    for first in (0, 10):
        writer.append(steps(first, 10))
    writer.close()
    index, stream = run / "rank-0" / "index", run / "rank-0" / "steps.arrows"
    assert read_region(stream, 4, 1 << 62) == stream.read_bytes()[4:]
    data = index.read_bytes()
    records = read_records(data[HEADER_BYTES:]).copy()
    records["length"][1] = (1 << 32) - 1
    records["own_crc"][1] = zlib.crc32(records[1:].tobytes()[:-4])
    index.write_bytes(data[:HEADER_BYTES] + records.tobytes())
    found = open_run(run)
    assert found.steps.num_rows == 10
    assert "its index is damaged after 1 batches" in found.notes[0]


# Not by `ru_maxrss`: a process begins with its parent's, and the tests' own may be higher.
READER = """
import sys
from pathlib import Path
from ampwatch.errors import RunError
from ampwatch.store import open_run, summarize
def peak():
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
before = peak()
for path in map(Path, sys.argv[1:]):
    for act in (summarize, lambda path: open_run(path).read("events")):
        try:
            act(path)
        except RunError as problem:
            print(problem)
print((peak() - before) // 1024)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells the peak")
def test_a_small_parquet_file_that_inflates_to_gigabytes_is_refused(tmp_path: Path) -> None:
    bombs = [
        bomb(tmp_path / "rows", 4_000_000, "started" * 100),  # 2.8 GB
        bomb(tmp_path / "texts", 200_000, "x" * 100_000),  # 20 GB
        bomb(tmp_path / "page", 100, "y", lie=True),  # a page of 1 GB
    ]
    command = [sys.executable, "-c", READER, *map(str, bombs)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert int(said[-1]) < 350  # MB; Arrow's Parquet alone takes 60
    assert sum("is not as ampwatch writes it" in line for line in said) == 2
    assert sum("page/run/rank-0/events-1.parquet is damaged" in line for line in said) == 1


def bomb(folder: Path, rows: int, text: str, *, lie: bool = False) -> Path:
    """A compacted run whose events are many constant rows, with every checksum as it should be."""
    run = write_run(folder, 1)
    compact(run)
    rank = run / "rank-0"
    facts = json.loads((rank / "base.json").read_bytes().splitlines()[0])
    path = rank / facts["tables"]["events"]["file"]
    schema = SCHEMAS[Table.EVENTS]
    texts = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([text]))
    same = pa.array(np.ones(rows, np.int64))
    table = pa.table([same, same, texts, texts], names=schema.names)
    parquet.write_table(
        table, path, row_group_size=rows, store_schema=False, **parquet_options(schema)
    )
    if lie:
        data = bytearray(path.read_bytes())
        place = data.index(bytes([0x15, 0, 0x15]), 4)  # a data page: then what it inflates to
        assert data[place + 3] < 0x80
        data[place + 3 : place + 5] = bytes([data[place + 3] ^ 2, data[place + 4]])
        path.write_bytes(data)
    facts["tables"]["events"] = asdict(_vouch(path))
    index = rank / facts["index"]["file"]
    records = np.frombuffer(index.read_bytes(), RECORD)
    others = records[records["table"] != Table.EVENTS.number]
    starts = np.arange(0, rows, 1 << 18)
    ours = np.zeros(len(starts), RECORD)
    ours["sequence"], ours["offset"] = 100 + np.arange(len(starts)), starts
    ours["rows"], ours["table"] = np.minimum(1 << 18, rows - starts), Table.EVENTS.number
    data = np.concatenate([others, ours]).tobytes()
    index.write_bytes(data)
    facts["index"]["crc"] = zlib.crc32(data)
    (rank / "base.json").write_bytes(seal(facts))
    return run
