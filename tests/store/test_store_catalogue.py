"""Runs are found where they are and where the user's state folder says they are."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from store_samples import OTHER_ID, event, info, steps, write_run

from ampwatch.environment import state_folder
from ampwatch.store import RankWriter, compact, create_run, list_runs, register_run


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "state"))
    monkeypatch.delenv("AMPWATCH_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "state"


@pytest.mark.parametrize("compacted", [False, True])
def test_a_summary_says_what_a_run_came_to(tmp_path: Path, compacted: bool) -> None:
    run = write_run(tmp_path / "runs", 5)
    if compacted:
        compact(run)
    [found] = list_runs(tmp_path / "runs")
    assert (found.path, found.name, found.id, found.source) == (run, "run", info().id, "ampwatch")
    assert (found.ranks, found.steps, found.ended, found.final_scale) == ((0,), 50, True, 65536.0)
    assert found.started_ns == info().started_ns
    assert found.last_time_ns == max(found.started_ns, 10**18 + 49)
    assert found.problem is None


def test_without_a_folder_the_default_one_and_the_registered_runs_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    default = write_run(tmp_path / "ampwatch-runs", 1)
    elsewhere = create_run(tmp_path / "far", info("far", OTHER_ID))
    for run in (default, elsewhere, elsewhere):
        assert register_run(run)
    assert {run.path for run in list_runs()} == {Path("ampwatch-runs") / "run", elsewhere}
    monkeypatch.setenv("AMPWATCH_DIR", str(tmp_path / "far"))
    assert {run.path for run in list_runs()} == {default, elsewhere}
    assert [run.path for run in list_runs(tmp_path / "far")] == [elsewhere]
    assert [run.path for run in list_runs(elsewhere)] == [elsewhere]


def test_a_vanished_run_is_dropped_and_one_on_a_missing_disk_is_remembered(tmp_path: Path) -> None:
    gone = create_run(tmp_path / "here", info("gone"))
    away = create_run(tmp_path / "disk", info("away", OTHER_ID))
    register_run(gone)
    register_run(away)
    shutil.rmtree(gone)
    (tmp_path / "disk").rename(tmp_path / "unplugged")
    assert list_runs() == []
    (tmp_path / "unplugged").rename(tmp_path / "disk")
    assert [run.path for run in list_runs()] == [away]
    assert len(list((state_folder() / "runs").iterdir())) == 1


def test_what_cannot_be_read_is_listed_with_its_reason_and_hides_nobody(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", 1)
    broken = create_run(tmp_path / "runs", info("broken", OTHER_ID))
    (broken / "run.json").write_text("{}")
    (tmp_path / "runs" / "notes").mkdir()
    found = {run.name: run.problem for run in list_runs(tmp_path / "runs")}
    assert found.keys() == {"run", "broken"}
    assert found["run"] is None
    assert "run.json" in found["broken"]


def test_a_state_folder_that_cannot_be_written_is_no_harm(own_state: Path, tmp_path: Path) -> None:
    own_state.write_text("a file")
    run = create_run(tmp_path / "runs", info())
    assert not register_run(run)
    assert list_runs() == []


def test_a_folder_that_is_absent_has_no_runs(tmp_path: Path) -> None:
    assert list_runs(tmp_path / "absent") == []
    assert list_runs() == []


def test_a_live_run_is_listed_as_not_ended(tmp_path: Path) -> None:
    run = create_run(tmp_path / "runs", info())
    writer = RankWriter(run, 0)
    writer.append(event("started"))
    writer.append(steps(7, 3, scale_after=[None] * 3, scale=[8.0] * 3))
    [found] = list_runs(tmp_path / "runs")
    assert (found.ended, found.steps, found.final_scale) == (False, 3, 8.0)
    writer.close()
