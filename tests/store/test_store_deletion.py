"""A run is deleted whole, and only if it is one, nobody writes it, and nothing else is with it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from store_samples import info, write_run

from ampwatch.errors import RunError
from ampwatch.store import RankWriter, delete_run, edit_tags, list_runs, size_of_run, write_copies

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
