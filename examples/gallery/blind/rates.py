"""The learning rate is the cause, at once or late, by a little or by much."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from examples.gallery.blind import architectures as blind
from examples.gallery.parts import Loop, autocast, entropy, scaler, set_rate
from examples.gallery.vocabulary import Family, Label, Stage

FAMILY = Family("blind")
COURSE = (  # what a rate that is too high may lead to
    "AMP101", "AMP103", "AMP104", "AMP105", "AMP202", "AMP203", "AMP204", "AMP205", "AMP206",
    "AMP207", "AMP208", "AMP210", "AMP304", "AMP307",
)  # fmt: skip


def _lower(code: str, onset: int, *may: str) -> Label:
    return Label((code,), may=(*COURSE, "AMP301", "AMP302", *may), advice="lower", onset=onset)


def painted(output: Tensor, target: Tensor) -> Tensor:
    """Cross entropy of each pixel, in float32."""
    return functional.binary_cross_entropy_with_logits(output.float(), target)


@FAMILY.fault(_lower("AMP301", 0))
def unet_momentum_too_fast(stage: Stage, fault: bool) -> None:
    """Momentum without clipping on a U-Net, far above its limit."""
    model = blind.UNet()
    rate = 16.0 if fault else 0.1
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    Loop(model, blind.blobs, painted, optimizer, steps=90).run(stage)


@FAMILY.fault(_lower("AMP306", 140))
def translator_rate_leaps(stage: Stage, fault: bool) -> None:
    """After 140 good steps somebody types a rate 256 times as high."""
    model = blind.Translator()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3)

    def rate(step: int) -> float:
        return 2e-3 * (256 if fault and step >= 140 else 1)

    Loop(model, blind.reversals, entropy, optimizer, steps=240, rate=rate).run(stage)


@FAMILY.fault(_lower("AMP302", 15))
def one_cycle_peak_too_high(stage: Stage, fault: bool) -> None:
    """OneCycle to a peak that the waves' network does not tolerate; it diverges on the way up."""
    model = blind.Listener()
    top = 12.0 if fault else 0.1
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, top, 300, pct_start=0.5)

    def loss_of(output: Tensor, pitch: Tensor) -> Tensor:
        return functional.cross_entropy(output.float().mean(-1), pitch)

    loop = Loop(model, blind.waves, loss_of, optimizer, steps=130)
    loop.before = lambda step: cycle.step() if step else None
    loop.run(stage)


@FAMILY.fault(_lower("AMP301", 0))
def lion_64_times_too_fast(stage: Stage, fault: bool) -> None:
    """A sign optimizer written by hand, at the rate that Adam's bigger brother would take."""
    model = blind.switch()
    optimizer = blind.Lion(model.parameters(), 0.256 if fault else 4e-3)
    Loop(model, blind.rings, entropy, optimizer, steps=160).run(stage)


class _Adapted(nn.Module):
    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(requires_grad=False)
        self.into = nn.Linear(base.in_features, 4, bias=False)
        self.out = nn.Linear(4, base.out_features, bias=False)
        nn.init.zeros_(self.out.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.out(self.into(x))


@FAMILY.fault(_lower("AMP301", 0))
def adapters_too_fast(stage: Stage, fault: bool) -> None:
    """Low-rank adapters beside a frozen encoder, with plain SGD far too fast."""
    model = blind.Forked()
    model.requires_grad_(requires_grad=False)
    model.trunk[0] = _Adapted(model.trunk[0])
    model.main = _Adapted(model.main)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=20.0 if fault else 0.05)

    def loss_of(output: tuple[Tensor, Tensor], ring: Tensor) -> Tensor:
        return entropy(output[0], ring)

    Loop(model, blind.rings, loss_of, optimizer, steps=180).run(stage)


@FAMILY.fault(_lower("AMP306", 120))
def resume_at_the_wrong_rate(stage: Stage, fault: bool) -> None:
    """A resumed run takes the rate of another configuration, 160 times its own."""
    model, scale = blind.UNet(), scaler()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loop = Loop(model, blind.blobs, painted, optimizer, scale)
    with stage.watch(scale, model):
        loop.go(range(120))
        saved = scale.state_dict()
    loop.scaler = scaler()
    loop.scaler.load_state_dict(saved)
    with stage.watch(loop.scaler, model, start_step=120, resume=True):
        if fault:
            set_rate(optimizer, 16.0)
        loop.go(range(120, 200))


@FAMILY.fault(_lower("AMP302", 200, "AMP306"))
def rate_grows_for_ever(stage: Stage, fault: bool) -> None:
    """A schedule that multiplies by 1.04 at each step, for its sign is wrong."""
    model = blind.Twins()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    targets = torch.arange(24)

    def loss_of(logits: Tensor, _: Tensor) -> Tensor:
        return functional.cross_entropy(logits, targets)

    loop = Loop(_Joint(model), blind.pairs, loss_of, optimizer, steps=420)
    loop.rate = lambda step: 0.05 * (1.04 if fault else 0.99) ** step
    loop.batch = lambda step: (torch.cat(blind.pairs(step), 1), targets)
    loop.run(stage)


class _Joint(nn.Module):
    """Takes both views as one tensor."""

    def __init__(self, twins: nn.Module) -> None:
        super().__init__()
        self.twins = twins

    def forward(self, x: Tensor) -> Tensor:
        return self.twins(*x.chunk(2, 1))


@FAMILY.fault(_lower("AMP307", 0))
def denoiser_head_just_too_fast(stage: Stage, fault: bool) -> None:
    """A denoiser's last layer, 4 % past its limit: the loss climbs without any overflow."""
    torch.manual_seed(0)  # whose limit is 1.21
    model, scale = blind.Denoiser(), scaler(2.0**7)
    head = model.body[-1]
    optimizer = torch.optim.SGD(head.parameters(), lr=1.26 if fault else 1.0)
    points, time = blind.moons(0), torch.rand(64)
    noise = torch.randn(64, 2)
    with stage.watch(scale, model):
        for _ in range(75):
            with autocast():
                guess = model(points * (1 - time[:, None]) + noise * time[:, None], time)
                loss = functional.mse_loss(guess.float(), noise)
            optimizer.zero_grad()
            scale.scale(loss).backward()
            scale.step(optimizer)
            scale.update()
