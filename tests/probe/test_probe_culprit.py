"""Who is named for an overflow: in real float16 trainings, and from bare finiteness."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import pytest
import torch
from layers_harness import Truth, Watched, half_step, truth_of
from torch import Tensor, nn

from ampwatch.probe.culprit import (
    LOSS,
    Culprit,
    CulpritFinder,
    Direction,
    LayerState,
    StepState,
    find_culprit,
)

ROWS = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))


class Trial:
    """A model trained in float16 whose overflows are asked about."""

    def __init__(
        self, model: nn.Module, forward: Callable[[nn.Module], Tensor] | None = None
    ) -> None:
        self.model = model
        self.forward = forward or (lambda m: m(ROWS).float().pow(2).mean())
        self.watched = Watched(model)
        self.finder = CulpritFinder(self.watched.survey, self.watched.infos.written)

    def learn(self, scale: float = 1.0) -> None:
        """A healthy sampled step."""
        self._step(scale)
        self.finder.learn(self.watched.last, scale, overflowed=False)

    def overflow(self, scale: float = 1.0, *, sampled: bool = True) -> Culprit | None:
        loss = self._step(scale)
        gradients = {
            at: bool(p.grad.isfinite().all())
            for at, p in enumerate(self.watched.survey.parameters)
            if p.grad is not None
        }
        assert not all(gradients.values()), "this test is about an overflow"
        root = self.watched.cells("(root)")
        return self.finder.find(
            gradients,
            loss_finite=math.isfinite(loss),
            input_finite=root.input_finite,
            figures=self.watched.last if sampled else None,
        )

    def _step(self, scale: float) -> float:
        losses: list[Tensor] = []

        def forward(model: nn.Module) -> Tensor:
            losses.append(self.forward(model))
            return losses[-1]

        for parameter in self.model.parameters():
            parameter.grad = None
        self.watched.scale = scale
        self.watched.step(half_step(self.model, forward, scale))
        return losses[0].item()


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)
    )


# -- forward ---------------------------------------------------------------------------------------


def test_the_first_layer_whose_output_leaves_float16_is_named() -> None:
    model = mlp()
    trial = Trial(model)
    trial.learn()
    with torch.no_grad():
        model[2].weight.fill_(6e4)
    culprit = trial.overflow()
    assert (culprit.direction, culprit.layer, culprit.exact) == (Direction.FORWARD, "2", True)
    assert (culprit.value, culprit.limit) == (math.inf, 65504.0)
    assert culprit.headroom_before > 8


class Exponential(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 16)
        self.outer = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer((100.0 * self.inner(x)).exp())


def test_an_operation_between_modules_is_named_by_the_module_around_it() -> None:
    trial = Trial(nn.Sequential(nn.Linear(16, 16), Exponential(), nn.Linear(16, 4)))
    culprit = trial.overflow()
    assert (culprit.direction, culprit.layer, culprit.exact) == (Direction.FORWARD, "1", True)
    assert culprit.between == ("1.inner", "1.outer")


class Repeated(nn.Module):
    """One layer, again and again, each time added to what it took."""

    def __init__(self, rounds: int) -> None:
        super().__init__()
        self.cell, self.leave, self.rounds = nn.Linear(16, 16, bias=False), nn.Linear(16, 4), rounds
        self.cell.weight.data = 3.0 * torch.eye(16)

    def forward(self, x: Tensor) -> Tensor:
        x = 3.0 * x / x.abs().max()
        for _ in range(self.rounds):
            x = x + self.cell(x)  # four times as large
        return self.leave(x)


def test_a_layer_that_spoils_its_own_next_input_is_named_and_not_what_is_around_it() -> None:
    trial = Trial(Repeated(rounds=12))
    culprit = trial.overflow()
    assert culprit is not None
    assert (culprit.direction, culprit.layer, culprit.exact) == (Direction.FORWARD, "cell", True)


def test_an_operation_outside_every_watched_module_is_bounded() -> None:
    loose = nn.ModuleList([nn.Linear(16, 16), nn.Linear(16, 4)])
    forward = lambda m: m[1]((m[0](ROWS) * 1e30).half()).float().pow(2).mean()  # noqa: E731
    trial = Trial(loose, forward)
    trial._step(1.0)
    culprit = trial.finder.find(
        {}, loss_finite=False, input_finite=True, figures=trial.watched.last
    )
    assert (culprit.direction, culprit.exact) == (Direction.FORWARD, False)
    assert culprit.between == ("0", "1")


# -- not a layer -----------------------------------------------------------------------------------


def test_a_weight_that_is_not_finite_explains_everything() -> None:
    model = mlp()
    with torch.no_grad():
        model[2].bias[3] = torch.nan
    culprit = Trial(model).overflow()
    assert (culprit.direction, culprit.layer, culprit.exact) == (Direction.WEIGHTS, "2", True)


def test_an_input_that_is_not_finite_is_no_layers_fault() -> None:
    bad = ROWS.clone()
    bad[0, 0] = torch.inf
    culprit = Trial(mlp(), lambda m: m(bad).float().pow(2).mean()).overflow()
    assert (culprit.direction, culprit.layer) == (Direction.INPUT, None)


def test_a_loss_that_is_not_finite_over_finite_layers_is_named_as_such() -> None:
    culprit = Trial(mlp(), lambda m: (m(ROWS).float() * 0.0).log().mean()).overflow()
    assert (culprit.direction, culprit.layer, culprit.exact) == (Direction.LOSS, None, True)


# -- backward --------------------------------------------------------------------------------------


def test_the_layer_nearest_the_loss_that_spoils_a_gradient_is_named() -> None:
    model = mlp()
    with torch.no_grad():
        model[0].weight.mul_(1e-3)
        model[0].bias.zero_()
        model[2].weight.mul_(1e3)
    trial = Trial(model)
    trial.learn(1.0)
    named = set()
    for scale in (2.0**exponent for exponent in range(4, 24)):
        truth = truth_of(model, trial.forward, scale)
        guilty = [
            name for name, known in truth.items() if math.isfinite(known.out_grad) and spoils(known)
        ]
        if not guilty:
            continue
        innermost = max(guilty, key=lambda name: truth[name].order)
        culprit = trial.overflow(scale)
        assert (culprit.direction, culprit.layer) == (Direction.BACKWARD, innermost)
        assert culprit.exact
        assert not math.isfinite(culprit.value)
        named.add(innermost)
    assert named == {"0", "2", "4"}


def spoils(known: Truth) -> bool:
    return not known.own_finite or (bool(known.inputs) and not math.isfinite(known.in_grad))


def test_a_parameters_own_gradient_may_be_the_first_to_overflow() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 1))
    rows = torch.full((2048, 16), 50.0)
    trial = Trial(model, lambda m: m(rows).float().sum() * 1e-3)
    culprit = trial.overflow(2.0**11)
    assert (culprit.direction, culprit.layer, culprit.exact) == (Direction.BACKWARD, "1", True)


def test_a_gradient_that_is_bad_when_it_reaches_the_model_is_bounded_by_the_loss() -> None:
    trial = Trial(mlp())
    trial.learn()
    culprit = trial.overflow(2.0**40)
    assert (culprit.direction, culprit.exact) == (Direction.BACKWARD, False)
    assert culprit.between == ("4", LOSS)


def test_a_step_that_was_not_looked_into_is_bounded_by_the_order_of_parameters() -> None:
    model = mlp()
    with torch.no_grad():
        model[4].weight.mul_(30.0)
    trial = Trial(model, lambda m: m(ROWS).float().pow(2).mean() * 1e-3)
    trial.learn()
    scale = first_backward_overflow(trial)
    culprit = trial.overflow(scale, sampled=False)
    names = ("0", "2", "4")
    bad = [at for at, n in enumerate(names) if not model[int(n)].bias.grad.isfinite().all()]
    assert not culprit.exact
    assert culprit.between == (names[bad[-1]], (*names, LOSS)[bad[-1] + 1])


def first_backward_overflow(trial: Trial) -> float:
    for exponent in range(40):
        trial._step(2.0**exponent)
        if not all(p.grad.isfinite().all() for p in trial.model.parameters()):
            return 2.0**exponent
    raise AssertionError("never overflowed")


def test_with_a_bad_loss_and_no_look_inside_nobody_is_named() -> None:
    model = mlp()
    trial = Trial(model)
    trial.learn()
    with torch.no_grad():
        model[2].weight.fill_(6e4)
    assert trial.overflow(sampled=False) is None


# -- from bare finiteness --------------------------------------------------------------------------


def layer(number: int, name: str, parent: int | None = 0, **known: object) -> LayerState:
    return LayerState(number, name, parent, **{"order": number, **known})


def test_layers_that_share_an_input_cannot_be_told_apart() -> None:
    shared = frozenset({7})
    good = {"out_grad_finite": True, "in_grad_finite": False, "bad_in_grads": shared}
    layers = [
        layer(0, "(root)", None, out_grad_finite=True, in_grad_finite=True),
        layer(1, "before", out_grad_finite=False, in_grad_finite=False),
        layer(2, "query", **good),
        layer(3, "key", **good),
        layer(4, "value", **good),
    ]
    culprit = find_culprit(StepState(layers, loss_finite=True))
    assert (culprit.layer, culprit.exact) == ("value", False)
    assert culprit.between == ("query", "value")


def test_containers_are_not_named_where_something_inside_is() -> None:
    bad = {"act_finite": False, "input_finite": True}
    layers = [
        layer(0, "(root)", None, **bad),
        layer(1, "block", **bad),
        layer(2, "block.good", 1, act_finite=True, input_finite=True),
        layer(3, "block.bad", 1, **bad),
        layer(4, "after", act_finite=False, input_finite=False),
    ]
    assert find_culprit(StepState(layers, loss_finite=False)).layer == "block.bad"


def test_outputs_that_are_never_finite_are_not_blamed() -> None:
    layers = [
        layer(0, "(root)", None, act_finite=False, input_finite=True),
        layer(1, "masked", act_finite=False, input_finite=True),
        layer(2, "culprit", act_finite=False, input_finite=True),
    ]
    step = StepState(layers, loss_finite=False, usually_not_finite=frozenset({1}))
    assert find_culprit(step).layer == "culprit"


def test_a_bare_parameter_stands_where_its_owner_ran() -> None:
    layers = [
        LayerState(0, "(root)", None, order=0),
        LayerState(1, "first", 0, order=1, grad_finite=False),
        LayerState(2, "attention", 0, order=2),
        LayerState(3, "attention.weight", 2, grad_finite=False),
        LayerState(4, "last", 0, order=3, grad_finite=True),
    ]
    culprit = find_culprit(StepState(layers, loss_finite=True))
    assert culprit.between == ("attention.weight", "last")


@pytest.mark.parametrize("loss_finite", [True, False, None])
def test_where_nothing_is_known_nothing_is_said(loss_finite: bool | None) -> None:
    layers = [layer(0, "(root)", None), layer(1, "a"), layer(2, "b")]
    assert find_culprit(StepState(layers, loss_finite=loss_finite)) is None
    assert find_culprit(StepState([], loss_finite=loss_finite)) is None


def test_gradients_name_nobody_when_the_loss_is_not_finite() -> None:
    layers = [layer(0, "a", None, grad_finite=False), layer(1, "b", None, grad_finite=False)]
    assert find_culprit(StepState(layers, loss_finite=False)) is None
    assert find_culprit(StepState(layers, loss_finite=None)) is None


def test_the_detail_is_plain_json() -> None:
    exact = Culprit(Direction.FORWARD, "2", exact=True, value=math.inf, limit=65504.0)
    bound = Culprit(Direction.BACKWARD, "2", exact=False, between=("2", LOSS))
    assert json.loads(json.dumps(exact.detail(), allow_nan=False)) == {
        "direction": "forward", "layer": "2", "exact": True, "value": "inf", "limit": 65504.0,
    }  # fmt: skip
    assert bound.detail() == {
        "direction": "backward", "layer": "2", "exact": False, "from": "2", "to": "(loss)",
    }  # fmt: skip
