"""Numbers that leave the format, in the forward pass, the loss, the backward pass, the data."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from examples.gallery.blind import architectures as blind
from examples.gallery.blind.rates import painted
from examples.gallery.parts import Batch, Loop, autocast, entropy, scaler, squared
from examples.gallery.vocabulary import Family, Label, Stage

FAMILY = Family("blind")
NOT_THE_RATE = "not-the-cause"
FALLS = ("AMP101", "AMP103", "AMP104", "AMP105")


def _adam(model: nn.Module, rate: float = 3e-3) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=rate)


def _not_the_rate(code: str, onset: int, *may: str, layer: str | None = None) -> Label:
    return Label((code,), may=(*FALLS, *may), layer=layer, advice=NOT_THE_RATE, onset=onset)


@FAMILY.fault(_not_the_rate("AMP204", 0))
def focal_loss_in_half(stage: Stage, fault: bool) -> None:
    """A focal loss whose guard of 1e-8 is zero in half; one class is far from the others."""

    def loss_of(logits: Tensor, ring: Tensor) -> Tensor:
        wide = logits if fault else logits.float()
        chance = torch.softmax(wide * 200, -1).to(wide.dtype)
        mine = chance.gather(1, ring[:, None])
        return (-((1 - mine) ** 2) * torch.log(mine + 1e-8)).mean()

    model = blind.switch()
    Loop(model, blind.rings, loss_of, _adam(model), scaler(2.0**8), steps=70).run(stage)


@FAMILY.fault(_not_the_rate("AMP203", 0, "AMP204", layer="twins.compare"))
def bare_exponentials(stage: Stage, fault: bool) -> None:
    """A contrastive loss at temperature 0.03, by plain exponentials in half."""
    model = _Both(blind.Twins(0.03, bare=fault))

    def loss_of(said: Tensor, _: Tensor) -> Tensor:
        if fault:
            return -torch.log(said.float().diagonal() / said.float().sum(1)).mean()
        return functional.cross_entropy(said, torch.arange(24))

    def batch(step: int) -> Batch:
        views = torch.cat(blind.pairs(step), 1)
        return views, views

    Loop(model, batch, loss_of, _adam(model), steps=60).run(stage)


class _Both(nn.Module):
    def __init__(self, twins: nn.Module) -> None:
        super().__init__()
        self.twins = twins

    def forward(self, x: Tensor) -> Tensor:
        return self.twins(*x.chunk(2, 1))


@FAMILY.fault(_not_the_rate("AMP203", 0, "AMP204", layer="look"))
def attention_by_hand(stage: Stage, fault: bool) -> None:
    """A translator whose attention takes exponentials in half, without their maximum."""
    model = blind.Translator(careful=not fault)
    Loop(model, blind.reversals, entropy, _adam(model), steps=80).run(stage)


@FAMILY.fault(
    Label(("AMP202", "AMP103"), may=(*FALLS, "AMP208", "AMP205"), layer="norm",
          advice=NOT_THE_RATE, onset=0),
)  # fmt: skip
def divides_by_next_to_nothing(stage: Stage, fault: bool) -> None:
    """Patches in tiny units are divided by their largest: all is well until the backward pass."""
    model = blind.Sight(blind.ByTheLargest(upcast=not fault))
    Loop(model, blind.blobs, painted, _adam(model), scaler(2.0**8), steps=60).run(stage)


@FAMILY.fault(_not_the_rate("AMP203", 0, "AMP204", "AMP205", layer="cell"))
def fixpoint_that_has_none(stage: Stage, fault: bool) -> None:
    """One cell thirty times over, and each time half as large again."""
    model = blind.Fixpoint(1.55 if fault else 0.9)
    Loop(model, blind.rings, entropy, _adam(model), steps=60).run(stage)


@FAMILY.fault(_not_the_rate("AMP203", 20, "AMP205", "AMP204", "AMP206", "AMP202", "AMP304",
                            layer="leave"))  # fmt: skip
def target_outside_the_format(stage: Stage, fault: bool) -> None:
    """A target of 90,000 in units that nobody normalised: the last layer climbs towards it."""
    model = blind.Fixpoint(0.95)
    groups = [{"params": model.enter.parameters()}, {"params": model.cell.parameters()}]
    optimizer = torch.optim.Adam([*groups, {"params": model.leave.parameters(), "lr": 40.0}], 1e-4)

    def batch(step: int) -> Batch:
        x, ring = blind.rings(step)
        return x, functional.one_hot(ring, 4) * 9e4 + 9e4

    def loss_of(output: Tensor, target: Tensor) -> Tensor:
        return squared(output / 1e4, target / 1e4)

    loop = Loop(model, batch, loss_of, optimizer, scaler(2.0**8), steps=260)
    if not fault:
        loop.batch = lambda step: (batch(step)[0], batch(step)[1] / 10)
    loop.run(stage)


@FAMILY.fault(_not_the_rate("AMP206", 150, "AMP203", "AMP204", "AMP205"))
def two_spoilt_recordings(stage: Stage, fault: bool) -> None:
    """Two recordings were written at a hundred thousand times their volume."""
    model = blind.Listener()

    def batch(step: int) -> Batch:
        x, pitch = blind.waves(step)
        return (x * 1e6 if fault and step in (150, 310) else x), pitch

    def loss_of(output: Tensor, pitch: Tensor) -> Tensor:
        return functional.cross_entropy(output.float().mean(-1), pitch)

    Loop(model, batch, loss_of, _adam(model), steps=480).run(stage)


@FAMILY.fault(_not_the_rate("AMP204", 90))
def labels_longer_than_the_sound(stage: Stage, fault: bool) -> None:
    """CTC on a source whose transcripts are longer than the sound: the loss is inf from there."""
    model = blind.Listener(7)

    def loss_of(output: Tensor, pitch: Tensor) -> Tensor:
        heard = functional.log_softmax(output.float().permute(2, 0, 1), -1)
        said = pitch[:, None].expand(-1, length[0]) + 1
        sizes = torch.full((16,), 20), torch.full((16,), length[0])
        return functional.ctc_loss(heard, said, *sizes)

    length = [3]

    def before(step: int) -> None:
        length[0] = 24 if fault and step >= 90 else 3

    Loop(model, blind.waves, loss_of, _adam(model), before=before, steps=150).run(stage)


@FAMILY.fault(_not_the_rate("AMP204", 120))
def stale_policy(stage: Stage, fault: bool) -> None:
    """A policy's ratio to a stale one, as an exponential in half: inf from step 120 on."""
    model = blind.switch()
    stale = [0.0]

    def loss_of(logits: Tensor, ring: Tensor) -> Tensor:
        chosen = torch.log_softmax(logits.float(), -1).gather(1, ring[:, None])
        ratio = (chosen - chosen.detach() + stale[0]).half().exp()
        return -(ratio.float() * (1.5 - 0.1 * ring[:, None])).mean()

    def before(step: int) -> None:
        stale[0] = 14.0 if fault and step >= 120 else 0.0

    Loop(model, blind.rings, loss_of, _adam(model, 1e-3), before=before, steps=180).run(stage)


