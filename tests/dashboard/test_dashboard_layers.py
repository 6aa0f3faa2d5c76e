"""What the Layers page says of one layer, and of what is inside it."""

from __future__ import annotations

import numpy as np
import pytest
from layer_columns import type_columns, view_columns
from layers_page import is_within


@pytest.mark.parametrize("name", ["blocks.1", "blocks.1.mlp", "blocks.1.mlp.0"])
def test_a_layer_holds_itself_and_what_is_inside_it(name):
    assert is_within(name, "blocks.1")


@pytest.mark.parametrize("name", ["blocks.10", "blocks.10.up", "blocks", "my.blocks.1", "(root)"])
def test_a_layer_holds_no_other_whose_name_begins_like_its_own(name):
    assert not is_within(name, "blocks.1")


def test_the_root_holds_every_layer():
    assert is_within("(root)", "(root)")
    assert is_within("blocks.10.up", "(root)")


# --- what stands beside the map ------------------------------------------------------------------

NARROW = {
    "input_format": "float8_e4m3fn/rowwise/dynamic",
    "weight_format": "float8_e4m3fn/rowwise/dynamic",
}


def test_each_layer_has_its_data_types_and_the_format_in_which_it_multiplies():
    half = {"input_dtype": "float16", "output_dtype": "float16"}
    facts = {"a": half, "b": {**half, **NARROW}, "c": {**half, "autocast": False}, "d": half}
    header, arrays = type_columns(["d", "c", "b", "a", "silent"], facts)
    kinds = [header["types"][at] for at in arrays["type"]]
    assert kinds[0] == kinds[3] == {
        "types": ["fp16", "", "fp16", ""], "recipe": "", "isOff": False,
    }  # fmt: skip
    assert kinds[1]["isOff"]
    assert kinds[2]["recipe"] == "fp8 e4m3 rowwise, gradient wide"
    assert kinds[4]["types"] == [""] * 4
    assert len(header["types"]) == 4


WINDOWS = {
    "component": "windows", "view": "fp16", "title": "", "step": 7, "note": "", "scale": 12.0,
    "rows": [
        {"layer": "head", "low": None, "high": 20.0, "isFault": True},
        {"layer": "body", "low": 3.0, "high": 24.0, "isFault": False},
    ],
}  # fmt: skip


def test_usable_loss_scales_are_sent_by_layer_and_absent_is_no_number():
    header, arrays = view_columns(["body", "norm", "head"], WINDOWS)
    assert header["beside"]["faults"] == [2]
    assert arrays["low"].tolist()[0] == 3.0
    assert np.isnan(arrays["low"][1:]).all()
    assert np.isnan(arrays["high"]).tolist() == [False, True, False]
    assert view_columns(["body"], None) == ({"beside": None}, {})


def test_of_thousands_of_cells_only_the_different_ones_are_sent():
    cell = {"text": "3", "says": "s", "flushed": 0.0301, "cut": 0.0, "isOver": False}
    rows = [{"layer": f"b.{n}", "cells": [cell, cell]} for n in range(2000)]
    losses = {**WINDOWS, "component": "losses", "columns": ["A", "B"], "isDiverging": False}
    header, arrays = view_columns(
        ["none", *(row["layer"] for row in rows)], losses | {"rows": rows}
    )
    assert header["beside"]["kinds"] == [None, {**cell, "flushed": 0.03}]
    assert arrays["cell"].tolist() == [0, 0, *[1] * 4000]
