"""The learning rate is the cause: too high, warmed up too steeply, raised at an event, too low."""

from __future__ import annotations

import torch
from torch import nn

from examples.gallery.parts import (
    Batch,
    Language,
    Loop,
    Tower,
    classes,
    convnet,
    entropy,
    images,
    regression,
    scaler,
    tokens,
)
from examples.gallery.vocabulary import Family, Label, Stage

FAMILY = Family("rates")
COURSE = (  # what a rate that is too high may lead to
    "AMP101", "AMP103", "AMP104", "AMP105", "AMP202", "AMP203", "AMP204", "AMP205", "AMP206",
    "AMP207", "AMP208", "AMP210", "AMP304", "AMP307",
)  # fmt: skip


def _lower(code: str, onset: int, *, may: tuple[str, ...] = ()) -> Label:
    return Label((code,), may=(*COURSE, *may), advice="lower", onset=onset)


@FAMILY.fault(_lower("AMP301", 1, may=("AMP302",)), issue="facebookresearch/fairseq#282")
def sgd_too_fast(stage: Stage, fault: bool) -> None:
    """Plain SGD on a residual perceptron, a hundred times too fast."""
    model = Tower()
    rate = 30.0 if fault else 0.05
    Loop(model, optimizer=torch.optim.SGD(model.parameters(), lr=rate), steps=150).run(stage)


@FAMILY.fault(_lower("AMP301", 1, may=("AMP302",)), issue="facebookresearch/fairseq#2488")
def adam_too_fast(stage: Stage, fault: bool) -> None:
    """Adam on a small language model: the weights run away within tens of steps."""
    model = Language()
    rate = 3.0 if fault else 3e-3
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    Loop(model, tokens, entropy, optimizer, steps=150).run(stage)


@FAMILY.fault(_lower("AMP301", 1, may=("AMP302",)), issue="NVIDIA/retinanet-examples#81")
def momentum_too_fast(stage: Stage, fault: bool) -> None:
    """Momentum on a small convolution network without clipping."""
    model = convnet()
    optimizer = torch.optim.SGD(model.parameters(), lr=60.0 if fault else 0.01, momentum=0.9)
    Loop(model, images, entropy, optimizer, steps=120).run(stage)


@FAMILY.fault(_lower("AMP302", 14, may=("AMP301",)), issue="facebookresearch/fairseq#515")
def warmup_too_steep(stage: Stage, fault: bool) -> None:
    """The warm-up is right for a while and then exceeds the model's limit."""
    model = Tower()
    peak = 40.0 if fault else 0.05
    optimizer = torch.optim.SGD(model.parameters(), lr=peak)

    def rate(step: int) -> float:
        return peak * (step + 1) / 300

    Loop(model, optimizer=optimizer, steps=200, rate=rate).run(stage)


@FAMILY.fault(_lower("AMP306", 80, may=("AMP301",)))
def rate_jumps(stage: Stage, fault: bool) -> None:
    """At step 80 the rate becomes a thousand times what it was."""
    model = Tower()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def rate(step: int) -> float:
        return 50.0 if fault and step >= 80 else 0.05

    Loop(model, optimizer=optimizer, steps=160, rate=rate).run(stage)


def _same(_: int) -> Batch:
    return regression(0)


def _noisy(step: int) -> Batch:
    x, y = regression(step)
    return x, y + 2 * regression(10_000 + step)[0][:, :4]


@FAMILY.fault(_lower("AMP307", 60, may=("AMP301", "AMP302")), issue="deepspeedai/DeepSpeed#2077")
def diverges_without_overflow(stage: Stage, fault: bool) -> None:
    """A rate just past a linear model's limit: the loss climbs and nothing overflows."""
    model = nn.Linear(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.355 if fault else 0.5)
    Loop(model, _same, optimizer=optimizer, scaler=scaler(2.0**6), steps=200).run(stage)


@FAMILY.fault(Label(("AMP304",), may=(*COURSE, "AMP301"), onset=40))
def gradient_norm_drifts(stage: Stage, fault: bool) -> None:
    """Weight decay shrinks a layer in front of a norm: its gradients grow as it vanishes."""
    norm = nn.LayerNorm(64, elementwise_affine=False)
    model = nn.Sequential(nn.Linear(16, 64, bias=False), norm, nn.Linear(64, 4))
    decay = 15.0 if fault else 0.0
    groups = [
        {"params": model[0].parameters(), "weight_decay": decay},
        {"params": model[2].parameters(), "lr": 0.0},
    ]
    optimizer = torch.optim.SGD(groups, lr=0.001)
    Loop(model, _noisy, optimizer=optimizer, scaler=scaler(2.0**8), steps=200).run(stage)


@FAMILY.fault(Label(tells=("AMP305",), may=("AMP305",), advice="raise", onset=0))
def rate_too_low(stage: Stage, fault: bool) -> None:
    """A rate a thousand times below the model's limit: healthy, but a waste."""
    model = Tower(8)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-6 if fault else 3e-3)
    Loop(model, classes, entropy, optimizer, steps=200).run(stage)


@FAMILY.fault(_lower("AMP301", 1, may=("AMP302",)), issue="facebookresearch/fairseq#2488")
def after_a_short_warmup(stage: Stage, fault: bool) -> None:
    """Twenty steps of warm-up to a peak that is far too high, then constant."""
    model = Tower()
    peak = 30.0 if fault else 0.05
    optimizer = torch.optim.SGD(model.parameters(), lr=peak, momentum=0.5)

    def rate(step: int) -> float:
        return peak * min(1.0, (step + 1) / 20)

    Loop(model, regression, optimizer=optimizer, steps=150, rate=rate).run(stage)
