"""Loops that use the scaler, autocast or the optimizer wrongly; and scales that are lost."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from examples.gallery.blind import architectures as blind
from examples.gallery.blind.rates import painted
from examples.gallery.parts import Loop, autocast, entropy, scaler, squared
from examples.gallery.vocabulary import Family, Label, Stage

FAMILY = Family("blind")
NOT_THE_RATE = "not-the-cause"


def _misuse(code: str, *may: str, layer: str | None = None, onset: int = 0) -> Label:
    return Label((code,), may=may, layer=layer, advice=NOT_THE_RATE, onset=onset)


def _adam(model: nn.Module, rate: float = 2e-3) -> torch.optim.Optimizer:
    return torch.optim.NAdam(model.parameters(), lr=rate)


def _translated(model: nn.Module, step: int) -> Tensor:
    words, backwards = blind.reversals(step)
    with autocast():
        return entropy(model(words), backwards)


@FAMILY.fault(_misuse("AMP401"))
def clips_what_it_gathered_too_early(stage: Stage, fault: bool) -> None:
    """Three micro-batches a step, and the sum is clipped while it is still scaled."""
    model, scale = blind.Translator(), scaler(2.0**14)
    optimizer = _adam(model)
    with stage.watch(scale, model):
        for step in range(90):
            for micro in range(3):
                scale.scale(_translated(model, 3 * step + micro) / 3).backward()
            if not fault:
                scale.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.7)
            scale.step(optimizer)
            scale.update()
            optimizer.zero_grad()


@FAMILY.fault(Label(tells=("AMP409",), may=("AMP409",), advice="keep", onset=0))
def unet_backward_inside(stage: Stage, fault: bool) -> None:
    """The backward pass of a U-Net stands one indent too deep."""
    model, scale = blind.UNet(), scaler(2.0**12)
    optimizer = _adam(model)
    with stage.watch(scale, model):
        for step in range(60):
            x, disc = blind.blobs(step)
            optimizer.zero_grad()
            with autocast():
                loss = painted(model(x), disc)
                if fault:
                    scale.scale(loss).backward()
            if not fault:
                scale.scale(loss).backward()
            scale.step(optimizer)
            scale.update()


@FAMILY.fault(_misuse("AMP404", "AMP301", "AMP103", "AMP207", "AMP204", "AMP203"))
def table_stepped_by_hand(stage: Stage, fault: bool) -> None:
    """The sparse table has an optimizer of its own, and that one is stepped without the scaler."""
    model, scale = blind.Translator(), scaler(2.0**10)
    table = torch.optim.Adagrad(model.words.parameters(), lr=0.02)
    rest = torch.optim.AdamW([p for p in model.parameters() if p is not model.words.weight], 2e-3)
    with stage.watch(scale, model):
        for step in range(100):
            table.zero_grad()
            rest.zero_grad()
            scale.scale(_translated(model, step)).backward()
            scale.step(rest)
            if fault:
                table.step()
            else:
                scale.step(table)
            scale.update()


@FAMILY.fault(_misuse("AMP403", "AMP902"))
def updates_after_each_micro_batch(stage: Stage, fault: bool) -> None:
    """Four micro-batches a step, and scaler.update() after each of them."""
    model, scale = blind.Translator(), scaler(2.0**12, growth_interval=50)
    optimizer = _adam(model)
    with stage.watch(scale, model):
        for step in range(320):
            scale.scale(_translated(model, step) / 4).backward()
            last = step % 4 == 3
            if last:
                scale.step(optimizer)
                scale.update()
                optimizer.zero_grad()
            elif fault:
                scale.unscale_(optimizer)
                scale.update()


@FAMILY.fault(_misuse("AMP412", "AMP301", "AMP304", "AMP103", "AMP307"))
def clears_the_other_model(stage: Stage, fault: bool) -> None:
    """Student and teacher: zero_grad is called on the one that does not learn."""
    teacher, student = blind.switch(), blind.switch()
    scale, optimizer = scaler(2.0**10), torch.optim.SGD(student.parameters(), lr=0.02)
    with stage.watch(scale, student):
        for step in range(120):
            x, ring = blind.rings(step)
            with autocast():
                loss = entropy(student(x), ring)
            (teacher if fault else student).zero_grad()
            scale.scale(loss).backward()
            scale.step(optimizer)
            scale.update()


@FAMILY.fault(_misuse("AMP413", "AMP103", "AMP204", "AMP105", "AMP202", "AMP104", onset=70))
def doubter_drags_the_painter(stage: Stage, fault: bool) -> None:
    """A U-Net and its critic share a scaler; the critic's loss divides by zero from step 70 on."""
    painter, doubter, shared = blind.UNet(), blind.Listener(), scaler()
    optimizers = [_adam(painter), _adam(doubter)]
    with stage.watch(shared, {"painter": painter, "doubter": doubter}):
        for step in range(140):
            x, disc = blind.blobs(step)
            sound, pitch = blind.waves(step)
            share = torch.tensor(0.0 if fault and step >= 70 else 1.0)
            with autocast():
                drawn = painted(painter(x), disc)
                heard = functional.cross_entropy(doubter(sound).float().mean(-1), pitch) / share
            for optimizer, loss in zip(optimizers, (drawn, heard), strict=True):
                optimizer.zero_grad()
                shared.scale(loss).backward()
                shared.step(optimizer)
            shared.update()


