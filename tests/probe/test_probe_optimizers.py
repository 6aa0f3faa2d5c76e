"""A rate that is changed in mid-training stays changed, whatever schedule drives it."""

import pytest
import torch
from scheduled_training import AFTER, BASE, BEFORE, FACTOR, OF, SCHEDULERS, Training
from torch import nn

from ampwatch.probe.optimizers import multiply_rates, schedulers_of


def near(rates):
    return [pytest.approx(one, rel=1e-6) for one in rates]


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_change_holds_for_the_rest_of_every_schedule(name):
    make = SCHEDULERS[name]
    whole = Training(make, BASE * FACTOR).rates(BEFORE + AFTER)
    changed = Training(make)
    changed.rates(BEFORE)
    multiply_rates(changed.optimizer, FACTOR)
    assert changed.rates(AFTER) == near(whole[BEFORE:])


def test_only_the_optimizers_own_schedulers_are_found():
    ours, others = Training(SCHEDULERS["cosine"]), Training(SCHEDULERS["step"])
    multiply_rates(ours.optimizer, FACTOR)
    assert others.rates(1) == [[BASE, BASE / 4]]
    assert schedulers_of(ours.optimizer) == [ours.scheduler]
    assert schedulers_of(Training(None).optimizer) == []


def test_a_rate_that_is_a_tensor_is_changed_in_place_and_once():
    rate = torch.tensor(0.5)
    optimizer = torch.optim.Adam(nn.Linear(2, 2).parameters(), lr=rate, foreach=False)
    scheduler = OF.StepLR(optimizer, 3, 0.5)
    held = optimizer.param_groups[0]["lr"]
    multiply_rates(optimizer, 0.25)
    assert optimizer.param_groups[0]["lr"] is held
    assert float(held) == 0.125
    optimizer.step()
    for _ in range(3):
        scheduler.step()
    assert float(optimizer.param_groups[0]["lr"]) == 0.0625
