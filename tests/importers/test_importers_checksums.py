"""Records of TensorBoard and W&B that are damaged: left out and said, never altered."""

from __future__ import annotations

import random
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from drawn_examples import examples
from importers.make_binary_tables import item, message
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import crc32c, masked_crc32c
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from ampwatch import open_run
from ampwatch.importers import import_log
from ampwatch.importers.tables import tensorboard_file, wandb_file
from ampwatch.importers.tables.tensorboard_file import checksums, masked_checksums
from ampwatch.rows import Table

SAMPLES = Path(__file__).parent / "samples"


def test_checksums_of_many_stretches_are_those_of_tensorboards_own_code() -> None:
    chance = random.Random(0)
    data = chance.randbytes(40_000)
    lengths = [*range(18), 255, 256, 257, 1023, 1024, 1025, 2049, 5000, 33_000]
    lengths += [chance.randrange(300) for _ in range(50)] + [40] * 30 + [3] * 20 + [1000] * 5
    starts = [chance.randrange(len(data) - length + 1) for length in lengths]
    places = zip(starts, lengths, strict=True)
    stretches = [data[start : start + length] for start, length in places]
    found = checksums(data, np.array(starts), np.array(lengths)).tolist()
    assert found == [crc32c(stretch) & 0xFFFFFFFF for stretch in stretches]
    masked = masked_checksums(data, np.array(starts), np.array(lengths)).tolist()
    assert masked == [masked_crc32c(stretch) for stretch in stretches]


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("events")
    writer = EventFileWriter(str(folder))
    for step in range(300):
        values = [Summary.Value(tag=tag, simple_value=step / 8) for tag in ("loss", "grad_norm")]
        writer.add_event(Event(step=step, summary=Summary(value=values)))
    writer.close()
    return next(folder.glob("events.*"))


def reader_of(data: bytes):
    rest = bytearray(data)

    def read(size: int) -> bytes:
        taken = bytes(rest[:size])
        del rest[:size]
        return taken

    return read


def scalars_of(data: bytes) -> tuple[list, list[str]]:
    notes: list[str] = []
    found = [
        (step, one.tag, value)
        for one in tensorboard_file.scalars(reader_of(data), notes.append)
        for step, value in zip(one.step.tolist(), one.value.tolist(), strict=True)
    ]
    return found, notes


def records_of(data: bytes) -> tuple[list, list[str]]:
    notes: list[str] = []
    return list(wandb_file.records(reader_of(data), notes.append)), notes


def flipped(data: bytes, chance: random.Random, *, after: int) -> bytes:
    copy, bit = bytearray(data), chance.randrange(8 * after, 8 * len(data))
    copy[bit // 8] ^= 1 << bit % 8
    return bytes(copy)


def is_subsequence(part: list, whole: list) -> bool:
    rest = iter(whole)
    return all(one in rest for one in part)


def test_of_many_flipped_bits_none_alters_a_scalar_of_tensorboard(events: Path) -> None:
    data, chance = events.read_bytes(), random.Random(1)
    whole, notes = scalars_of(data)
    assert (len(whole), notes) == (600, [])
    for _ in examples(200):
        found, notes = scalars_of(flipped(data, chance, after=0))
        assert is_subsequence(found, whole)
        assert len(found) == 600 or len(notes) >= 1 or found == whole


@pytest.mark.parametrize("name", ["real_wandb_collapse", "real_hf_wandb"])
def test_of_many_flipped_bits_none_alters_a_record_of_wandb(name: str) -> None:
    data, chance = (SAMPLES / f"{name}.wandb").read_bytes(), random.Random(2)
    whole, notes = records_of(data)
    assert whole
    assert notes == []
    said, tried = 0, examples(100)
    for _ in tried:
        found, notes = records_of(flipped(data, chance, after=7))
        assert is_subsequence(found, whole)
        said += bool(notes)
        assert notes or len(found) >= len(whole) - 1  # a damaged end looks like a cut one
    assert said > 0.95 * len(tried)


def test_a_long_record_of_wandb_that_lost_a_piece_is_left_out_whole() -> None:
    long = random.Random(3).randbytes(100_000)
    pieces, left = [], 32_768 - 7 - 7
    rest, kind = long, 2
    while rest:
        piece, rest = rest[:left], rest[left:]
        kind = kind if rest else 4
        crc = zlib.crc32(bytes([kind]) + piece)
        pieces.append(struct.pack("<IHB", crc, len(piece), kind) + piece)
        kind, left = 3, 32_768 - 7
    data = b":W&B\xe1\xbe\x00" + b"".join(pieces)
    assert records_of(data) == ([long], [])
    spoiled = bytearray(data)
    spoiled[50_000] ^= 1
    found, notes = records_of(bytes(spoiled))
    assert found == []
    assert "damaged" in notes[0]


def framed(records: list[bytes]) -> bytes:
    """Records as LevelDB's log has them: in pieces where a block ends."""
    written = bytearray(b":W&B\xe1\xbe\x00")
    for record in records:
        rest, is_first = record, True
        while rest or is_first:
            room = 32_768 - len(written) % 32_768
            if room < 7:
                written += bytes(room)
                room = 32_768
            piece, rest = rest[: room - 7], rest[room - 7 :]
            kind = bytes([(1 if is_first else 4) if not rest else 2 if is_first else 3])
            written += struct.pack("<IH", zlib.crc32(kind + piece), len(piece)) + kind + piece
            is_first = False
    return bytes(written)


def test_records_of_wandb_keep_their_order_over_blocks() -> None:
    chance = random.Random(4)
    records = [chance.randbytes(chance.choice([0, 1, 90, 3000, 70_000])) for _ in range(300)]
    assert records_of(framed(records)) == (records, [])


def test_the_rows_of_a_wandb_file_of_many_blocks_stand_in_their_order(tmp_path: Path) -> None:
    rows = [item("_step", n) + item("train/loss", n / 8) for n in range(3000)]
    path = tmp_path / "run-a.wandb"
    path.write_bytes(framed([message(2, row) for row in rows]))
    run = open_run(import_log(path, tmp_path / "runs"))
    told = run.read(Table.STEPS, columns=("step", "loss")).to_pydict()
    assert told["step"] == list(range(3000))
    assert told["loss"] == [n / 8 for n in range(3000)]


def test_a_run_of_a_damaged_file_says_what_is_left_out(events: Path, tmp_path: Path) -> None:
    data = bytearray(events.read_bytes())
    data[len(data) // 2] ^= 4
    path = tmp_path / events.name
    path.write_bytes(data)
    run = open_run(import_log(path, tmp_path / "runs"))
    assert run.steps.num_rows in (150, 151, 299)
    assert any("damaged" in note for note in run.notes)
    assert all(row["loss"] == row["step"] / 8 for row in run.steps.to_pylist())


def test_a_length_that_promises_too_much_ends_the_reading_and_holds_nothing(events: Path) -> None:
    data = events.read_bytes()
    tail = struct.pack("<QI", 60 << 20, 0) + bytes(1000)
    found, notes = scalars_of(data + tail)
    assert len(found) == 600
    assert "length of a record is damaged" in notes[0]