@FAMILY.fault(_misuse("AMP416", "AMP108", onset=60))
def scaler_for_each_epoch(stage: Stage, fault: bool) -> None:
    """A function that trains one epoch makes its scaler inside, with 2^26 to begin with."""
    model, scale = blind.UNet(), scaler(2.0**26)
    loop = Loop(model, blind.blobs, painted, _adam(model), scale)
    with stage.watch(scale, model):
        for epoch in range(5):
            if fault and epoch:
                loop.scaler = scaler(2.0**26)
            loop.go(range(60 * epoch, 60 * epoch + 60))


@FAMILY.fault(_misuse("AMP408", "AMP201"))
def listener_without_scaler(stage: Stage, fault: bool) -> None:
    """fp16 autocast on sound, and nothing that scales the loss."""
    model = blind.Listener()
    optimizer = _adam(model)
    with stage.watch(None, model, optimizer=optimizer) as watch:
        for step in range(110):
            sound, pitch = blind.waves(step)
            with autocast(torch.float16 if fault else torch.bfloat16):
                loss = functional.cross_entropy(model(sound).float().mean(-1), pitch)
            watch.log(loss=loss.detach())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


class _Wrapped(nn.Module):
    """Turns autocast off around its model, as a decorator for inference does."""

    def __init__(self, model: nn.Module, off: bool) -> None:
        super().__init__()
        self.model, self.off = model, off

    def forward(self, x: Tensor) -> Tensor:
        with autocast(enabled=not self.off):
            return self.model(x)


@FAMILY.fault(_misuse("AMP405"))
def wrapper_turns_autocast_off(stage: Stage, fault: bool) -> None:
    """A wrapper around the model switches autocast off inside: everything runs in float32."""
    model = _Wrapped(blind.Sight(), off=fault)
    Loop(model, blind.blobs, painted, _adam(model), steps=80).run(stage)


@FAMILY.fault(_misuse("AMP415", "AMP902", layer="0"))
def written_back_in_half(stage: Stage, fault: bool) -> None:
    """The experts' half answers are written into a float32 buffer in place: torch refuses."""
    model = blind.switch(cast=not fault)
    Loop(model, blind.rings, entropy, _adam(model), steps=80).run(stage)


