"""What `ampwatch export` writes, read back by others, is the run to the last digit."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from ampwatch import cli, codec, open_run, store
from ampwatch.rows import SCHEMAS, Table

ROWS = 40
SPECIAL = [0.1, 1 / 3, 5e-324, 2.0**-149, 1.7976931348623157e308, float("nan"), float("inf"), -0.0]
TEXTS = ['quoted "x", and; more', "line\nbreak", "ünïcode", ""]


def values_of(kind: pa.DataType, random: np.random.Generator) -> list:
    """Awkward values of a stored type; every third row has none."""
    if pa.types.is_list(kind):
        parts = [values_of(kind.value_type, random)[1:3] for _ in range(ROWS)]
        found = [[v for v in part if v is not None] for part in parts]
    elif pa.types.is_floating(kind):
        digits = random.standard_normal(ROWS) * 10.0 ** random.integers(-30, 30, ROWS)
        found = [*SPECIAL, *digits.tolist()][:ROWS]
    elif pa.types.is_boolean(kind):
        found = (random.random(ROWS) < 0.5).tolist()
    elif pa.types.is_integer(kind):
        top = 14 if kind.bit_width == 8 else 2 ** (kind.bit_width - 1) - 1
        found = random.integers(0, top, ROWS, endpoint=True).tolist()
    else:
        found = [TEXTS[n % len(TEXTS)] for n in range(ROWS)]
    return [None if n % 3 == 2 else value for n, value in enumerate(found)]


@pytest.fixture
def run(tmp_path):
    """A run whose every column holds what is awkward to write."""
    random = np.random.default_rng(7)
    folder = store.create_run(tmp_path, store.RunInfo(id="ab" * 16, name="awkward"))
    writer = store.RankWriter(folder, 0)
    for table, schema in SCHEMAS.items():
        columns = {field.name: values_of(field.type, random) for field in schema}
        if "step" in columns:
            columns["step"] = list(range(ROWS))
        if "layer" in columns:
            columns["layer"] = [n % 5 for n in range(ROWS)]
        if table is Table.LAYER_INFO:
            columns["name"] = [f"block.{n % 5}" for n in range(ROWS)]
        if table is Table.EVENTS:
            columns["kind"] = [TEXTS[n % len(TEXTS)] for n in range(ROWS)]
        if table is Table.EXTRAS:
            columns["name"] = [f"user's {n % 2}" for n in range(ROWS)]
        writer.append(codec.encode(table, columns))
    writer.close()
    return folder


def read_parquet(path, wanted):
    del wanted
    return parquet.read_table(path)


def read_csv(path, wanted):
    """By what the help says: an empty cell is absent, a list is JSON; nan is a number."""
    flat = {
        field.name: pa.string() if pa.types.is_nested(field.type) else plain(field.type)
        for field in wanted.schema
    }
    options = csv.ConvertOptions(
        column_types=flat, null_values=[""], strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )  # fmt: skip
    parse = csv.ParseOptions(newlines_in_values=True)
    rows = csv.read_csv(path, convert_options=options, parse_options=parse)
    for place, field in enumerate(wanted.schema):
        if pa.types.is_nested(field.type):
            lists = [None if t is None else json.loads(t) for t in rows[field.name].to_pylist()]
            rows = rows.set_column(place, field.name, pa.array(lists, field.type))
    return rows


def plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


@pytest.mark.parametrize("to", ["parquet", "csv"])
@pytest.mark.parametrize("table", ["steps", "layers", "devices", "events"])
def test_every_value_comes_back_to_the_last_digit(run, tmp_path, capsys, to, table):
    assert cli.run(["export", str(run), "--format", to, "-o", str(tmp_path / "out")]) == 0
    capsys.readouterr()
    wanted = open_run(run).read(table)
    found = {"parquet": read_parquet, "csv": read_csv}[to](
        tmp_path / "out" / f"{table}.{to}", wanted
    )
    assert found.column_names == wanted.column_names
    assert found.num_rows == wanted.num_rows == ROWS
    for name in wanted.column_names:
        # As text: nan equals itself, and -0.0 is told from 0.0.
        assert str(found[name].to_pylist()) == str(wanted[name].to_pylist()), name


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")  # a rate of 1.8e308, doubled
def test_an_awkward_run_is_drawn_compared_and_exported_all_the_same(run, tmp_path, capsys):
    page, events = tmp_path / "out.html", tmp_path / "events"
    for words in (
        ("report", run, "-o", page),
        ("compare", run, run),
        ("compare", run, run, "--json"),
        ("export", run, "--format", "tensorboard", "-o", events),
    ):
        assert cli.run([str(word) for word in words]) == 0, capsys.readouterr().err
    assert "</html>" in page.read_text("utf-8")
    assert [file.suffix for file in events.iterdir()] == [".ampwatch"]