@FAMILY.fault(
    Label(("AMP414",), may=("AMP207", "AMP203", "AMP204", "AMP408", "AMP406", "AMP201", "AMP103"),
          advice=NOT_THE_RATE, onset=0),
)  # fmt: skip
def eps_of_rmsprop(stage: Stage, fault: bool) -> None:
    """RMSprop's eps of 1e-8 on weights in half: nothing at all, and the small ones become inf."""
    model = blind.Twins().half() if fault else blind.Twins()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4, eps=1e-8)
    with stage.watch(None, model, optimizer=optimizer) as watch:
        for step in range(70):
            a, b = blind.pairs(step)
            dtype = torch.float16 if fault else torch.float32
            loss = functional.cross_entropy(model(a.to(dtype), b.to(dtype)), torch.arange(24))
            watch.log(loss=loss.detach())
            optimizer.zero_grad()
            (loss * 1e-3).backward()
            optimizer.step()


@FAMILY.fault(Label(("AMP201",), may=("AMP107",), layer="aside", advice=NOT_THE_RATE, onset=0))
def second_task_unheard(stage: Stage, fault: bool) -> None:
    """The second task's loss weighs a ten-millionth: its gradients vanish, the first's do not."""
    model, scale = blind.Forked(), scaler(2.0**4, 10_000)
    optimizer = _adam(model)
    with stage.watch(scale, model):
        for step in range(160):
            x, ring = blind.rings(step)
            with autocast():
                main, aside = model(x)
                again = squared(aside, x) * (1e-7 if fault else 0.5)
                loss = entropy(main, ring) + again
            optimizer.zero_grad()
            scale.scale(loss).backward()
            scale.step(optimizer)
            scale.update()


