"""What torch promises of a GradScaler holds of an attached one, to the bit and to the message.

Each deed is done twice from the same start, once with a bare scaler and once with an attached one;
what is seen must be equal, and what torch's documentation promises is asserted of both.
"""

from __future__ import annotations

import copy
import io
import json
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.amp import GradScaler

import ampwatch

INF = float("inf")
Make = Callable[..., GradScaler]
Deed = Callable[[Make], Any]


def bare(**options: Any) -> GradScaler:
    return GradScaler("cpu", **{"init_scale": 128.0, "growth_interval": 2, **options})


@pytest.fixture
def attached(tmp_path, monkeypatch) -> Iterator[Make]:
    """Makes attached scalers; at the end their runs must open and tell of no failure of ours."""
    monkeypatch.setenv("AMPWATCH_STRICT", "1")  # what fails in us, fails the test
    watches = []

    def make(**options: Any) -> GradScaler:
        scaler = bare(**options)
        watches.append(ampwatch.attach(scaler, None, endpoint="off", log_dir=tmp_path))
        return scaler

    yield make
    for watch in watches:
        watch.close()
        ended = ampwatch.open_run(watch.run_folder).events.to_pylist()[-1]
        assert ended["kind"] == "ended"
        assert json.loads(ended["detail"])["own_failures"] == 0


def same(one: Any, other: Any) -> bool:
    """Equal to the bit, through containers; NaN equals NaN."""
    if isinstance(one, Tensor):
        if one.is_sparse or other.is_sparse:
            return same(one.to_dense(), other.to_dense()) and one.is_sparse == other.is_sparse
        return torch.equal(one.isnan(), other.isnan()) and torch.equal(
            one.nan_to_num(7.0), other.nan_to_num(7.0)
        )
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


def both(deed: Deed, attached: Make) -> Any:
    """What the deed gives with a bare scaler; an attached one must give the same."""
    torch.manual_seed(0)
    expected = deed(bare)
    state = torch.get_rng_state()
    torch.manual_seed(0)
    seen = deed(attached)
    assert torch.equal(torch.get_rng_state(), state), "the watch drew random numbers"
    assert same(seen, expected), f"attached: {seen}\nbare: {expected}"
    return expected


def model_and_optimizer(make_optimizer=torch.optim.SGD, **options):
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    return model, make_optimizer(model.parameters(), **{"lr": 0.1, **options})


def weights(*models: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for model in models for p in model.parameters()]


def loss_of(model: nn.Module, *, poisoned: bool = False) -> Tensor:
    loss = nn.functional.mse_loss(model(torch.randn(4, 8)), torch.randn(4, 8))
    return loss * INF if poisoned else loss


