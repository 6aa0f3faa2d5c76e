"""What the Layers page says of one layer, and of what is inside it."""

from __future__ import annotations

import re

import pytest
from layers_page import LayerBranch, dtypes_html, is_within


@pytest.mark.parametrize("name", ["blocks.1", "blocks.1.mlp", "blocks.1.mlp.0"])
def test_a_layer_holds_itself_and_what_is_inside_it(name):
    assert is_within(name, "blocks.1")


@pytest.mark.parametrize("name", ["blocks.10", "blocks.10.up", "blocks", "my.blocks.1", "(root)"])
def test_a_layer_holds_no_other_whose_name_begins_like_its_own(name):
    assert not is_within(name, "blocks.1")


def test_the_root_holds_every_layer():
    assert is_within("(root)", "(root)")
    assert is_within("blocks.10.up", "(root)")


def nested(dtypes):
    """The tree of layers with these output types, by name."""
    root = LayerBranch("", {}, {})
    for name, dtype in dtypes.items():
        branch = root
        for part in name.split("."):
            branch = branch.inside.setdefault(part, LayerBranch(part, {}, {}))
        branch.facts = {"output_dtype": dtype}
    return root


def rows_of(page):
    return re.findall(r'data-go="(.*?)"', page), re.findall(r"([\d,]+) alike", page)


def test_blocks_with_the_same_data_types_are_one_row_and_the_one_that_differs_has_its_own():
    half = {f"blocks.{n}.{part}": "float16" for n in range(2000) for part in ("up", "down")}
    places, alike = rows_of(dtypes_html(nested({"embed": "float32", **half})))
    assert places == ["embed", "blocks", "blocks.0", "blocks.0.up", "blocks.0.down"]
    assert alike == ["2,000"]
    places, alike = rows_of(dtypes_html(nested({**half, "blocks.1200.up": "float32"})))
    assert [place for place in places if place.count(".") == 1] == [
        "blocks.0", "blocks.1200", "blocks.1201",
    ]  # fmt: skip
    assert alike == ["1,200", "799"]


def test_branches_with_words_for_names_stand_alone_though_alike():
    places, alike = rows_of(dtypes_html(nested({"encoder": "float16", "decoder": "float16"})))
    assert places == ["encoder", "decoder"]
    assert alike == []


def test_names_in_the_tree_of_data_types_are_text():
    page = dtypes_html(nested({"<b>x</b>.y": "<i>"}))
    assert "<b>x" not in page
    assert "<i>" not in page.replace('<i class="aw-dtype', "")


NARROW = {
    "input_format": "float8_e4m3fn/rowwise/dynamic",
    "weight_format": "float8_e4m3fn/rowwise/dynamic",
}


def test_the_tree_says_what_a_layer_multiplies_in_and_marks_the_one_at_fault():
    root = nested(dict.fromkeys(("blocks.0.up", "blocks.1.up", "blocks.2.up"), "bfloat16"))
    for block in root.inside["blocks"].inside.values():
        block.inside["up"].facts |= NARROW
    page = dtypes_html(root)
    assert page.count("fp8 e4m3 rowwise, gradient wide") == 1
    assert "aw-fault" not in page
    marked = dtypes_html(root, "blocks.1.up")
    places, alike = rows_of(marked)
    assert marked.count("✕") == 1
    assert [place for place in places if place.endswith("up")] == [
        "blocks.0.up", "blocks.1.up", "blocks.2.up",
    ]  # fmt: skip
    assert alike == []
