"""Compaction changes how a run is kept, never what it says, and is safe when killed anywhere."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from pyarrow import parquet
from store_samples import event, info, layer_info, layers, steps, write_run

from ampwatch.codec import decode
from ampwatch.errors import RunError, RunInUseError
from ampwatch.rows import Table
from ampwatch.store import RankWriter, Run, compact, compaction, create_run, open_run


def everything(run: Run) -> dict[Table, list[dict]]:
    return {table: run.read(table).to_pylist() for table in Table}


def state(run: Run) -> tuple:
    return everything(run), run.ended, run.last_time_ns, run.notes


def several_ranks(folder: Path) -> Path:
    run = write_run(folder)
    writer = RankWriter(run, 5)
    for batch in (event("started"), layer_info(["x"]), steps(0, 30), layers(7, 1)):
        writer.append(batch)
    writer.close()
    return run


def test_a_compacted_run_says_the_same(tmp_path: Path) -> None:
    run = several_ranks(tmp_path)
    live = open_run(run)
    before = state(live)
    told: list[tuple[int, int]] = []
    result = compact(run, lambda done, total: told.append((done, total)))
    assert result.ranks == (0, 5)
    assert told[-1] == (result.rows, result.rows)
    assert state(open_run(run)) == before
    assert not list((run / "rank-0").glob("*.arrows"))
    assert state(live) == before  # the files were swapped under it
    live.refresh()
    assert state(live) == before
    narrow = open_run(run).read("steps", ["loss", "accuracy"])
    assert narrow.to_pylist() == [
        {"loss": row["loss"], "accuracy": row["accuracy"]} for row in before[0][Table.STEPS]
    ]


def test_a_second_compaction_without_new_rows_does_nothing(tmp_path: Path) -> None:
    run = several_ranks(tmp_path)
    compact(run)
    files = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()}
    assert compact(run).ranks == ()
    assert files == {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()}


def test_an_attempt_appended_to_a_compacted_run_reads_on_and_is_compacted_in(tmp_path) -> None:
    run = write_run(tmp_path)
    compact(run)
    live = open_run(run)
    old_rows = live.steps.num_rows
    writer = RankWriter(run, 0)
    for batch in (event("started", 60), steps(60, 20), layers(61), event("ended", 80)):
        writer.append(batch)
    assert live.refresh()
    assert live.steps.num_rows == old_rows + 20
    writer.close()
    before = state(open_run(run))
    compact(run)
    assert state(open_run(run)) == before
    assert state(live) == before
    assert len(list((run / "rank-0").glob("steps-*.parquet"))) == 1


def test_replay_of_a_compacted_log_gives_the_same_rows_batch_by_batch(tmp_path: Path) -> None:
    run = write_run(tmp_path, 5)
    writer = RankWriter(run, 0)
    whole = writer.read_from(0, 1 << 30)
    writer.close()
    compact(run)
    writer = RankWriter(run, 0)
    assert writer.next_sequence == len(whole)
    number = writer.append(steps(999, 1))
    assert number == len(whole)
    replayed = [writer.read_from(sequence, 1)[0] for sequence in range(number)]
    for (left_number, left), (right_number, right) in zip(replayed, whole, strict=True):
        assert (left_number, left.table, left.row_count) == (
            right_number, right.table, right.row_count,
        )  # fmt: skip
        assert decode(left.table, left.payload).equals(decode(right.table, right.payload))
    assert len(writer.read_from(0, 1 << 30)) == len(whole)
    assert writer.read_from(number, 1)[0][0] == number
    writer.close()


def test_a_run_that_is_being_written_is_refused(tmp_path: Path) -> None:
    run = several_ranks(tmp_path)
    writer = RankWriter(run, 5)
    with pytest.raises(RunInUseError, match="being written"):
        compact(run)
    writer.close()
    compact(run)


def test_a_writer_that_comes_while_files_are_written_wins(tmp_path, monkeypatch) -> None:
    run = write_run(tmp_path)
    before = everything(open_run(run))
    write_table = compaction._write_table

    def interrupted(*arguments):
        writer = RankWriter(run, 0)  # nobody holds the lock for the long part
        writer.append(steps(500, 1))
        writer.close()
        return write_table(*arguments)

    monkeypatch.setattr(compaction, "_write_table", interrupted)
    with pytest.raises(RunInUseError, match="was written while"):
        compact(run)
    after = open_run(run)
    assert after.steps.num_rows > len(before[Table.STEPS])
    assert after.notes == ()
    monkeypatch.undo()
    compact(run)
    assert not list((run / "rank-0").glob("*.new"))


def test_a_damaged_log_is_not_compacted(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    stream = run / "rank-0" / "layers.arrows"
    data = bytearray(stream.read_bytes())
    data[-5] ^= 8
    stream.write_bytes(data)
    with pytest.raises(RunError, match="layers is damaged"):
        compact(run)
    assert stream.read_bytes() == data


class Killed(BaseException):
    """What stands for a kill: nothing catches it."""


@pytest.mark.parametrize("resumed", [False, True], ids=["first", "second"])
def test_killed_before_any_of_its_file_operations_it_has_lost_nothing(
    tmp_path, monkeypatch, resumed: bool
) -> None:
    run = write_run(tmp_path, 4)
    if resumed:
        compact(run)
        writer = RankWriter(run, 0)
        writer.append(event("started", 40))
        writer.append(steps(40, 4))
        writer.close()
    before = state(open_run(run))
    survived = 0
    for allowed in range(60):
        copy = tmp_path / "copies" / str(allowed)
        shutil.copytree(run, copy)
        with monkeypatch.context() as patch:
            kill_after(patch, allowed)
            try:
                compact(copy)
                survived += 1
            except Killed:
                pass
        assert state(open_run(copy)) == before
        writer = RankWriter(copy, 0)  # training resumes on what the kill left
        writer.append(steps(900, 1))
        writer.close()
        assert open_run(copy).steps.num_rows == len(before[0][Table.STEPS]) + 1
        compact(copy)
        assert open_run(copy).steps.num_rows == len(before[0][Table.STEPS]) + 1
        assert open_run(copy).notes == ()
        shutil.rmtree(copy)
        if survived:
            break
    assert survived
    assert allowed > 12


def kill_after(patch: pytest.MonkeyPatch, allowed: int) -> None:
    """Let so many fsyncs, renames and deletions happen."""
    left = [allowed]

    def counted(act):
        def or_die(*arguments, **options):
            if not left[0]:
                raise Killed
            left[0] -= 1
            return act(*arguments, **options)

        return or_die

    patch.setattr(os, "fsync", counted(os.fsync))
    patch.setattr(Path, "replace", counted(Path.replace))
    patch.setattr(Path, "unlink", counted(Path.unlink))


def test_many_row_groups_are_one_table(tmp_path: Path, monkeypatch) -> None:
    run = write_run(tmp_path, 9)
    before = state(open_run(run))
    monkeypatch.setattr(compaction, "ROW_GROUP_ROWS", 16)
    compact(run)
    assert state(open_run(run)) == before
    writer = RankWriter(run, 0)
    assert [number for number, _ in writer.read_from(3, 1 << 30)] == list(range(3, 30))
    writer.close()


@pytest.mark.parametrize("page_checksums", [False, True], ids=["as now", "as it was"])
def test_damage_in_one_chunk_costs_only_the_rows_from_its_group_on(
    tmp_path: Path, monkeypatch, page_checksums: bool
) -> None:
    """base.json's checksums are enough: nothing read those that Parquet can keep itself."""
    run = write_run(tmp_path, 9)
    rows = everything(open_run(run))
    options = compaction.parquet_options
    monkeypatch.setattr(compaction, "ROW_GROUP_ROWS", 16)
    monkeypatch.setattr(
        compaction, "parquet_options",
        lambda schema: options(schema) | {"write_page_checksum": page_checksums},
    )  # fmt: skip
    compact(run)
    assert everything(open_run(run)) == rows
    [file] = (run / "rank-0").glob("steps-*.parquet")
    data = bytearray(file.read_bytes())
    column = parquet.read_schema(file).names.index("loss")
    chunk = parquet.read_metadata(file).row_group(3).column(column)
    data[chunk.data_page_offset + chunk.total_compressed_size - 1] ^= 1
    file.write_bytes(data)
    assert open_run(run).read("steps", ["step", "lrs"]).num_rows == 90  # another column's chunk
    found = open_run(run)
    assert found.read("steps", ["step", "loss"]).to_pylist() == [
        {"step": row["step"], "loss": row["loss"]} for row in rows[Table.STEPS][:48]
    ]
    assert "steps is damaged in its compacted part after row 48" in found.notes[0]
    assert found.layers.num_rows == len(rows[Table.LAYERS])


def test_a_copy_with_a_gap_is_compacted_and_can_still_be_filled(tmp_path: Path) -> None:
    run = create_run(tmp_path, info())
    writer = RankWriter(run, 0)
    batches = [event("started"), steps(0, 5), steps(5, 5), steps(10, 5)]
    for number in (0, 3):
        writer.append(batches[number], number)
    writer.close()
    compact(run)
    assert "batches 1 to 2 are not in this copy" in open_run(run).notes[0]
    writer = RankWriter(run, 0)
    assert (writer.next_sequence, writer.held.gaps) == (1, ((1, 3),))
    for number in (1, 2):
        writer.append(batches[number], number)
    assert writer.next_sequence == 4
    writer.close()
    assert open_run(run).steps.column("step").to_pylist() == list(range(15))
    assert open_run(run).notes == ()


def test_a_full_disk_leaves_the_run_as_it_was(tmp_path: Path, monkeypatch) -> None:
    run = write_run(tmp_path)
    before = state(open_run(run))

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(RunError, match="No space left"):
            compact(run)
    assert state(open_run(run)) == before
