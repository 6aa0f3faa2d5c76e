"""Tables read by columns: whatever the rows, they are what reading them one by one would give."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import random
import struct

import numpy as np
import pyarrow as pa
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from importers.make_binary_tables import events_of, history_of, message

from ampwatch import codec
from ampwatch.importers import run_builder, table_rows
from ampwatch.importers.row_writer import RowWriter
from ampwatch.importers.run_builder import RunBuilder
from ampwatch.importers.statements import Stats
from ampwatch.importers.table_rows import counted_rows, merged_by_step
from ampwatch.importers.tables import (
    csv_file,
    json_objects,
    tensorboard_file,
    wandb_file,
)
from ampwatch.importers.tables.cells import Block, Cells, as_number, of_arrow, of_values
from ampwatch.importers.tables.wandb_file import history_row
from ampwatch.rows import Table

ODD = [
    "", " ", "nan", "NaN", "-nan", "inf", "-Inf", "Infinity", "1e-3", "1E400", "-1e-400", "65,536",
    "1,234,567.5", "1,23", "12%", "12.5 %", "%", "true", "False", "yes", "no", "None", "null",
    "N/A", "1_000", "0x10", " 7 ", "\t8", "+9", ".5", "5.", "--1", "1d5", "ünd", "٣", "5\" x",
    '"', "'", "x;y", "1" * 500, "-", "e5", "1e", "0.1.2", "nan(ind)",
]  # fmt: skip
NUMBERS = [str(n) for n in range(5)] + ["0.5", "2.25", "65536.0", "1e5", "-3"]


def same(one: Cells, other: Cells) -> bool:
    return bool(
        np.array_equal(one.present, other.present)
        and np.array_equal(one.values[one.present], other.values[one.present], equal_nan=True)
    )


def assert_same(one: Block, other: Block, names) -> None:
    assert one.count == other.count
    for name in names:
        assert same(one.cells(name), other.cells(name)), name


# --- cells ---------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from([*ODD, *NUMBERS, None]) | st.text(max_size=8), max_size=30))
def test_a_column_of_texts_means_what_each_of_its_cells_means(cells):
    assert same(of_arrow(pa.array(cells, pa.string())), of_values(cells))


@pytest.mark.parametrize(
    ("text", "number"),
    [("65,536", 65536.0), ("1,234,567.5", 1234567.5), ("12.5%", 0.125), ("3 %", 0.03),
     ("1,23", None), ("01,234", None), ("12,3456", None), ("-Infinity", -math.inf)],
)  # fmt: skip
def test_thousands_and_percent_are_read_as_they_are_meant(text, number):
    assert as_number(text) == number


@pytest.mark.parametrize(
    ("column", "numbers"),
    [(pa.array([1, None, 3], pa.int32()), [1, None, 3]),
     (pa.array([True, None, False]), [1, None, 0]),
     (pa.array([1.5, math.inf], pa.float32()), [1.5, math.inf]),
     (pa.array([2**63], pa.uint64()), [2.0**63]),
     (pa.array(["2.5", "x", None]).dictionary_encode(), [2.5, None, None]),
     (pa.array([[1.0]]), [None]),
     (pa.nulls(2), [None, None])],
)  # fmt: skip
def test_a_column_of_any_type_is_numbers_or_absent(column, numbers):
    assert same(of_arrow(column), of_values(numbers))


# --- CSV -----------------------------------------------------------------------------------------

HEADER = ["step", "loss", "note", "lr"]


def reader(mark: str = ",") -> csv_file.CsvReader:
    return csv_file.CsvReader(HEADER, mark, ["step", "loss", "lr"], lambda _: None)


def by_the_rows(text: str, mark: str) -> Block:
    """As Python's own reader has it, with the rule for rows of another length."""
    rows = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=mark) if row]
    kept = [row + [""] * (len(HEADER) - len(row)) for row in rows if len(row) <= len(HEADER)]
    columns = {name: of_values([row[at] for row in kept]) for at, name in enumerate(HEADER)}
    return Block(len(kept), columns)


def tables_of(chance: random.Random, mark: str) -> str:
    """Rows of any length, with whatever a cell may hold, quoted where it must be or may be."""
    text = io.StringIO()
    quoting = chance.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
    writer = csv.writer(text, delimiter=mark, lineterminator="\n", quoting=quoting)
    hostile = chance.random() < 0.5
    for _ in range(chance.randrange(1, 12)):
        length = len(HEADER) if chance.random() < 0.8 else chance.randrange(1, 7)
        pool = [*NUMBERS, *ODD, "two\nlines", 'say ""'] if hostile else [*NUMBERS, "", "x"]
        writer.writerow([chance.choice(pool) for _ in range(length)])
    return text.getvalue()


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_random_tables_are_what_pythons_reader_makes_of_them(mark):
    chance = random.Random(mark)
    for _ in examples(350):
        text = tables_of(chance, mark)
        whole = b"".join(csv_file.whole_records([text.encode()])).decode()
        assert_same(reader(mark).block(whole.encode()), by_the_rows(whole, mark), HEADER[:2])


