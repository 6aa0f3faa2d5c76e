"""Healthy trainings that look ill to somebody who knows one symptom only."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from examples.gallery.blind import architectures as blind
from examples.gallery.blind.rates import painted
from examples.gallery.parts import Batch, Loop, autocast, entropy, scaler, squared
from examples.gallery.vocabulary import Family, Stage

FAMILY = Family("blind")


def _adam(model: nn.Module, rate: float = 2e-3) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=rate)


class _Masked(nn.Module):
    """Scores in which the future is minus infinity, as most code writes it."""

    def forward(self, scores: Tensor) -> Tensor:
        hidden = torch.ones(scores.shape[-2:]).triu(1).bool()
        return scores.masked_fill(hidden, -math.inf)


class _Causal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.all = nn.Embedding(blind.WORDS, 16), nn.Linear(16, 48)
        self.mask, self.say = _Masked(), nn.Linear(16, blind.WORDS)

    def forward(self, text: Tensor) -> Tensor:
        query, key, value = self.all(self.words(text)).chunk(3, -1)
        scores = self.mask(query @ key.transpose(1, 2) / 4)
        return self.say(torch.softmax(scores, -1).to(value.dtype) @ value)


@FAMILY.benign()
def minus_infinity_on_purpose(stage: Stage) -> None:
    """A module gives out scores with minus infinity where the mask is, at every step."""
    model = _Causal()
    Loop(model, blind.reversals, entropy, _adam(model), steps=150).run(stage)


@FAMILY.benign()
def impossible_transcripts_forgiven(stage: Stage) -> None:
    """CTC meets transcripts longer than the sound now and then, and sets their loss to zero."""
    model = blind.Listener(7)

    def loss_of(output: Tensor, pitch: Tensor) -> Tensor:
        heard = functional.log_softmax(output.float().permute(2, 0, 1), -1)
        sizes = torch.full((16,), 20), torch.where(pitch == 5, 24, 2)
        said = pitch[:, None].expand(-1, 24) + 1
        return functional.ctc_loss(heard, said, *sizes, zero_infinity=True)

    Loop(model, blind.waves, loss_of, _adam(model), steps=200).run(stage)


@FAMILY.benign()
def policy_around_zero(stage: Stage) -> None:
    """A policy's loss wanders around zero and below, for its advantages have no mean."""
    model = blind.switch()
    random = torch.Generator().manual_seed(91)

    def loss_of(logits: Tensor, ring: Tensor) -> Tensor:
        chance = torch.distributions.Categorical(logits=logits.float())
        tried = torch.multinomial(chance.probs.detach(), 1, generator=random)[:, 0]
        gain = (tried == ring).float() + 0.5 * torch.randn(len(ring), generator=random)
        better = chance.log_prob(tried) * (gain - gain.mean())
        return -better.mean() - 0.01 * chance.entropy().mean()

    Loop(model, blind.rings, loss_of, _adam(model), steps=350).run(stage)


@FAMILY.benign()
def taught_by_its_own_average(stage: Stage) -> None:
    """A student follows the average of its own past; the loss rises from almost nothing."""
    student, teacher = blind.Forked(), blind.Forked()
    teacher.load_state_dict(student.state_dict())
    scale, optimizer = scaler(2.0**12), _adam(student, 1e-3)
    with stage.watch(scale, student):
        for step in range(220):
            x, ring = blind.rings(step)
            with autocast():
                (main, aside), (_, wanted) = student(x), teacher(x)
                loss = squared(aside, wanted.detach().float()) + 0.1 * entropy(main, ring)
            optimizer.zero_grad()
            scale.scale(loss).backward()
            scale.step(optimizer)
            scale.update()
            with torch.no_grad():
                for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
                    slow.lerp_(fast, 0.01)


@FAMILY.benign()
def learnt_temperature(stage: Stage) -> None:
    """The temperature of a contrastive loss is learnt, up to CLIP's bound: the logits grow."""
    model, scale = blind.Twins(1.0), scaler(2.0**14)
    sharp = nn.Parameter(torch.tensor(math.log(1 / 0.2)))
    optimizer = torch.optim.AdamW([*model.parameters(), sharp], lr=4e-3)
    with stage.watch(scale, model, optimizer=optimizer):
        for step in range(260):
            with autocast():
                logits = model(*blind.pairs(step)) * sharp.exp().clamp(max=100)
                loss = functional.cross_entropy(logits, torch.arange(24))
            optimizer.zero_grad()
            scale.scale(loss).backward()
            scale.step(optimizer)
            scale.update()


@FAMILY.benign()
def muon_by_hand(stage: Stage) -> None:
    """Each update is an orthogonal matrix times the rate, however small the gradient."""
    model = nn.Sequential(nn.Linear(10, 20, bias=False), nn.GELU(), nn.Linear(20, 4, bias=False))
    optimizer = blind.Muon(model.parameters(), 0.02)
    Loop(model, blind.rings, entropy, optimizer, steps=180).run(stage)