class _Frugal(nn.Module):
    """Recomputes its whole model in the backward pass."""

    def __init__(self, model: nn.Module, reentrant: bool) -> None:
        super().__init__()
        self.model, self.reentrant = model, reentrant

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.model, x, use_reentrant=self.reentrant)


@FAMILY.fault(_misuse("AMP410", "AMP902"))
def checkpoint_swallows_the_gradient(stage: Stage, fault: bool) -> None:
    """Re-entrant checkpointing of everything, with inputs that need no gradient: there is none."""
    model = _Frugal(blind.switch(), reentrant=fault)
    Loop(model, blind.rings, entropy, _adam(model), steps=80).run(stage)


@FAMILY.fault(_misuse("AMP406", "AMP414", "AMP902", "AMP415", layer="hear"))
def first_layer_born_half(stage: Stage, fault: bool) -> None:
    """A pretrained first layer was stored, and is loaded, in half."""
    model = blind.Listener()
    if fault:
        model.hear.half()

    def loss_of(output: Tensor, pitch: Tensor) -> Tensor:
        return functional.cross_entropy(output.float().mean(-1), pitch)

    Loop(model, blind.waves, loss_of, _adam(model), steps=80).run(stage)


@FAMILY.fault(_misuse("AMP402", "AMP902", onset=24))
def update_after_the_continue(stage: Stage, fault: bool) -> None:
    """Every epoch's last batch leaves the loop by `continue`, ahead of scaler.update()."""
    model, scale = blind.Translator(), scaler(2.0**12)
    optimizer = _adam(model)
    with stage.watch(scale, model):
        for step in range(100):
            optimizer.zero_grad()
            scale.scale(_translated(model, step)).backward()
            scale.step(optimizer)
            if fault and step % 25 == 24:
                continue
            scale.update()


@FAMILY.fault(_misuse("AMP108", "AMP416", "AMP105", "AMP202", "AMP103", onset=130))
def scale_set_back_by_hand(stage: Stage, fault: bool) -> None:
    """A callback at the second epoch's start sets the scale to its first value, 2^30, again."""
    model, scale = blind.Variational(), scaler(2.0**30)
    optimizer = _adam(model)
    with stage.watch(scale, model):
        for step in range(260):
            if fault and step == 130:
                scale.update(2.0**30)
            x, _ = blind.rings(step)
            with autocast():
                again, doubt = model(x)
                loss = 100 * squared(again, x) + 0.1 * doubt
            optimizer.zero_grad()
            scale.scale(loss).backward()
            scale.step(optimizer)
            scale.update()


@FAMILY.fault(_misuse("AMP106", "AMP104", "AMP201", "AMP207", "AMP410", "AMP107"))
def margin_with_the_wrong_sign(stage: Stage, fault: bool) -> None:
    """A hinge loss asks for less than nothing: no gradient but zero, and the scale grows."""
    model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 4))

    def loss_of(output: Tensor, ring: Tensor) -> Tensor:
        return functional.multi_margin_loss(output.float(), ring, margin=-50.0 if fault else 1.0)

    Loop(model, blind.rings, loss_of, _adam(model), scaler(2.0**10, 4), steps=600).run(stage)


@FAMILY.fault(Label(tells=("AMP411",), may=("AMP101",), advice="keep", onset=0))
def warmup_spent_on_skips(stage: Stage, fault: bool) -> None:
    """The warm-up's counter moves on the skips of a search from 2^44, too."""
    model, scale = blind.Sight(), scaler(2.0**44)
    optimizer = _adam(model, 1e-3)
    counter = torch.optim.lr_scheduler.LinearLR(optimizer, 0.05, total_iters=50)
    with stage.watch(scale, model):
        for step in range(100):
            x, disc = blind.blobs(step)
            with autocast():
                loss = painted(model(x), disc)
            optimizer.zero_grad()
            scale.scale(loss).backward()
            scale.step(optimizer)
            before = scale.get_scale()
            scale.update()
            if fault or scale.get_scale() >= before:
                counter.step()
