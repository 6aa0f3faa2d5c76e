"""Formats are wrong: autocast off or in the wrong place, half parameters, half meeting float."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from examples.gallery.parts import (
    Language,
    Loop,
    Tower,
    autocast,
    entropy,
    regression,
    scaler,
    squared,
    tokens,
)
from examples.gallery.vocabulary import Family, Label, Stage

FAMILY = Family("formats")
NOT_THE_RATE = "not-the-cause"
STEPS = 60


def _sgd(model: nn.Module, rate: float = 0.02) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=rate)


@FAMILY.fault(Label(must=("AMP405",), may=("AMP502",), advice=NOT_THE_RATE, onset=0))
def autocast_not_active(stage: Stage, fault: bool) -> None:
    """The scaler is on and the forward pass runs in float32, as in a thread without autocast."""
    model, scale = Tower(), scaler()
    optimizer = _sgd(model)
    with stage.watch(scale, model):
        for step in range(STEPS):
            x, y = regression(step)
            with autocast(enabled=not fault):
                loss = squared(model(x), y)
            optimizer.zero_grad()
            scale.scale(loss).backward()
            scale.step(optimizer)
            scale.update()


@FAMILY.fault(
    Label(must=("AMP406",), may=("AMP902", "AMP415"), advice=NOT_THE_RATE, onset=0),
    issue="haotian-liu/LLaVA#363",
)
def fp16_parameters(stage: Stage, fault: bool) -> None:
    """The model was loaded in fp16: unscale_ refuses its gradients."""
    model = Tower().half() if fault else Tower()
    Loop(model, steps=STEPS).run(stage)


@FAMILY.fault(
    Label(must=("AMP406",), may=("AMP902", "AMP415"), advice=NOT_THE_RATE, onset=0),
    issue="mk-minchul/AdaFace#127",
)
def one_fp16_layer(stage: Stage, fault: bool) -> None:
    """One PReLU was turned to fp16 by hand, the rest of the model is float32."""
    model = nn.Sequential(nn.Linear(16, 32), nn.PReLU(), nn.Linear(32, 4))
    if fault:
        model[1].half()
    Loop(model, steps=STEPS).run(stage)


@FAMILY.fault(Label(must=("AMP408",), may=("AMP201",), advice=NOT_THE_RATE, onset=0))
def fp16_without_scaler(stage: Stage, fault: bool) -> None:
    """Half precision with nothing that scales the loss."""
    model = Tower()
    optimizer = _sgd(model)
    dtype = torch.float16 if fault else torch.bfloat16
    with stage.watch(None, model, optimizer=optimizer) as watch:
        for step in range(STEPS):
            x, y = regression(step)
            with autocast(dtype):
                loss = squared(model(x), y)
            watch.log(loss=loss.detach())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@FAMILY.fault(
    Label(tells=("AMP409",), may=("AMP409",), advice="keep", onset=0), issue="pytorch/pytorch#55585"
)
def backward_under_autocast(stage: Stage, fault: bool) -> None:
    """The backward pass stands inside the autocast block."""
    model, scale = Tower(), scaler()
    optimizer = _sgd(model)
    with stage.watch(scale, model):
        for step in range(STEPS):
            x, y = regression(step)
            optimizer.zero_grad()
            with autocast():
                loss = squared(model(x), y)
                if fault:
                    scale.scale(loss).backward()
            if not fault:
                scale.scale(loss).backward()
            scale.step(optimizer)
            scale.update()


class _OwnProduct(torch.autograd.Function):
    """A matrix product with its own backward pass, which autocast does not cover."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, cast: bool) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.cast = cast
        return x @ weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        grad = grad.float() if ctx.cast else grad
        return grad @ weight.T, x.T.float() @ grad.float(), None


class _Own(nn.Module):
    """A layer of that product."""

    def __init__(self, cast: bool) -> None:
        super().__init__()
        self.weight, self.cast = nn.Parameter(torch.eye(16)), cast

    def forward(self, x: Tensor) -> Tensor:
        return _OwnProduct.apply(x.float(), self.weight, self.cast)


@FAMILY.fault(
    Label(must=("AMP415",), may=("AMP902",), advice=NOT_THE_RATE, onset=0),
    issue="pytorch/pytorch#38487",
)
def own_function_without_custom_fwd(stage: Stage, fault: bool) -> None:
    """A custom autograd function saves float32 tensors and gets half gradients."""
    model = nn.Sequential(nn.Linear(16, 16), _Own(cast=not fault), nn.Linear(16, 4))
    Loop(model, steps=STEPS).run(stage)


class _Projection(nn.Module):
    """Projects by a fixed float32 matrix outside autocast's reach."""

    def __init__(self, cast: bool) -> None:
        super().__init__()
        self.register_buffer("matrix", torch.eye(16))
        self.cast = cast

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return x @ (self.matrix.to(x.dtype) if self.cast else self.matrix)


@FAMILY.fault(
    Label(must=("AMP415",), may=("AMP902",), layer="1", advice=NOT_THE_RATE, onset=0),
    issue="pytorch/pytorch#42358",
)
def half_meets_float(stage: Stage, fault: bool) -> None:
    """A float32 buffer meets a half activation in a part that leaves autocast."""
    model = nn.Sequential(nn.Linear(16, 16), _Projection(cast=not fault), nn.Linear(16, 4))
    Loop(model, steps=STEPS).run(stage)


@FAMILY.fault(
    Label(
        must=("AMP414",),
        may=("AMP207", "AMP203", "AMP204", "AMP408", "AMP201", "AMP103"),
        advice=NOT_THE_RATE,
        onset=0,
    ),
    issue="afiaka87/glide-finetune#5",
)
def eps_underflow(stage: Stage, fault: bool) -> None:
    """Adam's eps of 1e-8 is zero in fp16: the first update is not finite."""
    model = Language().half() if fault else Language()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, eps=1e-8)
    disabled = torch.amp.GradScaler("cpu", enabled=False)
    with stage.watch(disabled, model, optimizer=optimizer) as watch:
        for step in range(STEPS):
            text, following = tokens(step)
            loss = entropy(model(text), following)
            watch.log(loss=loss.detach())
            optimizer.zero_grad()
            disabled.scale(loss).backward()
            disabled.step(optimizer)
            disabled.update()