@FAMILY.fault(_not_the_rate("AMP209", 140, "AMP203", "AMP204"))
def logarithm_of_silence(stage: Stage, fault: bool) -> None:
    """From step 140 on a microphone is dead, and the logarithm of its volume is minus infinity."""
    model = blind.Listener()

    def batch(step: int) -> Batch:
        x, pitch = blind.waves(step)
        dead = fault and step >= 140
        return torch.where(torch.arange(16)[:, None, None] == 3, (x * (not dead)).abs().log(),
                           x), pitch  # fmt: skip

    def loss_of(output: Tensor, pitch: Tensor) -> Tensor:
        return functional.cross_entropy(output.float().mean(-1), pitch)

    Loop(model, batch, loss_of, _adam(model), steps=200).run(stage)


@FAMILY.fault(_not_the_rate("AMP207", 77, "AMP203", "AMP204", layer="hear"))
def standardised_by_nothing(stage: Stage, fault: bool) -> None:
    """At step 77 weights are divided by their own spread, and one filter has none."""
    model = blind.Listener()

    def before(step: int) -> None:
        if step != 77:
            return
        with torch.no_grad():
            weight = model.hear.weight
            if fault:
                weight[5] = 0.0
            weight /= weight.std((1, 2), keepdim=True) * 3

    def loss_of(output: Tensor, pitch: Tensor) -> Tensor:
        return functional.cross_entropy(output.float().mean(-1), pitch)

    Loop(model, blind.waves, loss_of, _adam(model), before=before, steps=130).run(stage)


@FAMILY.fault(_not_the_rate("AMP105", 100, "AMP204", "AMP206", "AMP202"))
def importance_without_bound(stage: Stage, fault: bool) -> None:
    """A fixed scale; from step 100 on every third loss carries a weight that overflows in half."""
    model = blind.switch()
    random = torch.Generator().manual_seed(5)
    doubt = torch.rand(600, generator=random)
    weight = [1.0]

    def loss_of(logits: Tensor, ring: Tensor) -> Tensor:
        return entropy(logits, ring) * torch.tensor(weight[0]).half().exp().float()

    def before(step: int) -> None:
        weight[0] = 13.0 if fault and step >= 100 and doubt[step] < 0.3 else 0.0

    fixed = scaler(2.0**12)
    fixed.set_growth_factor(1.0 + 1e-6)
    fixed.set_backoff_factor(1.0 - 1e-6)
    Loop(model, blind.rings, loss_of, _adam(model), fixed, before=before, steps=400).run(stage)


@FAMILY.fault(Label(("AMP304",), may=("AMP205",), onset=80))
def temperature_falls(stage: Stage, fault: bool) -> None:
    """A schedule lowers the temperature for ever: the gradients grow a hundred times."""
    model = _Both(blind.Twins(1.0))

    def batch(step: int) -> Batch:
        views = torch.cat(blind.pairs(step), 1)
        return views, views

    def loss_of(logits: Tensor, _: Tensor) -> Tensor:
        return functional.cross_entropy(logits, torch.randint(24, (24,)))

    def before(step: int) -> None:
        model.twins.compare.temperature = 0.988**step if fault else 1.0

    loop = Loop(model, batch, loss_of, _adam(model, 1e-5), scaler(2.0**8), steps=400)
    loop.before = before
    loop.run(stage)
