"""What the diagnosis says, asked of a process of its own, while the training goes on."""

import time

import pytest
import torch
from guarded_training import Training

import ampwatch
from ampwatch.guarding.guard_advice import Advice, write_plan

pytestmark = pytest.mark.slow_starts


def answer_of(advice):
    until = time.monotonic() + 100
    while (found := advice.answer()) is None and time.monotonic() < until:
        time.sleep(0.1)
    return found


@pytest.mark.parametrize(("rate", "action"), [(0.02, None), (60.0, "lower")])
def test_the_advice_is_that_of_the_report_on_the_run_so_far(tmp_path, rate, action):
    going_on = Training(lambda p: torch.optim.SGD(p, rate)).attach(tmp_path).steps(150)
    time.sleep(0.5)  # the courier files every fifth of a second
    factor, why = answer_of(Advice(going_on.watch.run_folder))
    said = ampwatch.diagnose(ampwatch.open_run(going_on.watch.run_folder)).learning_rate
    going_on.close()
    assert (said.action.value == "lower") == (action == "lower")
    assert factor == (pytest.approx(said.factor) if action else None)
    assert why


def test_a_run_that_cannot_be_read_lowers_nothing_and_has_no_plan(tmp_path):
    assert answer_of(Advice(tmp_path)) == (None, "the diagnosis could not be read")
    assert write_plan(tmp_path) == (None, None)
    assert list(tmp_path.iterdir()) == []
