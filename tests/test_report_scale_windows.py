"""The usable loss scales of layers: all of one step, and the title says the same as the bars."""

from __future__ import annotations

import dataclasses

import pytest
from alert_parts import finding
from written_runs import step_columns, write_run

from ampwatch import codec, diagnose, open_run, store
from ampwatch.diagnosis import Severity
from ampwatch.report.layer_views import FP8, FP16, Wanted, speaks_of, windows_header
from ampwatch.report.scale_windows import Window, range_text, window_title, windows_at
from ampwatch.rows import Table


def write_samples(path, samples, *, rank=0, lost=None):
    """Rows of layers: at each step the smallest and the largest scale of each, or an overflow."""
    writer = store.RankWriter(path, rank)
    names = list(next(iter(samples.values())))
    numbers = list(range(len(names)))
    info = {"step": [0] * len(names), "layer": numbers, "name": names, "order": numbers}
    writer.append(codec.encode(Table.LAYER_INFO, info))
    for step, ends in samples.items():
        rows = {
            "step": [step] * len(names),
            "layer": numbers,
            "scale_low": [None if end is None else end[0] for end in ends.values()],
            "scale_high": [None if end is None else end[1] for end in ends.values()],
            "out_grad_finite": [end is not None for end in ends.values()],
            "underflow_share": [lost] * len(names),
        }
        writer.append(codec.encode(Table.LAYERS, rows))
    writer.close()
    return open_run(path)


def test_of_several_ranks_the_window_is_one_that_suits_them_all(tmp_path):
    path = write_run(tmp_path)
    bounds = [(4.0, 2.0**10), (2.0, 2.0**14), (16.0, 2.0**12)]
    for rank, ends in enumerate(bounds):
        run = write_samples(path, {0: {"head": (64.0, 2.0)}, 50: {"head": ends}}, rank=rank)
    (window,) = windows_at(run, None).windows
    assert (window.low, window.high) == (4.0, 10.0)
    assert windows_at(run, 20).windows[0].is_empty


@pytest.mark.parametrize(("lost", "low"), [(0.1, None), (0.9, 17.0), (None, None)])
def test_a_layer_of_whose_gradients_most_are_lost_needs_more_than_the_scale(tmp_path, lost, low):
    """All its gradients are 0 at a scale of 2^16: a histogram cannot tell how much it needs."""
    run = write_samples(write_run(tmp_path), {0: {"head": (None, 2.0**40)}}, lost=lost)
    assert windows_at(run, 0).windows[0].low == low
    assert windows_at(run, 0).scale == 16.0


def test_a_rank_that_is_behind_is_waited_for(tmp_path):
    path = write_run(tmp_path)
    write_samples(path, {0: {"head": (1.0, 4.0)}, 50: {"head": (1.0, 8.0)}})
    run = write_samples(path, {0: {"head": (1.0, 2.0)}}, rank=1)
    assert windows_at(run, None).step == 0


def test_layers_that_are_known_before_the_row_of_their_step_wait_for_its_scale(tmp_path):
    ends = {"head": (1.0, 4.0)}
    run = write_samples(write_run(tmp_path, accepted=50), {40: ends, 50: ends})
    assert (windows_at(run, None).step, windows_at(run, 50).step) == (40, 40)


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
    assert len(windows_at(open_run(path), None).windows) == layers


def test_all_windows_and_the_scale_are_those_of_one_step(tmp_path):
    """At step 60 gradients overflow behind `body`, so that only `head` has a window."""
    path = write_run(tmp_path, accepted=50, skipped=50)
    samples = {
        40: {"body": (1.0, 2.0**20), "head": (1.0, 2.0**18)},
        60: {"body": None, "head": (1.0, 2.0**9)},
    }
    run = write_samples(path, samples)
    for asked in (None, 60, 40):
        sample = windows_at(run, asked)
        assert (sample.step, sample.scale) == (40, 16.0)
        assert [window.high for window in sample.windows] == [20.0, 18.0]


def test_the_scale_is_that_of_the_step_and_not_the_last_one(tmp_path):
    ends = {"body": (1.0, 2.0**20)}
    path = write_run(tmp_path, accepted=50, skipped=20)
    run = write_samples(path, dict.fromkeys((0, 50, 53, 69), ends))
    scales = step_columns(50, 20, 0)["scale"]
    for step in (0, 50, 53, 69):
        header = windows_header(run, Wanted(step=step))
        assert header["step"] == step
        assert 2.0 ** header["scale"] == scales[step]


def test_the_layer_that_was_chosen_is_among_the_windows_however_much_room_it_has(tmp_path):
    tops = {f"b.{n}": (None, 2.0 ** (10 + n / 100)) for n in range(60)}
    run = write_samples(write_run(tmp_path), {0: tops})
    for chosen in (None, "b.59"):
        header = windows_header(run, Wanted(step=0, layer=chosen))
        assert ("b.59" in [row["layer"] for row in header["rows"]]) == (chosen is not None)
        assert len(header["rows"]) + header["hidden"] == 60


# --- the title -----------------------------------------------------------------------------------


def windows(**ends):
    return [Window(name, at, *pair) for at, (name, pair) in enumerate(ends.items())]


