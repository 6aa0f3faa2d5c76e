"""Healthy, or harmless though it looks ill: nothing here deserves a warning."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from examples.gallery.parts import (
    Batch,
    Language,
    Loop,
    Tower,
    autocast,
    classes,
    convnet,
    entropy,
    images,
    regression,
    scaler,
    squared,
    tokens,
)
from examples.gallery.vocabulary import Family, Stage

FAMILY = Family("benign")


def _adam(model: nn.Module, rate: float = 3e-3) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=rate)


@FAMILY.benign(tells=["AMP101"], issue="open-mmlab/mmdetection#11708")
def startup_from_2_to_the_32(stage: Stage) -> None:
    """The scale searches its way down from 2^32: many skips, none after the first success."""
    model = Tower(8)
    Loop(model, classes, entropy, _adam(model), scaler(2.0**32)).run(stage)


@FAMILY.benign(tells=["AMP101"])
def startup_from_2_to_the_40(stage: Stage) -> None:
    """An even higher start, on a convolution network."""
    model = convnet()
    Loop(model, images, entropy, _adam(model), scaler(2.0**40), steps=60).run(stage)


@FAMILY.benign(tells=["AMP102"], issue="MzeroMiko/VMamba#252")
def growth_sawtooth(stage: Stage) -> None:
    """The scale grows every ten steps and now and then too far: one skip, and on."""
    model = Tower(8)
    Loop(model, classes, entropy, _adam(model), scaler(2.0**20, 10), steps=400).run(stage)


@FAMILY.benign(issue="NVIDIA/apex#774")
def scale_grows_and_never_overflows(stage: Stage) -> None:
    """The scale doubles at each interval of 20 steps from 2^4 on."""
    model = Tower()
    Loop(model, scaler=scaler(2.0**4, 20), steps=160).run(stage)


@FAMILY.benign(tells=["AMP109"], issue="facebookresearch/fairseq#515")
def sum_reduced_loss(stage: Stage) -> None:
    """A loss summed over very many items has a scale below 1 and is healthy."""

    def loss_of(output: Tensor, target: Tensor) -> Tensor:
        return entropy(output, target) * 1e7

    model = Tower(8)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    Loop(model, classes, loss_of, optimizer, scaler(2.0**10), steps=200).run(stage)


@FAMILY.benign(tells=["AMP303"])
def recovering_spike(stage: Stage) -> None:
    """Three steps of bad gradients halve the scale three times; then all is as before."""
    model = Tower(8)

    def loss_of(output: Tensor, target: Tensor) -> Tensor:
        return entropy(output, target) * burst[0]

    burst = [1.0]

    def before(step: int) -> None:
        burst[0] = 1e6 if step in range(100, 103) else 1.0

    grown = scaler(2.0**16, 30)
    Loop(model, classes, loss_of, _adam(model), grown, steps=240, before=before, clip=1.0).run(
        stage
    )


@FAMILY.benign()
def cosine_and_clipping(stage: Stage) -> None:
    """Warm-up, cosine and clipping, each in its right place."""
    model = Language()

    def rate(step: int) -> float:
        return 3e-3 * min(1.0, (step + 1) / 20) * (1 + math.cos(math.pi * step / 200)) / 2

    Loop(model, tokens, entropy, _adam(model), steps=200, clip=1.0, rate=rate).run(stage)


@FAMILY.benign()
def one_cycle(stage: Stage) -> None:
    """torch's own OneCycleLR."""
    model, scale = Tower(8), scaler()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=150)
    loop = Loop(model, classes, entropy, optimizer, scale, clip=5.0)
    with stage.watch(scale, model):
        for step in range(150):
            loop.go([step])
            schedule.step()


@FAMILY.benign()
def accumulation(stage: Stage) -> None:
    """Four micro-batches a step, divided by four, updated once."""
    model, scale = Tower(), scaler(2.0**12, 20)
    optimizer = _adam(model)
    with stage.watch(scale, model):
        for step in range(240):
            x, y = regression(step)
            with autocast():
                loss = squared(model(x), y) / 4
            scale.scale(loss).backward()
            if step % 4 == 3:
                scale.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scale.step(optimizer)
                scale.update()
                optimizer.zero_grad()


