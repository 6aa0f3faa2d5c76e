"""How routers spread tokens: read from what each kind of router gives, and changing nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from layers_harness import Watched
from torch import Tensor, nn

import ampwatch
from ampwatch.probe.expert_load import Router as Known
from ampwatch.probe.expert_load import tokens_by_expert
from ampwatch.probe.layer_rows import LayerInfo
from ampwatch.probe.tensor_values import tensors_in

WIDTH, EXPERTS, CHOICES, TOKENS = 16, 6, 2, 40


class Block(nn.Module):
    """A block whose router gives what `give` makes of its scores."""

    def __init__(self, give: Any = lambda scores: scores, *, choices: int | None = CHOICES) -> None:
        super().__init__()
        self.router = Router(give)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS))
        if choices is not None:
            self.top_k = choices

    def forward(self, x: Tensor) -> Tensor:
        self.router(x)
        scores, chosen = self.router.scores.softmax(-1).topk(CHOICES)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, place = (chosen == number).nonzero(as_tuple=True)
            if len(token):
                out = out.index_add(0, token, expert(x[token]) * scores[token, place, None])
        return x + out


class Router(nn.Linear):
    def __init__(self, give: Any) -> None:
        super().__init__(WIDTH, EXPERTS, bias=False)
        self.give = give

    def forward(self, x: Tensor) -> Any:
        self.scores = super().forward(x)
        return self.give(self.scores)


def chosen_of(scores: Tensor) -> Tensor:
    return scores.topk(CHOICES).indices


def map_of(scores: Tensor) -> Tensor:
    return nn.functional.one_hot(chosen_of(scores), EXPERTS).sum(1)


# What public routers give, by whose they are.
GIVEN = {
    "a linear gate": lambda scores: scores,
    "Mixtral": lambda scores: (scores, scores.topk(CHOICES).values, chosen_of(scores)),
    "DeepSeek": lambda scores: (chosen_of(scores), scores.topk(CHOICES).values, None),
    "Megatron": lambda scores: (scores.softmax(-1), map_of(scores).bool()),
    "Llama 4": lambda scores: (scores.masked_fill(map_of(scores) == 0, -100).sigmoid(), scores),
    "torchtitan": lambda scores: (
        scores.topk(CHOICES).values, chosen_of(scores), map_of(scores).sum(0).float(),
    ),
    "DeepSpeed": lambda scores: (
        scores.sum(), scores[..., None].expand(-1, -1, EXPERTS),
        torch.zeros(TOKENS, EXPERTS, EXPERTS).bool(), map_of(scores).sum(0),
    ),
    "Switch": lambda scores: (map_of(scores)[None], scores.max(-1).values[None, :, None], scores),
}  # fmt: skip


def watched_once(block: Block) -> tuple[Watched, list[int]]:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), block)
    true = torch.zeros(EXPERTS, dtype=torch.long)

    def run() -> None:
        for _ in range(2):  # two micro-batches
            model(torch.randn(TOKENS, WIDTH)).square().sum().backward()
            true.add_(map_of(block.router.scores).sum(0))

    return Watched(model).step(run), true.tolist()


def row_of(watched: Watched, name: str) -> LayerInfo:
    """The row of `layer_info` that the last step made of this layer."""
    (row,) = (info for info in watched.changed if info.name == name)
    return row


@pytest.mark.parametrize("kind", GIVEN)
def test_the_tokens_of_each_expert_are_counted_from_what_a_router_gives(kind: str) -> None:
    torch.manual_seed(1)
    block = Block(GIVEN[kind])
    with torch.no_grad():
        block.router.weight[3] = 0.0
    watched, true = watched_once(block)
    cells, share = row_of(watched, "1.router"), torch.tensor(true) / sum(true)
    assert cells.expert_tokens == true
    assert cells.experts_idle == true.count(0)
    assert cells.expert_most == pytest.approx(EXPERTS * share.max().item())
    entropy = torch.special.entr(share).sum() / torch.tensor(float(EXPERTS)).log()
    assert cells.expert_entropy == pytest.approx(entropy.item())
    assert row_of(watched, "0").expert_tokens is None


UNKNOWN = {
    "scores, and nobody says how many are chosen": Block(choices=None),
    "every expert takes every token": Block(choices=EXPERTS),
    "a map of first choices": Block(lambda scores: map_of(scores), choices=None),
    "experts that choose tokens": Block(lambda scores: scores.T.topk(8).indices),
    "a dispatch by capacity": Block(lambda scores: torch.zeros(TOKENS, EXPERTS, 9).bool()),
    "nothing": Block(lambda scores: None),
}


@pytest.mark.parametrize("what", UNKNOWN)
def test_what_a_router_does_not_tell_stays_absent(what: str) -> None:
    watched, _ = watched_once(UNKNOWN[what])
    assert row_of(watched, "1.router").expert_tokens is None


def test_numbers_that_are_no_experts_are_left_out() -> None:
    """With expert parallelism a token of another rank's expert has a number beyond the last."""
    beyond = Block(lambda scores: torch.tensor([[0, EXPERTS], [0, -1], [2, 10**9]]))
    watched, _ = watched_once(beyond)
    assert row_of(watched, "1.router").expert_tokens == [4, 0, 2, 0, 0, 0]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device; none is here")
def test_tokens_are_counted_on_a_device_without_a_synchronisation() -> None:
    scores = torch.randn(TOKENS, EXPERTS, device="cuda")
    true = map_of(scores).sum(0).tolist()
    given = [tensors_in(give(scores)) for give in GIVEN.values()]
    torch.use_deterministic_algorithms(True)
    torch.cuda.set_sync_debug_mode("error")
    try:
        counts = [tokens_by_expert(Known(EXPERTS, CHOICES), tensors) for tensors in given]
    finally:
        torch.cuda.set_sync_debug_mode("default")
        torch.use_deterministic_algorithms(False)
    assert [None if one is None else one.tolist() for one in counts] == [true] * len(given)


def test_a_gate_without_experts_beside_it_is_no_router() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.up, self.top_k = nn.Linear(WIDTH, 8), nn.Linear(WIDTH, 8), 2

        def forward(self, x: Tensor) -> Tensor:
            return self.gate(x).sigmoid() * self.up(x)

    model = Gated()
    watched = Watched(model).step(lambda: model(torch.randn(4, WIDTH)).sum().backward())
    assert "expert_tokens" not in watched.last.columns


def trained(log_dir: Path | None) -> list[Tensor]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), *map(Block, GIVEN.values()))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    watch = None
    if log_dir is not None:
        watch = ampwatch.attach(
            None, model, optimizer=optimizer, log_dir=log_dir, run="moe", endpoint="off"
        )
    for _ in range(60):
        model(torch.randn(TOKENS, WIDTH)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    if watch is not None:
        watch.close()
    return [parameter.detach() for parameter in model.parameters()]


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_mixture_trains_the_same_to_the_last_bit(tmp_path: Path, deterministic: bool) -> None:
    torch.use_deterministic_algorithms(deterministic)
    try:
        bare, watched = trained(None), trained(tmp_path)
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(map(torch.equal, bare, watched))
    rows = ampwatch.open_run(tmp_path / "moe").layers.to_pylist()
    told = [row for row in rows if row["expert_tokens"] is not None]
    assert {row["step"] for row in told} == {*range(10), 50}  # sampled steps, and no other
    assert len(told) == 11 * len(GIVEN)
    assert all(sum(row["expert_tokens"]) == CHOICES * TOKENS for row in told)