@pytest.mark.parametrize(
    ("ends", "scale", "named", "text", "layers"),
    [
        ({"body": (2.0, 24.0), "head": (4.0, 20.4)}, 16.0, None,
         "Layer head caps the loss scale at 2^20", ("head",)),
        ({"body": (2.0, 24.0), "head": (4.0, 20.4)}, 16.0, "body",
         "Layer body overflows above a loss scale of 2^24", ("body",)),
        ({"body": (2.0, 24.0), "head": (16.3, 20.0)}, 16.0, None,
         "Layer head needs a loss scale of 2^17 or more", ("head",)),
        ({"body": (17.0, 24.0), "head": (18.0, 20.0)}, 16.0, "body",
         "Layer body needs a loss scale of 2^17 or more", ("body",)),
        ({"body": (22.0, 24.0), "head": (4.0, 20.0)}, 16.0, None,
         "No loss scale suits layer body and layer head at once", ("body", "head")),
        ({"body": (25.0, 24.0), "head": (4.0, 20.0)}, 16.0, "head",
         "No loss scale suits layer body", ("body",)),
        ({"body": (None, 24.0)}, None, None, "Layer body caps the loss scale at 2^24", ("body",)),
    ],
)  # fmt: skip
def test_the_title_says_which_layer_limits_the_scale_and_where(ends, scale, named, text, layers):
    title = window_title(windows(**ends), scale, named)
    assert (title.text, title.layers) == (text, layers)


@pytest.mark.parametrize(
    ("ends", "scale", "is_trouble"),
    [
        ({"body": (2.0, 24.0), "head": (4.0, 20.4)}, 16.0, False),
        ({"body": (2.0, 24.0), "head": (4.0, 20.4)}, 19.4, True),  # the next growth overflows
        ({"body": (2.0, 24.0), "head": (16.3, 20.0)}, 16.0, True),  # it loses gradients
        ({"body": (22.0, 24.0), "head": (4.0, 20.0)}, 12.0, True),  # no scale suits both
        ({"body": (25.0, 24.0)}, 12.0, True),
        ({"body": (None, 24.0)}, None, False),
    ],
)
def test_windows_are_trouble_where_the_scale_of_that_step_costs_something(ends, scale, is_trouble):
    assert window_title(windows(**ends), scale).is_trouble == is_trouble


@pytest.mark.parametrize(
    ("head", "layer", "explains"),
    [(17.0, "head", True), (17.0, "body", False), (17.0, None, True), (40.0, "head", False)],
)
def test_windows_explain_a_headline_only_by_the_layer_that_it_names(
    tmp_path, head, layer, explains
):
    """The scale is 2^16, with room to 2^41 or an octave below the layer's limit."""
    ends = {"body": (None, 2.0**41), "head": (None, 2.0**head)}
    run = write_samples(write_run(tmp_path), {0: ends})
    found = finding("AMP202", Severity.WARNING, layer=layer, because_of=None)
    header = windows_header(run, Wanted(step=0), told(run, found))
    assert header["explains"] == explains


def test_a_range_is_told_in_whole_powers():
    low, open_end, empty = windows(a=(2.3, 9.8), b=(None, 9.0), c=(9.0, 2.0))
    assert [range_text(one) for one in (low, open_end, empty)] == [
        "2^3 to 2^9",
        "up to 2^9",
        "none",
    ]


# --- what is red, and whether the panel speaks ---------------------------------------------------


def told(run, *findings):
    """The run's diagnosis with these findings alone."""
    return dataclasses.replace(diagnose(run), findings=findings)


@pytest.fixture
def run(tmp_path):
    ends = {"body": (None, 2.0**18), "head": (None, 2.0**17)}
    return write_samples(write_run(tmp_path), {0: ends})


def red(header):
    return [row["layer"] for row in header["rows"] if row["isFault"]]


def test_what_the_title_names_is_red_where_the_finding_is_about_the_scale(run):
    named = finding("AMP202", Severity.WARNING, layer="head", because_of=None)
    header = windows_header(run, Wanted(step=0), told(run, named))
    assert (red(header), header["fault"]["layer"]) == (["head"], "head")
    assert red(windows_header(run, Wanted(step=0), told(run))) == []
    forward = finding("AMP203", layer="body", because_of=None)
    assert red(windows_header(run, Wanted(step=0), told(run, forward))) == []


def test_no_layer_is_red_at_a_step_whose_loss_scale_suited_all_of_them(tmp_path):
    """The last step with windows may lie long before a scale that collapsed."""
    path = write_run(tmp_path, accepted=50, skipped=50)
    windows = {"body": (1.0, 2.0**20), "head": (1.0, 2.0**18)}  # the scale of the step is 2^16
    collapsed = finding("AMP103", because_of=None)
    for tops, layers in ((windows, []), (windows | {"head": (1.0, 2.0**16)}, ["head"])):
        run = write_samples(path, {40: tops})
        assert red(windows_header(run, Wanted(step=40), told(run, collapsed))) == layers


def test_the_title_is_not_of_a_layer_whose_fault_no_loss_scale_can_help(run):
    header = windows_header(run, Wanted(step=0), told(run, finding("AMP203", layer="body")))
    assert header["title"].startswith("Layer head caps the loss scale at 2")
    assert header["fault"]["layer"] == "body"


@pytest.mark.parametrize(
    ("code", "severity", "view"),
    [("AMP103", Severity.ERROR, FP16), ("AMP201", Severity.WARNING, FP16),
     ("AMP704", Severity.WARNING, FP8), ("AMP202", Severity.INFO, None),
     ("AMP203", Severity.ERROR, None), ("AMP302", Severity.ERROR, None),
     ("AMP108", Severity.WARNING, None), ("AMP412", Severity.ERROR, None)],
)  # fmt: skip
def test_a_view_stands_beside_the_charts_only_where_it_shows_the_headline(
    run, code, severity, view
):
    assert speaks_of(told(run, finding(code, severity, because_of=None))) == view
    assert speaks_of(told(run)) is None
