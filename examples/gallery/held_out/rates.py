"""Rates and scales, in architectures used nowhere else; never tuned on."""

from __future__ import annotations

import math

import torch
from torch import nn

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
    tokens,
)
from examples.gallery.vocabulary import Family, Label, Stage

FAMILY = Family("held-out", held_out=True)
NOT_THE_RATE = "not-the-cause"
COURSE = (
    "AMP101", "AMP103", "AMP104", "AMP105", "AMP202", "AMP203", "AMP204", "AMP205", "AMP207",
    "AMP304", "AMP307",
)  # fmt: skip


def _adam(model: nn.Module, rate: float = 3e-3) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=rate)


def _mirror(step: int) -> Batch:
    x = classes(step)[0]
    return x, x


@FAMILY.fault(
    Label(("AMP301",), may=(*COURSE, "AMP302"), advice="lower", onset=1),
    issue="facebookresearch/fairseq#2488",
)
def graph_too_fast(stage: Stage, fault: bool) -> None:
    """Momentum on a graph network, some hundred times too fast."""
    model = strange.graph()
    optimizer = torch.optim.SGD(model.parameters(), lr=40.0 if fault else 0.05, momentum=0.9)
    Loop(model, optimizer=optimizer, steps=120).run(stage)


@FAMILY.fault(
    Label(("AMP306",), may=(*COURSE, "AMP301", "AMP302"), advice="lower", onset=70),
)
def schedule_begins_anew(stage: Stage, fault: bool) -> None:
    """At step 70 a resumed schedule starts again at a peak that the model no longer tolerates."""
    model = strange.autoencoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def rate(step: int) -> float:
        return 300.0 if fault and step >= 70 else 0.1

    Loop(model, _mirror, optimizer=optimizer, steps=150, rate=rate).run(stage)


@FAMILY.fault(
    Label(("AMP307",), may=(*COURSE, "AMP301", "AMP302"), advice="lower", onset=60),
)
def set_diverges_slowly(stage: Stage, fault: bool) -> None:
    """A set model's head just past its limit: the loss climbs without any overflow."""
    model = strange.DeepSet()
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1295 if fault else 0.03)
    Loop(model, lambda _: regression(0), optimizer=optimizer, scaler=scaler(64.0), steps=200).run(
        stage
    )


@FAMILY.fault(
    Label(("AMP108",), may=("AMP416", "AMP105"), advice=NOT_THE_RATE, onset=60),
    issue="mosaicml/composer#1376",
)
def fit_again_makes_a_new_scaler(stage: Stage, fault: bool) -> None:
    """A second call of fit() sets the scaler back to its first state, 2^36."""
    model = strange.Mixer()
    loop = Loop(model, images, entropy, _adam(model), scaler(2.0**36))
    with stage.watch(loop.scaler, model):
        first = {**loop.scaler.state_dict(), "scale": 2.0**36}
        loop.go(range(60))
        if fault:
            loop.scaler.load_state_dict(first)
        loop.go(range(60, 110))


@FAMILY.fault(
    Label(("AMP413", "AMP103"), may=("AMP105", "AMP202", "AMP204", "AMP104"),
          advice=NOT_THE_RATE, onset=25),
    issue="neosr-project/neosr#31",
)  # fmt: skip
def critic_drags_the_actor(stage: Stage, fault: bool) -> None:
    """Actor and critic share a scaler; the critic's loss is not finite from step 25 on."""
    actor, critic, shared = strange.Recurrent(), strange.Dilated(), scaler()
    optimizers = [_adam(actor), _adam(critic)]
    with stage.watch(shared, {"actor": actor, "critic": critic}):
        for step in range(90):
            text, following = tokens(step)
            weight = math.inf if fault and step >= 25 else 1.0
            for model, optimizer, gain in zip(
                (actor, critic), optimizers, (1.0, weight), strict=True
            ):
                with autocast():
                    loss = entropy(model(text), following) * gain
                optimizer.zero_grad()
                shared.scale(loss).backward()
                shared.step(optimizer)
            shared.update()
