"""Runs are found where they are and where the user's state says; one is deleted whole or stays."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from store_samples import OTHER_ID, event, info, steps, write_run

from ampwatch import store
from ampwatch.environment import state_folder
from ampwatch.errors import RunError
from ampwatch.store import (
    Catalogue,
    CopyNote,
    RankWriter,
    RunSummary,
    catalogue,
    compact,
    create_run,
    delete_run,
    edit_tags,
    list_runs,
    register_run,
    size_of_run,
    write_copies,
)


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


def opened_by(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the runs that are opened from now on."""
    opened: list[str] = []
    real = catalogue.summarize

    def summarize(path: Path) -> RunSummary:
        opened.append(path.name)
        return real(path)

    monkeypatch.setattr(catalogue, "summarize", summarize)
    return opened


def test_a_second_listing_opens_only_the_runs_that_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, number in (("still", "1"), ("grown", "2"), ("another", "3")):
        create_run(tmp_path / "runs", info(name, number * 32))
    first = list_runs(tmp_path / "runs")
    opened = opened_by(monkeypatch)
    assert list_runs(tmp_path / "runs") == first
    assert opened == []
    writer = RankWriter(tmp_path / "runs" / "grown", 0)
    writer.append(steps(0, 3))
    writer.close()
    grown = {run.name: run.steps for run in list_runs(tmp_path / "runs")}
    assert (grown, opened) == ({"still": 0, "grown": 3, "another": 0}, ["grown"])


@pytest.mark.parametrize("table", ["steps.arrows", "devices.arrows"])
def test_a_file_that_changes_or_appears_makes_a_runs_line_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    run = write_run(tmp_path / "runs", 2)
    (run / "rank-0" / "lock").unlink()
    (run / "rank-0" / "lock").symlink_to("nowhere")
    list_runs(tmp_path / "runs")
    opened = opened_by(monkeypatch)
    with (run / "rank-0" / table).open("ab") as file:
        file.write(b"more")
    list_runs(tmp_path / "runs")
    assert opened == ["run"]


def test_what_is_kept_may_be_damaged_or_of_another_edition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "runs", 2)
    first = list_runs(tmp_path / "runs")
    [kept] = (state_folder() / "kept").iterdir()
    text = kept.read_bytes()
    for damaged in (b"", b"\0" * 99, text[:-9], text.replace(b"[0]", b"{}"), b"[" * 99_999):
        kept.write_bytes(damaged)
        assert list_runs(tmp_path / "runs") == first
    opened = opened_by(monkeypatch)
    monkeypatch.setattr(catalogue, "_EDITION", "other")
    list_runs(tmp_path / "runs")
    assert opened == ["run"]


def test_what_is_kept_of_folders_that_are_gone_is_cleared_away(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", 1)
    list_runs(tmp_path / "runs")
    shutil.rmtree(tmp_path / "runs")
    write_run(tmp_path / "other", 1)
    list_runs(tmp_path / "other")
    assert len(list((state_folder() / "kept").iterdir())) == 1


def test_what_is_kept_does_not_grow_with_each_listing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ampwatch.store.kept_facts._SPARE_LINES", 3)
    run = write_run(tmp_path / "runs", 1)
    for number in range(30):
        os.utime(run / "run.json", ns=(number, number))
        list_runs(tmp_path / "runs")
    [kept] = (state_folder() / "kept").iterdir()
    assert len(kept.read_bytes().splitlines()) < 9


def test_who_lists_again_in_haste_sees_what_is_new_gone_or_goes_on(tmp_path: Path) -> None:
    ended = write_run(tmp_path / "runs", 1)
    live = create_run(tmp_path / "runs", info("live", OTHER_ID))
    listing = Catalogue([tmp_path / "runs"])
    listing.runs()
    writer = RankWriter(live, 0)
    writer.append(steps(0, 4))
    new = create_run(tmp_path / "runs", info("new", "3" * 32))
    shutil.rmtree(ended)
    seen = {run.path: run.steps for run in listing.runs(thorough=False)}
    assert seen == {live: 4, new: 0}
    writer.close()


def test_a_received_run_is_told_from_ones_own(tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs", 1)
    assert not list_runs(tmp_path / "runs")[0].is_copy
    store.write_copies(run, {0: CopyNote()})
    assert list_runs(tmp_path / "runs")[0].is_copy


def test_another_tools_log_is_listed_by_the_time_of_its_import(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", 1)
    old = store.RunInfo(id=OTHER_ID, name="old", source="apex", started_ns=5)
    create_run(tmp_path / "runs", old)
    assert [run.name for run in list_runs(tmp_path / "runs")] == ["old", "run"]


def test_of_many_new_runs_as_many_are_read_as_there_is_time_for_and_the_last_by_name_first(
    tmp_path: Path,
) -> None:
    for number in "123":
        create_run(tmp_path / "runs", info(f"run-{number}", number * 32))
    listing = Catalogue([tmp_path / "runs"])
    for names in ({"run-3"}, {"run-3", "run-2"}, {"run-3", "run-2", "run-1"}):
        assert {run.name for run in listing.runs(budget_s=-1.0)} == names
        assert listing.unread == 3 - len(names)
    assert len(listing.runs()) == 3


# --- delete a run ---------------------------------------------------------------------------------

ID = info().id


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return write_run(tmp_path / "runs", 1)


def test_a_run_is_deleted_with_all_that_is_ours(run: Path) -> None:
    edit_tags(run, add=["x"])
    write_copies(run, {})
    (run / ".run.json.99.new").write_bytes(b"left by who was killed")
    size = sum(file.stat().st_size for file in run.rglob("*") if file.is_file())
    assert size_of_run(run) == size > 0
    delete_run(run, ID, [run.parent])
    assert list(run.parent.iterdir()) == []


def test_a_run_that_is_written_stays(run: Path) -> None:
    writer = RankWriter(run, 0)
    with pytest.raises(RunError, match="is being written"):
        delete_run(run, ID, [run.parent])
    writer.close()
    assert list_runs(run.parent)[0].problem is None


def test_what_ampwatch_did_not_write_is_never_deleted(run: Path) -> None:
    (run / "checkpoint.pt").write_bytes(b"weeks of work")
    with pytest.raises(RunError, match=r"did not write \(checkpoint.pt\)"):
        delete_run(run, ID, [run.parent])
    assert (run / "checkpoint.pt").exists()
    assert (run / "run.json").exists()


def test_nothing_outside_the_folders_of_runs_is_deleted(run: Path, tmp_path: Path) -> None:
    for within in ([], [tmp_path], [run], [run.parent / "rank-0"]):
        with pytest.raises(RunError, match="not in a folder of runs"):
            delete_run(run, ID, within)
    with pytest.raises(RunError):
        delete_run(run / "rank-0", ID, [run])
    link = run.parent / "link"
    link.symlink_to(run)
    with pytest.raises(RunError, match="is a link"):
        delete_run(link, ID, [run.parent])
    assert (run / "rank-0" / "index").exists()


def test_another_run_of_the_same_name_is_not_taken_for_it(run: Path) -> None:
    with pytest.raises(RunError, match="another run by now"):
        delete_run(run, "f" * 32, [run.parent])
    shutil.rmtree(run)
    with pytest.raises(RunError, match="holds no run"):
        delete_run(run, ID, [run.parent])


def test_what_a_killed_deletion_left_is_cleared_by_the_next(run: Path) -> None:
    (run.parent / ".other.77.deleted").mkdir()
    assert [line.name for line in list_runs(run.parent)] == ["run"]
    delete_run(run, ID, [run.parent])
    assert list(run.parent.iterdir()) == []
