"""Numbers that leave fp16, in architectures used nowhere else; never tuned on."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from examples.gallery.held_out import architectures as strange
from examples.gallery.parts import (
    Batch,
    Loop,
    SquaredReLU,
    classes,
    entropy,
    images,
    regression,
    scaler,
    tokens,
)
from examples.gallery.vocabulary import Family, Label, Stage

FAMILY = Family("held-out", held_out=True)
NOT_THE_RATE = "not-the-cause"
FALL = ("AMP101", "AMP104", "AMP105")


def _from_the_start(layer: str | None, code: str = "AMP203") -> Label:
    return Label((code, "AMP103"), may=FALL, layer=layer, advice=NOT_THE_RATE, onset=0)


def _adam(model: nn.Module, rate: float = 3e-3) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=rate)


def _mirror(step: int) -> Batch:
    x = classes(step)[0]
    return x, x


@FAMILY.fault(_from_the_start("pool"), issue="qubvel-org/segmentation_models.pytorch#463")
def set_is_too_large(stage: Stage, fault: bool) -> None:
    """A set model that adds up its members instead of averaging them."""
    model = strange.DeepSet(gain=40_000.0 if fault else 1 / 16)
    Loop(model, optimizer=_adam(model)).run(stage)


def _with_blank(step: int) -> Batch:
    x, y = regression(step)
    x[0] = 0
    return x, y


@FAMILY.fault(_from_the_start("compare"), issue="huggingface/diffusers#13316")
def unit_vector_of_nothing(stage: Stage, fault: bool) -> None:
    """The eps of a normalisation is zero in fp16, and one input is blank: 0/0."""
    model = strange.Siamese(strange.Unit(1e-12 if fault else 1e-2))
    Loop(model, _with_blank).run(stage)


@FAMILY.fault(_from_the_start("1"))
def node_without_neighbours(stage: Stage, fault: bool) -> None:
    """A graph's mean over neighbours divides by a degree of zero."""
    model = strange.graph(0.0 if fault else 1.0)
    Loop(model, optimizer=_adam(model)).run(stage)


@FAMILY.fault(_from_the_start("gate"))
def gate_overflows(stage: Stage, fault: bool) -> None:
    """A mixture's gate takes exp of large half scores."""
    model = strange.Experts(careful=not fault)
    with torch.no_grad():
        model.gate.choose.weight.mul_(4)
    Loop(model, optimizer=_adam(model)).run(stage)


@FAMILY.fault(_from_the_start("act"), issue="huggingface/transformers#4586")
def mixer_born_in_bf16(stage: Stage, fault: bool) -> None:
    """A mixer whose channel weights were at home in bf16, with a squared ReLU."""
    model = strange.Mixer(SquaredReLU)
    with torch.no_grad():
        model.channels.weight.mul_(4000 if fault else 1)
    Loop(model, images, entropy, _adam(model, 1e-3), steps=60).run(stage)


@FAMILY.fault(_from_the_start("attend"), issue="pytorch/pytorch#60940")
def product_before_division(stage: Stage, fault: bool) -> None:
    """Scores are divided only after the product has left fp16."""
    model = strange.Patches(divide_first=not fault)
    with torch.no_grad():
        for layer in (model.attend.query, model.attend.key):
            layer.weight.mul_(150)
    Loop(model, images, entropy, _adam(model, 1e-3), steps=60).run(stage)


@FAMILY.fault(_from_the_start(None, "AMP204"), issue="qubvel-org/segmentation_models.pytorch#463")
def dice_sum_in_half(stage: Stage, fault: bool) -> None:
    """A dice loss adds up all pixels in fp16."""

    def loss_of(output: Tensor, target: Tensor) -> Tensor:
        wanted = functional.one_hot(target, 8).float()[:, None, :, None].expand(-1, -1, -1, 8)
        shares = torch.sigmoid(output)
        shares = shares.half() * 2048 if fault else shares.float() * 2048
        both = (shares * wanted.to(shares.dtype)).sum()
        return 1 - 2 * both / (shares.sum() + 2048 * wanted.sum() + 1)

    model = strange.Painter()
    Loop(model, images, loss_of, _adam(model), steps=60).run(stage)


class _Distance(nn.Module):
    """The square root of a square, which has no slope at zero."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return torch.sqrt(x.float() ** 2 + self.eps)


@FAMILY.fault(
    Label(("AMP202",), may=("AMP103", "AMP105", "AMP206"), layer="compare",
          advice=NOT_THE_RATE, onset=12),
    issue="keras-team/keras-io#910",
)  # fmt: skip
def distance_of_a_blank(stage: Stage, fault: bool) -> None:
    """Every thirteenth batch holds a blank input, whose distance has no slope."""
    model = strange.Siamese(_Distance(0.0 if fault else 1e-4))

    def batch(step: int) -> Batch:
        return _with_blank(step) if step % 13 == 12 else regression(step)

    Loop(model, batch, steps=130).run(stage)


@FAMILY.fault(Label(("AMP209",), may=("AMP103", "AMP105"), advice=NOT_THE_RATE, onset=30))
def a_sensor_breaks(stage: Stage, fault: bool) -> None:
    """From step 30 on one feature of the recommender's input is NaN in every third batch."""

    def batch(step: int) -> Batch:
        x, y = regression(step)
        if fault and step >= 30 and step % 3 == 0:
            x[:, 5] = math.nan
        return x, y

    model = strange.Recommender()
    Loop(model, batch, optimizer=_adam(model), steps=100).run(stage)


@FAMILY.fault(
    Label(("AMP207", "AMP103"), may=("AMP104", "AMP105", "AMP203"),
          advice=NOT_THE_RATE, onset=50),
)  # fmt: skip
def average_swapped_in(stage: Stage, fault: bool) -> None:
    """At step 50 an averaged copy is swapped in, and it holds an inf."""
    model = strange.Dilated()

    def swap(step: int) -> None:
        if fault and step == 50:
            with torch.no_grad():
                model.far.weight[2, 2, 1] = math.inf

    Loop(model, tokens, entropy, _adam(model), steps=120, before=swap).run(stage)


@FAMILY.fault(Label(("AMP201",), may=("AMP107",), advice=NOT_THE_RATE, onset=0))
def rnn_at_scale_one(stage: Stage, fault: bool) -> None:
    """A fixed scale of 1 under a loss that is divided by a hundred thousand."""

    def loss_of(output: Tensor, target: Tensor) -> Tensor:
        return entropy(output, target) * 1e-5

    model = strange.Recurrent(nn.RNN)
    start = scaler(1.0 if fault else 2.0**20, growth_interval=10_000)
    Loop(model, tokens, loss_of, _adam(model), start, steps=200).run(stage)


@FAMILY.fault(Label(("AMP206",), may=("AMP303",), advice=NOT_THE_RATE, onset=60))
def one_corrupt_sample(stage: Stage, fault: bool) -> None:
    """One input of one batch of an autoencoder is four orders too large."""

    def batch(step: int) -> Batch:
        x = _mirror(step)[0].clone()
        if fault and step == 60:
            x[7] *= 2e4
        return x, x

    model = strange.autoencoder()
    Loop(model, batch, optimizer=_adam(model), steps=120, clip=1.0).run(stage)
