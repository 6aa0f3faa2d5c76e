"""`Run.figure()`: the report's chart in plotly, for the user's hands."""

from __future__ import annotations

import sys

import pytest
from written_runs import write_run

from ampwatch import open_run
from ampwatch.errors import ReportError


def test_the_figure_holds_the_numbers_of_the_log(tmp_path):
    run = open_run(write_run(tmp_path, skipped=30))
    figure = run.figure()
    drawn = {line.name: line for line in figure.data}
    assert set(drawn) == {"loss scale", "skipped", "loss", "gradient norm", "learning rate"}
    scale = dict(zip(run.steps["step"].to_pylist(), run.steps["scale"].to_pylist(), strict=True))
    assert all(
        scale[x] == y for x, y in zip(drawn["loss scale"].x, drawn["loss scale"].y, strict=True)
    )
    assert list(drawn["skipped"].x) == list(range(100, 130))
    assert "AMP103 scale collapse" in {note.text for note in figure.layout.annotations}


def test_a_name_is_text_in_the_figure(tmp_path):
    figure = open_run(write_run(tmp_path, "<a href='x'>b</a>")).figure()
    assert "<" not in figure.layout.title.text


def test_a_run_without_steps_has_no_figure_and_says_so(tmp_path):
    with pytest.raises(ReportError, match="no steps"):
        open_run(write_run(tmp_path, accepted=0)).figure()


def test_without_plotly_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.subplots", None)
    with pytest.raises(ReportError, match="pip install"):
        open_run(write_run(tmp_path)).figure()
