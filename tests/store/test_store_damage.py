"""Damage is never silent: rows are those that were written, or missing and said."""

from __future__ import annotations

import contextlib
import random
import shutil
import struct
from pathlib import Path

import pyarrow as pa
import pytest
from drawn_examples import examples
from store_samples import event, info, steps, write_run

from ampwatch.codec import Batch
from ampwatch.errors import FutureRunError, NotARunError, RunError
from ampwatch.rows import FORMAT, Table
from ampwatch.store import RankWriter, Run, compact, create_run, list_runs, open_run
from ampwatch.store.live_log import HEADER_BYTES, RECORD_BYTES

TABLES = (Table.STEPS, Table.LAYERS, Table.EVENTS, Table.EXTRAS)


def rows_of(run: Run) -> dict[Table, list[dict]]:
    return {table: run.read(table).to_pylist() for table in TABLES}


def files_of(run: Path) -> list[Path]:
    return sorted(p for p in run.rglob("*") if p.is_file() and p.stat().st_size)


def judge(copy: Path, whole: dict[Table, list[dict]]) -> str:
    """Open a damaged copy: "refused", "said" or "whole"; anything else is a failure."""
    try:
        found = open_run(copy)
        rows = rows_of(found)
    except RunError:
        return "refused"
    cut = False
    for table in (Table.STEPS, Table.LAYERS, Table.EVENTS):
        stored = [without_joined(row) for row in rows[table]]
        expected = [without_joined(row) for row in whole[table]]
        assert stored == expected[: len(stored)]
        cut = cut or rows[table] != whole[table]
    assert not cut or found.notes
    return "said" if cut else "whole"


def without_joined(row: dict) -> dict:
    """What the row itself holds: names and scalars come from other tables, which may be cut."""
    joined = {"layer", "order", "max_update_layer", "accuracy"}
    return {name: value for name, value in row.items() if name not in joined}


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


@pytest.mark.parametrize("compacted", [False, True], ids=["live", "compacted"])
def test_of_many_flipped_bits_none_gives_silently_other_data(tmp_path, compacted: bool) -> None:
    run = write_run(tmp_path, 6)
    if compacted:
        compact(run)
    whole = rows_of(open_run(run))
    chance = random.Random(7)
    verdicts = set()
    for number in examples(120):
        copy = tmp_path / "copies" / str(number)
        shutil.copytree(run, copy)
        victim = chance.choice(files_of(copy))
        if victim.name == "run.json":
            continue  # its words are no rows; what is no JSON is refused, see below
        flip(victim, chance.randrange(8 * victim.stat().st_size))
        verdicts.add(judge(copy, whole))
        shutil.rmtree(copy)
    assert "said" in verdicts


@pytest.mark.parametrize("compacted", [False, True], ids=["live", "compacted"])
def test_a_log_cut_at_any_byte_opens_to_its_last_good_batch(tmp_path, compacted: bool) -> None:
    run = write_run(tmp_path, 6)
    if compacted:
        compact(run)
    whole = rows_of(open_run(run))
    chance = random.Random(11)
    for number in examples(60):
        copy = tmp_path / "copies" / str(number)
        shutil.copytree(run, copy)
        victim = chance.choice(files_of(copy))
        victim.write_bytes(victim.read_bytes()[: chance.randrange(victim.stat().st_size)])
        judge(copy, whole)
        shutil.rmtree(copy)


def test_a_file_that_is_missing_is_said_or_refused(tmp_path: Path) -> None:
    for compacted in (False, True):
        run = write_run(tmp_path / str(compacted), 4)
        if compacted:
            compact(run)
        whole = rows_of(open_run(run))
        for victim in files_of(run):
            copy = tmp_path / "copies" / f"{compacted}-{victim.name}"
            shutil.copytree(run, copy)
            (copy / victim.relative_to(run)).unlink()
            verdict = judge(copy, whole)
            joined = ("layer_info", "extras")
            assert verdict != "whole" or victim.name.startswith((*joined, "index")), victim.name


@pytest.fixture(scope="module")
def continued(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pa.Table]:
    """A compacted run that was gone on with, and its steps before."""
    run = write_run(tmp_path_factory.mktemp("continued"), 3)
    compact(run)
    kept = open_run(run).steps
    with contextlib.closing(RankWriter(run, 0)) as writer:
        writer.append(steps(3, 2))
    return run, kept


@pytest.mark.parametrize("byte", range(HEADER_BYTES + RECORD_BYTES))
def test_an_index_damaged_before_its_first_batch_is_said_and_its_rows_are_not_deleted(
    continued: tuple[Path, pa.Table], byte: int
) -> None:
    run, kept = continued
    assert open_run(run).notes == ()
    flip(run / "rank-0" / "index", 8 * byte + 3)
    found = open_run(run)
    assert found.steps.equals(kept)
    assert "its index is damaged" in "".join(found.notes)
    with pytest.raises(RunError, match="hide that rows were lost"):
        compact(run)
    flip(run / "rank-0" / "index", 8 * byte + 3)
    assert open_run(run).steps.num_rows == kept.num_rows + 2


