"""The guard where values arrive late, as from a device: here the CPU, whose values wait."""

import math

import pytest
import torch
from guarded_training import OPTIMIZERS, Classes, Training, same

import ampwatch
from ampwatch.guarding import joint_decision
from ampwatch.guarding.outlying_steps import Guarded
from ampwatch.probe import norms, tensor_values

BAD = {80, 91}
FUSED = {
    "sgd": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, fused=True),
    "adam": lambda p: torch.optim.Adam(p, 1e-2, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, 1e-2, weight_decay=0.1, fused=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, 1e-2, fused=True),
}


@pytest.fixture
def waits(monkeypatch):
    """Values are copied when the step is over; how often one was waited for is counted."""
    waited = []

    def put(pack, tensor):
        position = len(pack.values)
        if pack.pending is None:
            pack.pending = []
        pack.pending.append((position, tensor.detach().clone()))
        pack.values.extend([math.nan] * tensor.numel())
        return position

    look = norms.GradientMeter.look_again

    def look_again(meter):
        look(meter)
        meter._on_host = False

    asked = Guarded.waited_for
    monkeypatch.setattr(tensor_values.Pack, "put", put)
    monkeypatch.setattr(norms.GradientMeter, "look_again", look_again)
    monkeypatch.setattr(Guarded, "waited_for", lambda part: waited.append(1) or asked(part))
    return waited


def left_out(guarded):
    _, told = guarded.close()
    return [(step, one["done"]) for step, one in told if one["decided"] == "leave-out"]


@pytest.mark.parametrize("name", FUSED)
def test_fused_optimizers_leave_steps_out_without_a_wait(tmp_path, waits, name):
    guarded = Training(FUSED[name]).attach(tmp_path, dry_run=False).steps(100, BAD)
    assert same(guarded.state(), Training(FUSED[name]).steps(100, leave_out=BAD).state())
    assert len(waits) <= 1  # its very first step
    assert left_out(guarded) == [(80, True), (91, True)]
    assert not hasattr(guarded.optimizer, "found_inf")


def test_the_device_keeps_to_the_cap_and_it_gives_way_again(tmp_path, waits):
    guarded = Training(FUSED["adamw"]).attach(tmp_path, dry_run=False, most=(1, 30))
    guarded.steps(130, {80, 85, 115})
    assert same(
        guarded.state(), Training(FUSED["adamw"]).steps(130, {85}, leave_out={80, 115}).state()
    )
    assert left_out(guarded) == [(80, True), (115, True)]


def test_gradients_that_are_not_finite_are_left_out_there_too(tmp_path, waits):
    guarded = Training(FUSED["adam"]).attach(tmp_path, dry_run=False)
    guarded.steps(20, {5, 9}, factor=math.nan)
    assert same(guarded.state(), Training(FUSED["adam"]).steps(20, leave_out={5, 9}).state())
    assert left_out(guarded) == [(5, True), (9, True)]


@pytest.mark.parametrize("what", ["labels", "input", "rate"])
def test_there_too_loss_inputs_and_rate_are_signs(tmp_path, waits, what):
    bad = {120, 131}
    guarded = Classes(what, "adamw-fused").attach(tmp_path, dry_run=False).steps(140, bad)
    other = Classes(what, "adamw-fused").steps(140, leave_out=bad)
    assert same(guarded.state(), other.state())
    assert len(waits) <= 1
    guarded.close()


def test_there_too_only_three_in_a_row_are_left_out(tmp_path, waits):
    bad = set(range(80, 86))
    guarded = Training(FUSED["adamw"]).attach(tmp_path, dry_run=False).steps(100, bad)
    other = Training(FUSED["adamw"]).steps(100, bad, leave_out={80, 81, 82})
    assert same(guarded.state(), other.state())
    assert "row" in [one.get("why") for _, one in guarded.close()[1]]


def test_there_too_steps_that_are_not_finite_have_no_cap(tmp_path, waits):
    guarded = Training(FUSED["adam"]).attach(tmp_path, dry_run=False, most=(1, 1000))
    bad = set(range(20, 50))
    guarded.steps(60, bad, factor=math.nan)
    assert same(guarded.state(), Training(FUSED["adam"]).steps(60, leave_out=bad).state())
    guarded.close()


def test_what_is_only_one_ranks_own_is_no_sign_where_other_ranks_do_not_hear_of_it(tmp_path, waits):
    guarded = Classes("labels").attach(tmp_path, dry_run=False)
    guarded.guard.together = joint_decision.Alone(sees_all=False)
    guarded.steps(140, {120, 131})
    assert same(guarded.state(), Classes("labels").steps(140, {120, 131}).state())
    assert len(waits) == 140
    guarded.close()


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_other_optimizers_wait_for_one_number_a_step(tmp_path, waits, name):
    guarded = Training(OPTIMIZERS[name]).attach(tmp_path, dry_run=False).steps(100, BAD)
    assert same(guarded.state(), Training(OPTIMIZERS[name]).steps(100, leave_out=BAD).state())
    assert len(waits) == 100
    run, told = guarded.close()
    assert [step for step, one in told if one["decided"] == "leave-out"] == [80, 91]
    assert [one["why"] for _, one in told if "waits for one copy" in one["told"]] == ["wait"]
    assert {one.code for one in ampwatch.diagnose(run).findings} >= {"AMP904"}


@pytest.mark.parametrize("name", ["adamw", "adamw-fused"])
def test_a_dry_run_waits_for_nothing_and_says_the_same_a_step_late(tmp_path, waits, name):
    guarded = Training(OPTIMIZERS[name]).attach(tmp_path, dry_run=True).steps(100, BAD)
    assert same(guarded.state(), Training(OPTIMIZERS[name]).steps(100, BAD).state())
    assert waits == []
    assert left_out(guarded) == [(80, False), (91, False)]
