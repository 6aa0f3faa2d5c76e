"""A learning rate that is changed in mid-training stays so, whatever schedule drives it."""

from __future__ import annotations

import copy
import os
import warnings

import children
import pytest
import torch
from scheduled_training import AFTER, BASE, BEFORE, FACTOR, OF, SCHEDULERS, Training
from torch import nn

import ampwatch
from ampwatch.errors import AmpwatchWarning, LearningRateError
from ampwatch.probe.learning_rates import multiply_rates, schedulers_of
from ampwatch.probe.optimizers import OptimizerView

PEAK = BASE * FACTOR


def near(rates):
    return [pytest.approx(one, rel=1e-6) for one in rates]


def lrs(optimizer):
    return [float(group["lr"]) for group in optimizer.param_groups]


def sgd(*rates):
    groups = [{"params": [nn.Parameter(torch.ones(1))], "lr": rate} for rate in rates]
    return torch.optim.SGD(groups, lr=1.0)


def warm_up(optimizer, steps=10):
    return OF.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / steps))


def walk(optimizer, *schedulers, steps=1):
    """Train so many steps; the learning rates after each."""
    rates = []
    for _ in range(steps):
        optimizer.step()
        for scheduler in schedulers:
            scheduler.step()
        rates.append(lrs(optimizer))
    return rates


# --- multiplied, as the guard and the page do ----------------------------------------------------


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


# --- set, as a user does -------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["given", "found"])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_peak_set_in_the_middle_holds_for_the_rest_of_every_schedule(name, given):
    make = SCHEDULERS[name]
    whole = Training(make, PEAK).rates(BEFORE + AFTER)
    training = Training(make)
    training.rates(BEFORE)
    scheduler = training.scheduler if given == "given" else None
    for _ in range(2):
        ampwatch.set_learning_rate(training.optimizer, PEAK, scheduler)
    assert training.rates(AFTER) == near(whole[BEFORE:])


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_peak_holds_for_a_whole_schedule_and_every_resume(name, tmp_path):
    make = SCHEDULERS[name]
    lowered = near(Training(make, PEAK).rates(BEFORE + AFTER))

    fresh = Training(make)
    fresh.set_rate()
    assert fresh.rates(BEFORE) == lowered[:BEFORE]

    failed = Training(make)
    failed.rates(BEFORE)
    failed.saved(tmp_path)
    resumed = Training(make)
    resumed.set_rate()  # too early: the checkpoint brings its own
    resumed.load(tmp_path)
    resumed.set_rate()
    resumed.set_rate()
    assert resumed.rates(3) == lowered[BEFORE : BEFORE + 3]

    resumed.saved(tmp_path)
    later = Training(make).load(tmp_path)  # the call is still in the script
    later.set_rate()
    assert later.rates(AFTER - 3) == lowered[BEFORE + 3 :]


@pytest.mark.parametrize("name", ["function", "one cycle", "cosine"])
def test_a_script_that_has_the_new_peak_already_keeps_it_whatever_was_loaded(name, tmp_path):
    """Whoever edits the number and calls besides must not get the factor twice."""
    make = SCHEDULERS[name]
    lowered = near(Training(make, PEAK).rates(BEFORE + AFTER))
    failed = Training(make)
    failed.rates(BEFORE)
    failed.saved(tmp_path)
    edited = Training(make, PEAK).load(tmp_path)
    edited.set_rate()
    assert edited.rates(AFTER) == lowered[BEFORE:]

    only_optimizer = Training(make, PEAK).load(tmp_path, with_schedule=False)
    only_optimizer.set_rate()
    walk(only_optimizer.optimizer, only_optimizer.scheduler)
    peak = ampwatch.set_learning_rate(only_optimizer.optimizer, PEAK).peak_before
    assert peak == pytest.approx(PEAK)
    assert max(lrs(only_optimizer.optimizer)) <= PEAK * (1 + 1e-6)


def test_the_peak_is_the_ceiling_of_a_plateau():
    training = Training(lambda o, base: OF.ReduceLROnPlateau(o, patience=0, min_lr=base / 8))
    training.set_rate()
    for loss in (1.0, 2.0, 3.0):
        training.scheduler.step(loss)
    assert lrs(training.optimizer) == [pytest.approx(PEAK / 8)] * 2


def test_at_step_5_of_a_warm_up_of_10_the_current_rate_and_all_later_ones_are_in_proportion():
    optimizer = sgd(2.0, 1.0, 0.0)
    scheduler = warm_up(optimizer)
    walk(optimizer, scheduler, steps=4)
    change = ampwatch.set_learning_rate(optimizer, 0.07, scheduler)
    assert lrs(optimizer) == near([0.035, 0.0175, 0.0])
    assert str(change) == (
        "Set the peak learning rate from 2 to 0.07 in 3 groups; the current learning rate is now "
        "0.035. Changed with it: LambdaLR."
    )
    again = ampwatch.set_learning_rate(optimizer, 0.07, [scheduler])
    assert "to 0.07, as it was, in 3 groups" in str(again)
    assert walk(optimizer, scheduler, steps=8)[-1] == near([0.07, 0.035, 0.0])
    assert scheduler.get_last_lr() == near([0.07, 0.035, 0.0])