def test_a_damaged_batch_costs_its_own_table_only_what_follows_it(tmp_path: Path) -> None:
    run = write_run(tmp_path, 6)
    flip(
        run / "rank-0" / "layers.arrows",
        8 * ((run / "rank-0" / "layers.arrows").stat().st_size - 9),
    )
    found = open_run(run)
    assert found.steps.num_rows == 60
    assert found.layers.num_rows == 15
    [note] = found.notes
    assert note.startswith("Rank 0: layers is damaged at batch")
    assert "3 rows" in note


def test_notes_tell_of_damage_in_tables_that_nobody_has_read(tmp_path: Path) -> None:
    for compacted in (False, True):
        run = write_run(tmp_path / str(compacted), 6)
        if compacted:
            compact(run)
        [victim] = (run / "rank-0").glob("layers*")
        flip(victim, 8 * (victim.stat().st_size // 2))
        [note] = open_run(run).notes
        assert "layers is damaged" in note


def test_a_writer_after_damage_leaves_a_log_that_reads_to_its_end(tmp_path: Path) -> None:
    chance = random.Random(3)
    run = write_run(tmp_path, 6)
    whole = rows_of(open_run(run))
    for number in examples(60):
        copy = tmp_path / "copies" / str(number)
        shutil.copytree(run, copy)
        victims = [path for path in files_of(copy / "rank-0") if path.name != "lock"]
        victim = chance.choice(victims)
        flip(victim, chance.randrange(8 * victim.stat().st_size))
        RankWriter(copy, 0).close()
        kept = sorted(path.name for path in (copy / "rank-0").glob("damaged-*"))
        assert all("was damaged when it was continued" in note for note in open_run(copy).notes)
        assert len(open_run(copy).notes) == len(kept)
        judge_prefix = rows_of(open_run(copy))[Table.STEPS]
        stored = [without_joined(row) for row in judge_prefix]
        assert stored == [without_joined(row) for row in whole[Table.STEPS]][: len(stored)]
        shutil.rmtree(copy)


NO_INFO = [
    "",
    "{",
    "[]",
    "null",
    "{}",
    "\x00",
    "[" * 9999,
    '{"format": "1"}',
    '{"format": 1}',
    '{"format": 1, "id": "x", "name": "y"}',
    '{"format": 1, "id": "0123456789abcdef0123456789abcdef", "name": 5}',
]


@pytest.mark.parametrize("text", NO_INFO, ids=range(len(NO_INFO)))
def test_a_run_json_that_is_none_is_refused_with_a_sentence(tmp_path: Path, text: str) -> None:
    run = write_run(tmp_path, 1)
    (run / "run.json").write_text(text)
    with pytest.raises(NotARunError, match=r"run\.json"):
        open_run(run)
    [summary] = list_runs(tmp_path)
    assert "run.json" in summary.problem


def test_folders_that_hold_no_run_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    for name, sentence in (
        ("empty", "has no run in it"),
        ("absent", "No run named absent"),
        ("file", "is a file; a run is a folder"),
    ):
        with pytest.raises(NotARunError, match=sentence):
            open_run(tmp_path / name)


def test_a_run_of_a_newer_format_is_refused_and_names_the_cure(tmp_path: Path) -> None:
    run = write_run(tmp_path, 1)
    text = (run / "run.json").read_text()
    (run / "run.json").write_text(text.replace(f'"format": {FORMAT}', f'"format": {FORMAT + 1}'))
    with pytest.raises(FutureRunError, match="update ampwatch"):
        open_run(run)


def test_a_foreign_file_in_place_of_the_index_is_said(tmp_path: Path) -> None:
    run = write_run(tmp_path, 1)
    (run / "rank-0" / "index").write_bytes(b"PAR1" + bytes(100))
    found = open_run(run)
    assert found.steps.num_rows == 0
    assert "damaged or not ours" in found.notes[0]


def test_a_log_made_to_harm_its_reader_is_refused_with_a_sentence(tmp_path: Path) -> None:
    run = create_run(tmp_path, info())
    good = event("started")
    payload = bytearray(good.payload)
    at = payload.rindex(struct.pack("<ii", 0, len("started")))  # the header has it too
    payload[at + 4 : at + 8] = struct.pack("<i", 1 << 30)  # a text beyond its buffer
    writer = RankWriter(run, 0)
    writer.append(Batch(Table.EVENTS, 1, bytes(payload)))
    writer.append(Batch(Table.STEPS, 7, steps(0, 3).payload))  # rows that are not there
    writer.append(Batch(Table.LAYERS, 1, b"no message at all"))
    writer.close()
    with pytest.raises(RunError, match="did not write"):
        open_run(run).read("steps")
    with pytest.raises(RunError, match="did not write"):
        open_run(run).read("layers")
    with pytest.raises(RunError, match="did not write"):
        open_run(run).read("events")
