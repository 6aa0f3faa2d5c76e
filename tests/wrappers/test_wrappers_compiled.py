"""Compiled models over many samples: hooks come and go, and nothing is compiled for our sake."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch._dynamo.utils import counters
from wrapper_cells import WRAPPERS
from wrapper_parts import unwatched, watched

STEPS = 40  # the overflow's twenty steps end at 25, then each fifth is sampled
COMPILED = [wrapper for wrapper in WRAPPERS if wrapper.compiled]


@pytest.mark.slow_compile
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # the compiler reads it
@pytest.mark.parametrize("wrapper", COMPILED, ids=lambda wrapper: wrapper.name)
def test_samples_add_no_graph_and_no_break(wrapper, tmp_path):
    def counted(train):
        torch._dynamo.reset()
        counters.clear()
        train()
        return counters["stats"]["unique_graphs"], Counter(counters["graph_break"])

    alone = counted(lambda: unwatched(wrapper.make, STEPS))
    assert alone[0] > 0
    assert counted(lambda: watched(wrapper.make, tmp_path, STEPS, layer_every=5)) == alone