def refusal(work: Callable[[], Any]) -> tuple[type, str]:
    """The error that the work must raise, as a user would read it."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - which one, the bare scaler says
        work()
    return type(caught.value), str(caught.value)


# --- state, pickles, copies -----------------------------------------------------------------


@pytest.mark.parametrize("used", [False, True])
def test_a_state_dict_goes_round(attached, used):
    def deed(make):
        first, second = make(init_scale=8.0), make(init_scale=2.0, growth_factor=4.0)
        if used:
            model, optimizer = model_and_optimizer()
            first.scale(loss_of(model, poisoned=True)).backward()
            first.step(optimizer)
            first.update()
            second.scale(torch.ones(1))  # its scale is a tensor by now
        second.load_state_dict(first.state_dict())
        return first.state_dict(), second.state_dict(), second.get_scale()

    first, second, scale = both(deed, attached)
    assert first == second
    assert scale == (4.0 if used else 8.0)


def test_a_state_dict_survives_torch_save(attached):
    def deed(make):
        file = io.BytesIO()
        torch.save(make(init_scale=8.0).state_dict(), file)
        file.seek(0)
        other = make()
        other.load_state_dict(torch.load(file, weights_only=True))
        return other.state_dict()

    assert both(deed, attached)["scale"] == 8.0


def test_an_empty_state_is_refused_in_torchs_words(attached):
    kind, message = both(lambda make: refusal(lambda: make().load_state_dict({})), attached)
    assert kind is RuntimeError
    assert "disabled instance" in message


@pytest.mark.parametrize("how", ["pickle", "deepcopy", "copy"])
@pytest.mark.parametrize("used", [False, True])
def test_a_pickle_and_a_copy_are_plain_scalers_that_go_on_alone(attached, how, used):
    ways = {
        "pickle": lambda scaler: pickle.loads(pickle.dumps(scaler)),
        "deepcopy": copy.deepcopy,
        "copy": copy.copy,
    }

    def deed(make):
        scaler = make(init_scale=8.0)
        if used:
            scaler.scale(torch.ones(1))
        twin = ways[how](scaler)
        assert type(twin) is GradScaler
        assert vars(twin).keys() == vars(bare()).keys()
        model, optimizer = model_and_optimizer()
        twin.scale(loss_of(model, poisoned=True)).backward()
        twin.step(optimizer)
        twin.update()
        # A shallow copy shares nothing that update() changes in place, unless it was used.
        return twin.get_scale(), scaler.get_scale() if how != "copy" else None, weights(model)

    twins_scale, own_scale, _ = both(deed, attached)
    assert twins_scale == 4.0
    assert own_scale in (8.0, None)


def test_a_pickle_in_the_middle_of_a_step_is_refused_in_torchs_words(attached):
    def deed(make):
        scaler = make()
        model, optimizer = model_and_optimizer()
        scaler.scale(loss_of(model)).backward()
        scaler.unscale_(optimizer)
        return refusal(lambda: pickle.dumps(scaler))

    assert both(deed, attached)[0] is AssertionError


def test_nothing_of_the_watch_stands_in_the_scaler_and_its_class_says_what_it_was(attached):
    scaler = attached()
    assert vars(scaler).keys() == vars(bare()).keys()
    assert isinstance(scaler, GradScaler)
    assert type(scaler).__name__ == "GradScaler"
    assert repr(scaler).startswith("<torch.amp.grad_scaler.GradScaler object")


# --- order of calls -------------------------------------------------------------------------


def test_unscale_twice_is_refused_in_torchs_words(attached):
    def deed(make):
        scaler = make()
        model, optimizer = model_and_optimizer()
        scaler.scale(loss_of(model)).backward()
        scaler.unscale_(optimizer)
        twice = refusal(lambda: scaler.unscale_(optimizer))
        scaler.step(optimizer)
        late = refusal(lambda: scaler.unscale_(optimizer))
        scaler.update()
        return twice, late, weights(model)

    twice, late, _ = both(deed, attached)
    assert twice == (
        RuntimeError,
        "unscale_() has already been called on this optimizer since the last update().",
    )
    assert late == (RuntimeError, "unscale_() is being called after step().")


def test_step_twice_is_refused_and_the_next_update_makes_it_good(attached):
    def deed(make):
        scaler = make()
        model, optimizer = model_and_optimizer()
        scaler.scale(loss_of(model)).backward()
        scaler.step(optimizer)
        twice = refusal(lambda: scaler.step(optimizer))
        scaler.update()
        scaler.scale(loss_of(model)).backward()
        scaler.step(optimizer)
        scaler.update()
        return twice, weights(model), scaler.state_dict()

    twice, _, state = both(deed, attached)
    assert twice == (RuntimeError, "step() has already been called since the last update().")
    assert state["scale"] == 256.0  # two good steps are a growth interval


def test_update_before_anything_was_scaled_is_refused_in_torchs_words(attached):
    kind, message = both(lambda make: refusal(make().update), attached)
    assert (kind, "_scale is None" in message) == (AssertionError, True)


def test_update_without_an_inf_check_is_refused_in_torchs_words(attached):
    def deed(make):
        scaler = make()
        scaler.scale(torch.ones(1))
        return refusal(scaler.update)

    assert both(deed, attached) == (AssertionError, "No inf checks were recorded prior to update.")


def test_a_step_without_gradients_is_refused_in_torchs_words(attached):
    def deed(make):
        scaler = make()
        _, optimizer = model_and_optimizer()
        scaler.scale(torch.ones(1))
        return refusal(lambda: scaler.step(optimizer))

    kind, message = both(deed, attached)
    assert kind is AssertionError
    assert "No inf checks" in message


def test_a_closure_is_refused_in_torchs_words(attached):
    def deed(make):
        scaler = make()
        model, optimizer = model_and_optimizer()
        scaler.scale(loss_of(model)).backward()
        return refusal(lambda: scaler.step(optimizer, closure=lambda: 0.0))

    kind, message = both(deed, attached)
    assert kind is RuntimeError
    assert message == "Closure use is not currently supported if GradScaler is enabled."


def test_half_precision_gradients_are_refused_in_torchs_words(attached):
    def deed(make):
        scaler = make()
        weight = nn.Parameter(torch.ones(4, dtype=torch.float16))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        scaler.scale(weight.float().sum()).backward()
        return refusal(lambda: scaler.unscale_(optimizer))

    assert both(deed, attached) == (ValueError, "Attempting to unscale FP16 gradients.")


# --- the scale ------------------------------------------------------------------------------


@pytest.mark.parametrize("new_scale", [4.0, torch.tensor(4.0)])
def test_update_sets_a_new_scale_given_as_number_or_tensor(attached, new_scale):
    def deed(make):
        scaler = make()
        model, optimizer = model_and_optimizer()
        for given in (None, new_scale, None):
            optimizer.zero_grad()
            scaler.scale(loss_of(model)).backward()
            scaler.step(optimizer)
            scaler.update(given)
        return scaler.get_scale(), scaler.state_dict(), weights(model)

    scale, state, _ = both(deed, attached)
    # The tracker stood at one when the scale was set: the third step ends the growth interval.
    assert (scale, state["_growth_tracker"]) == (8.0, 0)


def test_a_new_scale_of_a_wrong_kind_is_refused_in_torchs_words(attached):
    def deed(make):
        scaler = make()
        scaler.scale(torch.ones(1))
        wrong = (torch.ones(2), torch.ones(1, requires_grad=True))
        return [refusal(lambda w=w: scaler.update(w)) for w in wrong]

    assert {kind for kind, _ in both(deed, attached)} == {AssertionError}


def test_the_scale_falls_on_an_overflow_and_grows_after_the_interval(attached):
    def deed(make):
        scaler = make()
        model, optimizer = model_and_optimizer(torch.optim.SGD, momentum=0.9)
        course = []
        for poisoned in (False, True, True, False, False, False):
            optimizer.zero_grad()
            scaler.scale(loss_of(model, poisoned=poisoned)).backward()
            before = weights(model)
            scaler.step(optimizer)
            scaler.update()
            moved = not same(weights(model), before)
            course.append((moved, scaler.get_scale(), scaler._get_growth_tracker()))
        return course

    assert both(deed, attached) == [
        (True, 128.0, 1), (False, 64.0, 0), (False, 32.0, 0),
        (True, 32.0, 1), (True, 64.0, 0), (True, 64.0, 1),
    ]  # fmt: skip


def test_scale_takes_whatever_nest_of_tensors_it_took_before(attached):
    def deed(make):
        scaler = make()
        one = torch.ones(2)
        nest = [one, (one * 2, [one * 3])]
        odd = refusal(lambda: scaler.scale(5.0))
        return scaler.scale(one), scaler.scale(nest), list(scaler.scale(iter([one]))), odd

    single, nest, lazy, odd = both(deed, attached)
    assert single.tolist() == [128.0, 128.0]
    assert type(nest[1]) is tuple
    assert nest[1][1][0].tolist() == [384.0, 384.0]
    assert lazy[0].tolist() == [128.0, 128.0]
    assert odd[0] is ValueError


def test_the_settings_are_read_and_set_as_before(attached):
    def deed(make):
        scaler = make(growth_factor=3.0, backoff_factor=0.25)
        scaler.set_growth_factor(4.0)
        scaler.set_backoff_factor(0.125)
        scaler.set_growth_interval(1)
        model, optimizer = model_and_optimizer()
        scaler.scale(loss_of(model)).backward()
        scaler.step(optimizer)
        scaler.update()
        return scaler.get_scale(), scaler.get_growth_factor(), scaler.get_backoff_factor()

    assert both(deed, attached) == (512.0, 4.0, 0.125)


# --- gradients ------------------------------------------------------------------------------


@pytest.mark.parametrize("unscale_first", [True, False])
def test_clipping_sees_the_gradients_it_saw_before(attached, unscale_first):
    def deed(make):
        scaler = make()
        model, optimizer = model_and_optimizer()
        norms = []
        for _ in range(3):
            optimizer.zero_grad()
            scaler.scale(loss_of(model)).backward()
            max_norm = 0.1
            if unscale_first:
                scaler.unscale_(optimizer)
            else:
                max_norm *= scaler.get_scale()
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), max_norm))
            scaler.step(optimizer)
            scaler.update()
        return torch.stack(norms), weights(model)

    norms, clipped = both(deed, attached)

    # What it comes to without any scaler, up to rounding: scales are powers of two.
    torch.manual_seed(0)
    model, optimizer = model_and_optimizer()
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scale = 1.0 if unscale_first else (128.0, 128.0, 256.0)[step]
        torch.testing.assert_close(norms[step] / scale, norm)
        optimizer.step()
    torch.testing.assert_close(clipped, weights(model))


def test_a_gradient_penalty_is_what_it_was(attached):
    def deed(make):
        scaler = make()
        model, optimizer = model_and_optimizer()
        for _ in range(2):
            optimizer.zero_grad()
            loss = loss_of(model)
            scaled = torch.autograd.grad(scaler.scale(loss), model.parameters(), create_graph=True)
            inverse = 1.0 / scaler.get_scale()
            penalty = sum((grad * inverse).pow(2).sum() for grad in scaled).sqrt()
            scaler.scale(loss + penalty).backward()
            scaler.step(optimizer)
            scaler.update()
        return weights(model), scaler.state_dict()

    trained, _ = both(deed, attached)
    torch.manual_seed(0)
    model, optimizer = model_and_optimizer()
    for _ in range(2):
        optimizer.zero_grad()
        loss = loss_of(model)
        grads = torch.autograd.grad(loss, model.parameters(), create_graph=True)
        (loss + sum(grad.pow(2).sum() for grad in grads).sqrt()).backward()
        optimizer.step()
    torch.testing.assert_close(trained, weights(model))


def test_accumulation_over_micro_batches_is_what_it_was(attached):
    def deed(make):
        scaler = make()
        model, optimizer = model_and_optimizer(torch.optim.AdamW)
        for micro_batch in range(6):
            scaler.scale(loss_of(model) / 2).backward()
            if micro_batch % 2:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        return weights(model), scaler.state_dict()

    _, state = both(deed, attached)
    assert (state["scale"], state["_growth_tracker"]) == (256.0, 1)


def test_of_two_optimizers_only_the_one_with_the_overflow_skips(attached):
    def deed(make):
        scaler = make()
        (first, one), (second, two) = model_and_optimizer(), model_and_optimizer()
        start = weights(first), weights(second)
        scaler.scale(loss_of(first, poisoned=True)).backward()
        scaler.scale(loss_of(second)).backward()
        scaler.unscale_(two)
        scaler.step(one)
        scaler.step(two)
        scaler.update()
        moved = not same(weights(first), start[0]), not same(weights(second), start[1])
        return moved, scaler.get_scale(), weights(first, second)

    moved, scale, _ = both(deed, attached)
    assert moved == (False, True)
    assert scale == 64.0


def test_two_models_under_one_loss_and_two_under_two_losses_train_as_before(attached):
    def deed(make):
        scaler = make()
        (first, one), (second, two) = model_and_optimizer(), model_and_optimizer()
        for _ in range(3):
            one.zero_grad()
            two.zero_grad()
            shared = loss_of(first) + loss_of(second)
            scaler.scale(shared).backward(retain_graph=True)
            scaler.scale(0.3 * shared).backward()
            scaler.step(one)
            scaler.step(two)
            scaler.update()
        return weights(first, second), scaler.state_dict()

    both(deed, attached)


@pytest.mark.parametrize("poisoned", [False, True])
def test_sparse_gradients_stay_sparse_and_are_unscaled_as_before(attached, poisoned):
    def deed(make):
        scaler = make()
        table = nn.Embedding(16, 4, sparse=True)
        optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
        loss = table(torch.tensor([1, 3, 3, 7])).sum() * (INF if poisoned else 1.0)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        gradient = table.weight.grad.clone()
        scaler.step(optimizer)
        scaler.update()
        return gradient, weights(table), scaler.get_scale()

    gradient, _, scale = both(deed, attached)
    assert gradient.is_sparse
    assert scale == (64.0 if poisoned else 128.0)
    if not poisoned:
        assert gradient.to_dense()[:, 0].tolist()[:8] == [0, 1, 0, 2, 0, 0, 0, 1]


def test_parameters_without_gradients_are_left_alone(attached):
    def deed(make):
        scaler = make()
        model, optimizer = model_and_optimizer(torch.optim.AdamW)
        model[2].requires_grad_(False)
        spare = nn.Parameter(torch.ones(3))
        optimizer.add_param_group({"params": [spare]})
        scaler.scale(loss_of(model)).backward()
        scaler.step(optimizer)
        scaler.update()
        return weights(model), spare.grad, spare.detach(), len(optimizer.state)

    _, gradient, spare, states = both(deed, attached)
    assert gradient is None
    assert spare.tolist() == [1.0, 1.0, 1.0]
    assert states == 2


@pytest.mark.parametrize("poisoned", [False, True])
@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}, {"foreach": False}])
def test_fused_and_unfused_adam_do_what_they_did_with_gradients_and_state(
    attached, options, poisoned
):
    def deed(make):
        scaler = make()
        model, optimizer = model_and_optimizer(torch.optim.AdamW, **options)
        for number in range(3):
            optimizer.zero_grad()
            scaler.scale(loss_of(model, poisoned=poisoned and number == 1)).backward()
            scaler.step(optimizer)
            scaler.update()
        gradients = [p.grad.clone() for p in model.parameters()]
        state = [optimizer.state[p] for p in model.parameters()]
        return weights(model), gradients, state, scaler.state_dict()

    *_, state = both(deed, attached)
    assert state["scale"] == (64.0 if poisoned else 256.0)


def test_an_optimizer_that_unscales_for_itself_gets_what_it_got(attached):
    def deed(make):
        scaler = make()
        model = nn.Linear(4, 1)
        got = []

        class Unscaling(torch.optim.SGD):
            _step_supports_amp_scaling = True

            def step(self, closure=None):
                got.append((self.grad_scale.clone(), self.found_inf.clone()))

        optimizer = Unscaling(model.parameters(), lr=0.1)
        scaler.scale(model(torch.randn(2, 4)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        return got, hasattr(optimizer, "grad_scale"), hasattr(optimizer, "found_inf")

    ((scale, found_inf),), *left_behind = both(deed, attached)
    assert (scale.item(), found_inf.item()) == (128.0, 0.0)
    assert left_behind == [False, False]


def test_an_optimizer_that_wants_the_scaler_gets_a_scaler(attached):
    def deed(make):
        scaler = make()
        model = nn.Linear(4, 1)
        got = []

        class Asking(torch.optim.SGD):
            _step_supports_amp_scaling = True

            def step(self, closure=None, *, grad_scaler=None):
                got.append((isinstance(grad_scaler, GradScaler), grad_scaler is scaler))

        optimizer = Asking(model.parameters(), lr=0.1)
        scaler.scale(model(torch.randn(2, 4)).sum()).backward()
        with pytest.warns(FutureWarning, match="GradScaler is going to stop passing itself"):
            scaler.step(optimizer)
        # Such an optimizer looks for overflows by itself, so the scaler has nothing to go by.
        return got, refusal(scaler.update)

    got, (kind, message) = both(deed, attached)
    assert got == [(True, True)]
    assert (kind, message) == (AssertionError, "No inf checks were recorded prior to update.")


def test_what_an_optimizer_returns_comes_through(attached):
    def deed(make):
        scaler = make()
        model = nn.Linear(4, 1)

        class Telling(torch.optim.SGD):
            def step(self, *args, **kwargs):
                super().step()
                return args, kwargs

        optimizer = Telling(model.parameters(), lr=0.1)
        scaler.scale(model(torch.randn(2, 4)).sum()).backward()
        return scaler.step(optimizer, 1, word="x")

    assert both(deed, attached) == ((1,), {"word": "x"})


# --- disabled -------------------------------------------------------------------------------


def test_a_disabled_scaler_does_nothing_as_before(attached):
    def deed(make):
        scaler = make(enabled=False)
        model, optimizer = model_and_optimizer()
        for _ in range(3):
            optimizer.zero_grad()
            loss = loss_of(model)
            assert scaler.scale(loss) is loss
            loss.backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        scaler.load_state_dict({})
        twin = pickle.loads(pickle.dumps(scaler))
        return scaler.get_scale(), scaler.state_dict(), twin.is_enabled(), weights(model)

    scale, state, enabled, _ = both(deed, attached)
    assert (scale, state, enabled) == (1.0, {}, False)


def test_a_disabled_scaler_takes_a_closure_as_before(attached):
    def deed(make):
        scaler = make(enabled=False)
        model, optimizer = model_and_optimizer()

        def closure():
            optimizer.zero_grad()
            loss = loss_of(model)
            loss.backward()
            return loss

        loss = scaler.step(optimizer, closure=closure)
        scaler.update()
        return loss.detach(), weights(model)

    both(deed, attached)
