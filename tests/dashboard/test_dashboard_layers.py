"""What the Layers page says of one layer, and of what is inside it."""

from __future__ import annotations

import pytest
from layer_samples import is_within


@pytest.mark.parametrize("name", ["blocks.1", "blocks.1.mlp", "blocks.1.mlp.0"])
def test_a_layer_holds_itself_and_what_is_inside_it(name):
    assert is_within(name, "blocks.1")


@pytest.mark.parametrize("name", ["blocks.10", "blocks.10.up", "blocks", "my.blocks.1", "(root)"])
def test_a_layer_holds_no_other_whose_name_begins_like_its_own(name):
    assert not is_within(name, "blocks.1")


def test_the_root_holds_every_layer():
    assert is_within("(root)", "(root)")
    assert is_within("blocks.10.up", "(root)")
