"""The views of layers: what a run offers, what its sentence says, which cells are marked."""

from __future__ import annotations

import dataclasses
import json
import math
import struct

import pytest
from alert_parts import finding
from written_runs import write_run

from ampwatch import codec, diagnose, open_run, store
from ampwatch.report.format_losses import cast_layers, what_if_layers
from ampwatch.report.layer_views import (
    FP8,
    FP16,
    MOST_ROWS,
    WHAT_IF,
    Wanted,
    casts_header,
    chosen_view,
    offered,
    short_percent,
    view_message,
    what_if_header,
)
from ampwatch.rows import Table

E4M3, E5M2 = "float8_e4m3fn/tensorwise/dynamic", "float8_e5m2/tensorwise/dynamic"
FP8_LAYER = {"input_format": E4M3, "weight_format": E4M3, "grad_format": E5M2}
CALM = {
    f"{role}_{kind}_share": 0.0
    for role in ("input", "weight", "grad")
    for kind in ("flushed", "saturated")
}
NO_LOSS = {f"{role}_what_if": [0.0, 0.0, 0.0, 0.07] for role in ("input", "weight", "grad")}


def run_of(tmp_path, layers, formats=None, ranks=1):
    """A run whose layers have these numbers at step 0, and these formats."""
    path, names = write_run(tmp_path), list(layers)
    numbers = list(range(len(names)))
    info = {"step": [0] * len(names), "layer": numbers, "name": names, "order": numbers}
    for fact in FP8_LAYER if formats else ():
        info[fact] = [(formats.get(name) or {}).get(fact) for name in names]
    columns = dict.fromkeys(column for facts in layers.values() for column in facts)
    for rank in range(ranks):
        writer = store.RankWriter(path, rank)
        writer.append(codec.encode(Table.LAYER_INFO, info))
        rows = {"step": [0] * len(names), "layer": numbers}
        for column in columns:
            told = [facts.get(column) for facts in layers.values()]
            rows[column] = [one[rank] if isinstance(one, tuple) else one for one in told]
        writer.append(codec.encode(Table.LAYERS, rows))
        writer.close()
    return open_run(path)


def cast_run(tmp_path, **changed):
    """Three layers in fp8, of which these numbers of `up` differ."""
    layers = {"up": {**CALM, **changed}, "down": CALM, "head": CALM}
    return run_of(tmp_path, layers, dict.fromkeys(layers, FP8_LAYER))


def texts(header):
    return {row["layer"]: [cell["text"] for cell in row["cells"]] for row in header["rows"]}


def marked(header):
    """Layer and column of each cell that stands out."""
    return [
        (row["layer"], column)
        for row in header["rows"]
        for column, cell in zip(header["columns"], row["cells"], strict=True)
        if cell["isOver"]
    ]


# --- which view ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("numbers", "formats", "views"),
    [
        ({"grad_norm": 1.0}, None, ()),
        ({"scale_high": 2.0**12}, None, (FP16,)),
        ({"scale_high": 2.0**12, **NO_LOSS}, None, (FP16, WHAT_IF)),
        (NO_LOSS, None, (WHAT_IF,)),
        ({**CALM, **NO_LOSS}, {"up": FP8_LAYER}, (FP8, WHAT_IF)),
        ({"grad_norm": 1.0}, {"up": FP8_LAYER}, (FP8,)),
    ],
)
def test_a_run_offers_the_views_that_it_recorded_the_one_that_fits_first(
    tmp_path, numbers, formats, views
):
    assert offered(run_of(tmp_path, {"up": numbers}, formats)) == views


def test_a_view_that_the_run_does_not_have_gives_way_to_the_one_that_fits():
    assert chosen_view((FP16, WHAT_IF), None) == FP16
    assert chosen_view((FP16, WHAT_IF), WHAT_IF) == WHAT_IF
    assert chosen_view((FP16, WHAT_IF), FP8) == FP16
    assert chosen_view((), FP8) is None


def header_of(message):
    (length,) = struct.unpack("<I", message[:4])
    return json.loads(message[4 : 4 + length])


def test_the_view_is_the_chosen_one_if_the_run_has_it(tmp_path):
    both = run_of(tmp_path / "both", {"up": {**CALM, **NO_LOSS}}, {"up": FP8_LAYER})
    assert header_of(view_message(both, offered(both), Wanted(), None))["view"] == FP8
    other = header_of(view_message(both, offered(both), Wanted(WHAT_IF), None))
    assert (other["view"], other["columns"]) == (WHAT_IF, ["E4M3", "E5M2", "MXFP8", "NVFP4"])
    none = run_of(tmp_path / "none", {"up": {"grad_norm": 1.0}})
    assert view_message(none, offered(none), Wanted(), None) is None


# --- casts in use --------------------------------------------------------------------------------


def test_casts_that_lose_nothing_say_so_and_what_the_layers_multiply_in(tmp_path):
    header = casts_header(cast_run(tmp_path), Wanted())
    assert header["title"] == (
        "3 layers multiply in fp8 e4m3 tensorwise, gradient e5m2. Their casts lose nothing."
    )
    assert texts(header)["up"] == ["0", "0", "0"]
    assert marked(header) == []


def test_what_is_flushed_and_what_is_cut_off_are_told_apart_and_marked_beyond_health(tmp_path):
    run = cast_run(tmp_path, input_flushed_share=0.62, grad_saturated_share=0.03)
    header = casts_header(run, Wanted())
    assert texts(header)["up"] == ["↓62", "0", "↑3"]
    assert marked(header) == [("up", "input"), ("up", "gradient")]
    assert header["title"].endswith("up cuts off 3.0 % of its gradient.")


