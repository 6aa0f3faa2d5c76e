"""Optimizers are told apart by what they do: real ones, stepped on a real problem."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from rate_shapes import course, falling

from ampwatch.diagnosis.learning_rate import Group, Setup
from ampwatch.diagnosis.learning_rate.estimate import Family, family_of


def stepped(optimizer_of, steps=40):
    """The rows that a real optimizer makes, and how many weights it moves."""
    torch.manual_seed(0)
    weight = torch.randn(40, 30, requires_grad=True)
    optimizer = optimizer_of([weight])
    grads, moves, norms = [], [], []
    for step in range(steps):
        target = torch.randn(40, 30) * (1 + 4 * (step % 7 == 0))
        loss = (weight - target).square().mean() * 1000  # not near sqrt(1200)
        optimizer.zero_grad()
        loss.backward()
        before = weight.detach().clone()
        optimizer.step()
        grads.append(weight.grad.norm().item())
        moves.append((weight.detach() - before).norm().item())
        norms.append(before.norm().item())
    rows = course(falling(steps), grad=1.0, lr=optimizer.param_groups[0]["lr"])
    values = rows.values.copy()
    for name, column in (
        ("grad_norm", grads),
        ("applied_norm", grads),
        ("update_norm", moves),
        ("param_norm", norms),
    ):
        rows.of(name)[:] = column
    assert not np.array_equal(values, rows.values, equal_nan=True)
    return rows, weight.numel()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_is_plain_with_or_without_momentum(momentum):
    rows, elements = stepped(lambda p: torch.optim.SGD(p, 1e-3, momentum=momentum))
    assert family_of(rows, Setup(elements=elements)) is Family.PLAIN


@pytest.mark.parametrize(
    "kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.Adamax, torch.optim.NAdam]
)
def test_adam_and_its_kin_are_adaptive(kind):
    rows, elements = stepped(lambda p: kind(p, 1e-3))
    assert family_of(rows, Setup(elements=elements)) is Family.ADAPTIVE


def test_a_sign_method_is_adaptive_though_nobody_named_it():
    class Sign(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {"lr": 1e-3})

        @torch.no_grad()
        def step(self):
            for p in self.param_groups[0]["params"]:
                p -= 1e-3 * p.grad.sign()

    rows, elements = stepped(Sign)
    assert family_of(rows, Setup(elements=elements)) is Family.ADAPTIVE
    # Without the number of weights the slope tells: gradients five times larger move no further.
    assert family_of(rows, Setup()) is Family.ADAPTIVE


def test_a_resumed_optimizer_is_known_by_its_slope_and_else_by_its_settings():
    rows, _ = stepped(lambda p: torch.optim.SGD(p, 1e-3))
    assert family_of(rows.part(10), Setup(resumed=True)) is Family.PLAIN
    rows, _ = stepped(lambda p: torch.optim.SGD(p, 1e-3, momentum=0.9))
    momentum = Setup(resumed=True, groups=(Group(adaptive=False),))
    assert family_of(rows.part(10), momentum) is Family.PLAIN
    steady = course(falling(40), grad=1.0)
    assert family_of(steady, Setup(resumed=True)) is Family.UNKNOWN
    named = Setup(resumed=True, groups=(Group(adaptive=True),))
    assert family_of(steady, named) is Family.ADAPTIVE