def test_two_chained_schedulers_given_as_a_list_go_on_scaled():
    def make(base):
        optimizer = sgd(base)
        return optimizer, OF.LinearLR(optimizer, 0.1, 1.0, 10), OF.ExponentialLR(optimizer, 0.9)

    optimizer, *schedulers = make(1.0)
    walk(optimizer, *schedulers, steps=5)
    ampwatch.set_learning_rate(optimizer, 0.07, schedulers)
    whole = walk(*make(0.07), steps=15)
    assert [one[0] for one in walk(optimizer, *schedulers, steps=10)] == near(
        one[0] for one in whole[5:]
    )


def test_a_base_that_was_changed_by_hand_in_the_scheduler_is_the_peak():
    optimizer = sgd(1.0)
    scheduler = warm_up(optimizer)
    scheduler.base_lrs = [0.5]
    walk(optimizer, scheduler, steps=4)  # lr 0.25
    assert ampwatch.set_learning_rate(optimizer, 0.05, scheduler).peak_before == 0.5
    assert lrs(optimizer) == near([0.025])
    assert walk(optimizer, scheduler, steps=8)[-1] == near([0.05])


def test_the_scheduler_of_a_library_that_wraps_torchs_is_looked_into():
    class Wrapped:
        def __init__(self, inner):
            self.scheduler = inner

        def step(self):
            self.scheduler.step()

    optimizer = sgd(1.0)
    scheduler = Wrapped(warm_up(optimizer))
    assert ampwatch.set_learning_rate(optimizer, 0.1, scheduler).schedulers == ("LambdaLR",)
    assert walk(optimizer, scheduler, steps=12)[-1] == near([0.1])


def test_the_wrapper_of_an_optimizer_stands_for_what_it_wraps():
    class Wrapper:
        def __init__(self, optimizer):
            self.optimizer = optimizer

        @property
        def param_groups(self):
            return self.optimizer.param_groups

    optimizer = sgd(1.0)
    scheduler = warm_up(optimizer)
    ampwatch.set_learning_rate(Wrapper(optimizer), 0.1)
    assert walk(optimizer, scheduler, steps=12)[-1] == near([0.1])


def test_a_watched_optimizers_highest_rate_moves_along():
    optimizer = sgd(1.0)
    view = OptimizerView(0, optimizer, {}, lambda *_: None, lambda _: None, detailed=False)
    view.read_rates(optimizer)
    ampwatch.set_learning_rate(optimizer, 0.1)
    view.read_rates(optimizer)
    assert view.lr_bases == near([0.1])
    assert view.multiplied == pytest.approx(0.1)


def test_it_works_with_ampwatch_switched_off():
    code = (
        "import torch, ampwatch; o = torch.optim.SGD([torch.ones(1)], lr=1.0);"
        "print(ampwatch.set_learning_rate(o, 0.1), o.param_groups[0]['lr'])"
    )
    done = children.run("-c", code, env={**os.environ, "AMPWATCH": "0"})
    assert done.stdout.endswith("0.1\n")


# --- what cannot be changed is said --------------------------------------------------------------


class Own:
    """A scheduler of the user's, none of torch's."""

    def __init__(self, optimizer, highest):
        self.optimizer, self.highest = optimizer, highest

    def step(self):
        for group in self.optimizer.param_groups:
            group["lr"] = self.highest


def test_a_scheduler_of_the_users_own_is_named_if_nothing_in_it_is_known():
    optimizer = sgd(1.0)
    with pytest.warns(AmpwatchWarning, match="Own is not a torch scheduler"):
        change = ampwatch.set_learning_rate(optimizer, 0.1, Own(optimizer, 1.0))
    assert "Own is not a torch scheduler" in str(change)
    assert change.schedulers == ()


def test_a_scheduler_of_the_users_own_with_known_names_goes_on_scaled():
    class Known(Own):
        def __init__(self, optimizer, highest):
            super().__init__(optimizer, highest)
            self.base_lrs = [highest]

        def step(self):
            for group, lr in zip(self.optimizer.param_groups, self.base_lrs, strict=True):
                group["lr"] = 0.9 * lr

    optimizer = sgd(1.0)
    scheduler = Known(optimizer, 1.0)
    assert ampwatch.set_learning_rate(optimizer, 0.1, scheduler).schedulers == ("Known",)
    assert walk(optimizer, scheduler, steps=5)[-1] == near([0.09])


