"""The loop itself is wrong: calls that are missing, misplaced or made on the wrong thing."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from examples.gallery.parts import (
    Loop,
    Tower,
    autocast,
    classes,
    entropy,
    regression,
    scaler,
    set_rate,
    squared,
)
from examples.gallery.vocabulary import Family, Label, Stage

FAMILY = Family("misuse")
NOT_THE_RATE = "not-the-cause"
STEPS = 60


def _loss(model: nn.Module, step: int) -> Tensor:
    x, y = regression(step)
    with autocast():
        return squared(model(x), y)


def _sgd(model: nn.Module, rate: float = 0.02) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=rate)


@FAMILY.fault(
    Label(must=("AMP401",), may=("AMP305",), advice=NOT_THE_RATE, onset=0),
    issue="milesial/Pytorch-UNet#468",
)
def clip_before_unscale(stage: Stage, fault: bool) -> None:
    """Clips gradients that are still multiplied by the loss scale."""
    model, scale = Tower(), scaler()
    optimizer = _sgd(model)
    with stage.watch(scale, model):
        for step in range(STEPS):
            optimizer.zero_grad()
            scale.scale(_loss(model, step)).backward()
            if not fault:
                scale.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scale.step(optimizer)
            scale.update()


@FAMILY.fault(
    Label(must=("AMP401",), may=("AMP305",), advice=NOT_THE_RATE, onset=0),
    issue="rwth-i6/returnn#1590",
)
def noise_and_clip_before_unscale(stage: Stage, fault: bool) -> None:
    """Adds gradient noise and clips by value before the gradients are unscaled."""
    model, scale = Tower(), scaler()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with stage.watch(scale, model):
        for step in range(STEPS):
            optimizer.zero_grad()
            scale.scale(_loss(model, step)).backward()
            if not fault:
                scale.unscale_(optimizer)
            nn.utils.clip_grad_value_(model.parameters(), 0.5)
            scale.step(optimizer)
            scale.update()


@FAMILY.fault(
    Label(must=("AMP402",), may=("AMP902",), advice=NOT_THE_RATE, onset=0),
    issue="Azure/MS-AMP#45",
)
def update_missing(stage: Stage, fault: bool) -> None:
    """Never calls scaler.update(): the second step raises."""
    model, scale = Tower(), scaler()
    optimizer = _sgd(model)
    with stage.watch(scale, model):
        for step in range(STEPS):
            optimizer.zero_grad()
            scale.scale(_loss(model, step)).backward()
            scale.step(optimizer)
            if not fault:
                scale.update()


@FAMILY.fault(
    Label(must=("AMP402",), may=("AMP902",), advice=NOT_THE_RATE, onset=9),
    issue="Haian-Jin/LVSM#19",
)
def update_only_when_stepped(stage: Stage, fault: bool) -> None:
    """Leaves out step and update where the gradient norm is large: the next unscale_ raises."""
    model, scale = Tower(), scaler()
    optimizer = _sgd(model)
    with stage.watch(scale, model):
        for step in range(STEPS):
            optimizer.zero_grad()
            scale.scale(_loss(model, step)).backward()
            scale.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if fault and step == 9:
                continue
            scale.step(optimizer)
            scale.update()


@FAMILY.fault(Label(must=("AMP403",), advice=NOT_THE_RATE, onset=0), issue="neosr-project/neosr#9")
def update_inside_accumulation(stage: Stage, fault: bool) -> None:
    """Updates the scale after every micro-batch: one window mixes gradients of several scales."""
    model, scale = Tower(), scaler(2.0**8, growth_interval=3)
    optimizer = _sgd(model)
    with stage.watch(scale, model):
        for step in range(4 * STEPS):
            scale.scale(_loss(model, step) / 4).backward()
            last = step % 4 == 3
            if last:
                scale.step(optimizer)
                scale.update()
                optimizer.zero_grad()
            elif fault:
                scale.unscale_(optimizer)
                scale.update()


@FAMILY.fault(
    Label(
        must=("AMP404",),
        may=("AMP402", "AMP103", "AMP207", "AMP203", "AMP204", "AMP301", "AMP307"),
        advice=NOT_THE_RATE,
        onset=0,
    ),
    issue="nerfstudio-project/nerfacc#307",
)
def step_bypasses_scaler(stage: Stage, fault: bool) -> None:
    """Scales the loss and calls optimizer.step(): gradients are 1024 times too large."""
    model, scale = Tower(), scaler(2.0**10)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with stage.watch(scale, model):
        for step in range(STEPS):
            optimizer.zero_grad()
            scale.scale(_loss(model, step)).backward()
            if fault:
                optimizer.step()
            else:
                scale.step(optimizer)
                scale.update()


@FAMILY.fault(
    Label(must=("AMP404",), may=("AMP301", "AMP307"), advice=NOT_THE_RATE, onset=0),
    issue="IAHispano/Applio#860",
)
def steps_twice(stage: Stage, fault: bool) -> None:
    """Calls scaler.step(optimizer) and then optimizer.step() as well."""
    model, scale = Tower(), scaler()
    optimizer = _sgd(model)
    with stage.watch(scale, model):
        for step in range(STEPS):
            optimizer.zero_grad()
            scale.scale(_loss(model, step)).backward()
            scale.step(optimizer)
            if fault:
                optimizer.step()
            scale.update()


@FAMILY.fault(
    Label(must=("AMP410",), may=("AMP902",), advice=NOT_THE_RATE, onset=0),
    issue="open-mmlab/mmsegmentation#3230",
)
def loss_rebuilt_as_leaf(stage: Stage, fault: bool) -> None:
    """The custom loss makes a new tensor of its value: no gradient reaches the model."""

    def loss_of(output: Tensor, target: Tensor) -> Tensor:
        loss = squared(output, target)
        return torch.tensor(loss.item(), requires_grad=True) if fault else loss

    Loop(Tower(), loss_of=loss_of, steps=STEPS).run(stage)


@FAMILY.fault(Label(must=("AMP410",), advice=NOT_THE_RATE, onset=0))
def loss_of_what_was_rounded(stage: Stage, fault: bool) -> None:
    """The loss is taken from the output as it is printed, rounded: every gradient is zero."""

    def loss_of(output: Tensor, target: Tensor) -> Tensor:
        return squared(output.round() if fault else output, target)

    Loop(Tower(), loss_of=loss_of, steps=STEPS).run(stage)


@FAMILY.fault(
    Label(must=("AMP410",), may=("AMP902",), advice=NOT_THE_RATE, onset=0),
    issue="huggingface/accelerate#328",
)
def optimizer_of_another_model(stage: Stage, fault: bool) -> None:
    """The optimizer holds the parameters of a copy made before: its own never get gradients."""
    model, other = Tower(), Tower()
    optimizer = _sgd(other if fault else model)
    Loop(model, optimizer=optimizer, steps=STEPS).run(stage)


@FAMILY.fault(
    Label(
        must=("AMP412", "AMP103"),
        may=("AMP101", "AMP104", "AMP105", "AMP202", "AMP416"),
        advice=NOT_THE_RATE,
        onset=1,
    ),
    issue="PaddlePaddle/Paddle#67895",
)
def gradients_not_cleared(stage: Stage, fault: bool) -> None:
    """zero_grad is missing: one overflow stays in the gradients and skips every later step."""
    model, scale = Tower(), scaler(2.0**24)
    optimizer = _sgd(model)
    with stage.watch(scale, model):
        for step in range(STEPS):
            if not fault:
                optimizer.zero_grad()
            scale.scale(_loss(model, step)).backward()
            scale.step(optimizer)
            scale.update()


@FAMILY.fault(
    Label(must=("AMP416",), may=("AMP108", "AMP101"), advice=NOT_THE_RATE, onset=30),
    issue="mosaicml/composer#1376",
)
def scaler_recreated(stage: Stage, fault: bool) -> None:
    """Each epoch makes a new GradScaler, whose scale begins again at 2^22."""
    model, scale = Tower(8), scaler(2.0**22)
    loop = Loop(model, classes, entropy, _sgd(model), scale)
    with stage.watch(scale, model):
        for epoch in range(4):
            if fault and epoch:
                loop.scaler = scaler(2.0**22)
            loop.go(range(30 * epoch, 30 * epoch + 30))


@FAMILY.fault(
    Label(tells=("AMP411",), may=("AMP101",), advice="keep", onset=0),
    issue="pytorch/pytorch#44511",
)
def scheduler_on_skipped_step(stage: Stage, fault: bool) -> None:
    """The schedule moves on skipped steps too: the search from 2^32 eats the warm-up."""
    model, scale = Tower(), scaler(2.0**32)
    optimizer = _sgd(model)
    taken = 0
    with stage.watch(scale, model):
        for step in range(STEPS):
            set_rate(optimizer, 0.02 * min(1.0, (taken + 1) / 40))
            optimizer.zero_grad()
            scale.scale(_loss(model, step)).backward()
            scale.step(optimizer)
            before = scale.get_scale()
            scale.update()
            taken += int(fault or scale.get_scale() >= before)


@FAMILY.benign(tells=["AMP410"])
def margin_that_is_met(stage: Stage) -> None:
    """Eight examples, and a hinge that asks for no more: the loss comes down to 0 and stays."""
    model = Tower(8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    few = classes(0)[0][:8], classes(0)[1][:8]

    def hinge(output: Tensor, label: Tensor) -> Tensor:
        return functional.multi_margin_loss(output.float(), label)

    Loop(model, lambda _: few, hinge, optimizer, steps=150).run(stage)
