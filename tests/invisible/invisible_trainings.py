"""Trainings for the invisibility tests: each takes a number of steps and a way to attach a watch.

They draw on torch's, numpy's and Python's global random state in every step, start with a scale far
too large and meet a poisoned batch, so that skips, random state and weights would all betray us.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

POISONED = (60, 61, 100)


class Attach(Protocol):
    """`ampwatch.attach`, or something that does nothing."""

    def __call__(self, scaler: Any, model: Any, **options: Any) -> Any: ...


@dataclass(slots=True)
class Outcome:
    """Everything a training leaves behind."""

    losses: list[float] = field(default_factory=list)
    state: dict[str, Any] = field(default_factory=dict)
    steps_per_iteration: int = 1

    def keep(self, *, models: list[nn.Module], optimizers: list[Any], scaler: Any) -> Outcome:
        """Add the end state of the training and of every source of randomness."""
        self.state = {
            "models": [model.state_dict() for model in models],
            "gradients": [[p.grad for p in model.parameters()] for model in models],
            "optimizers": [optimizer.state_dict() for optimizer in optimizers],
            "scaler": scaler.state_dict() if scaler is not None else None,
            "training": [module.training for model in models for module in model.modules()],
            "torch": torch.get_rng_state(),
            "numpy": np.random.get_state(),
            "python": random.getstate(),
        }
        return self


Training = Callable[[int, Attach], Outcome]


def seed() -> None:
    torch.manual_seed(7)
    np.random.seed(7)
    random.seed(7)


def mlp(*, dropout: float = 0.1) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(12, 24), nn.BatchNorm1d(24), nn.GELU(), nn.Dropout(dropout), nn.Linear(24, 3)
    )


def big_scaler(**options: Any) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=2.0**40, growth_interval=25, **options)


def batches(steps: int, *, poisoned: bool = True) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and labels drawn from all three random sources; a few batches overflow fp16."""
    for step in range(steps):
        inputs = torch.randn(8, 12) * (1.0 + random.random()) + float(np.random.rand())
        if poisoned and step in POISONED:
            inputs = inputs * 1e30
        yield inputs, torch.randint(0, 3, (8,))


def half() -> torch.autocast:
    return torch.autocast("cpu", torch.float16)


def classify(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    with half():
        return nn.functional.cross_entropy(model(inputs), labels)


def plain(make_optimizer: Callable[[Any], torch.optim.Optimizer]) -> Training:
    """The ordinary loop with a given optimizer."""

    def train(steps: int, attach: Attach) -> Outcome:
        seed()
        model, scaler, outcome = mlp(), big_scaler(), Outcome()
        optimizer = make_optimizer(model.parameters())
        attach(scaler, model)
        for inputs, labels in batches(steps):
            optimizer.zero_grad()
            loss = classify(model, inputs, labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            outcome.losses.append(loss.item())
        return outcome.keep(models=[model], optimizers=[optimizer], scaler=scaler)

    return train


def clipping(steps: int, attach: Attach) -> Outcome:
    """`unscale_` by hand, then clipping; a scheduler moves the rate."""
    seed()
    model, scaler, outcome = mlp(), big_scaler(), Outcome()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=steps + 1)
    attach(scaler, model)
    for inputs, labels in batches(steps):
        optimizer.zero_grad(set_to_none=False)
        loss = classify(model, inputs, labels)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        outcome.losses += [loss.item(), norm.item()]
    return outcome.keep(models=[model], optimizers=[optimizer], scaler=scaler)


def accumulation(steps: int, attach: Attach) -> Outcome:
    """Three micro-batches a step."""
    seed()
    model, scaler, outcome = mlp(), big_scaler(), Outcome()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    attach(scaler, model)
    data = batches(3 * steps)
    for _ in range(steps):
        for _ in range(3):
            loss = classify(model, *next(data)) / 3
            scaler.scale(loss).backward()
            outcome.losses.append(loss.item())
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return outcome.keep(models=[model], optimizers=[optimizer], scaler=scaler)


def gradient_penalty(steps: int, attach: Attach) -> Outcome:
    """A second derivative: `autograd.grad` of the scaled loss with create_graph."""
    seed()
    model = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 3))
    scaler, outcome = big_scaler(), Outcome()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    attach(scaler, model)
    for inputs, labels in batches(steps):
        optimizer.zero_grad()
        loss = classify(model, inputs, labels)
        scaled = torch.autograd.grad(scaler.scale(loss), model.parameters(), create_graph=True)
        with half():
            squares = [(gradient / scaler.get_scale()).square().sum() for gradient in scaled]
            total = loss + 0.1 * torch.stack(squares).sum()
        scaler.scale(total).backward()
        scaler.step(optimizer)
        scaler.update()
        outcome.losses += [loss.item(), total.item()]
    return outcome.keep(models=[model], optimizers=[optimizer], scaler=scaler)


