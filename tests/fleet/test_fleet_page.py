"""docs/fleet.md keeps its word: its commands and its query run, as they are printed."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import deltalake
import pytest
from written_runs import write_run

import ampwatch
from ampwatch import cli
from ampwatch.errors import NotInPlaceError
from ampwatch.fleet import list_published, publish

PAGE = (Path(ampwatch.__file__).parents[1] / "docs" / "fleet.md").read_text("utf-8")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "ampwatch-runs", "train-1204", accepted=60, skipped=8)
    write_run(tmp_path / "ampwatch-runs", "train-1205", accepted=50)
    return tmp_path


def test_the_commands_run_one_after_the_other(folder, place, capsys):
    blocks = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    commands = [
        line.partition(" #")[0].strip().replace("s3://team/runs", place)
        for block in blocks
        for line in block.splitlines()
        if line.startswith("ampwatch ") and "record" not in line  # test_fleet_recorder.py runs it
    ]
    assert len(commands) == 7
    for command in commands:
        assert cli.run(command.split()[1:]) == 0, command
    assert "train-1205" in capsys.readouterr().out


def test_the_query_counts_what_a_run_skipped(folder, place):
    publish("ampwatch-runs", place)
    duckdb = pytest.importorskip("duckdb", reason="no DuckDB here to query with")
    del duckdb
    query = re.search(r"<!-- query -->\n```python\n(.*?)```", PAGE, re.DOTALL)
    assert query is not None
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        exec(query[1], {"PLACE": place})
    cells = [[c.strip() for c in line.split("│")[1:-1]] for line in shown.getvalue().splitlines()]
    assert [row[:3] for row in cells if row and row[0].startswith("train")] == [
        ["train-1204", "68", "8"],
        ["train-1205", "50", "0"],
    ]


def test_a_deleted_run_is_gone(folder, tmp_path):
    place = str(tmp_path / "place")
    publish("ampwatch-runs", place)
    line = re.search(r'DeltaTable\("s3://team/runs/runs"\)\.delete\("(.+?)"\)', PAGE)
    assert line is not None
    deltalake.DeltaTable(f"{place}/runs").delete(line[1])
    assert [run.name for run in list_published(place)] == ["train-1205"]
    with pytest.raises(NotInPlaceError):
        ampwatch.open_run(f"{place}#train-1204")
    days = re.search(r'DeltaTable\("\.\.\./steps"\)\.delete\("(.+?)"\)', PAGE)
    assert days is not None
    deltalake.DeltaTable(f"{place}/steps").delete(days[1])
    assert ampwatch.open_run(f"{place}#train-1205").steps.num_rows == 50