@given(st.text(alphabet='01.,;"\nax \r\t', max_size=60))
def test_any_text_is_read_with_the_numbers_that_its_lines_hold(text):
    """Where quotes do not pair a line is read for itself; elsewhere both ways agree."""
    for part in csv_file.whole_records([text.encode()]):
        found = reader().block(part)
        if b'"' not in part:
            assert_same(found, reader().by_lines(part), ["step", "loss", "lr"])


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_records_are_cut_the_same_however_the_bytes_arrive(size):
    text = b'step,loss\r\n1,"a\nb"\r2,"x ""y"" \r\n z"\n3,4\n' * 5
    parts = [text[at : at + size] for at in range(0, len(text), size)]
    whole = b"".join(csv_file.whole_records(parts))
    assert whole == text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    for part in csv_file.whole_records(parts):
        assert part.count(b'"') % 2 == 0


def test_a_stray_quote_costs_its_line_and_nothing_else():
    lines = [f"{n},{n / 2},ok,0.1" for n in range(3000)]
    lines[1500] = '1500,750.0,"open,0.1'
    part = ("\n".join(lines) + "\n").encode()
    told = reader().block(part)
    assert told.count == 3000
    assert told.cells("loss").present.sum() == 3000
    assert told.cells("lr").present.sum() == 2999


# --- JSON lines ----------------------------------------------------------------------------------

VALUES = [
    0, 1, 2.5, -3, 10**19, 10**30, True, False, None, "2.5", "nan", "x", math.nan, math.inf,
    [1, 2], {}, {"a": 1}, {"a": {"b": 2.0}}, {"a": "1e5", "loss": 7}, "2024-01-01 00:00:00",
]  # fmt: skip
LINES = ["", "  ", "chatter", '{"step": 1', "[1]", '{"step": 5},', '{"a": 01}', "{}", '{"é": 1}',
         '{"step": 1}{"step": 2}', '{"a": 1, "a": 2}', '{"n": 1e999}']  # fmt: skip


def test_hundreds_of_random_files_of_json_lines_are_read_as_line_by_line():
    chance = random.Random(0)
    for _ in range(700):
        pool = chance.sample(VALUES, chance.randrange(1, len(VALUES)))
        lines = []
        for n in range(chance.randrange(1, 10)):
            row = {"step": n, **{k: chance.choice(pool) for k in ("loss", "lr", "a/b")}}
            lines.append(json.dumps(row))
            if chance.random() < 0.05:
                lines.append(chance.choice(LINES))
        part = ("\n".join(lines) + "\n").encode()
        slow = json_objects.by_lines(part)
        assert_same(json_objects.block(part), slow, slow.columns)


# --- binary tables -------------------------------------------------------------------------------


def scalars_one_by_one(data: bytes) -> dict[str, list[tuple[int, float]]]:
    """The scalars of an event file, each record read as if it were the file's only one."""
    found: dict[str, list[tuple[int, float]]] = {}
    while data:
        end = 12 + struct.unpack_from("<Q", data)[0] + 4
        for one in tensorboard_file.scalars(io.BytesIO(data[:end]).read):
            pairs = zip(one.step.tolist(), one.value.tolist(), strict=True)
            found.setdefault(one.tag, []).extend(pairs)
        data = data[end:]
    return found


def test_event_records_of_any_kind_are_read_as_one_by_one():
    data = events_of(random.Random(0), 800)
    quick = list(tensorboard_file.scalars(io.BytesIO(data).read))
    slow = scalars_one_by_one(data)
    assert {one.tag for one in quick} == set(slow)
    for one in quick:
        step, value = zip(*slow[one.tag], strict=True)
        np.testing.assert_array_equal(one.step, step)
        np.testing.assert_array_equal(one.value, value)


def test_history_records_of_any_kind_are_read_as_one_by_one():
    records = history_of(random.Random(0), 3000)
    rows = [history_row(record) for record in records]
    whole = [message(wandb_file.HISTORY, record) for record in records]
    block = wandb_file.history_block(whole, [], lambda *_: None)
    names = {name for row in rows for name in row}
    assert block.columns.keys() == names
    for name in names:
        assert same(block.cells(name), of_values([row.get(name) for row in rows])), name


# --- rows ----------------------------------------------------------------------------------------


