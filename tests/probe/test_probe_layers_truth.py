"""Every figure of a layer equals what an unwatched twin's own autograd says."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from layers_harness import Truth, Watched, half_step, truth_of
from torch import Tensor, nn
from torch.utils import checkpoint as checkpoints


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4)
    )


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(8, 12, num_layers=2, batch_first=True)
        self.head = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.gru(x)
        return self.head(states[:, -1])


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.body = nn.Linear(16, 16)
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.body(self.embed(tokens)))


@dataclass
class Output:
    logits: Tensor
    hidden: tuple[Tensor, ...]


class Nested(nn.Module):
    """Gives a dict, takes keywords, calls one layer twice, and has an identity in its way."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.same = nn.Identity()
        self.wrap = Wrap()

    def forward(self, *, x: Tensor) -> dict[str, Tensor]:
        hidden = self.same(self.first(torch.relu(self.first(x))))
        output = self.wrap(inputs={"hidden": hidden})
        return {"logits": output.logits, "hidden": output.hidden[0]}


class Wrap(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 4)

    def forward(self, inputs: dict[str, Tensor]) -> Output:
        logits = self.linear(inputs["hidden"])
        return Output(logits, (inputs["hidden"] * 2.0,))


@dataclass
class Case:
    model: Callable[[], nn.Module]
    forward: Callable[[nn.Module], Tensor]


X = torch.Generator().manual_seed(0)
ROWS = torch.randn(8, 16, generator=X)
SERIES = torch.randn(4, 6, 16, generator=X)
SHORT = torch.randn(4, 6, 8, generator=X)
TOKENS = torch.randint(50, (4, 6), generator=X)

CASES = {
    "mlp": Case(mlp, lambda m: m(ROWS).float().pow(2).mean()),
    "transformer": Case(transformer, lambda m: m(SERIES).float().pow(2).mean()),
    "recurrent": Case(Recurrent, lambda m: m(SHORT).float().pow(2).mean()),
    "tied": Case(Tied, lambda m: m(TOKENS).float().logsumexp(-1).mean()),
    "nested": Case(
        Nested, lambda m: sum(part.float().pow(2).mean() for part in m(x=ROWS).values())
    ),
}  # fmt: skip


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    torch.manual_seed(1)
    return CASES[request.param]


def test_every_extreme_equals_the_twins(case: Case) -> None:
    model = case.model()
    truth = truth_of(model, case.forward)
    watched = Watched(model).step(half_step(model, case.forward))
    assert truth
    for name, known in truth.items():
        cells = watched.cells(name)
        assert cells.act_amax == max(known.act)
        assert cells.act_finite
        assert cells.input_amax == (max(known.input) if known.input else None)
        assert_gradient(cells.out_grad_amax, known.outputs, lambda k=known: k.out_grad)
        assert_gradient(cells.in_grad_amax, known.inputs, lambda k=known: k.in_grad)


def assert_gradient(seen: float | None, kept: list[Tensor], truth: Callable[[], float]) -> None:
    if any(tensor.grad is not None for tensor in kept):
        assert seen == truth()
    else:
        assert seen is None


def test_layers_are_numbered_in_the_order_in_which_they_begin(case: Case) -> None:
    model = case.model()
    truth = truth_of(model, case.forward)
    watched = Watched(model).step(half_step(model, case.forward))
    begun = sorted(truth, key=lambda name: truth[name].order)
    assert [watched.info(name).order for name in begun] == list(range(len(begun)))


def test_training_is_the_same_to_the_last_bit(case: Case) -> None:
    torch.manual_seed(2)
    model = case.model()
    bare, seen = copy.deepcopy(model), model
    watched = Watched(seen)
    for trained, observe in ((bare, False), (seen, True)):
        optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-2)
        run = half_step(trained, case.forward)
        for _ in range(3):
            optimizer.zero_grad()
            watched.step(run) if observe else run()
            optimizer.step()
    for one, other in zip(bare.parameters(), seen.parameters(), strict=True):
        assert torch.equal(one, other)
        assert torch.equal(one.grad, other.grad)


def test_in_place_layers_and_random_ones_train_the_same_to_the_last_bit() -> None:
    torch.manual_seed(8)
    images = torch.randn(2, 3, 6, 6)
    bare = nn.Sequential(Block(inplace=True), nn.Dropout(0.5))
    seen = copy.deepcopy(bare)
    watched = Watched(seen)
    forward = lambda m: m(images).float().pow(2).mean()  # noqa: E731
    torch.manual_seed(9)
    half_step(bare, forward)()
    state = torch.get_rng_state()
    torch.manual_seed(9)
    watched.step(half_step(seen, forward))
    assert torch.equal(torch.get_rng_state(), state)
    for one, other in zip(bare.parameters(), seen.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)
    for one, other in zip(bare.buffers(), seen.buffers(), strict=True):
        assert torch.equal(one, other)


