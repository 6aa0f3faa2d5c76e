"""What an importer says of a run: notes and marks, and a description that may be written anew."""

from __future__ import annotations

import json

import pytest
from written_runs import fresh_id

from ampwatch import codec, store
from ampwatch.rows import Table


def info(**more) -> store.RunInfo:
    return store.RunInfo(id=fresh_id("x"), name="x", **more)


def test_notes_and_marks_come_back(tmp_path):
    path = store.create_run(tmp_path, info(notes=("Cut off.",), marks={"loss": ["averaged"]}))
    run = store.open_run(path)
    assert run.notes == ("Cut off.",)
    assert run.info.marks == {"loss": ("averaged",)}


def test_a_run_is_described_anew(tmp_path):
    path = store.create_run(tmp_path, info(source="text"))
    store.describe_run(path, info(source="apex", scaler={"min_scale": 1.0}))
    assert store.read_info(path).source == "apex"
    assert store.read_info(path).scaler == {"min_scale": 1.0}
    assert {entry.name for entry in path.iterdir()} == {"run.json"}


@pytest.mark.parametrize("marks", [{"loss": "averaged"}, {"loss": None}, {"loss": [1, {}]}])
def test_marks_may_be_anything_and_harm_nobody(tmp_path, marks):
    path = store.create_run(tmp_path, info())
    facts = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps({**facts, "marks": marks}))
    assert all(isinstance(m, str) for found in store.read_info(path).marks.values() for m in found)


def test_a_run_without_any_time_has_no_last_one(tmp_path):
    path = store.create_run(tmp_path, info())
    writer = store.RankWriter(path, 0)
    writer.append(codec.encode(Table.STEPS, {"step": [0, 1], "time_ns": [None, None]}))
    writer.close()
    assert store.open_run(path).last_time_ns == 0
