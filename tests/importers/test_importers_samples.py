"""Every sample against its truth, field by field."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ampwatch import diagnose, open_run
from ampwatch.importers import import_log
from ampwatch.rows import Table

FOLDER = Path(__file__).parent / "samples"
TRUTHS = sorted(FOLDER.glob("*.json"))
RUN_FIELDS = ("source", "first_scale", "final_scale", "overflows", "skipped", "steps")


@pytest.mark.parametrize("path", TRUTHS, ids=lambda path: path.stem)
def test_every_field_of_a_sample_is_right(path, tmp_path):
    truth = json.loads(path.read_text())
    sample = next(p for p in FOLDER.glob(f"{path.stem}.*") if p.suffix != ".json")
    run = open_run(import_log(sample, tmp_path))
    told = diagnose(run)
    report = told.to_json()
    found = {name: report["run"][name] for name in RUN_FIELDS if name in truth}
    assert found == {name: truth[name] for name in RUN_FIELDS if name in truth}
    if truth["verdict"] != "*":
        assert report["verdict"] == truth["verdict"], told.findings
    codes = {finding.code for finding in told.findings}
    assert set(truth.get("must", ())) <= codes
    assert truth.get("config", {}).items() <= dict(run.info.config).items()
    events = run.read(Table.EVENTS).column("kind").to_pylist()
    assert events.count("started") == truth.get("attempts", 1)
    if "note" in truth:
        assert any(truth["note"] in note for note in run.notes)
    if "last_loss" in truth:
        losses = run.read(Table.STEPS, columns=("loss",)).column(0).drop_null()
        assert losses[-1].as_py() == pytest.approx(truth["last_loss"], rel=0.02)
