"""Tags and a note beside a run: nothing that anybody noted is lost."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest
from store_samples import write_run

from ampwatch.errors import RunError
from ampwatch.store import RunTags, edit_tags, list_runs, locks, read_tags, tags


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return write_run(tmp_path / "runs", 1)


def test_tags_are_added_and_removed_in_their_order(run: Path) -> None:
    assert read_tags(run) == RunTags()
    edit_tags(run, add=["good", "sweep", "good"])
    assert edit_tags(run, add=["new"], remove=["good"]) == RunTags(("sweep", "new"))
    assert read_tags(run).tags == ("sweep", "new")
    assert list_runs(run.parent)[0].tags == ("sweep", "new")


def test_many_who_tag_one_run_at_once_lose_nothing(run: Path) -> None:
    def tag(person: int) -> None:
        for number in range(5):
            edit_tags(run, add=[f"{person}.{number}"])
            seen = read_tags(run).note
            edit_tags(run, note=f"{seen}\n{person}.{number}", note_seen=seen)

    people = [threading.Thread(target=tag, args=(person,)) for person in range(4)]
    for person in people:
        person.start()
    for person in people:
        person.join()
    wanted = {f"{person}.{number}" for person in range(4) for number in range(5)}
    assert set(read_tags(run).tags) == wanted
    assert wanted <= set(read_tags(run).note.split())


@pytest.mark.parametrize(
    ("wanted", "note"),
    [
        ("mine", "theirs\nmine"),
        ("seen\nmine", "theirs\nmine"),
        ("theirs", "theirs"),
    ],
)
def test_a_note_that_somebody_changed_meanwhile_is_kept_too(
    run: Path, wanted: str, note: str
) -> None:
    edit_tags(run, note="seen")
    edit_tags(run, note="theirs", note_seen="seen")
    assert edit_tags(run, note=wanted, note_seen="seen").note == note


def test_the_note_that_its_writer_saw_is_replaced(run: Path) -> None:
    edit_tags(run, note="first")
    assert edit_tags(run, note=" second\n", note_seen="first").note == "second"
    assert edit_tags(run, note="", note_seen="second") == RunTags()


@pytest.mark.parametrize("bad", ["", "  ", "-x", "+x", "a,b", "a\x1b[31m", "x" * 61])
def test_what_is_no_tag_is_refused(run: Path, bad: str) -> None:
    with pytest.raises(RunError):
        edit_tags(run, add=[bad])
    assert not (run / "tags.json").exists()


def test_words_become_one_tag_and_there_are_not_too_many(run: Path) -> None:
    assert edit_tags(run, add=["two  words"]).tags == ("two-words",)
    with pytest.raises(RunError, match="at most 50"):
        edit_tags(run, add=[str(number) for number in range(50)])


@pytest.mark.parametrize("word", [3, [], {}, {"tags": 1, "note": ""}, {"tags": [1], "note": ""}])
def test_a_damaged_file_is_no_tags_and_is_not_overwritten(run: Path, word: object) -> None:
    (run / "tags.json").write_text(json.dumps(word))
    assert read_tags(run) == RunTags()
    with pytest.raises(RunError, match="is damaged or cannot be read"):
        edit_tags(run, add=["x"])
    assert json.loads((run / "tags.json").read_text()) == word


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_says_so(run: Path) -> None:
    run.chmod(0o500)
    with pytest.raises(RunError, match="cannot be written"):
        edit_tags(run, add=["x"])
    run.chmod(0o700)


def test_a_disk_that_takes_nothing_leaves_the_tags(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    edit_tags(run, add=["kept"])
    monkeypatch.setattr(tags, "replace_file", full)
    with pytest.raises(RunError, match=r"No space left on device.*make room"):
        edit_tags(run, add=["x"])
    assert read_tags(run).tags == ("kept",)


def test_who_waits_too_long_for_another_is_told(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tags, "_WAIT_S", 0.05)
    held = locks.hold(run)
    with pytest.raises(RunError, match="Somebody else is changing the tags"):
        edit_tags(run, add=["x"])
    os.close(held)


def test_a_run_that_is_gone_gets_no_tags(run: Path) -> None:
    with pytest.raises(RunError, match="is gone"):
        edit_tags(run.parent / "other", add=["x"])
    assert not (run.parent / "other").exists()


def test_tagging_changes_nothing_that_was_worked_out(run: Path) -> None:
    before = list_runs(run.parent)[0].stamp
    edit_tags(run, add=["x"])
    assert list_runs(run.parent)[0].stamp == before != ""
