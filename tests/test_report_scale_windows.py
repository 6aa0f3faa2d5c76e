"""Which layer stands out among the windows: the one that the band and the findings name."""

from __future__ import annotations

import dataclasses
import math

import pytest
from alert_parts import finding
from written_runs import write_run

from ampwatch import codec, diagnose, open_run, store
from ampwatch.diagnosis import Severity
from ampwatch.report.layer_views import marked_layer, windows_at, windows_header
from ampwatch.rows import Table

LEVEL = 2.0**16


def test_of_several_ranks_the_window_is_one_that_suits_them_all(tmp_path):
    path = write_run(tmp_path)
    bounds = [(4.0, 2.0**10), (2.0, 2.0**14), (16.0, 2.0**12)]
    for rank, (low, high) in enumerate(bounds):
        writer = store.RankWriter(path, rank)
        info = {"step": [0], "layer": [0], "name": ["head"], "order": [0]}
        writer.append(codec.encode(Table.LAYER_INFO, info))
        rows = {"step": [0, 50], "layer": [0, 0], "scale_low": [64.0, low]}
        writer.append(codec.encode(Table.LAYERS, rows | {"scale_high": [2.0, high]}))
        writer.close()
    (window,) = windows_at(open_run(path), None)
    assert (window.low, window.high) == (4.0, 10.0)
    assert windows_at(open_run(path), 20)[0].is_empty


def test_windows_are_found_behind_many_rows_that_tell_only_norms(tmp_path):
    """Thousands of layers log a norm at each step, and their windows only at a sampled one."""
    path, layers = write_run(tmp_path), 3000
    writer, every = store.RankWriter(path, 0), list(range(layers))
    info = {"step": [0] * layers, "layer": every, "name": [f"b.{n}" for n in every]}
    writer.append(codec.encode(Table.LAYER_INFO, info | {"order": every}))
    sample = {"step": [0] * layers, "layer": every, "scale_high": [2.0**12] * layers}
    writer.append(codec.encode(Table.LAYERS, sample))
    for step in range(1, 21):
        rows = {"step": [step] * layers, "layer": every, "grad_norm": [1.0] * layers}
        writer.append(codec.encode(Table.LAYERS, rows))
    writer.close()
    assert len(windows_at(open_run(path), None)) == layers


def test_the_layer_that_was_chosen_is_among_the_windows_however_much_room_it_has(tmp_path):
    tops = {f"b.{n}": 10.0 + n / 100 for n in range(60)}
    run = run_with(tmp_path, tops)
    for chosen in (None, "b.59"):
        header = windows_header(run, 0, None, LEVEL, chosen)
        assert ("b.59" in [row["layer"] for row in header["rows"]]) == (chosen is not None)
        assert len(header["rows"]) + header["hidden"] == 60


def run_with(tmp_path, *samples: dict[str, float]):
    """A failing run; at every hundredth step the largest scale of each layer."""
    path = write_run(tmp_path, accepted=250, skipped=50)
    names = list(samples[0])
    writer = store.RankWriter(path, 0)
    numbers = list(range(len(names)))
    info = {"step": [0] * len(names), "layer": numbers, "name": names, "order": numbers}
    writer.append(codec.encode(Table.LAYER_INFO, info))
    for at, tops in enumerate(samples):
        step = [100 * at] * len(names)
        rows = {"step": step, "layer": numbers, "scale_high": [2.0 ** tops[n] for n in names]}
        writer.append(codec.encode(Table.LAYERS, rows))
    writer.close()
    return open_run(path)


def found(run, *findings):
    """The run's diagnosis with these findings alone."""
    return dataclasses.replace(diagnose(run), findings=findings)


def marked(run, diagnosis, step):
    return marked_layer(run, step, windows_at(run, step), diagnosis, LEVEL)


HEAD = finding("AMP301", first_step=200, because_of=None)


def test_the_layer_that_the_findings_name_is_the_red_one(tmp_path):
    run = run_with(tmp_path, {"body": 10.0, "head": 14.0})
    named = finding("AMP202", Severity.WARNING, layer="head")
    one = marked(run, found(run, named), 200)
    assert (one.layer, one.caps, one.words) == ("head", True, "red: the layer that AMP202 names")
    symptom = dataclasses.replace(named, because_of="AMP301")
    assert marked(run, found(run, HEAD, symptom), 200).words.endswith("names (symptom)")


def test_a_bar_that_ends_above_the_established_scale_caps_nothing_and_is_not_red(tmp_path):
    run = run_with(tmp_path, {"body": 10.0, "head": 17.0})
    one = marked(run, found(run, finding("AMP203", layer="head")), 200)
    assert (one.layer, one.caps) == ("head", False)
    assert "caps nothing" in one.words
    assert marked(run_with(tmp_path / "calm", {"body": 16.5}), None, None) is None


def test_picking_a_step_does_not_make_another_layer_red(tmp_path):
    run = run_with(tmp_path, {"a": 20.0, "b": 12.0}, {"a": 20.0, "b": 20.0}, {"a": 9.0, "b": 12.0})
    told = found(run, finding("AMP103", first_step=200))
    assert (marked(run, told, 200).layer, marked(run, told, 200).caps) == ("a", True)
    early = marked(run, told, 0)
    assert (early.layer, early.caps) == ("a", False)
    assert "first at step 200; here it ends above" in early.words


@pytest.mark.parametrize("code", ["AMP412", "AMP108", "AMP209", "AMP601"])
def test_where_the_cause_is_no_layers_none_is_red(tmp_path, code):
    run = run_with(tmp_path, {"body": 10.0})
    assert marked(run, found(run, finding(code, first_step=200)), 200) is None


def test_a_layer_that_no_scale_suits_is_red_whatever_was_established(tmp_path):
    run = run_with(tmp_path, {"body": 30.0})
    (window,) = windows_at(run, 200)
    empty = (dataclasses.replace(window, low=math.inf),)
    told = found(run, finding("AMP208", layer="body"))
    assert marked_layer(run, 200, empty, told, LEVEL).caps
