"""What an action prints to be pasted does what it says."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ampwatch.diagnosis.paste import float32_island, with_lines, words_and_lines


class Masked(nn.Module):
    """Tells which types it was called with."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x, mask, *, scale=None):
        self.called_with = (x.dtype, mask.dtype, None if scale is None else scale.dtype)
        return self.inner(x)


def test_an_action_parts_into_its_words_and_its_lines():
    action = with_lines("Do this:", "if it:\n    works")
    assert words_and_lines(action) == ("Do this:", "if it:\n    works")
    assert words_and_lines("Do nothing.") == ("Do nothing.", "")


@pytest.mark.parametrize("name", ["0", "(root)"])
def test_the_island_runs_its_layer_in_float32_and_leaves_masks_alone(name):
    model = nn.Sequential(Masked()) if name == "0" else Masked()
    layer = model[0] if name == "0" else model
    exec(float32_island(name), {"torch": torch, "model": model})
    with torch.autocast("cpu", torch.float16):
        half = torch.ones(2, 4).half()
        output = layer(half, torch.ones(2).bool(), scale=half)
    assert output.dtype == torch.float32
    assert layer.called_with == (torch.float32, torch.bool, torch.float32)
