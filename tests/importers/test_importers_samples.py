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


def sample_of(name: str) -> Path:
    """The file beside a truth; some must be called as their framework calls them."""
    if (folder := FOLDER / name).is_dir():
        return next(folder.iterdir())
    return next(p for p in FOLDER.glob(f"{name}.*") if p.name != f"{name}.json")


def check_values(run, values: dict) -> None:
    """Every number that the framework's own objects held, in order; printed ones are rounded."""
    for column, expected in values.items():
        rows = run.read(Table.STEPS, columns=dict.fromkeys((column, "loss")))
        if column == "step":
            rows = rows.filter(rows.column("loss").is_valid())
        told = [float(v) for v in rows.column(column).to_pylist() if v is not None]
        assert told == pytest.approx(expected, rel=2e-3, abs=1e-12, nan_ok=True), column


@pytest.mark.parametrize("path", TRUTHS, ids=lambda path: path.stem)
def test_every_field_of_a_sample_is_right(path, tmp_path):
    truth = json.loads(path.read_text())
    sample = sample_of(path.stem)
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
    check_values(run, truth.get("values", {}))
    if "scales" in truth:
        rows = run.read(Table.STEPS, columns=("scale", "skipped")).to_pylist()
        assert [row["scale"] for row in rows if row["skipped"]] == truth["scales"]


def test_there_are_enough_samples_and_enough_of_them_are_real():
    names = [path.stem for path in TRUTHS]
    assert len(names) >= 70
    assert sum(name.startswith("real_") for name in names) >= 20
