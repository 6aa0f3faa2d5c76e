"""Which models `ampwatch run` finds around an optimizer's parameters, and what it calls them."""

from __future__ import annotations

import torch
from torch import nn

from ampwatch.integrations.script_watch import trained_models


class Generator(nn.Linear):
    pass


class Critic(nn.Linear):
    pass


def test_several_wrapped_models_are_called_by_what_is_in_the_wrapper() -> None:
    wrapped = [nn.DataParallel(Generator(2, 2)), nn.DataParallel(Critic(2, 2))]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in wrapped]
    found = trained_models(optimizers, None)
    assert {name: id(model) for name, model in found.items()} == {
        "Generator": id(wrapped[0]),
        "Critic": id(wrapped[1]),
    }
