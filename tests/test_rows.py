"""The registry of columns, and the page that is made of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ampwatch.rows import COLUMNS, SCHEMAS, Table, column, columns_page

PAGE = Path(__file__).parents[1] / "docs" / "columns.md"


def test_the_page_of_columns_is_made_of_the_registry():
    assert columns_page() == PAGE.read_text("utf-8"), "python -m ampwatch.rows > docs/columns.md"


def test_every_stored_column_has_a_meaning():
    for table, schema in SCHEMAS.items():
        assert schema.names == [one.name for one in COLUMNS[table]]
        assert all(one.meaning for one in COLUMNS[table])


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [("grad_norm", 1.23456, "1.235"), ("log2_headroom", 11.94, "11.9"), ("grad_norm", None, ""),
     ("underflow_share", 0.0413, "4.13"), ("grad_norm", float("inf"), "inf")],
)  # fmt: skip
def test_a_value_is_written_in_its_columns_format(name, value, text):
    assert column(Table.LAYERS, name).text(value) == text


def test_an_axis_is_named_with_its_unit():
    assert column(Table.STEPS, "step_time_ms").axis == "step time, ms"
    assert column(Table.STEPS, "loss").axis == "loss"
