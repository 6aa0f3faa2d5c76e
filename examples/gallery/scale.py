"""The loss scale itself: floors, storms, runaways, resets, one scaler for two losses."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from examples.gallery.parts import (
    Batch,
    Loop,
    Tower,
    autocast,
    classes,
    entropy,
    regression,
    scaler,
    squared,
)
from examples.gallery.vocabulary import Family, Label, Stage

FAMILY = Family("scale")
NOT_THE_RATE = "not-the-cause"


@FAMILY.fault(
    Label(
        ("AMP103", "AMP104", "AMP204"),
        may=("AMP105", "AMP207"), advice=NOT_THE_RATE, onset=20,
    ),
    issue="facebookresearch/WSL-Images#9",
)  # fmt: skip
def loss_breaks_and_scale_falls_to_the_floor(stage: Stage, fault: bool) -> None:
    """From step 20 on the loss divides by zero: the scale halves 150 times and is gone."""

    def loss_of(output: Tensor, target: Tensor) -> Tensor:
        return squared(output, target) / weight[0]

    weight = [1.0]

    def before(step: int) -> None:
        weight[0] = torch.zeros(()) if fault and step >= 20 else torch.ones(())

    Loop(Tower(), loss_of=loss_of, before=before, steps=170).run(stage)


@FAMILY.fault(
    Label(("AMP106",), may=("AMP201", "AMP410", "AMP107"), advice=NOT_THE_RATE, onset=0),
    issue="pytorch/pytorch#98828",
)
def scale_runs_away(stage: Stage, fault: bool) -> None:
    """Every gradient is zero and the scale grows at every step, to inf."""

    def loss_of(output: Tensor, target: Tensor) -> Tensor:
        return squared(output, target) * (0.0 if fault else 1.0)

    growing = scaler(2.0**16, growth_interval=1 if fault else 2000)
    Loop(Tower(), loss_of=loss_of, scaler=growing, steps=150).run(stage)


@FAMILY.fault(
    Label(("AMP105",), may=("AMP202", "AMP203", "AMP206"), advice=NOT_THE_RATE, onset=12),
    issue="deepspeedai/DeepSpeed#697",
)
def bursts_of_bad_batches(stage: Stage, fault: bool) -> None:
    """Four of 22 batches are lost, and fast growth brings the scale back in between."""

    def batch(step: int) -> Batch:
        x, y = regression(step)
        return (x * 1e5 if fault and step % 22 in (12, 15, 18, 21) else x), y

    eager = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=10, growth_factor=16)
    Loop(Tower(), batch, scaler=eager, steps=220).run(stage)


@FAMILY.fault(Label(("AMP107", "AMP201"), advice=NOT_THE_RATE, onset=0))
def scale_never_grows(stage: Stage, fault: bool) -> None:
    """A scale of 4 that may grow every 100,000 steps; the loss is small, gradients are lost."""

    def loss_of(output: Tensor, target: Tensor) -> Tensor:
        return squared(output, target) * 1e-5

    model = Tower()
    optimizer = torch.optim.SGD(model.parameters(), lr=2e3)
    patient = scaler(4.0, growth_interval=100_000 if fault else 5)
    Loop(model, loss_of=loss_of, optimizer=optimizer, scaler=patient, steps=200).run(stage)


@FAMILY.fault(
    Label(("AMP108",), may=("AMP416", "AMP105"), advice=NOT_THE_RATE, onset=60),
    issue="catalyst-team/catalyst#991",
)
def resume_without_scaler_state(stage: Stage, fault: bool) -> None:
    """Training goes on from a checkpoint without the scaler's state: 2^40 again."""
    model = Tower(8)
    loop = Loop(model, classes, entropy, torch.optim.SGD(model.parameters(), lr=0.02))
    loop.scaler = scaler(2.0**40)
    with stage.watch(loop.scaler, model):
        loop.go(range(60))
        state = loop.scaler.state_dict()
    again = scaler(2.0**40)
    with stage.watch(again, model, start_step=60, resume=True):
        if not fault:
            again.load_state_dict(state)
        loop.scaler = again
        loop.go(range(60, 120))


@FAMILY.fault(
    Label(("AMP108",), may=("AMP416", "AMP105", "AMP103"), advice=NOT_THE_RATE, onset=60),
    issue="huggingface/accelerate#4289",
)
def load_gives_back_the_first_state(stage: Stage, fault: bool) -> None:
    """Loading a checkpoint in mid-run restores the scaler's initial state, not its saved one."""
    model = Tower(8)
    loop = Loop(model, classes, entropy, torch.optim.SGD(model.parameters(), lr=0.02))
    loop.scaler = scaler(2.0**40)
    first = {**loop.scaler.state_dict(), "scale": 2.0**40}
    with stage.watch(loop.scaler, model):
        loop.go(range(60))
        loop.scaler.load_state_dict(first if fault else loop.scaler.state_dict())
        loop.go(range(60, 120))


@FAMILY.fault(
    Label(
        ("AMP413", "AMP103"), may=("AMP105", "AMP204", "AMP202", "AMP203", "AMP104"),
        advice=NOT_THE_RATE, onset=20,
    ),
    issue="neosr-project/neosr#31",
)  # fmt: skip
def one_scaler_for_two_losses(stage: Stage, fault: bool) -> None:
    """One model's loss breaks; its optimizer alone skips, and the scale falls for both."""
    good, bad = Tower(), Tower()
    shared = scaler()
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.02) for m in (good, bad)]
    with stage.watch(shared, {"good": good, "bad": bad}):
        for step in range(100):
            x, y = regression(step)
            broken = math.inf if fault and step >= 20 else 1.0
            with autocast():
                losses = squared(good(x), y), squared(bad(x), y) * broken
            for loss, optimizer in zip(losses, optimizers, strict=True):
                optimizer.zero_grad()
                shared.scale(loss).backward()
            for optimizer in optimizers:
                shared.step(optimizer)
            shared.update()


class _Picky(torch.optim.SGD):
    """Leaves a step out without telling anybody, where a gradient looks too large to it."""

    limit = 0.0

    def step(self, closure: object = None) -> None:  # type: ignore[override]  # noqa: ARG002
        """A step, or nothing."""
        norms = [p.grad.norm() for g in self.param_groups for p in g["params"]]
        if torch.stack(norms).norm() <= self.limit:
            super().step()


@FAMILY.fault(Label(("AMP417",), may=("AMP305",), advice=NOT_THE_RATE, onset=0))
def silent_skip(stage: Stage, fault: bool) -> None:
    """The optimizer's step is called and leaves the weights as they are, most of the time."""
    model = Tower()
    optimizer = _Picky(model.parameters(), lr=0.02)
    optimizer.limit = 0.05 if fault else 1e9
    Loop(model, optimizer=optimizer).run(stage)