@FAMILY.benign()
def fused_optimizer(stage: Stage) -> None:
    """A fused AdamW, which unscales by itself, with an overflow now and then."""
    model = Tower(8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    Loop(model, classes, entropy, optimizer, scaler(2.0**26, 40), steps=200).run(stage)


def _plain(stage: Stage, dtype: torch.dtype | None) -> None:
    """A loop without a scaler."""
    model = Tower()
    optimizer = _adam(model)
    with stage.watch(None, model, optimizer=optimizer) as watch:
        for step in range(120):
            x, y = regression(step)
            with autocast(dtype or torch.bfloat16, enabled=dtype is not None):
                loss = squared(model(x), y)
            watch.log(loss=loss.detach())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@FAMILY.benign()
def bf16(stage: Stage) -> None:
    """bfloat16, whose range is float32's: no scaler, and none is missing."""
    _plain(stage, torch.bfloat16)


@FAMILY.benign()
def fp32(stage: Stage) -> None:
    """Plain float32."""
    _plain(stage, None)


@FAMILY.benign()
def gan(stage: Stage) -> None:
    """Two models, two optimizers, one scaler, one update: as the documentation says."""
    maker = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16))
    judge = nn.Sequential(nn.Linear(16, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    optimizers = [torch.optim.Adam(m.parameters(), lr=1e-3) for m in (maker, judge)]
    scale = scaler()
    wish = nn.functional.binary_cross_entropy_with_logits
    with stage.watch(scale, {"maker": maker, "judge": judge}):
        for step in range(150):
            real = classes(step)[0]
            with autocast():
                fake = maker(torch.randn(len(real), 8))
                seen, dreamt = judge(real).float(), judge(fake.detach()).float()
                judged = wish(seen, torch.ones_like(seen)) + wish(dreamt, torch.zeros_like(dreamt))
            optimizers[1].zero_grad()
            scale.scale(judged).backward()
            scale.step(optimizers[1])
            with autocast():
                fooled = judge(fake).float()
                made = wish(fooled, torch.ones_like(fooled))
            optimizers[0].zero_grad()
            scale.scale(made).backward()
            scale.step(optimizers[0])
            scale.update()


class _Checkpointed(Tower):
    """Computes its blocks again in the backward pass."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(x)


@FAMILY.benign()
def checkpointing(stage: Stage) -> None:
    """Activation checkpointing."""
    model = _Checkpointed(8)
    Loop(model, classes, entropy, _adam(model)).run(stage)


@FAMILY.benign()
def frozen_and_unused_layers(stage: Stage) -> None:
    """The stem is frozen, and one layer is never called."""
    model = Tower(8)
    model.stem.requires_grad_(requires_grad=False)
    model.spare = nn.Linear(16, 16)
    Loop(model, classes, entropy, _adam(model)).run(stage)


@FAMILY.benign()
def weight_tying(stage: Stage) -> None:
    """The head shares the embedding's weights."""
    model = Language()
    model.head.weight = model.embed.weight
    Loop(model, tokens, entropy, _adam(model), steps=150).run(stage)


@FAMILY.benign()
def evaluation_in_between(stage: Stage) -> None:
    """Every twenty steps the model is evaluated, without gradients, in half precision."""
    model = Tower(8)

    def evaluate(step: int) -> None:
        if step % 20 == 19:
            model.eval()
            with torch.no_grad(), autocast():
                entropy(model(classes(10_000 + step)[0]), classes(10_000 + step)[1])
            model.train()

    Loop(model, classes, entropy, _adam(model), steps=120, before=evaluate).run(stage)


@FAMILY.benign()
def resume_done_right(stage: Stage) -> None:
    """Model, optimizer and scaler go on from their saved states."""
    model, scale = Tower(8), scaler(2.0**16, 20)
    optimizer = _adam(model)
    loop = Loop(model, classes, entropy, optimizer, scale)
    with stage.watch(scale, model):
        loop.go(range(70))
        saved = scale.state_dict()
    loop.scaler = scaler(2.0**16, 20)
    with stage.watch(loop.scaler, model, start_step=70, resume=True):
        loop.scaler.load_state_dict(saved)
        loop.go(range(70, 140))


def _curriculum(step: int) -> Batch:
    x, y = regression(step)
    return (x, y) if step < 120 else (x, -y.flip(-1))


@FAMILY.benign()
def curriculum_switch(stage: Stage) -> None:
    """The task changes in mid-run: the loss jumps up and falls again."""
    model = Tower()
    Loop(model, _curriculum, optimizer=_adam(model), steps=300, clip=1.0).run(stage)


@FAMILY.benign(issue="neosr-project/neosr#31")
def two_scalers_one_watch(stage: Stage) -> None:
    """Maker and judge have a scaler each; the watch is given both models and one of the scalers."""
    models, scalers = (Tower(), Tower()), (scaler(), scaler())
    optimizers = [_adam(model) for model in models]
    with stage.watch(scalers[0], {"maker": models[0], "judge": models[1]}):
        for step in range(80):
            x, y = regression(step)
            for model, scale, optimizer in zip(models, scalers, optimizers, strict=True):
                with autocast():
                    loss = squared(model(x), y)
                optimizer.zero_grad()
                scale.scale(loss).backward()
                scale.step(optimizer)
                scale.update()


@FAMILY.benign()
def gradient_penalty(stage: Stage) -> None:
    """The norm of the input's gradient is part of the loss, as the documentation says."""
    model, scale = Tower(), scaler()
    optimizer = _adam(model)
    with stage.watch(scale, model):
        for step in range(100):
            x, y = regression(step)
            x.requires_grad_()
            with autocast():
                loss = squared(model(x), y)
            slopes = torch.autograd.grad(scale.scale(loss), x, create_graph=True)[0]
            with autocast():
                loss = loss + 0.1 * (slopes / scale.get_scale()).float().norm()
            optimizer.zero_grad()
            scale.scale(loss).backward()
            scale.step(optimizer)
            scale.update()


class _Adapted(nn.Module):
    """A frozen layer with a low-rank addition that begins at zero."""

    def __init__(self, frozen: nn.Linear) -> None:
        super().__init__()
        self.frozen = frozen
        self.into = nn.Parameter(0.1 * torch.randn(4, frozen.in_features))
        self.out = nn.Parameter(torch.zeros(frozen.out_features, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(x) + x @ self.into.T @ self.out.T


@FAMILY.benign()
def low_rank_adapters(stage: Stage) -> None:
    """Only the adapters of a frozen model learn; half of them begin at zero."""
    frozen = nn.Linear(16, 32), nn.Linear(32, 4)
    for layer in frozen:
        layer.requires_grad_(requires_grad=False)
    model = nn.Sequential(_Adapted(frozen[0]), nn.GELU(), _Adapted(frozen[1]))
    learning = [p for p in model.parameters() if p.requires_grad]
    Loop(model, optimizer=torch.optim.AdamW(learning, lr=1e-2), steps=150).run(stage)


@FAMILY.benign()
def fixed_scale_and_an_average(stage: Stage) -> None:
    """The scale is set to 1024 at every update, and an averaged copy is evaluated each step."""
    model, scale = Tower(), scaler(1024.0)
    optimizer = _adam(model)
    average = torch.optim.swa_utils.AveragedModel(model)
    with stage.watch(scale, model):
        for step in range(100):
            x, y = regression(step)
            with autocast():
                loss = squared(model(x), y)
            optimizer.zero_grad()
            scale.scale(loss).backward()
            scale.step(optimizer)
            scale.update(1024.0)
            average.update_parameters(model)
            with torch.no_grad():
                average(x)
