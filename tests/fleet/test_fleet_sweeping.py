"""What no run needs any more is freed, and nothing else, and nothing that is young."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import deltalake
import pytest
from written_runs import more, write_run

import ampwatch
from ampwatch import cli
from ampwatch.errors import PlaceError
from ampwatch.fleet import Place, list_published, publish, sweeping
from ampwatch.fleet.sweeping import Swept, sweep


@pytest.fixture
def later(monkeypatch):
    """Sweep with no age at all, so that what was written a moment ago is old."""

    def act(place: str) -> Swept:
        monkeypatch.setattr(sweeping, "LEAST_AGE", dt.timedelta(0))
        return sweep(place, older_than=dt.timedelta(0))

    return act


def grown(tmp_path: Path, place: str) -> Path:
    path = write_run(tmp_path / "runs", "grows", accepted=100)
    write_run(tmp_path / "runs", "stays", accepted=30)
    publish(tmp_path / "runs" / "grows", place)
    publish(tmp_path / "runs" / "stays", place)
    more(path, 50, ended=True)
    publish(path, place)
    return path


def test_what_is_young_stays(place, tmp_path):
    grown(tmp_path, place)
    Place(place).put("steps/day=2026-01-01/part-cut-off.parquet", b"half")
    before = {one.path for one in Place(place).listed("")}
    assert sweep(place) == Swept()
    assert {one.path for one in Place(place).listed("")} == before


def test_an_earlier_edition_is_freed_and_every_run_reads_as_before(place, tmp_path, later):
    path = grown(tmp_path, place)
    Place(place).put("steps/day=2026-01-01/part-cut-off.parquet", b"half")
    rows = deltalake.DeltaTable(f"{place}/steps").to_pyarrow_table().num_rows
    swept = later(place)
    assert swept.retired == 2  # its steps and its events of the first time
    assert swept.deleted >= 5  # those, what was cut off, two earlier files of `runs`, a detail
    assert deltalake.DeltaTable(f"{place}/steps").to_pyarrow_table().num_rows == rows - 100
    there = {one.path for one in Place(place).listed("")}
    assert "steps/day=2026-01-01/part-cut-off.parquet" not in there
    assert {run.name: run.steps for run in list_published(place)} == {"grows": 150, "stays": 30}
    for name in ("grows", "stays"):
        local = ampwatch.open_run(path.with_name(name))
        assert ampwatch.open_run(f"{place}#{name}").steps.equals(local.steps)
    assert later(place) == Swept()


def test_a_deleted_runs_rows_are_freed(tmp_path, later):
    place = str(tmp_path / "place")
    grown(tmp_path, place)
    deltalake.DeltaTable(f"{place}/runs").delete("name = 'grows'")
    later(place)
    assert deltalake.DeltaTable(f"{place}/steps").to_pyarrow_table().num_rows == 30
    assert ampwatch.open_run(f"{place}#stays").steps.num_rows == 30


def test_nothing_is_freed_where_a_detail_cannot_be_read(tmp_path, later):
    place = str(tmp_path / "place")
    grown(tmp_path, place)
    (row, *_) = list_published(place)
    detail = Path(place, row.detail_path)
    detail.write_bytes(bytes(len(detail.read_bytes())))
    before = {one.path for one in Place(place).listed("")}
    with pytest.raises(PlaceError, match="is damaged"):
        later(place)
    assert {one.path for one in Place(place).listed("")} == before


def test_the_command_says_what_it_frees_and_a_dry_run_frees_nothing(tmp_path, capsys):
    place = str(tmp_path / "place")
    grown(tmp_path, place)
    assert cli.run(["prune", place, "--dry-run"]) == 0
    assert "0 files would be deleted" in capsys.readouterr().out
    assert cli.run(["prune", place]) == 0
    assert "0 files deleted" in capsys.readouterr().out
    assert cli.run(["prune", place, "--older-than", "soon"]) == 2
    assert "give hours or days" in capsys.readouterr().err
    assert cli.run(["prune", place, "--older-than", "0h"]) == 2
    assert "not a safe age" in capsys.readouterr().err