def two_optimizers(steps: int, attach: Attach) -> Outcome:
    """Two models and losses that share a backbone, one scaler; only the first loss overflows."""
    seed()
    first, second, scaler = mlp(), mlp(), big_scaler()
    outcome = Outcome(steps_per_iteration=2)
    one = torch.optim.Adam(first.parameters(), lr=1e-3)
    other = torch.optim.SGD(second.parameters(), lr=0.01)
    attach(scaler, [first, second])
    for step, (inputs, labels) in enumerate(batches(steps, poisoned=False)):
        one.zero_grad()
        other.zero_grad()
        gain = 1e30 if step in POISONED else 1.0
        with half():
            logits, others = first(inputs * gain), second(inputs)
            loss_one = nn.functional.cross_entropy(logits, labels)
            mixed = others if step in POISONED else others + logits
            loss_other = nn.functional.cross_entropy(mixed, labels)
        scaler.scale(loss_one).backward(retain_graph=True)
        scaler.scale(loss_other).backward()
        scaler.unscale_(one)
        scaler.step(one)
        scaler.step(other)
        scaler.update()
        outcome.losses += [loss_one.item(), loss_other.item()]
    return outcome.keep(models=[first, second], optimizers=[one, other], scaler=scaler)


def new_scale(steps: int, attach: Attach) -> Outcome:
    """The user sets the scale: as a number, as a tensor, and by its other settings."""
    seed()
    model, scaler, outcome = mlp(), big_scaler(), Outcome()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    attach(scaler, model)
    for step, (inputs, labels) in enumerate(batches(steps)):
        optimizer.zero_grad()
        loss = classify(model, inputs, labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        if step % 50 == 10:
            scaler.update(512.0)
        elif step % 50 == 30:
            scaler.update(torch.tensor(2048.0))
        else:
            scaler.update()
        if step == 82:
            scaler.set_growth_factor(4.0)
            scaler.set_backoff_factor(0.25)
            scaler.set_growth_interval(10)
        outcome.losses += [loss.item(), scaler.get_scale()]
    return outcome.keep(models=[model], optimizers=[optimizer], scaler=scaler)


def sparse_embedding(steps: int, attach: Attach) -> Outcome:
    """Sparse gradients, with tokens that repeat within a batch."""
    seed()
    embedding, head = nn.EmbeddingBag(50, 12, sparse=True, mode="sum"), nn.Linear(12, 3)
    model, scaler = nn.Sequential(embedding, head), big_scaler()
    outcome = Outcome(steps_per_iteration=2)
    sparse = torch.optim.SparseAdam(list(embedding.parameters()), lr=1e-3)
    dense = torch.optim.SGD(head.parameters(), lr=0.05)
    attach(scaler, model)
    for _, labels in batches(steps):
        sparse.zero_grad()
        dense.zero_grad()
        loss = classify(model, torch.randint(0, 50, (8, 5)), labels)
        scaler.scale(loss).backward()
        scaler.step(sparse)
        scaler.step(dense)
        scaler.update()
        outcome.losses.append(loss.item())
    return outcome.keep(models=[model], optimizers=[sparse, dense], scaler=scaler)


class Partly(nn.Module):
    """A frozen layer, one that is used on odd steps only, one that never is, and tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(12, 12).requires_grad_(False)
        self.always, self.odd, self.never = nn.Linear(12, 12), nn.Linear(12, 12), nn.Linear(12, 12)
        self.tied = nn.Linear(12, 12)
        self.tied.weight = self.always.weight
        self.head = nn.Linear(12, 3)
        self.bare = nn.Parameter(torch.ones(12))
        self.calls = 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        hidden = self.always(self.frozen(inputs)).relu_()
        if self.calls % 2:
            hidden = self.odd(hidden)
        return self.head(self.tied(hidden) * self.bare)


def without_gradients(steps: int, attach: Attach) -> Outcome:
    """Parameters without gradients, always or now and then; two groups; evaluation in between."""
    seed()
    model, scaler, outcome = Partly(), big_scaler(), Outcome()
    groups = [
        {"params": [p for n, p in model.named_parameters() if n.endswith("weight")]},
        {
            "params": [p for n, p in model.named_parameters() if not n.endswith("weight")],
            "lr": 1e-4,
        },
    ]
    optimizer = torch.optim.Adam(groups, lr=1e-3)
    attach(scaler, model)
    for step, (inputs, labels) in enumerate(batches(steps)):
        optimizer.zero_grad()
        loss = classify(model, inputs, labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        outcome.losses.append(loss.item())
        if step % 20 == 0:
            model.eval()
            with torch.no_grad():
                outcome.losses.append(classify(model, inputs, labels).item())
            model.train()
    return outcome.keep(models=[model], optimizers=[optimizer], scaler=scaler)


def checkpointed(steps: int, attach: Attach) -> Outcome:
    """Activation checkpointing runs forward a second time inside backward, with dropout."""
    seed()
    model, scaler, outcome = mlp(dropout=0.5), big_scaler(), Outcome()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    attach(scaler, model)
    for inputs, labels in batches(steps):
        optimizer.zero_grad()
        with half():
            logits = checkpoint(model, inputs.requires_grad_(), use_reentrant=False)
            loss = nn.functional.cross_entropy(logits, labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        outcome.losses.append(loss.item())
    return outcome.keep(models=[model], optimizers=[optimizer], scaler=scaler)


def recurrent(steps: int, attach: Attach) -> Outcome:
    """A GRU, whose module returns a tuple, and hidden state carried over; the loss is a list."""
    seed()
    model = nn.ModuleDict({"embed": nn.Embedding(20, 12), "gru": nn.GRU(12, 12), "head": mlp()})
    scaler, outcome = big_scaler(), Outcome()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    attach(scaler, model)
    hidden = torch.zeros(1, 8, 12)
    for _, labels in batches(steps):
        optimizer.zero_grad()
        with half():
            output, hidden = model["gru"](model["embed"](torch.randint(0, 20, (4, 8))), hidden)
            logits = model["head"](output[-1].float())
            losses = [nn.functional.cross_entropy(logits, labels), logits.square().mean()]
        hidden = hidden.detach().float()
        first, second = scaler.scale(losses)
        (first + second).backward()
        scaler.step(optimizer)
        scaler.update()
        outcome.losses += [loss.item() for loss in losses]
    return outcome.keep(models=[model], optimizers=[optimizer], scaler=scaler)


def saved_and_loaded(steps: int, attach: Attach) -> Outcome:
    """Every state is saved, and loaded again, in the middle of the training."""
    seed()
    model, scaler, outcome = mlp(), big_scaler(), Outcome()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    attach(scaler, model)
    for step, (inputs, labels) in enumerate(batches(steps)):
        if step % 50 == 49:
            for part in (model, optimizer, scaler):
                part.load_state_dict(part.state_dict())
        optimizer.zero_grad()
        loss = classify(model, inputs, labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        outcome.losses.append(loss.item())
    return outcome.keep(models=[model], optimizers=[optimizer], scaler=scaler)


def disabled(steps: int, attach: Attach) -> Outcome:
    """A scaler that does nothing, as `enabled=use_amp` gives it."""
    seed()
    model, scaler, outcome = mlp(), torch.amp.GradScaler("cpu", enabled=False), Outcome()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    attach(scaler, model)
    for inputs, labels in batches(steps, poisoned=False):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        outcome.losses.append(loss.item())
    return outcome.keep(models=[model], optimizers=[optimizer], scaler=scaler)


def bfloat16(steps: int, attach: Attach) -> Outcome:
    """No scaler at all."""
    seed()
    model, outcome = mlp(), Outcome()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    watch = attach(None, model, optimizer=optimizer)
    for inputs, labels in batches(steps, poisoned=False):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(inputs), labels)
        if watch is not None:
            watch.log(loss=loss, samples=8)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        outcome.losses.append(loss.item())
    return outcome.keep(models=[model], optimizers=[optimizer], scaler=None)


TRAININGS: dict[str, Training] = {
    "sgd": plain(lambda p: torch.optim.SGD(p, lr=0.05)),
    "momentum": plain(lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True)),
    "adam": plain(lambda p: torch.optim.Adam(p, lr=1e-3)),
    "fused adamw": plain(lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True)),
    "foreach adamw": plain(lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=True)),
    "clipping": clipping,
    "accumulation": accumulation,
    "gradient penalty": gradient_penalty,
    "two optimizers": two_optimizers,
    "update(new_scale)": new_scale,
    "sparse embedding": sparse_embedding,
    "parameters without gradients": without_gradients,
    "checkpointed": checkpointed,
    "recurrent": recurrent,
    "saved and loaded": saved_and_loaded,
    "disabled scaler": disabled,
    "bfloat16 without scaler": bfloat16,
}


def flatten(value: Any, path: str = "") -> dict[str, Any]:
    """A nested state as path -> something that `==` compares bit for bit."""
    if isinstance(value, Tensor):
        dense = value.coalesce() if value.is_sparse else value
        parts = (dense.indices(), dense.values()) if value.is_sparse else (dense,)
        return {path: [(p.dtype, tuple(p.shape), bytes_of(p)) for p in parts]}
    if isinstance(value, np.ndarray):
        return {path: (value.dtype.str, value.shape, value.tobytes())}
    if isinstance(value, dict):
        parts_ = [flatten(inner, f"{path}/{key}") for key, inner in value.items()]
        return dict(chain.from_iterable(part.items() for part in parts_))
    if isinstance(value, (list, tuple)):
        return flatten(dict(enumerate(value)), path)
    return {path: "nan" if isinstance(value, float) and math.isnan(value) else value}


def bytes_of(tensor: Tensor) -> bytes:
    """Its values' bits; numpy knows no bfloat16."""
    return tensor.detach().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()


def differences(one: Outcome, other: Outcome) -> list[str]:
    """The paths at which two outcomes are not equal bit for bit."""
    first = flatten({"losses": one.losses, **one.state})
    second = flatten({"losses": other.losses, **other.state})
    return [path for path in first | second if first.get(path) != second.get(path)]
