"""A file is replaced whole or not at all."""

from __future__ import annotations

import os

import pytest

from ampwatch.files import draft_of, replace_file, size_of


@pytest.mark.parametrize("durable", [False, True])
def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path, durable):
    path = tmp_path / "note.json"
    for data in (b"old", b"new and longer", b""):
        replace_file(path, data, durable=durable)
        assert path.read_bytes() == data
        assert [file.name for file in tmp_path.iterdir()] == ["note.json"]


def test_an_error_while_the_draft_is_written_leaves_the_old_file(tmp_path):
    path = tmp_path / "note.json"
    path.write_text("old")

    def torn():
        with draft_of(path) as draft:
            draft.write_text("ne")
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        torn()
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["note.json"]


def test_only_a_durable_file_waits_for_the_disk_and_its_data_goes_before_its_name(
    tmp_path, monkeypatch
):
    done = []
    fsync, rename = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda descriptor: (done.append("sync"), fsync(descriptor)))
    monkeypatch.setattr(os, "rename", lambda *a: (done.append("rename"), rename(*a)))
    monkeypatch.setattr(os, "replace", lambda *a: (done.append("rename"), rename(*a)))
    replace_file(tmp_path / "a", b"1")
    assert done == ["rename"]
    done.clear()
    replace_file(tmp_path / "a", b"2", durable=True)
    assert done == (["sync", "rename", "sync"] if os.name != "nt" else ["sync", "rename"])


def test_the_size_of_what_cannot_be_looked_at_is_zero(tmp_path):
    replace_file(tmp_path / "a", b"123")
    assert (size_of(tmp_path / "a"), size_of(tmp_path / "b")) == (3, 0)
