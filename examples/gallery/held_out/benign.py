"""Healthy trainings of architectures used nowhere else; never tuned on."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from examples.gallery.held_out import architectures as strange
from examples.gallery.parts import (
    Batch,
    Loop,
    autocast,
    classes,
    entropy,
    images,
    regression,
    scaler,
    squared,
    tokens,
)
from examples.gallery.vocabulary import Family, Stage

FAMILY = Family("held-out", held_out=True)


def _adam(model: nn.Module, rate: float = 3e-3) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=rate)


def _mirror(step: int) -> Batch:
    x = classes(step)[0]
    return x, x


@FAMILY.benign(tells=["AMP102"])
def recurrent_sawtooth(stage: Stage) -> None:
    """A GRU under a scale that grows every 15 steps."""
    model = strange.Recurrent()
    Loop(model, tokens, entropy, _adam(model), scaler(2.0**18, 15), steps=250, clip=1.0).run(stage)


@FAMILY.benign(tells=["AMP101"])
def recommender_startup(stage: Stage) -> None:
    """A search from 2^32 on a recommender."""
    model = strange.Recommender()
    Loop(model, optimizer=_adam(model), scaler=scaler(2.0**32), steps=80).run(stage)


@FAMILY.benign(tells=["AMP109"])
def summed_reconstruction(stage: Stage) -> None:
    """An autoencoder whose loss is a sum over very many pixels."""

    def loss_of(output: Tensor, target: Tensor) -> Tensor:
        return squared(output, target) * 1e8

    model = strange.autoencoder()
    Loop(model, _mirror, loss_of, _adam(model), scaler(2.0**8), steps=150).run(stage)


@FAMILY.benign()
def one_branch_frozen(stage: Stage) -> None:
    """A siamese network's branch is frozen, only the head learns."""
    model = strange.Siamese(strange.Unit(1e-2))
    model.branch.requires_grad_(requires_grad=False)
    Loop(model, optimizer=_adam(model)).run(stage)


@FAMILY.benign()
def favourite_expert_only(stage: Stage) -> None:
    """Hard routing: most experts get no gradient in most steps."""
    model = strange.Experts(hard=True)
    Loop(model, optimizer=_adam(model), steps=150).run(stage)


@FAMILY.benign()
def mixer_cosine(stage: Stage) -> None:
    """A mixer with a cosine and clipping."""
    model = strange.Mixer()

    def rate(step: int) -> float:
        return 5e-3 * (1 + math.cos(math.pi * step / 150)) / 2

    Loop(model, images, entropy, _adam(model), steps=150, clip=1.0, rate=rate).run(stage)


@FAMILY.benign()
def taught_by_a_frozen_teacher(stage: Stage) -> None:
    """Distillation: a teacher in eval mode and without gradients speaks in every step."""
    model, teacher = strange.Dilated(), strange.Recurrent().eval()

    def batch(step: int) -> Batch:
        text = tokens(step)[0]
        with torch.no_grad(), autocast():
            return text, teacher(text).float().argmax(-1)

    Loop(model, batch, entropy, _adam(model), steps=100).run(stage)


@FAMILY.benign()
def two_fused_optimizers(stage: Stage) -> None:
    """Embeddings and the rest have an optimizer each, both fused, under one scaler."""
    model, scale = strange.Recommender(), scaler(2.0**14, 30)
    tables = [*model.users.parameters(), *model.items.parameters()]
    rest = [*model.mix.parameters(), *model.head.parameters()]
    optimizers = [torch.optim.AdamW(part, lr=3e-3, fused=True) for part in (tables, rest)]
    with stage.watch(scale, model):
        for step in range(150):
            x, y = regression(step)
            with autocast():
                loss = squared(model(x), y)
            for optimizer in optimizers:
                optimizer.zero_grad()
            scale.scale(loss).backward()
            for optimizer in optimizers:
                scale.step(optimizer)
            scale.update()


@FAMILY.benign()
def noisy_labels_at_the_end_of_learning(stage: Stage) -> None:
    """Labels are noise: the loss stays where it is, and nothing is wrong with the numbers."""

    def batch(step: int) -> Batch:
        x, labels = images(step)
        return x, labels.roll(step)

    model = strange.Patches()
    Loop(model, batch, entropy, _adam(model, 1e-3), steps=150, clip=1.0).run(stage)


@FAMILY.benign(tells=["AMP303"])
def spike_that_heals(stage: Stage) -> None:
    """A graph network loses four steps in a row to one bad stretch of data, and goes on."""

    def loss_of(output: Tensor, target: Tensor) -> Tensor:
        return squared(output, target) * gain[0]

    gain = [1.0]

    def before(step: int) -> None:
        gain[0] = 1e8 if step in range(120, 124) else 1.0

    model = strange.graph()
    grown = scaler(2.0**14, 25)
    Loop(model, loss_of=loss_of, optimizer=_adam(model), scaler=grown, steps=250, clip=1.0,
         before=before).run(stage)  # fmt: skip


@FAMILY.benign()
def sparse_table(stage: Stage) -> None:
    """A sparse embedding with SparseAdam beside a dense head with Adam, under one scaler."""
    table, head = nn.Embedding(8, 16, sparse=True), nn.Linear(16, 8)
    model, scale = nn.Sequential(table, head), scaler()
    sparse = torch.optim.SparseAdam(table.parameters(), lr=1e-2)
    dense = torch.optim.Adam(head.parameters(), lr=1e-2)
    with stage.watch(scale, model):
        for step in range(100):
            text, following = tokens(step)
            with autocast():
                loss = entropy(model(text), following)
            for optimizer in (sparse, dense):
                optimizer.zero_grad()
            scale.scale(loss).backward()
            for optimizer in (sparse, dense):
                scale.step(optimizer)
            scale.update()


@FAMILY.benign()
def two_tasks_weighted_by_learnt_doubt(stage: Stage) -> None:
    """Two losses from one mixer, weighed by parameters that learn; the sum may become negative."""
    model, scale = strange.Mixer(), scaler()
    doubts = nn.Parameter(torch.zeros(2))
    model.register_parameter("doubts", doubts)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    with stage.watch(scale, model):
        for step in range(150):
            x, labels = images(step)
            with autocast():
                logits = model(x).float()
            first = nn.functional.cross_entropy(logits, labels)
            second = (logits.mean(-1) ** 2).mean()
            losses = torch.stack([first, second])
            optimizer.zero_grad()
            scale.scale((losses * torch.exp(-doubts) + doubts).sum()).backward()
            scale.step(optimizer)
            scale.update()
