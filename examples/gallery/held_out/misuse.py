"""Wrong loops, in architectures used nowhere else; never tuned on."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from examples.gallery.held_out import architectures as strange
from examples.gallery.parts import (
    Batch,
    Loop,
    autocast,
    classes,
    entropy,
    regression,
    scaler,
    squared,
    tokens,
)
from examples.gallery.vocabulary import Family, Label, Stage

FAMILY = Family("held-out", held_out=True)
NOT_THE_RATE = "not-the-cause"
COURSE = (
    "AMP101", "AMP103", "AMP104", "AMP105", "AMP202", "AMP203", "AMP204", "AMP205", "AMP207",
    "AMP304", "AMP307",
)  # fmt: skip


def _misuse(code: str, *may: str) -> Label:
    return Label((code,), may=may, advice=NOT_THE_RATE, onset=0)


def _adam(model: nn.Module, rate: float = 3e-3) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=rate)


def _mirror(step: int) -> Batch:
    x = classes(step)[0]
    return x, x


@FAMILY.fault(_misuse("AMP401", "AMP305"), issue="catalyst-team/catalyst#1319")
def recurrent_clipped_too_early(stage: Stage, fault: bool) -> None:
    """A GRU whose gradients are clipped by norm while they are still scaled."""
    model, scale = strange.Recurrent(), scaler()
    optimizer = _adam(model)
    with stage.watch(scale, model):
        for step in range(60):
            text, following = tokens(step)
            with autocast():
                loss = entropy(model(text), following)
            optimizer.zero_grad()
            scale.scale(loss).backward()
            if not fault:
                scale.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scale.step(optimizer)
            scale.update()


@FAMILY.fault(_misuse("AMP402", "AMP902"), issue="microsoft/Swin-Transformer#311")
def unscales_each_micro_batch(stage: Stage, fault: bool) -> None:
    """Accumulation that unscales after each micro-batch: the second unscale_ raises."""
    model, scale = strange.Recurrent(nn.RNN), scaler()
    optimizer = _adam(model)
    with stage.watch(scale, model):
        for step in range(120):
            text, following = tokens(step)
            with autocast():
                loss = entropy(model(text), following) / 2
            scale.scale(loss).backward()
            if fault or step % 2:
                scale.unscale_(optimizer)
            if step % 2:
                scale.step(optimizer)
                scale.update()
                optimizer.zero_grad()


@FAMILY.fault(Label(("AMP404",), may=("AMP402", *COURSE), advice=NOT_THE_RATE, onset=30))
def dilated_steps_past_the_scaler(stage: Stage, fault: bool) -> None:
    """From step 30 on a refactored branch calls optimizer.step() itself."""
    model, scale = strange.Dilated(), scaler(2.0**8)
    optimizer = _adam(model)
    with stage.watch(scale, model):
        for step in range(80):
            text, following = tokens(step)
            with autocast():
                loss = entropy(model(text), following)
            optimizer.zero_grad()
            scale.scale(loss).backward()
            if fault and step >= 30:
                optimizer.step()
            else:
                scale.step(optimizer)
            scale.update() if not (fault and step >= 30) else None


@FAMILY.fault(Label(tells=("AMP409",), may=("AMP409",), advice="keep", onset=0))
def autoencoder_backward_inside(stage: Stage, fault: bool) -> None:
    """The whole loop body of an autoencoder stands under autocast."""
    model, scale = strange.autoencoder(), scaler()
    optimizer = _adam(model)
    with stage.watch(scale, model):
        for step in range(60):
            x, y = _mirror(step)
            optimizer.zero_grad()
            with autocast():
                loss = squared(model(x), y)
                if fault:
                    scale.scale(loss).backward()
            if not fault:
                scale.scale(loss).backward()
            scale.step(optimizer)
            scale.update()


@FAMILY.fault(_misuse("AMP408", "AMP201"))
def recommender_without_scaler(stage: Stage, fault: bool) -> None:
    """A recommender in fp16 whose scaler was switched off."""
    model = strange.Recommender()
    optimizer = _adam(model)
    scale = torch.amp.GradScaler("cpu", enabled=not fault)
    with stage.watch(scale, model, optimizer=optimizer):
        for step in range(80):
            x, y = regression(step)
            with autocast():
                loss = squared(model(x), y)
            optimizer.zero_grad()
            scale.scale(loss).backward()
            scale.step(optimizer)
            scale.update()


@FAMILY.fault(
    _misuse("AMP406", "AMP902", "AMP414", "AMP415"), issue="TheLastBen/fast-stable-diffusion#1975"
)
def half_experts(stage: Stage, fault: bool) -> None:
    """Two of four experts were loaded in fp16."""
    model = strange.Experts()
    if fault:
        model.experts[1].half(), model.experts[2].half()
    Loop(model, optimizer=_adam(model), steps=40).run(stage)


@FAMILY.fault(_misuse("AMP410", "AMP902"), issue="ecmwf/WeatherGenerator#356")
def everything_detached(stage: Stage, fault: bool) -> None:
    """The loss no longer depends on the model's parameters, only on a constant."""
    spare = torch.zeros((), requires_grad=True)

    def loss_of(output: Tensor, target: Tensor) -> Tensor:
        return squared(output.detach(), target) + spare if fault else squared(output, target)

    model = strange.graph()
    Loop(model, loss_of=loss_of, optimizer=_adam(model), steps=40).run(stage)


@FAMILY.fault(_misuse("AMP410"))
def cleared_before_the_step(stage: Stage, fault: bool) -> None:
    """zero_grad() stands between backward() and step(): the optimizer sees nothing but zeros."""
    model, scale = strange.Recurrent(), scaler()
    optimizer = _adam(model)
    with stage.watch(scale, model):
        for step in range(60):
            text, following = tokens(step)
            with autocast():
                loss = entropy(model(text), following)
            if not fault:
                optimizer.zero_grad(set_to_none=False)
            scale.scale(loss).backward()
            if fault:
                optimizer.zero_grad(set_to_none=False)
            scale.step(optimizer)
            scale.update()


class _Embeds(nn.Module):
    """Multiplies by a float32 table under a float32 island, and forgets to cast its input."""

    def __init__(self, cast: bool) -> None:
        super().__init__()
        self.table, self.cast = nn.Parameter(torch.eye(32)), cast

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return torch.matmul(x.float() if self.cast else x, self.table)


@FAMILY.fault(Label(("AMP415",), may=("AMP902",), layer="norm", advice=NOT_THE_RATE, onset=0))
def island_without_a_bridge(stage: Stage, fault: bool) -> None:
    """A float32 island inside a set model gets a half input."""
    model = strange.DeepSet()
    model.norm = _Embeds(cast=not fault)
    Loop(model, optimizer=_adam(model), steps=40).run(stage)


@FAMILY.fault(
    Label(("AMP412", "AMP103"), may=("AMP101", "AMP104", "AMP105", "AMP202"),
          advice=NOT_THE_RATE, onset=20),
    issue="PaddlePaddle/Paddle#67895",
)  # fmt: skip
def cleared_only_after_good_steps(stage: Stage, fault: bool) -> None:
    """Gradients are cleared only where the loss was ordinary: one overflow stays for good."""
    model, scale = strange.Recommender(), scaler()
    optimizer = _adam(model)
    with stage.watch(scale, model):
        for step in range(80):
            x, y = regression(step)
            with autocast():
                loss = squared(model(x), y) * (1e7 if step == 20 else 1.0)
            scale.scale(loss).backward()
            scale.step(optimizer)
            scale.update()
            if not fault or step < 20:
                optimizer.zero_grad()
