"""`Run.figure()`: the chart's own scene in plotly, for the user's hands."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from written_runs import fresh_id, step_columns, write_run

from ampwatch import codec, open_run, store
from ampwatch.diagnosis import Engine, conclude
from ampwatch.errors import ReportError
from ampwatch.report.overview_chart import curves_of, overview_of, ranks_to_draw
from ampwatch.report.painter import DARK, LIGHT
from ampwatch.report.plotly_figure import figure_of_scene
from ampwatch.rows import Table


def scene_of(run):
    """The picture and the points that the painter is sent of a run."""
    case = Engine().feed(run).case()
    diagnosis = conclude(case)
    curves = curves_of(run, ranks_to_draw(run.ranks, diagnosis))
    return overview_of(curves, diagnosis, case.scale.established)


def points(scene, stroke, panel):
    _, arrays = scene
    x, y = (arrays[f"base.{stroke.column}.{part}"] for part in "xy")
    return x, 2.0 ** y.astype(np.float64) if panel.kind == "power" else y


def ends(line):
    """First and last steps of the bars at the ground."""
    x = np.asarray(line.x, float).reshape(-1, 3)
    return x[:, 0].tolist(), x[:, 1].tolist()


@pytest.fixture
def torn(tmp_path):
    """Two ranks that differ in loss and norm; skips with inf, a nan of rank 1 alone, a 0."""
    path = store.create_run(tmp_path, store.RunInfo(id=fresh_id("torn"), name="torn", world_size=2))
    for rank in (0, 1):
        columns = step_columns(200, 20, 10**18)
        columns["loss"][50] = np.nan if rank else 0.0
        columns["loss"][:200] *= 1 + 1e4 * rank
        writer = store.RankWriter(path, rank)
        writer.append(codec.encode(Table.STEPS, columns))
        writer.close()
    return open_run(path)


def test_every_trace_has_the_points_of_the_painters_scene(torn):
    scene = picture, arrays = scene_of(torn)
    drawn = {line.name: line for line in torn.figure().data}
    labels = {stroke.label for panel in picture.panels for stroke in panel.strokes}
    assert labels == {
        "loss scale", "loss, rank 0", "loss, rank 1", "gradient norm", "learning rate",
    }  # fmt: skip
    for panel in picture.panels:
        for stroke in panel.strokes:
            x, y = points(scene, stroke, panel)
            line = drawn.pop(stroke.label)
            assert np.array_equal(np.asarray(line.x, float), x)
            assert np.allclose(np.asarray(line.y, float), y, equal_nan=True, rtol=1e-12)
            odd = [arrays.get(f"odd.{stroke.column}.{end}", []) for end in ("first", "last")]
            if len(odd[0]):
                bars = ends(drawn.pop(f"{stroke.label}, not finite"))
                assert bars == ([*odd[0]], [*odd[1]])
    assert np.array_equal(drawn.pop("skipped").x, arrays["base.skips.first"])
    assert ends(drawn.pop("loss, rank 0, 0")) == ([50], [50])
    assert drawn == {}


def test_a_nan_of_one_rank_is_drawn_for_that_rank_alone(torn):
    drawn = {line.name: line for line in torn.figure().data}
    assert ends(drawn["loss, rank 1, not finite"]) == ([50, 200], [50, 219])
    assert ends(drawn["loss, rank 0, not finite"]) == ([200], [219])


def test_the_figure_holds_the_numbers_of_the_log(tmp_path):
    run = open_run(write_run(tmp_path, skipped=30))
    figure = run.figure()
    drawn = {line.name: line for line in figure.data}
    assert set(drawn) == {
        "loss scale", "skipped", "loss", "loss, not finite", "gradient norm",
        "gradient norm, not finite", "learning rate",
    }  # fmt: skip
    scale = dict(zip(run.steps["step"].to_pylist(), run.steps["scale"].to_pylist(), strict=True))
    assert all(
        scale[x] == y for x, y in zip(drawn["loss scale"].x, drawn["loss scale"].y, strict=True)
    )
    assert list(drawn["skipped"].x) == list(range(100, 130))
    assert "AMP103 scale collapse" in {note.text for note in figure.layout.annotations}


def test_its_axes_are_those_of_the_page(tmp_path):
    figure = open_run(write_run(tmp_path, skipped=30)).figure()
    scale, *_, rate = (figure.layout[f"yaxis{row or ''}"] for row in ("", 2, 3, 4))
    assert scale.ticktext[-1] == "2¹⁶"
    assert scale.tickvals[-1] == 2.0**16
    assert rate.type == "linear"
    assert rate.range[0] == 0.0  # a level rate is no line in the middle of nothing
    assert rate.range[1] == pytest.approx(1.25 * 0.1)


@pytest.mark.parametrize(("theme", "colors"), [("light", LIGHT), ("dark", DARK)])
def test_it_is_light_or_dark_as_asked(tmp_path, theme, colors):
    figure = open_run(write_run(tmp_path)).figure(theme)
    assert figure.layout.paper_bgcolor == colors["page"]
    assert {line.line.color for line in figure.data} <= {*colors.values()}


def test_another_theme_is_refused(tmp_path):
    with pytest.raises(ReportError, match="light or dark"):
        open_run(write_run(tmp_path)).figure("blue")


def test_it_shows_the_span_and_the_kinds_of_axes_in_view(torn):
    from dataclasses import replace

    picture, arrays = scene_of(torn)
    seen = replace(picture, span=(20, 60), view="n-loss~h-grad_norm")
    figure = figure_of_scene(seen, arrays)
    assert figure.layout.xaxis.range == (20, 60)
    assert figure.layout.yaxis2.type == "linear"
    assert figure_of_scene(picture, arrays).layout.yaxis2.type == "log"
    hidden = {line.name for line in figure.data if line.visible is False}
    assert hidden == {"gradient norm", "gradient norm, not finite"}


def test_a_log_that_states_skips_and_no_scale_shows_them(tmp_path):
    path = store.create_run(tmp_path, store.RunInfo(id=fresh_id("bare"), name="bare"))
    columns = step_columns(100, 3, 10**18)
    writer = store.RankWriter(path, 0)
    rows = {name: columns[name] for name in ("step", "time_ns", "loss", "skipped")}
    writer.append(codec.encode(Table.STEPS, rows))
    writer.close()
    skips = [line for line in open_run(path).figure().data if line.name == "skipped"]
    assert [line.x for line in skips] == [(100, 101, 102)]


def test_a_scale_that_a_log_tells_at_skips_alone_is_held_pale_between_them(tmp_path):
    from address import Address
    from open_runs import OpenRuns
    from run_chart import scene_of as scene_of_page

    info = store.RunInfo(id=fresh_id("apex"), name="apex", source="apex")
    path = store.create_run(tmp_path, info)
    columns = step_columns(600, 0, 10**18)
    skipped = np.isin(columns["step"], [90, 260, 430])
    scale_after = np.where(skipped, 2.0 ** (15 - np.cumsum(skipped)), np.nan)
    columns |= {"scale": np.full(600, np.nan), "scale_after": scale_after, "skipped": skipped}
    writer = store.RankWriter(path, 0)
    writer.append(codec.encode(Table.STEPS, columns))
    writer.close()
    page = scene_of_page(OpenRuns().snapshot_of(str(path)), Address())
    for figure in (open_run(path).figure(), figure_of_scene(*page)):
        drawn = {line.name: line for line in figure.data}
        held = drawn["not logged, held"]
        known = np.isfinite(np.asarray(held.y, float))
        points = list(zip(np.asarray(held.x)[known], np.asarray(held.y)[known], strict=True))
        assert points[:2] == [(90, 2.0**14), (260, 2.0**13)]
        assert points[-1] == (599, 2.0**12)
        assert held.opacity < 1
        assert drawn["loss scale"].opacity == 1


def test_the_established_scale_is_drawn_from_the_step_at_which_the_scale_stood_there(tmp_path):
    path = store.create_run(tmp_path, store.RunInfo(id=fresh_id("search"), name="search"))
    columns = step_columns(600, 0, 10**18)
    searched = np.minimum(columns["step"], 200) // 20  # a skip each 20 steps halves the scale
    columns["skipped"] = (columns["step"] % 20 == 19) & (columns["step"] < 200)
    columns |= {"scale": 2.0 ** (24 - searched), "scale_after": np.full(600, np.nan)}
    writer = store.RankWriter(path, 0)
    writer.append(codec.encode(Table.STEPS, columns))
    writer.close()
    run = open_run(path)
    [guide] = scene_of(run)[0].panels[0].guides
    assert (guide.value, guide.since_step) == (14.0, 200)
    [line] = [shape for shape in run.figure().layout.shapes if shape.line.dash == "dot"]
    assert (line.x0, line.x1, line.y0) == (200, 599, 2.0**14)


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
