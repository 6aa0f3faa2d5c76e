"""docs/fleet.md keeps its word: its commands and its query run, as they are printed."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import deltalake
import pytest
from written_runs import more, write_run

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


def shown_by(snippet: str, place: str) -> str:
    """What a snippet of the page prints."""
    code = re.search(rf"<!-- {snippet} -->\n```python\n(.*?)```", PAGE, re.DOTALL)
    assert code is not None
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        exec(code[1], {"PLACE": place, "__name__": "snippet"})
    return shown.getvalue()


def published_again(place: str) -> None:
    """Two runs, of which one was published twice: rows of an earlier edition must not count."""
    write_run(Path("ampwatch-runs"), "resumed", accepted=20, skipped=2, ended=False)
    publish("ampwatch-runs", place)
    more(Path("ampwatch-runs/resumed"), 30, skipped=3, first=22, ended=True)
    publish("ampwatch-runs", place)


@pytest.mark.parametrize("place", ["path"], indirect=True)  # the same in a bucket
def test_the_query_counts_what_a_run_skipped(folder, place):
    pytest.importorskip("duckdb", reason="no DuckDB here to query with")
    publish("ampwatch-runs", place)
    cells = [
        [c.strip() for c in line.split("│")[1:-1]] for line in shown_by("query", place).splitlines()
    ]
    assert [row[:3] for row in cells if row and row[0].startswith("train")] == [
        ["train-1204", "68", "8"],
        ["train-1205", "50", "0"],
    ]


@pytest.mark.slow_clusters
def test_ray_counts_the_same(folder, place, monkeypatch):
    ray = pytest.importorskip("ray", reason="no Ray here: pip install ray")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    published_again(place)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Ray's own
        ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        try:
            said = shown_by("ray", place)
        finally:
            ray.shutdown()
    assert set(said.splitlines()) == {"train-1204 8", "train-1205 0", "resumed 5"}


@pytest.mark.slow_clusters
@pytest.mark.timeout(360)
def test_spark_counts_the_same(folder, tmp_path):
    pytest.importorskip("pyspark", reason="no Spark here: pip install pyspark")
    if shutil.which("java") is None:
        pytest.skip("no Java here to run Spark")
    place = str(tmp_path / "place")
    published_again(place)
    program = re.search(r"<!-- spark -->\n```python\n(.*?)```", PAGE, re.DOTALL)
    assert program is not None
    done = subprocess.run(
        [sys.executable, "-c", f"PLACE = {place!r}\n{program[1]}\nspark.stop()"],
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