class Block(nn.Module):
    def __init__(self, *, inplace: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.relu1 = nn.ReLU(inplace=inplace)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1)
        self.relu2 = nn.ReLU(inplace=inplace)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flat = nn.Flatten()
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        skip = self.norm(self.conv1(x))
        hidden = self.conv2(self.relu1(skip))
        hidden = hidden + hidden.mean()
        return self.head(self.flat(self.pool(self.relu2(hidden))))


def test_in_place_layers_are_seen_as_if_they_were_not() -> None:
    torch.manual_seed(3)
    images = torch.randn(2, 3, 6, 6)
    forward = lambda m: m(images).float().pow(2).mean()  # noqa: E731
    model = Block(inplace=True)
    plain = Block(inplace=False)
    plain.load_state_dict(model.state_dict())
    truth = truth_of(plain, forward)
    watched = Watched(model).step(half_step(model, forward))
    for name, known in truth.items():
        cells = watched.cells(name)
        assert cells.act_amax == max(known.act), name
        assert cells.input_amax == max(known.input), name
        assert cells.out_grad_amax == known.out_grad, name
        if any(tensor.grad is not None for tensor in known.inputs):
            assert cells.in_grad_amax == known.in_grad, name


def selective() -> dict[str, object]:
    keep = [torch.ops.aten.mm.default, torch.ops.aten.addmm.default]
    contexts = functools.partial(checkpoints.create_selective_checkpoint_contexts, keep)
    return {"use_reentrant": False, "context_fn": contexts}


WAYS = {
    "reentrant": {"use_reentrant": True},
    "not-reentrant": {"use_reentrant": False},
}
if hasattr(checkpoints, "create_selective_checkpoint_contexts"):  # torch 2.4 has none
    WAYS["selective"] = selective()


class Checkpointed(nn.Module):
    def __init__(self, way: str) -> None:
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.inner = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16))
        self.way = WAYS[way]

    def forward(self, x: Tensor) -> Tensor:
        return checkpoints.checkpoint(self.inner, self.first(x), **self.way)


@pytest.mark.parametrize("way", WAYS)
def test_a_recomputed_forward_is_one_observation(way: str) -> None:
    torch.manual_seed(4)
    forward = lambda m: m(ROWS).float().pow(2).mean()  # noqa: E731
    model = Checkpointed(way)
    twin = nn.Sequential(copy.deepcopy(model.first), copy.deepcopy(model.inner))
    truth = truth_of(twin, forward)
    watched = Watched(model).step(half_step(model, forward))
    for ours, theirs in (("first", "0"), ("inner.0", "1.0"), ("inner.2", "1.2")):
        cells = watched.cells(ours)
        assert cells.act_amax == max(truth[theirs].act)
        assert cells.out_grad_amax == truth[theirs].out_grad
        assert cells.in_grad_amax == (None if ours == "first" else truth[theirs].in_grad)


def test_micro_batches_are_combined() -> None:
    torch.manual_seed(5)
    model = mlp()
    batches = [ROWS, 3.0 * ROWS]
    truths = [truth_of(model, lambda m, b=b: m(b).float().pow(2).mean()) for b in batches]
    runs = [half_step(model, lambda m, b=b: m(b).float().pow(2).mean()) for b in batches]
    watched = Watched(model).step(lambda: [run() for run in runs] and None)
    for name in truths[0]:
        cells = watched.cells(name)
        assert cells.act_amax == max(max(truth[name].act) for truth in truths)
        assert cells.out_grad_amax == max(truth[name].out_grad for truth in truths)


def test_weights_are_those_before_the_step() -> None:
    torch.manual_seed(6)
    model = mlp()
    layer = model[0]
    before = torch.cat([p.detach().double().flatten() for p in layer.parameters()])
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    run = half_step(model, lambda m: m(ROWS).float().pow(2).mean())

    def whole_step() -> None:
        run()
        optimizer.step()

    cells = Watched(model).step(whole_step).cells("0")
    assert cells.weight_norm == pytest.approx(before.norm().item(), rel=1e-6)
    assert cells.weight_finite
    assert layer.weight.norm().item() != pytest.approx(before.norm().item(), rel=1e-3)


def test_a_weight_whose_norm_overflows_float32_is_still_finite() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with torch.no_grad():
        model[0].weight.fill_(3e38)
        model[1].weight[0, 0] = torch.nan
    watched = Watched(model).step(lambda: model(torch.zeros(2, 4)).sum().backward())
    assert watched.cells("0").weight_finite is True
    assert watched.cells("1").weight_finite is False


def test_the_truth_is_not_trivial() -> None:
    torch.manual_seed(7)
    truth = truth_of(mlp(), CASES["mlp"].forward)
    assert len(truth) == 6
    assert all(isinstance(known, Truth) and known.out_grad > 0 for known in truth.values())
