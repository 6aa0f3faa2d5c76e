"""A rank's log: what append returned stands, whatever happens next."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc
import pytest
from store_samples import event, extras, info, layers, steps, write_run

from ampwatch.codec import decode
from ampwatch.errors import FutureRunError, RunError, RunInUseError
from ampwatch.rows import SCHEMAS, Table
from ampwatch.store import RankWriter, compact, create_run, open_run
from ampwatch.store.live_log import HEADER_BYTES, RECORD_BYTES


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return create_run(tmp_path, info())


def test_a_stream_is_plain_arrow_that_any_tool_opens(run: Path) -> None:
    writer = RankWriter(run, 0)
    batches = [steps(0, 10), steps(10, 500)]
    for batch in batches:
        writer.append(batch)
    with pa.OSFile(str(run / "rank-0" / "steps.arrows")) as file:
        found = pa.ipc.open_stream(file).read_all()
    expected = pa.Table.from_batches([decode(batch.table, batch.payload) for batch in batches])
    assert found.equals(expected)
    assert found.schema.equals(SCHEMAS[Table.STEPS], check_metadata=True)
    writer.close()


def test_sequence_numbers_count_batches_over_all_tables_and_go_on_after_reopening(run) -> None:
    writer = RankWriter(run, 0)
    assert [writer.append(batch) for batch in (event("started"), steps(0, 2), layers(0))] == [
        0,
        1,
        2,
    ]
    writer.close()
    again = RankWriter(run, 0)
    assert again.next_sequence == 3
    assert again.append(steps(2, 2)) == 3
    again.close()
    assert open_run(run).steps.column("step").to_pylist() == [0, 1, 2, 3]


def test_replay_gives_the_very_bytes_in_order_and_at_least_one(run: Path) -> None:
    writer = RankWriter(run, 0)
    batches = [steps(number, 1) if number % 2 else layers(number) for number in range(20)]
    for batch in batches:
        writer.append(batch)
    assert writer.read_from(0, 1 << 30) == list(enumerate(batches))
    assert writer.read_from(7, 1) == [(7, batches[7])]
    two = len(batches[7].payload) + len(batches[8].payload)
    assert writer.read_from(7, two) == [(7, batches[7]), (8, batches[8])]
    assert writer.read_from(20, 1 << 20) == []
    writer.append(steps(99, 1))
    assert [number for number, _ in writer.read_from(19, 1 << 20)] == [19, 20]
    writer.close()


def test_a_copy_files_what_comes_out_of_order_and_knows_what_it_lacks(run: Path) -> None:
    batches = [event("started"), *(steps(number * 10, 10) for number in range(9))]
    copy = RankWriter(run, 0)
    for number in (0, 1, 6, 7, 7, 2):
        assert copy.append(batches[number], number) == number
    assert copy.next_sequence == 3
    assert copy.held.gaps == ((3, 6),)
    assert "batches 3 to 5 are not in this copy" in open_run(run).notes[0]
    copy.close()

    again = RankWriter(run, 0)
    assert (again.next_sequence, again.held.gaps) == (3, ((3, 6),))
    for number in (5, 4, 3, 8, 9):
        again.append(batches[number], number)
    assert (again.next_sequence, again.held.gaps) == (10, ())
    assert again.read_from(0, 1 << 30) == list(enumerate(batches))
    again.close()
    found = open_run(run)
    assert found.notes == ()
    assert found.steps.column("step").to_pylist() == list(range(90))


def test_a_second_writer_of_the_same_rank_is_refused_until_the_first_has_closed(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ampwatch.store.writer._LOCK_WAIT_S", 0.05)
    first = RankWriter(run, 0)
    with pytest.raises(RunInUseError, match="another process"):
        RankWriter(run, 0)
    other_rank = RankWriter(run, 1)
    other_rank.close()
    first.close()
    first.close()
    RankWriter(run, 0).close()


@pytest.mark.parametrize("lost_bytes", [1, RECORD_BYTES - 1])
def test_a_torn_index_record_is_cut_and_overwritten(run: Path, lost_bytes: int) -> None:
    writer = RankWriter(run, 0)
    for number in range(4):
        writer.append(steps(number, 1))
    writer.close()
    index = run / "rank-0" / "index"
    os.truncate(index, index.stat().st_size - lost_bytes)
    torn = open_run(run)
    assert torn.steps.column("step").to_pylist() == [0, 1, 2]
    assert torn.notes == ("Rank 0: its last batch was cut off in mid-write and is left out.",)
    again = RankWriter(run, 0)
    assert again.next_sequence == 3
    again.append(steps(33, 1))
    again.close()
    found = open_run(run)
    assert found.steps.column("step").to_pylist() == [0, 1, 2, 33]
    assert found.notes == ()
    with pa.OSFile(str(run / "rank-0" / "steps.arrows")) as file:
        assert pa.ipc.open_stream(file).read_all().num_rows == 4


@pytest.mark.parametrize("name", ["steps.arrows", "index"])
def test_a_tail_of_zeros_is_cut(run: Path, name: str) -> None:
    writer = RankWriter(run, 0)
    for number in range(4):
        writer.append(steps(number, 1))
    writer.close()
    with (run / "rank-0" / name).open("ab") as file:
        file.write(bytes(5000))
    assert open_run(run).steps.num_rows == 4
    assert open_run(run).notes
    writer = RankWriter(run, 0)
    writer.append(steps(4, 1))
    writer.close()
    assert open_run(run).steps.column("step").to_pylist() == [0, 1, 2, 3, 4]
    assert open_run(run).notes == ()


def test_damage_within_a_log_is_kept_aside_before_a_writer_cuts_it(run: Path) -> None:
    writer = RankWriter(run, 0)
    for number in range(6):
        writer.append(steps(number, 1))
    writer.close()
    stream = run / "rank-0" / "steps.arrows"
    damaged = bytearray(stream.read_bytes())
    damaged[-len(steps(0, 1).payload) * 4 + 100] ^= 1  # in the third batch
    stream.write_bytes(damaged)
    again = RankWriter(run, 0)
    assert again.next_sequence == 2
    again.close()
    assert (run / "rank-0" / "damaged-1" / "steps.arrows").read_bytes() == damaged
    assert open_run(run).steps.column("step").to_pylist() == [0, 1]
    [note] = open_run(run).notes
    assert note.endswith("what it held until then is kept in damaged-1.")
    compact(run)
    assert open_run(run).notes == (note,)


@pytest.mark.parametrize("bit", [0, 8 * 8, 8 * 16, 8 * RECORD_BYTES - 1])
def test_damage_within_an_index_is_kept_aside_before_a_writer_cuts_it(run: Path, bit: int) -> None:
    writer = RankWriter(run, 0)
    for number in range(6):
        writer.append(steps(number, 1))
    writer.close()
    index, stream = run / "rank-0" / "index", run / "rank-0" / "steps.arrows"
    whole = stream.read_bytes()
    damaged = bytearray(index.read_bytes())
    damaged[HEADER_BYTES + 2 * RECORD_BYTES + bit // 8] ^= 1 << bit % 8
    index.write_bytes(damaged)
    again = RankWriter(run, 0)
    assert again.next_sequence == 2
    again.close()
    assert (run / "rank-0" / "damaged-1" / "index").read_bytes() == damaged
    assert (run / "rank-0" / "damaged-1" / "steps.arrows").read_bytes() == whole
    assert "damaged-1" in open_run(run).notes[0]


def test_a_missing_index_costs_the_log_and_says_so_but_the_writer_goes_on(run: Path) -> None:
    writer = RankWriter(run, 0)
    writer.append(steps(0, 3))
    writer.close()
    (run / "rank-0" / "index").unlink()
    found = open_run(run)
    assert found.steps.num_rows == 0
    assert "its index is missing" in found.notes[0]
    again = RankWriter(run, 0)
    again.append(steps(7, 1))
    again.close()
    assert (run / "rank-0" / "damaged-1" / "steps.arrows").exists()
    assert open_run(run).steps.column("step").to_pylist() == [7]


def test_an_index_of_a_newer_format_is_refused(run: Path) -> None:
    import struct
    import zlib

    RankWriter(run, 0).close()
    index = run / "rank-0" / "index"
    header = bytearray(index.read_bytes()[:HEADER_BYTES])
    header[8:12] = struct.pack("<I", 99)
    header[-4:] = struct.pack("<I", zlib.crc32(header[:-4]))
    index.write_bytes(header)
    for open_it in (lambda: RankWriter(run, 0), lambda: open_run(run)):
        with pytest.raises(FutureRunError, match="format 99"):
            open_it()


class FullDisk:
    """os.write of a disk with so many bytes left."""

    def __init__(self, room: int) -> None:
        self.room = room
        self._write = os.write

    def __call__(self, descriptor: int, data) -> int:
        taken = min(self.room, len(data))
        if not taken:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room -= taken
        return self._write(descriptor, data[:taken])


def test_a_disk_that_fills_up_at_any_byte_loses_only_what_was_not_acknowledged(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = len(steps(0, 1).payload) + RECORD_BYTES
    for rank, room in enumerate(range(0, 2 * size + 2000, 397)):
        writer = RankWriter(run, rank)
        acknowledged = []
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", FullDisk(room))
            for number in range(4):
                with suppress(RunError):
                    writer.append(steps(number, 1))
                    acknowledged.append(number)
        assert open_run(run).read("steps", ["step"], rank).column(0).to_pylist() == acknowledged
        writer.append(steps(50, 1))  # there is room again
        writer.close()
        found = open_run(run).read("steps", ["step"], rank).column(0).to_pylist()
        assert found == [*acknowledged, 50]
    assert open_run(run).notes == ()


def test_writes_that_take_a_few_bytes_at_a_time_are_completed(run, monkeypatch) -> None:
    write = os.write
    writer = RankWriter(run, 0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:7]))
        writer.append(steps(0, 3))
    writer.close()
    assert open_run(run).steps.num_rows == 3
    assert open_run(run).notes == ()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_really_full_device_is_a_sentence(run: Path) -> None:
    writer = RankWriter(run, 0)
    writer.append(layers(0))
    (run / "rank-0" / "steps.arrows").symlink_to("/dev/full")
    with pytest.raises(RunError, match="No space left on device"):
        writer.append(steps(0, 1))
    writer.append(extras(0, a=1.0))
    writer.close()
    assert open_run(run).layers.num_rows == 3


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(RunError, match="give log_dir"):
        create_run(tmp_path / "file", info())
    with pytest.raises(RunError, match="cannot be written"):
        RankWriter(tmp_path / "file", 0)


def test_writing_loads_no_reader_no_pandas_and_no_datasets(tmp_path: Path) -> None:
    script = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from store_samples import write_run
write_run(Path({str(tmp_path)!r}))
heavy = ("pandas", "pyarrow.dataset", "pyarrow.parquet", "torch", "zmq", "ampwatch.store.run")
print([name for name in heavy if name in sys.modules])
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_killed_start_that_left_an_empty_stream_is_repaired(tmp_path: Path) -> None:
    run = write_run(tmp_path, 2)
    (run / "rank-0" / "devices.arrows").touch()
    writer = RankWriter(run, 0)
    writer.append(steps(20, 1))
    writer.close()
    with pa.OSFile(str(run / "rank-0" / "devices.arrows")) as file:
        assert pa.ipc.open_stream(file).read_all().num_rows == 0