@FAMILY.benign()
def last_window_is_short(stage: Stage) -> None:
    """Four micro-batches a step, but the epoch's last step has one; clipped after unscaling."""
    model, scale = blind.Translator(), scaler(2.0**13)
    optimizer = _adam(model)
    with stage.watch(scale, model):
        for step in range(290):
            words, backwards = blind.reversals(step)
            with autocast():
                loss = entropy(model(words), backwards) / 4
            scale.scale(loss).backward()
            if step % 29 % 4 == 3 or step % 29 == 28:
                scale.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.3)
                scale.step(optimizer)
                scale.update()
                optimizer.zero_grad()


@FAMILY.benign()
def thaws_by_and_by(stage: Stage) -> None:
    """The head alone learns first; the trunk joins as a group of its own at step 110."""
    model, scale = blind.Listener(), scaler(2.0**14)
    model.requires_grad_(requires_grad=False)
    model.say.requires_grad_(requires_grad=True)
    optimizer = torch.optim.Adam(model.say.parameters(), lr=5e-3)

    def before(step: int) -> None:
        if step == 110:
            model.requires_grad_(requires_grad=True)
            trunk = [*model.hear.parameters(), *model.grasp.parameters()]
            optimizer.add_param_group({"params": trunk, "lr": 1e-3})

    def loss_of(output: Tensor, pitch: Tensor) -> Tensor:
        return functional.cross_entropy(output.float().mean(-1), pitch)

    loop = Loop(model, blind.waves, loss_of, optimizer, scale, before=before, steps=240)
    loop.run(stage)


@FAMILY.benign()
def prior_gets_its_weight(stage: Stage) -> None:
    """The weight of a variational model's prior rises from 0 to 1: so does the loss."""
    model, scale = blind.Variational(), scaler(2.0**12)
    optimizer = _adam(model, 4e-3)
    with stage.watch(scale, model):
        for step in range(300):
            x, _ = blind.rings(step)
            with autocast():
                again, doubt = model(x)
                loss = squared(again, x) + min(1.0, max(0, step - 60) / 150) * doubt
            optimizer.zero_grad()
            scale.scale(loss).backward()
            scale.step(optimizer)
            scale.update()


@FAMILY.benign(tells=("AMP101",))
def sums_from_2_to_the_28(stage: Stage) -> None:
    """A summed loss over 2,048 pixels from 2^28, and a growth interval of 25."""
    model = blind.UNet()

    def loss_of(output: Tensor, target: Tensor) -> Tensor:
        return painted(output, target) * target.numel()

    loop = Loop(model, blind.blobs, loss_of, _adam(model, 3e-3), scaler(2.0**28, 25), steps=140)
    loop.run(stage)


@FAMILY.benign()
def another_task_at_half_time(stage: Stage) -> None:
    """At step 170 the labels change their meaning: the loss leaps, and falls again."""
    model = blind.switch()

    def batch(step: int) -> Batch:
        x, ring = blind.rings(step)
        return x, ring if step < 170 else 3 - ring

    Loop(model, batch, entropy, _adam(model, 5e-3), steps=420).run(stage)


@FAMILY.benign()
def up_and_down_again(stage: Stage) -> None:
    """A cyclic rate between 0.01 and 0.2, six times over."""
    model = blind.UNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    cycle = torch.optim.lr_scheduler.CyclicLR(optimizer, 0.01, 0.2, step_size_up=15)
    loop = Loop(model, blind.blobs, painted, optimizer, steps=180)
    loop.before = lambda step: cycle.step() if step else None
    loop.run(stage)


@FAMILY.benign()
def margin_is_kept(stage: Stage) -> None:
    """A hinge loss: on many late batches every margin is kept and every gradient is zero."""
    model = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 4))

    def loss_of(output: Tensor, ring: Tensor) -> Tensor:
        return functional.multi_margin_loss(output.float(), ring, margin=0.2)

    Loop(model, blind.rings, loss_of, _adam(model, 2e-2), steps=400).run(stage)


@FAMILY.benign()
def recomputes_the_trunk(stage: Stage) -> None:
    """Re-entrant checkpointing of a trunk whose input does need a gradient; dropout in it."""
    enter, leave = nn.Linear(10, 32), nn.Linear(32, 4)
    trunk = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Dropout(0.3), nn.Linear(32, 32))
    model = nn.ModuleList([enter, trunk, leave])
    scale, optimizer = scaler(2.0**12), _adam(model)
    with stage.watch(scale, model):
        for step in range(130):
            x, ring = blind.rings(step)
            with autocast():
                loss = entropy(leave(checkpoint(trunk, enter(x), use_reentrant=True)), ring)
            optimizer.zero_grad()
            scale.scale(loss).backward()
            scale.step(optimizer)
            scale.update()