class Kept:
    """What would be written."""

    def __init__(self) -> None:
        self.steps: list[pa.RecordBatch] = []
        self.events: list[tuple[int, str]] = []

    def append(self, batch: codec.Batch) -> None:
        decoded = codec.decode(batch.table, batch.payload)
        if batch.table is Table.STEPS:
            self.steps.append(decoded)
        else:
            self.events.append((sum(map(len, self.steps)), decoded.column("kind")[0].as_py()))

    def told(self, line: RunBuilder):
        rows = pa.Table.from_batches(self.steps).to_pylist() if self.steps else []
        found = [{k: v for k, v in row.items() if v is not None} for row in rows]
        marks = sorted((name, sorted(marks)) for name, marks in line.state.marks.items())
        return repr((found, self.events, marks, line.state.first_scale))


COLUMNS = ("loss", "grad_norm", "lr", "scale", "loss_scale", "skipped", "skips", "time_ns")
OURS = {name: name for name in COLUMNS if name not in ("loss_scale", "skips")}
NAMES = {**OURS, "step": "step", "scale_after": "loss_scale", "(skips)": "skips"}


def course_of(chance: random.Random, count: int) -> list[dict[str, float]]:
    """Rows with what happens to tables: gaps, restarts, repeated steps, scales that fall."""
    there = [name for name in COLUMNS if chance.random() < 0.5] or ["loss"]
    scales = [65536.0 * 2.0**n for n in range(-3, 2)] + [64000.0, 0.0, math.nan, math.inf]
    rows, step, scale, skips = [], chance.choice([-1, 0, 0, 1, 500]), 65536.0, 0
    stride, calm = chance.choice([1, 1, 10]), chance.random()
    is_numbered, is_sparse = chance.random() < 0.8, chance.random() < 0.3
    for _ in range(count):
        step += stride
        if chance.random() > calm:
            jump = chance.choice(["same", "back", "ahead", "scale", "scale", "skip"])
            step += {"same": -stride, "back": -7 * stride, "ahead": 30}.get(jump, 0)
            scale = chance.choice([*scales, scale / 2, scale * 2]) if jump == "scale" else scale
            skips += jump == "skip"
        row = {
            "loss": chance.choice([2.5, math.nan]), "lr": 0.1, "time_ns": step, "scale": scale,
            "grad_norm": chance.choice([1.0, 1.0, 1.0, math.inf, math.nan]), "loss_scale": scale,
            "skipped": float(chance.random() < 0.1), "skips": skips,
        }  # fmt: skip
        row = {name: row[name] for name in there if not (is_sparse and chance.random() < 0.3)}
        if is_numbered and chance.random() < 0.97:
            row["step"] = step
        rows.append(row)
    return rows


def one_by_one(rows: list[dict[str, float]]):
    """The same rows as lines of statistics: merged, with the next one's scale, taken singly."""
    merged: list[dict[str, float]] = []
    for row in rows:
        if not row.keys() - {"step"}:
            continue
        if merged and "step" in row and merged[-1].get("step") == row["step"]:
            merged[-1] = {**row, **merged[-1]}
        else:
            merged.append(dict(row))
    for row, after in itertools.pairwise(merged):
        follows = after.get("step") == (row["step"] + 1 if "step" in row else None)
        if follows and "scale" in row and "scale" in after and "loss_scale" not in row:
            row["loss_scale"] = after["scale"]
    kept = Kept()
    line = RunBuilder(RowWriter(kept))
    for row in merged:
        ours = {c: row[n] for c, n in NAMES.items() if n in row}
        flag, skips = ours.pop("skipped", None), ours.pop("(skips)", None)
        step = ours.pop("step", None)
        line.take(Stats(
            step=step, values=ours, total_skips=skips,
            is_skipped=None if flag is None else bool(flag),
        ))  # fmt: skip
    line.finish()
    return kept.told(line)


def by_columns(chance: random.Random, rows: list[dict[str, float]]):
    blocks = []
    while rows:
        size = chance.choice([1, 2, 5, 100])
        part, rows = rows[:size], rows[size:]
        names = ("step", *COLUMNS)
        columns = {name: of_values([row.get(name) for row in part]) for name in names}
        blocks.append(Block(len(part), columns))
    kept = Kept()
    line = RunBuilder(RowWriter(kept))
    for part in merged_by_step(counted_rows(blocks, lambda: NAMES, lambda _: None)):
        line.take_table(part)
    line.finish()
    return kept.told(line)


@pytest.mark.parametrize("seed", range(12))
def test_hundreds_of_random_tables_give_the_rows_that_one_by_one_would(seed, monkeypatch):
    monkeypatch.setattr(run_builder, "_LEAST_PLANNED", 8)
    monkeypatch.setattr(run_builder, "_WORTH_A_PLAN", 3)
    monkeypatch.setattr(table_rows, "SHORT", 1)
    monkeypatch.setattr(run_builder, "SHORT", 1)
    chance = random.Random(seed)
    for _ in examples(20):
        rows = course_of(chance, chance.randrange(3, 40))
        assert by_columns(chance, rows) == one_by_one(rows)