def test_a_loss_within_health_is_told_and_not_marked(tmp_path):
    header = casts_header(cast_run(tmp_path, weight_flushed_share=0.12), Wanted())
    assert texts(header)["up"] == ["0", "↓12", "0"]
    assert marked(header) == []
    assert "No cast loses more than in health; up flushes 12 % of its weight" in header["title"]


def test_a_delayed_scale_has_a_column_of_its_own_and_a_frozen_one_is_said(tmp_path):
    assert "scale" not in casts_header(cast_run(tmp_path / "a"), Wanted())["columns"]
    stale = casts_header(cast_run(tmp_path / "b", amax_staleness=3.0), Wanted())
    assert (texts(stale)["up"][-1], texts(stale)["down"][-1]) == ("3x", "-")
    assert marked(stale) == [("up", "scale")]
    assert "maximum of up is 3 times what its scale can hold" in stale["title"]
    frozen = casts_header(cast_run(tmp_path / "c", amax_staleness=math.inf), Wanted())
    assert texts(frozen)["up"][-1] == "∞"
    assert "The scale of up is frozen" in frozen["title"]


def test_a_role_that_is_not_cast_is_no_zero(tmp_path):
    half = {**FP8_LAYER, "weight_format": None}
    numbers = {name: value for name, value in CALM.items() if not name.startswith("weight")}
    header = casts_header(run_of(tmp_path, {"up": numbers}, {"up": half}), Wanted())
    assert texts(header)["up"] == ["0", "-", "0"]
    assert header["rows"][0]["cells"][1]["says"] == "the weight is not cast"


def test_formats_without_numbers_are_shown_and_said_to_be_unmeasured(tmp_path):
    run = run_of(tmp_path, {"up": {"grad_norm": 1.0}}, {"up": FP8_LAYER})
    header = casts_header(run, Wanted())
    assert header["title"].endswith("What that loses was not measured.")
    assert texts(header)["up"] == ["-", "-", "-"]


def test_layers_in_bf16_are_not_among_the_casts(tmp_path):
    run = run_of(tmp_path, {"up": CALM, "head": {"grad_norm": 1.0}}, {"up": FP8_LAYER})
    assert [one.layer for one in cast_layers(run, None)] == ["up"]


def test_the_layer_that_the_findings_name_is_marked_however_little_it_loses(tmp_path):
    layers = {f"b.{n}": {**CALM, "input_flushed_share": 0.1 + n / 1000} for n in range(40)}
    run = run_of(tmp_path, {"head": CALM, **layers}, dict.fromkeys(["head", *layers], FP8_LAYER))
    named = dataclasses.replace(diagnose(run), findings=(finding("AMP704", layer="head"),))
    header = casts_header(run, Wanted(), named)
    assert header["fault"] == {"layer": "head", "words": "named by AMP704"}
    assert (len(header["rows"]), header["hidden"]) == (MOST_ROWS, 41 - MOST_ROWS)
    shown = [row["layer"] for row in header["rows"]]
    assert shown[0] == "head"
    assert shown[1:] == [f"b.{n}" for n in range(41 - MOST_ROWS, 40)]


# --- what if -------------------------------------------------------------------------------------


def what_if_run(tmp_path, **changed):
    return run_of(tmp_path, {"up": {**NO_LOSS, **changed}, "down": NO_LOSS})


def test_what_if_counts_the_layers_that_would_survive_and_names_the_one_that_would_not(tmp_path):
    run = what_if_run(tmp_path, input_what_if=[0.83, 0.0, 0.02, 0.5])
    header = what_if_header(run, Wanted())
    assert header["title"] == (
        "In fp8 (E4M3, gradients E5M2) 1 of 2 layers would survive; up would lose 83 % of its "
        "input. MXFP8: all 2. NVFP4: 1 of 2."
    )
    assert texts(header) == {"up": ["83", "0", "2", "50"], "down": ["0", "0", "0", "7"]}
    assert marked(header) == [("up", "E4M3"), ("up", "NVFP4")]


def test_a_gradient_that_e4m3_would_lose_does_not_count_for_the_usual_recipe(tmp_path):
    run = what_if_run(tmp_path, grad_what_if=[0.9, 0.0, 0.0, 0.07])
    header = what_if_header(run, Wanted())
    assert header["title"].startswith("In fp8 (E4M3, gradients E5M2) all layers would survive. ")
    assert marked(header) == [("up", "E4M3")]


def test_what_if_of_one_role_leaves_the_others_out(tmp_path):
    run = what_if_run(tmp_path, input_what_if=[0.83, 0.0, 0.02, 0.5])
    header = what_if_header(run, Wanted(role="weight"))
    assert texts(header)["up"] == ["0", "0", "0", "7"]
    assert "of the weight" in header["note"]


def test_a_format_whose_blocks_do_not_fit_a_layer_is_no_zero(tmp_path):
    odd = {name: [0.0, 0.0, None, 0.07] for name in NO_LOSS}
    header = what_if_header(run_of(tmp_path, {"up": odd}), Wanted())
    assert texts(header)["up"] == ["0", "0", "-", "7"]
    assert "MXFP8" not in header["title"]


def test_of_several_ranks_what_if_tells_the_worst(tmp_path):
    told = ([0.1, 0.0, 0.0, 0.3], [0.4, 0.0, 0.0, 0.2])
    run = run_of(tmp_path, {"up": {"input_what_if": told}}, ranks=2)
    (layer,) = what_if_layers(run, None)
    assert round(layer.worst("E4M3")[1].flushed, 6) == 0.4
    assert round(layer.worst("NVFP4")[1].flushed, 6) == 0.3


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0, "0"), (0.0004, "<0.1"), (0.0042, "0.4"), (0.029, "3"), (0.996, "100")],
)
def test_a_share_in_a_narrow_cell(share, text):
    assert short_percent(share) == text