@pytest.mark.parametrize("assigned", [0.3, 0.001, 0.03])
def test_a_loop_that_assigns_the_rate_itself_is_told_so_once(assigned):
    optimizer = sgd(0.3)
    ampwatch.set_learning_rate(optimizer, 0.035)

    def loop():
        for _ in range(5):
            optimizer.param_groups[0]["lr"] = assigned
            optimizer.step()

    with pytest.warns(AmpwatchWarning, match=f"{assigned} instead of 0.035") as told:
        loop()
    assert len(told) == 1
    assert not optimizer._optimizer_step_pre_hooks


def test_a_torch_subclass_of_the_users_own_that_ignores_its_base_is_told():
    class Ignores(OF.LRScheduler):
        def get_lr(self):
            return [1.0 for _ in self.optimizer.param_groups]

    optimizer = sgd(1.0)
    scheduler = Ignores(optimizer)
    ampwatch.set_learning_rate(optimizer, 0.1, scheduler)
    with pytest.warns(AmpwatchWarning, match="1 instead of 0.1"):
        walk(optimizer, scheduler, steps=4)


def test_a_checkpoint_that_is_loaded_after_the_call_is_told():
    optimizer = sgd(1.0)
    scheduler = warm_up(optimizer)
    saved = copy.deepcopy(optimizer.state_dict())
    ampwatch.set_learning_rate(optimizer, 0.1, scheduler)
    optimizer.load_state_dict(saved)
    with pytest.warns(AmpwatchWarning, match="after loading it"):
        walk(optimizer, scheduler, steps=4)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_no_schedule_is_taken_for_a_loop_that_assigns(name):
    """Set again and again, by much and by little, up and down."""
    training = Training(SCHEDULERS[name])
    with warnings.catch_warnings():
        warnings.simplefilter("error", AmpwatchWarning)
        for factor in (0.97, 0.1, 3.0, 0.6):
            training.rates(2)
            ampwatch.set_learning_rate(training.optimizer, BASE * factor, training.scheduler)
            training.rates(5)
    assert not training.optimizer._optimizer_step_pre_hooks


def test_neither_a_decay_by_hand_nor_a_schedule_made_later_is_taken_for_one(recwarn):
    optimizer = sgd(1.0)
    ampwatch.set_learning_rate(optimizer, 0.1)
    for _ in range(4):
        optimizer.param_groups[0]["lr"] *= 0.99
        optimizer.step()
    later = sgd(1.0)
    ampwatch.set_learning_rate(later, 0.1)
    scheduler = warm_up(later)
    walk(later, scheduler, steps=4)
    assert [one for one in recwarn if one.category is AmpwatchWarning] == []
    assert lrs(later) == near([0.05])


def test_a_guard_that_lowers_the_rate_just_after_is_not_taken_for_one(recwarn):
    optimizer = sgd(1.0)
    ampwatch.set_learning_rate(optimizer, 0.1)
    multiply_rates(optimizer, 0.1)
    walk(optimizer, steps=4)
    assert [one for one in recwarn if one.category is AmpwatchWarning] == []


def test_with_a_hook_of_the_users_behind_it_the_check_stays_and_does_nothing(recwarn):
    optimizer = sgd(1.0)
    ampwatch.set_learning_rate(optimizer, 0.1)
    theirs = optimizer.register_step_pre_hook(lambda *_: None)
    walk(optimizer, steps=5)
    optimizer.param_groups[0]["lr"] = 1.0
    walk(optimizer)
    theirs.remove()
    walk(optimizer)
    assert not optimizer._optimizer_step_pre_hooks
    assert [one for one in recwarn if one.category is AmpwatchWarning] == []


OTHER = warm_up(sgd(1.0))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (lambda: (0.07, sgd(1.0)), "give the optimizer first"),
        (lambda: (nn.Linear(2, 2), 0.07), "give the optimizer first"),
        (lambda: ([sgd(1.0), sgd(1.0)], 0.07), "once for each"),
        (lambda: (sgd(1.0), "0.07"), "not a number"),
        (lambda: (sgd(1.0), True), "not a number"),
        (lambda: (sgd(1.0), 0.0), "above 0"),
        (lambda: (sgd(1.0), float("nan")), "above 0"),
        (lambda: (sgd(0.0), 0.1), "cannot be scaled"),
        (lambda: (sgd(1.0), 0.1, "cosine"), r"has no step\(\)"),
        (lambda: (sgd(1.0), 0.1, OTHER), "drives another optimizer"),
    ],
)
def test_wrong_arguments_are_answered_with_what_to_do(arguments, told):
    with pytest.raises(LearningRateError, match=told):
        ampwatch.set_learning_rate(*arguments())
