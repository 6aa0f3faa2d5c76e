"""docs/fleet.md keeps its word: its commands and its query run, as they are printed."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import deltalake
import pytest
from fleet_docs import PAGE, PROGRAMS, published_again, query, written

import ampwatch
from ampwatch import cli
from ampwatch.errors import NotInPlaceError
from ampwatch.fleet import list_published, publish

RUNS = Path("ampwatch-runs")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(RUNS)
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


@pytest.mark.parametrize("place", ["path"], indirect=True)  # the same in a bucket
def test_the_query_counts_what_a_run_skipped(folder, place):
    pytest.importorskip("duckdb", reason="no DuckDB here to query with")
    publish(RUNS, place)
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        exec(query(), {"PLACE": place, "__name__": "snippet"})
    cells = [[c.strip() for c in line.split("│")[1:-1]] for line in shown.getvalue().splitlines()]
    assert [row[:3] for row in cells if row and row[0].startswith("train")] == [
        ["train-1204", "68", "8"],
        ["train-1205", "50", "0"],
    ]


@pytest.mark.slow_clusters
@pytest.mark.timeout(360)
def test_spark_counts_the_same(folder, tmp_path):
    pytest.importorskip("pyspark", reason="no Spark here: pip install pyspark")
    if shutil.which("java") is None:
        pytest.skip("no Java here to run Spark")
    place = str(tmp_path / "place")
    published_again(RUNS, place)
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / "skipped_steps_spark.py"), place],
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_SUBMIT_ARGS":
             "--master local[1] --conf spark.ui.enabled=false "
             "--conf spark.sql.shuffle.partitions=1 pyspark-shell"},
        capture_output=True, text=True, timeout=340, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines()]
    assert [row for row in cells if row and row[0] != "name"] == [
        ["train-1204", "68", "8"],
        ["resumed", "55", "5"],
        ["train-1205", "50", "0"],
    ]


def test_a_deleted_run_is_gone(folder, tmp_path):
    place = str(tmp_path / "place")
    publish(RUNS, place)
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
